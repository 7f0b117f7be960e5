"""SIGINT and SIGTERM as one exception, so that started processes end and measurements are kept."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MESSAGE = "Interrupted."

SIGNAL_EXIT_BASE = 128
"""Exit code of a process that a signal ended, minus the number of the signal."""


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived."""

    message = _MESSAGE
    """The last line of the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = SIGNAL_EXIT_BASE + number


@contextmanager
def interruptible(message: str = _MESSAGE, *, until_exit: bool = False) -> Generator[None]:
    """Turn the first SIGINT or SIGTERM into Interrupted. Later signals are ignored until the outermost block has ended.

    A command says only once that it was interrupted, also if the signal comes twice, as `timeout` sends it.

    Args:
        message: the last line of a command that is interrupted within the block.
        until_exit: the process ends after the block. Then later signals are ignored until it has ended.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        for signal_number in _SIGNALS:
            signal.signal(signal_number, signal.SIG_IGN)
        raise Interrupted(number)

    with _signal_handlers(interrupt, until_exit=until_exit):
        try:
            yield
        except Interrupted as interruption:
            if message != _MESSAGE:
                interruption.message = message
            raise


@contextmanager
def exit_on_signal() -> Generator[None]:
    """Let SIGINT or SIGTERM end the process at once, while there is nothing to clean up or to keep."""

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, f"{_MESSAGE}\n".encode())
        os._exit(SIGNAL_EXIT_BASE + number)  # code that runs during imports may catch an exception

    with _signal_handlers(end):
        yield


_open_blocks = 0


@contextmanager
def _signal_handlers(handler: Callable[[int, FrameType | None], None], *, until_exit: bool = False) -> Generator[None]:
    global _open_blocks  # the handlers of signals are those of the process, too
    if _open_blocks and _signals_are_ignored():
        yield
        return
    previous_handlers = [signal.signal(number, handler) for number in _SIGNALS]
    _open_blocks += 1
    try:
        yield
    finally:
        _open_blocks -= 1
        if not ((_open_blocks or until_exit) and _signals_are_ignored()):
            for number, previous in zip(_SIGNALS, previous_handlers, strict=True):
                signal.signal(number, previous)


def _signals_are_ignored() -> bool:
    """Whether a signal has arrived within an open block."""
    return all(signal.getsignal(number) is signal.SIG_IGN for number in _SIGNALS)
