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
"""Losses may come so late after the clock has stopped: seconds, and part of the timed seconds."""
LEAST_LATE_EPOCHS = 2
"""Epochs whose losses come late, below which it may be the machine's doing."""
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
    """[ranks], of each rank from its own start until its own last update was done."""
    seconds: float
    """By the clock of all ranks."""
    late_seconds: float
    """How long the losses were waited for when the clock had stopped."""
    begun_before: float
    """How long before the clock started the input began to make the first timed batch, in seconds."""
    clock_stepped: float
    """By how many seconds the system's time was set meanwhile. Begin times are in it."""
    compilations: int
    """How far the trainer's count of what it has built rose while the clock ran."""
    updates: int
    """Those done beyond the planned ones."""
    moved: bool
    """Whether a parameter changed between the end of the clock and the end of the evaluation."""


class Audit:
    """Looks for defects of a run's clock, epoch after epoch.

    A busy machine may stop a process anywhere for a moment, and then losses come late once. If they come late in most epochs,
    the code does not wait for its device. All other evidence is exact, and no other work can make it.
    """

    def __init__(self) -> None:
        self._epochs: list[tuple[float, float]] = []
        """(seconds by the clock, seconds late) of each."""

    def defects(self, seen: Evidence) -> dict[str, str]:
        """What is wrong with the clock so far: each defect by its name, with the figures."""
        self._epochs.append((seen.seconds, seen.late_seconds))
        rank = int(seen.rank_seconds.argmax())
        longest, ran = float(seen.rank_seconds[rank]), f"the clock ran {seen.seconds:.2f} s"
        begun_before = seen.begun_before - abs(seen.clock_stepped)
        checks = (
            (longest > seen.seconds + RESOLUTION_SECONDS, f"rank {rank} trained for {longest:.2f} s, but {ran}"),
            (self._is_always_late, self._late_words),
            (begun_before > RESOLUTION_SECONDS, f"a batch was begun {seen.begun_before:.3f} s before the clock started"),
            (seen.compilations > 0, "a graph, or kernels for a batch size, were built in the timed steps"),
            (seen.updates != 0, f"{seen.updates:+d} updates beyond the planned ones"),
            (seen.moved, "parameters changed after the clock had stopped"),
        )
        return {name: f"{name}: {what}" for name, (found, what) in zip(DEFECTS, checks, strict=True) if found}

    def caution(self) -> str | None:
        """What may be a defect, or the machine's doing. No time of the run is reliable then. None if there is nothing."""
        if self._is_always_late or sum(late for _, late in self._epochs) <= self._allowed:
            return None
        return f"{self._late_words}: other work on the machine, or a device that was not waited for"

    @property
    def _allowed(self) -> float:
        return SLACK_SECONDS + SLACK * sum(seconds for seconds, _ in self._epochs)

    @property
    def _is_always_late(self) -> bool:
        """Whether too much is late even if every epoch is only as late as the middle one. Of two, that is the earlier."""
        number = len(self._epochs)
        middle = sorted(late for _, late in self._epochs)[(number - 1) // 2]
        return number >= LEAST_LATE_EPOCHS and number * middle > self._allowed

    @property
    def _late_words(self) -> str:
        seconds, late = map(sum, zip(*self._epochs, strict=True))
        return f"losses came {late:.2f} s after the clock had stopped; the clock ran {seconds:.2f} s"


def lasted(starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> float:
    """Seconds from the moment when all ranks were ready until the last rank had done its last update.

    Args:
        starts: [ranks], when each rank saw that all were ready, by a clock that all share.
        ends: [ranks], when each rank's last update was done, by the same clock.
    """
    return float(ends.max() - starts.min())


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
            timer.seconds = timer.elapsed() if timer.agreed_seconds is None else timer.agreed_seconds
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
        self.agreed_seconds: float | None = None
        """Of all ranks together, which have exchanged their times. None: the block ends with this process's device."""
        self.input_wait_seconds = 0.0
        self.compilations = 0
        self.rank_seconds: npt.NDArray[np.float64] = np.zeros(1)
        """[ranks], from each rank's own start until its own last update was done."""
        self.clock_stepped = 0.0
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
