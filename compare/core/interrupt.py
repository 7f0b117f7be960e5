"""SIGINT and SIGTERM as one exception, so that what was started is ended and what was measured is kept."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_WORDS = "Interrupted."

SIGNALLED = 128
"""The exit code of a process that a signal ended is this and the signal's number."""


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived."""

    words = _WORDS
    """What the command says of it in the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = SIGNALLED + number


@contextmanager
def interruptible() -> Generator[None]:
    """Turn the first SIGINT or SIGTERM into Interrupted; those that follow wait until the children are ended."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in _NUMBERS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    with _handled_by(interrupt):
        yield


@contextmanager
def ended_at_once() -> Generator[None]:
    """Let SIGINT or SIGTERM end the process where there is nothing to tidy up or to keep."""

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, f"{_WORDS}\n".encode())
        os._exit(SIGNALLED + number)  # an exception may be lost in what imports raise and catch

    with _handled_by(end):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    before = [signal.signal(number, handler) for number in _NUMBERS]
    try:
        yield
    finally:
        for number, earlier in zip(_NUMBERS, before, strict=True):
            signal.signal(number, earlier)
