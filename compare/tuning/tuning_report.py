"""The report of a tuning: its tables, sentences and plots, as text, Markdown, CSV, LaTeX, JSON and one page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from common.artifacts import atomic_files
from compare.core import statistics, terminal, wording
from compare.core.statistics import VERDICT_PAIRS, Judged, paired_ratio, spread
from compare.reporting import content, document, page, svg, tables
from compare.reporting.tables import Cell, Column, Table
from compare.tuning import search_space, tuning_findings, tuning_plots
from compare.tuning.optuna_study import Searched, State
from compare.tuning.tuner import Tuned, Tuning
from compare.tuning.tuning_findings import Findings, grouped, jobs_words, over_repeats

REPORT_FILE, PAGE_FILE = "report.md", "report.html"
_STATES: tuple[State, ...] = ("ok", "pruned", "diverged", "failed", "killed")


def documents(tuned: Tuned, found: Findings) -> list[Table]:
    """Every table that is written."""
    return [jobs_table(tuned), *quality_table(tuned, found), best_table(tuned), progress_table(tuned), trials_table(tuned)]


def sections(tuned: Tuned) -> list[tuple[str, list[str]]]:
    """The report's sentences, under headings."""
    return tuning_findings.sections(tuned, tuning_findings.find(tuned))


def jobs_table(tuned: Tuned) -> Table:
    """Seconds and speed-up against jobs."""
    settings = tuned.plan.settings
    columns = (
        Column("framework", "framework"),
        Column("jobs", "jobs"),
        Column("cores", "cores in all", short="cores"),
        Column("cores_a_trial", "cores a trial", short="a\ntrial"),
        Column("trials", "trials"),
        *(Column(state, state, terminal=state in ("ok", "pruned")) for state in _STATES),
        Column("bad", "diverged, failed or killed", short="bad"),
        Column("images", "images trained on", 0, terminal=False, interval=True),
        Column("start_seconds", "start seconds", 1, terminal=False, interval=True),
        Column("seconds", "seconds", 1, interval=True),
        Column("speedup", "speed-up", 2, interval=True),
        Column("images_per_second", "images/s", 0, short="img/s", interval=True),
        Column("images_speedup", "speed-up of images/s", 2, short="of\nimg/s", wide=True, interval=True),
        Column("value", f"best validation {settings.objective}", 4, short=f"best\n{settings.objective}", interval=True),
    )
    rows: list[dict[str, Cell]] = []
    for framework in settings.frameworks:
        by_jobs = grouped(tuned, framework)
        base = by_jobs[min(by_jobs)]
        for jobs, searches in by_jobs.items():
            done = [search for search in searches if search.done]
            timed = [search for search in searches if search.timed]
            counts = {state: sum(trial.state == state for each in searches for trial in each.trials) for state in _STATES}
            rows.append(
                {
                    "framework": framework,
                    "jobs": jobs,
                    "cores": min(jobs * searches[0].cores_a_trial, tuned.plan.budget),
                    "cores_a_trial": searches[0].cores_a_trial,
                    "trials": sum(len(search.trials) for search in searches),
                    **counts,
                    "bad": sum(counts[state] for state in ("diverged", "failed", "killed")),
                    "images": spread([search.images for search in done]),
                    "start_seconds": spread([search.start_seconds for search in done if search.start_seconds is not None]),
                    "seconds": spread([search.seconds for search in timed]),
                    "images_per_second": spread([_rate(search) for search in timed]),
                    "speedup": _paired(base, searches, lambda few, many: (few.seconds, many.seconds)),
                    "images_speedup": _paired(base, searches, lambda few, many: (_rate(many), _rate(few))),
                    "value": over_repeats(done, settings.objective),
                }
            )
    repeats = f"median of {settings.repeats} searches (25 % to 75 % quantile)" if settings.repeats > 1 else "of one search"
    fewest = min(settings.jobs)
    return Table(
        "tuning",
        f"Searches by {settings.backend}, on {wording.count(tuned.plan.budget, 'core')} in all",
        columns,
        rows,
        note=f"Seconds: {repeats}, from the first trial's begin to the last one's end; the frameworks' import stands apart. "
        + f"Speed-up: against {jobs_words(fewest)}, geometric mean of paired repeats (95 % t-interval)."
        * (len(settings.jobs) > 1),
    )


def quality_table(tuned: Tuned, found: Findings) -> list[Table]:
    """Whether several jobs cost quality: one table, or none if there is nothing to compare with."""
    columns = (
        Column("framework", "framework"),
        Column("jobs", "jobs"),
        Column("seconds", "speed-up", 2, interval=True),
        Column("seconds_verdict", "is", fold=16),
        Column("after_trials", "best value, same trials", 3, short="best, same\ntrials", interval=True),
        Column("after_trials_verdict", "after the same trials", short="is", fold=16),
        Column("after_seconds", "best value, same seconds", 3, short="best, same\nseconds", interval=True),
        Column("after_seconds_verdict", "after the same seconds", short="is", fold=16),
        Column("n", "pairs"),
    )
    above_is, below_is = ("worse", "better") if tuned.plan.settings.objective == "loss" else ("better", "worse")
    rows: list[dict[str, Cell]] = []
    for gain in found.gains:
        cells: dict[str, Cell] = {"framework": gain.framework, "jobs": gain.jobs}
        named: tuple[tuple[str, Judged | None, str, str], ...] = (
            ("seconds", gain.seconds, "faster", "slower"),
            ("after_trials", gain.after_trials, above_is, below_is),
            ("after_seconds", gain.after_seconds, above_is, below_is),
        )
        for key, judged, above, below in named:
            cells[key] = judged.ratio if judged else None
            neither = "no difference shown"
            cells[f"{key}_verdict"] = statistics.word(judged, above=above, below=below, neither=neither) if judged else None
        counts = [judged.ratio.n for _, judged, _, _ in named if judged]
        rows.append(cells | {"n": ", ".join(map(str, counts if len(set(counts)) > 1 else counts[:1]))})
    fewest = min(tuned.plan.settings.jobs)
    note = (
        f"Against {jobs_words(fewest)}, geometric means of paired repeats (95 % t-interval). Best value: the best validation "
        f"{tuned.plan.settings.objective} over that of {jobs_words(fewest)}, after all trials, and when the faster of the two "
        f"searches had ended. Verdicts are Holm-corrected over the table, and need {VERDICT_PAIRS} pairs."
    )
    return [Table("tuning_quality", "Does searching side by side cost quality?", columns, rows, note=note)] if rows else []


def best_table(tuned: Tuned) -> Table:
    """The settings of each framework's best trial."""
    columns = (Column("field", "field"), *(Column(name, name) for name in tuned.best_trials))
    fields = list(dict.fromkeys(field for found in tuned.best_trials.values() for field in found.fields))
    rows: list[dict[str, Cell]] = [
        {"field": field, **{name: _plain(found.fields.get(field)) for name, found in tuned.best_trials.items()}}
        for field in fields
    ]
    for what in ("loss", "accuracy"):
        scores = {name: _plain(getattr(found.trial, what)) for name, found in tuned.best_trials.items()}
        rows.append({"field": f"validation {what}", **scores})
    rows.append({"field": "epochs", **{name: str(found.trial.epochs) for name, found in tuned.best_trials.items()}})
    note = "Validation split, after the trial's last epoch. No trial has seen the test split."
    return Table("tuning_best", "Best trials", columns, rows, note=note)


def progress_table(tuned: Tuned) -> Table:
    """The best value after each trial."""
    settings = tuned.plan.settings
    groups = {
        f"{framework}-{jobs}": (framework, jobs, searches)
        for framework in settings.frameworks
        for jobs, searches in grouped(tuned, framework).items()
    }
    columns = (
        Column("trials", "trials"),
        *(Column(key, f"{framework}, {jobs_words(jobs)}", 4, interval=True) for key, (framework, jobs, _) in groups.items()),
    )
    last = max((len(search.trials) for search in tuned.searches), default=0)
    rows: list[dict[str, Cell]] = [
        {"trials": n, **{key: over_repeats(searches, settings.objective, trials=n) for key, (_, _, searches) in groups.items()}}
        for n in range(1, last + 1)
    ]
    note = "Median over repeats (25 % to 75 % quantile); trials in the order in which they ended."
    return Table("tuning_progress", f"Best validation {settings.objective} after each trial", columns, rows, note=note)


def trials_table(tuned: Tuned) -> Table:
    """Every trial of every search."""
    drawn = list(dict.fromkeys(field for each in tuned.searches for trial in each.trials for field in trial.fields))
    columns = (
        Column("framework", "framework"),
        Column("jobs", "jobs"),
        Column("repeat", "repeat"),
        Column("trial", "trial"),
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
            "framework": search.framework,
            "jobs": search.jobs,
            "repeat": search.repeat + 1,
            "trial": trial.slot + 1,
            **{key: getattr(trial, key) for key in ("state", "loss", "accuracy", "epochs", "began_seconds", "ended_seconds")},
            **{field: _plain(trial.fields.get(field)) for field in drawn},
            "reason": trial.reason,
        }
        for search in tuned.searches
        for trial in search.trials
    ]
    return Table("tuning_trials", "Every trial", columns, rows, note="Seconds since the search began, in the order of ending.")


def heading(tuned: Tuned) -> list[str]:
    """What was searched, and on what."""
    plan, settings = tuned.plan, tuned.plan.settings
    values = settings.values
    pruned = "" if settings.pruner == "none" else f", pruned by {settings.pruner}"
    jobs = f"{', '.join(map(str, settings.jobs))} job{'s' if settings.jobs != (1,) else ''}"
    return [
        f"{values.get('model', 'simple_cnn')} on {plan.data_name}: {_trials_words(settings)}{pruned}, "
        f"{jobs} by {settings.backend}, {settings.repeats} "
        f"repeat{'s' if settings.repeats > 1 else ''}; objective: {settings.objective} of {plan.validation_examples:,} "
        "validation images",
        document.ground(plan.machine, plan.versions, cores=plan.budget),
    ]


def _trials_words(settings: Tuning) -> str:
    if settings.sampler != "grid":
        return f"{settings.trials} trials of {settings.sampler}"
    space = search_space.judged(settings.space, settings.values, settings.space_name)
    return f"{settings.trials_of(space)} of the {search_space.grid_size(space):,} points of a grid"


def write(tuned: Tuned, folder: Path) -> str | None:
    """Write the page, report.md, tables and plots. Returns the reason if that failed."""
    found = tuning_findings.find(tuned)
    try:
        for table in documents(tuned, found):
            tables.write(table, folder / document.TABLES_FOLDER)
        drawn = tuning_plots.write(tuned, found, folder / document.PLOTS_FOLDER)
        pictures = {path.stem: path.read_text("utf-8") for path in drawn if path.suffix == ".svg"}
        atomic_files.write_atomically(folder / PAGE_FILE, _html(tuned, found, folder, pictures))
        atomic_files.write_atomically(folder / REPORT_FILE, _markdown(tuned, found, folder, list(pictures)))
    except OSError as error:
        return f"The report cannot be written to {folder} ({error}). Free space there, or copy the folder."
    return None


def show(tuned: Tuned, folder: Path | None, *, as_json: bool) -> None:
    """Print a report on stdout: as text, with the path of its folder if it has one, or as one JSON object."""
    if as_json:
        typer.echo(json.dumps(to_plain(tuned), indent=1, allow_nan=False))
        return
    found = tuning_findings.find(tuned)
    shown = terminal.stdout()
    for line in heading(tuned):
        shown.print(Text(wording.one_line(line)))
    tables.print_all(shown, [jobs_table(tuned), *quality_table(tuned, found), best_table(tuned)], where=REPORT_FILE)
    tables.print_sections(shown, tuning_findings.sections(tuned, found))
    if folder is not None:
        shown.print(Text(f"\nReport: {folder / REPORT_FILE}, {PAGE_FILE}"), soft_wrap=True)


def to_plain(tuned: Tuned) -> dict[str, Any]:
    """Everything, JSON-ready."""
    found = tuning_findings.find(tuned)
    return {
        **json.loads(tuned.model_dump_json()),
        "best": tuned.best,
        "done": tuned.done,
        "importances": found.importances,
        "judged": [judged.model_dump() for judged in found.judged],
        "tables": [tables.to_plain(table) for table in documents(tuned, found)],
        "sections": dict(tuning_findings.sections(tuned, found)),
        "exit_code": tuned.exit_code,
    }


def _html(tuned: Tuned, found: Findings, folder: Path, pictures: Mapping[str, str]) -> str:
    settings = tuned.plan.settings
    told = sum(len(search.trials) for search in tuned.searches)
    bad = sum(trial.state in ("failed", "killed") for search in tuned.searches for trial in search.trials)
    return page.render(
        "tuning.html.jinja",
        title=wording.one_line(f"Tuning of {settings.values.get('model', 'simple_cnn')} on {tuned.plan.data_name}"),
        overline="Search for the best settings",
        facts=list(map(wording.one_line, heading(tuned))),
        marks=[
            {"what": "Trials", "said": str(told), "tone": ""},
            {"what": "Failed or killed", "said": str(bad), "tone": "bad" if bad else "good"},
            {"what": "State", "said": "done" if tuned.done else "not done", "tone": "good" if tuned.done else "warn"},
        ],
        said=[(title, list(map(wording.one_line, said))) for title, said in tuning_findings.sections(tuned, found)],
        plots=[svg.svg(source, name.replace("_", " ")) for name, source in pictures.items()],
        grids=list(map(page.grid, documents(tuned, found)[:-1])),
        trials=page.grid(trials_table(tuned)),
        command=_command(folder),
    )


def _markdown(tuned: Tuned, found: Findings, folder: Path, plot_names: Sequence[str]) -> str:
    said = tuning_findings.sections(tuned, found)
    end = ["", "## To go on, or to print it again", "", f"    {_command(folder)}"]
    return document.markdown("Tuning", heading(tuned), said, documents(tuned, found), plot_names, end)


def _command(folder: Path) -> str:
    return f"{content.COMPARE} {content.shell(['tune', '--out', str(folder), '--resume'])}"


def _paired(
    few: Sequence[Searched], many: Sequence[Searched], pick: Callable[[Searched, Searched], tuple[float, float]]
) -> Cell:
    if few is many:
        return None
    by_repeat = {search.repeat: search for search in few if search.timed}
    return paired_ratio([pick(by_repeat[each.repeat], each) for each in many if each.timed and each.repeat in by_repeat])


def _rate(search: Searched) -> float:
    return search.images / search.seconds if search.seconds else 0.0


def _plain(value: Any) -> str | None:
    return None if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
