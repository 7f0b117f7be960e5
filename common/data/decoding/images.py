"""Images of a split without an array of their own: rows of a larger array, or files that are decoded on access."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from common.data import mapped
from common.data.cache import Held
from common.data.dataset import Images
from common.data.decoding import decode
from common.data.decoding.encoded import Encoded

MOST_IN_MEMORY = 2**26
"""Bytes of a split that may be mapped in each process. A larger split is read row by row."""


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
        """Some of them. Nothing is read."""

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


class Gathered(Rows):
    """Some rows of a mapped array, in any order. They are sent to another process as a reference to the file and their rows."""

    def __init__(self, whole: NDArray[np.uint8], ids: NDArray[np.int64]) -> None:
        super().__init__(ids, whole.shape[1:])
        self._whole = whole

    def _read(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        return self._place.take(self._held.descriptor, ids)

    @cached_property
    def _place(self) -> mapped.Reference:
        found = mapped.reference(self._whole)
        assert found is not None, "Gathered takes arrays that are mapped"
        return found

    @cached_property
    def _held(self) -> Held:
        return Held(Path(self._place.filename))

    def take(self, ids: NDArray[np.int64]) -> Gathered:
        return Gathered(self._whole, self._ids[ids])

    def __getstate__(self) -> tuple[Any, NDArray[np.int64]]:
        return mapped.portable(self._whole), self._ids

    def __setstate__(self, state: tuple[Any, NDArray[np.int64]]) -> None:
        self.__init__(mapped.opened(state[0]), state[1])


class Decoded(Rows):
    """Canonical pixels of image files, decoded on each access."""

    def __init__(self, encoded: Encoded, image_size: int) -> None:
        super().__init__(np.arange(len(encoded)), (image_size, image_size, 3))
        self._encoded = encoded

    def _read(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        images = np.empty((len(ids), *self.shape[1:]), np.uint8)
        with decode.silent():
            for place, index in enumerate(ids.tolist()):
                images[place] = decode.decode(self._encoded.content(index), self.shape[1])
        return images

    def take(self, ids: NDArray[np.int64]) -> Decoded:
        return Decoded(self._encoded.take(ids), self.shape[1])


def rows_of(whole: NDArray[np.uint8], ids: NDArray[np.int64]) -> Images:
    """Rows `ids`, ascending, of an array. Read-only.

    A slice if they are consecutive and hold at most MOST_IN_MEMORY bytes. Else `Gathered` of a mapped array, or a copy.
    """
    first = int(ids[0])
    small = len(ids) * whole[:1].nbytes <= MOST_IN_MEMORY or not isinstance(whole, np.memmap)
    if small and int(ids[-1]) - first + 1 == len(ids):
        return whole[first : first + len(ids)]
    if isinstance(whole, np.memmap):
        return Gathered(whole, ids)
    rows = whole[ids]
    rows.flags.writeable = False
    return rows
