"""A temporary folder for a command or the processes of a run, which is removed even if they or their driver are killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Self

PREFIX = "cvtw-"
"""Short: on macOS a Unix socket's path has at most 103 letters, and 49 of them may be the temporary folder's."""

_own: set[Path] = set()
"""Those that this process has made."""


class PrivateFolder:
    """A folder of mode 0700 in the temporary folder. This process holds a lock on it until it ends.

    To make one removes those of killed processes: nobody holds their locks.
    """

    def __init__(self, parent: str | Path | None = None) -> None:
        parent = Path(parent or tempfile.gettempdir())
        _sweep(parent)
        self._lock: int | None = None
        while self._lock is None:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            try:
                self._lock = _locked(self.path)
            except (BlockingIOError, FileNotFoundError):
                continue  # another process took it for a stale one before it was locked
            except OSError:
                break  # a file system without locks: what a killed process leaves there stays
        _own.add(self.path)
        self.environment = {"TMPDIR": str(self.path)}
        """Makes it the temporary folder of a process."""

    def remove(self) -> None:
        """Remove it with all that is in it. A second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        _own.discard(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.remove()


def inside() -> bool:
    """Whether the temporary folder of this process is private already."""
    return Path(tempfile.gettempdir()).name.startswith(PREFIX)


def is_in_one(path: Path) -> bool:
    """Whether a file lies in such a folder of this process, and will be gone with it."""
    return not _own.isdisjoint(path.parents)


def check_room_for_sockets() -> None:
    """Refuse a temporary folder that cannot have the Unix sockets of `multiprocessing`, most often since its path is too long.

    Their maker would only write a traceback, and those that wait for its messages would hang.

    Raises:
        OSError: a sentence.
    """
    with socket.socket(socket.AF_UNIX) as tried:
        try:
            tried.bind(f"{tempfile.gettempdir()}/pymp-12345678/listener-12345678")
        except FileNotFoundError:
            return  # its length is right: only the folder of the socket is missing
        except OSError as error:
            raise OSError(
                f"The temporary folder cannot have the sockets of input workers: {error}. Received: {tempfile.gettempdir()}. "
                "Set TMPDIR to a folder with a short path"
            ) from None


def _locked(folder: Path) -> int:
    """A descriptor that holds the lock of a folder.

    Raises:
        BlockingIOError: another process holds it.
        FileNotFoundError: the folder is gone.
        OSError: it cannot be locked.
    """
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.stat()  # it may have been removed before it was locked
    except BaseException:
        os.close(held)
        raise
    return held


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.getuid():
                held = _locked(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(held)
