"""One clock for both frameworks: wall time by phase, the device synchronised on both sides."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import psutil

from common.artifacts.schema import Phases

STARTED_VARIABLE = "CONVTWINS_STARTED"
"""A launcher of ranks passes its own start here, so that a rank's wall time counts from the command."""


def process_started() -> float:
    """When the run was started, in seconds since 1970 (on Linux to about 0.01 s: the kernel's own record)."""
    passed_on = os.environ.get(STARTED_VARIABLE)
    if passed_on:
        return float(passed_on)
    if sys.platform != "linux":
        return psutil.Process().create_time()
    # psutil adds the ticks since boot to a boot time in whole seconds, which is wrong by up to one of them.
    ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


class Stopwatch:
    """Adds up wall time by phase; what no phase claims is `other`.

    Args:
        synchronize: waits until the device has done all that was asked of it.
        started: start of the run, in seconds since 1970. The time until now is the import phase.
    """

    def __init__(self, synchronize: Callable[[], None], started: float) -> None:
        self._synchronize = synchronize
        self._import_seconds = max(time.time() - started, 0.0)
        self._created = time.perf_counter()
        self._seconds = {"build": 0.0, "first_step": 0.0, "training": 0.0, "evaluation": 0.0}
        self._input_wait_seconds = 0.0

    @contextmanager
    def phase(self, name: str) -> Generator[Timer]:
        """Time a block, from a synchronised device to a synchronised device."""
        self._synchronize()
        timer = Timer()
        try:
            yield timer
        finally:
            self._synchronize()
            timer.seconds = time.perf_counter() - timer.start
            self._seconds[name] += timer.seconds
            if name == "training":
                self._input_wait_seconds += timer.input_wait_seconds

    def phases(self) -> Phases:
        """The phases until now; they add up to the wall time."""
        wall = self._import_seconds + time.perf_counter() - self._created
        claimed = self._import_seconds + sum(self._seconds.values())
        return Phases(
            import_seconds=self._import_seconds,
            build_seconds=self._seconds["build"],
            first_step_seconds=self._seconds["first_step"],
            training_seconds=self._seconds["training"],
            input_wait_seconds=self._input_wait_seconds,
            evaluation_seconds=self._seconds["evaluation"],
            other_seconds=wall - claimed,
            wall_seconds=wall,
        )


class Timer:
    """One timed block; `seconds` stands when the block has ended."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.input_wait_seconds = 0.0
        self.start = time.perf_counter()
        self._lap = (0.0, 0.0)

    def lap(self) -> tuple[float, float]:
        """Seconds, and those of waiting for input, since the lap before; of a block that has ended, up to its end."""
        now = self.seconds or time.perf_counter() - self.start, self.input_wait_seconds
        before, self._lap = self._lap, now
        return now[0] - before[0], now[1] - before[1]

    @contextmanager
    def waiting_for_input(self) -> Generator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.input_wait_seconds += time.perf_counter() - start
