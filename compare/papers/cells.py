"""The published tables, each cell with the paper's figure, the one found here, and their ratio."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from common.data import sources
from common.data.sources import synthetic_leaves
from compare.core.wording import count
from compare.data import preprocess_report
from compare.judgement.row_figures import unreliable_rows_note
from compare.papers import judging
from compare.papers.here import Here, beyond, not_at
from compare.papers.schema import LABELS, MEASURES, Key, Paper, PublishedTable, SideBySide, run_name
from compare.reporting.tables import Cell, Column, Table, value_at
from compare.tuning import tuning_findings

_SHOWN = 10
"""Classes that a note names."""
_SCORES = ("accuracy", "loss", "precision", "recall", "f1")
"""Ends of the measures that nobody expects to be a paper's on other data."""
_NO_CLASS = "not a class of the data here"
_UNSCORED = "the final training failed here"

Found = tuple[dict[str, float | None], str]
"""Figures of a row by their measure, and why those that are missing are open."""


@dataclass(frozen=True)
class Compared:
    """One figure of a table, as published and as found here."""

    column: str
    heading: str
    digits: int
    paper: float | None
    here: float | None
    ratio: bool = True
    """Whether here / paper has a meaning."""


def tables(here: Here) -> list[Table]:
    """The paper's tables in order, and its own arithmetic."""
    made = [
        _side_by_side(here, name, table) if isinstance(table, SideBySide) else _table(here, name, table)
        for name, table in here.paper.tables.items()
    ]
    checks = [*_checked_gains(here.paper), *_checked_sums(here.paper)]
    return [*made, _arithmetic(here.paper.name, checks)] if checks else made


def found(here: Here, table: PublishedTable) -> dict[Key, Found]:
    """What fills the rows of a table."""
    return dict(zip(table.rows, FILLED_BY[table.rows_are](here, table), strict=True))


def _cell(here: Here, table: PublishedTable, key: Key, column: str, values: Mapping[str, float | None]) -> Compared:
    kind, paper = table.columns[column], table.rows[key][column]
    measure = kind.measure or column
    ratio = kind.ratio and (measure != "seconds" or here.plan.same_image_size)
    ratio = ratio and not (measure.endswith(_SCORES) and here.other_data)
    value = values[measure] if paper is not None else None
    return Compared(column, kind.heading, kind.digits, paper, value, ratio)


def _table(here: Here, name: str, table: PublishedTable) -> Table:
    rows: list[tuple[dict[str, Cell], list[Compared], str]] = [
        (
            dict[str, Cell](zip(table.label_names, key, strict=True)),
            [_cell(here, table, key, column, values) for column in table.columns],
            reason,
        )
        for key, (values, reason) in found(here, table).items()
    ]
    return compared(name, table.title, table.label_names, rows, note=" ".join([table.note, *_notes(here, table)]).strip())


def _notes(here: Here, table: PublishedTable) -> Iterable[str]:
    measures = [kind.measure or column for column, kind in table.columns.items()]
    yield from _measured_on(here, measures, "" if table.rows_are in ("scans", "searches") else table.rows_are)
    if "seconds" in measures and table.rows_are != "searches" and not here.plan.same_image_size:
        here_px, paper_px = here.plan.base.data.image_size, here.paper.data.image_size
        yield f"Images here have {here_px} px, the paper's {paper_px} px: their seconds have no ratio."
    if {"seconds", "speedup"} & {*measures} and table.rows_are in ("runs", "epochs"):
        yield from _doubt(here, [table.run] if table.rows_are == "epochs" else [run_name(key) for key in table.rows])
    if table.rows_are == "scans":
        made = (here.scan(str(engine), int(workers)) for engine, workers in table.rows)
        if said := preprocess_report.doubt(filter(None, made)):
            yield said
    if table.rows_are == "searches" and here.tuned and (disturbed := tuning_findings.disturbed(here.tuned)):
        jobs = ", ".join(str(each) for each in sorted({search.jobs for search in disturbed}))
        yield f"Other work disturbed {count(len(disturbed), 'search', 'searches')} (jobs: {jobs}): rely on no time of them."
    if table.rows_are == "classes" and "images" in table.columns:
        names = class_counts(here)
        known = {class_here(str(name), names) for (name,) in table.rows}
        if others := [name for name in names if name not in known]:
            shown = ", ".join(others[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
            yield f"{count(len(others), 'class', 'classes')} here that the paper does not have: {shown}."


def _measured_on(here: Here, measures: Iterable[str], rows_are: str) -> Iterable[str]:
    """What the figures here are of. Nothing if nothing was trained."""
    of = next((each.stored.comparison for each in here.trainings.values()), None)
    if of is None:
        return
    plan, name = here.plan, of.data_name
    name += " (drawn leaves, not photographs)" if synthetic_leaves.is_source(plan.setting.source) else ""
    said = [f"scale {plan.setting.scale}", name]
    if rows_are:
        epochs = max(row.spec.epochs or 0 for each in plan.faithful for row in each.rows)
        if rows_are in ("splits", "classes"):
            epochs = here.paper.scales[plan.setting.scale].final_epochs or epochs
        said += [f"{count(of.train_examples, 'training image')} of {plan.base.data.image_size} px", count(epochs, "epoch")]
    yield f"Here: {', '.join(said)}."
    if here.other_data and any(each.endswith(_SCORES) for each in measures):
        yield "These are other data than the paper's: their accuracies and losses have no ratio to its."


def _doubt(here: Here, runs: Iterable[str]) -> Iterable[str]:
    found = ((here.paper.runs[name].title, here.summary(here.training_of(name), name)) for name in runs)
    if said := unreliable_rows_note((title, summary) for title, summary in found if summary):
        yield said


def _side_by_side(here: Here, name: str, wanted: SideBySide) -> Table:
    """A column of several tables. The reason of an open cell names its run, unless it is the reason of all runs."""
    parts = {here.paper.runs[table.run].title: (table, found(here, table)) for table in map(here.paper.table, wanted.tables)}
    rows: list[tuple[dict[str, Cell], list[Compared], str]] = []
    for key in dict.fromkeys(key for table, _ in parts.values() for key in table.rows):
        figures: list[Compared] = []
        reasons: dict[str, list[str]] = {}
        for title, (table, filled) in parts.items():
            if key in table.rows:
                values, reason = filled[key]
                cell = _cell(here, table, key, wanted.column, values)
                figures.append(replace(cell, column=table.run, heading=title))
                if cell.here is None:
                    reasons.setdefault(reason, []).append(title)
        said = "; ".join(f"{', '.join(titles)}: {reason}" for reason, titles in reasons.items())
        if [len(titles) for titles in reasons.values()] == [len(figures)]:
            said = next(iter(reasons))
        rows.append((dict(zip(LABELS["epochs"], key, strict=True)), figures, said))
    measures = {table.columns[wanted.column].measure or wanted.column for table, _ in parts.values()}
    notes = [*_measured_on(here, measures, "epochs")]
    if "seconds" in measures:
        notes += _doubt(here, [table.run for table, _ in parts.values()])
    return compared(name, wanted.title, LABELS["epochs"], rows, " ".join(notes))


def compared(
    name: str, title: str, labels: Sequence[str], rows: Sequence[tuple[dict[str, Cell], list[Compared], str]], note: str = ""
) -> Table:
    """A published table. Each figure has three columns: paper, here, here / paper.

    Args:
        name: of its files.
        labels: columns that tell the rows apart.
        rows: labels, figures, and the reason of a figure that is missing here.
        note: below the table.
    """
    columns = {label: Column(label, label) for label in labels}
    made: list[dict[str, Cell]] = []
    for label, figures, reason in rows:
        cells = dict(label)
        for each in figures:
            kinds = (("paper", ", paper", each.digits), ("here", ", here", each.digits), ("ratio", ", here / paper", 3))
            for kind, words, digits in kinds:
                columns.setdefault(key := f"{each.column}_{kind}", Column(key, f"{each.heading}{words}", digits))
            cells[f"{each.column}_paper"], cells[f"{each.column}_here"] = each.paper, each.here
            cells[f"{each.column}_ratio"] = (
                each.here / each.paper if each.ratio and each.here is not None and each.paper else None
            )
        is_open = any(each.here is None and each.paper is not None for each in figures)
        made.append(cells | {"open": reason if is_open else None})
    if any(row["open"] for row in made):
        columns["open"] = Column("open", "open because", fold=40)
    title = f"The report's {title}" if title.startswith("Table ") else title  # LaTeX numbers its own tables
    return Table(name, title, tuple(columns.values()), made, note=note)


def _epochs(here: Here, table: PublishedTable) -> Iterable[Found]:
    records = {record.epoch: record for record in here.epochs_of(table.run)}
    for (epoch,) in table.rows:
        record = records.get(int(epoch))
        reason = beyond(here.paper, here.setting, len(records)) if records else here.why_not_run(table.run, int(epoch))
        images = here.paper.images_of(table.run)
        yield (
            {
                "train_loss": value_at(record, "train.loss"),
                "train_accuracy": value_at(record, "train.accuracy"),
                "valid_loss": value_at(record, "validation.loss"),
                "valid_accuracy": value_at(record, "validation.accuracy"),
                "seconds": record.seconds * images / record.epoch_images if record and record.timed_images else None,
            },
            reason,
        )


def _runs(here: Here, table: PublishedTable) -> Iterable[Found]:
    for key in table.rows:
        name = run_name(key)
        run, training = here.paper.runs[name], here.training_of(name)
        summary = here.summary(training, name)
        if summary is None:
            yield dict.fromkeys(MEASURES["runs"]), here.why_not_run(name)
            continue
        best = [each.validation_accuracy for each in summary.epochs if each.validation_accuracy]
        # Where replicas on cores stand for it, their times are not the paper's question.
        epoch = None if here.lacks_gpus(name) else here.epoch_seconds(name, here.paper.images_of(name))
        gain = judging.paired(here, training, table.base, name) if table.base else None
        values = {
            "accuracy": value_at(summary, "validation.accuracy.median"),
            "loss": value_at(summary, "validation.loss.median"),
            "seconds": epoch * run.epochs if epoch else None,
            "speedup": 1.0 if name == table.base and epoch else gain.value if gain else None,
            "best_accuracy": max(best, default=None),
            "memory": summary.device_peak_memory_mib,
        }
        if here.lacks_gpus(name):
            yield values, here.needs_gpus(name)
        elif epoch is None:
            yield values, "too short to be timed"
        else:
            yield values, "not measured here" if here.setting.gpus else "no GPU here"


def _scans(here: Here, table: PublishedTable) -> Iterable[Found]:
    paper = here.paper
    for engine, workers in table.rows:
        row = here.scan(str(engine), int(workers))
        images = paper.data.images_scanned or paper.data.images
        seconds = row["seconds"] * images / row["images"] if row else None
        yield {"seconds": seconds, "speedup": value_at(row, "speedup")}, _not_made(here)


def _searches(here: Here, table: PublishedTable) -> Iterable[Found]:
    took: dict[int, list[float]] = {}
    for search in here.tuned.searches if here.tuned else ():
        if search.done:
            took.setdefault(search.jobs, []).append(search.seconds)
    median = {jobs: statistics.median(seconds) for jobs, seconds in took.items()}
    alone = median.get(1)
    for (jobs,) in table.rows:
        seconds = median.get(int(jobs))
        yield {"seconds": seconds, "speedup": alone / seconds if alone and seconds else None}, _not_made(here)


def _not_made(here: Here) -> str:
    """Why a number of workers or jobs is missing. The quick scale has all of them."""
    return not_at(here.paper, here.setting, f"not run at scale {here.setting.scale}, or failed", filled_at="quick")


def _splits(here: Here, table: PublishedTable) -> Iterable[Found]:
    model = next(iter(here.evaluated.models), None) if here.evaluated else None
    scores = {
        "train": value_at(here.final_epoch, "train.accuracy"),
        "validation": value_at(model, "validation.accuracy"),
        "test": value_at(model, "scores.accuracy"),
    }
    for (split,) in table.rows:
        yield {"accuracy": scores[str(split)]}, _UNSCORED


def _classes(here: Here, table: PublishedTable) -> Iterable[Found]:
    if "images" in table.columns:
        counts = class_counts(here)
        for (name,) in table.rows:
            yield {"images": counts.get(class_here(str(name), counts))}, _NO_CLASS
        return
    made = here.evaluated
    scores = made.models[0].validation_scores if made and made.models else None
    known = dict(zip(made.class_names, scores.classes, strict=True)) if made and scores else {}
    for (name,) in table.rows:
        own = known.get(class_here(str(name), known))
        values = {measure: value_at(own, measure) for measure in ("precision", "recall", "f1", "support")}
        yield values, _NO_CLASS if scores else _UNSCORED


FILLED_BY: dict[str, Callable[[Here, PublishedTable], Iterable[Found]]] = {
    "epochs": _epochs,
    "runs": _runs,
    "scans": _scans,
    "searches": _searches,
    "splits": _splits,
    "classes": _classes,
}
"""What fills each kind of table. Each function yields the measures of a row, and why those that are missing are open."""


def class_counts(here: Here) -> dict[str, int]:
    """Training images here of each class, without the limit of the scale."""
    base = here.plan.base
    data = base.data.model_copy(update={"limit": None})
    whole = sources.load_files(data, seed=base.split_seed, cache_dir=base.paths.cache_dir)
    counts = np.bincount(whole.train.labels, minlength=len(whole.class_names))
    return dict(zip(whole.class_names, counts.tolist(), strict=True))


def class_here(name: str, names: Iterable[str]) -> str:
    """The name here of a class of the paper, which may cut off long names."""
    longer = [each for each in names if each.startswith(name)]
    return longer[0] if len(longer) == 1 else name


_Check = tuple[str, float, float, int]
"""(label, the stated figure, the figure from the paper's own tables, digits of the stated one)."""


def _checked_gains(paper: Paper) -> Iterator[_Check]:
    """Every speed-up that stands beside its seconds."""
    for table in paper.published_tables.values():
        if not {"seconds", "speedup"} <= table.columns.keys():
            continue
        digits = max(len(f"{figure}".partition(".")[2]) for figure in table.column("speedup"))
        for key, row in table.rows.items():
            base = (table.base,) if table.base else (*key[:-1], 1)
            if row["speedup"] is not None and row["seconds"] and key != (table.base,):
                what = f"{key[0]} jobs" if table.rows_are == "searches" else " x".join(map(str, key))
                if table.rows_are == "runs":
                    what = paper.runs[run_name(key)].title
                yield f"{what}, speed-up", row["speedup"], table.figure("seconds", *base) / row["seconds"], digits


def _checked_sums(paper: Paper) -> Iterator[_Check]:
    """What the file names."""
    for each in paper.arithmetic:
        result: float = 0.0
        if each.rows_of:
            result = len(paper.table(each.rows_of).rows)
        elif each.sum_of:
            table, column = each.sum_of
            result = sum(paper.table(table).column(column))
        elif each.points_between:
            table, column, first, second = each.points_between
            figures = {run_name(key): row[column] or 0.0 for key, row in paper.table(table).rows.items()}
            result = 100 * (figures[first] - figures[second])
        yield each.what, each.stated, result, each.digits


def _arithmetic(name: str, checks: Sequence[_Check]) -> Table:
    """Figures that a paper states beside what its own tables give."""
    columns = (
        Column("what", "figure", pick="0"),
        Column("stated", "as stated", pick=lambda check: round(check[1], check[3] or None)),
        Column("worked_out", "from its own tables", pick=lambda check: round(check[2], check[3] or None)),
        Column("agrees", "agrees", pick=lambda check: "yes" if abs(check[1] - check[2]) < 10.0 ** -check[3] else "NO"),
    )
    note = "Agrees: up to one in the last digit shown, because papers round or truncate."
    return Table.from_items(f"arithmetic_{name}", "The paper's own arithmetic", columns, checks, note)
