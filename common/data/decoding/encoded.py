"""Image files packed into one file that all processes share."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.data.cache import Held


@dataclass(frozen=True, eq=False)
class Encoded:
    """The image files of a split, one after another in one file that all processes share.

    Only the path and the columns are sent to another process, never the files' bytes.
    """

    path: Path
    """The packed file, in the cache folder."""
    offsets: NDArray[np.int64]
    """[N], start of each example's file."""
    sizes: NDArray[np.int64]
    """[N], bytes."""
    plain: NDArray[np.bool_]
    """[N], whether every libjpeg decoder decodes the file to the canonical pixels (see `decode.examine`)."""

    def __len__(self) -> int:
        return len(self.offsets)

    def content(self, index: int) -> bytes:
        """The bytes of one file. Bytes read through a map would count as this process's memory until it ends."""
        return os.pread(self._held.descriptor, int(self.sizes[index]), int(self.offsets[index]))

    def take(self, ids: NDArray[np.int64]) -> Encoded:
        """Some of the examples, in the order of `ids`."""
        taken = Encoded(self.path, self.offsets[ids], self.sizes[ids], self.plain[ids])
        taken.__dict__["_held"] = self._held  # so that the file cannot be pruned from here on
        return taken

    @cached_property
    def _held(self) -> Held:
        return Held(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}
