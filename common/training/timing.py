"""The clock of all frameworks: wall time by phase, with the device synchronised before and after."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import psutil

from common.artifacts.schema import Phases
from common.machine import machine

CAUTION_SECONDS, CAUTION_PART = 0.005, 0.01
"""Losses that arrive later than this after the clock has stopped, in seconds and as part of an epoch, are a caution."""
ALLOWED_LATE_SECONDS, ALLOWED_LATE_PART = 0.25, 0.05
"""Sum of late seconds over all epochs, in seconds and as part of the run, above which they may be a defect."""
LEAST_LATE_EPOCHS = 2
"""Least number of epochs with late losses for a defect. Fewer may be caused by the machine."""
RESOLUTION_SECONDS = 1e-3
"""Tolerance in seconds between two processes that read the system's clock."""
CLOCK_RATES = 1e-3
"""Relative difference that is allowed between the rates of two machines' clocks. NTP slews a clock by half of it."""

CLOCKS_DISAGREE = "clocks that disagree"
MAX_CLOCK_DIFFERENCE = 0.01
"""Relative difference that is allowed between the run's clock and another one over a span. More is a defect."""

DEFECTS = (
    "slow rank",
    "ranks without a common clock",
    "missing synchronisation",
    "queue filled off the clock",
    "compile inside the clock",
    "doubled step",
    "work moved into evaluation",
)
"""Names of the defects of a run's clock. Every run that is not a trial of a search is checked for all of them."""

STARTED_VARIABLE = "CONVTWINS_STARTED"
"""Environment variable with the start of a launcher of ranks, so that a rank's wall time counts from the command."""


def process_started() -> float:
    """Return the start of the run by `machine.clock` (on Linux to about 0.01 s: the kernel's own record)."""
    launcher_start = os.environ.get(STARTED_VARIABLE)
    if launcher_start:
        return float(launcher_start)
    if sys.platform != "linux":
        return psutil.Process().create_time()
    return int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


class ClockError(AssertionError):
    """The clock of a run does not cover what it should. The message begins with the name of the defect."""


class ClockSpan(NamedTuple):
    """Duration by a rank's own clock and by others. All fields are numbers, so that ranks can exchange it."""

    seconds: float
    """Seconds by the run's own clock, `time.perf_counter`."""
    kernel_min_seconds: float
    """Lower bound in seconds by the kernel's clock, `machine.clock`, which nobody can set."""
    kernel_max_seconds: float
    """Upper bound in seconds by the kernel's clock, wherever the process was paused while it read its clocks."""
    cpu_seconds: float
    """CPU seconds of the process, by the kernel."""
    cpus: float
    """Number of CPUs that the process can run on."""

    def disagreement(self) -> str | None:
        """Describe how another clock differs from the run's own by more than MAX_CLOCK_DIFFERENCE. None: no clock does."""
        own_words = f"by the run's own clock it lasted {self.seconds:.3f} s"
        reading_seconds = self.kernel_max_seconds - self.kernel_min_seconds + CLOCK_SECONDS
        if (
            not self.kernel_min_seconds * (1 - MAX_CLOCK_DIFFERENCE) - CLOCK_SECONDS
            <= self.seconds
            <= self.kernel_max_seconds * (1 + MAX_CLOCK_DIFFERENCE) + CLOCK_SECONDS
        ):
            return f"{own_words}, by the kernel's (CLOCK_BOOTTIME) {self.kernel_max_seconds:.3f} s"
        if self.cpu_seconds > self.cpus * (self.seconds * (1 + MAX_CLOCK_DIFFERENCE) + reading_seconds + TICK_SECONDS):
            return f"{own_words}, and {self.cpus:.0f} CPUs computed {self.cpu_seconds:.3f} s for it"
        return None


TICK_SECONDS = 0.01
"""Seconds of a kernel tick, the unit of the CPU time of threads on other CPUs. A span may include one more tick."""
CLOCK_SECONDS = 1e-6
"""Resolution in seconds of the kernel's clock: its seconds since boot are a float."""


def disagreement(spans_by_words: Mapping[str, Sequence[ClockSpan]], framework: str) -> str | None:
    """Describe which rank's clock differs from another one, and how. None: no clock does.

    Args:
        spans_by_words: the span in each rank, by a description of what was timed.
    """
    for words, spans in spans_by_words.items():
        for rank, span in enumerate(spans):
            if (difference := span.disagreement()) is not None:
                rank_words = f"rank {rank} of {framework}" if len(spans) > 1 else framework
                return f"{CLOCKS_DISAGREE}: {words} of {rank_words}: {difference}"
    return None


class ClockReading:
    """Readings of all clocks of this process at one moment. The kernel's clock is read before and after the others."""

    def __init__(self) -> None:
        self.before = machine.clock()
        self.wall, self.perf_counter, self.cpu = time.time(), time.perf_counter(), machine.process_cpu_seconds()
        self.after = machine.clock()

    def span_until(self, later: ClockReading, seconds: float | None = None) -> ClockSpan:
        """Return the span between two readings.

        Args:
            seconds: seconds that were recorded for it, read between `later.before` and `later.after`. None: by the readings.
        """
        return ClockSpan(
            seconds=later.perf_counter - self.perf_counter if seconds is None else seconds,
            kernel_min_seconds=max(later.before - self.after, 0.0),
            kernel_max_seconds=later.after - self.before,
            cpu_seconds=later.cpu - self.cpu,
            cpus=machine.usable_cpus(),
        )


class ClockEvidence(NamedTuple):
    """One rank's observations of an epoch's timed training. All fields are numbers, so that ranks can exchange it."""

    seconds: float
    """Seconds of the epoch, as they are recorded for all ranks."""
    rank_seconds: float
    """Seconds by this rank's clock from its start until its last update was done. The epoch takes at least as long."""
    barrier_to_barrier_seconds: float
    """Seconds by this rank's clock from before the first barrier until it knew that all had ended. The epoch takes at most as
    long."""
    unfinished_device_seconds: float
    """Seconds of device work that was still running when the clock stopped: until a synchronisation, and until the losses were
    available, without the time to read them."""
    prefetch_lead_seconds: float
    """Seconds from the input's begin of the earliest timed batch until the clock started. Infinite if a batch has no begin
    time."""
    clock_step_seconds: float
    """Largest change of the system's time during the epoch in seconds, in either direction. It affects begin times."""
    compilations: float
    """Increase of `BaseTrainer.compilations` while the clock ran."""
    updates: float
    """Number of updates beyond the planned ones."""
    parameters_changed: float
    """1 if a parameter changed between the end of the clock and the end of the evaluation, else 0."""


LateLosses = tuple[float, list[float]]
"""An epoch's seconds by the clock, and the seconds that each rank waited for losses after the clock had stopped."""


class ClockAudit:
    """Checks a run's clock for defects, epoch after epoch.

    A busy machine may pause a process anywhere, and then losses arrive late once. If they arrive late in most epochs, the code
    does not wait for its device. All other evidence is exact: other work on the machine cannot cause it.

    Args:
        epochs: the attribute `epochs` of an earlier attempt that the run resumes.
        stepped: the attribute `clock_step_caution` of that attempt.
    """

    def __init__(self, epochs: Sequence[LateLosses] = (), stepped: str | None = None) -> None:
        self.epochs = list(epochs)
        self.clock_step_caution = stepped
        """Sentence if the system's time was set by more than MAX_CLOCK_DIFFERENCE of an epoch: begin times are unknown."""

    def defects(self, evidence: Sequence[ClockEvidence]) -> dict[str, str]:
        """Return the defects of the clock so far by name, each with the figures of the first rank that has it.

        Args:
            evidence: each rank's evidence of the same epoch.
        """
        self.epochs.append((evidence[0].seconds, [row.unfinished_device_seconds for row in evidence]))
        defects: dict[str, str] = {}
        step_seconds = max(row.clock_step_seconds for row in evidence)
        if (
            self.clock_step_caution is None
            and step_seconds > MAX_CLOCK_DIFFERENCE * evidence[0].seconds + 2 * RESOLUTION_SECONDS
        ):
            self.clock_step_caution = (
                f"the system's time was set by {step_seconds:.3f} s while the clock ran {evidence[0].seconds:.3f} s: nothing "
                "tells whether batches were begun before"
            )
        for rank, row in enumerate(evidence):
            clock_words, rank_words = f"the clock ran {row.seconds:.2f} s", f" in rank {rank}" if len(evidence) > 1 else ""
            lead_seconds = row.prefetch_lead_seconds - row.clock_step_seconds
            max_seconds = row.barrier_to_barrier_seconds * (1 + CLOCK_RATES) + RESOLUTION_SECONDS
            checks = (
                (
                    row.rank_seconds > row.seconds + RESOLUTION_SECONDS,
                    f"rank {rank} trained for {row.rank_seconds:.2f} s, but {clock_words}",
                ),
                (
                    row.seconds > max_seconds,
                    f"{clock_words}, but rank {rank} knew after {row.barrier_to_barrier_seconds:.2f} s that all had ended",
                ),
                (self._is_always_late(rank), self._late_words(rank)),
                (
                    lead_seconds > RESOLUTION_SECONDS,
                    f"a batch was begun {row.prefetch_lead_seconds:.3f} s before the clock started{rank_words}"
                    if math.isfinite(row.prefetch_lead_seconds)
                    else f"a batch does not say when it was begun{rank_words}",
                ),
                (row.compilations > 0, f"a graph, or kernels for a batch size, were built in the timed steps{rank_words}"),
                (row.updates != 0, f"{row.updates:+.0f} updates beyond the planned ones{rank_words}"),
                (row.parameters_changed != 0, f"parameters changed after the clock had stopped{rank_words}"),
            )
            for name, (is_defect, description) in zip(DEFECTS, checks, strict=True):
                if is_defect:
                    defects.setdefault(name, f"{name}: {description}")
        return defects

    def caution(self) -> str | None:
        """Describe what may be a defect, or be caused by the machine. No time of the run is reliable then. None: nothing."""
        ranks = range(len(self.epochs[0][1]) if self.epochs else 0)
        suspects = [rank for rank in ranks if self._is_noticed(rank) or sum(self._late(rank)) > self._allowed_late_seconds]
        latest_rank = max(suspects, key=lambda rank: sum(self._late(rank)), default=None)
        if latest_rank is None or any(map(self._is_always_late, ranks)):
            return self.clock_step_caution
        return f"{self._late_words(latest_rank)}: other work on the machine, or a device that was not waited for"

    def _late(self, rank: int) -> list[float]:
        return [late[rank] for _, late in self.epochs]

    @property
    def _seconds(self) -> float:
        return sum(seconds for seconds, _ in self.epochs)

    @property
    def _allowed_late_seconds(self) -> float:
        return ALLOWED_LATE_SECONDS + ALLOWED_LATE_PART * self._seconds

    def _is_noticed(self, rank: int) -> bool:
        """Return whether the median epoch misses enough time to matter."""
        excess_seconds = [late[rank] - CAUTION_SECONDS - CAUTION_PART * seconds for seconds, late in self.epochs]
        return len(excess_seconds) >= LEAST_LATE_EPOCHS and _lower_median(excess_seconds) > 0.0

    def _is_always_late(self, rank: int) -> bool:
        """Return whether the sum is too late even if every epoch is only as late as the lower median."""
        number = len(self.epochs)
        return number >= LEAST_LATE_EPOCHS and number * _lower_median(self._late(rank)) > self._allowed_late_seconds

    def _late_words(self, rank: int) -> str:
        losses = f"losses of rank {rank}" if len(self.epochs[0][1]) > 1 else "losses"
        late = sum(self._late(rank))
        return f"{losses} came {late:.2f} s after the clock had stopped; the clock ran {self._seconds:.2f} s"


def _lower_median(values: Sequence[float]) -> float:
    """Return the lower median."""
    return sorted(values)[(len(values) - 1) // 2]


def elapsed_over_ranks(starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> float:
    """Return the seconds from the moment when all ranks were ready until the last rank had done its last update.

    Args:
        starts: [ranks], times when each rank left the barrier, by a clock that all share.
        ends: [ranks], times when each rank's last update was done, by the same clock.
    """
    return float(ends.max() - starts.min())


class Stopwatch:
    """Adds up wall time by phase. Time outside any phase is `other`.

    Args:
        synchronize: waits until the device has finished all queued work.
        started: start of the run, by `machine.clock`. The time until now is the import phase. None: it has none.
    """

    def __init__(self, synchronize: Callable[[], None], started: float | None = None) -> None:
        self._synchronize = synchronize
        self._import_seconds = 0.0 if started is None else max(machine.clock() - started, 0.0)
        self._last_reading = ClockReading()
        self._created = self._last_reading.perf_counter
        self._seconds = {"build": 0.0, "first_step": 0.0, "compile": 0.0, "training": 0.0, "evaluation": 0.0}
        self._input_wait_seconds = 0.0
        self._open_phase = ""
        self._waited_seconds = 0.0

    def drain(self) -> float:
        """Wait for the device, and return the seconds of waiting. A clock that has stopped before has missed them."""
        start = time.perf_counter()
        self._synchronize()
        return time.perf_counter() - start

    @contextmanager
    def phase(self, name: str) -> Generator[Timer]:
        """Time a block, with the device synchronised before and after. Blocks do not nest.

        Raises:
            ClockError: the block lies within another.
        """
        if self._open_phase:
            raise ClockError(f"time counted twice: phase {name} lies within phase {self._open_phase}")
        self._open_phase = name
        self._synchronize()
        timer = Timer()
        try:
            yield timer
        finally:
            self._synchronize()
            timer.seconds = timer.elapsed() if timer.global_seconds is None else timer.global_seconds
            self._seconds[name] += timer.seconds
            self._open_phase = ""
            if name == "training":
                self._input_wait_seconds += timer.input_wait_seconds

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Leave a block out of the run's clock: the run waits for its turn, and does nothing."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._waited_seconds += time.perf_counter() - start

    def clock(self) -> float:
        """Return the seconds since the start of the run, by its own clock, without those of waiting for its turns."""
        return self._import_seconds + time.perf_counter() - self._created - self._waited_seconds

    def span_since_last_call(self) -> ClockSpan:
        """Return the span since the last call of this, or since the construction."""
        before, self._last_reading = self._last_reading, ClockReading()
        return before.span_until(self._last_reading)

    def phases(self) -> Phases:
        """Return the phases until now. They add up to the wall time."""
        wall = self.clock()
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
    """A timed block. `seconds` is set when the block has ended."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.global_seconds: float | None = None
        """Seconds of all ranks together, which have exchanged their times. None: the block ends with this process's device."""
        self.input_wait_seconds = self.steps_seconds = 0.0
        """Seconds of waiting for batches. Seconds of the steps, until this process's device had done them."""
        self.compilations = 0
        self.rank_seconds = self.barrier_to_barrier_seconds = self.unfinished_device_seconds = self.clock_step_seconds = 0.0
        """Fields of `ClockEvidence`."""
        self._begin = ClockReading()
        self.started_at, self.start = self._begin.wall, self._begin.perf_counter
        self._min_offset, self._max_offset = math.inf, -math.inf
        self._compared_at = self.start
        self._compare_clocks()

    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    def end(self) -> ClockSpan:
        """Set `rank_seconds`. Returns their span by all clocks."""
        end = ClockReading()
        self.rank_seconds = self.elapsed()
        end.after = machine.clock()
        self.clock_step_seconds = self.measure_clock_step()
        return self._begin.span_until(end, self.rank_seconds)

    def measure_clock_step(self) -> float:
        """Return `ClockEvidence.clock_step_seconds`. It is updated after each batch, and by this call."""
        self._compare_clocks()
        return max(self._max_offset - self._min_offset, 0.0)

    def _compare_clocks(self) -> None:
        before, offset, after = machine.clock(), time.time() - time.perf_counter(), machine.clock()
        if after - before < RESOLUTION_SECONDS:  # else the process was held between the two
            self._min_offset, self._max_offset = min(self._min_offset, offset), max(self._max_offset, offset)

    @contextmanager
    def waiting_for_input(self) -> Generator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self.input_wait_seconds += end - start
            if end - self._compared_at >= RESOLUTION_SECONDS:  # a step may take microseconds, and the clocks are read to this
                self._compared_at = end
                self._compare_clocks()
