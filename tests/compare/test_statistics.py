import math

import pytest
from scipy import stats

from compare import statistics
from compare.statistics import Ratio, paired_ratio, spread


def test_spread_is_median_and_quartiles_of_the_finite_values() -> None:
    found = spread([1.0, 2.0, 3.0, 4.0, 5.0, math.nan])
    assert found is not None
    assert (found.low, found.median, found.high, found.n) == (2.0, 3.0, 4.0, 5)


def test_spread_of_nothing_is_none() -> None:
    assert spread([]) is None
    assert spread([math.nan, math.inf]) is None


def test_paired_ratio_is_the_t_interval_of_the_logarithms() -> None:
    pairs = [(2.0, 1.0), (2.2, 1.0), (1.9, 1.0), (2.1, 1.0), (2.05, 1.0)]
    found = paired_ratio(pairs)
    logs = [math.log(a / b) for a, b in pairs]
    low, high = stats.t.interval(0.95, 4, loc=sum(logs) / 5, scale=stats.sem(logs))
    assert found is not None and found.low is not None and found.high is not None
    assert found.value == pytest.approx(math.exp(sum(logs) / 5))
    assert (found.low, found.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))


def test_a_drift_that_meets_both_of_a_pair_leaves_their_ratio_alone() -> None:
    found = paired_ratio([(2.0 * drift, 1.0 * drift) for drift in (1.0, 3.0, 10.0)])
    assert found is not None
    assert found.low == pytest.approx(2.0) and found.high == pytest.approx(2.0)


def test_a_single_pair_has_no_interval() -> None:
    assert paired_ratio([(3.0, 2.0)]) == Ratio(value=math.exp(math.log(1.5)), low=None, high=None, n=1)


def test_pairs_that_are_not_positive_are_left_out() -> None:
    assert paired_ratio([(math.nan, 1.0), (1.0, 0.0)]) is None


def test_two_wild_repeats_have_a_finite_interval() -> None:
    found = paired_ratio([(1e-200, 1.0), (1e200, 1.0)])
    assert found is not None and found.high is not None and math.isfinite(found.high)
    assert statistics.inverse(found).low is not None


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Ratio(value=1.5, low=None, high=None, n=1), "too few repeats to tell (1 of 5); a 1.50 times as fast as b here"),
        (Ratio(value=0.5, low=0.4, high=0.6, n=4), "too few repeats to tell (4 of 5); b 2.00 times as fast as a here"),
        (Ratio(value=1.1, low=0.9, high=1.3, n=5), "no difference shown between a and b (a 1.10 (0.90 to 1.30) times as fast)"),
        (Ratio(value=1.5, low=1.4, high=1.6, n=5), "a is 1.50 (1.40 to 1.60) times as fast as b"),
        (Ratio(value=0.5, low=0.4, high=0.8, n=9), "b is 2.00 (1.25 to 2.50) times as fast as a"),
    ],
)
def test_a_verdict_is_never_stronger_than_its_data(ratio: Ratio, words: str) -> None:
    assert statistics.faster(ratio, "a", "b") == words


@pytest.mark.parametrize(
    ("ratio", "word"),
    [
        (None, None),
        (Ratio(value=9.0, low=8.0, high=10.0, n=4), "too few repeats to tell"),
        (Ratio(value=1.5, low=1.4, high=1.6, n=5), "pays"),
        (Ratio(value=1.1, low=0.9, high=1.3, n=5), "no gain shown"),
        (Ratio(value=0.7, low=0.6, high=0.8, n=5), "does not pay"),
    ],
)
def test_a_mode_pays_only_where_the_interval_lies_above_one(ratio: Ratio | None, word: str | None) -> None:
    assert statistics.pays(ratio) == word
