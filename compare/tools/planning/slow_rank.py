"""Slows one rank of a run down, as a slower or busy machine does."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

import psutil

from compare.running.launch import StartedProcess

PERIOD_SECONDS = 0.01
"""Period where a rank is stopped once. It is shorter than most steps, so that it acts like a slow processor."""
MOVE_SECONDS = 0.1
"""Seconds after which the next rank is slow, if ranks take turns."""
_POLL_SECONDS = 0.05
"""Seconds between two searches for ranks that have not started yet."""

_Result = TypeVar("_Result")


class Straggler(NamedTuple):
    """A slow rank, and how slow it is."""

    factor: float
    """Ratio of the slow rank's computing time to its usual one. 1: it is as fast as the others."""
    moves: bool = False
    """Whether each rank is slow in turn, and not only the last one."""

    @property
    def words(self) -> str:
        return f"{'each rank in turn' if self.moves else 'one rank'} {self.factor:g} times as slow"

    @property
    def key(self) -> str:
        """Suffix for the name of a run."""
        return f"x{self.factor:g}{'-moving' if self.moves else ''}"


EVEN = Straggler(1.0)


class Brake:
    """Context where one rank of a run that this process starts is slow.

    The rank is stopped with all its threads (SIGSTOP) for a part of each period, then continued (SIGCONT). This is a CPU quota
    that needs neither root nor a control group. Processes that a rank has started itself are not stopped.

    Args:
        ranks: number of ranks of the run.
        slowing: waits for the run's turn, see `Seat.slowing`. None: it takes none.
    """

    def __init__(
        self, straggler: Straggler, ranks: int, slowing: Callable[[], AbstractContextManager[bool]] | None = None
    ) -> None:
        self._straggler, self._ranks = straggler, ranks
        self._slowing = slowing or (lambda: contextlib.nullcontext(True))
        self._pid: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="brake")
        self.stopped_seconds = 0.0
        self.running_seconds = 0.0
        """Seconds when the slow rank was not stopped."""

    @property
    def factor(self) -> float:
        """Measured slowdown of the rank."""
        return 1.0 + self.stopped_seconds / self.running_seconds if self.running_seconds else 1.0

    def __enter__(self) -> Brake:
        if self._straggler.factor > 1.0:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def watching(self, looks: Generator[StartedProcess, None, _Result]) -> Generator[StartedProcess, None, _Result]:
        """Return what a generator that looks at the run's process returns, and slow that process's ranks meanwhile.

        Without it, all ranks below this process are the run's.
        """
        with contextlib.closing(looks):
            while True:
                try:
                    process = next(looks)
                except StopIteration as ended:
                    return ended.value
                self._pid = process.pid
                yield process

    def _run(self) -> None:
        ranks = self._find_ranks()
        if not ranks:
            return
        with contextlib.suppress(psutil.NoSuchProcess):  # the run has ended
            while not self._ended.is_set():
                worked_seconds = self.running_seconds + self.stopped_seconds
                turn = int(worked_seconds / MOVE_SECONDS) if self._straggler.moves else -1
                with self._slowing() as works:
                    if works:
                        self._brake_once(ranks[turn % self._ranks])

    def _brake_once(self, rank: psutil.Process) -> None:
        """Let the rank run and stop for one period. A stop that lasted too long makes the next ones shorter."""
        started = time.perf_counter()
        time.sleep(PERIOD_SECONDS / self._straggler.factor)
        stopped = time.perf_counter()
        self.running_seconds += stopped - started
        if (pause_seconds := (self._straggler.factor - 1.0) * self.running_seconds - self.stopped_seconds) <= 0.0:
            return
        rank.suspend()
        try:
            time.sleep(pause_seconds)
        finally:
            rank.resume()
        self.stopped_seconds += time.perf_counter() - stopped

    def _find_ranks(self) -> list[psutil.Process]:
        """Wait until all ranks have started, and return them by number. Empty: the run ended before."""
        while not self._ended.wait(_POLL_SECONDS):
            ranks: dict[int, psutil.Process] = {}
            for process in psutil.Process(self._pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    # Children of a rank inherit its variables, and come later.
                    if "RANK" in (variables := process.environ()):
                        ranks.setdefault(int(variables["RANK"]), process)
            if len(ranks) == self._ranks:
                return [ranks[rank] for rank in sorted(ranks)]
        return []
