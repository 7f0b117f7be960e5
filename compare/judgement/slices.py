"""The ratio of two runs that took turns, from their slices.

Slice k of one run and of the other are the same steps of the same epoch. They were trained within seconds of each other. A
slice counts by its seconds per timed step, for each run records other steps off the clock.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from common.artifacts.schema import EpochRecord, RunResult, Slice
from common.machine.interference import DISTURBED_FROM

LEAST_SLICES = 4
"""Number of pairs of slices below which the runs' own seconds make the ratio. From 4 on, the robust mean varies no more than
they do in simulations, and about half as much where a burst of other work meets one of the two runs."""
TICK_SECONDS = 0.01
"""Seconds of a tick of the kernel. It counts CPU time in ticks."""
LEAST_REPEATS = 3
"""Number of repeats below which nothing is said of their noise."""
MOST_VALUES = 1000
"""Most values whose robust mean is that of all at once: the means of their pairs take 8 MB."""


def ratio(slow: RunResult, fast: RunResult) -> float | None:
    """Return the seconds of one run over those of another: a robust mean over their slices. None: too few slices are alike.

    A slice counts if other work disturbed it in neither run.
    """
    logs = _logs(slow, fast)
    return math.exp(hodges_lehmann(logs)) if len(logs) >= LEAST_SLICES else None


def _logs(slow: RunResult, fast: RunResult) -> list[float]:
    """Return the logarithms of the ratios of the slices that count."""
    pairs = [pair for pair in paired(slow, fast) if not any(is_disturbed(timed.slice) for timed in pair)]
    return [math.log(one.step_seconds / other.step_seconds) for one, other in pairs]


class RatioNoise(NamedTuple):
    """Noise of the ratio of two rows, as standard deviations of its logarithm."""

    between_repeats: float
    within_repeats: float
    """Part of it that the noise of the slices of one repeat makes alone."""


def noise(pairs: Sequence[tuple[RunResult, RunResult]]) -> RatioNoise | None:
    """Return the noise of a ratio over repeats. None: fewer than LEAST_REPEATS of them have enough slices.

    Args:
        pairs: the two runs of each repeat.
    """
    by_repeat = [logs for slow, fast in pairs if len(logs := _logs(slow, fast)) >= LEAST_SLICES]
    if len(by_repeat) < LEAST_REPEATS:
        return None
    of_mean = [statistics.variance(logs) / len(logs) for logs in by_repeat]
    return RatioNoise(statistics.stdev(map(hodges_lehmann, by_repeat)), math.sqrt(statistics.fmean(of_mean)))


class TimedSlice(NamedTuple):
    """A slice and its timed steps."""

    slice: Slice
    steps: frozenset[int]
    """Numbers of its timed steps in the epoch, from 1."""

    @property
    def step_seconds(self) -> float:
        """Wall time of a timed step, at least one of them."""
        return self.slice.seconds / len(self.steps)


def paired(one: RunResult, other: RunResult) -> Iterator[tuple[TimedSlice, TimedSlice]]:
    """Yield the slices of the same steps of two runs.

    A slice is left out if either run timed less than half of the usual number of steps of it. So are those that end an epoch
    if one run alone timed their last step: its batch may be smaller. Runs of two rounds have no slices in common: one was made
    when the other had ended.
    """
    if one.round_id != other.round_id:
        return
    lengths = [slice_.steps for epoch in one.epochs for slice_ in epoch.slices]
    usual = max(set(lengths), key=lengths.count, default=0)
    for mine, theirs in zip(one.epochs, other.epochs, strict=False):
        partners = {(timed.slice.first_step, timed.slice.steps): timed for timed in _timed_slices(theirs)}
        for timed in _timed_slices(mine):
            partner = partners.get((timed.slice.first_step, timed.slice.steps))
            if (
                partner is not None
                and min(len(timed.steps), len(partner.steps)) >= max(usual / 2, 1)
                and (mine.steps in timed.steps) == (mine.steps in partner.steps)
                and min(timed.slice.seconds, partner.slice.seconds) > 0.0
            ):
                yield timed, partner


def took_turns(runs: Iterable[RunResult]) -> bool:
    """Return whether any of these runs took turns."""
    return any(epoch.slices for run in runs for epoch in run.epochs)


def spans(result: RunResult) -> set[tuple[int, int, int]]:
    """Return (epoch, first step, number of steps) of each slice of a run. Empty: it took no turns."""
    return {(epoch.epoch, slice_.first_step, slice_.steps) for epoch in result.epochs for slice_ in epoch.slices}


def first_rows(runs: Mapping[str, RunResult]) -> list[str]:
    """Return which row of a repeat began first in each slice that all its runs have, in the order of the training.

    Args:
        runs: {row id: run}, at least one.

    Returns:
        Ids of rows. Empty if a run recorded no times of its turns, or was interrupted meanwhile.
    """
    if any(run.resumes or run.restarts for run in runs.values()):
        return []
    begins = {
        row_id: {
            (epoch.epoch, slice_.first_step): slice_.began_at
            for epoch in run.epochs
            for slice_ in epoch.slices
            if slice_.began_at is not None
        }
        for row_id, run in runs.items()
    }
    shared = set[tuple[int, int]].intersection(*map(set, begins.values()))
    return [min(begins, key=lambda row_id: begins[row_id][place]) for place in sorted(shared)]


def _timed_slices(epoch: EpochRecord) -> Iterator[TimedSlice]:
    for slice_ in epoch.slices:
        steps = range(slice_.first_step, slice_.first_step + slice_.steps)
        yield TimedSlice(slice_, frozenset(steps).difference(epoch.left_out))


def cores_lost(slice_: Slice) -> float:
    """Return the least cores that other work or the hypervisor took in a slice. Readings of CPU time may be a tick off."""
    taken_seconds = max(slice_.taken_cpu_seconds, slice_.stolen_cpu_seconds) - TICK_SECONDS
    return max(taken_seconds, 0.0) / slice_.seconds if slice_.seconds else 0.0


def is_disturbed(slice_: Slice) -> bool:
    return cores_lost(slice_) > DISTURBED_FROM


def hodges_lehmann(values: Sequence[float]) -> float:
    """Return the median of the means of all pairs of values, each value with itself included.

    It is as good as the mean where errors are normal (96 % of its precision), and single outliers hardly move it. With
    very many values, it is the mean over equal parts, each spread over all.
    """
    parts = math.ceil(len(values) / MOST_VALUES)
    estimates: list[float] = []
    for part in range(parts):
        array = np.asarray(values[part::parts], np.float64)
        upper = np.triu_indices(len(array))
        estimates.append(float(np.median((array[:, None] + array)[upper]) / 2))
    return statistics.fmean(estimates)
