"""A fault at a chosen moment: SIGKILL where a file is to be moved to its place, or a disk that is full for one file."""

import errno
import os
import signal
import sys
from pathlib import Path

VARIABLE = "DIES_AT"
"""`<n> <file name>`: dies where a file of that name, written beside its place, is to be moved there for the n-th time."""
FULL_VARIABLE = "FULL_AT"
"""`<n> <folder>`: the n-th file that this process opens there for writing does not fit on the disk. The file `<folder>.full`
gets a line then."""


def arm() -> None:
    """Let this process meet what the environment says."""
    if FULL_VARIABLE in os.environ:
        _arm_full_disk(*os.environ[FULL_VARIABLE].split(" ", 1))
    number, _, name = os.environ.get(VARIABLE, "").partition(" ")
    if not name:
        return
    move, left = Path.replace, int(number)

    def moved(file: Path, target: Path) -> Path:
        nonlocal left
        left -= Path(target).name == name
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return move(file, target)

    Path.replace = moved


def _arm_full_disk(number: str, folder: str) -> None:
    left = int(number)

    def opened(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event != "open" or not isinstance(arguments[0], str | os.PathLike):
            return
        path, mode, flags = os.fspath(arguments[0]), arguments[1], arguments[2]
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else flags & (os.O_WRONLY | os.O_RDWR)
        if not writes or not str(path).startswith(f"{folder}{os.sep}"):
            return
        left -= 1
        if left == 0:
            with Path(f"{folder}.full").open("a", encoding="utf-8") as file:
                file.write(f"{path}\n")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    sys.addaudithook(opened)
