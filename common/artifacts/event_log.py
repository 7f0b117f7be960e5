"""events.jsonl: a line for each epoch as it ends, so that a kill loses no finished epoch."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pydantic

from common.artifacts.atomic_files import ANY, line_with_checksum, name_file_in_errors, pop_valid_checksum, without_checksum
from common.artifacts.schema import EpochRecord
from common.machine import plain_file

EVENTS_FILE = "events.jsonl"
_MOST_BYTES = 2**28
"""Size limit of an events file in bytes. An epoch takes 600 bytes, so 400,000 of them fit."""
MOST_DAMAGED = 100
"""Number of lines that `damaged_events` returns at most. A kill damages one line. A wrong file has millions."""


def append_event(directory: Path, event: str, **values: Any) -> None:
    """Add one line to events.jsonl and push it to the operating system, so that a kill loses no finished epoch.

    Raises:
        OSError: it cannot be written. The file stays as it was.
    """
    path, line = directory / EVENTS_FILE, line_with_checksum({"event": event, **values}) + b"\n"
    with name_file_in_errors(path), path.open("ab+", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 1, 0))
        if file.read(1) not in (b"", b"\n"):  # torn by a kill: keep this line apart from it
            line = b"\n" + line
        try:
            while line:
                line = line[file.write(line) :]  # where the disk is nearly full, a part of it may fit
        except OSError:
            file.truncate(end)
            raise


def append_end(directory: Path, status: str, **values: Any) -> None:
    """Add the last event of a run. If that fails, the run ends without it: its result says more, and stands."""
    try:
        append_event(directory, "end", status=status, **values)
    except OSError as error:
        print(f"The last event is left out: {error}.", file=sys.stderr)


def read_events(directory: Path) -> list[dict[str, Any]]:
    """Read the intact lines of events.jsonl. Lines torn by a kill or changed since are left out. See `damaged_events`.

    Raises:
        PlainFileError: it is no plain file, or too large.
    """
    return [event for line in _lines(directory) if (event := _event(line)) is not None]


def damaged_events(directory: Path) -> list[int]:
    """Return the numbers, from 1, of the first MOST_DAMAGED lines of events.jsonl that `read_events` leaves out.

    Raises:
        PlainFileError: it is no plain file, or too large.
    """
    lines = enumerate(_lines(directory), 1)
    numbers = (number for number, line in lines if without_checksum(line) is None and _event(line) is None)
    return list(islice(numbers, MOST_DAMAGED))


def _lines(directory: Path) -> Iterator[bytes]:
    """Iterate over the lines that are not empty."""
    try:
        content = plain_file.read(directory / EVENTS_FILE, _MOST_BYTES)
    except FileNotFoundError:
        return iter(())
    return (line[0] for line in re.finditer(rb"[^\n]+", content))


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = ANY.validate_json(line)  # several times as fast on short lines
    except ValueError:
        return None
    return event if pop_valid_checksum(event) else None


def read_epochs(directory: Path) -> list[EpochRecord]:
    """Read the epochs from events.jsonl, of a run that may have died after them."""
    return epochs(read_events(directory))


def epochs(events: Iterable[Mapping[str, Any]]) -> list[EpochRecord]:
    """Return the epochs among events."""
    records: list[EpochRecord] = []
    for event in events:
        if event.get("event") == "epoch":
            try:
                records.append(EpochRecord.model_validate({name: event.get(name) for name in EpochRecord.model_fields}))
            except pydantic.ValidationError:
                continue  # a line torn by a kill may still be JSON
    return records
