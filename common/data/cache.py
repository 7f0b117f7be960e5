"""Cached results of long work on data, on disk and shared by all processes.

An entry is the folder `<kind>/<key>/`. It holds one large file to be memory-mapped (`data`), small arrays (`arrays.npz`) and a
record (`entry.json`). An entry is built in a temporary folder and moved to its place under a lock. So processes that start
together do the work once. An entry that is corrupt or was changed is detected and built again.

A reader of an entry holds a shared lock on its large file (see `SharedLock`), so `remove` knows that it is in use. The
modification time of the record says when the entry was last used.
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

CORRUPT_ENTRY_ERRORS = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)
"""Errors of reading an entry that is missing, corrupt or of another version."""

_ENTRY_VERSION = 3


@dataclass(frozen=True)
class EntryMetadata:
    """The small content of an entry, beside its large file."""

    arrays: Mapping[str, NDArray[Any]]
    """Read-only arrays. A stored entry reads each on access: the arrays of a million files together would fill the memory."""
    facts: Mapping[str, Any]
    """Facts about the entry, as JSON values."""


@dataclass(frozen=True)
class Entry(EntryMetadata):
    data: Path
    """Path of the large file."""
    arrays_sha256: str
    """SHA-256 of all arrays. Keys of entries that depend on the order of the arrays include it."""
    lock: SharedLock
    """Lock that keeps the entry from being removed."""


class SharedLock:
    """A shared lock on a file, which stays open while this object lives."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)
        lock_shared(self.descriptor)

    @property
    def is_removed(self) -> bool:
        return os.fstat(self.descriptor).st_nlink == 0


class _StoredArrays(Mapping[str, "NDArray[Any]"]):
    """Arrays of an .npz file. Each access reads its array again.

    Args:
        path: the file. It stays open, so a file that replaces it changes nothing here.
        sha256: expected SHA-256 of the file.

    Raises:
        ValueError: the file has another SHA-256.
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
            raise OSError(errno.EIO, f"The file was whole a moment ago ({error!r})", str(self._path)) from error
        array.flags.writeable = False
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __len__(self) -> int:
        return len(self._file)


def folder(cache_dir: str | None) -> Path:
    """Return the folder of decoded data and downloads: `cache_dir`, else $CONVTWINS_CACHE, else the user's cache folder."""
    path = cache_dir or os.environ.get("CONVTWINS_CACHE")
    return Path(path).expanduser().absolute() if path else platformdirs.user_cache_path("convtwins")


def keras_home() -> Path:
    """Return the download folder of Keras: `$KERAS_HOME`, else `~/.keras`."""
    return Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser()


def torch_home() -> Path:
    """Return the download folder of torch: `$TORCH_HOME`, else `torch` in the user's cache folder of the XDG convention."""
    return Path(os.environ.get("TORCH_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "torch").expanduser()


def key(**identity: Any) -> str:
    """Return the name of an entry: the SHA-256 of everything that decides its content."""
    return atomic_files.digest(identity)


def fetch(root: Path, kind: str, key: str, build: Callable[[BinaryIO], EntryMetadata]) -> Entry:
    """Read an entry. Build it first if it is missing, corrupt or changed.

    Args:
        root: the cache folder. It is created if it is missing.
        kind: folder of entries of the same kind.
        key: see `key`.
        build: writes the large file and returns the rest. It is called at most once, under the entry's lock.

    Raises:
        OSError: the cache folder cannot be written.
    """
    entry_path = root / kind / key
    entry = _read_entry(entry_path)
    if entry is None:
        entry_path.parent.mkdir(parents=True, exist_ok=True)
        with lock(entry_path):
            entry = _read_entry(entry_path) or _build_entry(
                entry_path, build
            )  # another process may have built it while this one waited
    if entry is None:
        raise OSError(f"{entry_path} cannot be read back after it was written")
    mark_used(entry_path / "entry.json")
    return entry


def _build_entry(entry_path: Path, build: Callable[[BinaryIO], EntryMetadata]) -> Entry | None:
    """Build a new entry. Returns None if it cannot be read back."""
    with staging_folder(entry_path) as partial:
        with (partial / "data").open("wb") as file:
            metadata = build(file)
            sync(file)
        write_metadata(partial, metadata, data_sha256=sha256_of_file(partial / "data"))
    return _read_entry(entry_path)


def read_facts(entry_path: Path) -> Mapping[str, Any]:
    """Read the facts of an entry, even of a corrupt one. Empty if they cannot be read."""
    try:
        return dict(json.loads((entry_path / "entry.json").read_text("utf-8"))["record"]["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def remove(entry_path: Path) -> bool:
    """Remove an entry that no process reads or writes, and the remains of an earlier attempt to build it.

    Args:
        entry_path: folder of the entry.

    Returns:
        Whether it was removed. False if it is in use.

    Raises:
        OSError: the cache folder cannot be written.
    """
    try:
        with lock(entry_path).acquire(timeout=0):
            try:
                descriptor = os.open(entry_path / "data", os.O_RDONLY)
            except FileNotFoundError:
                descriptor = None
            try:
                if descriptor is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(_partial_path(entry_path), ignore_errors=True)
                with suppress(FileNotFoundError):  # removed by another process meanwhile
                    entry_path.rename(_partial_path(entry_path))  # in one step, so that no process finds half of the entry
                    shutil.rmtree(_partial_path(entry_path))
            finally:
                if descriptor is not None:
                    os.close(descriptor)
    except (filelock.Timeout, BlockingIOError):
        return False
    return True


def remove_unfinished(path: Path, entry_path: Path) -> bool:
    """Remove the unfinished entry of a killed process. Returns whether it was removed."""
    try:
        with lock(entry_path).acquire(timeout=0):
            shutil.rmtree(path)
    except filelock.Timeout:
        return False
    return True


@contextmanager
def shared_lock(path: Path) -> Generator[None]:
    """Keep a folder from being removed while the block runs."""
    lock = SharedLock(path)
    yield
    del lock


def mark_used(path: Path) -> None:
    """Set the time of last use of a file or folder to now."""
    with suppress(OSError):  # a cache folder of another user
        os.utime(path)


def lock(entry_path: Path) -> filelock.BaseFileLock:
    """Return the lock for writing and removing an entry."""
    return filelock.FileLock(entry_path.parent / f"{entry_path.name}.lock")


def lock_shared(file: int | BinaryIO) -> None:
    """Lock an open file for reading. Waits for `remove`, which is quick."""
    with suppress(OSError):  # a read-only or network file system without locks: nothing is removed there either
        fcntl.flock(file, fcntl.LOCK_SH)


@contextmanager
def staging_folder(entry_path: Path) -> Generator[Path]:
    """Give a temporary folder, and move it to `entry_path` if the block succeeds. Call it under the entry's lock."""
    partial = _partial_path(entry_path)
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
    partial.mkdir()
    try:
        yield partial
        shutil.rmtree(entry_path, ignore_errors=True)  # corrupt or changed
        partial.rename(entry_path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_metadata(folder: Path, metadata: EntryMetadata, **extra: str) -> None:
    """Write arrays and record of the large file in `folder`. A kill in between leaves a corrupt entry, never a wrong one."""
    arrays = io.BytesIO()
    np.savez(arrays, allow_pickle=False, **metadata.arrays)
    status = (folder / "data").stat()
    record = {
        "version": _ENTRY_VERSION,
        "facts": dict(metadata.facts),
        "arrays_sha256": hashlib.sha256(arrays.getvalue()).hexdigest(),
        "data_bytes": status.st_size,
        "data_mtime_ns": status.st_mtime_ns,
        **extra,
    }
    atomic_files.write_atomically(folder / "arrays.npz", arrays.getvalue())
    write_record(folder / "entry.json", record)


def read_metadata(entry_path: Path, lock: SharedLock) -> tuple[EntryMetadata, dict[str, Any], bool]:
    """Read (metadata, record, whether the large file has the recorded time) of an entry.

    Raises one of CORRUPT_ENTRY_ERRORS if the entry is missing or corrupt.
    """
    record = read_record(entry_path / "entry.json", _ENTRY_VERSION)
    arrays = _StoredArrays(entry_path / "arrays.npz", record["arrays_sha256"])
    status = os.fstat(lock.descriptor)
    if status.st_size != record["data_bytes"] or lock.is_removed:
        raise ValueError("the large file is torn")
    # Reading the whole file at each start would be too slow. A file that was written to, or copied here, has another time.
    return EntryMetadata(arrays, record["facts"]), record, status.st_mtime_ns == record["data_mtime_ns"]


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a small JSON record with its checksum."""
    atomic_files.write_atomically(path, json.dumps({"record": record, "sha256": atomic_files.digest(record)}, indent=1) + "\n")


def read_record(path: Path, version: int) -> dict[str, Any]:
    """Read a record of `write_record`. Raises one of CORRUPT_ENTRY_ERRORS if it is missing, changed or of another version."""
    stored: dict[str, Any] = json.loads(path.read_text("utf-8"))
    record: dict[str, Any] = stored["record"]
    if stored["sha256"] != atomic_files.digest(record) or record["version"] != version:
        raise ValueError("the record is torn or of another version")
    return record


def sync(file: BinaryIO) -> None:
    """Write a file through to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sha256_of_file(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_entry(entry_path: Path) -> Entry | None:
    """Read an entry. Returns None if it is missing, corrupt or changed."""
    try:
        lock = SharedLock(entry_path / "data")
        metadata, record, is_untouched = read_metadata(entry_path, lock)
        if not is_untouched and sha256_of_file(entry_path / "data") != record["data_sha256"]:
            return None
    except CORRUPT_ENTRY_ERRORS:
        return None
    return Entry(metadata.arrays, metadata.facts, entry_path / "data", record["arrays_sha256"], lock)


def _partial_path(entry_path: Path) -> Path:
    return entry_path.parent / f"{entry_path.name}.partial"
