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
"""Parser of JSON into plain values. It raises ValueError for other text."""


_CHECKSUM = "sha256"


_CHECKSUM_PREFIX, _CHECKSUM_SUFFIX = f', "{_CHECKSUM}": "'.encode(), b'"}'
"""Bytes before and after the checksum, which is the last value of a result or of a line of events.jsonl."""


_PARTIAL = ".partial"
"""Suffix of files that are being written. Their names begin with a dot."""


def line_with_checksum(values: dict[str, Any]) -> bytes:
    """Return a line of JSON that ends with the checksum of its values."""
    text = _canonical(values).encode()
    return text.removesuffix(b"}") + _CHECKSUM_PREFIX + sha256_hex(text) + _CHECKSUM_SUFFIX


def without_checksum(line: bytes) -> bytes | None:
    """Return a line of `line_with_checksum` without its checksum. None if any byte differs, even if the values do not.

    This is faster than `pop_valid_checksum`, which writes all values again.
    """
    text, _, rest = line.rpartition(_CHECKSUM_PREFIX)
    whole = text + b"}"
    return whole if rest == sha256_hex(whole) + _CHECKSUM_SUFFIX else None


def parse_json(content: bytes) -> Any:
    """Parse a JSON file from an untrusted source. Raises ValueError for other content, however deep it nests."""
    text = content.decode("utf-8-sig")  # some editors write a byte order mark
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deep") from None
    if "\\u" in text:
        json.dumps(values, ensure_ascii=False).encode()  # refuses halves of letters
    return values


def with_checksum(text: str) -> str:
    """Return a JSON object's text with the SHA-256 of its values added, which reveals a change of any of them."""
    values = json.loads(text)
    return json.dumps({**values, _CHECKSUM: digest(values)}, indent=1)


def pop_valid_checksum(values: Any) -> TypeGuard[dict[str, Any]]:
    """Remove the checksum of `values`, and return whether it is there and fits them."""
    if not isinstance(values, dict):
        return False
    fields = cast(dict[str, Any], values)
    return fields.pop(_CHECKSUM, None) == digest(fields)


def digest(values: dict[str, Any]) -> str:
    """Return the SHA-256 of plain JSON values. The order of their names does not matter."""
    return sha256_hex(_canonical(values).encode()).decode()


def _canonical(values: dict[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def sha256_hex(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


@contextlib.contextmanager
def name_file_in_errors(path: Path) -> Generator[None]:
    """Add the file's name to an OSError that has none, as the one of `write` on a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def is_disk_full(error: BaseException) -> bool:
    """Return whether a disk is full, or a file has reached its size limit. Such an error needs no traceback."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def remedy(error: OSError, otherwise: str) -> str:
    """Return a sentence that says how to mend a failed write: free space if that may help, or `otherwise`, a half sentence."""
    may_be_full = error.errno is None or is_disk_full(error)
    return f"Free space, or {otherwise}." if may_be_full else f"{otherwise[:1].upper()}{otherwise[1:]}."


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file atomically, even if the power fails meanwhile. Then the former file may stay.

    Raises:
        OSError: it cannot be written, or it is a folder, a device, a pipe or a socket.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = _new_partial(path, path.parent)
    temporary = Path(name)
    try:
        with name_file_in_errors(path), os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_writable(path: Path) -> None:
    """Try whether `write_atomically` can write a file, before work whose result it is. Nothing stays, and no folder is made.

    Raises:
        OSError: it cannot be written.
    """
    folder = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    handle, name = _new_partial(path, folder)
    os.close(handle)
    Path(name).unlink()


def _new_partial(path: Path, folder: Path) -> tuple[int, str]:
    """Make a partial file for a path. Returns (handle, name)."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "It is there, and is no plain file", str(path))
    return tempfile.mkstemp(dir=folder, prefix=f".{path.name}.", suffix=_PARTIAL)


def remove_partial_files(folder: Path) -> None:
    """Remove partial files that a killed `write_atomically` left in or below a folder. Nobody may write there meanwhile."""
    for temporary in folder.rglob(f".*{_PARTIAL}"):
        temporary.unlink(missing_ok=True)
