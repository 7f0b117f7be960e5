"""Stored records, written and read back in one way: parse, check the checksum, the version, then every field."""

from __future__ import annotations

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
"""Of a record. An epoch takes 600 bytes of a result, and 1,000 classes take 8 MB: 400,000 epochs fit beside them.

A plan of 10,000 repeats of 20 rows takes 60 MB if each run was made again.
"""


class RecordError(UserError, ValueError):
    """A stored record cannot be read: missing, torn, changed since, or of another version. The message names its path."""


def write(path: Path, record: BaseModel) -> None:
    """Replace a JSON file by a record with its checksum, whole or not at all.

    Raises:
        OSError: it cannot be written. The former file stays.
    """
    atomic_files.write_atomically(path, atomic_files.with_checksum(record.model_dump_json()))


def read(
    path: Path,
    model: type[_Record],
    *,
    what: str,
    again: str,
    name_it: str = "",
    version: int | None = None,
    raises: type[Exception] = RecordError,
) -> _Record:
    """Read a record back.

    Args:
        what: a noun for it without article.
        again: a sentence that says how to get it anew.
        name_it: a sentence that says what to do if there is no such file. Default: `again`.
        version: the `schema_version` that the file must have. None: it has none.

    Raises:
        RecordError, or `raises`: no such file, no plain file, larger than MOST_BYTES, torn, changed since it was
            written, without its checksum, or of another version.
    """
    try:
        content = plain_file.read(path, MOST_BYTES)
        # A line that stands as it was written needs no second look at each value.
        whole = atomic_files.without_checksum(content)
        if whole is not None and (record := _of_version(whole, model, version)) is not None:
            return record
        values = atomic_files.parse_json(content)
        if not atomic_files.pop_valid_checksum(values):
            raise raises(changed(path, again))
        found = values.get("schema_version")
        if version is not None and found != version:
            raise raises(other_version(path, "schema_version", found, version, again))
        return model.model_validate(values)
    except raises:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise raises(missing(path, what, name_it or again)) from None
    except PlainFileError as error:
        raise raises(_message(f"{error}.", again)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise raises(torn(path, what, why(error), again)) from None


def _of_version(text: bytes, model: type[_Record], version: int | None) -> _Record | None:
    """None where `read` has to say what is wrong."""
    try:
        record = model.model_validate_json(text)
    except pydantic.ValidationError:
        return None
    said = "schema_version" in record.model_fields_set and getattr(record, "schema_version", None) == version
    return record if version is None or said else None


def missing(path: Path, what: str, again: str) -> str:
    """The message of an error about a file that does not exist, or whose folder does not, or is a file."""
    if path.parent.is_file():
        return _message(f"{path.parent} is a file, not the folder of a {what}.", again)
    if not path.parent.exists():
        return _message(f"There is no folder {path.parent}.", again)
    if path.exists():
        return _message(f"{path} is no {what}: it is no plain file.", again)
    return _message(f"{path.parent} holds no {what}: there is no file {path.name}.", again)


def torn(path: Path, what: str, fault: str, again: str) -> str:
    """The message of an error about a file that is cut short, or whose values are not those of such a record."""
    return _message(f"{path} is not a whole {what} ({fault}).", again)


def why(error: Exception) -> str:
    """An error as the fault of a file; of several wrong fields the first ones."""
    said = str(error)
    if isinstance(error, pydantic.ValidationError):
        faults = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
        said = "; ".join(faults[:_MOST_FAULTS] + ["..."] * (len(faults) > _MOST_FAULTS))
    return f"{type(error).__name__}: {said}"


def changed(path: Path, again: str) -> str:
    """The message of an error about a file that was changed, or was never written by this project."""
    return _message(f"{path} is not as this suite wrote it: its checksum is missing or does not fit.", again)


def other_version(path: Path, field: str, received: object, needed: object, again: str) -> str:
    """The message of an error about a file that another version of this project has written."""
    return _message(f"{path} has another {field}. Received: {received!r}, needed: {needed!r}.", again)


def _message(wrong: str, again: str) -> str:
    return f"{wrong} {again}".rstrip()
