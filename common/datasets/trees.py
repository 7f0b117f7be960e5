"""Trees of files: a folder here, an archive in `archives`; nothing is ever extracted to disk."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol

from common.datasets.dataset import DataRefused

MAX_FILE_BYTES = 256 * 2**20
MAX_FILES = 5_000_000


class Tree(Protocol):
    """The visible files of a folder or archive; hidden ones (a part of the path starts with a dot) are passed over."""

    path: Path

    def content_hash(self) -> str:
        """SHA-256 that changes when any file of the tree changes."""
        ...

    def files(self) -> list[str]:
        """POSIX paths below the root, in any order, each once.

        Raises:
            DataRefused: the tree holds something that is no plain file, or is absurdly large.
        """
        ...

    def read(self, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """(path, content) of each wanted file, in whichever order the tree gives them quickest."""
        ...


class Folder:
    """A folder; links are followed, as they are the user's own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def content_hash(self) -> str:
        digest = hashlib.sha256()
        for name in sorted(self.files()):
            encoded = name.encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
            with (self.path / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def files(self) -> list[str]:
        found: list[str] = []
        seen: set[str] = set()
        pending = [self.path]
        while pending:
            folder = pending.pop()
            real = os.path.realpath(folder)
            if real in seen:
                raise DataRefused(f"{folder} leads into the tree a second time. Received: {real}. Remove the link.")
            seen.add(real)
            with os.scandir(folder) as entries:
                for entry in entries:
                    path = folder / entry.name
                    name = checked_name(path.relative_to(self.path).as_posix(), self.path)
                    if is_hidden(name):
                        continue
                    if entry.is_dir():
                        pending.append(path)
                    elif entry.is_file():
                        check_size(entry.stat().st_size, path)
                        found.append(name)
                    else:
                        raise DataRefused(f"{path} is no file. Received: a broken link, device, pipe or socket. Remove it.")
            check_count(len(found), self.path)
        return found

    def read(self, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        for name in sorted(wanted):
            yield name, (self.path / name).read_bytes()


def checked_name(name: str, tree: Path) -> str:
    """A member's path in its shortest form, e.g. `a/b` for `./a//b`.

    Raises:
        DataRefused: it leads out of the tree, or is no valid Unicode.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or re.match(r"[A-Za-z]:[\\/]|\\", name):
        raise DataRefused(f"{tree} holds a path that leads out of it. Received: {name!r}. Use paths below one folder.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataRefused(f"{tree} holds a file name that is not UTF-8. Received: {name!r}. Rename it.") from None
    return path.as_posix()


def is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(name).parts)


def check_size(num_bytes: int, what: object) -> None:
    if not 0 <= num_bytes <= MAX_FILE_BYTES:
        raise DataRefused(f"{what} is too large. Received: {num_bytes:,} bytes. Use files of up to {MAX_FILE_BYTES:,} bytes.")


def check_count(num_files: int, tree: Path) -> None:
    if num_files > MAX_FILES:
        raise DataRefused(f"{tree} holds too many files. Received: more than {MAX_FILES:,}. Use a part of it.")
