"""The first screen of a report: what was asked, the answer, how sure it is, and what to do next.

It fits a terminal: at most `LINES` lines at 100 columns. Everything else stands behind `--full`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from compare.core import wording
from compare.core.terminal import FULL
from compare.reporting import tables
from compare.reporting.tables import Table

LINES, WIDTH = 25, 100
"""A screen has at most so many lines at so many columns."""
WIDEST = 120
"""Columns of text. A longer line is hard to read."""
MOST_BAR, LEAST_BAR = 40, 8
"""Columns of the longest bar. Where fewer than `LEAST_BAR` are left, there are no bars."""
WIDEST_LABEL = 14
"""Columns of a label that stands beside its answer. Longer ones stand above theirs."""
MOST_SENTENCES = 4
"""An answer shows so many sentences, where it does not say otherwise."""
LEAST_ROWS = 4
"""A chart or a table always shows so many rows."""

MARKS = {"+": "green", "-": "red", "~": "cyan", "?": "yellow"}
"""Mark of a verdict: its colour, which only repeats it."""
LEGEND = "+ faster  - slower  ~ no difference that matters  ? not decided  (95 % intervals)"
TONES = {"good": "bold green", "warn": "bold yellow", "bad": "bold red"}


class Paragraph(NamedTuple):
    """Sentences that answer one question."""

    label: str
    """The question, in one or two words. May be empty."""
    sentences: Sequence[str]
    tone: str = ""
    """good, warn, bad or none."""
    least: int = 1
    """Sentences that are shown however long the screen gets."""
    most: int = MOST_SENTENCES
    """Sentences that are shown at most. It is said how many more there are."""


class Bar(NamedTuple):
    """One row of a chart."""

    name: Sequence[str]
    """Its words, one below the other in all rows."""
    value: float | None
    """Length of the bar. None: there is none."""
    written: str
    """The value in words."""
    cells: Sequence[str] = ()
    """What stands behind it. A single character of `MARKS` is coloured."""


class Chart(NamedTuple):
    """Rows with bars, in their order."""

    headings: Sequence[str]
    """What the bars show, the longest words first. One that fits is taken."""
    columns: Sequence[str]
    """Headings of the cells behind the bars."""
    bars: Sequence[Bar]
    legend: str = ""


@dataclass(frozen=True, kw_only=True)
class Screen:
    """What a command says first."""

    asked: Sequence[str]
    """What was measured, on what. The parts share a line where they fit."""
    answers: Sequence[Paragraph] = ()
    chart: Chart | None = None
    table: Table | None = None
    """In place of a chart. Its note is left out."""
    remarks: Sequence[str] = ()
    next: Sequence[tuple[str, str]] = ()
    """(purpose, command or file)."""

    def with_trouble(self, sentence: str) -> Screen:
        """The same screen, and what went wrong after it was made."""
        return replace(self, answers=[*self.answers, Paragraph("Trouble", [sentence], "bad")])

    def lines(self, console: Console) -> list[Text]:
        """The screen, without blanks at the ends of lines.

        What makes it longer than `LINES` is left out: rows first, then remarks, then sentences of the longest answers, the
        last ones first. It says how many rows and sentences. A narrow terminal gets more lines in place of wider ones.
        """
        most = LINES * max(1.0, WIDTH / console.width)
        rows = len(self.chart.bars) if self.chart else len(self.table.rows) if self.table else 0
        sentences = {place: min(len(each.sentences), each.most) for place, each in enumerate(self.answers)}
        fitted = self
        while len(shown := fitted._lines(console, rows, sentences)) > most:
            spare = [place for place, number in sentences.items() if number > self.answers[place].least]
            if rows > LEAST_ROWS:
                rows = max(LEAST_ROWS, rows - (len(shown) - int(most)) - 1)
            elif len(fitted.remarks) > 1:  # the last one counts what is left out
                fitted = replace(fitted, remarks=fitted.remarks[1:])
            elif spare:
                sentences[max(spare, key=lambda place: sentences[place])] -= 1
            else:
                break
        return shown

    def _lines(self, console: Console, rows: int, sentences: Mapping[int, int]) -> list[Text]:
        """The screen with so many rows, and so many sentences of each answer."""
        width = min(console.width, WIDEST)
        given = [answer._replace(label=wording.one_line(answer.label)) for answer in self.answers]
        room = max((cell_len(answer.label) for answer in given if answer.sentences), default=0)
        blocks = [
            [line for each in _in_lines(self.asked, width) for line in _wrapped(console, Text(each, "bold"), width)],
            [line for place, answer in enumerate(given) for line in _answered(console, answer, room, width, sentences[place])],
        ]
        if self.chart and self.chart.bars:
            blocks.append(_charted(console, self.chart, rows, width))
        if self.table and self.table.rows:
            blocks.append(_tabled(console, self.table, rows, console.width))
        blocks.append([line for each in self.remarks for line in _indented(console, Text(wording.one_line(each)), 2, width)])
        purposes = max((cell_len(purpose) for purpose, _ in self.next), default=0)
        blocks.append([Text(f"  {purpose:<{purposes}}   {what}") for purpose, what in self.next])
        made: list[Text] = []
        for block in filter(None, blocks):
            made += [Text()] * bool(made) + block
        for line in made:
            line.rstrip()
        return made


def counted_cautions(number: int) -> list[str]:
    """A remark: how many cautions only the whole report has. Empty if there are none."""
    return [f"{wording.count(number, 'caution')}: {FULL}."] if number else []


def _in_lines(parts: Sequence[str], width: int) -> list[str]:
    """Parts of a line, in as many lines as they need."""
    lines: list[str] = []
    for part in map(wording.one_line, parts):
        if lines and cell_len(lines[-1]) + 3 + cell_len(part) <= width:
            lines[-1] += f" | {part}"
        else:
            lines.append(part)
    return lines


def _answered(console: Console, answer: Paragraph, room: int, width: int, most: int) -> list[Text]:
    """An answer: its label, and its sentences beside it."""
    is_beside = room <= WIDEST_LABEL
    left = 2 + (room + 2 if room and is_beside else 0)
    sentences = list(answer.sentences)
    if len(sentences) > most:
        sentences = [*sentences[:most], f"and {len(sentences) - most} more ({FULL})"]
    found = [line for each in sentences for line in _indented(console, Text(wording.one_line(each)), left, width)]
    style = TONES.get(answer.tone, "bold")
    if found and answer.label and not is_beside:
        return [*_wrapped(console, Text(answer.label, style), width), *found]
    if found and answer.label:
        found[0] = Text("  ").append(answer.label, style).append(" " * (left - 2 - cell_len(answer.label))) + found[0][left:]
    return found


def _indented(console: Console, text: Text, left: int, width: int) -> list[Text]:
    return [Text(" " * left) + line for line in _wrapped(console, text, max(width - left, 20))]


def _wrapped(console: Console, text: Text, width: int) -> list[Text]:
    lines = list(text.wrap(console, width))
    for line in lines:
        line.rstrip()
    return lines


def _charted(console: Console, chart: Chart, rows: int, width: int) -> list[Text]:
    """Rows with bars as wide as there is room."""
    bars, left_out = chart.bars[:rows], len(chart.bars) - rows
    names = _columns([bar.name for bar in bars])
    cells = _columns([bar.cells for bar in bars], chart.columns)
    written = max(cell_len(bar.written) for bar in bars)
    name_room = sum(names) + 2 * len(names)
    behind = sum(2 + each for each in cells if each) + 1
    full = min(MOST_BAR, width - 3 - name_room - written - behind)
    room = full + 1 if full >= LEAST_BAR else 0
    largest = max((bar.value for bar in bars if bar.value is not None), default=0.0)
    block = "█" if console.encoding.lower().startswith("utf") else "#"
    span = name_room + room + written
    heading = next((each for each in chart.headings if cell_len(each) <= span), chart.headings[-1][:span])
    lines = [Text("  ").append(heading, "dim").append(" " * (span - cell_len(heading)))]
    for title, column in zip(chart.columns, cells, strict=True):
        lines[0].append(f"  {title:<{column}}" if column else "", "dim")
    for bar in bars:
        line = Text("  ")
        for word, column in zip(bar.name, names, strict=False):
            line.append(f"{word}{' ' * (column - cell_len(word))}  ")
        line.append(" " * (2 + name_room - cell_len(line.plain)))
        if room:
            length = 0 if bar.value is None or not largest else max(1, round(full * bar.value / largest))
            line.append(block * length, "cyan").append(" " * (room - length))
        line.append(f"{bar.written:>{written}}")
        for cell, column in zip(bar.cells, cells, strict=False):
            line.append(f"  {cell}{' ' * (column - cell_len(cell))}", f"bold {MARKS[cell]}" if cell in MARKS else "")
        lines.append(line)
    if left_out > 0:
        lines.append(Text(f"  and {wording.count(left_out, 'row')} more ({FULL})"))
    if chart.legend:
        lines += _indented(console, Text(chart.legend, "dim"), 2, width)
    return lines


def _tabled(console: Console, table: Table, rows: int, width: int) -> list[Text]:
    """The first rows of a table."""
    with console.capture() as captured:
        console.print(tables.to_rich(replace(table, rows=table.rows[:rows]), width))
    lines = [Text.from_ansi(line) for line in captured.get().splitlines()]
    if (left_out := len(table.rows) - rows) > 0:
        lines.append(Text(f"and {wording.count(left_out, 'row')} more ({FULL})"))
    return lines


def _columns(rows: Sequence[Sequence[str]], headings: Sequence[str] = ()) -> list[int]:
    """The width of each column."""
    number = max(map(len, rows), default=0)
    return [
        max((cell_len(row[place]) for row in [*rows, headings] if place < len(row)), default=0)
        for place in range(max(number, len(headings)))
    ]
