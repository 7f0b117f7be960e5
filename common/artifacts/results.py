"""What a run leaves behind: a line per epoch as it happens, and one atomic, versioned result that seals it."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pydantic

from common import spec
from common.artifacts.atomic_files import is_unchanged, line_with_checksum, parsed, without_checksum, write_atomically
from common.artifacts.event_log import EVENTS_FILE
from common.artifacts.schema import SCHEMA_VERSION, ResultError, RunResult
from common.spec import Spec

RESULT_FILE = "result.json"
TRACE_FILE = "trace.json.gz"
BEST_FILE = "best.safetensors"
"""The weights of the best epoch, where the spec keeps them; see `common.artifacts.trained`."""


def save(result: RunResult, directory: Path) -> Path:
    """Seal a run: write result.json whole or not at all."""
    path = directory / RESULT_FILE
    write_atomically(path, to_line(result))
    return path


def to_line(result: RunResult) -> bytes:
    """A result as its file holds it: one line, so that its checksum can be held against the text as it is."""
    return line_with_checksum(json.loads(result.model_dump_json()))


def load(path: Path) -> RunResult:
    """Read a sealed result.

    Raises:
        ResultError: the file is torn, changed since it was written, no result, or of another schema version.
    """
    try:
        content = path.read_bytes()
        whole = without_checksum(content)
        if whole is not None and (result := _of_this_version(whole)) is not None:
            return result
        values = parsed(content)
        if not is_unchanged(values):
            raise ResultError(f"{path} was changed since it was written: its checksum does not fit. Run it again.")
        version = values.get("schema_version") if isinstance(values, dict) else None
        if version != SCHEMA_VERSION:
            raise ResultError(
                f"{path} has another schema_version. Received: {version!r}, needed: {SCHEMA_VERSION}. "
                "Run it again with this version."
            )
        values["spec"] = _recorded_spec(json.dumps(values["spec"]))
        return RunResult.model_validate(values)
    except ResultError:
        raise
    except (OSError, KeyError, ValueError, RecursionError) as error:
        raise ResultError(f"{path} is not a whole result ({type(error).__name__}: {error}). Run it again.") from None


def _of_this_version(text: bytes) -> RunResult | None:
    """None where `load` has to say what is wrong with it."""
    try:
        result = RunResult.model_validate_json(text)
    except pydantic.ValidationError:
        return None
    return result if "schema_version" in result.model_fields_set and result.schema_version == SCHEMA_VERSION else None


@functools.lru_cache
def _recorded_spec(text: str) -> Spec:
    """Judged once for all repeats of a row."""
    return spec.from_json(text)


def clear(directory: Path) -> None:
    """Remove what an earlier run left, so that nobody takes it for this one's."""
    for name in (RESULT_FILE, EVENTS_FILE, TRACE_FILE, BEST_FILE):
        (directory / name).unlink(missing_ok=True)
