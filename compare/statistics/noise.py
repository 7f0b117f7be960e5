"""How much the same code differs from itself: the noise of a machine today."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from common.frozen import Frozen

LEAST_NEIGHBOURS = 3
"""Fewest ratios that tell a range."""
LEAST_FOR_A_TENTH = 10
"""Fewest ratios for a mean without the outer tenths."""


class NoiseRange(Frozen):
    """Range of the ratios of neighbouring runs of the same code: without the largest tenth, or of all if they are few."""

    low: float
    high: float
    n: int
    """Number of ratios."""

    @property
    def words(self) -> str:
        return f"Noise here today: {self.low:.2f} to {self.high:.2f}"

    @property
    def share(self) -> str:
        """How many of the ratios lie within the range, in words."""
        return f"all {self.n}" if self.n < LEAST_FOR_A_TENTH else f"90 % of {self.n}"


def of_neighbours(neighbours: Sequence[tuple[float, float]]) -> NoiseRange | None:
    """Return the range that holds 9 of 10 ratios of neighbours, in either direction. Fewer than 10: all. None: too few.

    Args:
        neighbours: positive figures of two runs of the same code, one after the other.
    """
    sizes = sorted(abs(math.log(later / earlier)) for earlier, later in neighbours)
    if len(sizes) < LEAST_NEIGHBOURS:
        return None
    is_few = len(sizes) < LEAST_FOR_A_TENTH
    size = sizes[-1] if is_few else statistics.quantiles(sizes, n=10, method="inclusive")[-1]
    return NoiseRange(low=math.exp(-size), high=math.exp(size), n=len(sizes))
