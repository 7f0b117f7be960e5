"""Tables on epochs, and on the time to an accuracy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from compare.judgement.row_figures import EpochMedians, Summary
from compare.reporting.figure_tables import figure_table
from compare.reporting.tables import RUN_COLUMNS, Cell, Column, Table

FIGURES: tuple[tuple[str, str, int, Callable[[EpochMedians], Cell]], ...] = (
    ("epoch_train_accuracy", "Training accuracy by epoch", 4, lambda epoch: epoch.train_accuracy),
    ("epoch_validation_accuracy", "Validation accuracy by epoch", 4, lambda epoch: epoch.validation_accuracy),
    ("epoch_seconds", "Seconds by epoch", 2, lambda epoch: epoch.seconds),
)
_MAX_TERMINAL_EPOCHS = 6


def target_table(summaries: Sequence[Summary]) -> list[Table]:
    """Time to the target accuracy: one table, or none without a target."""
    targets = {summary.target.accuracy for summary in summaries if summary.target}
    if not targets:
        return []

    note = (
        f"Training time until validation accuracy {max(targets):g}, checked after each epoch, with the first step and without "
        "evaluation. Median over all repeats (25 % to 75 % quantile). Repeats that did not reach it, diverged or failed "
        "before count as later than the others. No figure stands where that leaves a quantile open."
    )
    return [figure_table("time_to_accuracy", "Time to accuracy", summaries, note, spreads_on_terminal=False)]


def epochs_table(summaries: Sequence[Summary]) -> Table:
    """All figures of all epochs, one epoch of one row a line."""
    figures = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "seconds")
    columns = (
        *(replace(column, pick=f"0.{column.pick or column.key}") for column in RUN_COLUMNS),
        Column("epoch", "epoch", pick="1.epoch"),
        *(Column(name, name.replace("_", " "), 4, pick=f"1.{name}") for name in figures),
    )
    rows = [(summary, epoch) for summary in summaries for epoch in summary.epochs]
    return Table.from_items("epochs", "Epoch by epoch", columns, rows, "Median over repeats.")


def epochs_down(
    summaries: Sequence[Summary], name: str, title: str, digits: int, pick: Callable[[EpochMedians], Cell]
) -> Table:
    """One figure in the layout of the published reports: epochs down, runs across."""

    def pick_epoch(row: Summary) -> Callable[[int], Cell]:
        return lambda place: pick(row.epochs[place]) if place < len(row.epochs) else None

    columns = (
        Column("epoch", "epoch", pick=lambda place: place + 1),
        *(Column(summary.id, summary.name, digits, pick=pick_epoch(summary)) for summary in summaries),
    )
    last = max((len(summary.epochs) for summary in summaries), default=0)
    return Table.from_items(name, title, columns, range(last), "Median over repeats.")


def epochs_across(
    summaries: Sequence[Summary], name: str, title: str, digits: int, pick: Callable[[EpochMedians], Cell]
) -> Table:
    """One figure for a terminal: runs down, at most six epochs across. The first and the last are among them."""
    last = max((len(summary.epochs) for summary in summaries), default=0)
    count = min(last, _MAX_TERMINAL_EPOCHS)
    epochs = [1 + round(index * (last - 1) / max(count - 1, 1)) for index in range(count)]

    def pick_epoch(number: int) -> Callable[[Summary], Cell]:
        return lambda summary: next((pick(epoch) for epoch in summary.epochs if epoch.epoch == number), None)

    columns = (*RUN_COLUMNS, *(Column(str(epoch), f"epoch {epoch}", digits, pick=pick_epoch(epoch)) for epoch in epochs))
    note = "" if count == last else f"{count} of {last} epochs; all of them in the report."
    return Table.from_items(name, title, columns, summaries, note)
