"""Decoded images, kept once on disk as an .npy array that any number of processes map into memory.

An entry is a folder, `decoded/<key>/`, that holds images.npy, labels.npy and entry.json. It is built beside its place
and moved there whole, under a lock, so that processes that start together decode once. What was torn or changed since
then is noticed and built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import filelock
import numpy as np
import platformdirs
from numpy.typing import NDArray

_ENTRY_VERSION = 1
_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a source says about its images, beside their pixels."""

    labels: NDArray[np.int64]
    """[N], class ids in the order of the images."""
    class_names: tuple[str, ...]
    split_sizes: Mapping[str, int]
    """Number of images in each of `train`, `validation`, `test`, in the order in which they lie, as far as the source
    has them; `{"all": N}` where it is not divided."""


@dataclass(frozen=True, kw_only=True)
class Decoded(Contents):
    """Every image of a source, as arrays."""

    images: NDArray[np.uint8]
    """[N, S, S, 3], read-only."""
    pixels_sha256: str
    """Over the bytes of `images`."""


class PixelFile:
    """An .npy file of uint8 [N, S, S, 3] that is filled row by row, in any order.

    Its writes are plain ones: through a memory map, a full disk would kill the process in place of raising.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._start = self._row_bytes = self._rows_missing = 0

    def allocate(self, count: int, size_px: int) -> None:
        """State the shape: `count` images of `size_px` by `size_px` pixels. Once, before the first write."""
        shape = (count, size_px, size_px, 3)
        np.lib.format.write_array_header_1_0(self._file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        self._start, self._row_bytes, self._rows_missing = self._file.tell(), size_px * size_px * 3, count

    def write(self, first_row: int, images: NDArray[np.uint8]) -> None:
        """Write uint8 [n, S, S, 3] to n rows from `first_row` on; each row is to be written once."""
        self._file.seek(self._start + first_row * self._row_bytes)
        self._file.write(np.ascontiguousarray(images).data)
        self._rows_missing -= len(images)

    def finish(self) -> None:
        """Push everything to the disk.

        Raises:
            RuntimeError: rows are missing.
        """
        if self._rows_missing or not self._row_bytes:
            raise RuntimeError(f"{self._rows_missing} images were never written to the cache.")
        self._file.flush()
        os.fsync(self._file.fileno())


def folder(cache_dir: str | None) -> Path:
    """Where decoded data and downloads are kept: `cache_dir`, else $CONVTWINS_CACHE, else the user's cache folder."""
    chosen = cache_dir or os.environ.get("CONVTWINS_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("convtwins")


def fetch(root: Path, key: str, build: Callable[[PixelFile], Contents]) -> Decoded:
    """Read an entry, and build it first where it is missing, torn or changed.

    Args:
        root: the cache folder; created where it is missing.
        key: names the content and how it is decoded; fit for a file name.
        build: writes every image to the PixelFile and returns the rest. Called at most once, under the entry's lock.

    Raises:
        OSError: the cache folder cannot be written.
    """
    entry = root / "decoded" / key
    decoded = _read(entry)
    if decoded is not None:
        return decoded
    entry.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(entry.parent / f"{key}.lock"):
        decoded = _read(entry)  # another process may have built it while this one waited
        if decoded is None:
            _build(entry, build)
            decoded = _read(entry)
    if decoded is None:
        raise OSError(f"{entry} cannot be read back after it was written")
    return decoded


def sha256_of_pixels(images: NDArray[np.uint8]) -> str:
    """SHA-256 over the bytes of an array in C order, without a copy of the whole."""
    digest = hashlib.sha256()
    rows = max(1, _CHUNK_BYTES // max(1, images[:1].nbytes))
    for first in range(0, len(images), rows):
        digest.update(np.ascontiguousarray(images[first : first + rows]).data)
    return digest.hexdigest()


def _build(entry: Path, build: Callable[[PixelFile], Contents]) -> None:
    partial = entry.parent / f"{entry.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
    partial.mkdir()
    try:
        with (partial / "images.npy").open("wb") as file:
            pixels = PixelFile(file)
            contents = build(pixels)
            pixels.finish()
        np.save(partial / "labels.npy", contents.labels)
        images: NDArray[np.uint8] = np.load(partial / "images.npy", mmap_mode="r")
        status = (partial / "images.npy").stat()
        record = {
            "version": _ENTRY_VERSION,
            "class_names": list(contents.class_names),
            "split_sizes": dict(contents.split_sizes),
            "images_shape": list(images.shape),
            "images_bytes": status.st_size,
            "images_mtime_ns": status.st_mtime_ns,
            "pixels_sha256": sha256_of_pixels(images),
            "labels_sha256": hashlib.sha256(contents.labels.tobytes()).hexdigest(),
        }
        (partial / "entry.json").write_text(json.dumps({"record": record, "sha256": _sha256_of_record(record)}), "utf-8")
        shutil.rmtree(entry, ignore_errors=True)  # torn or changed
        partial.rename(entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read(entry: Path) -> Decoded | None:
    """The entry, or None where it is missing, torn or changed."""
    try:
        stored: dict[str, Any] = json.loads((entry / "entry.json").read_text("utf-8"))
        record: dict[str, Any] = stored["record"]
        if stored["sha256"] != _sha256_of_record(record) or record["version"] != _ENTRY_VERSION:
            return None
        status = (entry / "images.npy").stat()
        if status.st_size != record["images_bytes"]:
            return None
        images: NDArray[np.uint8] = np.load(entry / "images.npy", mmap_mode="r", allow_pickle=False)
        labels: NDArray[np.int64] = np.load(entry / "labels.npy", allow_pickle=False)
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None
    if images.dtype != np.uint8 or list(images.shape) != record["images_shape"]:
        return None
    if labels.dtype != np.int64 or hashlib.sha256(labels.tobytes()).hexdigest() != record["labels_sha256"]:
        return None
    # To read all pixels at each start is too slow; a file that was written to, or copied here, has another time.
    if status.st_mtime_ns != record["images_mtime_ns"] and sha256_of_pixels(images) != record["pixels_sha256"]:
        return None
    labels.flags.writeable = False
    return Decoded(
        images=images,
        labels=labels,
        class_names=tuple(record["class_names"]),
        split_sizes=record["split_sizes"],
        pixels_sha256=record["pixels_sha256"],
    )


def _sha256_of_record(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
