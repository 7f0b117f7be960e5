"""SIGKILL at a chosen moment: where a file is to be moved to its place."""

import os
import signal
from pathlib import Path

VARIABLE = "DIES_AT"
"""`<n> <file name>`: dies where a file of that name, written beside its place, is to be moved there for the n-th time."""


def arm() -> None:
    """Let this process meet what the environment says."""
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
