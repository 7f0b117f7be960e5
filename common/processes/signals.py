"""Deferred signals, so that every process that is started is also recorded for its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask a command to end."""


def name(number: int) -> str:
    """Return the name of a signal, e.g. `SIGKILL`, or `signal 34` for a real-time signal, which has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_code(code: int) -> int:
    """Return an exit code, negative for a signal, also if the process handled SIGINT or SIGTERM itself and then ended by it."""
    return 128 - code if code - 128 in TERMINATION_SIGNALS else code


@contextmanager
def record_signals() -> Generator[list[int]]:
    """Record SIGINT and SIGTERM during the block instead of handling them, for work that must not be interrupted.

    Only the main thread handles signals, so in others this does nothing.

    Yields:
        The numbers of the signals that have arrived. No handler gets them.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    previous = {number: signal.signal(number, lambda number, frame: received.append(number)) for number in TERMINATION_SIGNALS}
    try:
        yield received
    finally:
        for number, handler in reversed(previous.items()):  # SIGINT last: its handler may raise, and the other must be back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def defer_signals() -> Generator[None]:
    """Defer SIGINT and SIGTERM to the end of the block. There the previous handlers get the first that arrived.

    Start a process and note it within one block: else a signal between the two leaves an orphan. The signals are not blocked,
    because a process that is started would inherit that. Only the main thread handles signals, so in others this does nothing.
    """
    received: list[int] = []
    try:
        with record_signals() as received:
            yield
    finally:
        if received:
            signal.raise_signal(received[0])
