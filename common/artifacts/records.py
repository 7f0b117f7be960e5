"""Stored records, written and read back in one way: parse, check the checksum, the version, then every field."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TypeVar

import pydantic
from pydantic import BaseModel

from common.artifacts import atomic_files
from common.errors import UserError
from common.machine import plain_file
from common.machine.plain_file import PlainFileError

_Record = TypeVar("_Record", bound=BaseModel)
_MOST_FAULTS = 3
MOST_BYTES = 2**28
"""Size limit of a record in bytes. An epoch takes 600 bytes of a result, and 1,000 classes take 8 MB: 400,000 epochs fit too.

A plan of 10,000 repeats of 20 rows takes 60 MB if each run was made again.
"""


class RecordError(UserError, ValueError):
    """A stored record cannot be read: missing, torn, changed since, or of another version. The message names its path."""


def write(path: Path, record: BaseModel) -> None:
    """Replace a JSON file atomically by a record with its checksum.

    Raises:
        OSError: it cannot be written. The former file stays.
    """
    atomic_files.write_atomically(path, atomic_files.with_checksum(record.model_dump_json()))


def read(
    path: Path,
    model: type[_Record],
    *,
    kind: str,
    remedy: str,
    missing_remedy: str = "",
    version: int | None = None,
    older_versions: Collection[int] = (),
    raises: type[Exception] = RecordError,
) -> _Record:
    """Read a record back.

    Args:
        kind: a noun for the record, without article.
        remedy: a sentence that says how to create the record again.
        missing_remedy: a sentence that says what to do if there is no such file. Default: `remedy`.
        version: the `schema_version` that the record has. None: it has none.
        older_versions: those that the file may have instead. The model makes the fields of `version` of them.

    Raises:
        RecordError, or `raises`: no such file, no plain file, larger than MOST_BYTES, torn, changed since it was
            written, without its checksum, or of another version.
    """
    try:
        content = plain_file.read(path, MOST_BYTES)
        # A line that stands as it was written needs no second look at each value.
        whole = atomic_files.without_checksum(content)
        if whole is not None and (record := _parse_version(whole, model, version)) is not None:
            return record
        values = atomic_files.parse_json(content)
        if not atomic_files.pop_valid_checksum(values):
            raise raises(changed_message(path, remedy))
        received_version = values.get("schema_version")
        if version is not None and received_version not in (version, *older_versions):
            raise raises(version_message(path, "schema_version", received_version, version, remedy))
        return model.model_validate(values)
    except raises:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise raises(missing_message(path, kind, missing_remedy or remedy)) from None
    except PlainFileError as error:
        raise raises(_message(f"{error}.", remedy)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise raises(torn_message(path, kind, describe_error(error), remedy)) from None


def _parse_version(text: bytes, model: type[_Record], version: int | None) -> _Record | None:
    """Parse a record whose checksum fits. None if `read` must look for the fault."""
    try:
        record = model.model_validate_json(text)
    except pydantic.ValidationError:
        return None
    version_matches = "schema_version" in record.model_fields_set and getattr(record, "schema_version", None) == version
    return record if version is None or version_matches else None


def missing_message(path: Path, kind: str, remedy: str) -> str:
    """Return the error message for a file that does not exist, whose folder does not, or whose folder is a file."""
    if path.parent.is_file():
        return _message(f"{path.parent} is a file, not the folder of a {kind}.", remedy)
    if not path.parent.exists():
        return _message(f"There is no folder {path.parent}.", remedy)
    if path.exists():
        return _message(f"{path} is no {kind}: it is no plain file.", remedy)
    return _message(f"{path.parent} holds no {kind}: there is no file {path.name}.", remedy)


def torn_message(path: Path, kind: str, fault: str, remedy: str) -> str:
    """Return the error message for a file that is cut short, or whose values are not those of such a record."""
    return _message(f"{path} is not a whole {kind} ({fault}).", remedy)


def describe_error(error: Exception) -> str:
    """Describe an error of parsing a file in words. Of several wrong fields, the first ones are named."""
    text = str(error)
    if isinstance(error, pydantic.ValidationError):
        faults = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors(include_url=False)]
        text = "; ".join(faults[:_MOST_FAULTS] + ["..."] * (len(faults) > _MOST_FAULTS))
    return f"{type(error).__name__}: {text}"


def changed_message(path: Path, remedy: str) -> str:
    """Return the error message for a file that was changed, or was never written by this project."""
    return _message(f"{path} is not as this suite wrote it: its checksum is missing or does not fit.", remedy)


def version_message(path: Path, field: str, received: object, needed: object, remedy: str) -> str:
    """Return the error message for a file that another version of this project has written."""
    return _message(f"{path} has another {field}. Received: {received!r}, needed: {needed!r}.", remedy)


def _message(problem: str, remedy: str) -> str:
    return f"{problem} {remedy}".rstrip()
