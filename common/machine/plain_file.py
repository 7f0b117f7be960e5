"""A file from anybody, read whole. Whatever lies in its place, reading it ends, and takes no more memory than its limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

_MOST_AT_ONCE = 2**16
"""Bytes that are asked for at once, at the least: files of the kernel say that they are empty."""


class PlainFileError(OSError):
    """A file is a pipe, a device or a folder, or larger than its limit. The message names it."""

    def __init__(self, path: str | Path, code: int, fault: str) -> None:
        super().__init__(code, f"it {fault}", str(path))
        self.fault = fault
        """The message without the name: `is no plain file`."""

    def __str__(self) -> str:
        return f"{self.filename} {self.fault}"

    def __reduce__(self) -> tuple[Any, ...]:  # from Dask's workers it comes as a pickle
        return type(self), (self.filename, self.errno, self.fault)


def read(path: str | Path, most_bytes: int, *, follow: bool = True) -> bytes:
    """The content of a file.

    Args:
        most_bytes: a larger file is refused.
        follow: whether it may be a link.

    Raises:
        PlainFileError: it is no plain file, or too large.
        OSError: it cannot be read, or is a link that is not followed.
    """
    # Without O_NONBLOCK, a pipe would wait for a writer.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise PlainFileError(path, errno.EINVAL, "is no plain file")
        parts: list[bytes] = []
        left = most_bytes + 1
        if found.st_size <= most_bytes:
            while left and (part := os.read(file, min(left, max(found.st_size + 1, _MOST_AT_ONCE)))):
                parts.append(part)
                left -= len(part)
        if found.st_size > most_bytes or not left:  # it may have grown meanwhile
            raise PlainFileError(path, errno.EFBIG, f"has more than {_size(most_bytes)}")
        return b"".join(parts)
    finally:
        os.close(file)


def _size(num_bytes: int) -> str:
    return f"{num_bytes:,} bytes" if num_bytes % 2**20 else f"{num_bytes // 2**20:,} MiB"
