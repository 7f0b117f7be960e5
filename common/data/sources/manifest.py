"""The manifest of a tree of images: one row for each file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

STRAY = ""
"""Split and class of a file outside of the layout."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Manifest:
    """All visible files of a source, by split, then by class and path or in the format's order. Each column has N values.

    If a file has a problem, unknown values in the columns after `problems` are 0 or an empty text.
    """

    paths: tuple[str, ...]
    """POSIX paths below the root of the tree."""
    splits: tuple[str, ...]
    """Split of each file: `train`, `validation` or `test`. `all` if the tree is not divided, STRAY outside of the layout."""
    classes: tuple[str, ...]
    """Name of each file's class folder. STRAY outside of the layout."""
    problems: tuple[str, ...]
    """Reason why the file is no usable image: one of `decode.PROBLEMS`. Empty for a usable one."""
    details: tuple[str, ...]
    """Details of the problem."""
    formats: tuple[str, ...]
    """Format in Pillow's words, e.g. `JPEG`."""
    modes: tuple[str, ...]
    """Mode in Pillow's words, e.g. `RGB`, `L`, `CMYK`."""
    file_bytes: NDArray[np.int64]
    widths_px: NDArray[np.int64]
    """Width in pixels, after the rotation of EXIF."""
    heights_px: NDArray[np.int64]
    plain: NDArray[np.bool_]
    """Whether every libjpeg decoder decodes the file to the canonical pixels, see `decode.examine`."""
    file_sha256: NDArray[np.uint8]
    """SHA-256 of the bytes of the file, [N, 32]."""
    pixel_sha256: NDArray[np.uint8]
    """SHA-256 of the canonical pixels and their shape, [N, 32], at the image's own size. Equal for exact duplicates."""
    offsets: NDArray[np.int64]
    """Start of a usable file's bytes in the packed file of the cache."""
    empty_folders: tuple[tuple[str, str], ...]
    """(split, class) of class folders that hold no file."""
    hidden: tuple[str, ...]
    """Folders and files that hide images, as in `Listing`."""
    class_names: tuple[str, ...]
    """Name of each class, by class id, if the source's format defines them. Else empty: they are those of the folders."""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def usable_rows(self) -> NDArray[np.int64]:
        """Rows of the usable images, ascending."""
        return np.flatnonzero([not problem for problem in self.problems])

    @property
    def split_names(self) -> list[str]:
        """Sorted names of the splits. `all` if the tree is not divided."""
        return sorted({*self.splits, *(split for split, _ in self.empty_folders)} - {STRAY})

    def columns(self) -> dict[str, Sequence[Any] | NDArray[Any]]:
        """Return all columns of N values by name, for a table. Hashes are hexadecimal text."""
        table: dict[str, Any] = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if field.name.endswith("sha256"):
                column = [row.tobytes().hex() for row in column]
            table[field.name] = column
        for name in ("empty_folders", "hidden", "class_names", "offsets"):
            del table[name]
        return table

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all fields as arrays without Python objects. Texts follow one another, each ended by a zero byte."""
        arrays: dict[str, NDArray[Any]] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "empty_folders":
                value = tuple(text for pair in value for text in pair)
            if isinstance(value, tuple):
                value = np.frombuffer("".join(f"{text}\0" for text in value).encode(), np.uint8)
            arrays[field.name] = value
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Manifest:
        values: dict[str, Any] = {}
        interned: dict[str, str] = {}  # few different splits, classes and formats are repeated in many rows
        for field in fields(cls):
            value: Any = arrays[field.name]
            if str(field.type).startswith("tuple"):
                value = tuple(interned.setdefault(text, text) for text in value.tobytes().decode().split("\0")[:-1])
            if field.name == "empty_folders":
                value = tuple(zip(value[::2], value[1::2], strict=True))
            values[field.name] = value
        return cls(**values)
