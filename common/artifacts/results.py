"""The files of a run: one line for each epoch as it ends, and a versioned result once the run is finished."""

from __future__ import annotations

import json
from pathlib import Path

from common.artifacts import records
from common.artifacts.atomic_files import is_disk_full, line_with_checksum, write_atomically
from common.artifacts.event_log import EVENTS_FILE
from common.artifacts.schema import SCHEMA_VERSION, ResultError, RunResult

RESULT_FILE = "result.json"
TRACE_FILE = "trace.json.gz"
BEST_FILE = "best.safetensors"
"""File with the weights of the best epoch, if the spec keeps them; see `common.artifacts.trained`."""


def save(result: RunResult, directory: Path) -> Path:
    """Write result.json with its checksum, atomically. This finishes a run."""
    path = directory / RESULT_FILE
    write_atomically(path, to_line(result))
    return path


def unwritten_message(error: OSError) -> str:
    """Return the message for a result that `save` could not write."""
    return f"The result cannot be written: {error}." + (" Free space, or raise the limit." if is_disk_full(error) else "")


def to_line(result: RunResult) -> bytes:
    """Return a result as its file stores it: one line, so that its checksum can be compared with the text itself."""
    return line_with_checksum(json.loads(result.model_dump_json()))


def load(path: Path) -> RunResult:
    """Read the result of a finished run."""
    return records.read(
        path,
        RunResult,
        kind="result",
        remedy="Run it again.",
        version=SCHEMA_VERSION,
        raises=ResultError,
    )


def clear(directory: Path) -> None:
    """Remove the files of an earlier run, so that nobody takes them for those of this one."""
    for name in (RESULT_FILE, EVENTS_FILE, TRACE_FILE, BEST_FILE):
        (directory / name).unlink(missing_ok=True)
