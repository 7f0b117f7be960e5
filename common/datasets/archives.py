"""Trees of files inside .tar, .tar.gz, .tar.bz2, .tar.xz and .zip, read as streams and told apart by their content.

An archive from anywhere is hostile until shown otherwise: only plain files with paths below the root pass, and sizes
are bounded before anything is read.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from common.datasets.dataset import DataRefused
from common.datasets.trees import (
    Listing,
    Tree,
    check_count,
    check_size,
    checked_name,
    fingerprint_of_file,
    folders_without,
    is_hidden,
)

ALWAYS_ALLOWED_BYTES = 4 * 2**30
"""Total size of its files that any archive may have ..."""
ALLOWED_RATIO = 200
"""... and where that is more, as a multiple of its own size."""

_DECOMPRESSORS = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open}
# The last three: headers that make no sense, and methods that zipfile does not know.
_DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError, OverflowError, RuntimeError
)  # fmt: skip
_END_BLOCK = bytes(tarfile.BLOCKSIZE)


def recognise(path: Path) -> Tree | None:
    """The archive in a file, or None where the file is none."""
    with path.open("rb") as file:
        start = file.read(8)
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return Zip(path)
    if start.startswith(tuple(_DECOMPRESSORS)) or tarfile.is_tarfile(path):
        return Tar(path)
    return None


class _Archive:
    """What both kinds of archive share; each brings `_members`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fingerprint(self) -> tuple[str, int]:
        status = self.path.stat()
        return fingerprint_of_file(status), status.st_ctime_ns

    def content_hash(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def listing(self) -> Listing:
        files: list[str] = []
        folders: set[str] = set()
        with _refusing_damage(self.path):
            for name, read in self._members():
                if read:
                    files.append(name)
                else:
                    folders.add(name)
        return Listing(files, folders_without(files, folders))

    def read(self, wanted: Collection[str]) -> Iterator[tuple[str, Callable[[], bytes]]]:
        with _refusing_damage(self.path):
            for name, read in self._members():
                if read and name in wanted:
                    content = read()  # here: an archive is one stream, whichever thread decodes its images
                    yield name, lambda content=content: content

    def _members(self) -> Iterator[tuple[str, Callable[[], bytes] | None]]:
        """(path, function that reads it before the next one is asked for) of visible files; None for folders."""
        raise NotImplementedError


class Tar(_Archive):
    """A tar archive, plain or compressed."""

    def _members(self) -> Iterator[tuple[str, Callable[[], bytes] | None]]:
        seen: set[str] = set()
        num_members = 0
        with self.path.open("rb") as file:
            forward = _Forward(_decompressed(file), self.path)
            with tarfile.open(fileobj=cast(IO[bytes], forward), mode="r:") as tar:
                while (member := tar.next()) is not None:
                    cast(Any, tar).members.clear()  # tarfile keeps them all: gigabytes for millions
                    num_members += 1
                    check_count(num_members, self.path)
                    name = checked_name(member.name, self.path)
                    if member.isdir():
                        if not is_hidden(name):
                            yield name, None
                        continue
                    if member.issym() or member.islnk():
                        raise _refused(self.path, "a link", name)
                    if not member.isreg() or member.issparse():
                        raise _refused(self.path, "what is no plain file", name)
                    check_size(member.size, f"{name!r} in {self.path}")
                    if is_hidden(name):
                        continue
                    if name in seen:
                        raise _refused(self.path, "two files of one path", name)
                    seen.add(name)
                    yield name, cast(IO[bytes], tar.extractfile(member)).read
            if forward.last_block != _END_BLOCK:  # tarfile takes a torn header for the end
                raise tarfile.ReadError("the end of the archive is missing")


class Zip(_Archive):
    """A zip archive."""

    def _members(self) -> Iterator[tuple[str, Callable[[], bytes] | None]]:
        seen: set[str] = set()
        total_bytes, allowed_bytes = 0, _allowed_bytes(self.path)
        with zipfile.ZipFile(self.path) as archive:
            check_count(len(archive.infolist()), self.path)
            for member in archive.infolist():
                name = checked_name(member.filename, self.path)
                if member.is_dir():
                    if not is_hidden(name):
                        yield name, None
                    continue
                kind = stat.S_IFMT(member.external_attr >> 16)
                if kind == stat.S_IFLNK:
                    raise _refused(self.path, "a link", name)
                if kind not in (0, stat.S_IFREG):
                    raise _refused(self.path, "what is no plain file", name)
                if member.flag_bits & 1:
                    raise _refused(self.path, "an encrypted file", name)
                check_size(member.file_size, f"{name!r} in {self.path}")
                total_bytes += member.file_size
                if total_bytes > allowed_bytes:
                    raise _too_large(self.path, allowed_bytes)
                if is_hidden(name):
                    continue
                if name in seen:
                    raise _refused(self.path, "two files of one path", name)
                seen.add(name)
                yield name, partial(archive.read, member)


class _Forward:
    """What tarfile needs of a file, only forwards: a step back in a compressed stream would begin it again."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream, self._path, self._allowed_bytes = stream, path, _allowed_bytes(path)
        self._position = 0
        self.last_block = b""

    def read(self, size: int) -> bytes:
        check_size(size, f"a header in {self._path}")  # tarfile reads extended headers whole, whatever they claim
        content = self._stream.read(size)
        self._position += len(content)
        if self._position > self._allowed_bytes:
            raise _too_large(self._path, self._allowed_bytes)
        self.last_block = content
        return content

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        if position < self._position:
            raise tarfile.ReadError("members overlap")
        while self._position < position and self.read(min(position - self._position, 2**20)):
            pass
        return self._position


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    start = file.read(8)
    file.seek(0)
    for magic, decompressor in _DECOMPRESSORS.items():
        if start.startswith(magic):
            return cast(IO[bytes], decompressor(file, "rb"))
    return file


def _allowed_bytes(path: Path) -> int:
    return max(ALWAYS_ALLOWED_BYTES, ALLOWED_RATIO * path.stat().st_size)


def _refused(path: Path, kind: str, name: str) -> DataRefused:
    return DataRefused(f"{path} holds {kind}. Received: {name!r}. Pack it again from plain files and folders.")


def _too_large(path: Path, allowed_bytes: int) -> DataRefused:
    return DataRefused(
        f"{path} unpacks to too much. Received: more than {allowed_bytes:,} bytes from {path.stat().st_size:,}. "
        "Use a part of it, or unpack it and give the folder."
    )


@contextmanager
def _refusing_damage(path: Path) -> Generator[None]:
    try:
        yield
    except DataRefused:
        raise
    except _DAMAGE as error:
        raise DataRefused(f"{path} cannot be read as an archive. Received: {error}. Fetch or pack it again.") from None
