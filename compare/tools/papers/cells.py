"""Published tables, each cell with the paper's figure, the local one, and their ratio."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from common.data import sources
from compare.cli.wording import count
from compare.judgement.statement_words import unreliable_rows_note
from compare.reporting.tables import Cell, Column, Table, value_at
from compare.tools.data import preprocess_report
from compare.tools.papers.local_results import LocalResults, reason_after_last_epoch, reason_at_scale
from compare.tools.papers.schema import LABELS, MEASURES, Key, Paper, PublishedTable, SideBySide, run_name
from compare.tools.tuning import tuning_findings

_MAX_CLASSES_IN_NOTE = 10
"""Number of classes that a note names."""
_SCORES = ("accuracy", "loss", "precision", "recall", "f1")
"""Suffixes of the measures that cannot be expected to equal the paper's on other data."""
_NO_CLASS = "not a class of the data here"
_UNSCORED = "the final training failed here"

RowFigures = tuple[dict[str, float | None], str]
"""Figures of a row by their measure, and the reason of those that are missing."""


@dataclass(frozen=True)
class ComparedFigure:
    """One figure of a table, as published and as measured here."""

    column: str
    heading: str
    digits: int
    paper: float | None
    here: float | None
    ratio: bool = True
    """Whether here / paper has a meaning."""


def build_tables(results: LocalResults) -> list[Table]:
    """Build the paper's tables in order, and its own arithmetic."""
    published = [
        _side_by_side(results, name, table) if isinstance(table, SideBySide) else _table(results, name, table)
        for name, table in results.paper.tables.items()
    ]
    checks = [*_gain_checks(results.paper), *_sum_checks(results.paper)]
    return [*published, _arithmetic(results.paper.name, checks)] if checks else published


def fill_rows(results: LocalResults, table: PublishedTable) -> dict[Key, RowFigures]:
    """Return the figures and the reason of each row of a table."""
    return dict(zip(table.rows, ROW_FILLERS[table.rows_are](results, table), strict=True))


def _cell(
    results: LocalResults, table: PublishedTable, key: Key, column: str, values: Mapping[str, float | None]
) -> ComparedFigure:
    kind, paper = table.columns[column], table.rows[key][column]
    measure = kind.measure or column
    ratio = kind.ratio and (measure != "seconds" or results.plan.same_image_size)
    ratio = ratio and not (measure.endswith(_SCORES) and results.has_other_data)
    value = values[measure] if paper is not None else None
    return ComparedFigure(column, kind.heading, kind.digits, paper, value, ratio)


def _table(results: LocalResults, name: str, table: PublishedTable) -> Table:
    rows: list[tuple[dict[str, Cell], list[ComparedFigure], str]] = [
        (
            dict[str, Cell](zip(table.label_names, key, strict=True)),
            [_cell(results, table, key, column, values) for column in table.columns],
            reason,
        )
        for key, (values, reason) in fill_rows(results, table).items()
    ]
    return comparison_table(
        name, table.title, table.label_names, rows, note=" ".join([table.note, *_notes(results, table)]).strip()
    )


def _notes(results: LocalResults, table: PublishedTable) -> Iterable[str]:
    measures = [kind.measure or column for column, kind in table.columns.items()]
    yield from _measured_on(results, measures, "" if table.rows_are in ("scans", "searches") else table.rows_are)
    if "seconds" in measures and table.rows_are != "searches" and not results.plan.same_image_size:
        here_px, paper_px = results.plan.base.data.image_size, results.paper.data.image_size
        yield f"Images here have {here_px} px, the paper's {paper_px} px: their seconds have no ratio."
    if {"seconds", "speedup"} & {*measures} and table.rows_are in ("runs", "epochs"):
        yield from _doubt(results, [table.run] if table.rows_are == "epochs" else [run_name(key) for key in table.rows])
    if table.rows_are == "scans":
        scans = (results.scan(str(engine), int(workers)) for engine, workers in table.rows)
        if sentence := preprocess_report.doubt(filter(None, scans)):
            yield sentence
    if table.rows_are == "searches" and results.tuning and (disturbed := tuning_findings.disturbed(results.tuning)):
        jobs = ", ".join(str(num_jobs) for num_jobs in sorted({search.jobs for search in disturbed}))
        yield f"Other work disturbed {count(len(disturbed), 'search', 'searches')} (jobs: {jobs}): rely on no time of them."
    if table.rows_are == "classes" and "images" in table.columns:
        names = class_counts(results)
        paper_classes = {local_class_name(str(name), names) for (name,) in table.rows}
        if other_names := [name for name in names if name not in paper_classes]:
            names_text = ", ".join(other_names[:_MAX_CLASSES_IN_NOTE]) + (
                ", ..." if len(other_names) > _MAX_CLASSES_IN_NOTE else ""
            )
            yield f"{count(len(other_names), 'class', 'classes')} here that the paper does not have: {names_text}."


def _measured_on(results: LocalResults, measures: Iterable[str], rows_are: str) -> Iterable[str]:
    """Say which data and runs the figures here come from. Nothing if nothing was trained."""
    comparison = next((training.stored.comparison for training in results.trainings.values()), None)
    if comparison is None:
        return
    plan = results.plan
    parts = [f"scale {plan.setting.scale}", comparison.data_name]
    if rows_are:
        epochs = max(row.spec.epochs or 0 for row in plan.published_rows)
        if rows_are in ("splits", "classes"):
            epochs = results.paper.scales[plan.setting.scale].final_epochs or epochs
        parts += [
            f"{count(comparison.train_examples, 'training image')} of {plan.base.data.image_size} px",
            count(epochs, "epoch"),
        ]
    yield f"Here: {', '.join(parts)}."
    if results.has_other_data and any(measure.endswith(_SCORES) for measure in measures):
        yield "These are other data than the paper's: their accuracies and losses have no ratio to its."


def _doubt(results: LocalResults, runs: Iterable[str]) -> Iterable[str]:
    summaries = ((results.paper.runs[name].title, results.summary(results.training_of(name), name)) for name in runs)
    if sentence := unreliable_rows_note((title, summary) for title, summary in summaries if summary):
        yield sentence


def _side_by_side(results: LocalResults, name: str, side_by_side: SideBySide) -> Table:
    """Build a column of several tables. The reason of an open cell names its run, unless it is the reason of all runs."""
    parts = {
        results.paper.runs[table.run].title: (table, fill_rows(results, table))
        for table in map(results.paper.table, side_by_side.tables)
    }
    rows: list[tuple[dict[str, Cell], list[ComparedFigure], str]] = []
    for key in dict.fromkeys(key for table, _ in parts.values() for key in table.rows):
        figures: list[ComparedFigure] = []
        reasons: dict[str, list[str]] = {}
        for title, (table, row_figures) in parts.items():
            if key in table.rows:
                values, reason = row_figures[key]
                cell = _cell(results, table, key, side_by_side.column, values)
                figures.append(replace(cell, column=table.run, heading=title))
                if cell.here is None:
                    reasons.setdefault(reason, []).append(title)
        reasons_text = "; ".join(f"{', '.join(titles)}: {reason}" for reason, titles in reasons.items())
        if [len(titles) for titles in reasons.values()] == [len(figures)]:
            reasons_text = next(iter(reasons))
        rows.append((dict(zip(LABELS["epochs"], key, strict=True)), figures, reasons_text))
    measures = {table.columns[side_by_side.column].measure or side_by_side.column for table, _ in parts.values()}
    notes = [*_measured_on(results, measures, "epochs")]
    if "seconds" in measures:
        notes += _doubt(results, [table.run for table, _ in parts.values()])
    return comparison_table(name, side_by_side.title, LABELS["epochs"], rows, " ".join(notes))


def comparison_table(
    name: str,
    title: str,
    labels: Sequence[str],
    rows: Sequence[tuple[dict[str, Cell], list[ComparedFigure], str]],
    note: str = "",
) -> Table:
    """Build a published table. Each figure has three columns: paper, here, here / paper.

    Args:
        name: name of the table's files.
        labels: columns that tell the rows apart.
        rows: labels, figures, and the reason of a figure that is missing here.
        note: text below the table.
    """
    columns = {label: Column(label, label) for label in labels}
    table_rows: list[dict[str, Cell]] = []
    for label, figures, reason in rows:
        cells = dict(label)
        for figure in figures:
            kinds = (("paper", ", paper", figure.digits), ("here", ", here", figure.digits), ("ratio", ", here / paper", 3))
            for kind, words, digits in kinds:
                columns.setdefault(key := f"{figure.column}_{kind}", Column(key, f"{figure.heading}{words}", digits))
            cells[f"{figure.column}_paper"], cells[f"{figure.column}_here"] = figure.paper, figure.here
            cells[f"{figure.column}_ratio"] = (
                figure.here / figure.paper if figure.ratio and figure.here is not None and figure.paper else None
            )
        is_open = any(figure.here is None and figure.paper is not None for figure in figures)
        table_rows.append(cells | {"open": reason if is_open else None})
    if any(row["open"] for row in table_rows):
        columns["open"] = Column("open", "open because", fold=40)
    title = f"The report's {title}" if title.startswith("Table ") else title  # LaTeX numbers its own tables
    return Table(name, title, tuple(columns.values()), table_rows, note=note)


def _epochs(results: LocalResults, table: PublishedTable) -> Iterable[RowFigures]:
    records = {record.epoch: record for record in results.epochs_of(table.run)}
    for (epoch,) in table.rows:
        record = records.get(int(epoch))
        reason = (
            reason_after_last_epoch(results.paper, results.setting, len(records))
            if records
            else results.why_not_run(table.run, int(epoch))
        )
        images = results.paper.images_of(table.run)
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


def _runs(results: LocalResults, table: PublishedTable) -> Iterable[RowFigures]:
    for key in table.rows:
        name = run_name(key)
        run, training = results.paper.runs[name], results.training_of(name)
        summary = results.summary(training, name)
        if summary is None:
            yield dict.fromkeys(MEASURES["runs"]), results.why_not_run(name)
            continue
        best = [record.validation_accuracy for record in summary.epochs if record.validation_accuracy]
        # Where replicas on cores stand for it, their times are not the paper's question.
        epoch = None if results.lacks_gpus(name) else results.epoch_seconds(name, results.paper.images_of(name))
        gain = results.seconds_ratio(training, table.base, name) if table.base else None
        values = {
            "accuracy": value_at(summary, "validation.accuracy.median"),
            "loss": value_at(summary, "validation.loss.median"),
            "seconds": epoch * run.epochs if epoch else None,
            "speedup": 1.0 if name == table.base and epoch else gain.value if gain else None,
            "best_accuracy": max(best, default=None),
            "memory": summary.device_peak_memory_mib,
        }
        if results.lacks_gpus(name):
            yield values, results.needs_gpus(name)
        elif epoch is None:
            yield values, "too short to be timed"
        else:
            yield values, "not measured here" if results.setting.gpus else "no GPU here"


def _scans(results: LocalResults, table: PublishedTable) -> Iterable[RowFigures]:
    paper = results.paper
    for engine, workers in table.rows:
        row = results.scan(str(engine), int(workers))
        images = paper.data.images_scanned or paper.data.images
        seconds = row["seconds"] * images / row["images"] if row else None
        yield {"seconds": seconds, "speedup": value_at(row, "speedup")}, _reason_not_measured(results)


def _searches(results: LocalResults, table: PublishedTable) -> Iterable[RowFigures]:
    seconds_by_jobs: dict[int, list[float]] = {}
    for search in results.tuning.searches if results.tuning else ():
        if search.done:
            seconds_by_jobs.setdefault(search.jobs, []).append(search.seconds)
    median = {jobs: statistics.median(seconds) for jobs, seconds in seconds_by_jobs.items()}
    single_job_seconds = median.get(1)
    for (jobs,) in table.rows:
        seconds = median.get(int(jobs))
        yield (
            {"seconds": seconds, "speedup": single_job_seconds / seconds if single_job_seconds and seconds else None},
            _reason_not_measured(results),
        )


def _reason_not_measured(results: LocalResults) -> str:
    """Say why a number of workers or jobs is missing. The quick scale has all of them."""
    return reason_at_scale(
        results.paper, results.setting, f"not run at scale {results.setting.scale}, or failed", filled_at="quick"
    )


def _splits(results: LocalResults, table: PublishedTable) -> Iterable[RowFigures]:
    model = next(iter(results.evaluation.models), None) if results.evaluation else None
    scores = {
        "train": value_at(results.final_epoch, "train.accuracy"),
        "validation": value_at(model, "validation.accuracy"),
        "test": value_at(model, "scores.accuracy"),
    }
    for (split,) in table.rows:
        yield {"accuracy": scores[str(split)]}, _UNSCORED


def _classes(results: LocalResults, table: PublishedTable) -> Iterable[RowFigures]:
    if "images" in table.columns:
        counts = class_counts(results)
        for (name,) in table.rows:
            yield {"images": counts.get(local_class_name(str(name), counts))}, _NO_CLASS
        return
    evaluation = results.evaluation
    scores = evaluation.models[0].validation_scores if evaluation and evaluation.models else None
    scores_by_class = dict(zip(evaluation.class_names, scores.classes, strict=True)) if evaluation and scores else {}
    for (name,) in table.rows:
        class_scores = scores_by_class.get(local_class_name(str(name), scores_by_class))
        values = {measure: value_at(class_scores, measure) for measure in ("precision", "recall", "f1", "support")}
        yield values, _NO_CLASS if scores else _UNSCORED


ROW_FILLERS: dict[str, Callable[[LocalResults, PublishedTable], Iterable[RowFigures]]] = {
    "epochs": _epochs,
    "runs": _runs,
    "scans": _scans,
    "searches": _searches,
    "splits": _splits,
    "classes": _classes,
}
"""Function that fills each kind of table. It yields the measures of a row, and the reason of those that are missing."""


def class_counts(results: LocalResults) -> dict[str, int]:
    """Count the training images here of each class, without the limit of the scale."""
    base = results.plan.base
    data = base.data.model_copy(update={"limit": None})
    dataset = sources.load_files(data, seed=base.split_seed, cache_dir=base.paths.cache_dir)
    counts = np.bincount(dataset.train.labels, minlength=len(dataset.class_names))
    return dict(zip(dataset.class_names, counts.tolist(), strict=True))


def local_class_name(name: str, names: Iterable[str]) -> str:
    """Return the name here of a class of the paper, which may cut off long names."""
    longer = [candidate for candidate in names if candidate.startswith(name)]
    return longer[0] if len(longer) == 1 else name


_Check = tuple[str, float, float, int]
"""(label, the stated figure, the figure from the paper's own tables, digits of the stated one)."""


def _gain_checks(paper: Paper) -> Iterator[_Check]:
    """Yield a check of every speed-up that stands beside its seconds."""
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


def _sum_checks(paper: Paper) -> Iterator[_Check]:
    """Yield the checks that the paper's file names."""
    for statement in paper.arithmetic:
        result: float = 0.0
        if statement.rows_of:
            result = len(paper.table(statement.rows_of).rows)
        elif statement.sum_of:
            table, column = statement.sum_of
            result = sum(paper.table(table).column(column))
        elif statement.points_between:
            table, column, first, second = statement.points_between
            figures = {run_name(key): row[column] or 0.0 for key, row in paper.table(table).rows.items()}
            result = 100 * (figures[first] - figures[second])
        yield statement.what, statement.stated, result, statement.digits


def _arithmetic(name: str, checks: Sequence[_Check]) -> Table:
    """Build a table of the figures that a paper states beside what its own tables give."""
    columns = (
        Column("what", "figure", pick="0"),
        Column("stated", "as stated", pick=lambda check: round(check[1], check[3] or None)),
        Column("worked_out", "from its own tables", pick=lambda check: round(check[2], check[3] or None)),
        Column("agrees", "agrees", pick=lambda check: "yes" if abs(check[1] - check[2]) < 10.0 ** -check[3] else "NO"),
    )
    note = "Agrees: up to one in the last digit shown, because papers round or truncate."
    return Table.from_items(f"arithmetic_{name}", "The paper's own arithmetic", columns, checks, note)
