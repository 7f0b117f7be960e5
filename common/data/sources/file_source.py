"""Sources of files: a folder here, an archive in `archives`. Nothing is extracted to disk."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from common.data import threads
from common.data.dataset import DataRefused, join_names
from common.data.decoding import decode

MAX_FILE_BYTES = 256 * 2**20
"""Limit for one file. A source of arrays has all images in one file: 200,000 of 28x28 pixels take 157 MB."""
MAX_FILES = 5_000_000
MAX_PATH_CHARACTERS = 4096
MAX_NAME_BYTES = 255
"""Limit for one part of a path, as in file systems."""

_MAX_PRINTED_NAME = 80  # characters shown of a name that is too long
_SYSTEM_NAMES = ("thumbs.db", "desktop.ini", "__macosx")  # the last is a folder that macOS adds to archives


@dataclass(frozen=True)
class Listing:
    """The visible part of a tree. Hidden files (see `is_hidden`) are skipped."""

    files: list[str]
    """POSIX paths below the root, in any order."""
    empty_folders: list[str]
    """Paths of folders without anything visible."""
    hidden: list[str]
    """Sorted paths of folders or files that hide images, as their names begin with a point, see `image_hidden_by`."""


@dataclass(frozen=True)
class Content:
    """Reads one file, in any thread. Raises OSError if it cannot be read."""

    num_bytes: int
    read: Callable[[], bytes]

    def __call__(self) -> bytes:
        return self.read()


class FileSource(Protocol):
    """A tree of files."""

    path: Path

    def fingerprint(self) -> tuple[str, int]:
        """Return (text that changes when a file is written or replaced, time of the newest change in nanoseconds).

        It depends on sizes, times and inode numbers. No file is read.
        """
        ...

    def notes(self) -> list[str]:
        """Return findings of the last `fingerprint` that a reader of the data should know."""
        return []

    def content_hash(self) -> str:
        """Return a SHA-256 that changes when the content of the tree changes."""
        ...

    def listing(self) -> Listing:
        """List the files of the tree."""
        ...

    def read(self, names: Collection[str]) -> Iterator[tuple[str, Content]]:
        """Yield (path, content) of each file in `names`, in the order that is fastest to read."""
        ...


class SingleFile(FileSource):
    """A tree that is one file, such as an archive."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fingerprint(self) -> tuple[str, int]:
        status = self.path.stat()
        return fingerprint_of_file(status), status.st_ctime_ns

    def content_hash(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def listing(self) -> Listing:
        return Listing([self.path.name], [], [])

    def read(self, names: Collection[str]) -> Iterator[tuple[str, Content]]:
        for name in names:
            yield name, Content(self.path.stat().st_size, self.path.read_bytes)


class Folder(FileSource):
    """A folder. Links are followed. Those that lead out of it are named, for a stranger may have put them there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._outside_links: list[str] = []
        self._hidden: list[str] = []

    def fingerprint(self) -> tuple[str, int]:
        digest = hashlib.sha256()
        newest = 0
        for name, status in self._entries():
            digest.update(f"{name}\0{fingerprint_of_file(status) if status else ''}\0".encode())
            newest = max(newest, status.st_ctime_ns if status else 0)
        digest.update(_hidden_bytes(self._hidden))
        return digest.hexdigest(), newest

    def notes(self) -> list[str]:
        if not self._outside_links:
            return []
        count = len(self._outside_links)
        links = "1 link leads" if count == 1 else f"{count:,} links lead"
        return [f"{links} out of the folder, and what is there was read: {join_names(self._outside_links)}"]

    def content_hash(self) -> str:
        listing = self.listing()
        digest = hashlib.sha256()
        names = sorted(listing.files)
        for name, content in zip(names, threads.ordered(self._hash_of_file, names), strict=True):
            encoded = name.encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded + content)
        for name in sorted(listing.empty_folders):
            digest.update(f"\0{name}\0".encode())
        digest.update(_hidden_bytes(listing.hidden))
        return digest.hexdigest()

    def listing(self) -> Listing:
        listing = Listing([], [], [])
        for name, status in self._entries():
            (listing.files if status else listing.empty_folders).append(name)
        listing.hidden.extend(sorted(self._hidden))
        return listing

    def read(self, names: Collection[str]) -> Iterator[tuple[str, Content]]:
        for name in sorted(names):
            path = self.path / name
            try:
                num_bytes = path.stat().st_size
            except OSError:  # a broken link: reading it raises the error
                num_bytes = 0
            yield name, Content(num_bytes, path.read_bytes)

    def _hash_of_file(self, name: str) -> bytes:
        try:
            with (self.path / name).open("rb") as file:
                return hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            if not is_unreadable(error):
                raise
            return b"unreadable"

    def _entries(self) -> Iterator[tuple[str, os.stat_result | None]]:
        """Yield each visible file with its status, and each folder without anything visible with None. The order is fixed."""
        real_paths: set[str] = set()
        self._outside_links, self._hidden = [], []
        num_files = 0
        pending = [""]
        while pending:
            folder = pending.pop()
            real = os.path.realpath(self.path / folder)
            if real in real_paths:
                raise DataRefused(f"{self.path / folder} leads into the tree a second time. Received: {real}. Remove the link.")
            real_paths.add(real)
            is_empty = True
            for entry in sorted(os.listdir(self.path / folder)):  # noqa: PTH208  # names only: more data on a million entries would fill the memory
                name = f"{folder}/{entry}" if folder else entry
                if _is_hidden_part(entry):
                    if self._hides_images(name):
                        self._hidden.append(name.encode(errors="backslashreplace").decode())
                    continue
                is_empty = False
                _check_unicode(entry, self.path)
                status = self._status(name)
                if stat.S_ISDIR(status.st_mode):
                    pending.append(name)
                elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                    check_size(status.st_size, f"{self.path}/{name}")
                    num_files += 1
                    yield name, status
                else:
                    raise DataRefused(f"{self.path / name} is no file. Received: a device, pipe or socket. Remove it.")
            check_count(num_files, self.path)
            if is_empty and folder:
                yield folder, None

    def _hides_images(self, name: str, depth: int = 0) -> bool:
        path = self.path / name
        try:
            if not path.is_dir():
                return image_hidden_by(name) is not None
            entries = [] if depth == 2 or path.is_symlink() else os.listdir(path)  # noqa: PTH208  as above
        except OSError:  # what cannot be read cannot be named
            return False
        return any(self._hides_images(f"{name}/{entry}", depth + 1) for entry in entries)

    def _status(self, name: str) -> os.stat_result:
        """Return the status of the target of a path, or of the link itself if it leads nowhere or in a circle."""
        path = f"{self.path}/{name}"  # there may be a million, and a Path takes longer than the call
        status = os.lstat(path)
        if not stat.S_ISLNK(status.st_mode):
            return status
        try:
            target = os.stat(path)  # noqa: PTH116
        except OSError:
            return status
        real = os.path.realpath(path)
        if not Path(real).is_relative_to(self.path.resolve()):
            self._outside_links.append(f"{name!r} to {real!r}")
        return target


def fingerprint_of_file(status: os.stat_result) -> str:
    """Return a text that changes whenever a file is written or replaced. Its change time (ctime) cannot be set."""
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def normalize_name(name: str, tree: Path) -> str:
    """Return the shortest form of a member's path, e.g. `a/b` for `./a//b`."""
    if len(name) > MAX_PATH_CHARACTERS:
        raise _too_long_error(name, f"{len(name):,} characters", tree)
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or re.match(r"[A-Za-z]:[\\/]|\\", name):
        raise DataRefused(f"{tree} holds a path that leads out of it. Received: {name!r}. Use paths below one folder.")
    _check_unicode(name, tree)
    longest = max((len(part.encode()) for part in path.parts), default=0)
    if longest > MAX_NAME_BYTES:
        raise _too_long_error(name, f"a part of {longest:,} bytes", tree)
    return path.as_posix()


def _too_long_error(name: str, length: str, tree: Path) -> DataRefused:
    return DataRefused(
        f"{tree} holds a path that is too long. Received: {length} in {name[:_MAX_PRINTED_NAME]!r}... Use up to "
        f"{MAX_PATH_CHARACTERS:,} characters, and {MAX_NAME_BYTES} bytes a part."
    )


def _check_unicode(name: str, tree: Path) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataRefused(f"{tree} holds a file name that is not UTF-8. Received: {name!r}. Rename it.") from None


def is_hidden(name: str) -> bool:
    """Return whether a part of a path starts with a dot, or was added by Windows or macOS."""
    return any(map(_is_hidden_part, PurePosixPath(name).parts))


def image_hidden_by(path: str) -> str | None:
    """Return the folder or file that hides an image, as its name begins with a point. None: no image, or not hidden by it.

    Only an image counts that would fit the layout: as a file, in a class folder, or in a split.
    """
    parts = PurePosixPath(path).parts
    depth = next((depth for depth, part in enumerate(parts) if _is_hidden_part(part)), len(parts))
    if len(parts) - depth not in (1, 2, 3) or not parts[depth].startswith(".") or parts[-1].startswith("._"):
        return None  # `._0.jpg` holds what macOS knows of 0.jpg
    return "/".join(parts[: depth + 1]) if PurePosixPath(path).suffix.lower() in decode.SUFFIXES else None


def _is_hidden_part(part: str) -> bool:
    return part.startswith(".") or part.lower() in _SYSTEM_NAMES


def is_unreadable(error: OSError) -> bool:
    """Return whether an error is a property of the file: no permission, or a broken link. Other errors may go away."""
    return error.errno in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ELOOP)


def _hidden_bytes(names: Collection[str]) -> bytes:
    """Return the hidden names as bytes for hashes. Empty if nothing is hidden, as in hashes of earlier versions."""
    return b"".join(f"\0hidden\0{name}\0".encode() for name in sorted(names))


def empty_folders_of(files: Collection[str], folders: Collection[str]) -> list[str]:
    """Return the folders that hold no file and no folder."""
    non_empty = {parent.as_posix() for name in (*files, *folders) for parent in PurePosixPath(name).parents}
    return [folder for folder in folders if folder not in non_empty]


def check_size(num_bytes: int, description: object, max_bytes: int = MAX_FILE_BYTES) -> None:
    """Raise DataRefused for a file of more than `max_bytes`."""
    if not 0 <= num_bytes <= max_bytes:
        raise DataRefused(f"{description} is too large. Received: {num_bytes:,} bytes. Use files of up to {max_bytes:,} bytes.")


def check_count(num_files: int, tree: Path, max_files: int = MAX_FILES) -> None:
    if num_files > max_files:
        raise DataRefused(f"{tree} holds too many files. Received: more than {max_files:,}. Use a part of it.")
