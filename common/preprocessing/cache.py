"""Results of long work on data, kept on disk and shared by every process.

An entry is a folder, `<kind>/<key>/`, of one large file to be mapped into memory (`data`), small arrays (`arrays.npz`)
and a record (`entry.json`). It is built beside its place and moved there whole, under a lock, so that processes that
start together do the work once. What was torn or changed since then is noticed and built again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import filelock
import numpy as np
import platformdirs
from numpy.typing import NDArray

_ENTRY_VERSION = 2


@dataclass(frozen=True)
class Side:
    """What an entry holds beside its large file."""

    arrays: Mapping[str, NDArray[Any]]
    """Read-only."""
    facts: Mapping[str, Any]
    """Anything that JSON holds."""


@dataclass(frozen=True)
class Entry(Side):
    data: Path
    """The large file."""


class PixelFile:
    """An .npy file of uint8 [N, S, S, 3] that is filled row by row, in any order.

    Its writes are plain ones: through a memory map, a full disk would kill the process in place of raising.
    """

    def __init__(self, file: BinaryIO, count: int, size_px: int) -> None:
        shape = (count, size_px, size_px, 3)
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        self._file = file
        self.row_bytes = size_px * size_px * 3
        self._start, self._rows_missing = file.tell(), count

    def write(self, first_row: int, images: NDArray[np.uint8]) -> None:
        """Write uint8 [n, S, S, 3] to n rows from `first_row` on; each row is to be written once."""
        self._file.seek(self._start + first_row * self.row_bytes)
        self._file.write(np.ascontiguousarray(images).data)
        self._rows_missing -= len(images)

    def finish(self) -> None:
        """State that all is written.

        Raises:
            RuntimeError: rows are missing.
        """
        if self._rows_missing:
            raise RuntimeError(f"{self._rows_missing} images were never written to the cache.")


def folder(cache_dir: str | None) -> Path:
    """Where decoded data and downloads are kept: `cache_dir`, else $CONVTWINS_CACHE, else the user's cache folder."""
    chosen = cache_dir or os.environ.get("CONVTWINS_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("convtwins")


def key(**identity: Any) -> str:
    """The name of an entry: SHA-256 over all that decides what is in it."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def fetch(root: Path, kind: str, key: str, build: Callable[[BinaryIO], Side]) -> Entry:
    """Read an entry, and build it first where it is missing, torn or changed.

    Args:
        root: the cache folder; created where it is missing.
        kind: of entries, the folder that they share.
        key: see `key`.
        build: writes the large file and returns the rest. Called at most once, under the entry's lock.

    Raises:
        OSError: the cache folder cannot be written.
    """
    place = root / kind / key
    entry = _read(place)
    if entry is not None:
        return entry
    place.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(place.parent / f"{key}.lock"):
        entry = _read(place)  # another process may have built it while this one waited
        if entry is None:
            _build(place, build)
            entry = _read(place)
    if entry is None:
        raise OSError(f"{place} cannot be read back after it was written")
    return entry


def _build(place: Path, build: Callable[[BinaryIO], Side]) -> None:
    partial = place.parent / f"{place.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
    partial.mkdir()
    try:
        with (partial / "data").open("wb") as file:
            side = build(file)
            file.flush()
            os.fsync(file.fileno())
        arrays = io.BytesIO()
        np.savez(arrays, allow_pickle=False, **side.arrays)
        (partial / "arrays.npz").write_bytes(arrays.getvalue())
        status = (partial / "data").stat()
        record = {
            "version": _ENTRY_VERSION,
            "facts": dict(side.facts),
            "arrays_sha256": hashlib.sha256(arrays.getvalue()).hexdigest(),
            "data_bytes": status.st_size,
            "data_mtime_ns": status.st_mtime_ns,
            "data_sha256": _sha256_of_file(partial / "data"),
        }
        (partial / "entry.json").write_text(json.dumps({"record": record, "sha256": _sha256_of_record(record)}), "utf-8")
        shutil.rmtree(place, ignore_errors=True)  # torn or changed
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read(place: Path) -> Entry | None:
    """The entry, or None where it is missing, torn or changed."""
    try:
        stored: dict[str, Any] = json.loads((place / "entry.json").read_text("utf-8"))
        record: dict[str, Any] = stored["record"]
        if stored["sha256"] != _sha256_of_record(record) or record["version"] != _ENTRY_VERSION:
            return None
        content = (place / "arrays.npz").read_bytes()
        if hashlib.sha256(content).hexdigest() != record["arrays_sha256"]:
            return None
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays: dict[str, NDArray[Any]] = dict(file)
        status = (place / "data").stat()
        if status.st_size != record["data_bytes"]:
            return None
        # To read all of it at each start is too slow; a file that was written to, or copied here, has another time.
        if status.st_mtime_ns != record["data_mtime_ns"] and _sha256_of_file(place / "data") != record["data_sha256"]:
            return None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None
    for array in arrays.values():
        array.flags.writeable = False
    return Entry(arrays, record["facts"], place / "data")


def _sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of_record(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
