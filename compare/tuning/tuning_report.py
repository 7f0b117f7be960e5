"""The report of a tuning: its tables, sentences and plots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from compare.core import verdict_words, wording
from compare.core.statistics import VERDICT_PAIRS, paired_ratio, spread
from compare.core.terminal import FULL
from compare.core.wording import count
from compare.judgement.row_figures import DISTURBED
from compare.reporting import document
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen, caution_count
from compare.reporting.tables import Cell, Column, Table
from compare.tuning import search_space, tuning_findings, tuning_plots, tuning_sentences
from compare.tuning.records import STATES, Tuned, Tuning
from compare.tuning.tuning_findings import Findings, over_repeats


def report(tuned: Tuned, folder: Path) -> Report:
    """The report of a tuning.

    Args:
        folder: holds them, for the command that repeats the report.
    """
    plan, found = tuned.plan, tuning_findings.find(tuned)
    sentences = tuning_sentences.sentences(tuned, found)
    summary = [jobs_table(tuned), *quality_table(tuned, found), best_table(tuned)]
    again = wording.shell(["tune", "--resume", str(folder)])
    return Report(
        title=f"Tuning of {plan.settings.model} on {plan.data_name}",
        overline="Search for the best settings",
        facts=[_subject(tuned), document.hardware_and_versions(plan.machine, plan.versions, cores=plan.budget)],
        marks=[
            Mark("Trials", str(sum(len(search.trials) for search in tuned.searches))),
            Mark("Failed or killed", str(tuned.num_failed), "bad" if tuned.num_failed else "good"),
            Mark("State", *(("done", "good") if tuned.done else ("not done", "warn"))),
        ],
        findings=sentences,
        tables=[*summary, progress_table(tuned), trials_table(tuned)],
        terminal_tables=summary,
        drawings=tuning_plots.drawings(tuned, found),
        commands=[("Resume the tuning, or print this report again:", f"{document.COMPARE} {again}")],
        values={
            **tuned.model_dump(mode="json"),
            "best": tuned.best,
            "done": tuned.done,
            "importances": found.importances,
            "judged": found.judged,
            "sections": dict(sentences),
        },
        exit_code=tuned.exit_code,
        screen=screen(tuned, found, folder),
        again=wording.command("tune", "--resume", str(folder), FULL),
    )


def screen(tuned: Tuned, found: Findings, folder: Path) -> Screen:
    """The best settings of each framework, and what searching side by side gains and costs."""
    plan, settings = tuned.plan, tuned.plan.settings
    number = sum(len(search.trials) for search in tuned.searches)
    best = best_table(tuned)
    fields = [row for row in best.rows if row["field"] in {name for found in tuned.best.values() for name in found}]
    cautions = sum(len(said) for heading, said in tuning_sentences.sentences(tuned, found) if heading == "Cautions")
    answers = [
        Paragraph("Best", tuning_sentences.bests_in_short(tuned)),
        Paragraph("Side by side", tuning_sentences.gains_in_short(tuned, found)),
        Paragraph("Fields", tuning_sentences.importances_in_short(found)),
        Paragraph("Trouble", tuning_sentences.trouble(tuned), "bad"),
    ]
    return Screen(
        subject=[
            f"Best settings of {settings.model} on {plan.data_name}, by validation {settings.objective}: "
            f"{_trials_words(settings)}",
            f"{', '.join(map(str, settings.jobs))} job{'s' if settings.jobs != (1,) else ''} by {settings.backend}",
            count(settings.repeats, "repeat"),
            count(plan.budget, "core"),
            f"{count(number, 'trial')} so far" if not tuned.done else count(number, "trial"),
        ],
        answers=[each for each in answers if each.sentences],
        table=replace(best, title="Best settings", rows=fields),
        remarks=[
            *(
                ["The best of many trials is too good: it was chosen by this score. No trial saw the test split."]
                if number
                else []
            ),
            *caution_count(cautions),
        ],
        next=[] if tuned.done else [("resume", wording.command("tune", "--resume", str(folder)))],
    )


def _subject(tuned: Tuned) -> str:
    """One line: model, data, search, repeats and objective of a tuning."""
    plan, settings = tuned.plan, tuned.plan.settings
    pruned = "" if settings.pruner == "none" else f", pruned by {settings.pruner}"
    jobs = f"{', '.join(map(str, settings.jobs))} job{'s' if settings.jobs != (1,) else ''}"
    return (
        f"{settings.model} on {plan.data_name}: {_trials_words(settings)}{pruned}, {jobs} by {settings.backend}, "
        f"{count(settings.repeats, 'repeat')}; objective: {settings.objective} of {plan.validation_examples:,} validation "
        "images"
    )


def _trials_words(settings: Tuning) -> str:
    if settings.sampler != "grid":
        return f"{settings.trials} trials of {settings.sampler}"
    space = settings.judged_space()
    return f"{settings.trials_of(space)} of the {search_space.grid_size(space):,} points of a grid"


def jobs_table(tuned: Tuned) -> Table:
    """Seconds and speed-up by number of jobs."""
    settings = tuned.plan.settings
    columns = (
        Column("contestant", "contestant"),
        Column("jobs", "jobs"),
        Column("cores", "cores in all", short="cores"),
        Column("cores_a_trial", "cores a trial", short="a\ntrial"),
        Column("trials", "trials"),
        *(Column(state, state, terminal=state in ("ok", "pruned")) for state in STATES),
        Column("bad", "diverged, failed or killed", short="bad"),
        Column("images", "images trained on", 0, terminal=False, interval=True),
        Column("start_seconds", "start seconds", 1, terminal=False, interval=True),
        Column("seconds", "seconds", 1, interval=True),
        Column("speedup", "speed-up", 2, interval=True),
        Column("images_per_second", "images/s", 0, short="img/s", interval=True),
        Column("images_speedup", "speed-up of images/s", 2, short="of\nimg/s", wide=True, interval=True),
        Column("value", f"best validation {settings.objective}", 4, short=f"best\n{settings.objective}", interval=True),
    )
    rows = [
        {"contestant": contestant, "jobs": jobs, **_jobs_cells(tuned, contestant, jobs)}
        for contestant in settings.frameworks
        for jobs in tuned.by_jobs(contestant)
    ]
    repeats = f"median of {settings.repeats} searches (25 % to 75 % quantile)" if settings.repeats > 1 else "of one search"
    against = count(min(settings.jobs), "job")
    note = f"Seconds: {repeats}, from the first trial's start to the last one's end, without the import of the framework."
    if len(settings.jobs) > 1:
        note += f" Speed-up: against {against}, geometric mean of paired repeats (95 % interval). {verdict_words.HOLDS}"
    title = f"Searches by {settings.backend}, on {count(tuned.plan.budget, 'core')} in all"
    return Table("tuning", title, columns, rows, note=note)


def _jobs_cells(tuned: Tuned, contestant: str, jobs: int) -> dict[str, Cell]:
    by_jobs = tuned.by_jobs(contestant)
    searches, fewest = by_jobs[jobs], min(by_jobs)
    done, timed = [each for each in searches if each.done], [each for each in searches if each.timed]
    pairs = [] if jobs == fewest else tuning_findings.pairs(by_jobs[fewest], searches, timed=True)
    states = [trial.state for each in searches for trial in each.trials]
    ratios: dict[str, Cell] = {
        "speedup": paired_ratio([(few.seconds, many.seconds) for few, many in pairs]),
        "images_speedup": paired_ratio([(many.images_per_second, few.images_per_second) for few, many in pairs]),
    }
    if pairs and tuning_findings.disturbs(tuned, contestant, jobs, fewest):
        ratios = dict.fromkeys(ratios, DISTURBED)
    return {
        "cores": min(jobs * searches[0].cores_a_trial, tuned.plan.budget),
        "cores_a_trial": searches[0].cores_a_trial,
        "trials": len(states),
        **{state: states.count(state) for state in STATES},
        "bad": sum(state not in ("ok", "pruned") for state in states),
        "images": spread([each.images for each in done]),
        "start_seconds": spread([each.start_seconds for each in done if each.start_seconds is not None]),
        "seconds": spread([each.seconds for each in timed]),
        "images_per_second": spread([each.images_per_second for each in timed]),
        **ratios,
        "value": over_repeats(done, tuned.plan.settings.objective),
    }


def quality_table(tuned: Tuned, found: Findings) -> list[Table]:
    """Whether several jobs cost quality: one table, or none if there is nothing to compare with."""
    objective, fewest = tuned.plan.settings.objective, count(min(tuned.plan.settings.jobs), "job")
    columns = (
        Column("contestant", "contestant"),
        Column("jobs", "jobs"),
        Column("seconds", "speed-up", 2, interval=True),
        Column("seconds_verdict", "is", fold=16),
        Column("after_trials", "best value, same trials", 3, short="best, same\ntrials", interval=True),
        Column("after_trials_verdict", "after the same trials", short="is", fold=16),
        Column("after_seconds", "best value, same seconds", 3, short="best, same\nseconds", interval=True),
        Column("after_seconds_verdict", "after the same seconds", short="is", fold=16),
        Column("n", "pairs"),
    )
    rows: list[dict[str, Cell]] = []
    for gain in found.gains:
        cells: dict[str, Cell] = {"contestant": gain.contestant, "jobs": gain.jobs}
        named = {"seconds": gain.seconds, "after_trials": gain.after_trials, "after_seconds": gain.after_seconds}
        for key, judged in named.items():
            cells[key] = judged and judged.ratio
            cells[f"{key}_verdict"] = judged and tuning_sentences.verdict(tuned, judged, seconds=key == "seconds")
        if gain.seconds and tuning_findings.disturbs(tuned, gain.contestant, gain.jobs, gain.against):
            cells |= {"seconds": DISTURBED, "seconds_verdict": DISTURBED}
        counts = dict.fromkeys(judged.ratio.n for judged in named.values() if judged)
        rows.append(cells | {"n": ", ".join(map(str, counts))})
    note = (
        f"Against {fewest}, geometric means of paired repeats (95 % interval). {verdict_words.HOLDS} Best value: the best "
        f"validation {objective} over that of {fewest}, after all trials, and when the faster of the two searches had ended. "
        f"Verdicts are Holm-corrected over the table, and need {VERDICT_PAIRS} pairs."
    )
    return [Table("tuning_quality", "Does searching side by side cost quality?", columns, rows, note=note)] if rows else []


def best_table(tuned: Tuned) -> Table:
    """The settings of each framework's best trial."""
    best = tuned.best_trials
    columns = (Column("field", "field"), *(Column(name, name) for name in best))
    fields = dict.fromkeys(field for found in best.values() for field in found.fields)
    values: dict[str, dict[str, Any]] = {
        **{field: {name: found.fields.get(field) for name, found in best.items()} for field in fields},
        "validation loss": {name: found.trial.loss for name, found in best.items()},
        "validation accuracy": {name: found.trial.accuracy for name, found in best.items()},
        "epochs": {name: found.trial.epochs for name, found in best.items()},
    }
    rows: list[dict[str, Cell]] = [
        {"field": field, **{name: _plain(value) for name, value in cells.items()}} for field, cells in values.items()
    ]
    note = "Validation split, after the trial's last epoch. No trial has seen the test split."
    return Table("tuning_best", "Best trials", columns, rows, note=note)


def progress_table(tuned: Tuned) -> Table:
    """The best value after each trial."""
    settings = tuned.plan.settings
    groups = {
        f"{contestant}-{jobs}": (f"{contestant}, {count(jobs, 'job')}", searches)
        for contestant in settings.frameworks
        for jobs, searches in tuned.by_jobs(contestant).items()
    }
    columns = (
        Column("trials", "trials"),
        *(Column(key, name, 4, interval=True) for key, (name, _) in groups.items()),
    )
    last = max((len(search.trials) for search in tuned.searches), default=0)
    rows: list[dict[str, Cell]] = [
        {"trials": n, **{key: over_repeats(each, settings.objective, trials=n) for key, (_, each) in groups.items()}}
        for n in range(1, last + 1)
    ]
    note = "Median over repeats (25 % to 75 % quantile). Trials are in the order in which they ended."
    return Table("tuning_progress", f"Best validation {settings.objective} after each trial", columns, rows, note=note)


def trials_table(tuned: Tuned) -> Table:
    """Every trial of every search."""
    drawn = list(dict.fromkeys(field for each in tuned.searches for trial in each.trials for field in trial.fields))
    columns = (
        *(Column(key, key) for key in ("contestant", "jobs", "repeat", "trial")),
        Column("state", "state"),
        Column("loss", "validation loss", 4),
        Column("accuracy", "validation accuracy", 4),
        Column("epochs", "epochs"),
        Column("began_seconds", "began", 2),
        Column("ended_seconds", "ended", 2),
        *(Column(field, field) for field in drawn),
        Column("reason", "reason"),
    )
    rows: list[dict[str, Cell]] = [
        {
            **trial.model_dump(exclude={"fields"}),
            **{field: _plain(trial.fields.get(field)) for field in drawn},
            "contestant": search.contestant,
            "jobs": search.jobs,
            "repeat": search.repeat + 1,
            "trial": trial.slot + 1,
        }
        for search in tuned.searches
        for trial in search.trials
    ]
    return Table("tuning_trials", "Every trial", columns, rows, note="Seconds since the search began, in the order of ending.")


def _plain(value: Any) -> str | None:
    return None if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
