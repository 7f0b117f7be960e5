"""Images that are read on access: rows of a larger array, or files that are decoded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from common.data import mapped
from common.data.cache import SharedLock
from common.data.dataset import Images
from common.data.decoding import decode
from common.data.decoding.encoded import Encoded

MAX_MAPPED_BYTES = 2**26
"""Largest size of a split that is mapped in each process, in bytes. A larger split is read row by row."""


class Rows(ABC):
    """Images that are read on access. An integer, a slice or integers index the first axis."""

    def __init__(self, ids: NDArray[np.int64], image_shape: tuple[int, ...]) -> None:
        self._ids = ids
        self.shape = (len(ids), *image_shape)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @abstractmethod
    def _read(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]: ...

    @abstractmethod
    def take(self, ids: NDArray[np.int64]) -> Self:
        """Select some of the images, without reading them."""

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: Any, /) -> NDArray[np.uint8]:
        ids = self._ids[index]
        images = self._read(np.atleast_1d(ids))
        return images if np.ndim(ids) else images[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("Rows cannot become an array without a copy. Received: copy False. Use None or True.")
        return np.asarray(self._read(self._ids), dtype)


class MappedRows(Rows):
    """Some rows of a mapped array, in any order. They are sent to another process as a reference to the file and their rows."""

    def __init__(self, base: NDArray[np.uint8], ids: NDArray[np.int64]) -> None:
        super().__init__(ids, base.shape[1:])
        self._base = base

    def _read(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        return self._reference.take(self._lock.descriptor, ids)

    @cached_property
    def _reference(self) -> mapped.Reference:
        reference = mapped.reference(self._base)
        assert reference is not None, "MappedRows takes arrays that are mapped"
        return reference

    @cached_property
    def _lock(self) -> SharedLock:
        return SharedLock(Path(self._reference.filename))

    def take(self, ids: NDArray[np.int64]) -> MappedRows:
        return MappedRows(self._base, self._ids[ids])

    def __getstate__(self) -> tuple[Any, NDArray[np.int64]]:
        return mapped.to_reference(self._base), self._ids

    def __setstate__(self, state: tuple[Any, NDArray[np.int64]]) -> None:
        self.__init__(mapped.from_reference(state[0]), state[1])


class DecodedFiles(Rows):
    """Canonical pixels of image files, decoded on each access."""

    def __init__(self, encoded: Encoded, image_size: int) -> None:
        super().__init__(np.arange(len(encoded)), (image_size, image_size, 3))
        self._encoded = encoded

    def _read(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        images = np.empty((len(ids), *self.shape[1:]), np.uint8)
        with decode.ignore_warnings():
            for position, index in enumerate(ids.tolist()):
                images[position] = decode.decode(self._encoded.content(index), self.shape[1])
        return images

    def take(self, ids: NDArray[np.int64]) -> DecodedFiles:
        return DecodedFiles(self._encoded.take(ids), self.shape[1])


def select_rows(array: NDArray[np.uint8], ids: NDArray[np.int64], *, max_mapped_bytes: int = MAX_MAPPED_BYTES) -> Images:
    """Return the rows `ids`, ascending, of an array, read-only.

    The result is a slice if they are consecutive and hold at most `max_mapped_bytes`. Else it is `MappedRows` of a mapped
    array, or a copy.
    """
    first = int(ids[0])
    fits = len(ids) * array[:1].nbytes <= max_mapped_bytes or not isinstance(array, np.memmap)
    if fits and int(ids[-1]) - first + 1 == len(ids):
        return array[first : first + len(ids)]
    if isinstance(array, np.memmap):
        return MappedRows(array, ids)
    rows = array[ids]
    rows.flags.writeable = False
    return rows
