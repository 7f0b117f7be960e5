"""Losses by step, read from JSON lines, CSV, TensorBoard's event files, or what a command prints."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from common.artifacts import atomic_files
from common.errors import UserError
from common.machine import plain_file
from common.machine.plain_file import PlainFileError
from compare.cli import wording
from compare.tools.same import event_files
from compare.tools.same.event_files import EventFileError

MOST_BYTES = 2**28
"""Size limit of a file of losses, in bytes: some four million steps."""
LINES = "lines"
"""Word of `--step` for the number of the line in the place of a column."""
LOSS_NAMES = ("loss", "train_loss", "train/loss", "training_loss", "loss/train", "train_loss_step", "train/train_loss")
STEP_NAMES = ("step", "global_step", "train/global_step", "trainer/global_step", "_step", "iteration", "iter", "batch")
EPOCH_NAME = "epoch"
_MOST_NAMES = 12
_MOST_DIGITS = 15
"""Significant digits of a value of float64 that is written in full."""
_LEAST_VALUES = 8
"""Fewest different losses that tell a dtype coarser than float32."""
_SAMPLED_VALUES = 10_000
"""Number of values whose digits are counted."""
UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""Relative rounding of one number, the coarsest dtype first."""


class LossesError(UserError, ValueError):
    """Losses cannot be read. The message names the file, and the line or column."""


class WrittenDigits(NamedTuple):
    """Digits that losses are written with."""

    number: int
    is_significant: bool
    """Whether these are significant digits, as `%.4g` writes them, and not decimals."""

    @property
    def words(self) -> str:
        return wording.count(self.number, "significant digit" if self.is_significant else "decimal")


class Curve(NamedTuple):
    """Losses of one training."""

    source: str
    """File, or command whose output it is."""
    steps: npt.NDArray[np.int64]
    """[N] numbers of the steps, ascending."""
    losses: npt.NDArray[np.float64]
    """[N] losses. A NaN or an infinity is kept."""
    epochs: npt.NDArray[np.int64] | None = None
    """[N] epoch of each step, where that is written."""
    is_counted: bool = False
    """Whether steps are numbers of lines, since no column has them."""

    @property
    def digits(self) -> WrittenDigits | None:
        """Digits that are written. None: the values are written in full.

        Values of several magnitudes tell decimals from significant digits: if the larger ones have fewer decimals.
        """
        sample = self.losses[:_SAMPLED_VALUES].tolist()
        values = [Decimal(repr(value)).normalize() for value in sample if value and math.isfinite(value)]
        if not values or self.dtype != "float64":
            return None
        significant = max(len(value.as_tuple().digits) for value in values)
        if significant >= _MOST_DIGITS:
            return None
        decimals = [max(-int(value.as_tuple().exponent), 0) for value in values]
        largest = max(value.adjusted() for value in values)
        has_all = any(
            value.adjusted() == largest and places == max(decimals) for value, places in zip(values, decimals, strict=True)
        )
        return (
            WrittenDigits(max(decimals), is_significant=False) if has_all else WrittenDigits(significant, is_significant=True)
        )

    @property
    def resolution(self) -> npt.NDArray[np.float64]:
        """[N] largest error of each loss because digits are left out."""
        digits = self.digits
        if digits is None:
            return np.zeros(len(self.losses))
        if not digits.is_significant:
            return np.full(len(self.losses), 0.5 * 10.0**-digits.number)
        magnitude = np.abs(self.losses)
        is_known = np.isfinite(magnitude) & (magnitude > 0)
        leading = np.floor(np.log10(magnitude, out=np.zeros_like(magnitude), where=is_known))
        return np.where(is_known, 0.5 * 10.0 ** (leading - digits.number + 1), 0.0)

    @property
    def dtype(self) -> str:
        """The coarsest dtype that holds every loss. A few losses may fit a coarse one by chance."""
        losses = self.losses[np.isfinite(self.losses)]
        single = losses.astype(np.float32)
        if not np.array_equal(single, losses):
            return "float64"
        if len(np.unique(single)) < _LEAST_VALUES:
            return "float32"
        if not (single.view(np.uint32) & 0xFFFF).any():
            return "bfloat16"
        with np.errstate(over="ignore"):
            return "float16" if np.array_equal(single.astype(np.float16), single) else "float32"


def read(path: Path, loss: str | None = None, step: str | None = None, *, files: Sequence[Path] | None = None) -> Curve:
    """Read the losses of a file, or of a folder that holds one file of losses or one folder of event files.

    Args:
        loss: column or tag of the loss. None: one of `LOSS_NAMES`.
        step: column of the step. None: one of `STEP_NAMES`, or else the number of the line.
        files: the files of a folder that count. None: all.
    """
    if path.is_dir():
        return _read_folder(path, loss, step, files)
    content = _content(path)
    if event_files.is_event_file(content):
        return _from_events([(path, content)], str(path), loss)
    return parse(content.decode("utf-8-sig", errors="replace"), str(path), loss, step)


def write(path: Path, curve: Curve) -> None:
    """Write a curve as JSON lines. `read` returns the same losses at the same steps."""
    columns = {STEP_NAMES[0]: None if curve.is_counted else curve.steps, EPOCH_NAME: curve.epochs, LOSS_NAMES[0]: curve.losses}
    known = {name: values.tolist() for name, values in columns.items() if values is not None}
    rows = zip(*known.values(), strict=True)
    atomic_files.write_atomically(path, "".join(f"{json.dumps(dict(zip(known, row, strict=True)))}\n" for row in rows))


def _content(path: Path) -> bytes:
    try:
        return plain_file.read(path, MOST_BYTES)
    except PlainFileError as error:
        raise LossesError(f"{error}. Name a file of losses: JSON lines, CSV or an event file of TensorBoard.") from None
    except OSError as error:
        raise LossesError(f"{path} cannot be read ({error.strerror}). Name a file of losses.") from None


def _read_folder(folder: Path, loss: str | None, step: str | None, files: Sequence[Path] | None) -> Curve:
    known = sorted(path for path in folder.rglob("*") if path.is_file()) if files is None else sorted(files)
    events = [path for path in known if "tfevents" in path.name]
    texts = [path for path in known if path.suffix in (".jsonl", ".json", ".csv", ".ndjson")]
    if not events:
        if len(texts) == 1:
            return read(texts[0], loss, step)
        names = wording.listed([str(path.relative_to(folder)) for path in texts or known], _MOST_NAMES)
        what = "several files of losses" if texts else "no event file of TensorBoard, and no .jsonl or .csv file"
        raise LossesError(f"{folder} has {what}. Received: {names}. Name the file itself.")
    if (size := sum(path.stat().st_size for path in events)) > MOST_BYTES:
        raise LossesError(
            f"{folder} has event files of {size:,} bytes, more than {MOST_BYTES:,}. Name one of its folders or files."
        )
    contents = {path: _content(path) for path in events}
    folders = sorted({path.parent for path in events})
    if len(folders) > 1:
        tags = {parent: _tags(content for path, content in contents.items() if path.parent == parent) for parent in folders}
        folders = [parent for parent in folders if _choose(tags[parent], loss, LOSS_NAMES)]
        if len(folders) != 1:
            names = wording.listed(map(str, folders or tags), _MOST_NAMES)
            raise LossesError(f"{folder} has event files of several runs. Received: {names}. Name one of these folders.")
    chosen = [(path, content) for path, content in contents.items() if path.parent == folders[0]]
    return _from_events(chosen, str(folder), loss)


def _tags(contents: Iterable[bytes]) -> list[str]:
    try:
        return list(dict.fromkeys(scalar.tag for content in contents for scalar in event_files.scalars(content)))
    except EventFileError:
        return []


def _from_events(contents: Sequence[tuple[Path, bytes]], source: str, loss: str | None) -> Curve:
    points: dict[str, list[tuple[int, float, str]]] = {}
    for path, content in contents:
        try:
            for place, scalar in enumerate(event_files.scalars(content), 1):
                points.setdefault(scalar.tag, []).append((scalar.step, scalar.value, f"{path.name}, scalar {place}"))
        except EventFileError as error:
            raise LossesError(f"{path} is a damaged event file: {error}. Write it again.") from None
    tag = _chosen(list(points), loss, LOSS_NAMES, "tag", source)
    return _curve(source, points[tag], [], is_counted=False)


def parse(text: str, source: str, loss: str | None = None, step: str | None = None, *, printed: bool = False) -> Curve:
    """Read losses from a text: JSON lines, a JSON list of objects, the state of Hugging Face's Trainer, or CSV.

    Args:
        source: name of the file or command.
        loss: column of the loss, see `read`.
        step: column of the step.
        printed: whether it is the output of a command. Only its lines with a JSON object count.
    """
    start = text.lstrip()[:1]
    if not start:
        raise LossesError(f"{source} has no losses: it is empty. Write a line for each step, e.g. {_EXAMPLE}.")
    rows = list(_json_rows(text, source, printed=printed) if printed or start in "{[" else _csv_rows(text, source))
    names = list(dict.fromkeys(itertools.chain.from_iterable(row for _, row in rows)))
    if not rows:
        raise LossesError(
            f"{source} has no line with a JSON object. Print one for each step, e.g. {_EXAMPLE}, or use {{losses}}."
        )
    loss_name = _chosen(names, loss, LOSS_NAMES, "column", source)
    rows = [(place, row) for place, row in rows if row.get(loss_name) not in (None, "")]
    if not rows:
        raise LossesError(f"{source} has no value in the column {loss_name}. Name another with --loss.")
    step_name = None if step == LINES else step if step is not None else _choose(names, None, STEP_NAMES)
    if step_name is not None and step_name not in names:
        step_name = _chosen(names, step_name, STEP_NAMES, "column", source, option="--step")
    points = [
        (
            number if step_name is None else _step(row.get(step_name), step_name, source, place),
            _number(row[loss_name], loss_name, source, place),
            place,
        )
        for number, (place, row) in enumerate(rows, 1)
    ]
    epochs = [row.get(EPOCH_NAME) for _, row in rows] if EPOCH_NAME not in (loss_name, step_name) else []
    return _curve(source, points, epochs, is_counted=step_name is None)


_EXAMPLE = '{"step": 1, "loss": 0.7}'


def _json_rows(text: str, source: str, *, printed: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (place, object) of each line, or of each entry of a list."""
    if not printed and (entries := _whole_json(text)) is not None:
        for number, entry in enumerate(entries, 1):
            if not isinstance(entry, dict):
                raise LossesError(f"{source}, entry {number} is no object. Received: {wording.shortened(repr(entry), 60)}.")
            yield f"entry {number}", _flat(entry)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or (printed and not line.lstrip().startswith("{")):
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            if printed:
                continue
            received = wording.shortened(wording.one_line(line), 60)
            raise LossesError(
                f"{source}, line {number} is no JSON ({type(error).__name__}). Received: {received}. Write e.g. {_EXAMPLE}."
            ) from None
        if isinstance(values, dict):
            yield f"line {number}", _flat(values)
        elif not printed:
            received = wording.shortened(wording.one_line(line), 60)
            raise LossesError(f"{source}, line {number} is no object. Received: {received}. Write e.g. {_EXAMPLE}.")


def _whole_json(text: str) -> list[Any] | None:
    """Return the entries of a text that is one JSON list, or Trainer's state with its `log_history`. None: it is neither."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(values, dict):
        values = values.get("log_history")
    return values if isinstance(values, list) else None


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, those of an inner object under `outer/inner`."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= {f"{name}/{inner}": entry for inner, entry in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _csv_rows(text: str, source: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    first, _, _ = text.lstrip().partition("\n")
    delimiter = max(",;\t", key=first.count)
    try:
        reader = csv.DictReader(io.StringIO(text.lstrip()), delimiter=delimiter, skipinitialspace=True)
        names = list(reader.fieldnames or [])
        if len(set(names)) < len(names):
            raise LossesError(
                f"{source} has two columns of one name. Received: {wording.listed(names, _MOST_NAMES)}. Rename one."
            )
        for row in reader:
            yield f"line {reader.line_num}", {name: value for name, value in row.items() if isinstance(name, str)}
    except csv.Error as error:
        raise LossesError(
            f"{source} cannot be read as CSV ({error}). Write JSON lines or CSV with a line of headings."
        ) from None


def _choose(names: Sequence[str], given: str | None, usual: Sequence[str]) -> str | None:
    """Return the name that was given, or the first usual one in whatever case. None: there is none of them."""
    if given is not None:
        return given if given in names else None
    by_lower = {name.lower(): name for name in reversed(names)}
    return next((by_lower[name] for name in usual if name in by_lower), None)


def _chosen(
    names: Sequence[str], given: str | None, usual: Sequence[str], noun: str, source: str, option: str = "--loss"
) -> str:
    """Return the name of a column or tag. Where none fits, the error lists what is there."""
    if (name := _choose(names, given, usual)) is not None:
        return name
    candidates = [name for name in names if "loss" in name.lower()] if given is None else []
    if len(candidates) == 1:
        return candidates[0]
    there = wording.listed([wording.visible(name) for name in names], _MOST_NAMES)
    missing = f"no {noun} {given}" if given is not None else f"no {noun} that is surely the loss"
    raise LossesError(f"{source} has {missing}. Received: {there}. Name one of these with {option}.")


def _number(value: Any, name: str, source: str, place: str) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        received = wording.shortened(wording.one_line(repr(value)), 60)
        raise LossesError(f"{source}, {place}: {name} is no number. Received: {received}. Write a number.") from None


def _step(value: Any, name: str, source: str, place: str) -> int:
    number = math.nan if value in (None, "") else _number(value, name, source, place)
    if not number.is_integer() or abs(number) >= 2**63:
        received = wording.shortened(wording.one_line(repr(value)), 60)
        raise LossesError(
            f"{source}, {place}: {name} is no whole number. Received: {received}. Name another column with --step, or "
            f"count the lines: --step {LINES}."
        )
    return int(number)


def _curve(source: str, points: Sequence[tuple[int, float, str]], epochs: Sequence[Any], *, is_counted: bool) -> Curve:
    """Make a curve of (step, loss, place). Steps have to ascend."""
    for (step, _, place), (following, _, later_place) in itertools.pairwise(points):
        if following == step:
            raise LossesError(
                f"{source} has step {step} twice. Received: {place} and {later_place}. Let one process write the losses, and "
                "each run start a new file."
            )
        if following < step:
            raise LossesError(
                f"{source} has step {following} after step {step}. Received: {later_place}. If it holds several runs, keep "
                f"one. If the column starts again in each epoch, count the lines: --step {LINES}."
            )
    steps, losses, _ = zip(*points, strict=True)
    known = [float(epoch) for epoch in epochs if isinstance(epoch, (int, float, str)) and _is_number(epoch)]
    of_epochs = np.floor(known).astype(np.int64) if len(known) == len(points) else None
    return Curve(source, np.array(steps, np.int64), np.array(losses, np.float64), of_epochs, is_counted)


def _is_number(value: object) -> bool:
    try:
        return math.isfinite(float(str(value))) and abs(float(str(value))) < 2**53
    except ValueError:
        return False
