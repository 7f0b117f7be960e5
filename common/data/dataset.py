"""The data types of a data set, and how it is refused."""

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


class BadFile(DataRefused):
    """One file is no usable image. It has one of `decode.PROBLEMS` and a detail, but not the name of the file."""

    def __init__(self, problem: str, detail: str = "") -> None:
        super().__init__(f"{problem} ({detail})" if detail else problem)
        self.kind, self.detail = problem, detail


MAX_NAMED = 20
"""At most so many files or classes are named in one refusal."""


def listed(names: Sequence[str]) -> str:
    """`a, b, c`, after twenty names `... and 7 more`."""
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def listed_below(faults: Sequence[str], total: int) -> str:
    """`Received:` and a line for each fault, after twenty `and 7 more`. `faults` may hold fewer than `total`."""
    more = [f"and {total - MAX_NAMED:,} more"] if total > MAX_NAMED else []
    return "\n  ".join(["Received:", *faults[:MAX_NAMED], *more])


@dataclass(frozen=True, eq=False, kw_only=True)
class Arrays:
    """The content of a source of arrays."""

    images: NDArray[np.uint8]
    """[N, H, W, 3], at the source's own size."""
    labels: NDArray[np.int64]
    """[N], class ids."""
    class_names: tuple[str, ...]
    split_sizes: Mapping[str, int]
    """As in Examples."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Examples:
    """What splits depend on. The same for arrays and files."""

    labels: NDArray[np.int64]
    """[N], class ids."""
    class_names: tuple[str, ...]
    split_sizes: Mapping[str, int]
    """Number of examples in those of `train`, `validation`, `test` that the source has, in the order of the examples.
    `{"all": N}` if it is not divided."""
    pixel_sha256: NDArray[np.uint8]
    """[N, 32], see `decode.sha256`."""
    names: Sequence[str] | None = None
    """[N], for refusals. None if examples have no names."""


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
class Split:
    """Examples of one split, in manifest order. Read-only."""

    images: Images
    """uint8 [N, S, S, 3], RGB. A part of the cache's memory map, or rows of its file. If `encoded` is to be read instead, files
    that are decoded on access. For the digits an array."""
    labels: NDArray[np.int64]
    """[N], class ids."""
    encoded: Encoded | None = None
    """The image files of the same examples, if they are to be decoded in each epoch."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Known:
    """What is known of a data set without its images."""

    name: str
    class_names: tuple[str, ...]
    """By class id."""
    content_hash: str
    """SHA-256 of the pixels and labels of each split, the class names and the image size. It is the same however the data are
    loaded."""
    image_size: int
    """Height and width in pixels. Images of another size are resized by the rule of `decode.resize`."""
    notes: tuple[str, ...]
    """Facts on the data for readers of the results, e.g. which split was drawn from train."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Description(_Known):
    """A Dataset without its examples."""

    sizes: Mapping[str, int]
    """Number of examples in each of `train`, `validation`, `test`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset(_Known):
    """Three splits that share no example. None is empty."""

    train: Split
    validation: Split
    test: Split


@dataclass(frozen=True, eq=False, kw_only=True)
class FileSplit:
    """Examples of one split as image files, in the order of the Split of the same data."""

    encoded: Encoded
    labels: NDArray[np.int64]
    """[N], class ids."""
    rows: NDArray[np.int64]
    """[N], rows of the manifest of the source."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False, kw_only=True)
class Files(_Known):
    """A Dataset whose images are still files, example for example."""

    train: FileSplit
    validation: FileSplit
    test: FileSplit
