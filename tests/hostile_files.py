"""What may lie in the place of a file that somebody else sends."""

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SECONDS = 20


def _hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 * 2**30)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


IN_PLACE: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (os.mkfifo, "is no plain file"),
    "device": (_device, "is no plain file"),
    "folder": (Path.mkdir, "is no plain file"),
    "20 GiB": (_hole, "has more than "),
}
"""Name: (what puts it there, what is said of it)."""


def put(name: str, path: Path) -> str:
    """Put one of `IN_PLACE` in the place of a file. Returns what is said of it."""
    path.unlink(missing_ok=True)
    made, said = IN_PLACE[name]
    made(path)
    return said


@contextmanager
def soon() -> Generator[None]:
    """Fail if the block waits, which it would do for ever."""

    def late(*_: object) -> None:
        pytest.fail(f"This takes longer than {_SECONDS} seconds.")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
