"""The first screen of a report: what was measured, the answer, how sure it is, and what to do next.

It fits a terminal: at most `LINES` lines at 100 columns. Everything else stands behind `--full`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from compare.cli import wording
from compare.cli.terminal import FULL
from compare.reporting import tables
from compare.reporting.tables import Table

MAX_LINES, WIDTH = 25, 100
"""Most lines of a screen, at this number of columns."""
WIDEST = 120
"""Most columns of text. A longer line is hard to read."""
MOST_BAR, LEAST_BAR = 40, 8
"""Most columns of a bar, and fewest columns of the longest one. If fewer are left, there are no bars."""
WIDEST_LABEL = 14
"""Most columns of a label that stands beside its answer. Longer labels stand above it."""
MOST_SENTENCES = 4
"""Most sentences of an answer, by default."""
LEAST_ROWS = 4
"""Rows that a chart or a table always shows."""

MARKS = {"+": "green", "-": "red", "~": "cyan", "?": "yellow"}
"""Colour of each mark of a verdict. It only repeats the mark."""
LEGEND = "+ faster  - slower  ~ no difference that matters  ? not decided  (intervals: 95 % sure)"
TONES = {"good": "bold green", "warn": "bold yellow", "bad": "bold red"}


class Paragraph(NamedTuple):
    """Sentences that answer one question. A screen leaves out a paragraph without any."""

    label: str
    """The question, in one or two words. May be empty."""
    sentences: Sequence[str]
    tone: str = ""
    """good, warn, bad, or empty."""
    least: int = 1
    """Number of sentences that are shown however long the screen gets."""
    most: int = MOST_SENTENCES
    """Most sentences that are shown. The number of the others is added."""


class Bar(NamedTuple):
    """One row of a chart."""

    name: Sequence[str]
    """Words of the name. Each is a column over all rows."""
    value: float | None
    """Length of the bar. None: there is no bar."""
    value_text: str
    """Text of the value."""
    cells: Sequence[str] = ()
    """Cells behind the value. A single character of `MARKS` is coloured."""
    is_doubtful: bool = False
    """Whether the value is unreliable. Then the bar is light. The answers above the chart say why."""


class Chart(NamedTuple):
    """Rows with bars, from top to bottom."""

    headings: Sequence[str]
    """Headings of the bars, the longest first. The first that fits is used."""
    columns: Sequence[str]
    """Headings of the cells behind the bars."""
    bars: Sequence[Bar]
    legend: str = ""


@dataclass(frozen=True, kw_only=True)
class Screen:
    """The first screen of a command's report."""

    subject: Sequence[str]
    """Parts of the subject line: what was measured, and where. They share a line if they fit."""
    answers: Sequence[Paragraph] = ()
    chart: Chart | None = None
    table: Table | None = None
    """Table in place of a chart. Its note is left out."""
    remarks: Sequence[str] = ()
    next: Sequence[tuple[str, str]] = ()
    """(purpose, command or file) of each next step."""

    def __post_init__(self) -> None:
        """Leave out answers without sentences."""
        object.__setattr__(self, "answers", [answer for answer in self.answers if answer.sentences])

    def with_trouble(self, sentence: str) -> Screen:
        """Add a sentence on what went wrong after the screen was made."""
        return replace(self, answers=[*self.answers, Paragraph("Trouble", [sentence], "bad")])

    def lines(self, console: Console) -> list[Text]:
        """Lay out the screen, without blanks at the ends of lines.

        A screen is shortened to `MAX_LINES`: rows are left out first, then remarks, then sentences of the longest answers, the
        last ones first. It says how many rows and sentences are missing. A narrow terminal gets more lines.
        """
        most = MAX_LINES * max(1.0, WIDTH / console.width)
        rows = len(self.chart.bars) if self.chart else len(self.table.rows) if self.table else 0
        sentences = {place: min(len(answer.sentences), answer.most) for place, answer in enumerate(self.answers)}
        fitted = self
        while len(lines := fitted._lines(console, rows, sentences)) > most:
            shortenable = [place for place, number in sentences.items() if number > self.answers[place].least]
            if rows > LEAST_ROWS:
                rows = max(LEAST_ROWS, rows - (len(lines) - int(most)) - 1)
            elif len(fitted.remarks) > 1:  # the last one counts what is left out
                fitted = replace(fitted, remarks=fitted.remarks[1:])
            elif shortenable:
                sentences[max(shortenable, key=lambda place: sentences[place])] -= 1
            else:
                break
        return lines

    def _lines(self, console: Console, rows: int, sentences: Mapping[int, int]) -> list[Text]:
        """Lay out the screen with a number of rows, and a number of sentences for each answer."""
        width = min(console.width, WIDEST)
        answers = [answer._replace(label=wording.one_line(answer.label)) for answer in self.answers]
        label_width = max((cell_len(answer.label) for answer in answers), default=0)
        blocks = [
            [line for part in _join_parts(self.subject, width) for line in _wrapped(console, Text(part, "bold"), width)],
            [
                line
                for place, answer in enumerate(answers)
                for line in _answer_lines(console, answer, label_width, width, sentences[place])
            ],
        ]
        if self.chart and self.chart.bars:
            blocks.append(_chart_lines(console, self.chart, rows, width))
        if self.table and self.table.rows:
            blocks.append(_table_lines(console, self.table, rows, console.width))
        blocks.append(
            [line for remark in self.remarks for line in _indented(console, Text(wording.one_line(remark)), 2, width)]
        )
        purposes = max((cell_len(purpose) for purpose, _ in self.next), default=0)
        blocks.append([Text(f"  {purpose:<{purposes}}   {what}") for purpose, what in self.next])
        lines: list[Text] = []
        for block in filter(None, blocks):
            lines += [Text()] * bool(lines) + block
        for line in lines:
            line.rstrip()
        return lines


def caution_count(number: int) -> list[str]:
    """A remark on the number of cautions in the whole report. Empty if there are none."""
    return [f"{wording.count(number, 'caution')} about these figures: {FULL} lists all."] if number else []


def _join_parts(parts: Sequence[str], width: int) -> list[str]:
    """Join parts of a line, in as many lines as they need."""
    lines: list[str] = []
    for part in map(wording.one_line, parts):
        if lines and cell_len(lines[-1]) + 3 + cell_len(part) <= width:
            lines[-1] += f" | {part}"
        else:
            lines.append(part)
    return lines


def _answer_lines(console: Console, answer: Paragraph, label_width: int, width: int, max_sentences: int) -> list[Text]:
    """Lay out an answer: its label, and its sentences beside or below it."""
    is_beside = label_width <= WIDEST_LABEL
    indent = 2 + (label_width + 2 if label_width and is_beside else 0)
    sentences = list(answer.sentences)
    if len(sentences) > max_sentences:
        sentences = [*sentences[:max_sentences], f"and {len(sentences) - max_sentences} more ({FULL} lists all)"]
    lines = [line for sentence in sentences for line in _indented(console, Text(wording.one_line(sentence)), indent, width)]
    style = TONES.get(answer.tone, "bold")
    if lines and answer.label and not is_beside:
        return [*_wrapped(console, Text(answer.label, style), width), *lines]
    if lines and answer.label:
        lines[0] = (
            Text("  ").append(answer.label, style).append(" " * (indent - 2 - cell_len(answer.label))) + lines[0][indent:]
        )
    return lines


def _indented(console: Console, text: Text, indent: int, width: int) -> list[Text]:
    return [Text(" " * indent) + line for line in _wrapped(console, text, max(width - indent, 20))]


def _wrapped(console: Console, text: Text, width: int) -> list[Text]:
    lines = list(text.wrap(console, width))
    for line in lines:
        line.rstrip()
    return lines


def _chart_lines(console: Console, chart: Chart, rows: int, width: int) -> list[Text]:
    """Lay out a chart, with bars as wide as the line allows."""
    bars, left_out = chart.bars[:rows], len(chart.bars) - rows
    names = _column_widths([bar.name for bar in bars])
    cells = _column_widths([bar.cells for bar in bars], chart.columns)
    value_width = max(cell_len(bar.value_text) for bar in bars)
    name_width = sum(names) + 2 * len(names)
    cells_width = sum(2 + cell_width for cell_width in cells if cell_width) + 1
    max_bar = min(MOST_BAR, width - 3 - name_width - value_width - cells_width)
    bar_width = max_bar + 1 if max_bar >= LEAST_BAR else 0
    largest = max((bar.value for bar in bars if bar.value is not None), default=0.0)
    block, light_block = ("█", "░") if console.encoding.lower().startswith("utf") else ("#", ".")
    span = name_width + bar_width + value_width
    heading = next((candidate for candidate in chart.headings if cell_len(candidate) <= span), chart.headings[-1][:span])
    lines = [Text("  ").append(heading, "dim").append(" " * (span - cell_len(heading)))]
    for title, column in zip(chart.columns, cells, strict=True):
        lines[0].append(f"  {title:<{column}}" if column else "", "dim")
    for bar in bars:
        line = Text("  ")
        for word, column in zip(bar.name, names, strict=False):
            line.append(f"{word}{' ' * (column - cell_len(word))}  ")
        line.append(" " * (2 + name_width - cell_len(line.plain)))
        if bar_width:
            length = 0 if bar.value is None or not largest else max(1, round(max_bar * bar.value / largest))
            line.append((light_block if bar.is_doubtful else block) * length, "cyan").append(" " * (bar_width - length))
        line.append(f"{bar.value_text:>{value_width}}")
        for cell, column in zip(bar.cells, cells, strict=False):
            line.append(f"  {cell}{' ' * (column - cell_len(cell))}", f"bold {MARKS[cell]}" if cell in MARKS else "")
        lines.append(line)
    if left_out > 0:
        lines.append(Text(f"  and {wording.count(left_out, 'row')} more ({FULL} lists all)"))
    if chart.legend:
        lines += _indented(console, Text(chart.legend, "dim"), 2, width)
    return lines


def _table_lines(console: Console, table: Table, rows: int, width: int) -> list[Text]:
    """Lay out the first rows of a table."""
    with console.capture() as captured:
        console.print(tables.to_rich(replace(table, rows=table.rows[:rows]), width))
    lines = [Text.from_ansi(line) for line in captured.get().splitlines()]
    if (left_out := len(table.rows) - rows) > 0:
        lines.append(Text(f"and {wording.count(left_out, 'row')} more ({FULL} lists all)"))
    return lines


def _column_widths(rows: Sequence[Sequence[str]], headings: Sequence[str] = ()) -> list[int]:
    """Width of each column, in characters."""
    number = max(map(len, rows), default=0)
    return [
        max((cell_len(row[place]) for row in [*rows, headings] if place < len(row)), default=0)
        for place in range(max(number, len(headings)))
    ]
