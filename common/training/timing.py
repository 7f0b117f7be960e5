"""One clock for both frameworks: wall time by phase, the device synchronised on both sides."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import psutil

from common.artifacts.schema import Phases

SLACK_SECONDS, SLACK = 0.5, 0.1
"""Seconds of training that may lie outside the clock, absolute and as part of the timed ones, before it is a defect."""
RESOLUTION_SECONDS = 1e-3
"""Between two processes that read the system's clock."""

DEFECTS = (
    "slow rank",
    "missing synchronisation",
    "queue filled off the clock",
    "compile inside the clock",
    "doubled step",
    "work moved into evaluation",
)
"""What can be wrong with the clock of a run. Each training of its own looks for all of them."""

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


class ClockError(AssertionError):
    """The clock of a run does not cover what it should. The message begins with the name of the defect."""


class Evidence(NamedTuple):
    """What one process saw of an epoch's timed training."""

    rank_seconds: npt.NDArray[np.float64]
    """[ranks], of each rank until its own last update was done."""
    seconds: float
    """By the clock, in this process."""
    late_seconds: float
    """How long the losses were waited for when the clock had stopped."""
    begun_before: float
    """How long before the clock started the input began to make the first timed batch, in seconds."""
    compilations: int
    """How far the trainer's count rose while the clock ran."""
    updates: int
    """Those done beyond the planned ones."""
    moved: bool
    """Whether a parameter changed between the end of the clock and the end of the evaluation."""


class Audit:
    """Looks for defects of a run's clock, epoch after epoch.

    Seconds are added up over the epochs, and small ones pass: a busy machine may stop a process anywhere for a moment.
    """

    def __init__(self) -> None:
        self._seconds = self._late = 0.0
        self._rank_seconds: npt.NDArray[np.float64] = np.zeros(1)

    def defects(self, seen: Evidence) -> dict[str, str]:
        """What is wrong with the clock so far: each defect by its name, with the figures."""
        self._seconds += seen.seconds
        self._late += seen.late_seconds
        self._rank_seconds = self._rank_seconds + seen.rank_seconds
        allowed = SLACK_SECONDS + SLACK * self._seconds
        rank = int(self._rank_seconds.argmax())
        longest, ran = float(self._rank_seconds[rank]), f"the clock ran {self._seconds:.2f} s"
        checks = (
            (longest > self._seconds + allowed, f"rank {rank} trained for {longest:.2f} s, but {ran}"),
            (self._late > allowed, f"losses came {self._late:.2f} s after the clock had stopped; {ran}"),
            (seen.begun_before > RESOLUTION_SECONDS, f"a batch was begun {seen.begun_before:.3f} s before the clock started"),
            (seen.compilations > 0, "something was traced or compiled in the timed steps"),
            (seen.updates != 0, f"{seen.updates:+d} updates beyond the planned ones"),
            (seen.moved, "parameters changed after the clock had stopped"),
        )
        return {name: f"{name}: {what}" for name, (found, what) in zip(DEFECTS, checks, strict=True) if found}


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
        self._seconds = {"build": 0.0, "first_step": 0.0, "compile": 0.0, "training": 0.0, "evaluation": 0.0}
        self._input_wait_seconds = 0.0
        self._open = ""

    @contextmanager
    def phase(self, name: str) -> Generator[Timer]:
        """Time a block, from a synchronised device to a synchronised device. Blocks do not nest.

        Raises:
            ClockError: the block lies within another.
        """
        if self._open:
            raise ClockError(f"time counted twice: phase {name} lies within phase {self._open}")
        self._open = name
        self._synchronize()
        timer = Timer()
        try:
            yield timer
        finally:
            self._synchronize()
            timer.seconds = time.perf_counter() - timer.start
            self._seconds[name] += timer.seconds
            self._open = ""
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
            compile_seconds=self._seconds["compile"],
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
        self.compilations = 0
        self.rank_seconds: npt.NDArray[np.float64] = np.zeros(1)
        """[ranks], until each rank's own last update was done."""
        self.started_at = time.time()
        self.start = time.perf_counter()

    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    @contextmanager
    def waiting_for_input(self) -> Generator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.input_wait_seconds += time.perf_counter() - start
