"""Tables on the classes: precision and recall, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence

from compare.cli.wording import shortened, visible
from compare.judgement.row_figures import Summary
from compare.reporting.tables import RUN_COLUMNS, Cell, Column, Table

ZERO = "0 stands where a class was never predicted or never occurs."
"""Rule for precision, recall and F1 where their quotient has no value."""
_SHORT_NAME = 4
"""Characters of a class's name above which its id heads a column on paper."""
_CLASS_NAME = 28
"""Most characters of a class's name around a matrix."""


def class_table(summaries: Sequence[Summary], class_names: Sequence[str]) -> list[Table]:
    """Precision and recall of each class: one table, or none where no run has counted them.

    Args:
        class_names: by class id.
    """
    columns = (
        *RUN_COLUMNS,
        Column("class", "class"),
        Column("images", "images"),
        Column("predictions", "predictions"),
        Column("precision", "precision", 4),
        Column("recall", "recall", 4),
        Column("f1", "F1", 4),
    )
    rows: list[dict[str, Cell]] = []
    for summary in summaries:
        labels = class_names_or_ids(class_names, len(summary.confusion or []))
        for label, true in enumerate(summary.confusion or []):
            hits = true[label]
            examples, predicted = sum(true), sum(row[label] for row in summary.confusion or [])
            rows.append(
                _run_cells(summary)
                | {"class": labels[label], "images": examples // summary.repeats_done, "predictions": examples}
                | {"precision": hits / max(predicted, 1), "recall": hits / max(examples, 1)}
                | {"f1": 2 * hits / max(examples + predicted, 1)}
            )
    note = (
        "Test split. Predictions: one of each image of the class in each repeat. Precision: how much of what was taken for "
        f"the class is right. Recall: how much of the class was found. {ZERO}"
    )
    return [Table("classes", "Precision and recall by class", columns, rows, note=note)] if rows else []


def mean_confusion(summary: Summary) -> list[list[float]]:
    """The confusion matrix as a mean of the repeats, whose counts add up to the images of the test split."""
    return [[count / max(summary.repeats_done, 1) for count in row] for row in summary.confusion or []]


def count_text(count: float) -> str:
    """A mean count for a reader: `9`, or `8.6`. It is `<.1` below a twentieth."""
    return "<.1" if 0 < count < 0.05 else f"{count:.1f}".removesuffix(".0")


def confusion_table(summaries: Sequence[Summary], class_names: Sequence[str]) -> list[Table]:
    """The confusion matrices: one table, or none where no run has counted them.

    Args:
        class_names: by class id.
    """
    names = class_names_or_ids(class_names, max((len(summary.confusion or []) for summary in summaries), default=0))
    class_columns = Column("class", "true class"), Column("images", "images")
    columns = (*RUN_COLUMNS, *class_columns, *(_prediction_column(label, name) for label, name in enumerate(names)))
    rows: list[dict[str, Cell]] = [
        _run_cells(summary)
        | {"class": names[label], "images": sum(counts) // summary.repeats_done}
        | {f"predicted {name}": count for name, count in zip(names, counts, strict=True)}
        for summary in summaries
        for label, counts in enumerate(summary.confusion or [])
    ]
    note = (
        "Test split. Rows are the true class, columns what it was taken for, counted over all repeats: an image counts once in "
        "each."
    )
    return (
        [Table("confusion", "Confusion", columns, rows, note=note, apart=tuple(column.key for column in RUN_COLUMNS))]
        if rows
        else []
    )


def _prediction_column(label: int, name: str) -> Column:
    return Column(f"predicted {name}", name, short=str(label) if len(name) > _SHORT_NAME else "")


def class_names_or_ids(class_names: Sequence[str], number: int) -> list[str]:
    """The first `number` classes by name, as `visible` shows it. A class without a name has its id."""
    return [*map(visible, class_names[:number]), *map(str, range(len(class_names), number))]


def short_class_names(class_names: Sequence[str], number: int) -> list[str]:
    """Names or ids of the first `number` classes, shortened to fit around a matrix."""
    return [shortened(name, _CLASS_NAME) for name in class_names_or_ids(class_names, number)]


def _run_cells(summary: Summary) -> dict[str, Cell]:
    return {column.key: column.cell(summary) for column in RUN_COLUMNS}
