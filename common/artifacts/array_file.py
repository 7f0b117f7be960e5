"""Safetensors files that are larger than memory: written and read one array at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors

_NAMES = {"float64": "F64", "float32": "F32", "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL"}
_HEADER_BYTES = 512
"""Bytes reserved in the header for each array's entry."""


def write(path: Path, arrays: Iterable[tuple[str, npt.NDArray[Any]]], max_arrays: int) -> None:
    """Write arrays one by one, as the iterable yields them. The file appears only when it is complete.

    Args:
        path: the safetensors file.
        arrays: (name, array). Names are unique.
        max_arrays: upper bound of their number, which the header reserves space for.
    """
    header: dict[str, dict[str, Any]] = {}
    header_bytes = 8 * -(-_HEADER_BYTES * (max_arrays + 1) // 8)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.seek(8 + header_bytes)
        end = 0
        for name, array in arrays:
            start, end = end, end + array.nbytes
            header[name] = {"dtype": _NAMES[array.dtype.name], "shape": array.shape, "data_offsets": [start, end]}
            file.write(np.ascontiguousarray(array).data)
        encoded = json.dumps(header).encode()
        if len(encoded) > header_bytes:
            raise ValueError(f"{path} has more arrays than expected, or their names are too long. Received: {len(header)}.")
        file.seek(0)
        file.write(
            header_bytes.to_bytes(8, "little") + encoded.ljust(header_bytes)
        )  # the format allows for spaces behind the header
    partial.replace(path)


class ArrayFile(Mapping[str, npt.NDArray[Any]]):
    """The arrays of a safetensors file, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._file: Any = safetensors.safe_open(path, "numpy")
        self._names = dict.fromkeys(self._file.keys())

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        return self._file.get_tensor(name)

    @cached_property
    def _folders(self) -> dict[str, list[str]]:
        """Names of arrays by each folder that contains them."""
        names_by_folder: dict[str, list[str]] = {}
        for name in self._names:
            for slash in re.finditer("/", name):
                names_by_folder.setdefault(name[: slash.end()], []).append(name)
        return names_by_folder

    def names_in(self, folder: str) -> list[str]:
        """Return the names that begin with `folder`, which ends with a slash. A file has tens of thousands, a folder few."""
        return self._folders.get(folder, [])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
