"""Decoded pixels in the cache: one sparse file for each source and image size.

The file of such an entry has room for all images of a source. It holds those that were ever asked for. Later ones are written
into it under the entry's lock. A row counts as stored once its SHA-256 is recorded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.data import cache, threads
from common.data.cache import EntryMetadata, SharedLock


class PixelFile:
    """Some rows of an .npy file of uint8 [N, S, S, 3], written in any order.

    Writes are plain file writes: through a memory map, a full disk would kill the process instead of raising an error.

    Args:
        file: open for reading and writing, its header written.
        rows: int64 [n], rows of the file that receive images 0..n - 1.
        size_px: S.
    """

    def __init__(self, file: BinaryIO, rows: NDArray[np.int64], size_px: int) -> None:
        self.row_bytes = size_px * size_px * 3
        self.sha256 = np.zeros((len(rows), 32), np.uint8)
        """SHA-256 of each row that was written."""
        self._file, self._rows, self._rows_missing = file, rows, len(rows)
        file.seek(0)
        _read_header(file)
        self._start = file.tell()

    def write(self, first: int, images: NDArray[np.uint8]) -> None:
        """Write images `first`, `first` + 1, ...: uint8 [n, S, S, 3]. Write each image once."""
        for number, image in enumerate(images, first):
            pixels = np.ascontiguousarray(image).data
            self._file.seek(self._start + int(self._rows[number]) * self.row_bytes)
            self._file.write(pixels)
            self.sha256[number] = np.frombuffer(hashlib.sha256(pixels).digest(), np.uint8)
        self._rows_missing -= len(images)

    def finish(self) -> None:
        """Check that all rows were written.

        Raises:
            RuntimeError: rows are missing.
        """
        if self._rows_missing:
            raise RuntimeError(f"{self._rows_missing} images were never written to the cache.")


@dataclass(frozen=True, eq=False)
class PixelCache:
    """The decoded pixels of one source at one size."""

    entry_path: Path
    """Folder of the entry."""
    shape: tuple[int, ...]
    """Shape (N, S, S, 3) of all images of the source."""
    facts: Mapping[str, Any]
    """Facts of the entry, for listings."""

    def missing(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows in `ids` that `fetch` would write, ascending. If pixels were changed, all of them."""
        return _missing(self._read(), ids)

    def fetch(self, ids: NDArray[np.int64], write: Callable[[NDArray[np.int64], PixelFile], None]) -> NDArray[np.uint8]:
        """Map the pixels. First write the rows of `ids` that are missing or changed.

        Args:
            ids: int64 [n], the rows that are needed.
            write: receives some of `ids`, ascending, and the file to write their images to. It is called at most once, under
                the entry's lock.

        Returns:
            uint8 [N, S, S, 3], mapped and read-only. Rows that were never asked for may be zeros.

        Raises:
            OSError: the cache folder cannot be written.
        """
        stored = self._read()
        if len(_missing(stored, ids)):
            self.entry_path.parent.mkdir(parents=True, exist_ok=True)
            with cache.lock(self.entry_path):
                stored = self._read(repair=True)  # another process may have written them while this one waited
                missing = _missing(stored, ids)
                if len(missing):
                    self._write(missing, write, None if stored is None else stored.metadata.arrays["sha256"].copy())
                    stored = self._read()
        if stored is None:
            raise OSError(f"{self.entry_path} cannot be read back after it was written")
        cache.mark_used(self.entry_path / "entry.json")
        return stored.images

    def _write(
        self,
        missing: NDArray[np.int64],
        write: Callable[[NDArray[np.int64], PixelFile], None],
        sha256: NDArray[np.uint8] | None,
    ) -> None:
        """Write rows into the entry in place, or into a new entry if there are no `sha256` of stored rows."""
        with cache.staging_folder(self.entry_path) if sha256 is None else nullcontext(self.entry_path) as folder:
            if sha256 is None:
                sha256 = np.zeros((self.shape[0], 32), np.uint8)
                with (folder / "data").open("wb") as file:
                    header = {"descr": "|u1", "fortran_order": False, "shape": self.shape}
                    np.lib.format.write_array_header_1_0(file, header)
                    file.truncate(file.tell() + int(np.prod(self.shape, dtype=np.int64)))
            for stale_file in folder.glob(".*"):  # of a record that was being written
                stale_file.unlink(missing_ok=True)
            with (folder / "data").open("r+b") as file:
                rows = PixelFile(file, missing, self.shape[1])
                write(missing, rows)
                rows.finish()
                cache.sync(file)
            sha256[missing] = rows.sha256
            cache.write_metadata(folder, _metadata(sha256, self.facts))

    def _read(self, *, repair: bool = False) -> _Stored | None:
        """Read the pixels. Returns None if they are missing or corrupt.

        Args:
            repair: if the file was written to or copied, read it and drop the rows that differ from their record. Without
                `repair` such a file counts as corrupt. Set it only under the entry's lock.
        """
        try:
            lock = SharedLock(self.entry_path / "data")
            metadata, _, is_untouched = cache.read_metadata(self.entry_path, lock)
            images = _map_file(self.entry_path / "data")
            if images.shape != self.shape or metadata.facts["images"] != self.shape[0] or not (is_untouched or repair):
                return None
            if not is_untouched:
                metadata = _metadata(_verified_hashes(images, metadata.arrays["sha256"]), metadata.facts)
                cache.write_metadata(self.entry_path, metadata)
        except cache.CORRUPT_ENTRY_ERRORS:
            return None
        return _Stored(images, metadata)


class _Stored(NamedTuple):
    images: NDArray[np.uint8]
    """The whole file, mapped. The map holds the shared lock."""
    metadata: EntryMetadata
    """Arrays `sha256` [N, 32], zeros for a missing row, and `known` [N]. `known` is separate: a million hashes fill 32 MB."""


def _missing(stored: _Stored | None, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    if stored is None:
        return np.unique(ids)
    if stored.metadata.facts["stored"] == len(stored.images):  # so that no array is read
        return ids[:0]
    return np.unique(ids[~stored.metadata.arrays["known"][ids]])


def _metadata(sha256: NDArray[np.uint8], facts: Mapping[str, Any]) -> EntryMetadata:
    known = np.any(sha256, axis=1)
    return EntryMetadata({"sha256": sha256, "known": known}, {**facts, "stored": int(known.sum()), "images": len(sha256)})


def _verified_hashes(images: NDArray[np.uint8], sha256: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the recorded SHA-256 of unchanged rows, and zeros for the others."""

    def hash_row(row: int) -> bytes:
        return hashlib.sha256(images[row].data).digest()

    known = np.flatnonzero(sha256.any(axis=1))
    verified = np.zeros_like(sha256)
    for row, digest in zip(known, threads.ordered(hash_row, known.tolist()), strict=True):
        if digest == sha256[row].tobytes():
            verified[row] = sha256[row]
    return verified


def _map_file(path: Path) -> NDArray[np.uint8]:
    """Map an .npy file, read-only. The map holds a shared lock: its own descriptor is a copy of the locked one."""
    with path.open("rb") as file:
        cache.lock_shared(file)
        shape = _read_header(file)
        return np.memmap(file, np.uint8, "r", file.tell(), shape)


def _read_header(file: BinaryIO) -> tuple[int, ...]:
    np.lib.format.read_magic(file)
    shape, _, _ = np.lib.format.read_array_header_1_0(file)
    return shape
