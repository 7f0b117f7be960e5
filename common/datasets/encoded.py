"""Image files as they are, packed into one file that any number of processes share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Encoded:
    """The image files of a split as they are, one after another in one file that any number of processes map into memory.

    It travels to another process as its path and its four columns, never with the files' bytes.
    """

    path: Path
    """The packed file, in the cache folder."""
    offsets: NDArray[np.int64]
    """[N], where each example's file starts."""
    sizes: NDArray[np.int64]
    """[N], bytes."""
    plain: NDArray[np.bool_]
    """[N], whether the file is a JPEG that any libjpeg decoder turns into the canonical pixels (see `decode.is_plain`)."""

    def __len__(self) -> int:
        return len(self.offsets)

    def content(self, index: int) -> bytes:
        start = int(self.offsets[index])
        return self._mapped[start : start + int(self.sizes[index])].tobytes()

    def take(self, ids: NDArray[np.int64]) -> Encoded:
        """Some of the examples, in the order of `ids`."""
        return Encoded(self.path, self.offsets[ids], self.sizes[ids], self.plain[ids])

    @cached_property
    def _mapped(self) -> NDArray[np.uint8]:
        return np.memmap(self.path, np.uint8, mode="r")

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}
