"""Statistics of repeats: medians with spread, paired ratios with an interval, verdicts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from scipy import special

from common.frozen import Frozen
from compare.statistics import alpha_spending

LEAST_PAIRS = 3
"""Fewest pairs for an interval, if repeats may be added."""
VERDICT_PAIRS = 5
"""Fewest pairs for a verdict: a t-interval over fewer is too wide, a bootstrap raises false alarms."""
MOST_PAIRS = 200
"""Largest number of pairs that `pairs_needed` returns."""
UNBOUNDED_FROM = 100.0
"""Upper bound divided by value, above that an interval of too few pairs is called unbounded."""

CONFIDENCE = 0.95
"""Confidence of each single interval, and of all verdicts of a family together."""
SIGNIFICANCE = 0.05
"""Level of all tests of a family: 1 - CONFIDENCE."""

POWER = 0.9
"""Rate of finding a difference of `detectable_mean`, on average over what the noise may truly be."""

HOPELESS_P = 0.9
"""Equivalence tests with a one-look p above this are left out of the correction, so hopeless rows cost the others no power."""

MARGIN = 0.01
"""Relative difference below which a report adds `by less than 1 %`. The layout of memory alone can make as much."""

Verdict = Literal["above", "below", "no difference that matters", "no difference shown", "too few repeats to tell"]
"""Verdict on a ratio: above or below one, surely nearer to one than the effect that matters, or why neither is shown."""


class Spread(Frozen):
    """Median and interquartile range of `n` values."""

    median: float
    low: float
    """25 % quantile."""
    high: float
    """75 % quantile."""
    n: int

    def times(self, factor: float) -> Spread:
        """Return the spread in another unit."""
        return Spread(median=factor * self.median, low=factor * self.low, high=factor * self.high, n=self.n)


class Ratio(Frozen):
    """The geometric mean of paired ratios, with its 95 % interval on the logarithms.

    Interval and p are valid however often repeats are added and looked at, unless the function that makes it says otherwise.
    """

    value: float
    low: float | None
    """None for fewer than 3 pairs, which have no interval."""
    high: float | None
    n: int
    p: float | None = None
    """Two-sided p of the paired t-test that the mean of the logarithms is zero. Not corrected for other comparisons."""

    @property
    def has_enough_pairs(self) -> bool:
        """Whether there are enough pairs for a verdict."""
        return self.n >= VERDICT_PAIRS

    @property
    def is_bounded(self) -> bool:
        """Whether the interval, if there is one, is narrow enough to mean anything.

        That of two noisy pairs may span millions.
        """
        if self.low is None or self.high is None or self.has_enough_pairs or self.low < 0:
            return True
        return self.high < UNBOUNDED_FROM * self.value


class JudgedRatio(Frozen):
    """One ratio of a family with its verdict."""

    name: str
    ratio: Ratio
    verdict: Verdict
    p: float | None
    """p-value, corrected for the family by Holm's rule. None if there are too few pairs."""
    family: int
    """Number of comparisons that are judged together. One with too few pairs counts, because more repeats may test it."""
    smallest_effect: float | None = None
    """Relative difference that matters, e.g. 0.05, if one was named before the runs."""
    disturbed: bool = False
    """Whether other work disturbed one of the runs. Then a report gives not known, and no ratio."""
    smaller_p: float | None = None
    """p-value of the test that the true difference is as large as `smallest_effect`, corrected by `equivalence_p_values`."""


class MeanEstimate(NamedTuple):
    """A mean with its standard error and its degrees of freedom."""

    mean: float
    error: float
    freedom: float

    @property
    def p(self) -> float:
        """Two-sided p of the t-test that the true mean is zero."""
        t = abs(self.mean) / self.error if self.error else (math.inf if self.mean else 0.0)
        return 2.0 * float(special.stdtr(self.freedom, -t))

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval."""
        return float(special.stdtrit(self.freedom, 0.5 + CONFIDENCE / 2)) * self.error


def mean_difference(differences: Sequence[float], *, rounding: float = 0.0) -> MeanEstimate:
    """Estimate the mean difference of one or more pairs.

    Args:
        rounding: resolution of both values, e.g. one image of an accuracy. The error includes rounding (Sheppard 1897), so
            that a few equal differences do not pass for a sure one.
    """
    number = len(differences)
    mean = math.fsum(differences) / number
    if number == 1:
        return MeanEstimate(mean, math.inf, 1)
    variance = math.fsum((difference - mean) ** 2 for difference in differences) / (number - 1)
    return MeanEstimate(mean, math.sqrt((variance + rounding**2 / 6) / number), number - 1)


def mean_difference_of_samples(before: Sequence[float], now: Sequence[float]) -> MeanEstimate:
    """Estimate the difference of the means of two independent samples of different variance (Welch 1947)."""
    mean = float(np.mean(now)) - float(np.mean(before))
    if min(len(before), len(now)) < 2:
        return MeanEstimate(mean, math.inf, 1)
    variances = [float(np.var(values, ddof=1)) / len(values) for values in (before, now)]
    parts = sum(part**2 / (len(values) - 1) for part, values in zip(variances, (before, now), strict=True))
    return MeanEstimate(mean, math.sqrt(sum(variances)), sum(variances) ** 2 / parts if parts else math.inf)


def detectable_mean(error: float, freedom: float, comparisons: int, pairs: int | None = None) -> float:
    """Return the mean that the first of so many t-tests in Holm's order finds at the rate of POWER.

    The noise is known from few runs, so the power is averaged over what it may truly be (assurance, O'Hagan et al. 2005).

    Args:
        error: estimated standard error of the mean.
        freedom: degrees of freedom of that estimate.
        pairs: number of pairs of a test that allows looks at every number of pairs. None: a test with one look.
    """
    return _detectable_in_errors(freedom, comparisons, pairs) * error


@lru_cache(maxsize=256)
def _detectable_in_errors(freedom: float, comparisons: int, pairs: int | None) -> float:
    level = SIGNIFICANCE / comparisons
    critical = float(special.stdtrit(freedom, 1.0 - (level if pairs is None else alpha_spending.level(pairs, level)) / 2))
    least = float(special.nctdtrinc(freedom, 1.0 - POWER, critical))
    # Ratios of estimated to true noise, at quantiles of equal weight.
    relative_noise = np.sqrt(special.chdtri(freedom, (np.arange(100) + 0.5) / 100) / freedom)
    true_means = np.geomspace(least, 100.0 * least, 200)
    missed = special.nctdtr(freedom, np.outer(true_means, relative_noise), critical).mean(axis=1)
    return float(np.interp(POWER, 1.0 - missed, true_means))


def spread(values: Sequence[float]) -> Spread | None:
    """Return the median and quartiles of the finite values. None if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    # The standard library: for the few values of a run it takes a tenth of the time of NumPy.
    low, median, high = statistics.quantiles(finite, method="inclusive") if len(finite) > 1 else finite * 3
    return Spread(median=median, low=low, high=high, n=len(finite))


def spread_with_later(values: Sequence[float], later: int) -> Spread | None:
    """Return the quartiles of the sample with `later` right-censored values.

    Returns:
        None if one of the quantiles is unknown.
    """
    number = len(values) + later
    if not values or math.ceil(0.75 * (number - 1)) >= len(values):
        return None
    return spread([*values, *[max(values)] * later])


def paired_ratio(pairs: Sequence[tuple[float, float]], *, rounding: float = 0.0, one_look: bool = False) -> Ratio | None:
    """Return the geometric mean of first / second over pairs.

    Repeats are interleaved, so both runs of a pair have the same machine conditions. Drift of the machine does not change their
    ratio.

    Args:
        pairs: positive values, the same repeat of two rows. Pairs with a missing or non-positive value are left out.
        rounding: resolution of the values, see `mean_difference`.
        one_look: whether the number of pairs was fixed before the first one. Then 2 pairs have an interval.
    """
    positive_pairs = [(first, second) for first, second in pairs if _positive(first) and _positive(second)]
    if not positive_pairs:
        return None
    logs = [math.log(first / second) for first, second in positive_pairs]
    return _as_ratio(mean_difference(logs, rounding=rounding / min(map(min, positive_pairs))), len(logs), one_look=one_look)


def relative_to(ratio: Ratio, margin: float) -> Ratio:
    """Divide a ratio of pairs by `margin`. The p of the result tests whether the true ratio is `margin`."""
    error = _error(ratio)
    if error is None:
        return ratio.model_copy(update={"value": ratio.value / margin})
    return _as_ratio(MeanEstimate(math.log(ratio.value / margin), error, ratio.n - 1), ratio.n)


def _error(ratio: Ratio, *, one_look: bool = False) -> float | None:
    """Return the standard error of the logarithm of a ratio of pairs. None if it has no interval."""
    if ratio.low is None or ratio.high is None:
        return None
    return math.log(ratio.high / ratio.low) / 2 / critical(ratio.n - 1, None if one_look else ratio.n)


def critical(freedom: float, pairs: int | None) -> float:
    """Return half the width of a 95 % interval, in standard errors.

    Args:
        freedom: degrees of freedom of the standard error.
        pairs: see `detectable_mean`.
    """
    outside = SIGNIFICANCE if pairs is None else alpha_spending.level(pairs, SIGNIFICANCE)
    return float(special.stdtrit(freedom, 1.0 - outside / 2))


def corrected_p(estimate: MeanEstimate, pairs: int | None) -> float:
    """Return the two-sided p of a mean. For `pairs`, see `detectable_mean`."""
    return estimate.p if pairs is None else alpha_spending.corrected_p(estimate.p, pairs)


def critical_equivalence(freedom: float, pairs: int) -> float:
    """Return how many standard errors a mean must be below an effect that matters to be surely smaller."""
    return float(special.stdtrit(freedom, 1.0 - alpha_spending.EQUIVALENCE.level(pairs, SIGNIFICANCE)))


def unpaired_ratio(first: Sequence[float], second: Sequence[float]) -> Ratio | None:
    """Return the ratio of the geometric means of `first` and `second`, which were not measured in turns.

    Drift of the machine between the two changes the ratio, but is not in its interval. In `paired_ratio` it is in neither.
    Looks count as for pairs, by the smaller number of values.

    Args:
        first, second: positive values. Others are left out.
    """
    logs = [[math.log(value) for value in values if _positive(value)] for values in (first, second)]
    number = min(map(len, logs))
    return _as_ratio(mean_difference_of_samples(logs[1], logs[0]), number) if number else None


def _as_ratio(logarithm: MeanEstimate, n: int, *, one_look: bool = False) -> Ratio:
    if n < (2 if one_look else LEAST_PAIRS):
        return Ratio(value=math.exp(logarithm.mean), low=None, high=None, n=n)
    looks = None if one_look else n
    half = critical(logarithm.freedom, looks) * logarithm.error
    low, high = (bounded_exp(logarithm.mean + side * half) for side in (-1.0, 1.0))
    return Ratio(value=math.exp(logarithm.mean), low=low, high=high, n=n, p=corrected_p(logarithm, looks))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by the step-down rule of Holm (1979). The order stays.

    Reject the hypotheses whose adjusted p is below a level. Then the chance of any false rejection is below that level, for any
    dependence between the tests.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min((len(p_values) - rank) * p_values[index], 1.0))
        adjusted[index] = largest
    return adjusted


def hochberg(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by the step-up rule of Hochberg (1988). The order stays.

    They are never larger than those of `holm`: if all n values are below a level, all n hypotheses are rejected. The chance of
    any false rejection is below that level for tests that are independent or depend positively on each other (Sarkar 1998).
    """
    adjusted = [0.0] * len(p_values)
    smallest = 1.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__, reverse=True), start=1):
        smallest = min(smallest, rank * p_values[index])
        adjusted[index] = smallest
    return adjusted


def verdicts(ratios: Sequence[tuple[str, Ratio]], smallest_effect: float | None = None) -> list[JudgedRatio]:
    """Judge all ratios that a reader sees together, as one family.

    A ratio is above or below one if its own interval and its corrected p both exclude one. At 95 %, no verdict of the whole
    family is false, however often repeats are added. Ratios of fewer than VERDICT_PAIRS pairs get no verdict.

    Args:
        ratios: each with its name.
        smallest_effect: the difference that matters, e.g. 0.05. A ratio that is surely nearer to one is called so. At 95 %, no
            such verdict of the family is false either, see `equivalence_p_values`.

    Returns:
        The same ratios in the same order, judged.
    """
    tested = [index for index, (_, ratio) in enumerate(ratios) if ratio.has_enough_pairs and ratio.p is not None]
    untested = [1.0] * (len(ratios) - len(tested))

    different = dict(zip(tested, holm([ratios[place][1].p or 0.0 for place in tested] + untested), strict=False))
    equivalence_p = {}
    if smallest_effect is not None:
        tests = [_equivalence_p(ratios[place][1], smallest_effect) for place in tested]
        looks, one_look = [[p[which] for p in tests] + untested for which in (0, 1)]
        # Tests of few pairs stay in the family: more repeats may test them.
        one_look[len(tested) :] = [0.0] * len(untested)
        equivalence_p = dict(zip(tested, equivalence_p_values(looks, one_look), strict=False))
    return [
        JudgedRatio(
            name=name,
            ratio=ratio,
            verdict=_verdict(ratio, different.get(place), equivalence_p.get(place, 1.0)),
            p=different.get(place),
            family=len(ratios),
            smallest_effect=smallest_effect,
            smaller_p=equivalence_p.get(place),
        )
        for place, (name, ratio) in enumerate(ratios)
    ]


def equivalence_p_values(looks: Sequence[float], one_look: Sequence[float]) -> list[float]:
    """Adjust the p-values of a family of one-sided tests that differences are as large as the effect that matters.

    A difference that is far larger is surely not called smaller. It would still take its share of the level from the others. So
    tests with a one-look p above HOPELESS_P are left out at this look. The p of the others is uniform below HOPELESS_P, or
    larger, so it is divided by HOPELESS_P (Zhao, Small & Su 2019) and corrected by `hochberg`. Both rules hold for independent
    tests. The tests of a report share rows: tests/compare/statistics/test_statistics.py and `selftest` simulate that.

    Args:
        looks: p of each test, corrected for looks.
        one_look: p of each test, not corrected.
    """
    if len(looks) == 1:
        return list(looks)
    tested = [place for place, p in enumerate(one_look) if p <= HOPELESS_P]
    adjusted = dict(zip(tested, hochberg([min(looks[place] / HOPELESS_P, 1.0) for place in tested]), strict=True))
    return [adjusted.get(place, 1.0) for place in range(len(looks))]


def _equivalence_p(ratio: Ratio, effect: float) -> tuple[float, float]:
    """Test that the true ratio is at least 1 + effect, or at most 1 / (1 + effect): two one-sided tests (Schuirmann 1987).

    At most one of the two can be true, so each test may have the whole level.

    Returns:
        (p corrected for looks, p of this look).
    """
    error, inside_errors = _error(ratio), math.log1p(effect) - abs(math.log(ratio.value))
    if error is None:
        return 1.0, 1.0
    p = float(special.stdtr(ratio.n - 1, -inside_errors / error)) if error else float(inside_errors <= 0.0)
    return alpha_spending.EQUIVALENCE.corrected_p(p, ratio.n) if inside_errors > 0.0 else 1.0, p


def one_sided_p_values(ratio: Ratio, border: float) -> tuple[float, float]:
    """Test whether the true ratio of pairs is above a border, and whether it is below.

    At most one of the two can be true, so each test may have the whole level. Both hold however often repeats are added.

    Returns:
        (p of the test that it is not above, p of the test that it is not below). 1 for fewer than VERDICT_PAIRS pairs.
    """
    error, distance = _error(ratio), math.log(ratio.value / border)
    if error is None or not ratio.has_enough_pairs:
        return 1.0, 1.0
    t = distance / error if error else math.copysign(math.inf, distance)
    above, below = (
        alpha_spending.EQUIVALENCE.corrected_p(float(special.stdtr(ratio.n - 1, side * t)), ratio.n) for side in (-1.0, 1.0)
    )
    return above, below


def _verdict(ratio: Ratio, p: float | None, smaller_p: float) -> Verdict:
    if p is None or ratio.low is None or ratio.high is None:
        return "too few repeats to tell"
    if p < SIGNIFICANCE and not ratio.low <= 1.0 <= ratio.high:
        return "above" if ratio.low > 1.0 else "below"
    return "no difference that matters" if smaller_p < SIGNIFICANCE else "no difference shown"


def majority_accuracy(confusion: Sequence[Sequence[int]]) -> float:
    """Return the accuracy of always predicting the most frequent class. Rows of the matrix are true classes."""
    counts = list(map(sum, confusion))
    return max(counts) / sum(counts)


def is_no_better_than_chance(chance: float, accuracy: float, num_examples: int) -> bool:
    """Whether so many examples fail to show that an accuracy is above that of guessing (binomial test, one-sided)."""
    correct = round(accuracy * num_examples)
    return float(special.bdtrc(correct - 1, num_examples, chance)) > SIGNIFICANCE


def is_significantly_lower(before: float, after: float, num_examples: int) -> bool:
    """Whether an accuracy on so many examples fell by more than chance shows: two exact binomial intervals do not overlap."""
    tail, counts = (1.0 - CONFIDENCE) / 2.0, [round(accuracy * num_examples) for accuracy in (before, after)]
    low = float(special.bdtri(counts[0] - 1, num_examples, 1.0 - tail)) if counts[0] else 0.0
    high = float(special.bdtri(counts[1], num_examples, tail)) if counts[1] < num_examples else 1.0
    return high < low


def resolution(ratios: Sequence[Ratio], comparisons: int, *, one_look: bool = False) -> float | None:
    """Return the relative difference that a comparison with median noise would find. None if no ratio has an interval.

    Args:
        one_look: whether the ratios were made with `one_look`, see `paired_ratio`.
    """
    errors = [(error, ratio.n) for ratio in ratios if (error := _error(ratio, one_look=one_look)) is not None]
    differences = [detectable_mean(error, n - 1, comparisons, None if one_look else n) for error, n in errors]
    return math.expm1(float(np.median(differences))) if differences else None


def pairs_needed(ratio: Ratio, border: float, *, one_look: bool = True) -> int | None:
    """Return the number of pairs that would tell a ratio from a border above it, at the rate of POWER.

    Args:
        ratio: a ratio of pairs. Ratio and noise are assumed to be the true ones.
        one_look: whether it was made with `one_look`, see `paired_ratio`.

    Returns:
        None beyond MOST_PAIRS, and where the ratio has no interval or lies above the border.
    """
    error, distance = _error(ratio, one_look=one_look), math.log(border / ratio.value)
    if error is None or distance <= 0.0:
        return None
    for number in range(ratio.n + 1, MOST_PAIRS + 1):
        if detectable_mean(error * math.sqrt(ratio.n / number), number - 1, 1, None if one_look else number) <= distance:
            return number
    return None


def inverse(ratio: Ratio) -> Ratio:
    """Return the inverse of a ratio."""
    return Ratio(
        value=1.0 / ratio.value,
        low=None if ratio.high is None else _inverse(ratio.high),
        high=None if ratio.low is None else _inverse(ratio.low),
        n=ratio.n,
        p=ratio.p,
    )


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def bounded_exp(logarithm: float) -> float:
    """Return exp(logarithm), limited to the range of floats. Two noisy repeats can have a wider interval."""
    return math.exp(min(max(logarithm, -700.0), 700.0))


def _inverse(value: float) -> float:
    return 1.0 / value
