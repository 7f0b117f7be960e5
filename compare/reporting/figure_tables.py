"""Tables whose columns are the figures of a row that name the table, see `judgement.figures`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compare.judgement.figures import Figure, all_figures
from compare.judgement.row_figures import Summary
from compare.reporting.tables import RUN_COLUMNS, Column, Table, scaled


def figure_table(name: str, title: str, summaries: Sequence[Summary], note: str, **options: Any) -> Table:
    """A table of rows with all figures that name it."""
    return Table.from_items(name, title, (*RUN_COLUMNS, *figure_columns(name, summaries)), summaries, note, **options)


def figure_columns(table: str, summaries: Sequence[Summary]) -> list[Column]:
    """The columns of all figures that name a table, in their order."""
    columns = [(_column(figure, table), figure.tables[table]) for figure in all_figures() if table in figure.tables]
    return [
        column
        for column, options in columns
        if not options.get("if_any") or any(column.cell(summary) is not None for summary in summaries)
    ]


def _column(figure: Figure, table: str) -> Column:
    options: dict[str, Any] = {
        "key": figure.name,
        "heading": figure.label,
        "digits": figure.digits,
        "interval": figure.interval,
        "pick": figure.cell,
        **figure.tables[table],
    }
    options.pop("if_any", None)
    if factor := options.pop("scale", None):
        options["pick"] = scaled(factor, options["pick"])
    return Column(**options)
