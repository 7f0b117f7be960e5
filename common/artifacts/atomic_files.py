"""Files that are written whole or not at all, and JSON that carries its checksum.

A checksum protects against accidents only. Who changes a file on purpose can write a new one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeGuard, cast

from pydantic import TypeAdapter

ANY: TypeAdapter[Any] = TypeAdapter(Any)
"""Reads JSON into plain values. Other text is a ValueError."""


_CHECKSUM = "sha256"


_SEAL, _END = f', "{_CHECKSUM}": "'.encode(), b'"}'
"""Around the checksum, which is the last value of a result or of a line of events.jsonl."""


_PARTIAL = ".partial"
"""End of the names of files that are being written. Their names begin with a point."""


def line_with_checksum(values: dict[str, Any]) -> bytes:
    """A line of JSON that ends with the checksum of its values."""
    text = _canonical(values).encode()
    return text.removesuffix(b"}") + _SEAL + sha256_hex(text) + _END


def without_checksum(line: bytes) -> bytes | None:
    """A line of `line_with_checksum` without its checksum. None if its letters differ, even if its values do not.

    This is faster than `is_unchanged`, which writes all values again.
    """
    text, _, rest = line.rpartition(_SEAL)
    whole = text + b"}"
    return whole if rest == sha256_hex(whole) + _END else None


def parsed(content: bytes) -> Any:
    """The values of a JSON file from anybody. Other content is a ValueError, however deep it nests."""
    text = content.decode("utf-8-sig")  # some editors write a byte order mark
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deep") from None
    if "\\u" in text:
        json.dumps(values, ensure_ascii=False).encode()  # refuses halves of letters
    return values


def with_checksum(text: str) -> str:
    """A JSON object's text with the SHA-256 of its values, which reveals a change of any of them."""
    values = json.loads(text)
    return json.dumps({**values, _CHECKSUM: digest(values)}, indent=1)


def is_unchanged(values: Any) -> TypeGuard[dict[str, Any]]:
    """Whether values are as they were written, with their checksum. Removes it."""
    if not isinstance(values, dict):
        return False
    own = cast(dict[str, Any], values)
    return own.pop(_CHECKSUM, None) == digest(own)


def digest(values: dict[str, Any]) -> str:
    """SHA-256 of plain JSON values, whatever the order of their names."""
    return sha256_hex(_canonical(values).encode()).decode()


def _canonical(values: dict[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def sha256_hex(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


@contextlib.contextmanager
def naming(path: Path) -> Generator[None]:
    """Let an error of writing name the file. On a full disk the file can be opened, and the error of `write` names none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def is_lack_of_room(error: BaseException) -> bool:
    """Whether a disk is full, or a file larger than it may be. Such an error is of the machine, and needs no traceback."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def remedy(error: OSError, otherwise: str) -> str:
    """What to do about what cannot be written: free space if that may help, or `otherwise`, the second half of a sentence."""
    may_be_full = error.errno is None or is_lack_of_room(error)
    return f"Free space, or {otherwise}." if may_be_full else f"{otherwise[:1].upper()}{otherwise[1:]}."


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file, whole or not at all, even if the power fails meanwhile. Then the former file may stay.

    Raises:
        OSError: it cannot be written, or it is a folder, a device, a pipe or a socket.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "It is there, and is no plain file", str(path))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PARTIAL)
    temporary = Path(name)
    try:
        with naming(path), os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sweep(folder: Path) -> None:
    """Remove what a kill during `write_atomically` left in a folder and below it. Nobody may write there meanwhile."""
    for temporary in folder.rglob(f".*{_PARTIAL}"):
        temporary.unlink(missing_ok=True)
