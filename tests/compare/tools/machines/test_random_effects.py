import math

import numpy as np
import pytest

from compare.statistics.statistics import MeanEstimate, mean_difference
from compare.tools.machines.random_effects import overall


def test_the_average_of_five_machines() -> None:
    means = (0.1, 0.3, 0.2, 0.4, 0.5)
    found = overall([MeanEstimate(mean, 0.05, 4) for mean in means])
    variance, critical = 0.025, 2.776445  # of the means; t of 4 degrees of freedom
    half = critical * math.sqrt(variance / 5)
    assert found.ratio.n == 5 and found.ratio.value == pytest.approx(math.exp(0.3))
    assert (found.ratio.low, found.ratio.high) == pytest.approx((math.exp(0.3 - half), math.exp(0.3 + half)), rel=1e-6)
    assert found.spread == pytest.approx(math.sqrt(variance - 0.05**2))
    reach = critical * math.sqrt(variance * 1.2)
    assert found.further == pytest.approx((math.exp(0.3 - reach), math.exp(0.3 + reach)), rel=1e-6)


def test_machines_that_differ_by_less_than_their_noise_have_no_spread_of_their_own() -> None:
    assert overall([MeanEstimate(mean, 0.1, 4) for mean in (0.20, 0.21, 0.19, 0.2, 0.2)]).spread == 0.0
    assert overall([MeanEstimate(0.2, 0.0, 4)] * 5).ratio.value == pytest.approx(math.exp(0.2))


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("machines", [5, 12])
def test_intervals_cover_the_truth_as_often_as_they_say(machines: int, spread: float) -> None:
    """Five repeats on each machine, whose noise is from 1 to 5 %. Planted: one that takes repeats for cases misses far more."""
    draw = np.random.default_rng(29)
    trials, covered, kept, of_repeats = 2000, 0, 0, 0
    for _ in range(trials):
        truths = 0.2 + spread * draw.standard_normal(machines + 1)
        noise = draw.uniform(0.01, 0.05, machines + 1)
        pairs = truths[:, None] + noise[:, None] * draw.standard_normal((machines + 1, 5))
        found = overall([mean_difference(list(each)) for each in pairs[:-1]])
        assert found.ratio.low is not None and found.ratio.high is not None
        covered += found.ratio.low <= math.exp(0.2) <= found.ratio.high
        kept += found.further[0] <= math.exp(pairs[-1].mean()) <= found.further[1]
        naive = mean_difference(list(pairs[:-1].ravel()))
        of_repeats += abs(naive.mean - 0.2) <= naive.half_width
    assert covered / trials >= 0.94 and kept / trials >= 0.92, (covered / trials, kept / trials)
    assert spread == 0.0 or of_repeats / trials < 0.93
