"""A temporary folder for a command or the processes of a run, which is removed even if they or their driver are killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

PREFIX = "cvtw-"
"""Short prefix: on macOS a Unix socket's path has at most 103 letters, and the temporary folder may take 49 of them."""

_live_folders: set[Path] = set()
"""Private folders that this process has created and not yet removed."""


class PrivateFolder:
    """A folder of mode 0700 in the temporary folder. This process holds a lock on it until it ends.

    Creating one removes the folders of killed processes: nobody holds their locks.
    """

    def __init__(self, parent: str | Path | None = None) -> None:
        parent = Path(parent or tempfile.gettempdir())
        _remove_stale_folders(parent)
        self._lock: int | None = None
        while self._lock is None:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            try:
                self._lock = _lock_folder(self.path)
            except (BlockingIOError, FileNotFoundError):
                continue  # another process took it for a stale one before it was locked
            except OSError:
                break  # a file system without locks: what a killed process leaves there stays
        _live_folders.add(self.path)
        self.environment = {"TMPDIR": str(self.path)}
        """Environment variables that make it the temporary folder of a process."""

    def remove(self) -> None:
        """Remove the folder and its content. A second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        _live_folders.discard(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.remove()


def is_tempdir_private() -> bool:
    """Return whether the temporary folder of this process is private already."""
    return Path(tempfile.gettempdir()).name.startswith(PREFIX)


def contains(path: Path) -> bool:
    """Return whether a file lies in a private folder of this process, and will be removed with it."""
    return not _live_folders.isdisjoint(path.parents)


def _lock_folder(folder: Path) -> int:
    """Lock a folder. Returns the descriptor that holds the lock.

    Raises:
        BlockingIOError: another process holds it.
        FileNotFoundError: the folder is gone.
        OSError: it cannot be locked.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.stat()  # it may have been removed before it was locked
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove_stale_folders(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.getuid():
                descriptor = _lock_folder(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)
