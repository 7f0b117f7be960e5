"""Arrays and their metadata in one safetensors file with a checksum over both."""

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

from common.artifacts import atomic_files, records
from common.artifacts.records import RecordError

_CHECKSUM = "sha256"


def write(path: Path, words: Mapping[str, str], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Replace a file, whole or not at all.

    Args:
        path: of the file. Its folder is made.

    Raises:
        OSError: it cannot be written. The former file stays.
    """
    ordered = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    metadata = {**words, _CHECKSUM: _digest(words, ordered)}
    atomic_files.write_atomically(path, safetensors.numpy.save(ordered, metadata))


def read(
    path: Path, *, what: str, again: str = "", version: str | None = None
) -> tuple[dict[str, str], dict[str, npt.NDArray[Any]]]:
    """The metadata and the arrays of a file.

    Args:
        what: a noun for it without article.
        again: a sentence that says how to get it anew.
        version: the `version` that its metadata must have. None: it has none.

    Raises:
        RecordError: no such file, torn, changed since `write` wrote it, or of another version.
    """
    if not path.is_file():
        raise RecordError(records.missing(path, what, again))
    try:
        with safetensors.safe_open(path, framework="np") as file:
            words: dict[str, str] = file.metadata() or {}
            arrays: dict[str, npt.NDArray[Any]] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
    except (OSError, TypeError, safetensors.SafetensorError) as error:  # TypeError: a dtype that NumPy does not have
        raise RecordError(records.torn(path, what, records.why(error), again)) from None
    if words.pop(_CHECKSUM, None) != _digest(words, arrays):
        raise RecordError(records.changed(path, again))
    if version is not None and words.get("version") != version:
        raise RecordError(records.other_version(path, "version", words.get("version"), version, again))
    return words, arrays


def _digest(words: Mapping[str, str], arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    sha256 = hashlib.sha256(json.dumps(words, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        sha256.update(f"{name} {array.dtype} {array.shape}".encode())
        sha256.update(array.tobytes())
    return sha256.hexdigest()
