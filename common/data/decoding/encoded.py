"""Image files as they are, packed into one file that any number of processes share."""

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
    """The image files of a split as they are, one after another in one file that any number of processes share.

    It travels to another process as its path and its four columns, never with the files' bytes.
    """

    path: Path
    """The packed file, in the cache folder."""
    offsets: NDArray[np.int64]
    """[N], where each example's file starts."""
    sizes: NDArray[np.int64]
    """[N], bytes."""
    plain: NDArray[np.bool_]
    """[N], whether the file is a JPEG that any libjpeg decoder turns into the canonical pixels (see `decode.examine`)."""

    def __len__(self) -> int:
        return len(self.offsets)

    def content(self, index: int) -> bytes:
        """The bytes of one file, read; what is mapped would count as this process's memory for ever after."""
        return os.pread(self._held.descriptor, int(self.sizes[index]), int(self.offsets[index]))

    def take(self, ids: NDArray[np.int64]) -> Encoded:
        """Some of the examples, in the order of `ids`."""
        taken = Encoded(self.path, self.offsets[ids], self.sizes[ids], self.plain[ids])
        taken.__dict__["_held"] = self._held  # from here on the file cannot be pruned
        return taken

    @cached_property
    def _held(self) -> Held:
        return Held(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}
