"""Trees of files in .tar, .tar.gz, .tar.bz2, .tar.xz and .zip, read as streams. The content decides the format.

An archive may be hostile. Only plain files with paths below the root are accepted, and sizes are limited before anything is
read.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from common.data.dataset import DataRefused
from common.data.sources.file_source import (
    MAX_FILE_BYTES,
    MAX_FILES,
    Content,
    FileSource,
    Listing,
    SingleFile,
    check_count,
    check_size,
    empty_folders_of,
    image_hidden_by,
    is_hidden,
    normalize_name,
)

MAX_HEADER_BYTES = 2**13
"""Limit for all headers of one member of a tar: twice what real ones take. tarfile reads headers whole, and some take quadratic
time (CVE-2024-6232)."""

_DECOMPRESSORS = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open}
_FILE, _FOLDER = "a file", "a folder"
_END_BLOCK = bytes(tarfile.BLOCKSIZE)
_ZIP_READ_BYTES = 4096  # zipfile unpacks all that it reads of bzip2 and LZMA, whatever size the header states


@dataclass(frozen=True)
class ArchiveLimits:
    """Largest sizes of an archive."""

    files: int = MAX_FILES
    file_bytes: int = MAX_FILE_BYTES
    unpacked_bytes: int = 4 * 2**30
    """Bytes of files that any archive may unpack to."""
    unpacked_ratio: int = 200
    """Ratio of unpacked to packed size that an archive may reach above `unpacked_bytes`."""

    def allowed_bytes(self, path: Path) -> int:
        """Return the bytes that the archive in a file may unpack to."""
        return max(self.unpacked_bytes, self.unpacked_ratio * path.stat().st_size)


_LIMITS = ArchiveLimits()


def open_archive(path: Path, limits: ArchiveLimits = _LIMITS) -> FileSource | None:
    """Return the archive in a file, or None if it is no archive. Only the first block is read, and nothing is unpacked."""
    with path.open("rb") as file:
        start = file.read(tarfile.BLOCKSIZE)
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return Zip(path, limits)
    if start.startswith(tuple(_DECOMPRESSORS)) or _is_tar_header(start):
        return Tar(path, limits)
    return None


class _Archive(SingleFile):
    """Base class of both kinds of archive. Each has its own `_members`."""

    def __init__(self, path: Path, limits: ArchiveLimits = _LIMITS) -> None:
        super().__init__(path)
        self._limits = limits

    def listing(self) -> Listing:
        files: list[str] = []
        folders: set[str] = set()
        hidden: set[str] = set()
        for name, read in self._members():
            if is_hidden(name):
                hidden |= {hiding} if (hiding := image_hidden_by(name)) else set()
            elif read:
                files.append(name)
            else:
                folders.add(name)
        return Listing(files, empty_folders_of(files, folders), sorted(hidden))

    def read(self, names: Collection[str]) -> Iterator[tuple[str, Content]]:
        for name, read in self._members():
            if read and name in names:
                content = read()  # here: an archive is one stream, so one thread reads it
                yield name, Content(len(content), lambda content=content: content)

    def _members(self) -> Iterator[tuple[str, Callable[[], bytes] | None]]:
        """Yield (path, function that reads the file before the next member) of visible files, and (path, None) of others."""
        names: set[str] = set()
        for count, (raw_name, kind, num_bytes, read) in enumerate(self._entries(), 1):
            check_count(count, self.path, self._limits.files)
            name = normalize_name(raw_name, self.path)
            if kind not in (_FILE, _FOLDER):
                raise _refusal(self.path, kind, name)
            if kind == _FOLDER or is_hidden(name):
                yield name, None
                continue
            check_size(num_bytes, f"{name!r} in {self.path}", self._limits.file_bytes)
            if name in names:
                raise _refusal(self.path, "two files with one path", name)
            names.add(name)
            yield name, read

    def _entries(self) -> Iterator[tuple[str, str, int, Callable[[], bytes]]]:
        """Yield (name, kind, number of bytes, function that reads it) of all members. No name is checked yet.

        A kind is _FILE, _FOLDER or a description of what is refused.
        """
        raise NotImplementedError


class Tar(_Archive):
    """A tar archive, plain or compressed."""

    def _entries(self) -> Iterator[tuple[str, str, int, Callable[[], bytes]]]:
        with self.path.open("rb") as file:
            with _refuse_damage(self.path):
                forward = _ForwardStream(_decompress(file), self.path, self._limits.allowed_bytes(self.path))
                tar = tarfile.TarFile(fileobj=cast(IO[bytes], forward))
            while (member := self._next(tar, forward)) is not None:
                yield member.name, _kind(member), member.size, partial(self._content, tar, forward, member)
            with _refuse_damage(self.path):
                if forward.last_block != _END_BLOCK:  # tarfile takes a damaged header for the end
                    raise tarfile.ReadError("the end of the archive is missing")
                forward.drain()

    def _next(self, tar: tarfile.TarFile, forward: _ForwardStream) -> tarfile.TarInfo | None:
        forward.set_limit(MAX_HEADER_BYTES)
        with _refuse_damage(self.path):
            member = tar.next()
        cast(Any, tar).members.clear()  # tarfile keeps all of them: gigabytes for millions
        return member

    def _content(self, tar: tarfile.TarFile, forward: _ForwardStream, member: tarfile.TarInfo) -> bytes:
        forward.set_limit(member.size)
        with _refuse_damage(self.path):
            return cast(IO[bytes], tar.extractfile(member)).read()


class Zip(_Archive):
    """A zip archive."""

    def _entries(self) -> Iterator[tuple[str, str, int, Callable[[], bytes]]]:
        total_bytes, allowed_bytes = 0, self._limits.allowed_bytes(self.path)
        with _refuse_damage(self.path):
            archive = zipfile.ZipFile(self.path)
        with archive:
            for member in archive.infolist():
                if "\\" in member.filename:
                    name = normalize_name(member.filename, self.path)
                    raise DataRefused(
                        f"{self.path} holds a path with backslashes. Received: {name!r}. Pack it again by a program that "
                        "writes forward slashes, as the zip format asks for."
                    )
                total_bytes += member.file_size
                if total_bytes > allowed_bytes:
                    raise _too_large_error(self.path, allowed_bytes)
                yield member.filename, _kind_in_zip(member), member.file_size, partial(self._content, archive, member)

    def _content(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
        content = io.BytesIO()  # its value is no copy: a large member is in memory once
        with _refuse_damage(self.path), archive.open(member) as file:
            shutil.copyfileobj(file, content, _ZIP_READ_BYTES)
        return content.getvalue()


class _ForwardStream:
    """A stream that only goes forward, for tarfile. A step back in a compressed stream would start it again."""

    def __init__(self, stream: IO[bytes], path: Path, allowed_bytes: int) -> None:
        self._stream, self._path, self._allowed_bytes = stream, path, allowed_bytes
        self._position = 0
        self._readable_bytes = MAX_HEADER_BYTES
        self.last_block = b""

    def set_limit(self, num_bytes: int) -> None:
        """Set the number of bytes that may be read before the next call. Skipped bytes do not count."""
        self._readable_bytes = num_bytes

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self._readable_bytes:
            raise DataRefused(
                f"{self._path} has a member whose headers are too large. Received: {size:,} bytes where "
                f"{self._readable_bytes:,} may follow. Pack it again with short names and no extended attributes."
            )
        self._readable_bytes -= size
        self.last_block = self._advance(size)
        return self.last_block

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        if position < self._position:
            raise tarfile.ReadError("members overlap")
        while self._position < position and self._advance(min(position - self._position, 2**20)):
            pass
        return self._position

    def drain(self) -> None:
        """Read to the end, where a compressed stream has its checksum."""
        while self._advance(2**20):
            pass

    def _advance(self, size: int) -> bytes:
        content = self._stream.read(size)
        self._position += len(content)
        if self._position > self._allowed_bytes:
            raise _too_large_error(self._path, self._allowed_bytes)
        return content


def _kind(member: tarfile.TarInfo) -> str:
    if member.isdir():
        return _FOLDER
    if member.issym() or member.islnk():
        return "a link"
    return _FILE if member.isreg() and not member.issparse() else "a member that is no plain file"


def _kind_in_zip(member: zipfile.ZipInfo) -> str:
    mode = stat.S_IFMT(member.external_attr >> 16)
    if member.is_dir():
        return _FOLDER
    if mode not in (0, stat.S_IFREG):
        return "a link" if mode == stat.S_IFLNK else "a member that is no plain file"
    return "an encrypted file" if member.flag_bits & 1 else _FILE


def _is_tar_header(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _decompress(file: IO[bytes]) -> IO[bytes]:
    start = file.read(8)
    file.seek(0)
    for magic, decompressor in _DECOMPRESSORS.items():
        if start.startswith(magic):
            return cast(IO[bytes], decompressor(file, "rb"))
    return file


def _refusal(path: Path, kind: str, name: str) -> DataRefused:
    return DataRefused(f"{path} holds {kind}. Received: {name!r}. Pack it again from plain files and folders.")


def _too_large_error(path: Path, allowed_bytes: int) -> DataRefused:
    return DataRefused(
        f"{path} unpacks to too much. Received: more than {allowed_bytes:,} bytes from {path.stat().st_size:,}. "
        "Use a part of it, or unpack it and give the folder."
    )


@contextmanager
def _refuse_damage(path: Path) -> Generator[None]:
    """Turn errors of tarfile and zipfile into DataRefused. They raise a dozen types on damaged archives."""
    try:
        yield
    except (DataRefused, MemoryError):
        raise
    except Exception as error:
        raise DataRefused(
            f"{path} cannot be read as an archive. Received: {type(error).__name__}: {error}. Fetch or pack it again."
        ) from None
