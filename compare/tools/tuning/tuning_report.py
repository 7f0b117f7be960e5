"""The report of a tuning: its tables, sentences and plots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from compare.cli import wording
from compare.cli.terminal import FULL
from compare.cli.wording import count
from compare.judgement.row_figures import DISTURBED
from compare.reporting import document
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen, caution_count
from compare.reporting.tables import Cell, Column, Table
from compare.statistics import verdict_words
from compare.statistics.statistics import VERDICT_PAIRS, paired_ratio, spread
from compare.tools.tuning import search_space, tuning_findings, tuning_plots, tuning_statements, tuning_words
from compare.tools.tuning.records import STATES, Tuning, TuningRecord
from compare.tools.tuning.tuning_findings import Findings, over_repeats


def report(tuned: TuningRecord, folder: Path) -> Report:
    """Build the report of a tuning.

    Args:
        folder: folder of the tuning, for the command that repeats the report.
    """
    plan, findings = tuned.plan, tuning_findings.judge_tuning(tuned)
    statements = tuning_statements.statements(tuned, findings)
    sentences = sections(tuned, findings)
    summary = [jobs_table(tuned), *quality_table(tuned, findings), best_table(tuned)]
    resume_words = wording.shell(["tune", "--resume", str(folder)])
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
        drawings=tuning_plots.drawings(tuned, findings),
        commands=[("Resume the tuning, or print this report again:", f"{document.COMPARE} {resume_words}")],
        values={
            **tuned.model_dump(mode="json"),
            "best": tuned.best,
            "done": tuned.done,
            "importances": findings.importances,
            "judged": findings.judged,
            "sections": dict(sentences),
            "statements": statements,
        },
        exit_code=tuned.exit_code,
        screen=screen(tuned, findings, folder),
        again=wording.command("tune", "--resume", str(folder), FULL),
    )


def sections(tuned: TuningRecord, findings: Findings) -> list[tuple[str, list[str]]]:
    """The findings in words, by heading."""
    in_words = [
        (tuning_words.HEADINGS[subject], tuning_words.sentences(statements))
        for subject, statements in tuning_statements.statements(tuned, findings).items()
    ]
    return [(heading, sentences) for heading, sentences in [*in_words, ("The data", tuned.plan.data_notes)] if sentences]


def screen(tuned: TuningRecord, findings: Findings, folder: Path) -> Screen:
    """Show the best settings of each framework, and what parallel jobs gain and cost."""
    plan, settings = tuned.plan, tuned.plan.settings
    number = sum(len(search.trials) for search in tuned.searches)
    best = best_table(tuned)
    fields = [row for row in best.rows if row["field"] in {name for best_fields in tuned.best.values() for name in best_fields}]
    sentences = {
        subject: tuning_words.sentences(statements, short=True)
        for subject, statements in tuning_statements.short_statements(tuned, findings).items()
    }
    answers = [
        Paragraph("Best", sentences["bests"]),
        Paragraph("Side by side", sentences["gains"]),
        Paragraph("Fields", sentences["importances"]),
        Paragraph("Trouble", sentences["trouble"], "bad"),
    ]
    return Screen(
        subject=[
            f"Best settings of {settings.model} on {plan.data_name}, by validation {settings.objective}: "
            f"{_trials_text(settings)}",
            f"{', '.join(map(str, settings.jobs))} job{'s' if settings.jobs != (1,) else ''} by {settings.backend}",
            count(settings.repeats, "repeat"),
            count(plan.budget, "core"),
            f"{count(number, 'trial')} so far" if not tuned.done else count(number, "trial"),
        ],
        answers=answers,
        table=replace(best, title="Best settings", rows=fields),
        remarks=[
            *(
                ["The best of many trials looks too good: it was chosen by this score. No trial saw the test split."]
                if number
                else []
            ),
            *caution_count(len(tuning_statements.statements(tuned, findings)["cautions"])),
        ],
        next=[] if tuned.done else [("resume", wording.command("tune", "--resume", str(folder)))],
    )


def _subject(tuned: TuningRecord) -> str:
    """Return one line with model, data, search, repeats and objective of a tuning."""
    plan, settings = tuned.plan, tuned.plan.settings
    pruned = "" if settings.pruner == "none" else f", pruned by {settings.pruner}"
    jobs = f"{', '.join(map(str, settings.jobs))} job{'s' if settings.jobs != (1,) else ''}"
    return (
        f"{settings.model} on {plan.data_name}: {_trials_text(settings)}{pruned}, {jobs} by {settings.backend}, "
        f"{count(settings.repeats, 'repeat')}; objective: {settings.objective} of {plan.validation_examples:,} validation "
        "images"
    )


def _trials_text(settings: Tuning) -> str:
    if settings.sampler != "grid":
        return f"{settings.trials} trials of {settings.sampler}"
    space = settings.checked_space()
    return f"{settings.trials_of(space)} of the {search_space.grid_size(space):,} points of a grid"


def jobs_table(tuned: TuningRecord) -> Table:
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


def _jobs_cells(tuned: TuningRecord, contestant: str, jobs: int) -> dict[str, Cell]:
    by_jobs = tuned.by_jobs(contestant)
    searches, fewest = by_jobs[jobs], min(by_jobs)
    done, timed = [search for search in searches if search.done], [search for search in searches if search.timed]
    pairs = [] if jobs == fewest else tuning_findings.pairs(by_jobs[fewest], searches, timed=True)
    states = [trial.state for search in searches for trial in search.trials]
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
        "images": spread([search.images for search in done]),
        "start_seconds": spread([search.start_seconds for search in done if search.start_seconds is not None]),
        "seconds": spread([search.seconds for search in timed]),
        "images_per_second": spread([search.images_per_second for search in timed]),
        **ratios,
        "value": over_repeats(done, tuned.plan.settings.objective),
    }


def quality_table(tuned: TuningRecord, findings: Findings) -> list[Table]:
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
    for gain in findings.gains:
        cells: dict[str, Cell] = {"contestant": gain.contestant, "jobs": gain.jobs}
        ratios = {"seconds": gain.seconds, "after_trials": gain.after_trials, "after_seconds": gain.after_seconds}
        for key, judged in ratios.items():
            cells[key] = judged and judged.ratio
            cells[f"{key}_verdict"] = judged and tuning_words.verdict(judged, objective, seconds=key == "seconds")
        if gain.seconds and tuning_findings.disturbs(tuned, gain.contestant, gain.jobs, gain.against):
            cells |= {"seconds": DISTURBED, "seconds_verdict": DISTURBED}
        counts = dict.fromkeys(judged.ratio.n for judged in ratios.values() if judged)
        rows.append(cells | {"n": ", ".join(map(str, counts))})
    note = (
        f"Against {fewest}, geometric means of paired repeats (95 % interval). {verdict_words.HOLDS} Best value: the best "
        f"validation {objective} over that of {fewest}, after all trials, and when the faster of the two searches had ended. "
        f"Verdicts are Holm-corrected over the table, and need {VERDICT_PAIRS} pairs."
    )
    return [Table("tuning_quality", "Does searching side by side cost quality?", columns, rows, note=note)] if rows else []


def best_table(tuned: TuningRecord) -> Table:
    """The settings of each framework's best trial."""
    best = tuned.best_trials
    columns = (Column("field", "field"), *(Column(name, name) for name in best))
    fields = dict.fromkeys(field for best_trial in best.values() for field in best_trial.fields)
    values: dict[str, dict[str, Any]] = {
        **{field: {name: best_trial.fields.get(field) for name, best_trial in best.items()} for field in fields},
        "validation loss": {name: best_trial.trial.loss for name, best_trial in best.items()},
        "validation accuracy": {name: best_trial.trial.accuracy for name, best_trial in best.items()},
        "epochs": {name: best_trial.trial.epochs for name, best_trial in best.items()},
    }
    rows: list[dict[str, Cell]] = [
        {"field": field, **{name: _plain(value) for name, value in cells.items()}} for field, cells in values.items()
    ]
    note = "Validation split, after the trial's last epoch. No trial has seen the test split."
    return Table("tuning_best", "Best trials", columns, rows, note=note)


def progress_table(tuned: TuningRecord) -> Table:
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
        {"trials": n, **{key: over_repeats(searches, settings.objective, trials=n) for key, (_, searches) in groups.items()}}
        for n in range(1, last + 1)
    ]
    note = "Median over repeats (25 % to 75 % quantile). Trials are in the order in which they ended."
    return Table("tuning_progress", f"Best validation {settings.objective} after each trial", columns, rows, note=note)


def trials_table(tuned: TuningRecord) -> Table:
    """Every trial of every search."""
    drawn = list(dict.fromkeys(field for search in tuned.searches for trial in search.trials for field in trial.fields))
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
