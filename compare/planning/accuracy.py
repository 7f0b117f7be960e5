"""How good predictions were: errors, and the rank correlation with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from common.frozen import Frozen

TIE = 0.05
"""Times that differ by no more count as equally good."""
LEAST_FOR_INTERVAL = 5
PERFECT = 1 - 1e-9
"""A correlation beyond it is perfect: only rounding parts it from one. Fisher's z of it has no end."""


class Pair(Frozen):
    """One layout, predicted and measured."""

    contestant: str
    words: str
    predicted_seconds: float
    """Of a step."""
    measured_seconds: float
    """The median over repeats."""
    low_seconds: float
    """The fastest repeat ..."""
    high_seconds: float
    """... and the slowest."""
    n: int
    in_doubt: int = 0
    """Runs that other work disturbed, or that were too short to tell."""
    predicted_mib: float | None = None
    """Peak memory of the fullest rank."""
    measured_mib: float | None = None
    """The same, the largest of all repeats. None: not measured."""

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_seconds / self.measured_seconds - 1.0

    @property
    def memory_error(self) -> float | None:
        """(predicted - measured) / measured, of memory. None: it was not measured."""
        if self.predicted_mib is None or self.measured_mib is None:
            return None
        return self.predicted_mib / self.measured_mib - 1.0


class Accuracy(Frozen):
    """Of all pairs together."""

    n: int
    layouts: dict[str, int]
    """Of them, by framework."""
    median_error: float
    """Of the absolute errors."""
    worst_error: float
    rank_correlation: float | None
    """Spearman's, within frameworks: see `rank_correlation`. None: all have fewer than 3 pairs, or equal ones."""
    low: float | None
    """Its 95 % interval. None: too few pairs, or a perfect correlation."""
    high: float | None
    best_found: dict[str, bool]
    """By framework: whether the fastest measured layout, or one within 5 % of it, is among the first two predicted of those
    that were measured. Of two layouts it always is: such frameworks are left out."""
    median_memory_error: float | None
    """Of the absolute errors of peak memory. None: it was not measured."""
    worst_memory_error: float | None


def judge(pairs: Sequence[Pair]) -> Accuracy | None:
    """How good the predictions were. None: nothing was measured."""
    if not pairs:
        return None
    errors = [abs(each.error) for each in pairs]
    of_memory = [abs(each.memory_error) for each in pairs if each.memory_error is not None]
    groups: dict[str, list[Pair]] = {}
    for each in pairs:
        groups.setdefault(each.contestant, []).append(each)
    correlation, interval = rank_correlation(list(groups.values()))
    return Accuracy(
        n=len(pairs),
        layouts={name: len(group) for name, group in groups.items()},
        median_error=statistics.median(errors),
        worst_error=max(errors),
        rank_correlation=correlation,
        low=interval[0],
        high=interval[1],
        best_found={name: finds_best(group) for name, group in groups.items() if len(group) > 2},
        median_memory_error=statistics.median(of_memory) if of_memory else None,
        worst_memory_error=max(of_memory, default=None),
    )


def finds_best(pairs: Sequence[Pair]) -> bool:
    """Whether one of the first two predicted is the fastest measured, or as good within `TIE`."""
    fastest = min(each.measured_seconds for each in pairs)
    first = sorted(pairs, key=lambda each: each.predicted_seconds)[:2]
    return any(each.measured_seconds <= fastest * (1 + TIE) for each in first)


def rank_correlation(groups: Sequence[Sequence[Pair]]) -> tuple[float | None, tuple[float, float] | tuple[None, None]]:
    """Spearman's rank correlation of predicted and measured times within groups, pooled, and its 95 % interval.

    Times are ranked in each group, and ranks count from the group's mean. So the difference between two frameworks, which is
    easy to predict, adds nothing. The interval is that of a partial correlation by Fisher's z (a group more is a pair fewer),
    with the variance (1 + r^2 / 2) / (n - 3) of Bonett & Wright 2000. A perfect correlation has none.
    """
    from scipy import stats  # here: see scaling_laws

    groups = [each for each in groups if len(each) > 2]
    if not groups:
        return None, (None, None)

    def ranks(name: str) -> npt.NDArray[np.floating]:
        own = [stats.rankdata([getattr(each, name) for each in group]) for group in groups]
        return np.concatenate([each - each.mean() for each in own])

    one, other = ranks("predicted_seconds"), ranks("measured_seconds")
    spread = math.sqrt((one @ one) * (other @ other))
    if not spread:
        return None, (None, None)
    found = float(one @ other) / spread
    n = len(one) - (len(groups) - 1)
    if n < LEAST_FOR_INTERVAL or abs(found) > PERFECT:
        return found, (None, None)
    middle = math.atanh(found)
    half = 1.96 * math.sqrt((1 + found**2 / 2) / (n - 3))
    return found, (math.tanh(middle - half), math.tanh(middle + half))


def band(pairs: Sequence[Pair]) -> tuple[float, float] | None:
    """Factors on a prediction: the smallest and largest measured over predicted. None: nothing was measured."""
    ratios = [each.measured_seconds / each.predicted_seconds for each in pairs]
    return (min(ratios), max(ratios)) if ratios else None
