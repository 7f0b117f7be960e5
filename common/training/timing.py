"""One clock for both frameworks: wall time by phase, the device synchronised on both sides."""

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

NOTICED_SECONDS, NOTICED = 0.005, 0.01
"""Losses that come later than this after the clock has stopped, in seconds and part of an epoch, are a caution."""
SLACK_SECONDS, SLACK = 0.25, 0.05
"""Later than this over all epochs, they may be a defect."""
LEAST_LATE_EPOCHS = 2
"""Epochs whose losses come late, below which it may be the machine's doing."""
RESOLUTION_SECONDS = 1e-3
"""Between two processes that read the system's clock."""
CLOCK_RATES = 1e-3
"""Clocks of two machines may run apart by this part. NTP itself slews a clock by half of it."""

CLOCKS_DISAGREE = "clocks that disagree"
APART = 0.01
"""Part of a span by which the run's clock may differ from another one. More is a defect."""

DEFECTS = (
    "slow rank",
    "ranks without a common clock",
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
    """When the run was started, by `machine.clock` (on Linux to about 0.01 s: the kernel's own record)."""
    passed_on = os.environ.get(STARTED_VARIABLE)
    if passed_on:
        return float(passed_on)
    if sys.platform != "linux":
        return psutil.Process().create_time()
    return int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


class ClockError(AssertionError):
    """The clock of a run does not cover what it should. The message begins with the name of the defect."""


class Span(NamedTuple):
    """How long a stretch lasted by a rank's own clock, and by others. Numbers alone, so that the ranks can exchange it."""

    seconds: float
    """By the run's own clock, which is `time.perf_counter`."""
    kernel_least: float
    """By the kernel's clock that nobody sets, `machine.clock`. It lasted no less ..."""
    kernel_most: float
    """... and no more, wherever the process was held while it read its clocks."""
    cpu_seconds: float
    """CPU time of the process, by the kernel."""
    cpus: float
    """That it can run on."""

    def disagreement(self) -> str | None:
        """How another clock contradicts the run's own by more than APART, with both figures. None: none does."""
        own = f"by the run's own clock it lasted {self.seconds:.3f} s"
        read = self.kernel_most - self.kernel_least + CLOCK_SECONDS
        if (
            not self.kernel_least * (1 - APART) - CLOCK_SECONDS
            <= self.seconds
            <= self.kernel_most * (1 + APART) + CLOCK_SECONDS
        ):
            return f"{own}, by the kernel's (CLOCK_BOOTTIME) {self.kernel_most:.3f} s"
        if self.cpu_seconds > self.cpus * (self.seconds * (1 + APART) + read + TICK_SECONDS):
            return f"{own}, and {self.cpus:.0f} CPUs computed {self.cpu_seconds:.3f} s for it"
        return None


TICK_SECONDS = 0.01
"""The kernel counts a thread that runs on another CPU at ticks. So the CPU time of a span may have that of a tick before it."""
CLOCK_SECONDS = 1e-6
"""To which a clock of the kernel is read: its seconds since boot are a float."""


def disagreement(stretches: Mapping[str, Sequence[Span]], framework: str) -> str | None:
    """Which rank's clock contradicts another one, and how. None: no clock does.

    Args:
        stretches: what was timed, in words: its span in each rank.
    """
    for what, spans in stretches.items():
        for rank, span in enumerate(spans):
            if (how := span.disagreement()) is not None:
                whose = f"rank {rank} of {framework}" if len(spans) > 1 else framework
                return f"{CLOCKS_DISAGREE}: {what} of {whose}: {how}"
    return None


class Reading:
    """What the clocks of this process say at one moment. The kernel is asked before the others and after them."""

    def __init__(self) -> None:
        self.before = machine.clock()
        self.wall, self.own, self.cpu = time.time(), time.perf_counter(), machine.process_cpu_seconds()
        self.after = machine.clock()

    def until(self, later: Reading, seconds: float | None = None) -> Span:
        """The span between two readings.

        Args:
            seconds: that were recorded for it, read between `later.before` and `later.after`. None: those of the readings.
        """
        return Span(
            seconds=later.own - self.own if seconds is None else seconds,
            kernel_least=max(later.before - self.after, 0.0),
            kernel_most=later.after - self.before,
            cpu_seconds=later.cpu - self.cpu,
            cpus=machine.usable_cpus(),
        )


class Evidence(NamedTuple):
    """What one rank saw of an epoch's timed training. Numbers alone, so that the ranks can exchange it."""

    seconds: float
    """Of the epoch, as they are recorded for all ranks."""
    own_seconds: float
    """By this rank's clock: from its start until its last update was done. The epoch lasted no less."""
    meeting_seconds: float
    """By this rank's clock: from before all ranks met until it knew that all had ended. The epoch lasted no longer."""
    late_seconds: float
    """What the device still did when the clock had stopped: until it was surely done, and until the losses were there, without
    what reading them takes."""
    begun_before: float
    """How long before the clock started the input began to make a timed batch, in seconds. Of the earliest such batch. It is
    infinite if a batch does not say when it was begun."""
    clock_stepped: float
    """By how many seconds at most the system's time was set, one way or the other, meanwhile. Begin times are in it."""
    compilations: float
    """How far the trainer's count of what it has built rose while the clock ran."""
    updates: float
    """Those done beyond the planned ones."""
    moved: float
    """1 if a parameter changed between the end of the clock and the end of the evaluation, else 0."""


LateLosses = tuple[float, list[float]]
"""Of an epoch: its seconds by the clock, and for how many seconds each rank waited for losses when the clock had stopped."""


class Audit:
    """Looks for defects of a run's clock, epoch after epoch.

    A busy machine may stop a process anywhere for a moment, and then losses come late once. If they come late in most epochs,
    the code does not wait for its device. All other evidence is exact, and no other work can make it.

    Args:
        epochs: of an earlier attempt that the run resumes, as in `epochs`.
        stepped: the same, as in `stepped`.
    """

    def __init__(self, epochs: Sequence[LateLosses] = (), stepped: str | None = None) -> None:
        self.epochs = list(epochs)
        self.stepped = stepped
        """How the system's time was set by more than APART of an epoch. Nothing tells then when its batches were begun."""

    def defects(self, seen: Sequence[Evidence]) -> dict[str, str]:
        """What is wrong with the clock so far: each defect by its name, with the figures of the first rank that has it.

        Args:
            seen: by each rank in the same epoch.
        """
        self.epochs.append((seen[0].seconds, [each.late_seconds for each in seen]))
        found: dict[str, str] = {}
        stepped = max(each.clock_stepped for each in seen)
        if self.stepped is None and stepped > APART * seen[0].seconds + 2 * RESOLUTION_SECONDS:
            self.stepped = (
                f"the system's time was set by {stepped:.3f} s while the clock ran {seen[0].seconds:.3f} s: nothing tells "
                "whether batches were begun before"
            )
        for rank, each in enumerate(seen):
            ran, in_rank = f"the clock ran {each.seconds:.2f} s", f" in rank {rank}" if len(seen) > 1 else ""
            begun_before = each.begun_before - each.clock_stepped
            longest = each.meeting_seconds * (1 + CLOCK_RATES) + RESOLUTION_SECONDS
            checks = (
                (
                    each.own_seconds > each.seconds + RESOLUTION_SECONDS,
                    f"rank {rank} trained for {each.own_seconds:.2f} s, but {ran}",
                ),
                (
                    each.seconds > longest,
                    f"{ran}, but rank {rank} knew after {each.meeting_seconds:.2f} s that all had ended",
                ),
                (self._is_always_late(rank), self._late_words(rank)),
                (
                    begun_before > RESOLUTION_SECONDS,
                    f"a batch was begun {each.begun_before:.3f} s before the clock started{in_rank}"
                    if math.isfinite(each.begun_before)
                    else f"a batch does not say when it was begun{in_rank}",
                ),
                (each.compilations > 0, f"a graph, or kernels for a batch size, were built in the timed steps{in_rank}"),
                (each.updates != 0, f"{each.updates:+.0f} updates beyond the planned ones{in_rank}"),
                (each.moved != 0, f"parameters changed after the clock had stopped{in_rank}"),
            )
            for name, (is_found, what) in zip(DEFECTS, checks, strict=True):
                if is_found:
                    found.setdefault(name, f"{name}: {what}")
        return found

    def caution(self) -> str | None:
        """What may be a defect, or the machine's doing. No time of the run is reliable then. None if there is nothing."""
        ranks = range(len(self.epochs[0][1]) if self.epochs else 0)
        suspected = [rank for rank in ranks if self._is_noticed(rank) or sum(self._late(rank)) > self._allowed]
        last = max(suspected, key=lambda rank: sum(self._late(rank)), default=None)
        if last is None or any(map(self._is_always_late, ranks)):
            return self.stepped
        return f"{self._late_words(last)}: other work on the machine, or a device that was not waited for"

    def _late(self, rank: int) -> list[float]:
        return [late[rank] for _, late in self.epochs]

    @property
    def _seconds(self) -> float:
        return sum(seconds for seconds, _ in self.epochs)

    @property
    def _allowed(self) -> float:
        return SLACK_SECONDS + SLACK * self._seconds

    def _is_noticed(self, rank: int) -> bool:
        """Whether the middle epoch misses enough to matter."""
        missed = [late[rank] - NOTICED_SECONDS - NOTICED * seconds for seconds, late in self.epochs]
        return len(missed) >= LEAST_LATE_EPOCHS and _middle(missed) > 0.0

    def _is_always_late(self, rank: int) -> bool:
        """Whether too much is late even if every epoch is only as late as the middle one. Of two, that is the earlier."""
        number = len(self.epochs)
        return number >= LEAST_LATE_EPOCHS and number * _middle(self._late(rank)) > self._allowed

    def _late_words(self, rank: int) -> str:
        losses = f"losses of rank {rank}" if len(self.epochs[0][1]) > 1 else "losses"
        late = sum(self._late(rank))
        return f"{losses} came {late:.2f} s after the clock had stopped; the clock ran {self._seconds:.2f} s"


def _middle(values: Sequence[float]) -> float:
    """The lower median."""
    return sorted(values)[(len(values) - 1) // 2]


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
        started: start of the run, by `machine.clock`. The time until now is the import phase. None: it has none.
    """

    def __init__(self, synchronize: Callable[[], None], started: float | None = None) -> None:
        self._synchronize = synchronize
        self._import_seconds = 0.0 if started is None else max(machine.clock() - started, 0.0)
        self._looked = Reading()
        self._created = self._looked.own
        self._seconds = {"build": 0.0, "first_step": 0.0, "compile": 0.0, "training": 0.0, "evaluation": 0.0}
        self._input_wait_seconds = 0.0
        self._open = ""

    def drain(self) -> float:
        """Wait for the device. Returns for how many seconds: those that a clock missed which should have waited for it."""
        start = time.perf_counter()
        self._synchronize()
        return time.perf_counter() - start

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

    def clock(self) -> float:
        """Seconds since the run was started, by its own clock."""
        return self._import_seconds + time.perf_counter() - self._created

    def look(self) -> Span:
        """The span since the last call of this, or since the begin."""
        before, self._looked = self._looked, Reading()
        return before.until(self._looked)

    def phases(self) -> Phases:
        """The phases until now; they add up to the wall time."""
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
    """One timed block; `seconds` stands when the block has ended."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.agreed_seconds: float | None = None
        """Of all ranks together, which have exchanged their times. None: the block ends with this process's device."""
        self.input_wait_seconds = 0.0
        self.compilations = 0
        self.own_seconds = self.meeting_seconds = self.late_seconds = self.stepped_seconds = 0.0
        """See `Evidence`."""
        self._begin = Reading()
        self.started_at, self.start = self._begin.wall, self._begin.own
        self._least_ahead, self._most_ahead = math.inf, -math.inf
        self._compared = self.start
        self._compare_clocks()

    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    def end(self) -> Span:
        """Note `own_seconds`. Returns what all clocks say of them."""
        end = Reading()
        self.own_seconds = self.elapsed()
        end.after = machine.clock()
        self.stepped_seconds = self.clock_stepped()
        return self._begin.until(end, self.own_seconds)

    def clock_stepped(self) -> float:
        """See `Evidence`. It is seen whenever a batch has come, and when this is called."""
        self._compare_clocks()
        return max(self._most_ahead - self._least_ahead, 0.0)

    def _compare_clocks(self) -> None:
        before, ahead, after = machine.clock(), time.time() - time.perf_counter(), machine.clock()
        if after - before < RESOLUTION_SECONDS:  # else the process was held between the two
            self._least_ahead, self._most_ahead = min(self._least_ahead, ahead), max(self._most_ahead, ahead)

    @contextmanager
    def waiting_for_input(self) -> Generator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self.input_wait_seconds += end - start
            if end - self._compared >= RESOLUTION_SECONDS:  # a step may take microseconds, and the clocks are read to this
                self._compared = end
                self._compare_clocks()
