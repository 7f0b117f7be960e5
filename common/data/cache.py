"""Results of long work on data, kept on disk and shared by every process.

An entry is a folder, `<kind>/<key>/`, of one large file to be mapped into memory (`data`), small arrays (`arrays.npz`)
and a record (`entry.json`). It is built beside its place and moved there whole, under a lock, so that processes that
start together do the work once. What was torn or changed since then is noticed and built again.

Decoded pixels are an entry whose large file is sparse: it has room for all images of a source at one size, and holds those
that were ever asked for. More are written into it later, under the same lock; a row counts once its SHA-256 is recorded.

Whoever reads an entry holds a shared lock on its large file (see `Held`), by which `remove` knows that it is in use. The
record's own time is when the entry was last used.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import shutil
import weakref
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import filelock
import numpy as np
import platformdirs
from numpy.typing import NDArray

from common.artifacts import atomic_files
from common.data import threads

_ENTRY_VERSION = 3


@dataclass(frozen=True)
class Side:
    """What an entry holds beside its large file."""

    arrays: Mapping[str, NDArray[Any]]
    """Read-only. Of an entry, each is read when it is asked for: of a million files all together would fill the memory."""
    facts: Mapping[str, Any]
    """Anything that JSON holds."""


@dataclass(frozen=True)
class Entry(Side):
    data: Path
    """The large file."""
    arrays_sha256: str
    """Over all arrays: what rests on their order names it."""
    held: Held
    """Keeps it from being removed."""


class Held:
    """A file that is open under a shared lock for as long as this object lives."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)
        with suppress(OSError):  # a read-only or network file system without locks, where nothing is removed either
            fcntl.flock(self.descriptor, fcntl.LOCK_SH)  # waits for `remove`, which is quick

    @property
    def is_removed(self) -> bool:
        return os.fstat(self.descriptor).st_nlink == 0


class _Stored(Mapping[str, "NDArray[Any]"]):
    """Arrays in a file of NumPy's, each of which is read, anew, when it is asked for.

    Args:
        path: of the file; it stays open, so that one that takes its place meanwhile changes nothing here.
        sha256: that the file is to have.

    Raises:
        ValueError: it has another one.
    """

    def __init__(self, path: Path, sha256: str) -> None:
        file = path.open("rb")
        weakref.finalize(self, file.close)
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise ValueError("the arrays are torn")
        file.seek(0)
        self._path, self._file = path, np.load(file, allow_pickle=False)

    def __getitem__(self, name: str) -> NDArray[Any]:
        try:
            array = self._file[name]
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise OSError(errno.EIO, f"It was whole a moment ago ({error!r})", str(self._path)) from error
        array.flags.writeable = False
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __len__(self) -> int:
        return len(self._file)


class PixelFile:
    """Some rows of an .npy file of uint8 [N, S, S, 3], which are filled in any order.

    Its writes are plain ones: through a memory map, a full disk would kill the process in place of raising.

    Args:
        file: open for reading and writing, its header written.
        rows: int64 [n], the places in the file of what is written as 0..n - 1.
        size_px: S.
    """

    def __init__(self, file: BinaryIO, rows: NDArray[np.int64], size_px: int) -> None:
        self.row_bytes = size_px * size_px * 3
        self.sha256 = np.zeros((len(rows), 32), np.uint8)
        """Of each row that was written."""
        self._file, self._rows, self._rows_missing = file, rows, len(rows)
        file.seek(0)
        _read_header(file)
        self._start = file.tell()

    def write(self, first: int, images: NDArray[np.uint8]) -> None:
        """Write uint8 [n, S, S, 3] as n of the rows, from the `first` of them on; each is to be written once."""
        for number, image in enumerate(images, first):
            pixels = np.ascontiguousarray(image).data
            self._file.seek(self._start + int(self._rows[number]) * self.row_bytes)
            self._file.write(pixels)
            self.sha256[number] = np.frombuffer(hashlib.sha256(pixels).digest(), np.uint8)
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


def keras_home() -> Path:
    """Where Keras keeps what it downloads: `$KERAS_HOME`, else `~/.keras`."""
    return Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser()


def torch_home() -> Path:
    """Where torch keeps what it downloads: `$TORCH_HOME`, else `torch` in the user's cache folder of the XDG convention."""
    return Path(os.environ.get("TORCH_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "torch").expanduser()


def key(**identity: Any) -> str:
    """The name of an entry: SHA-256 over all that decides what is in it."""
    return atomic_files.digest(identity)


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
    entry = _entry(place)
    if entry is None:
        place.parent.mkdir(parents=True, exist_ok=True)
        with lock(place):
            entry = _entry(place)  # another process may have built it while this one waited
            if entry is None:
                _build(place, build)
                entry = _entry(place)
    if entry is None:
        raise OSError(f"{place} cannot be read back after it was written")
    mark_used(place / "entry.json")
    return entry


def fetch_pixels(
    root: Path,
    key: str,
    shape: tuple[int, ...],
    ids: NDArray[np.int64],
    write: Callable[[NDArray[np.int64], PixelFile], None],
    facts: Mapping[str, Any],
) -> NDArray[np.uint8]:
    """Map the decoded pixels of a source, and write those first that are asked for and missing, torn or changed.

    Args:
        root: the cache folder; created where it is missing.
        key: see `key`.
        shape: (N, S, S, 3), of all images of the source.
        ids: int64 [n], the rows that are asked for.
        write: is given some of `ids`, ascending, and the file to which to write their images. Called at most once, under the
            entry's lock.
        facts: to be told of the entry.

    Returns:
        uint8 [N, S, S, 3], mapped and read-only; rows that were never asked for may be zeros.

    Raises:
        OSError: the cache folder cannot be written.
    """
    place = root / "decoded" / key
    pixels = _pixels(place, shape)
    if pixels is None or not pixels.hold(ids):
        place.parent.mkdir(parents=True, exist_ok=True)
        with lock(place):
            pixels = _pixels(place, shape, mend=True)  # another process may have written them while this one waited
            missing = np.unique(ids) if pixels is None else np.setdiff1d(ids, np.flatnonzero(pixels.known))
            if len(missing):
                _fill(place, shape, missing, write, facts, pixels)
                pixels = _pixels(place, shape)
    if pixels is None:
        raise OSError(f"{place} cannot be read back after it was written")
    mark_used(place / "entry.json")
    return pixels.images


def facts(place: Path) -> Mapping[str, Any]:
    """What is told of an entry, whole or not; nothing where it cannot be read."""
    try:
        return dict(json.loads((place / "entry.json").read_text("utf-8"))["record"]["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def remove(place: Path, data: Path | None = None) -> bool:
    """Remove a folder of the cache that nobody reads or writes, with what was left of an earlier try to build it.

    Args:
        place: of the entry.
        data: the file or folder that readers hold; None: an entry's large file.

    Returns:
        Whether it could be removed; False where it is in use.

    Raises:
        OSError: the cache folder cannot be written.
    """
    try:
        with lock(place).acquire(timeout=0):
            try:
                held = os.open(data or place / "data", os.O_RDONLY)
            except FileNotFoundError:
                held = None
            try:
                if held is not None:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(partial_of(place), ignore_errors=True)
                with suppress(FileNotFoundError):  # removed by another process meanwhile
                    place.rename(partial_of(place))  # at once, so that nobody finds half of it
                    shutil.rmtree(partial_of(place))
            finally:
                if held is not None:
                    os.close(held)
    except (filelock.Timeout, BlockingIOError):
        return False
    return True


def remove_left_over(path: Path, place: Path) -> bool:
    """Remove a folder in which a process that was killed built an entry; as `remove`."""
    try:
        with lock(place).acquire(timeout=0):
            shutil.rmtree(path)
    except filelock.Timeout:
        return False
    return True


@contextmanager
def holding(path: Path) -> Generator[None]:
    """Keep a folder from being removed while the block runs."""
    held = Held(path)
    yield
    del held


def mark_used(place: Path) -> None:
    """Set the time of a file or folder, which tells when it was last used."""
    with suppress(OSError):  # a cache folder of somebody else's
        os.utime(place)


def lock(place: Path) -> filelock.BaseFileLock:
    """What stands around all writing to an entry, and around its removal."""
    return filelock.FileLock(place.parent / f"{place.name}.lock")


def partial_of(place: Path) -> Path:
    """Where an entry is built before it is moved to its place."""
    return place.parent / f"{place.name}.partial"


@dataclass(frozen=True, eq=False)
class _Pixels:
    images: NDArray[np.uint8]
    """The whole file, mapped; the map holds the shared lock."""
    side: Side

    @property
    def sha256(self) -> NDArray[np.uint8]:
        """[N, 32], zeros where a row is missing."""
        return self.side.arrays["sha256"]

    @property
    def known(self) -> NDArray[np.bool_]:
        """[N], an array of its own: of a million images the hashes fill 32 MB."""
        return self.side.arrays["known"]

    def hold(self, ids: NDArray[np.int64]) -> bool:
        """Whether these rows are there; where all of them are, no array is read for it."""
        return self.side.facts["stored"] == len(self.images) or bool(self.known[ids].all())


def _build(place: Path, build: Callable[[BinaryIO], Side]) -> None:
    partial = partial_of(place)
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
    partial.mkdir()
    try:
        with (partial / "data").open("wb") as file:
            side = build(file)
            _sync(file)
        _seal(partial, side, data_sha256=_sha256_of_file(partial / "data"))
        shutil.rmtree(place, ignore_errors=True)  # torn or changed
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fill(
    place: Path,
    shape: tuple[int, ...],
    missing: NDArray[np.int64],
    write: Callable[[NDArray[np.int64], PixelFile], None],
    facts: Mapping[str, Any],
    known: _Pixels | None,
) -> None:
    """Write rows into an entry where it stands, or else beside its place, from where it is moved whole."""
    partial = partial_of(place)
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
    for left_over in place.glob(".*"):  # of a record that was being written
        left_over.unlink(missing_ok=True)
    folder = place if known is not None else partial
    sha256 = known.sha256.copy() if known is not None else np.zeros((shape[0], 32), np.uint8)
    try:
        if known is None:
            partial.mkdir()
            _make_sparse(partial / "data", shape)
        with (folder / "data").open("r+b") as file:
            rows = PixelFile(file, missing, shape[1])
            write(missing, rows)
            rows.finish()
            _sync(file)
        sha256[missing] = rows.sha256
        _seal(folder, _side_of(sha256, facts))
        if known is None:
            shutil.rmtree(place, ignore_errors=True)  # torn or changed
            partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _side_of(sha256: NDArray[np.uint8], facts: Mapping[str, Any]) -> Side:
    known = np.any(sha256, axis=1)
    return Side({"sha256": sha256, "known": known}, {**facts, "stored": int(known.sum()), "images": len(sha256)})


def _make_sparse(path: Path, shape: tuple[int, ...]) -> None:
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        file.truncate(file.tell() + int(np.prod(shape, dtype=np.int64)))


def _seal(folder: Path, side: Side, **more: str) -> None:
    """Write arrays and record for the large file that lies there; a kill in between leaves a torn entry, never a wrong one."""
    arrays = io.BytesIO()
    np.savez(arrays, allow_pickle=False, **side.arrays)
    status = (folder / "data").stat()
    record = {
        "version": _ENTRY_VERSION,
        "facts": dict(side.facts),
        "arrays_sha256": hashlib.sha256(arrays.getvalue()).hexdigest(),
        "data_bytes": status.st_size,
        "data_mtime_ns": status.st_mtime_ns,
        **more,
    }
    atomic_files.write_atomically(folder / "arrays.npz", arrays.getvalue())
    atomic_files.write_atomically(folder / "entry.json", json.dumps({"record": record, "sha256": atomic_files.digest(record)}))


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _entry(place: Path) -> Entry | None:
    """The entry, or None where it is missing, torn or changed."""
    try:
        held = Held(place / "data")
        side, record, is_untouched = _read(place, held)
        if not is_untouched and _sha256_of_file(place / "data") != record["data_sha256"]:
            return None
    except _TORN:
        return None
    return Entry(side.arrays, side.facts, place / "data", record["arrays_sha256"], held)


def _pixels(place: Path, shape: tuple[int, ...], *, mend: bool = False) -> _Pixels | None:
    """The decoded pixels, or None where they are missing or torn.

    Args:
        place: of the entry.
        shape: that they are to have.
        mend: whether to read a file that was written to or copied, and drop the rows that are not what was recorded; else it
            counts as torn. Asked for under the entry's lock alone.
    """
    try:
        held = Held(place / "data")
        side, _, is_untouched = _read(place, held)
        images = _mapped(place / "data")
        if images.shape != shape or side.facts["images"] != shape[0] or not (is_untouched or mend):
            return None
        if not is_untouched:
            side = _side_of(_verified(images, side.arrays["sha256"]), side.facts)
            _seal(place, side)
    except _TORN:
        return None
    return _Pixels(images, side)


def _verified(images: NDArray[np.uint8], sha256: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The recorded SHA-256 of rows that still have it; zeros for others."""

    def found(row: int) -> bytes:
        return hashlib.sha256(images[row].data).digest()

    known = np.flatnonzero(sha256.any(axis=1))
    verified = np.zeros_like(sha256)
    for row, digest in zip(known, threads.ordered(found, known.tolist()), strict=True):
        if digest == sha256[row].tobytes():
            verified[row] = sha256[row]
    return verified


_TORN = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)


def _read(place: Path, held: Held) -> tuple[Side, dict[str, Any], bool]:
    """(what stands beside the large file, its record, whether that file has the time of its record); else one of _TORN."""
    stored: dict[str, Any] = json.loads((place / "entry.json").read_text("utf-8"))
    record: dict[str, Any] = stored["record"]
    if stored["sha256"] != atomic_files.digest(record) or record["version"] != _ENTRY_VERSION:
        raise ValueError("the record is torn or of another version")
    arrays = _Stored(place / "arrays.npz", record["arrays_sha256"])
    status = os.fstat(held.descriptor)
    if status.st_size != record["data_bytes"] or held.is_removed:
        raise ValueError("the large file is torn")
    # To read all of it at each start is too slow; a file that was written to, or copied here, has another time.
    return Side(arrays, record["facts"]), record, status.st_mtime_ns == record["data_mtime_ns"]


def _mapped(path: Path) -> NDArray[np.uint8]:
    """An .npy file as a read-only map that holds a shared lock on it: the map's own descriptor is a copy of the locked one."""
    with path.open("rb") as file:
        with suppress(OSError):  # as in Held
            fcntl.flock(file, fcntl.LOCK_SH)
        shape = _read_header(file)
        return np.memmap(file, np.uint8, "r", file.tell(), shape)


def _read_header(file: BinaryIO) -> tuple[int, ...]:
    np.lib.format.read_magic(file)
    shape, _, _ = np.lib.format.read_array_header_1_0(file)
    return shape


def _sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
