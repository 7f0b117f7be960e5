"""Arrays with words about them in one safetensors file, written whole, and read only where both are as they were written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from common.artifacts import atomic_files

_CHECKSUM = "sha256"


class SealError(ValueError):
    """A file is not there, torn, or changed since it was written; the message begins with its path."""


def write(path: Path, words: Mapping[str, str], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Replace a file, whole or not at all.

    Args:
        path: of the file; its folder is made.
        words: what is to be known of the arrays, by name.
        arrays: by name.

    Raises:
        OSError: it cannot be written; the one before stands.
    """
    ordered = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    metadata = {**words, _CHECKSUM: _digest(words, ordered)}
    atomic_files.write_atomically(path, safetensors.numpy.save(ordered, metadata))


def read(path: Path) -> tuple[dict[str, str], dict[str, npt.NDArray[Any]]]:
    """The words and the arrays of a file.

    Raises:
        SealError: it is none that `write` has written, or not as it was then.
    """
    if not path.is_file():
        raise SealError(f"{path} is not there, or no file")
    try:
        with safetensors.safe_open(path, framework="np") as file:
            words: dict[str, str] = file.metadata() or {}
            arrays: dict[str, npt.NDArray[Any]] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
    except (OSError, TypeError, safetensors.SafetensorError) as error:  # TypeError: a dtype that NumPy does not have
        raise SealError(f"{path} is torn, or no safetensors file ({error})") from None
    if words.pop(_CHECKSUM, None) != _digest(words, arrays):
        raise SealError(f"{path} was changed since it was written: its checksum does not fit")
    return words, arrays


def _digest(words: Mapping[str, str], arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    sha256 = hashlib.sha256(json.dumps(words, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        sha256.update(f"{name} {array.dtype} {array.shape}".encode())
        sha256.update(array.tobytes())
    return sha256.hexdigest()
