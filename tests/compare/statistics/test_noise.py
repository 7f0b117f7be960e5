"""How much the same code differs from itself."""

import math

import numpy as np
import pytest

from compare.statistics import noise


def test_nine_of_ten_neighbours_lie_within_the_range() -> None:
    draw = np.random.default_rng(1)
    neighbours = [(first, second) for first, second in np.exp(draw.normal(0.0, 0.02, (4000, 2))).tolist()]
    found = noise.of_neighbours(neighbours)
    assert found is not None and found.n == 4000
    inside = np.mean([found.low <= second / first <= found.high for first, second in neighbours])
    assert inside == pytest.approx(0.9, abs=0.002)
    assert math.log(found.high) == pytest.approx(1.645 * 0.02 * math.sqrt(2.0), rel=0.05)


def test_the_direction_of_neighbours_does_not_matter_and_few_tell_nothing() -> None:
    neighbours = [(1.0, 1.1), (1.0, 0.9), (1.0, 1.02), (2.0, 2.2)]
    forward, backward = (noise.of_neighbours(pairs) for pairs in (neighbours, [pair[::-1] for pair in neighbours]))
    assert forward is not None and backward is not None
    assert (forward.low, forward.high, forward.n) == pytest.approx((backward.low, backward.high, backward.n))
    assert noise.of_neighbours(neighbours[:2]) is None
    # A tenth of four ratios cannot be left out: the range holds the largest.
    assert forward.high == pytest.approx(1.0 / 0.9) and forward.share == "all 4"
    ten = noise.of_neighbours([(1.0, 1.0 + number / 100) for number in range(10)])
    assert ten is not None and ten.high < 1.09 and ten.share == "90 % of 10"
    found = noise.of_neighbours([(1.0, 1.0)] * 3)
    assert found is not None and (found.low, found.high) == (1.0, 1.0)
