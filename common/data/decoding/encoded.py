"""Image files packed into one file that all processes share."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.data.cache import SharedLock


@dataclass(frozen=True, eq=False)
class Encoded:
    """The image files of a split, one after another in one file that all processes share.

    Only the path and the columns are sent to another process, never the files' bytes.
    """

    path: Path
    """The packed file, in the cache folder."""
    offsets: NDArray[np.int64]
    """Start of each example's file, [N]."""
    sizes: NDArray[np.int64]
    """Size of each example's file in bytes, [N]."""
    decodes_identically: NDArray[np.bool_]
    """Whether every libjpeg decoder decodes the file to the canonical pixels, [N]. See `decode.examine`."""

    def __len__(self) -> int:
        return len(self.offsets)

    def content(self, index: int) -> bytes:
        """Read the bytes of one file. Bytes read through a map would count as this process's memory until it ends."""
        return os.pread(self._lock.descriptor, int(self.sizes[index]), int(self.offsets[index]))

    def take(self, ids: NDArray[np.int64]) -> Encoded:
        """Return some of the examples, in the order of `ids`."""
        selection = Encoded(self.path, self.offsets[ids], self.sizes[ids], self.decodes_identically[ids])
        selection.__dict__["_lock"] = self._lock  # so that the file cannot be pruned from here on
        return selection

    @cached_property
    def _lock(self) -> SharedLock:
        return SharedLock(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}
