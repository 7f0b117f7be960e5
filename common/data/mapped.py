"""References to memory-mapped arrays. Another process receives the reference to the file, not its bytes."""

from __future__ import annotations

import errno
import itertools
import os
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

_Array = TypeVar("_Array")


class Reference(NamedTuple):
    """Part of a file that holds an array in C order."""

    filename: str
    dtype: str
    offset: int
    shape: tuple[int, ...]

    def open(self) -> npt.NDArray[Any]:
        """Map the array, read-only."""
        return np.memmap(self.filename, self.dtype, "r", self.offset, self.shape)

    @property
    def row_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape[1:], dtype=np.int64))

    def rows(self, start: int, stop: int) -> Reference:
        """Return a reference to a slice of the first axis."""
        return self._replace(offset=self.offset + start * self.row_bytes, shape=(stop - start, *self.shape[1:]))

    def take(self, descriptor: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Read some rows. Rows read through the map would count as this process's memory until it ends.

        Args:
            descriptor: descriptor of the open file.
            ids: rows [N], 0 or larger. Consecutive ones are read at once.

        Raises:
            OSError: the file is shorter than the array.
        """
        rows = np.empty((len(ids), *self.shape[1:]), self.dtype)
        content, size = rows.reshape(-1).view(np.uint8).data, self.row_bytes
        starts = np.flatnonzero(np.diff(ids, prepend=ids[:1]) != 1)  # 0 is one of them
        offsets = (self.offset + ids[starts].astype(np.int64) * size).tolist()
        for (first, last), offset in zip(itertools.pairwise([*starts.tolist(), len(ids)]), offsets, strict=True):
            remaining = content[first * size : last * size]
            while remaining:
                if not (count := os.preadv(descriptor, [remaining], offset)):
                    raise OSError(errno.EIO, "The file ends inside the array", self.filename)
                remaining, offset = remaining[count:], offset + count
        return rows


def reference(array: object) -> Reference | None:
    """Return the reference to an array in its file. None if it is no contiguous part of a mapped file."""
    if not isinstance(array, np.memmap) or array.filename is None or not array.flags.c_contiguous:
        return None
    base: Any = array
    while isinstance(base.base, np.memmap):
        base = base.base
    # The offset of the part is that of the whole plus their distance in memory.
    distance = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return Reference(str(array.filename), array.dtype.str, base.offset + distance, array.shape)


def to_reference(array: _Array) -> _Array | Reference:
    """Return the reference to an array if there is one, else the array itself."""
    return reference(array) or array


def from_reference(value: npt.NDArray[Any] | Reference) -> npt.NDArray[Any]:
    """Return the array of a result of `to_reference`."""
    return value.open() if isinstance(value, Reference) else value
