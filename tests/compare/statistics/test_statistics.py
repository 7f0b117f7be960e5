import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats
from syrupy.assertion import SnapshotAssertion

from compare.statistics import alpha_spending, statistics, verdict_words
from compare.statistics.statistics import JudgedRatio, Ratio, paired_ratio, spread, verdicts


def test_spread_is_median_and_quartiles_of_the_finite_values() -> None:
    found = spread([1.0, 2.0, 3.0, 4.0, 5.0, math.nan])
    assert found is not None
    assert (found.low, found.median, found.high, found.n) == (2.0, 3.0, 4.0, 5)


def test_spread_of_nothing_is_none() -> None:
    assert spread([]) is None
    assert spread([math.nan, math.inf]) is None


@pytest.mark.parametrize(("later", "quantiles"), [(0, (1.75, 2.5, 3.25)), (1, (2.0, 3.0, 4.0)), (2, None), (4, None)])
def test_values_that_are_later_than_all_others_shift_the_quantiles(
    later: int, quantiles: tuple[float, float, float] | None
) -> None:
    found = statistics.spread_with_later([4.0, 1.0, 3.0, 2.0], later)
    assert (found and (found.low, found.median, found.high)) == quantiles
    assert statistics.spread_with_later([], 3) is None


def test_paired_ratio_is_the_t_interval_of_the_logarithms() -> None:
    pairs = [(2.0, 1.0), (2.2, 1.0), (1.9, 1.0), (2.1, 1.0), (2.05, 1.0)]
    found = paired_ratio(pairs)
    logs = [math.log(a / b) for a, b in pairs]
    once = paired_ratio(pairs, one_look=True)
    for ratio, level in ((found, alpha_spending.level(5, 0.05)), (once, 0.05)):
        low, high = stats.t.interval(1.0 - level, 4, loc=sum(logs) / 5, scale=stats.sem(logs))
        assert ratio is not None and ratio.low is not None and ratio.high is not None
        assert ratio.value == pytest.approx(math.exp(sum(logs) / 5))
        assert (ratio.low, ratio.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))


def test_a_ratio_held_against_a_margin_is_that_of_pairs_so_much_closer() -> None:
    pairs = [(1.2, 1.0), (1.1, 1.0), (1.3, 1.1), (1.2, 1.1), (1.15, 1.0)]
    ratio, closer = statistics.paired_ratio(pairs), statistics.paired_ratio([(first, 1.05 * second) for first, second in pairs])
    assert ratio is not None and closer is not None
    held = statistics.relative_to(ratio, 1.05)
    assert held.n == closer.n and held.p != ratio.p
    assert (held.value, held.low, held.high, held.p) == pytest.approx((closer.value, closer.low, closer.high, closer.p))


def test_a_drift_that_meets_both_of_a_pair_leaves_their_ratio_alone() -> None:
    found = paired_ratio([(2.0 * drift, 1.0 * drift) for drift in (1.0, 3.0, 10.0)])
    assert found is not None
    assert found.low == pytest.approx(2.0) and found.high == pytest.approx(2.0)


def test_a_single_pair_has_no_interval() -> None:
    assert paired_ratio([(3.0, 2.0)]) == Ratio(value=math.exp(math.log(1.5)), low=None, high=None, n=1, p=None)


def test_pairs_that_are_not_positive_are_left_out() -> None:
    assert paired_ratio([(math.nan, 1.0), (1.0, 0.0)]) is None


def test_two_wild_repeats_have_a_finite_interval() -> None:
    found = paired_ratio([(1e-200, 1.0), (1e200, 1.0)], one_look=True)
    assert found is not None and found.high is not None and math.isfinite(found.high)
    assert statistics.inverse(found).low is not None


def test_p_is_that_of_the_paired_t_test_on_the_logarithms() -> None:
    pairs = [(2.0, 1.9), (2.2, 2.0), (1.9, 1.95), (2.1, 2.0), (2.05, 1.97)]
    found = paired_ratio(pairs)
    expected = stats.ttest_rel([math.log(first) for first, _ in pairs], [math.log(second) for _, second in pairs])
    once = paired_ratio(pairs, one_look=True)
    assert found is not None and once is not None
    assert once.p == pytest.approx(expected.pvalue)
    assert found.p == pytest.approx(alpha_spending.corrected_p(expected.pvalue, 5)) and found.p > once.p
    assert statistics.inverse(found).p == found.p


@pytest.mark.parametrize(("pairs", "p"), [([(2.0, 2.0)] * 5, 1.0), ([(2.0, 1.0)] * 5, 0.0), ([(2.0, 1.0)], None)])
def test_p_of_pairs_without_any_noise(pairs: list[tuple[float, float]], p: float | None) -> None:
    found = paired_ratio(pairs)
    assert found is not None and found.p == p


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        ([], []),
        ([0.03], [0.03]),
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.6, 0.5], [1.0, 1.0]),
        ([0.01, 0.01, 0.01], [0.03, 0.03, 0.03]),
    ],
)
def test_holm_steps_down_and_never_falls(p_values: list[float], adjusted: list[float]) -> None:
    assert statistics.holm(p_values) == pytest.approx(adjusted)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_rejects_what_its_rule_rejects(p_values: list[float]) -> None:
    """Holm's own words: from the smallest p on, as long as p <= level / (number of those left)."""
    rejected: set[int] = set()
    by_size = sorted(range(len(p_values)), key=lambda place: p_values[place])
    for rank, place in enumerate(by_size):
        if (len(p_values) - rank) * p_values[place] > 0.05:
            break
        rejected.add(place)
    assert {place for place, p in enumerate(statistics.holm(p_values)) if p <= 0.05} == rejected


def ratio(value: float, low: float | None, high: float | None, n: int, p: float | None = 0.01) -> Ratio:
    return Ratio(value=value, low=low, high=high, n=n, p=p)


def judged(*ratios: Ratio) -> JudgedRatio:
    return verdicts([(f"ratio {number}", each) for number, each in enumerate(ratios)])[0]


def test_a_difference_that_only_one_comparison_shows_is_none_among_many() -> None:
    likely, weak = ratio(1.1, 1.05, 1.15, 5, p=0.004), ratio(1.1, 1.01, 1.2, 5, p=0.04)
    assert [each.verdict for each in verdicts([("a", likely), ("b", weak)])] == ["above", "above"]
    equal = ratio(1.0, 0.9, 1.1, 5, p=0.9)
    many = verdicts([("a", likely), ("b", weak), ("c", equal)])
    assert [(each.verdict, each.family) for each in many] == [
        ("above", 3),
        ("no difference shown", 3),
        ("no difference shown", 3),
    ]
    assert [each.p for each in many] == pytest.approx([0.012, 0.08, 0.9])


def test_comparisons_of_too_few_pairs_count_because_more_repeats_may_test_them() -> None:
    few = ratio(2.0, 1.9, 2.1, 4, p=1e-4)
    found = verdicts([("few", few), ("enough", ratio(1.1, 1.01, 1.2, 5, p=0.04))])
    assert [(each.name, each.verdict, each.p, each.family) for each in found] == [
        ("few", "too few repeats to tell", None, 2),
        ("enough", "no difference shown", 0.08, 2),
    ]


ONE, FEW = ratio(1.5, None, None, 1, p=None), ratio(0.5, 0.4, 0.6, 4)
UNSHOWN, QUICK, SLOW = ratio(1.1, 0.9, 1.3, 5, p=0.21), ratio(1.5, 1.4, 1.6, 5), ratio(0.5, 0.4, 0.8, 9, p=1e-5)
HARDLY = ratio(1.0035, 1.003, 1.004, 5)
EQUAL = ratio(1.0, 0.9, 1.1, 5, p=0.9)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([ONE], "too few repeats to tell"),
        ([FEW], "too few repeats to tell"),
        ([UNSHOWN], "no difference shown"),
        ([QUICK], "above"),
        ([SLOW], "below"),
        ([HARDLY], "above"),
        ([statistics.inverse(HARDLY)], "below"),
        ([QUICK, EQUAL], "above"),
        ([QUICK, EQUAL, EQUAL, EQUAL, EQUAL], "no difference shown"),
    ],
)
def test_a_verdict_is_never_stronger_than_its_data(ratios: list[Ratio], verdict: str, snapshot: SnapshotAssertion) -> None:
    assert judged(*ratios).verdict == verdict and verdict_words.faster(judged(*ratios), "a", "b") == snapshot


@pytest.mark.parametrize(
    ("found", "side", "range_words"),
    [(QUICK, "a", None), (SLOW, "b", None), (ratio(0.825, 0.73, 0.93, 5), "b", "1.21 (1.08 to 1.37)"), (UNSHOWN, None, None)],
)
def test_a_sentence_names_the_faster_side_and_a_value_with_its_range(
    found: Ratio, side: str | None, range_words: str | None
) -> None:
    words = verdict_words.faster(judged(found), "a", "b")
    value, low, high = map(float, re.findall(r"is ([\d.]+) \(([\d.]+) to ([\d.]+)\) times as fast", words)[0])
    assert low <= value <= high and value >= 1.0
    assert side is None or words.startswith(f"{side} is ")
    assert range_words is None or range_words in words


@pytest.mark.parametrize(
    ("found", "words"),
    [(None, None), (FEW, "too few repeats to tell"), (QUICK, "pays"), (UNSHOWN, "no gain shown"), (SLOW, "does not pay")],
)
def test_a_mode_pays_only_where_the_interval_lies_above_one(found: Ratio | None, words: str | None) -> None:
    assert verdict_words.speedup_verdict(found and judged(found)) == words


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(1.2, 1.3, "1.20 to 1.30"), (0.9, 1.1, "0.90 to 1.10"), (0.998, 1.001, "0.998 to 1.001"), (1.0, 1.0, "1.00 to 1.00")],
)
def test_a_range_has_the_digits_that_tell_its_bounds_from_one(low: float, high: float, words: str) -> None:
    assert verdict_words.range_words(ratio(1.0, low, high, 5)) == words


@pytest.mark.parametrize(("pairs", "comparisons"), [(5, 1), (5, 8), (6, 8), (30, 3)])
def test_what_is_said_to_be_found_is_found_in_nine_of_ten_cases(pairs: int, comparisons: int) -> None:
    error = 0.03 / math.sqrt(pairs)
    least = statistics.detectable_mean(error, pairs - 1, comparisons)
    critical = stats.t.ppf(1 - 0.05 / 2 / comparisons, pairs - 1)
    noises = np.sqrt(stats.chi2.ppf((np.arange(2000) + 0.5) / 2000, pairs - 1) / (pairs - 1))
    assert stats.nct.sf(critical, pairs - 1, noises * least / error).mean() == pytest.approx(0.9, abs=1e-3)


@pytest.mark.slow
def test_so_many_pairs_as_are_said_to_be_needed_tell_a_ratio_from_a_border_and_one_fewer_does_not() -> None:
    logs = [math.log(1.0 + 0.05 * sign) for sign in (0, 1, -1, 2, -2, 1)]
    found = statistics.paired_ratio([(math.exp(each), 1.0) for each in logs], one_look=True)
    assert found is not None
    needed = statistics.pairs_needed(found, 1.05)
    assert needed is not None and needed > len(logs)
    noise, distance = float(stats.tstd(logs)), math.log(1.05) - sum(logs) / len(logs)
    most, fewer = (statistics.detectable_mean(noise / math.sqrt(number), number - 1, 1) for number in (needed, needed - 1))
    assert most <= distance < fewer
    # Above the border no number would do, and just below it no number that anybody makes.
    assert statistics.pairs_needed(found, found.value * 0.99) is None
    assert statistics.pairs_needed(found, found.value * 1.0001) is None


def test_the_difference_that_a_family_finds_is_that_of_its_middle_ratio() -> None:
    pairs = [[(1.0 + spread * sign, 1.0) for sign in (0, 1, -1, 2, -2)] for spread in (0.001, 0.01, 0.03)]
    ratios = [found for each in pairs if (found := paired_ratio(each)) is not None]
    logs = [math.log(first) for first, _ in pairs[1]]
    expected = math.expm1(statistics.detectable_mean(float(stats.sem(logs)), 4, 3, 5))
    assert statistics.resolution(ratios, 3) == pytest.approx(expected)
    words = verdict_words.family_words(verdicts([(str(number), each) for number, each in enumerate(ratios)]))
    assert words is not None and f"a difference of {float(f'{100 * expected:.2g}'):g} % in 90 %" in words
    assert statistics.resolution([ratio(1.0, None, None, 1)], 1) is None


def test_the_size_of_the_family_is_said(snapshot: SnapshotAssertion) -> None:
    families = ([("a", FEW)], [("b", QUICK)], [("a", SLOW), ("b", QUICK)])
    assert [verdict_words.family_words(verdicts(family)) for family in families] == snapshot


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        ([0.04, 0.03, 0.045], [0.045, 0.045, 0.045]),
        ([0.2, 0.01, 0.03], [0.2, 0.03, 0.06]),
        ([1.0, 0.001, 1.0], [1.0, 0.003, 1.0]),
        ([], []),
    ],
)
def test_hochberg_steps_up_and_is_never_above_holm(p_values: list[float], adjusted: list[float]) -> None:
    assert statistics.hochberg(p_values) == pytest.approx(adjusted)
    assert all(one <= other for one, other in zip(adjusted, statistics.holm(p_values), strict=True))


def test_a_difference_that_is_far_larger_takes_no_share_of_the_others_level() -> None:
    assert statistics.equivalence_p_values([0.04], [0.04]) == [0.04]
    assert statistics.equivalence_p_values([0.02, 1.0, 1.0], [0.02, 0.95, 0.99]) == pytest.approx([0.02 / 0.9, 1.0, 1.0])
    assert statistics.equivalence_p_values([0.02, 1.0, 1.0], [0.02, 0.89, 0.99]) == pytest.approx([0.04 / 0.9, 1.0, 1.0])
    assert statistics.equivalence_p_values([1.0, 1.0], [0.95, 0.99]) == [1.0, 1.0]


BASES = {"none": (), "one for all": (0,) * 8, "pairs of frameworks and modes": (0, 1, 2, 3, 1, 1, 5, 5)}
"""The row that each of 8 questions shares: none, the same serial row, or as in a run of both frameworks with two modes."""
OTHERS = {"one for all": range(1, 9), "pairs of frameworks and modes": (4, 5, 6, 7, 2, 3, 6, 7)}


@pytest.mark.parametrize("bases", BASES)
@pytest.mark.parametrize("beyond", [0.0, 0.1])
def test_no_difference_of_a_family_is_called_smaller_more_often_than_stated(bases: str, beyond: float) -> None:
    """One look at 8 one-sided tests at the border, or a little beyond it. Uncorrected, some p is below 5 % far more often."""
    trials, pairs = 40_000, 8
    draw = np.random.default_rng(6)
    if bases == "none":
        logs = draw.normal(0.0, 1.0, (trials, 8, pairs))
    else:
        rows = draw.normal(0.0, 0.7, (trials, 9, pairs))
        logs = rows[:, list(OTHERS[bases])] - rows[:, list(BASES[bases])]
    mean = logs.mean(axis=2) + beyond
    p = special.stdtr(pairs - 1, mean / (logs.std(axis=2, ddof=1) / math.sqrt(pairs)))
    some = p[(p < 0.05).any(axis=1)].tolist()  # the others call nothing
    false = sum(min(statistics.equivalence_p_values(each, each)) < 0.05 for each in some) / trials
    assert false <= stats.binom.isf(0.001, trials, 0.05) / trials
    assert beyond or bases == "one for all" or false > 0.8 * 0.05
    assert len(some) / trials > 0.1


@pytest.mark.parametrize(
    ("low", "value", "high", "verdict"),
    [
        (0.99, 1.0, 1.01, "no difference that matters"),
        (0.92, 1.0, 1.08, "no difference shown"),
        (0.99, 1.04, 1.09, "no difference shown"),
        (1.02, 1.03, 1.04, "above"),
        (1.2, 1.3, 1.4, "above"),
    ],
)
def test_a_ratio_is_smaller_than_the_effect_that_matters_if_it_is_surely_so(
    low: float, value: float, high: float, verdict: str
) -> None:
    found = verdicts([("a", ratio(value, low, high, 6, p=0.9 if low < 1.0 else 0.001))], smallest_effect=0.05)[0]
    assert found.verdict == verdict
    # An interval within the effect says so too. It is wider: it has two sides.
    assert (found.smaller_p or 0.0) < 0.05 or not (low > 1 / 1.05 and high < 1.05)
    assert found.smaller_p == pytest.approx(_two_one_sided(low, value, high, 6))


def _two_one_sided(low: float, value: float, high: float, pairs: int) -> float:
    error = math.log(high / low) / 2 / statistics.critical(pairs - 1, pairs)
    t = (math.log(1.05) - abs(math.log(value))) / error
    return alpha_spending.EQUIVALENCE.corrected_p(float(stats.t.sf(t, pairs - 1)), pairs) if t > 0 else 1.0


def test_a_family_of_equal_rows_is_called_equal_only_if_every_correction_allows_it(snapshot: SnapshotAssertion) -> None:
    equal, open_, far = ratio(1.0, 0.96, 1.04, 6, p=0.9), ratio(1.04, 1.0, 1.09, 6, p=0.5), ratio(1.3, 1.29, 1.31, 6, p=1e-6)
    few = ratio(1.0, 0.9, 1.1, 4, p=0.9)
    alone, *others = (
        verdicts([("a", equal), *[("b", other)] * 7], smallest_effect=0.05)[0].verdict for other in (equal, open_, far, few)
    )
    # One by one, all eight are shown. A question that is open takes its share. One whose difference is far larger does not.
    assert [alone, *others] == [
        "no difference that matters", "no difference shown", "no difference that matters", "no difference shown"
    ]  # fmt: skip
    alone = verdicts([("a", equal)], smallest_effect=0.05)[0]
    assert verdict_words.faster(alone, "a", "b") == snapshot
    assert verdict_words.speedup_verdict(alone) == "no difference of 5 % or more"
