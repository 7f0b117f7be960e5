"""Signals that wait, so that no process is started without being noted where it is ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM)
"""Those that ask a command to end."""


def name(number: int) -> str:
    """`SIGKILL`, or `signal 34` of a real-time signal, which has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def code_of(code: int) -> int:
    """An exit code, negative for a signal: also of a process that took SIGINT or SIGTERM itself, and then ended by it."""
    return 128 - code if code - 128 in ENDING else code


@contextmanager
def noted() -> Generator[list[int]]:
    """Let SIGINT and SIGTERM wait for the end of the block, for work that is finished once it is begun.

    Only the main thread handles signals, so in others this does nothing.

    Yields:
        The numbers of those that have arrived. No handler gets them.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return
    before = {number: signal.signal(number, lambda number, frame: arrived.append(number)) for number in ENDING}
    try:
        yield arrived
    finally:
        for number, handler in reversed(before.items()):  # SIGINT last: its handler may raise, and the other must be back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def deferred() -> Generator[None]:
    """Let SIGINT and SIGTERM wait for the end of the block. There the handlers from before get the first that arrived.

    Start a process and note it within one block: else a signal between the two leaves an orphan. The signals are not blocked,
    because a process that is started would inherit that. Only the main thread handles signals, so in others this does nothing.
    """
    arrived: list[int] = []
    try:
        with noted() as arrived:
            yield
    finally:
        if arrived:
            signal.raise_signal(arrived[0])
