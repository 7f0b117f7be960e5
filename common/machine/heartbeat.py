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
"""Within which a run that hangs is ended, unless its spec says otherwise."""


LOADING_SECONDS = 600.0
"""The same before a process has its data: it may wait for a download, which uses no CPU either."""


VARIABLE = "CONVTWINS_WATCH"


SIGNAL = signal.SIGUSR1


class Marks(NamedTuple):
    """How far a process has come; any change is progress."""

    beats: int = 0
    """Signs of life; the first says that it writes its stacks when it is asked."""
    steps: int = 0
    """Optimizer updates that are done."""
    stages: int = 0
    """Points that every rank of a run comes to in the same order; the first says that it has its data."""

    @property
    def position(self) -> tuple[int, int]:
        return self.steps, self.stages


MARKS_BYTES = 8 * len(Marks._fields)
"""Of all marks. Each is an int64."""

SHARED_BYTES = MARKS_BYTES + flight.BYTES
"""Size of the file that a watchdog shares with the process under its watch. The marks alone where no file may be so large."""

# Of this process: nobody's, until `attach` maps the watcher's.
_NOBODYS: npt.NDArray[np.int64] = np.zeros(len(Marks._fields), np.int64)
_own = _NOBODYS


def attach() -> None:
    """Be watched by the process that started this one, where it does so. Call once, early."""
    global _own  # a process is watched as a whole
    passed = os.environ.pop(VARIABLE, None)  # what this process starts is not it
    if passed is None:
        return
    marks, stacks = map(int, passed.split(","))
    shared = mmap.mmap(marks, 0)
    _own = np.frombuffer(shared, np.int64, len(Marks._fields))
    if len(shared) == SHARED_BYTES:
        flight.attach(memoryview(shared)[MARKS_BYTES:])
    # A handler in C, which needs neither the interpreter's lock nor a main thread that comes back to Python.
    faulthandler.register(SIGNAL, file=stacks, all_threads=True)
    heartbeat()


def is_watched() -> bool:
    """Whether the process that started this one would end it if it hung."""
    return _own is not _NOBODYS


def heartbeat() -> None:
    """Something was done."""
    _own[0] += 1


def stepped() -> None:
    """An optimizer update was done."""
    _own[1] += 1


def follow(steps: int) -> None:
    """Take over the steps of the first rank. A launcher does so, since who watches it does not see its ranks."""
    _own[1] = steps


def reached() -> None:
    """A point was reached that every rank comes to in the same order."""
    _own[2] += 1
