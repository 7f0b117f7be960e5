"""The ratio of two runs that took turns, from their slices.

Slice k of one run and of the other are the same steps of the same epoch. They were trained within seconds of each other, unless
a run was resumed alone or followed in a round of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from common.artifacts.schema import RunResult, Slice
from common.machine.interference import DISTURBED_FROM

LEAST_SLICES = 8
"""Number of pairs of slices below which the runs' own seconds make the ratio."""


def ratio(slow: RunResult, fast: RunResult) -> float | None:
    """Return the seconds of one run over those of another: a robust mean over their slices. None: too few slices are alike.

    A slice counts if both runs timed all its steps, and other work disturbed it in neither.
    """
    logs = [math.log(one.seconds / other.seconds) for one, other in paired(slow, fast) if not is_disturbed(one, other)]
    return math.exp(hodges_lehmann(logs)) if len(logs) >= LEAST_SLICES else None


def paired(one: RunResult, other: RunResult) -> Iterator[tuple[Slice, Slice]]:
    """Yield the slices of the same steps, of which both runs timed all. Much shorter ones, as of a first turn, are left out."""
    lengths = [slice_.steps for epoch in one.epochs for slice_ in epoch.slices]
    usual = max(set(lengths), key=lengths.count, default=0)
    for mine, theirs in zip(one.epochs, other.epochs, strict=False):
        left_out = {*mine.left_out, *theirs.left_out}
        by_steps = {(slice_.first_step, slice_.steps): slice_ for slice_ in theirs.slices}
        for slice_ in mine.slices:
            partner = by_steps.get((slice_.first_step, slice_.steps))
            steps = range(slice_.first_step, slice_.first_step + slice_.steps)
            is_whole = slice_.steps >= usual / 2 and left_out.isdisjoint(steps)
            if partner is not None and is_whole and min(slice_.seconds, partner.seconds) > 0.0:
                yield slice_, partner


def cores_lost(slice_: Slice) -> float:
    """Return the cores that other work or the hypervisor took from a run's CPUs in a slice."""
    return max(slice_.taken_cpu_seconds, slice_.stolen_cpu_seconds) / slice_.seconds if slice_.seconds else 0.0


def is_disturbed(*slices: Slice) -> bool:
    return any(cores_lost(slice_) > DISTURBED_FROM for slice_ in slices)


def hodges_lehmann(values: Sequence[float]) -> float:
    """Return the median of the means of all pairs of values, each value with itself included.

    It is as good as the mean where errors are normal (96 % of its precision), and single outliers hardly move it.
    """
    array = np.asarray(values, np.float64)
    upper = np.triu_indices(len(array))
    return float(np.median((array[:, None] + array)[upper]) / 2)
