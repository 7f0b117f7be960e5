"""An array that is mapped from a file is sent to another process as a reference to the file, not as bytes."""

from __future__ import annotations

import errno
import itertools
import os
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

_Sent = TypeVar("_Sent")


class Reference(NamedTuple):
    """Part of a file that holds an array in C order."""

    filename: str
    dtype: str
    offset: int
    shape: tuple[int, ...]

    def open(self) -> npt.NDArray[Any]:
        """The array, mapped and read-only."""
        return np.memmap(self.filename, self.dtype, "r", self.offset, self.shape)

    @property
    def row_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape[1:], dtype=np.int64))

    def rows(self, start: int, stop: int) -> Reference:
        """A slice of the first axis."""
        return self._replace(offset=self.offset + start * self.row_bytes, shape=(stop - start, *self.shape[1:]))

    def take(self, descriptor: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Read some rows. Rows read through the map would count as this process's memory until it ends.

        Args:
            ids: [N], 0 or larger. Consecutive ones are read at once.

        Raises:
            OSError: the file is shorter than the array.
        """
        rows = np.empty((len(ids), *self.shape[1:]), self.dtype)
        content, size = rows.reshape(-1).view(np.uint8).data, self.row_bytes
        starts = np.flatnonzero(np.diff(ids, prepend=ids[:1]) != 1)  # 0 is one of them
        places = (self.offset + ids[starts].astype(np.int64) * size).tolist()
        for (first, last), place in zip(itertools.pairwise([*starts.tolist(), len(ids)]), places, strict=True):
            left = content[first * size : last * size]
            while left:
                if not (count := os.preadv(descriptor, [left], place)):
                    raise OSError(errno.EIO, "The file ends inside the array", self.filename)
                left, place = left[count:], place + count
        return rows


def reference(array: object) -> Reference | None:
    """Where an array is in its file. None if it is no contiguous part of a mapped file."""
    if not isinstance(array, np.memmap) or array.filename is None or not array.flags.c_contiguous:
        return None
    whole: Any = array
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    # The offset of the part is that of the whole plus their distance in memory.
    distance = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return Reference(str(array.filename), array.dtype.str, whole.offset + distance, array.shape)


def portable(array: _Sent) -> _Sent | Reference:
    """What to send: a reference if there is one, else the array itself."""
    return reference(array) or array


def opened(sent: npt.NDArray[Any] | Reference) -> npt.NDArray[Any]:
    """The array that `portable` sent."""
    return sent.open() if isinstance(sent, Reference) else sent
