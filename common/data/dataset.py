"""The data types of a data set, and the errors that refuse it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from common.data.decoding.encoded import Encoded
from common.errors import UserError


class DataRefused(UserError, ValueError):
    """The data cannot be used. The message names the file or field, the value received and the fix."""

    exit_code = 4


class BadImageError(DataRefused):
    """One file is no usable image. It has one of `decode.PROBLEMS` and a detail, but not the name of the file."""

    def __init__(self, problem: str, detail: str = "") -> None:
        super().__init__(f"{problem} ({detail})" if detail else problem)
        self.kind, self.detail = problem, detail


MAX_NAMED = 20
"""Largest number of files or classes that are named in one refusal."""


def join_names(names: Sequence[str]) -> str:
    """Join names as `a, b, c`, and end with `and 7 more` after twenty."""
    suffix = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + suffix


def list_faults(faults: Sequence[str], total: int) -> str:
    """Return `Received:` and a line per fault, and end with `and 7 more` after twenty. `faults` may hold fewer than `total`."""
    suffix = [f"and {total - MAX_NAMED:,} more"] if total > MAX_NAMED else []
    return "\n  ".join(["Received:", *faults[:MAX_NAMED], *suffix])


@dataclass(frozen=True, eq=False, kw_only=True)
class LabeledExamples:
    """The examples of a source, as far as splits depend on them."""

    labels: NDArray[np.int64]
    """Class ids, [N]."""
    class_names: tuple[str, ...]
    split_sizes: Mapping[str, int]
    """Number of examples in those of `train`, `validation`, `test` that the source has, in the order of the examples.
    `{"all": N}` if it is not divided."""
    pixel_sha256: NDArray[np.uint8]
    """SHA-256 of each image, [N, 32], see `decode.sha256`."""
    names: Sequence[str]
    """Name of each example, [N], for refusals."""


class Images(Protocol):
    """uint8 [N, S, S, 3], RGB: an array, or an object that reads its images when its first axis is indexed."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def __array__(self) -> NDArray[Any]: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class DatasetSplit:
    """Examples of one split, in manifest order. Read-only."""

    images: Images
    """Pixels, uint8 [N, S, S, 3], RGB: a part of the cache's memory map, rows of its file, or an array for the digits. If
    `encoded` is to be read instead, files that are decoded on access."""
    labels: NDArray[np.int64]
    """Class ids, [N]."""
    encoded: Encoded | None = None
    """The image files of the same examples, if they are to be decoded in each epoch."""
    rows: NDArray[np.int64] | None = None
    """Rows of the source's manifest, [N], ascending. Only `load_files` gives them: a run does without their memory."""

    @property
    def files(self) -> Encoded:
        """Return `encoded` of a split that `load_files` has loaded."""
        assert self.encoded is not None
        return self.encoded

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False, kw_only=True)
class _DatasetInfo:
    """The description of a data set without its images."""

    name: str
    class_names: tuple[str, ...]
    """Name of each class, by class id."""
    content_hash: str
    """SHA-256 of the pixels and labels of each split, the class names and the image size. It is the same however the data are
    loaded."""
    image_size: int
    """Height and width in pixels. Images of another size are resized by the rule of `decode.resize`."""
    notes: tuple[str, ...]
    """Facts on the data for readers of the results, e.g. which split was drawn from train."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DatasetDescription(_DatasetInfo):
    """A Dataset without its examples."""

    sizes: Mapping[str, int]
    """Number of examples in each of `train`, `validation`, `test`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset(_DatasetInfo):
    """Three splits that share no example. None is empty."""

    train: DatasetSplit
    validation: DatasetSplit
    test: DatasetSplit
