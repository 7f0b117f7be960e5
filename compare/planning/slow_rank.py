"""One rank of a running run made slower, as a machine that is slower or has other work makes it."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import NamedTuple

import psutil

PERIOD_SECONDS = 0.01
"""A rank is stopped once in each. It is shorter than most steps, as a slow processor would be."""
MOVE_SECONDS = 0.1
"""After which a slow rank that moves is the next one."""
_LOOK_SECONDS = 0.05
"""Between two looks for ranks that have not started yet."""


class Straggler(NamedTuple):
    """Which rank is slow, and how slow."""

    factor: float
    """Times as long as it would compute. 1: it is as fast as the others."""
    moves: bool = False
    """Whether each rank is slow in turn, and not the last one alone."""

    @property
    def words(self) -> str:
        return f"{'each rank in turn' if self.moves else 'one rank'} {self.factor:g} times as slow"

    @property
    def key(self) -> str:
        """For the name of a run."""
        return f"x{self.factor:g}{'-moving' if self.moves else ''}"


EVEN = Straggler(1.0)


class Brake:
    """While the block lasts, a rank of the run that this process starts meanwhile is slow.

    It is stopped (SIGSTOP) for a part of each period, all its threads, and goes on (SIGCONT). That is a CPU quota, and it
    needs neither root nor a control group. Processes that a rank has started itself are left alone.
    """

    def __init__(self, straggler: Straggler, ranks: int) -> None:
        self._straggler, self._ranks = straggler, ranks
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="brake")
        self.stopped_seconds = 0.0
        self.running_seconds = 0.0
        """Of the slow rank. Time while it was stopped does not count."""

    @property
    def factor(self) -> float:
        """Times as long as it took, by this clock."""
        return 1.0 + self.stopped_seconds / self.running_seconds if self.running_seconds else 1.0

    def __enter__(self) -> Brake:
        if self._straggler.factor > 1.0:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        found = self._found()
        if not found:
            return
        begun = time.perf_counter()
        with contextlib.suppress(psutil.NoSuchProcess):  # the run has ended
            while not self._over.is_set():
                moved = int((time.perf_counter() - begun) / MOVE_SECONDS) if self._straggler.moves else -1
                self._brake_once(found[moved % self._ranks])

    def _brake_once(self, rank: psutil.Process) -> None:
        """One period. A stop that lasted too long, since this thread was not woken, makes the next ones shorter."""
        started = time.perf_counter()
        time.sleep(PERIOD_SECONDS / self._straggler.factor)
        stopped = time.perf_counter()
        self.running_seconds += stopped - started
        if (wanted := (self._straggler.factor - 1.0) * self.running_seconds - self.stopped_seconds) <= 0.0:
            return
        rank.suspend()
        try:
            time.sleep(wanted)
        finally:
            rank.resume()
        self.stopped_seconds += time.perf_counter() - stopped

    def _found(self) -> list[psutil.Process]:
        """The ranks by number, once all have started. Empty: the run ended before."""
        while not self._over.wait(_LOOK_SECONDS):
            found: dict[int, psutil.Process] = {}
            for each in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    # What a rank starts has its variables too, and comes later.
                    if "RANK" in (variables := each.environ()):
                        found.setdefault(int(variables["RANK"]), each)
            if len(found) == self._ranks:
                return [found[rank] for rank in sorted(found)]
        return []
