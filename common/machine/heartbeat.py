"""The marks that a process leaves of its progress, for a watchdog in another process.

Marks are a few bytes of shared memory: leaving one costs a store and no synchronisation. The ring of `flight` lies behind them.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from common.machine import flight

HANG_SECONDS = 60.0
"""Seconds until a run that hangs is ended, unless its spec says otherwise."""


LOADING_SECONDS = 600.0
"""Seconds until a process without its data counts as stuck. It may wait for a download, which uses no CPU either."""


WATCH_VARIABLE = "CONVTWINS_WATCH"


SIGNAL = signal.SIGUSR1


class Marks(NamedTuple):
    """Progress counters of a process. Any change is progress."""

    beats: int = 0
    """Signs of life. From the first on, the process writes its stacks on request."""
    steps: int = 0
    """Completed optimizer updates."""
    sync_points: int = 0
    """Synchronization points, which all ranks reach in the same order. From the first on, the process has its data."""

    @property
    def position(self) -> tuple[int, int]:
        return self.steps, self.sync_points


MARKS_BYTES = 8 * len(Marks._fields)
"""Size of all marks, one int64 each."""

SHARED_BYTES = MARKS_BYTES + flight.BYTES
"""Size of the file that a watchdog shares with its process. It holds the marks alone where no file may be so large."""

# Nobody reads this array. `attach` replaces it by the watcher's.
_UNWATCHED: npt.NDArray[np.int64] = np.zeros(len(Marks._fields), np.int64)
_marks = _UNWATCHED


def attach() -> None:
    """Write the marks where the process that started this one can read them, if it watches. Call once, early."""
    global _marks  # a process is watched as a whole
    descriptors = os.environ.pop(WATCH_VARIABLE, None)  # what this process starts is not it
    if descriptors is None:
        return
    marks, stacks = map(int, descriptors.split(","))
    shared = mmap.mmap(marks, 0)
    _marks = np.frombuffer(shared, np.int64, len(Marks._fields))
    if len(shared) == SHARED_BYTES:
        flight.attach(memoryview(shared)[MARKS_BYTES:])
    # A handler in C, which needs neither the interpreter's lock nor a main thread that comes back to Python.
    faulthandler.register(SIGNAL, file=stacks, all_threads=True)
    heartbeat()


def is_watched() -> bool:
    """Return whether the process that started this one would end it if it hung."""
    return _marks is not _UNWATCHED


def heartbeat() -> None:
    """Report a sign of life."""
    _marks[0] += 1


def count_step() -> None:
    """Report a completed optimizer update."""
    _marks[1] += 1


def set_steps(steps: int) -> None:
    """Report the steps of the first rank. For a launcher, whose watcher does not see its ranks."""
    _marks[1] = steps


def count_sync_point() -> None:
    """Report a synchronization point, which all ranks reach in the same order."""
    _marks[2] += 1
