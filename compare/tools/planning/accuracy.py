"""Accuracy of predictions: errors, and the rank correlation with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from common.frozen import Frozen
from compare.cli.wording import percent

TIE = 0.05
"""Largest relative difference of times that count as equally good."""
MIN_PAIRS_FOR_INTERVAL = 5
PERFECT = 1 - 1e-9
"""Smallest correlation that counts as 1: the rest is rounding. Fisher's z of it is unbounded."""


class PredictionPair(Frozen):
    """One layout, predicted and measured."""

    contestant: str
    words: str
    predicted_seconds: float
    """Predicted seconds of a step."""
    measured_seconds: float
    """Measured seconds of a step: median over repeats."""
    low_seconds: float
    """Measured seconds of a step in the fastest repeat."""
    high_seconds: float
    """Measured seconds of a step in the slowest repeat."""
    n: int
    in_doubt: int = 0
    """Number of runs that other work disturbed, or that were too short to tell."""
    predicted_mib: float | None = None
    """Predicted peak memory of the fullest rank, in MiB."""
    measured_mib: float | None = None
    """Measured peak memory of the fullest rank, in MiB: largest of all repeats. None: not measured."""

    @property
    def error(self) -> float:
        """Relative error of the time: (predicted - measured) / measured."""
        return self.predicted_seconds / self.measured_seconds - 1.0

    @property
    def memory_error(self) -> float | None:
        """Relative error of the memory: (predicted - measured) / measured. None: it was not measured."""
        if self.predicted_mib is None or self.measured_mib is None:
            return None
        return self.predicted_mib / self.measured_mib - 1.0


class Accuracy(Frozen):
    """Accuracy of all predictions that were measured."""

    n: int
    layouts: dict[str, int]
    """Number of layouts by framework."""
    median_error: float
    """Median of the absolute relative errors of times."""
    worst_error: float
    rank_correlation: float | None
    """Spearman's correlation within frameworks, see `rank_correlation`. None: all have fewer than 3 pairs, or equal ones."""
    low: float | None
    """Lower end of the correlation's 95 % interval. None: too few pairs, or a perfect correlation."""
    high: float | None
    best_found: dict[str, bool]
    """Whether the fastest measured layout, or one within 5 % of it, is among the first two predicted, by framework. Frameworks
    with two measured layouts are left out, since it always is."""
    median_memory_error: float | None
    """Median of the absolute relative errors of peak memory. None: it was not measured."""
    worst_memory_error: float | None


def judge(pairs: Sequence[PredictionPair]) -> Accuracy | None:
    """Return the accuracy of the predictions. None: nothing was measured."""
    if not pairs:
        return None
    errors = [abs(pair.error) for pair in pairs]
    memory_errors = [abs(pair.memory_error) for pair in pairs if pair.memory_error is not None]
    groups: dict[str, list[PredictionPair]] = {}
    for pair in pairs:
        groups.setdefault(pair.contestant, []).append(pair)
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
        median_memory_error=statistics.median(memory_errors) if memory_errors else None,
        worst_memory_error=max(memory_errors, default=None),
    )


def finds_best(pairs: Sequence[PredictionPair]) -> bool:
    """Return whether one of the first two predicted is the fastest measured, or as good within `TIE`."""
    fastest = min(pair.measured_seconds for pair in pairs)
    first = sorted(pairs, key=lambda pair: pair.predicted_seconds)[:2]
    return any(pair.measured_seconds <= fastest * (1 + TIE) for pair in first)


def rank_correlation(
    groups: Sequence[Sequence[PredictionPair]],
) -> tuple[float | None, tuple[float, float] | tuple[None, None]]:
    """Return Spearman's rank correlation of predicted and measured times within groups, pooled, and its 95 % interval.

    Times are ranked in each group, and ranks count from the group's mean. So the difference between two frameworks, which is
    easy to predict, adds nothing. The interval is that of a partial correlation by Fisher's z (a group more is a pair fewer),
    with the variance (1 + r^2 / 2) / (n - 3) of Bonett & Wright 2000. A perfect correlation has none.
    """
    from scipy import stats  # here: see scaling_laws

    groups = [group for group in groups if len(group) > 2]
    if not groups:
        return None, (None, None)

    def ranks(name: str) -> npt.NDArray[np.floating]:
        ranked = [stats.rankdata([getattr(pair, name) for pair in group]) for group in groups]
        return np.concatenate([group_ranks - group_ranks.mean() for group_ranks in ranked])

    predicted_ranks, measured_ranks = ranks("predicted_seconds"), ranks("measured_seconds")
    scale = math.sqrt((predicted_ranks @ predicted_ranks) * (measured_ranks @ measured_ranks))
    if not scale:
        return None, (None, None)
    correlation = float(predicted_ranks @ measured_ranks) / scale
    n = len(predicted_ranks) - (len(groups) - 1)
    if n < MIN_PAIRS_FOR_INTERVAL or abs(correlation) > PERFECT:
        return correlation, (None, None)
    middle = math.atanh(correlation)
    half = 1.96 * math.sqrt((1 + correlation**2 / 2) / (n - 3))
    return correlation, (math.tanh(middle - half), math.tanh(middle + half))


def error_band(pairs: Sequence[PredictionPair]) -> tuple[float, float] | None:
    """Return the smallest and largest ratio of measured to predicted seconds. None: nothing was measured."""
    ratios = [pair.measured_seconds / pair.predicted_seconds for pair in pairs]
    return (min(ratios), max(ratios)) if ratios else None


def sentences(judgement: Accuracy | None) -> list[str]:
    """Describe the accuracy of the predictions of measured layouts."""
    if judgement is None:
        return []
    sentences = [
        f"Seconds per step of {judgement.n} measured layouts: median error {100 * judgement.median_error:.0f} %, largest "
        f"{100 * judgement.worst_error:.0f} %."
    ]
    if judgement.median_memory_error is not None and judgement.worst_memory_error is not None:
        sentences.append(
            f"Peak memory of the fullest rank: median error {100 * judgement.median_memory_error:.0f} %, largest "
            f"{100 * judgement.worst_memory_error:.0f} %."
        )
    if judgement.rank_correlation is not None:
        scope = "the framework" if len(judgement.layouts) == 1 else "each framework, pooled"
        none = "no interval" if abs(judgement.rank_correlation) > PERFECT else "too few for an interval"
        interval = f"95 % interval {judgement.low:.2f} to {judgement.high:.2f}" if judgement.low is not None else none
        sentences.append(f"Rank correlation within {scope}: {judgement.rank_correlation:.2f} ({interval}, n = {judgement.n}).")
    for name, hit in judgement.best_found.items():
        sentences.append(
            f"{name}: of the {judgement.layouts[name]} layouts that were measured, the fastest is {'' if hit else 'not '}among "
            f"the first two predicted (ties within {percent(TIE)} count)."
        )
    return sentences
