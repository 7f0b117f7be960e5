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


def write(path: Path, metadata: Mapping[str, str], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Replace a file atomically.

    Args:
        path: the file. Its folder is created.

    Raises:
        OSError: it cannot be written. The former file stays.
    """
    ordered = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    metadata_with_checksum = {**metadata, _CHECKSUM: _digest(metadata, ordered)}
    atomic_files.write_atomically(path, safetensors.numpy.save(ordered, metadata_with_checksum))


def read(
    path: Path, *, kind: str, remedy: str = "", version: str | None = None
) -> tuple[dict[str, str], dict[str, npt.NDArray[Any]]]:
    """Read the metadata and the arrays of a file.

    Args:
        kind: a noun for the file, without article.
        remedy: a sentence that says how to create the file again.
        version: the `version` that its metadata must have. None: it has none.
    """
    if not path.is_file():
        raise RecordError(records.missing_message(path, kind, remedy))
    try:
        with safetensors.safe_open(path, framework="np") as file:
            metadata: dict[str, str] = file.metadata() or {}
            arrays: dict[str, npt.NDArray[Any]] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
    except (OSError, TypeError, safetensors.SafetensorError) as error:  # TypeError: a dtype that NumPy does not have
        raise RecordError(records.torn_message(path, kind, records.describe_error(error), remedy)) from None
    if metadata.pop(_CHECKSUM, None) != _digest(metadata, arrays):
        raise RecordError(records.changed_message(path, remedy))
    if version is not None and metadata.get("version") != version:
        raise RecordError(records.version_message(path, "version", metadata.get("version"), version, remedy))
    return metadata, arrays


def _digest(metadata: Mapping[str, str], arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    sha256 = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        sha256.update(f"{name} {array.dtype} {array.shape}".encode())
        sha256.update(array.tobytes())
    return sha256.hexdigest()
