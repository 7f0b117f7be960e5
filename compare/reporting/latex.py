"""Tables for a paper: LaTeX floats that are no wider than the text of an article on A4 or letter paper."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase, digits

from compare.core.wording import one_line
from compare.reporting.tables import RUN, Cell, Column, Table, is_text, written

WIDTH_PT = 338.0
"""The text of LaTeX's `article` is 345 pt wide, on A4 as on letter paper."""
_MOST_ROWS = 40
"""Lines of one float."""
_FLUSH_AFTER = 8
"""LaTeX holds back only some floats. After so many, they are printed on pages of their own."""
_SEPARATION_PT = 6.0
"""Between two columns."""
_WIDEST_TEXT_PT, _WIDEST_NUMBER_PT = 75.0, 150.0
"""Wider cells get a short name, where the table would be too wide otherwise."""
_HEADING = 12
"""Characters of a line of a heading."""
_LONG_WORD, _PART = 16, 8
"""Longer words may be broken in the legend and the caption, after every so many characters."""
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
    for part in _apart(table):
        columns = [column for column in part.columns if column.terminal and _holds_anything(part, column)]
        short: dict[str, str] = {}
        sets = [columns]
        if _width(part, columns, short) > WIDTH_PT:
            short = _short_names(part, columns)
            sets = _column_sets(part, columns, short)
        for own in sets:
            for at in range(0, max(len(part.rows), 1), _MOST_ROWS):
                floats.append(_float(replace(part, rows=part.rows[at : at + _MOST_ROWS]), own, short, len(floats)))
    flushed = [each + "\\clearpage\n" * (number % _FLUSH_AFTER == 0) for number, each in enumerate(floats, 1)]
    return "".join(flushed)


def _holds_anything(table: Table, column: Column) -> bool:
    return not table.rows or any(row.get(column.key) is not None for row in table.rows)


def _apart(table: Table) -> list[Table]:
    """A table for each value of the columns that are `apart`. Its title has the value."""
    apart = [column for column in table.columns if column.key in table.apart]
    parts: dict[str, list[dict[str, Cell]]] = {}
    for row in table.rows:
        parts.setdefault(", ".join(_text(row, column) for column in apart), []).append(row)
    columns = tuple(column for column in table.columns if column not in apart)
    return [
        replace(table, title=f"{table.title}: {name}" if name else table.title, columns=columns, rows=rows)
        for name, rows in (parts or {"": []}).items()
    ]


def _short_names(table: Table, columns: Sequence[Column]) -> dict[str, str]:
    """Short names of headings that have one, and letters for other texts that are too wide."""
    made = {one_line(column.heading): column.short for column in columns if column.short}
    letters = map("".join, (each for size in itertools.count(1) for each in itertools.product(ascii_lowercase, repeat=size)))
    for column in columns:
        heading = one_line(column.heading)
        most = _WIDEST_TEXT_PT if is_text(table, column) else _WIDEST_NUMBER_PT
        wide = [text for row in table.rows if _points(text := _text(row, column)) > most]
        for text in wide + [heading] * (_points_of_heading(heading) > _WIDEST_TEXT_PT):
            if text not in made:
                made[text] = f"({next(letters)})"
    return made


def _column_sets(table: Table, columns: Sequence[Column], short: Mapping[str, str]) -> list[list[Column]]:
    """The columns in as few sets as fit the page, with about as many in each. Each begins with the columns that name a row."""
    names = _naming(table, columns)
    while len(names) > 1 and _width(table, names, short) > WIDTH_PT / 2:
        names.pop()

    figures = [column for column in columns if column not in names]

    def fits(own: Sequence[Column]) -> bool:
        return len(own) == 1 or _width(table, [*names, *own], short) <= WIDTH_PT

    sets: list[list[Column]] = [[]]
    for column in figures:
        if not fits([*sets[-1], column]):
            sets.append([])
        sets[-1].append(column)
    ends = [round(len(figures) * number / len(sets)) for number in range(len(sets) + 1)]
    even = [figures[start:stop] for start, stop in itertools.pairwise(ends)]
    return [[*names, *own] for own in (even if all(fits(own) for own in even if own) else sets)]


def _naming(table: Table, columns: Sequence[Column]) -> list[Column]:
    """The columns of a run, or the first, and what tells rows apart of the words and counts before the first figure."""

    def different(names: Sequence[Column]) -> int:
        return len({tuple(_text(row, column) for column in names) for row in table.rows})

    names = [column for column in columns if column.key in {each.key for each in RUN}] or list(columns[:1])
    for column in (each for each in columns if each not in names):
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
    return "--" if cell is None else written(cell, column)


def _cell(row: Mapping[str, Cell], column: Column, short: Mapping[str, str]) -> str:
    text, cell = _text(row, column), row.get(column.key)
    if text in short or isinstance(cell, str):
        return escaped_latex(short.get(text, text))
    return text.replace(" to ", "--")


def _heading_lines(text: str) -> list[str]:
    return [line for part in text.split("\n") for line in textwrap.wrap(part, _HEADING, break_long_words=False)]


def _heading(text: str, side: str) -> str:
    lines = [escaped_latex(line) for line in _heading_lines(text)]
    stacked = r" \\ ".join(lines)
    return stacked if len(lines) < 2 else rf"\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}{stacked}\end{{tabular}}"


def _line(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def _breakable(text: str) -> str:
    """Text whose long words may be broken."""

    def parts(word: str) -> str:
        return r"\allowbreak{}".join(escaped_latex(word[at : at + _PART]) for at in range(0, len(word), _PART))

    return " ".join(parts(word) if len(word) > _LONG_WORD else escaped_latex(word) for word in one_line(text).split(" "))


def escaped_latex(text: str) -> str:
    """Text as one line of LaTeX, without commands, ligatures, or an option of the row before."""
    return _LIGATURE.sub(r"\1{}", "".join(_LATEX.get(letter, letter) for letter in one_line(text)))
