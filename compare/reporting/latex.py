"""Tables for a paper: LaTeX floats that are no wider than the text of an article on A4 or letter paper."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase, digits

from compare.cli.wording import one_line
from compare.reporting.tables import RUN_COLUMNS, Cell, Column, Table, cell_text, is_text, with_interval_headings

WIDTH_PT = 338.0
"""Most points of a table's width. The text of LaTeX's `article` is 345 pt wide, on A4 as on letter paper."""
_MAX_ROWS = 40
"""Most rows of one float."""
_FLOATS_PER_FLUSH = 8
"""Number of floats after which `\\clearpage` prints them, because LaTeX holds back only some floats."""
_SEPARATION_PT = 6.0
"""Points between two columns."""
_WIDEST_TEXT_PT, _WIDEST_NUMBER_PT = 75.0, 150.0
"""Points of a cell above which it gets a short name, if the table would be too wide otherwise."""
_HEADING_CHARACTERS = 12
"""Most characters of a line of a heading."""
_MAX_UNBROKEN, _BREAK_EVERY = 16, 8
"""Characters of a word above which the legend and the caption may break it, and characters between two breaks."""
_LETTER_PT = {
    letter: width
    for letters, width in (
        ("ijlft.,:;!'|/()[]- ", 3.4),
        (digits, 4.3),
        (ascii_uppercase + "=+<>&#$?", 6.9),
        ("mwMW%@\\~^", 9.0),
    )
    for letter in letters
}
"""Widths of letters in Computer Modern at 8 pt, no less than they are. Other ASCII letters take 4.8, all else 9."""
_LATEX = {
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
    **{letter: f"{{{letter}}}" for letter in "[]*"},  # would belong to the end of the row before them
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\textasciigrave{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
}
_LIGATURE = re.compile(r"([-',])(?=\1)")


def to_latex(table: Table) -> str:
    r"""Floats for a paper, with the columns that a terminal shows. Each is at most a page.

    They need `\usepackage[T1]{fontenc}` and `\usepackage{booktabs}`. Names in other scripts than Latin need XeLaTeX or
    LuaLaTeX. An interval is written `1.62 (1.58--1.66)`. A table that is too wide becomes several with the same first columns.
    Its long names become short ones, which a legend explains.
    """
    floats: list[str] = []
    for part in _split_table(with_interval_headings(table)):
        columns = [column for column in part.columns if column.terminal and _has_values(part, column)]
        short: dict[str, str] = {}
        sets = [columns]
        if _width(part, columns, short) > WIDTH_PT:
            short = _short_names(part, columns)
            sets = _column_sets(part, columns, short)
        for column_set in sets:
            for start in range(0, max(len(part.rows), 1), _MAX_ROWS):
                floats.append(_float(replace(part, rows=part.rows[start : start + _MAX_ROWS]), column_set, short, len(floats)))
    flushed_floats = [
        float_text + "\\clearpage\n" * (number % _FLOATS_PER_FLUSH == 0) for number, float_text in enumerate(floats, 1)
    ]
    return "".join(flushed_floats)


def _has_values(table: Table, column: Column) -> bool:
    return not table.rows or any(row.get(column.key) is not None for row in table.rows)


def _split_table(table: Table) -> list[Table]:
    """Split a table by the values of the columns in `Table.apart`. The titles have the values."""
    split_columns = [column for column in table.columns if column.key in table.apart]
    parts: dict[str, list[dict[str, Cell]]] = {}
    for row in table.rows:
        parts.setdefault(", ".join(_text(row, column) for column in split_columns), []).append(row)
    columns = tuple(column for column in table.columns if column not in split_columns)
    return [
        replace(table, title=f"{table.title}: {name}" if name else table.title, columns=columns, rows=rows)
        for name, rows in (parts or {"": []}).items()
    ]


def _short_names(table: Table, columns: Sequence[Column]) -> dict[str, str]:
    """Short names of headings that have one, and letters for other texts that are too wide."""
    short_names = {one_line(column.heading): column.short for column in columns if column.short}
    letters = map(
        "".join,
        (size_letters for size in itertools.count(1) for size_letters in itertools.product(ascii_lowercase, repeat=size)),
    )
    for column in columns:
        heading = one_line(column.heading)
        limit_points = _WIDEST_TEXT_PT if is_text(table, column) else _WIDEST_NUMBER_PT
        wide = [text for row in table.rows if _points(text := _text(row, column)) > limit_points]
        for text in wide + [heading] * (_points_of_heading(heading) > _WIDEST_TEXT_PT):
            if text not in short_names:
                short_names[text] = f"({next(letters)})"
    return short_names


def _column_sets(table: Table, columns: Sequence[Column], short: Mapping[str, str]) -> list[list[Column]]:
    """The columns in as few sets as fit the page, with about as many in each. Each begins with the columns that name a row."""
    names = _identifying_columns(table, columns)
    while len(names) > 1 and _width(table, names, short) > WIDTH_PT / 2:
        names.pop()

    figures = [column for column in columns if column not in names]

    def fits(subset: Sequence[Column]) -> bool:
        return len(subset) == 1 or _width(table, [*names, *subset], short) <= WIDTH_PT

    sets: list[list[Column]] = [[]]
    for column in figures:
        if not fits([*sets[-1], column]):
            sets.append([])
        sets[-1].append(column)
    ends = [round(len(figures) * number / len(sets)) for number in range(len(sets) + 1)]
    even_sets = [figures[start:stop] for start, stop in itertools.pairwise(ends)]
    return [[*names, *subset] for subset in (even_sets if all(fits(subset) for subset in even_sets if subset) else sets)]


def _identifying_columns(table: Table, columns: Sequence[Column]) -> list[Column]:
    """The columns of a run, or the first, and what tells rows apart of the words and counts before the first figure."""

    def different(names: Sequence[Column]) -> int:
        return len({tuple(_text(row, column) for column in names) for row in table.rows})

    names = [column for column in columns if column.key in {run_column.key for run_column in RUN_COLUMNS}] or list(columns[:1])
    for column in (other for other in columns if other not in names):
        if column.interval or not (is_text(table, column) or column.digits is None):
            break
        if different([*names, column]) > different(names):
            names.append(column)
    return names


def _float(table: Table, columns: Sequence[Column], short: Mapping[str, str], number: int) -> str:
    headings = [one_line(column.heading) for column in columns]
    texts = [[_text(row, column) for column in columns] for row in table.rows]
    used = dict.fromkeys(text for text in itertools.chain(headings, *texts) if text in short)
    legend = "; ".join(f"{name}: {text}" for text in used if (name := " ".join(short[text].split())) != text)
    sides = ["l" if is_text(table, column) else "r" for column in columns]
    title = table.title if table.title.endswith("?") else f"{table.title}."
    note = "Notes: as in the first part." if number and table.whole_note else table.whole_note
    lines = [
        r"\begin{table}",
        r"\centering\sloppy\footnotesize",
        rf"\setlength{{\tabcolsep}}{{{_SEPARATION_PT / 2:g}pt}}",
        rf"\caption{{{_breakable(f'{title} {note}'.rstrip())}}}",
        rf"\label{{tab:{table.name.replace('_', '-')}{f'-{number + 1}' if number else ''}}}",
        rf"\begin{{tabular}}{{{''.join(sides)}}}",
        r"\toprule",
        _line([_heading(short.get(text, text), side) for text, side in zip(headings, sides, strict=True)]),
        r"\midrule",
        *(_line([_cell(row, column, short) for column in columns]) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *([rf"\par\smallskip\raggedright {_breakable(legend)}."] if legend else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _width(table: Table, columns: Sequence[Column], short: Mapping[str, str]) -> float:
    """Points of these columns at LaTeX's `footnotesize`: an upper bound."""

    def widest(column: Column) -> float:
        texts = (_text(row, column) for row in table.rows)
        heading = one_line(column.heading)
        return max([_points_of_heading(short.get(heading, heading)), *(_points(short.get(text, text)) for text in texts)])

    return sum(widest(column) + _SEPARATION_PT for column in columns)


@lru_cache(maxsize=4096)
def _points_of_heading(text: str) -> float:
    return max(map(_points, _heading_lines(text)), default=0.0)


@lru_cache(maxsize=4096)
def _points(text: str) -> float:
    return sum(_LETTER_PT.get(letter, 4.8 if letter.isascii() else 9.0) for letter in text)


def _text(row: Mapping[str, Cell], column: Column) -> str:
    cell = row.get(column.key)
    return "--" if cell is None else cell_text(cell, column)


def _cell(row: Mapping[str, Cell], column: Column, short: Mapping[str, str]) -> str:
    text, cell = _text(row, column), row.get(column.key)
    if text in short or isinstance(cell, str):
        return escaped_latex(short.get(text, text))
    return text.replace(" to ", "--")


def _heading_lines(text: str) -> list[str]:
    return [line for part in text.split("\n") for line in textwrap.wrap(part, _HEADING_CHARACTERS, break_long_words=False)]


def _heading(text: str, side: str) -> str:
    lines = [escaped_latex(line) for line in _heading_lines(text)]
    stacked = r" \\ ".join(lines)
    return stacked if len(lines) < 2 else rf"\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}{stacked}\end{{tabular}}"


def _line(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def _breakable(text: str) -> str:
    """Text whose long words may be broken."""

    def parts(word: str) -> str:
        return r"\allowbreak{}".join(escaped_latex(word[at : at + _BREAK_EVERY]) for at in range(0, len(word), _BREAK_EVERY))

    return " ".join(parts(word) if len(word) > _MAX_UNBROKEN else escaped_latex(word) for word in one_line(text).split(" "))


def escaped_latex(text: str) -> str:
    """Text as one line of LaTeX, without commands, ligatures, or an option of the row before."""
    return _LIGATURE.sub(r"\1{}", "".join(_LATEX.get(letter, letter) for letter in one_line(text)))
