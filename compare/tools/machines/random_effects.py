"""Combine the ratios of several machines. Machines differ, so each has a true ratio of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from compare.statistics.statistics import CONFIDENCE, MeanEstimate, Ratio, bounded_exp

LEAST_MACHINES = 5
"""Smallest number of machines for an average. Fewer do not show how much machines differ."""


class Overall(NamedTuple):
    """The ratio of an average machine, and how much machines differ."""

    ratio: Ratio
    """Geometric mean over machines, with a 95 % interval and p. They are valid if the number of machines was not chosen by
    their results."""
    spread: float
    """Standard deviation of the logarithms of the machines' true ratios, i.e. of the measured ones without their noise."""
    further: tuple[float, float]
    """Prediction interval: in about 95 % of cases one more machine like these, measured as they were, shows a ratio between the
    two; in 93 % if the machines' noise differs fivefold."""


def overall(machines: Sequence[MeanEstimate]) -> Overall:
    """Combine the logarithms of the machines' ratios. The machine is the random effect, and each counts alike.

    A machine's mean varies by its own noise and by what makes it another machine. The variance of the means holds both. So the
    t-test on the means needs no estimate of either. If the noise of machines differs, its false alarms stay below 5 %
    (Bakirov & Szekely 2005). Weights by each machine's noise would be narrower, but with five repeats it is hardly known.

    Args:
        machines: estimates of at least 2 machines.
    """
    number = len(machines)
    means = np.array([machine.mean for machine in machines])
    variance = float(np.var(means, ddof=1))
    estimate = MeanEstimate(float(means.mean()), math.sqrt(variance / number), number - 1)
    between = variance - float(np.mean([machine.error**2 for machine in machines]))
    half_width = float(special.stdtrit(number - 1, 0.5 + CONFIDENCE / 2)) * math.sqrt(variance * (1.0 + 1.0 / number))
    low, high = (bounded_exp(estimate.mean + sign * estimate.half_width) for sign in (-1.0, 1.0))
    return Overall(
        Ratio(value=bounded_exp(estimate.mean), low=low, high=high, n=number, p=estimate.p),
        math.sqrt(max(between, 0.0)),
        (bounded_exp(estimate.mean - half_width), bounded_exp(estimate.mean + half_width)),
    )
