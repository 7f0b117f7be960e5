"""Results of long work on data, kept on disk and shared by all processes.

An entry is the folder `<kind>/<key>/`. It holds one large file to be memory-mapped (`data`), small arrays (`arrays.npz`) and a
record (`entry.json`). An entry is built in a temporary folder and moved to its place under a lock. So processes that start
together do the work once. An entry that is torn or was changed is noticed and built again.

A reader of an entry holds a shared lock on its large file (see `Held`), so `remove` knows that it is in use. The modification
time of the record says when the entry was last used.
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

TORN = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)
"""The errors of reading an entry that is missing, torn or of another version."""

_ENTRY_VERSION = 3


@dataclass(frozen=True)
class Side:
    """What an entry holds beside its large file."""

    arrays: Mapping[str, NDArray[Any]]
    """Read-only. A stored entry reads each array on access: the arrays of a million files together would fill the memory."""
    facts: Mapping[str, Any]
    """JSON values."""


@dataclass(frozen=True)
class Entry(Side):
    data: Path
    """The large file."""
    arrays_sha256: str
    """SHA-256 of all arrays. Keys of entries that depend on the order of the arrays include it."""
    held: Held
    """Keeps the entry from being removed."""


class Held:
    """A file that stays open under a shared lock while this object lives."""

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
        path: of the file. It stays open, so a file that replaces it changes nothing here.
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
    """Folder of decoded data and downloads: `cache_dir`, else $CONVTWINS_CACHE, else the user's cache folder."""
    chosen = cache_dir or os.environ.get("CONVTWINS_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("convtwins")


def keras_home() -> Path:
    """Download folder of Keras: `$KERAS_HOME`, else `~/.keras`."""
    return Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser()


def torch_home() -> Path:
    """Download folder of torch: `$TORCH_HOME`, else `torch` in the user's cache folder of the XDG convention."""
    return Path(os.environ.get("TORCH_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "torch").expanduser()


def key(**identity: Any) -> str:
    """Name of an entry: SHA-256 of everything that decides its content."""
    return atomic_files.digest(identity)


def fetch(root: Path, kind: str, key: str, build: Callable[[BinaryIO], Side]) -> Entry:
    """Read an entry. Build it first if it is missing, torn or changed.

    Args:
        root: the cache folder. It is created if it is missing.
        kind: folder of entries of the same kind.
        key: see `key`.
        build: writes the large file and returns the rest. It is called at most once, under the entry's lock.

    Raises:
        OSError: the cache folder cannot be written.
    """
    place = root / kind / key
    entry = _entry(place)
    if entry is None:
        place.parent.mkdir(parents=True, exist_ok=True)
        with lock(place):
            entry = _entry(place) or _built(place, build)  # another process may have built it while this one waited
    if entry is None:
        raise OSError(f"{place} cannot be read back after it was written")
    mark_used(place / "entry.json")
    return entry


def _built(place: Path, build: Callable[[BinaryIO], Side]) -> Entry | None:
    """A new entry, or None if it cannot be read back."""
    with building(place) as partial:
        with (partial / "data").open("wb") as file:
            side = build(file)
            sync(file)
        finish(partial, side, data_sha256=sha256_of_file(partial / "data"))
    return _entry(place)


def facts(place: Path) -> Mapping[str, Any]:
    """The facts of an entry, even of a torn one. Empty if they cannot be read."""
    try:
        return dict(json.loads((place / "entry.json").read_text("utf-8"))["record"]["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def remove(place: Path, data: Path | None = None) -> bool:
    """Remove an entry that no process reads or writes, and the remains of an earlier attempt to build it.

    Args:
        data: the file or folder that readers hold. None: the entry's large file.

    Returns:
        Whether it was removed. False if it is in use.

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
                shutil.rmtree(_partial_of(place), ignore_errors=True)
                with suppress(FileNotFoundError):  # removed by another process meanwhile
                    place.rename(_partial_of(place))  # in one step, so that no process finds half of the entry
                    shutil.rmtree(_partial_of(place))
            finally:
                if held is not None:
                    os.close(held)
    except (filelock.Timeout, BlockingIOError):
        return False
    return True


def remove_left_over(path: Path, place: Path) -> bool:
    """Remove the unfinished entry of a killed process. As `remove`."""
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
    """Set the time of last use of a file or folder to now."""
    with suppress(OSError):  # a cache folder of another user
        os.utime(place)


def lock(place: Path) -> filelock.BaseFileLock:
    """Lock for writing and removing an entry."""
    return filelock.FileLock(place.parent / f"{place.name}.lock")


def lock_shared(file: int | BinaryIO) -> None:
    """Lock an open file for reading. Waits for `remove`, which is quick."""
    with suppress(OSError):  # a read-only or network file system without locks: nothing is removed there either
        fcntl.flock(file, fcntl.LOCK_SH)


@contextmanager
def building(place: Path) -> Generator[Path]:
    """Give a temporary folder and move it to `place` when the block ends well. Call it under the entry's lock."""
    partial = _partial_of(place)
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
    partial.mkdir()
    try:
        yield partial
        shutil.rmtree(place, ignore_errors=True)  # torn or changed
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def finish(folder: Path, side: Side, **more: str) -> None:
    """Write arrays and record of the large file in `folder`. A kill in between leaves a torn entry, never a wrong one."""
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
    write_record(folder / "entry.json", record)


def read_side(place: Path, held: Held) -> tuple[Side, dict[str, Any], bool]:
    """(what stands beside the large file, its record, whether the large file has the recorded time).

    Raises one of TORN if the entry is missing or torn.
    """
    record = read_record(place / "entry.json", _ENTRY_VERSION)
    arrays = _StoredArrays(place / "arrays.npz", record["arrays_sha256"])
    status = os.fstat(held.descriptor)
    if status.st_size != record["data_bytes"] or held.is_removed:
        raise ValueError("the large file is torn")
    # Reading the whole file at each start would be too slow. A file that was written to, or copied here, has another time.
    return Side(arrays, record["facts"]), record, status.st_mtime_ns == record["data_mtime_ns"]


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a small JSON record with its checksum."""
    atomic_files.write_atomically(path, json.dumps({"record": record, "sha256": atomic_files.digest(record)}, indent=1) + "\n")


def read_record(path: Path, version: int) -> dict[str, Any]:
    """Read what `write_record` wrote. Raises one of TORN if it is missing, torn, changed or of another version."""
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
    """SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _entry(place: Path) -> Entry | None:
    """The entry, or None if it is missing, torn or changed."""
    try:
        held = Held(place / "data")
        side, record, is_untouched = read_side(place, held)
        if not is_untouched and sha256_of_file(place / "data") != record["data_sha256"]:
            return None
    except TORN:
        return None
    return Entry(side.arrays, side.facts, place / "data", record["arrays_sha256"], held)


def _partial_of(place: Path) -> Path:
    return place.parent / f"{place.name}.partial"
