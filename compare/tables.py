"""The tables of a comparison as plain data, and that data as terminal text, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text

from common.results import Phases
from compare.statistics import Ratio, Spread
from compare.summary import Epoch, Summary

Cell = str | int | float | Spread | Ratio | None

MISSING = "-"
ELSEWHERE = "the files of --out and in the JSON"
"""Where columns stand that a terminal has no room for, of commands that write files when they are asked to."""
_EPOCHS_ON_TERMINAL = 6
_WIDE = 110
"""Characters from which a terminal shows the wide columns too."""
_LEAST_WORD = 16
"""Characters to which a word may be shortened where a terminal is too narrow."""
_SHORT = {"train": "train", "validation": "valid.", "test": "test", "accuracy": "acc.", "loss": "loss"}
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")


@dataclass(frozen=True)
class Column:
    """One column: its key in the rows, its heading, and how its numbers are written."""

    key: str
    heading: str
    digits: int | None = None
    """Digits behind the point; None: text and whole numbers, -1: powers of ten."""
    terminal: bool = True
    short: str = ""
    """Its heading on the terminal, where that is narrower."""
    wide: bool = False
    """Left out on terminals too narrow for it."""
    fold: int | None = None
    """Characters at which the terminal breaks its text."""
    interval: bool = False
    """Whether its cells are spreads or ratios, which take three columns in CSV."""


@dataclass(frozen=True)
class Table:
    name: str
    """Name of its files."""
    title: str
    columns: tuple[Column, ...]
    rows: list[dict[str, Cell]]
    spreads_on_terminal: bool = True
    note: str = ""


_RUN = (Column("framework", "framework"), Column("run", "mode"))


def documents(summaries: Sequence[Summary]) -> list[Table]:
    """Every table that is written to the results folder."""
    made = [
        main_table(summaries),
        accuracy_table(summaries),
        seconds_table(summaries),
        speedup_table(summaries),
        phases_table(summaries),
        *step_table(summaries),
        *(epochs_down(summaries, *figure) for figure in _EPOCH_FIGURES),
        epochs_table(summaries),
    ]
    return made if _trained(summaries) else _filled(made)


def on_terminal(summaries: Sequence[Summary]) -> list[Table]:
    """The tables that are printed: narrower, epochs running across."""
    made = [
        main_table(summaries),
        accuracy_table(summaries),
        speedup_table(summaries),
        phases_table(summaries),
        *step_table(summaries),
        *(epochs_across(summaries, *figure) for figure in (_EPOCH_FIGURES[0], _EPOCH_FIGURES[2])),
    ]
    return made if _trained(summaries) else _filled(made)


def _trained(summaries: Sequence[Summary]) -> bool:
    """Whether anything was trained: a part of the training alone has neither scores nor a proof."""
    return any(summary.part == "training" for summary in summaries)


def _filled(made: Sequence[Table]) -> list[Table]:
    """The columns that hold anything, and the tables that have one left of their own."""
    kept: list[Table] = []
    for table in made:
        full = {column.key for column in table.columns if any(row.get(column.key) is not None for row in table.rows)}
        full.discard("parity")
        columns = tuple(column for column in table.columns if column.key in full)
        if full - {"framework", "run", "epoch", "cores", "cores_used"}:
            kept.append(replace(table, columns=columns))
    return kept


def main_table(summaries: Sequence[Summary]) -> Table:
    columns = (
        *_RUN,
        Column("implementation", "implementation", terminal=False),
        Column("device", "device", terminal=False),
        Column("replicas", "replicas", terminal=False),
        Column("input", "input", terminal=False),
        Column("workers", "workers", terminal=False),
        Column("cores", "cores", wide=True),
        Column("cores_used", "cores used", 2, terminal=False),
        Column("precision", "precision", terminal=False),
        Column("epochs", "epochs", wide=True),
        Column("steps", "steps", terminal=False),
        Column("images", "images", terminal=False),
        *(
            Column(f"{split}_{score}", f"{split} {score}", 4, terminal=split == "test", short=_SHORT[score], interval=True)
            for split in ("train", "validation", "test")
            for score in ("accuracy", "loss")
        ),
        Column("epoch_seconds", "seconds per epoch", 2, short="s per\nepoch", interval=True),
        Column("images_per_second", "images/s", 0, short="img/s", wide=True, interval=True),
        Column("wall_seconds", "wall seconds", 1, terminal=False, interval=True),
        Column("speedup_one_core", "speed-up, 1 core", 2, short="vs 1\ncore", interval=True),
        Column("speedup_same_cores", "speed-up, same cores", 2, short="vs same\ncores", interval=True),
        Column("parallel_efficiency", "parallel efficiency", 2, terminal=False),
        Column("pays", "pays", terminal=False),
        Column("mib_per_step", "MiB sent per step", 3, terminal=False),
        Column("peak_memory_mib", "peak memory MiB", 0, terminal=False),
        Column("device_peak_memory_mib", "device memory MiB", 0, terminal=False),
        Column("parity", "same training", short="proof", wide=True),
        Column("first_step_difference", "first-step difference", -1, terminal=False),
        Column("status", "status", fold=9),
        Column("reason", "reason", terminal=False),
    )
    rows = [
        _run_cells(summary)
        | {column.key: getattr(summary, column.key) for column in columns if column.key in Summary.model_fields}
        | {
            f"{split}_{score}": getattr(getattr(summary, split), score)
            for split in ("train", "validation", "test")
            for score in ("accuracy", "loss")
        }
        | {"epochs": summary.epochs_done, "mib_per_step": _mib_per_step(summary)}
        for summary in summaries
    ]
    return Table(
        "comparison",
        "Comparison",
        columns,
        rows,
        spreads_on_terminal=False,
        note="Accuracy and loss: test split, after the last epoch. " * _trained(summaries)
        + "Speed-up: against the same framework's serial run, by seconds per epoch.",
    )


def accuracy_table(summaries: Sequence[Summary]) -> Table:
    scores = [(split, score) for split in ("train", "validation", "test") for score in ("accuracy", "loss")]
    columns = (
        *_RUN,
        *(
            Column(f"{split}_{score}", f"{split} {score}", 4, short=f"{_SHORT[split]}\n{_SHORT[score]}", interval=True)
            for split, score in scores
        ),
    )
    rows = [
        _run_cells(summary) | {f"{split}_{score}": getattr(getattr(summary, split), score) for split, score in scores}
        for summary in summaries
    ]
    return Table(
        "accuracy",
        "Accuracy and loss by mode",
        columns,
        rows,
        spreads_on_terminal=False,
        note="After the last epoch. Median over repeats; in the report with the 25 % and 75 % quantiles.",
    )


def seconds_table(summaries: Sequence[Summary]) -> Table:
    columns = (
        *_RUN,
        Column("epoch_seconds", "seconds per epoch", 3, interval=True),
        Column("training_seconds", "training seconds", 2),
        Column("wall_seconds", "wall seconds", 1, interval=True),
        Column("images_per_second", "images/s", 1, interval=True),
    )
    rows = [
        _run_cells(summary)
        | {
            "epoch_seconds": summary.epoch_seconds,
            "training_seconds": summary.phases.training_seconds if summary.phases else None,
            "wall_seconds": summary.wall_seconds,
            "images_per_second": summary.images_per_second,
        }
        for summary in summaries
    ]
    return Table(
        "seconds",
        "Seconds by mode",
        columns,
        rows,
        note="Median over repeats (25 % to 75 % quantile). An epoch's seconds are its training steps, without the run's first.",
    )


def speedup_table(summaries: Sequence[Summary]) -> Table:
    columns = (
        *_RUN,
        Column("cores", "cores"),
        Column("cores_used", "cores used", 2, short="used"),
        Column("speedup_one_core", "against serial, 1 core", 2, short="vs serial,\n1 core", interval=True),
        Column("speedup_same_cores", "against serial, same cores", 2, short="vs serial,\nsame cores", interval=True),
        Column("parallel_efficiency", "parallel efficiency", 2, short="eff."),
        Column("pays", "pays", fold=15),
    )
    rows = [
        _run_cells(summary)
        | {column.key: getattr(summary, column.key) for column in columns if column.key in Summary.model_fields}
        for summary in summaries
    ]
    return Table("speedup", "Speed-up", columns, rows, note="Geometric mean of the ratios of paired repeats (95 % t-interval).")


def phases_table(summaries: Sequence[Summary]) -> Table:
    names = [name for name in Phases.model_fields if name != "input_wait_seconds"]
    short = {"evaluation_seconds": "eval.", "training_seconds": "train"}
    columns = (
        *_RUN,
        *(
            Column(
                name,
                name.removesuffix("_seconds").replace("_", " "),
                2,
                short=short.get(name, ""),
                wide=name == "other_seconds",
            )
            for name in names
        ),
        Column("input_wait_seconds", "input wait", 2),
        Column("peak_memory_mib", "peak MiB", 0, wide=True),
    )
    rows: list[dict[str, Cell]] = [
        _run_cells(summary)
        | {name: getattr(summary.phases, name) if summary.phases else None for name in Phases.model_fields}
        | {"peak_memory_mib": summary.peak_memory_mib}
        for summary in summaries
    ]
    return Table(
        "phases", "Wall seconds by phase", columns, rows, note="Median over repeats. The wait for input is part of training."
    )


def step_table(summaries: Sequence[Summary]) -> list[Table]:
    """Where the time of a step goes: one table, or none where no run was profiled."""
    if not any(summary.step_parts for summary in summaries):
        return []
    parts = {
        "step_seconds": "step",
        "compute_seconds": "compute",
        "communication_hidden_seconds": "hidden",
        "communication_exposed_seconds": "exposed",
        "idle_seconds": "idle",
    }
    piped = any(summary.step_parts and summary.expected_idle is not None for summary in summaries)
    expected = [Column("expected_idle_milliseconds", "idle by formula", 2, short="idle,\nformula", wide=True)] * piped
    columns = (
        *_RUN,
        *(Column(name.replace("_seconds", "_milliseconds"), heading, 2) for name, heading in parts.items()),
        *expected,
        Column("mib_per_step", "MiB sent", 3, short="MiB\nsent"),
        Column("not_separable", "not separable", fold=24, wide=True),
    )
    rows: list[dict[str, Cell]] = []
    for summary in summaries:
        row = _run_cells(summary) | {"mib_per_step": _mib_per_step(summary)}
        if summary.step_parts is not None:
            row["not_separable"] = summary.step_parts.not_separable
            for name in parts:
                seconds = getattr(summary.step_parts, name)
                row[name.replace("_seconds", "_milliseconds")] = None if seconds is None else 1e3 * seconds
            if summary.expected_idle is not None:
                row["expected_idle_milliseconds"] = 1e3 * summary.expected_idle * summary.step_parts.step_seconds
        rows.append(row)
    steps = max(summary.step_parts.steps for summary in summaries if summary.step_parts)
    note = (
        f"Medians of {steps} steps each after the training, in turn: whole ones, ones without exchange (compute: the slowest "
        "replica's), the exchange alone. Exposed: the step beyond compute; hidden: the exchange beyond that; idle: the mean "
        "wait for the slowest replica. MiB sent: all replicas, by formula."
        + " Idle by formula: of S equal stages and M micro-batches, (S - 1) / (M + S - 1) of the step."
        * piped
    )
    return [Table("step_parts", "Where a step's time goes, in milliseconds", columns, rows, note=note)]


def epochs_table(summaries: Sequence[Summary]) -> Table:
    """All figures of all epochs, one epoch of one row a line."""
    figures = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "seconds")
    columns = (*_RUN, Column("epoch", "epoch"), *(Column(name, name.replace("_", " "), 4) for name in figures))
    rows: list[dict[str, Cell]] = [
        _run_cells(summary) | {"epoch": epoch.epoch} | {name: getattr(epoch, name) for name in figures}
        for summary in summaries
        for epoch in summary.epochs
    ]
    return Table("epochs", "Epoch by epoch", columns, rows, note="Median over repeats.")


def epochs_down(summaries: Sequence[Summary], name: str, title: str, digits: int, pick: Callable[[Epoch], Cell]) -> Table:
    """One figure as the published reports lay it out: epochs down, runs across."""
    columns = (Column("epoch", "epoch"), *(Column(summary.id, summary.name, digits) for summary in summaries))
    last = max((len(summary.epochs) for summary in summaries), default=0)
    rows: list[dict[str, Cell]] = [
        {"epoch": index + 1}
        | {summary.id: pick(summary.epochs[index]) if index < len(summary.epochs) else None for summary in summaries}
        for index in range(last)
    ]
    return Table(name, title, columns, rows, note="Median over repeats.")


def epochs_across(summaries: Sequence[Summary], name: str, title: str, digits: int, pick: Callable[[Epoch], Cell]) -> Table:
    """The same figure for a terminal: runs down, at most six epochs across, the first and the last among them."""
    last = max((len(summary.epochs) for summary in summaries), default=0)
    count = min(last, _EPOCHS_ON_TERMINAL)
    shown = [1 + round(index * (last - 1) / max(count - 1, 1)) for index in range(count)]
    columns = (*_RUN, *(Column(str(epoch), f"epoch {epoch}", digits) for epoch in shown))
    rows = [
        _run_cells(summary) | {str(epoch.epoch): pick(epoch) for epoch in summary.epochs if epoch.epoch in shown}
        for summary in summaries
    ]
    return Table(
        name, title, columns, rows, note="" if count == last else f"{count} of {last} epochs; all of them in the report."
    )


_EPOCH_FIGURES: tuple[tuple[str, str, int, Callable[[Epoch], Cell]], ...] = (
    ("epoch_train_accuracy", "Training accuracy by epoch", 4, lambda epoch: epoch.train_accuracy),
    ("epoch_validation_accuracy", "Validation accuracy by epoch", 4, lambda epoch: epoch.validation_accuracy),
    ("epoch_seconds", "Seconds by epoch", 2, lambda epoch: epoch.seconds),
)


def to_rich(table: Table, width: int) -> RichTable:
    """For a terminal of so many characters, without the note: long words are shortened, then columns left out on the right."""
    title = Text(table.title, style="bold")
    made = RichTable(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    shown = _fitting(table, width)
    for column, cells in shown:
        made.add_column(
            Text(column.short or column.heading),
            justify="left" if _is_text(table, column) else "right",
            no_wrap=column in _RUN or column.key == "parity",
            min_width=_least_width(column, cells),  # words stay whole
        )
    for row in zip(*(cells for _, cells in shown), strict=True):
        made.add_row(*map(Text, row))
    return made


def left_out(table: Table, width: int) -> list[str]:
    """Headings of the columns that a terminal of so many characters has no room for."""
    shown = [column for column, _ in _fitting(table, width)]
    return [column.heading for column in table.columns if column.terminal and column not in shown]


def note_on_terminal(table: Table, width: int, where: str) -> str:
    """A table's note, and which columns stand but in `where`, for a terminal of so many characters."""
    headings = left_out(table, width)
    more = f"Too wide for this terminal, in {where}: {', '.join(headings)}." if headings else ""
    return f"{table.note} {more}".strip()


def _fitting(table: Table, width: int) -> list[tuple[Column, list[str]]]:
    """The columns that a terminal of so many characters has room for, with their cells."""
    shown: list[tuple[Column, list[str]]] = []
    for column in table.columns:
        if not column.terminal or (column.wide and width < _WIDE):
            continue
        cells = [written(row.get(column.key), column, table.spreads_on_terminal) for row in table.rows]
        shown.append((column, [textwrap.fill(cell, column.fold) for cell in cells] if column.fold else cells))

    def excess() -> int:
        return sum(_least_width(*each) for each in shown) + 2 * (len(shown) - 1) - width

    by_width = sorted(range(len(shown)), key=lambda place: _least_width(*shown[place]), reverse=True)
    for place in by_width:
        column, cells = shown[place]
        if excess() > 0 and _is_text(table, column):
            room = max(_LEAST_WORD, _least_width(column, cells) - excess())
            shown[place] = column, [_with_short_words(cell, room) for cell in cells]
    while excess() > 0 and len(shown) > 1:
        shown.pop()
    return shown


def _with_short_words(text: str, length: int) -> str:
    return re.sub(r"\S+", lambda word: shortened(word[0], length), text)


def _least_width(column: Column, cells: Sequence[str]) -> int:
    return max((cell_len(word) for text in (*cells, column.short or column.heading) for word in text.split()), default=0)


def to_markdown(table: Table) -> str:
    """A GitHub-flavoured Markdown table under its heading."""
    lines = [
        f"### {table.title}",
        "",
        _markdown_row([column.heading for column in table.columns]),
        _markdown_row(["---" if _is_text(table, column) else "---:" for column in table.columns], escape=False),
        *(_markdown_row([written(row.get(column.key), column) for column in table.columns]) for row in table.rows),
    ]
    if table.note:
        lines += ["", table.note]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """Full precision; a spread or a ratio takes three columns: its value, `_low` and `_high`.

    Text that a spreadsheet would run as a formula is given an apostrophe in front.
    """
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    header: list[str] = []
    for column in table.columns:
        header += [column.key, f"{column.key}_low", f"{column.key}_high"] if column.interval else [column.key]
    writer.writerow([_csv_text(word) for word in header])
    for row in table.rows:
        cells: list[str] = []
        for column in table.columns:
            cell = row.get(column.key)
            if isinstance(cell, Spread | Ratio):
                value = cell.median if isinstance(cell, Spread) else cell.value
                cells += [_csv_number(value), _csv_number(cell.low), _csv_number(cell.high)]
            else:
                plain = _csv_text(cell) if isinstance(cell, str) else _csv_number(cell)
                cells += [plain, "", ""] if column.interval else [plain]
        writer.writerow(cells)
    return output.getvalue()


def to_plain(table: Table) -> dict[str, Any]:
    """For JSON: numbers that JSON does not know become null."""
    return {
        "name": table.name,
        "title": table.title,
        "columns": [{"key": column.key, "heading": column.heading} for column in table.columns],
        "rows": [{column.key: plain(row.get(column.key)) for column in table.columns} for row in table.rows],
        "note": table.note,
    }


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, Spread | Ratio):
        return value.model_dump()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def written(cell: Cell, column: Column, with_spread: bool = True) -> str:
    """A cell for a reader."""
    if isinstance(cell, Spread | Ratio):
        value = _number(cell.median if isinstance(cell, Spread) else cell.value, column.digits)
        if not with_spread or cell.n == 1 or cell.low is None or cell.high is None:
            return value
        return f"{value} ({_number(cell.low, column.digits)} to {_number(cell.high, column.digits)})"
    if cell is None:
        return MISSING
    return one_line(cell) if isinstance(cell, str) else _number(cell, column.digits)


def visible(name: str) -> str:
    """A name from outside as Python's repr writes it, without the quotes: whatever is no printable character is escaped."""
    return "".join(repr(letter)[1:-1] if letter == "\\" or not letter.isprintable() else letter for letter in name)


def shortened(text: str, length: int) -> str:
    """Text of no more than so many characters (at least 3): its start and its end, where it is longer."""
    end = (length - 1) // 3
    return text if len(text) <= length else f"{text[: length - 1 - end]}…{text[len(text) - end :]}"


def one_line(text: str) -> str:
    """Text from outside (a log's last line) without line breaks, escape sequences and direction marks."""
    return _CONTROL.sub(" ", text).strip()


def escaped(text: str) -> str:
    """Text for Markdown, on one line, that means itself."""
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", one_line(text))


def _is_text(table: Table, column: Column) -> bool:
    return any(isinstance(row.get(column.key), str) for row in table.rows)


def _run_cells(summary: Summary) -> dict[str, Cell]:
    return {"framework": summary.framework, "run": summary.name.removeprefix(f"{summary.framework} ")}


def _mib_per_step(summary: Summary) -> float | None:
    return None if summary.bytes_per_step is None else summary.bytes_per_step / 2**20


def _number(value: float, digits: int | None) -> str:
    if not math.isfinite(value):
        return str(value)
    if digits is None:
        return str(value)
    return f"{value:.1e}" if digits < 0 else f"{value:.{digits}f}"


def _markdown_row(cells: Sequence[str], escape: bool = True) -> str:
    if escape:
        cells = [escaped(cell) for cell in cells]
    return f"| {' | '.join(cells)} |"


def _csv_text(text: str) -> str:
    text = one_line(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _csv_number(value: float | None) -> str:
    return "" if value is None else repr(value)
