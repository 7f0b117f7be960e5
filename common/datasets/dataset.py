"""What a run trains on and is scored on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class DataRefused(ValueError):
    """Data was refused. The message names the file or field, the value received, and the fix."""


MAX_NAMED = 20
"""Files or classes that one refusal names."""


def listed(names: Sequence[str]) -> str:
    """`a, b, c`, or after twenty of them `... and 7 more`."""
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


@dataclass(frozen=True, eq=False, kw_only=True)
class Split:
    """Examples of one split, in manifest order; both arrays are read-only."""

    images: NDArray[np.uint8]
    """[N, S, S, 3], RGB; a memory map of the cache where the split is one whole stretch of it."""
    labels: NDArray[np.int64]
    """[N], class ids."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Three splits, none of them empty, that share no example."""

    name: str
    class_names: tuple[str, ...]
    """By class id."""
    train: Split
    validation: Split
    test: Split
    content_hash: str
    """SHA-256 over the pixels of the source, labels, class names and the ids of the examples in each split: equal
    where the same arrays are trained on."""
    image_size: int
    """Height and width in pixels."""
    notes: tuple[str, ...]
    """What a reader of the results must know of the data, e.g. which split was drawn from train."""
