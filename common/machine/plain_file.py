"""Reading a whole file that may come from anybody. It always ends, and takes no more memory than its limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

_MIN_READ_BYTES = 2**16
"""Smallest number of bytes per read. Files of the kernel have size 0."""


class PlainFileError(OSError):
    """A file is a pipe, a device or a folder, or larger than its limit. The message names it."""

    def __init__(self, path: str | Path, code: int, fault: str) -> None:
        super().__init__(code, f"it {fault}", str(path))
        self.fault = fault
        """Message without the file's name, e.g. `is no plain file`."""

    def __str__(self) -> str:
        return f"{self.filename} {self.fault}"

    def __reduce__(self) -> tuple[Any, ...]:  # from Dask's workers it comes as a pickle
        return type(self), (self.filename, self.errno, self.fault)


def read(path: str | Path, max_bytes: int, *, follow: bool = True) -> bytes:
    """Return the content of a file.

    Args:
        path: path of the file.
        max_bytes: a larger file is refused.
        follow: whether it may be a link.

    Raises:
        PlainFileError: it is no plain file, or too large.
        OSError: it cannot be read, or is a link that is not followed.
    """
    # Without O_NONBLOCK, a pipe would wait for a writer.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise PlainFileError(path, errno.EINVAL, "is no plain file")
        parts: list[bytes] = []
        remaining = max_bytes + 1
        if status.st_size <= max_bytes:
            while remaining and (part := os.read(file, min(remaining, max(status.st_size + 1, _MIN_READ_BYTES)))):
                parts.append(part)
                remaining -= len(part)
        if status.st_size > max_bytes or not remaining:  # it may have grown meanwhile
            raise PlainFileError(path, errno.EFBIG, f"has more than {_size(max_bytes)}")
        return b"".join(parts)
    finally:
        os.close(file)


def _size(num_bytes: int) -> str:
    return f"{num_bytes:,} bytes" if num_bytes % 2**20 else f"{num_bytes // 2**20:,} MiB"
