"""Tables as plain data, and that data as terminal text, Markdown, CSV and JSON.

`Table.from_items` makes the rows from its columns: each column picks its own cell from an item.
"""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from compare.cli.wording import Detail, one_line, shortened
from compare.statistics.statistics import Ratio, Spread
from compare.statistics.verdict_words import UNBOUNDED

Cell = str | int | float | Spread | Ratio | None

MISSING = "-"
_BRACKETS: dict[type[Spread | Ratio], str] = {Spread: "25 to 75 %", Ratio: "95 %"}
"""Words for what stands in brackets behind a cell's value."""
ELSEWHERE = "the files of --out and in the JSON"
"""Place of columns that do not fit the terminal, in words, if the command has written no files."""
_WIDE_TERMINAL = 110
"""Least width in characters where a terminal shows the wide columns too."""
_MIN_WORD_LENGTH = 16
"""Characters below which words are not shortened."""
_MARKDOWN = re.compile(r"[\\|`*_<>\[\]#&~$]|:(?=//)|(?<=\bwww)\.", re.IGNORECASE)
"""Pattern of Markdown markup, with what GitHub interprets: entities, formulas, and addresses that become links."""
_FORMULA = re.compile(r"""(^|[;,"])(\s*)(?=[-=+@\uff1d\uff0b\uff0d\uff20])""")
"""Pattern of the places where a spreadsheet would read a formula: at the start of a cell, also if `;` separates cells."""


@dataclass(frozen=True)
class Column:
    """One column: its key in the rows, its heading, and how its cells are picked and written."""

    key: str
    heading: str
    digits: int | None = None
    """Digits after the point. None: text and whole numbers. -1: powers of ten."""
    terminal: bool = True
    short: str = ""
    """Narrower heading for the terminal."""
    wide: bool = False
    """Whether narrow terminals leave the column out."""
    fold: int | None = None
    """Characters after which the terminal breaks the text of a cell. None: it does not."""
    interval: bool = False
    """Whether its cells are spreads or ratios, which take three columns in CSV."""
    least: bool = False
    """Whether a number that rounds to zero is written as `< 0.0001`, as p-values are."""
    link: bool = False
    """Whether its cells are paths of pages beside the report, which the page links to."""
    pick: str | Callable[[Any], Cell] = ""
    """Function that picks the cell from an item of `Table.from_items`, or a path as in `value_at`. Default: the key."""

    def cell(self, item: Any) -> Cell:
        """The cell of one item."""
        return self.pick(item) if callable(self.pick) else value_at(item, self.pick or self.key)


@dataclass(frozen=True)
class Table:
    name: str
    """Stem of the table's files."""
    title: str
    columns: tuple[Column, ...]
    rows: list[dict[str, Cell]]
    spreads_on_terminal: bool = True
    note: str = ""
    files_note: str = ""
    """Addition to the note on columns that the terminal does not show."""
    folds: bool = False
    """Whether a report in Markdown shows only the title, until somebody clicks on it."""
    apart: tuple[str, ...] = ()
    """Keys of columns by whose values LaTeX splits the table."""

    def __post_init__(self) -> None:
        for field in ("title", "note", "files_note"):  # they may hold text from outside, such as an exception's
            object.__setattr__(self, field, one_line(getattr(self, field)))

    @property
    def whole_note(self) -> str:
        """The note of outputs that show all columns."""
        return f"{self.note} {self.files_note}".strip()

    @classmethod
    def from_items(
        cls, name: str, title: str, columns: Iterable[Column], items: Iterable[Any], note: str = "", **options: Any
    ) -> Table:
        """A table with a row for each item. Its columns pick the cells."""
        columns = tuple(columns)
        rows = [{column.key: column.cell(item) for column in columns} for item in items]
        # A step stores its tables: what has picked the cells is not part of them.
        return cls(name, title, tuple(replace(column, pick="") for column in columns), rows, note=note, **options)


RUN_COLUMNS = (Column("contestant", "contestant"), Column("run", "mode", pick="configuration"))
"""First columns of the tables of runs, which pick from a `Summary`."""


def value_at(item: Any, path: str) -> Any:
    """The value at a dotted path of attributes, keys of a mapping, and places in a tuple. None on the way gives None."""
    for step in path.split("."):
        if item is None:
            return None
        item = item.get(step) if isinstance(item, Mapping) else item[int(step)] if step.isdigit() else getattr(item, step)
    return item


def with_interval_headings(table: Table, spreads: bool = True) -> Table:
    """The table whose headings say what stands in brackets: quartiles of spreads, 95 % intervals of ratios.

    Args:
        spreads: whether spreads are written with their quartiles.
    """

    def words(column: Column) -> str:
        if "%" in column.heading:  # it says so already
            return ""
        cells = [row.get(column.key) for row in table.rows]
        bracketed = [
            words
            for kind, words in _BRACKETS.items()
            if any(isinstance(cell, kind) and cell_text(cell, column, spreads).endswith(")") for cell in cells)
        ]
        return f" ({', '.join(bracketed)})" if bracketed else ""

    columns = [
        replace(column, heading=f"{column.heading}{suffix}", short=f"{column.short}{suffix}" if column.short else "")
        if (suffix := words(column))
        else column
        for column in table.columns
    ]
    return replace(table, columns=tuple(columns))


def scaled(factor: float, path: str) -> Callable[[Any], float | None]:
    """Return a function that picks the value at a path, times a factor."""

    def pick(item: Any) -> float | None:
        value = value_at(item, path)
        return None if value is None else factor * value

    return pick


def to_rich(table: Table, width: int) -> Group:
    """The table for a terminal of `width` characters, without its note.

    Long words are shortened first. Then columns are left out from the right.
    """
    table = with_interval_headings(table, table.spreads_on_terminal)
    rich_table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    fitting = _fit_columns(table, width)
    for (column, _), column_width in zip(fitting, _column_widths(fitting, width), strict=True):
        rich_table.add_column(
            Text(column.short or column.heading),
            justify="left" if is_text(table, column) else "right",
            no_wrap=_is_whole(column),
            width=column_width,
        )
    for row in zip(*(cells for _, cells in fitting), strict=True):
        rich_table.add_row(*map(Text, row))
    return Group(Text(table.title, style="bold"), rich_table)  # a title of the table itself would be no wider than the table


def omitted_columns(table: Table, width: int) -> list[str]:
    """Headings of the columns that do not fit a terminal of `width` characters."""
    table = with_interval_headings(table, table.spreads_on_terminal)
    fitting = [column for column, _ in _fit_columns(table, width)]
    return [column.heading for column in table.columns if column.terminal and column not in fitting]


def note_on_terminal(table: Table, width: int, where: str) -> str:
    """A table's note for a terminal of `width` characters, with the columns that only `where` has."""
    headings = omitted_columns(table, width)
    more = f"Too wide for this terminal, in {where}: {', '.join(headings)}." if headings else ""
    return f"{table.note} {more}".strip()


def with_rows(tables: Sequence[Table]) -> list[Table]:
    """The tables that have rows. Only the files and the JSON have the empty ones too."""
    return [table for table in tables if table.rows]


def to_fields(table: Table) -> Text:
    """The table with one field a line, for an output that is no terminal and too narrow for all its columns."""
    columns = [column for column in with_interval_headings(table, table.spreads_on_terminal).columns if column.terminal]
    heads = [column for column in columns if column.key in {run_column.key for run_column in RUN_COLUMNS}] or columns[:1]
    lines = [Text(table.title, style="bold")]
    for row in table.rows:
        cells = {column.key: cell_text(row.get(column.key), column, table.spreads_on_terminal) for column in columns}
        lines.append(Text(" ".join(cells[column.key] for column in heads)))
        lines += [
            Text(f"  {column.heading}: {cells[column.key]}")
            for column in columns
            if column not in heads and cells[column.key] not in (MISSING, "")
        ]
    return Text("\n").join(lines)


def is_truncated(table: Table, width: int) -> bool:
    """Whether `to_rich` leaves out columns or shortens words."""
    table = with_interval_headings(table, table.spreads_on_terminal)
    columns = [column for column in table.columns if column.terminal]
    fitting = _fit_columns(table, width)
    return (
        len(fitting) < len(columns)
        or _excess(fitting, width) > 0
        or any(
            "".join(cell.split()) != "".join(cell_text(row.get(column.key), column, table.spreads_on_terminal).split())
            for column, cells in fitting
            for row, cell in zip(table.rows, cells, strict=True)
        )
    )


def print_tables(console: Console, tables: Sequence[Table], *, where: str) -> None:
    """Print tables that have rows, with their notes. `where` names the place of the columns that do not fit a terminal."""
    for table in with_rows(tables):
        console.print()
        if not console.is_terminal and is_truncated(table, console.width):
            console.print(to_fields(table), soft_wrap=True)
            if table.note:
                console.print(Text(table.note, style="dim"))
            continue
        console.print(to_rich(table, console.width))
        if note := note_on_terminal(table, console.width, where):
            console.print(Text(note, style="dim"))


def print_findings(console: Console, findings: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Print sentences under their headings, a `Detail` below the sentence before."""
    for heading, sentences in findings:
        if not sentences:
            continue
        console.print()
        console.print(Text(one_line(heading), style="bold"))
        for sentence in sentences:
            indent = 4 if isinstance(sentence, Detail) else 2
            console.print(Padding(Text(one_line(sentence)), (0, 0, 0, indent), expand=False))


def _fit_columns(table: Table, width: int) -> list[tuple[Column, list[str]]]:
    """The columns that fit a terminal of `width` characters, with their cells."""
    fitting: list[tuple[Column, list[str]]] = []
    for column in table.columns:
        if not column.terminal or (column.wide and width < _WIDE_TERMINAL):
            continue
        cells = [cell_text(row.get(column.key), column, table.spreads_on_terminal) for row in table.rows]
        fitting.append((column, [_fold(cell, column.fold) for cell in cells] if column.fold else cells))

    by_width = sorted(range(len(fitting)), key=lambda place: _min_width(*fitting[place]), reverse=True)
    for place in by_width:
        column, cells = fitting[place]
        if (excess := _excess(fitting, width)) > 0 and is_text(table, column):
            word_length = max(_MIN_WORD_LENGTH, _min_width(column, cells) - excess)
            fitting[place] = column, [_with_short_words(cell, word_length) for cell in cells]
    while _excess(fitting, width) > 0 and len(fitting) > 1:
        fitting.pop()
    return fitting


def _fold(text: str, length: int) -> str:
    """Break text into lines of `length` characters. A word of a usual length is not broken."""
    longest = max((len(word) for word in text.split()), default=0)
    return textwrap.fill(text, max(length, min(longest, _MIN_WORD_LENGTH)))


def _column_widths(fitting: Sequence[tuple[Column, list[str]]], width: int) -> list[int]:
    """The width of each column: no less than its longest word, which stays whole, and no more than its longest line.

    Characters that are left go to the narrowest column first.
    """
    widths = [_min_width(*column_and_cells) for column_and_cells in fitting]
    lines = [
        [line for text in (*cells, column.short or column.heading) for line in text.splitlines()] for column, cells in fitting
    ]
    longest = [max(map(cell_len, column_lines), default=0) for column_lines in lines]
    for _ in range(-_excess(fitting, width)):
        growable = [place for place, most in enumerate(longest) if widths[place] < most]
        if not growable:
            break
        widths[min(growable, key=widths.__getitem__)] += 1
    return widths


def _excess(fitting: Sequence[tuple[Column, list[str]]], width: int) -> int:
    """Characters of the columns beyond the width of the terminal. Rich keeps one behind each, and one between two."""
    return sum(_min_width(*column_and_cells) for column_and_cells in fitting) + 2 * len(fitting) - 1 - width


def _with_short_words(text: str, length: int) -> str:
    return re.sub(r"\S+", lambda word: shortened(word[0], length), text)


def _min_width(column: Column, cells: Sequence[str]) -> int:
    words = [word for text in (*cells, column.short or column.heading) for word in text.split()]
    return max((cell_len(text) for text in (*words, *(cells if _is_whole(column) else ()))), default=0)


def _is_whole(column: Column) -> bool:
    """Whether the cells of a column stand on one line on the terminal."""
    return column.key in {run_column.key for run_column in RUN_COLUMNS} or column.key == "parity"


def to_markdown(table: Table) -> str:
    """A GitHub-flavoured Markdown table under its heading."""
    lines = [
        f"### {escaped(table.title)}",
        "",
        _markdown_row([column.heading for column in with_interval_headings(table).columns]),
        _markdown_row(["---" if is_text(table, column) else "---:" for column in table.columns], escape=False),
        *(_markdown_row([cell_text(row.get(column.key), column) for column in table.columns]) for row in table.rows),
    ]
    if table.whole_note:
        lines += ["", escaped(table.whole_note)]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """CSV at full precision. A spread or a ratio takes three columns: its value, `_low` and `_high`.

    All text is quoted. An apostrophe stands before text that a spreadsheet would run as a formula.
    """
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    header: list[str] = []
    for column in table.columns:
        header += [column.key, f"{column.key}_low", f"{column.key}_high"] if column.interval else [column.key]
    writer.writerow([_csv_text(word) for word in header])
    for row in table.rows:
        cells: list[str | float | None] = []
        for column in table.columns:
            cell = row.get(column.key)
            if isinstance(cell, Spread | Ratio):
                cells += [cell.median if isinstance(cell, Spread) else cell.value, cell.low, cell.high]
            else:
                text = _csv_text(cell) if isinstance(cell, str) else cell
                cells += [text, None, None] if column.interval else [text]
        writer.writerow(cells)
    return output.getvalue()


def frame_to_csv(frame: pd.DataFrame) -> str:
    """CSV of a frame at full precision. Its text is as safe as that of `to_csv`."""
    safe = frame.copy(deep=False)
    for name in frame.select_dtypes(exclude="number"):
        safe_texts = {cell: _csv_text(cell) for cell in frame[name].unique() if isinstance(cell, str)}
        if changed := {cell: text for cell, text in safe_texts.items() if text != cell}:
            safe[name] = frame[name].replace(changed)
    return safe.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC)


def to_plain(table: Table) -> dict[str, Any]:
    """The table for JSON. Numbers that JSON lacks become null."""
    return {
        "name": table.name,
        "title": table.title,
        "columns": [{"key": column.key, "heading": column.heading} for column in table.columns],
        "rows": [{column.key: plain(row.get(column.key)) for column in table.columns} for row in table.rows],
        "note": table.whole_note,
    }


def plain(value: Any) -> Any:
    """A value that JSON can hold."""
    if isinstance(value, Spread | Ratio):
        return value.model_dump()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def cell_text(cell: Cell, column: Column, with_spread: bool = True) -> str:
    """A cell as text for a reader.

    Quartiles that read as their median are left out: they would only make a table wider. An interval of a ratio always stands.
    """
    if isinstance(cell, Spread | Ratio):
        value = _number(cell.median if isinstance(cell, Spread) else cell.value, column.digits)
        if isinstance(cell, Ratio) and not cell.is_bounded:
            return f"{value} ({UNBOUNDED})"
        if not with_spread or cell.n == 1 or cell.low is None or cell.high is None:
            return value
        low, high = (_number(bound, column.digits) for bound in (cell.low, cell.high))
        return value if isinstance(cell, Spread) and low == value == high else f"{value} ({low} to {high})"
    if cell is None:
        return MISSING
    if isinstance(cell, str):
        return one_line(cell)
    number = _number(cell, column.digits)
    return f"< {10.0 ** -(column.digits or 0):g}" if column.least and float(number) == 0 else number


def escaped(text: str) -> str:
    """Text as one line of Markdown, without markup."""
    return _MARKDOWN.sub(r"\\\g<0>", one_line(text))


def is_text(table: Table, column: Column) -> bool:
    """Whether any cell of a column is text."""
    return any(isinstance(row.get(column.key), str) for row in table.rows)


def _markdown_row(cells: Sequence[str], escape: bool = True) -> str:
    if escape:
        cells = [escaped(cell) for cell in cells]
    return f"| {' | '.join(cells)} |"


def _csv_text(text: str) -> str:
    return _FORMULA.sub(r"\1\2'", one_line(text))


def _number(value: float, digits: int | None) -> str:
    if not math.isfinite(value):
        return str(value)
    if digits is None:
        return str(value)
    return f"{value:.1e}" if digits < 0 else f"{value:.{digits}f}"
