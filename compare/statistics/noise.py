"""How much the same code differs from itself: the noise of a machine today."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from common.frozen import Frozen

LEAST_NEIGHBOURS = 3
"""Fewest ratios that tell a range."""


class NoiseRange(Frozen):
    """Range of the ratios of neighbouring runs of the same code, without the largest tenth."""

    low: float
    high: float
    n: int
    """Number of ratios."""

    @property
    def words(self) -> str:
        return f"Noise here today: {self.low:.2f} to {self.high:.2f}"


def of_neighbours(neighbours: Sequence[tuple[float, float]]) -> NoiseRange | None:
    """Return the range that holds 9 of 10 ratios of neighbours, in either direction. None: too few.

    Args:
        neighbours: positive figures of two runs of the same code, one after the other.
    """
    sizes = sorted(abs(math.log(later / earlier)) for earlier, later in neighbours)
    if len(sizes) < LEAST_NEIGHBOURS:
        return None
    size = statistics.quantiles(sizes, n=10, method="inclusive")[-1]
    return NoiseRange(low=math.exp(-size), high=math.exp(size), n=len(sizes))
