"""SIGINT and SIGTERM as one exception, so that started processes end and measurements are kept."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_WORDS = "Interrupted."

SIGNALLED = 128
"""Exit code of a process that a signal ended, minus the number of the signal."""


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived."""

    words = _WORDS
    """The last line of the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = SIGNALLED + number


@contextmanager
def interruptible(words: str = _WORDS, *, to_the_end: bool = False) -> Generator[None]:
    """Turn the first SIGINT or SIGTERM into Interrupted. Later signals are ignored until the outermost block has ended.

    So a command says once that it was interrupted, also if the signal comes twice, as `timeout` sends it.

    Args:
        words: the last line of a command that is interrupted within the block.
        to_the_end: the process ends after the block. Then later signals are ignored until it has ended.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in _NUMBERS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    with _handled_by(interrupt, to_the_end=to_the_end):
        try:
            yield
        except Interrupted as interruption:
            if words != _WORDS:
                interruption.words = words
            raise


@contextmanager
def ended_at_once() -> Generator[None]:
    """Let SIGINT or SIGTERM end the process at once, while there is nothing to clean up or to keep."""

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, f"{_WORDS}\n".encode())
        os._exit(SIGNALLED + number)  # code that runs during imports may catch an exception

    with _handled_by(end):
        yield


_open_blocks = 0


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None], *, to_the_end: bool = False) -> Generator[None]:
    global _open_blocks  # the handlers of signals are those of the process, too
    if _open_blocks and _are_ignored():
        yield
        return
    before = [signal.signal(number, handler) for number in _NUMBERS]
    _open_blocks += 1
    try:
        yield
    finally:
        _open_blocks -= 1
        if not ((_open_blocks or to_the_end) and _are_ignored()):
            for number, earlier in zip(_NUMBERS, before, strict=True):
                signal.signal(number, earlier)


def _are_ignored() -> bool:
    """Within a block: whether a signal has arrived."""
    return all(signal.getsignal(number) is signal.SIG_IGN for number in _NUMBERS)
