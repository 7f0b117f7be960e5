"""How good predictions were: errors, and the rank correlation with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from common.frozen import Frozen

TIE = 0.05
"""Measured times that differ by no more count as equally good."""
LEAST_FOR_INTERVAL = 5


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

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_seconds / self.measured_seconds - 1.0


class Accuracy(Frozen):
    """Of all pairs together."""

    n: int
    median_error: float
    """Of the absolute errors."""
    worst_error: float
    rank_correlation: float | None
    """Spearman's. None: fewer than 3 pairs, or all equal."""
    low: float | None
    """Its 95 % interval (Bonett & Wright 2000). None: fewer than 5 pairs."""
    high: float | None
    best_found: dict[str, bool]
    """By framework: whether the fastest measured layout, or one within 5 % of it, is among the first two predicted."""


def judge(pairs: Sequence[Pair]) -> Accuracy | None:
    """How good the predictions were. None: nothing was measured."""
    if not pairs:
        return None
    errors = [abs(each.error) for each in pairs]
    correlation, interval = rank_correlation(
        [each.predicted_seconds for each in pairs], [each.measured_seconds for each in pairs]
    )
    groups: dict[str, list[Pair]] = {}
    for each in pairs:
        groups.setdefault(each.contestant, []).append(each)
    return Accuracy(
        n=len(pairs),
        median_error=statistics.median(errors),
        worst_error=max(errors),
        rank_correlation=correlation,
        low=interval[0],
        high=interval[1],
        best_found={name: finds_best(group) for name, group in groups.items()},
    )


def finds_best(pairs: Sequence[Pair]) -> bool:
    """Whether one of the first two predicted is the fastest measured, or as good within `TIE`."""
    fastest = min(each.measured_seconds for each in pairs)
    first = sorted(pairs, key=lambda each: each.predicted_seconds)[:2]
    return any(each.measured_seconds <= fastest * (1 + TIE) for each in first)


def rank_correlation(
    one: Sequence[float], other: Sequence[float]
) -> tuple[float | None, tuple[float, float] | tuple[None, None]]:
    """Spearman's rank correlation and its 95 % interval, by Fisher's z with the variance (1 + r^2 / 2) / (n - 3)."""
    if len(one) < 3 or len(set(one)) == 1 or len(set(other)) == 1:
        return None, (None, None)
    from scipy import stats  # here: see scaling_laws

    found = float(stats.spearmanr(one, other).statistic)  # pyright: ignore[reportAttributeAccessIssue]
    if len(one) < LEAST_FOR_INTERVAL:
        return found, (None, None)
    middle = math.atanh(min(max(found, -1 + 1e-9), 1 - 1e-9))
    half = 1.96 * math.sqrt((1 + found**2 / 2) / (len(one) - 3))
    return found, (math.tanh(middle - half), math.tanh(middle + half))


def band(pairs: Sequence[Pair]) -> tuple[float, float] | None:
    """Factors on a prediction: the smallest and largest measured over predicted. None: nothing was measured."""
    ratios = [each.measured_seconds / each.predicted_seconds for each in pairs]
    return (min(ratios), max(ratios)) if ratios else None
