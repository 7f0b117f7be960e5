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
from compare.core import looking

LEAST_PAIRS = 3
"""Below this many pairs there is no interval, where repeats may be added."""
VERDICT_PAIRS = 5
"""Below this many pairs no verdict is given: a t-interval over fewer is too wide, a bootstrap raises false alarms."""
MOST_PAIRS = 200
"""Where more would be needed, no number is named."""
UNBOUNDED_FROM = 100.0
"""An interval that reaches so many times its value, of fewer pairs, says nothing but that they are too few."""

CONFIDENCE = 0.95
"""Confidence of each single interval, and of all verdicts of a family together."""
SIGNIFICANCE = 0.05
"""The p below which a difference is named: what CONFIDENCE leaves."""

POWER = 0.9
"""A difference of `least_found` is found at this rate, on average over what the noise may truly be."""

KEPT = 0.9
"""Of one look. A difference of a larger p, that of being as large as the effect that matters, takes no share of the level of
others."""

MARGIN = 0.01
"""A difference that is surely smaller is called so. The layout of memory alone can make as much."""

Verdict = Literal["above", "below", "no difference that matters", "no difference shown", "too few repeats to tell"]
"""A ratio is above or below one, or surely nearer to one than the effect that matters, or the reason why neither is shown."""


class Spread(Frozen):
    """Median and interquartile range of `n` values."""

    median: float
    low: float
    """25 % quantile."""
    high: float
    """75 % quantile."""
    n: int

    def times(self, factor: float) -> Spread:
        """The same in another unit."""
        return Spread(median=factor * self.median, low=factor * self.low, high=factor * self.high, n=self.n)


class Ratio(Frozen):
    """The geometric mean of paired ratios, with its 95 % interval on the logarithms.

    Interval and p are valid however often repeats are added and looked at, unless its maker says otherwise.
    """

    value: float
    low: float | None
    """None for fewer than 3 pairs, which have no interval."""
    high: float | None
    n: int
    p: float | None = None
    """Two-sided, of the paired t-test that the mean of the logarithms is zero. Not corrected for other comparisons."""

    @property
    def decided(self) -> bool:
        """Whether there are enough pairs for a verdict."""
        return self.n >= VERDICT_PAIRS

    @property
    def is_bounded(self) -> bool:
        """Whether its interval, if it has one, says anything. That of two noisy pairs may span millions."""
        if self.low is None or self.high is None or self.decided or self.low < 0:
            return True
        return self.high < UNBOUNDED_FROM * self.value


class Judged(Frozen):
    """One ratio of a family with its verdict."""

    name: str
    ratio: Ratio
    verdict: Verdict
    p: float | None
    """Corrected for the family by Holm's rule. None if there are too few pairs."""
    family: int
    """Comparisons that are judged together. One with too few pairs counts, because more repeats may test it."""
    smallest_effect: float | None = None
    """The difference that matters, e.g. 0.05, if one was named before the runs."""
    disturbed: bool = False
    """Whether other work disturbed a run of it. Then a report gives no finding, and no ratio."""
    smaller_p: float | None = None
    """That the true difference is as large as `smallest_effect`. Corrected in a family of its own, see `smaller_p`."""


class Estimate(NamedTuple):
    """A mean with its standard error and its degrees of freedom."""

    mean: float
    error: float
    freedom: float

    @property
    def p(self) -> float:
        """Two-sided, of the t-test that the true mean is zero."""
        t = abs(self.mean) / self.error if self.error else (math.inf if self.mean else 0.0)
        return 2.0 * float(special.stdtr(self.freedom, -t))

    @property
    def half(self) -> float:
        """Half the width of its interval."""
        return float(special.stdtrit(self.freedom, 0.5 + CONFIDENCE / 2)) * self.error


def of_differences(differences: Sequence[float], *, rounding: float = 0.0) -> Estimate:
    """The mean of at least one difference of a pair.

    Args:
        rounding: resolution of both values, e.g. one image of an accuracy. The error includes what it hides (Sheppard 1897), so
            that a few equal differences do not pass for a sure one.
    """
    number = len(differences)
    mean = math.fsum(differences) / number
    if number == 1:
        return Estimate(mean, math.inf, 1)
    variance = math.fsum((difference - mean) ** 2 for difference in differences) / (number - 1)
    return Estimate(mean, math.sqrt((variance + rounding**2 / 6) / number), number - 1)


def of_samples(before: Sequence[float], now: Sequence[float]) -> Estimate:
    """The difference of the means of two independent samples, of different variance (Welch 1947)."""
    mean = float(np.mean(now)) - float(np.mean(before))
    if min(len(before), len(now)) < 2:
        return Estimate(mean, math.inf, 1)
    variances = [float(np.var(values, ddof=1)) / len(values) for values in (before, now)]
    parts = sum(part**2 / (len(values) - 1) for part, values in zip(variances, (before, now), strict=True))
    return Estimate(mean, math.sqrt(sum(variances)), sum(variances) ** 2 / parts if parts else math.inf)


def least_found(error: float, freedom: float, comparisons: int, pairs: int | None = None) -> float:
    """The mean that is found, at the rate of POWER, by the t-test that is the first of so many in Holm's order.

    The noise is known from few runs, so the power is averaged over what it may truly be (assurance, O'Hagan et al. 2005).

    Args:
        error: standard error of the mean, as it is estimated.
        freedom: degrees of freedom of that estimate.
        pairs: whose test allows looks at every number of pairs. None: a test with one look.
    """
    return _least_found(freedom, comparisons, pairs) * error


@lru_cache(maxsize=256)
def _least_found(freedom: float, comparisons: int, pairs: int | None) -> float:
    level = SIGNIFICANCE / comparisons
    critical = float(special.stdtrit(freedom, 1.0 - (level if pairs is None else looking.level(pairs, level)) / 2))
    least = float(special.nctdtrinc(freedom, 1.0 - POWER, critical))
    # Estimated over true noise, at quantiles of equal weight.
    relative_noise = np.sqrt(special.chdtri(freedom, (np.arange(100) + 0.5) / 100) / freedom)
    found = np.geomspace(least, 100.0 * least, 200)
    missed = special.nctdtr(freedom, np.outer(found, relative_noise), critical).mean(axis=1)
    return float(np.interp(POWER, 1.0 - missed, found))


def spread(values: Sequence[float]) -> Spread | None:
    """Median and quartiles of the finite values. None if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    # Of the standard library: over the few values of a run it takes a tenth of what arrays do.
    low, median, high = statistics.quantiles(finite, method="inclusive") if len(finite) > 1 else finite * 3
    return Spread(median=median, low=low, high=high, n=len(finite))


def spread_with_later(values: Sequence[float], later: int) -> Spread | None:
    """Quartiles of the sample with `later` right-censored values.

    Returns:
        None if one of the quantiles is unknown.
    """
    number = len(values) + later
    if not values or math.ceil(0.75 * (number - 1)) >= len(values):
        return None
    return spread([*values, *[max(values)] * later])


def paired_ratio(pairs: Sequence[tuple[float, float]], *, rounding: float = 0.0, one_look: bool = False) -> Ratio | None:
    """Geometric mean of first / second over pairs.

    Repeats are interleaved, so both runs of a pair met the same state of the machine. Its drift does not change their ratio.

    Args:
        pairs: positive values, the same repeat of two rows. Pairs with a missing or non-positive value are left out.
        rounding: resolution of the values, see `of_differences`.
        one_look: whether the number of pairs was fixed before the first one. Then 2 pairs have an interval.
    """
    known = [(first, second) for first, second in pairs if _positive(first) and _positive(second)]
    if not known:
        return None
    logs = [math.log(first / second) for first, second in known]
    return _as_ratio(of_differences(logs, rounding=rounding / min(map(min, known))), len(logs), one_look=one_look)


def relative_to(ratio: Ratio, margin: float) -> Ratio:
    """A ratio of pairs divided by `margin`. Its p tests whether the true ratio is `margin`."""
    error = _error(ratio)
    if error is None:
        return ratio.model_copy(update={"value": ratio.value / margin})
    return _as_ratio(Estimate(math.log(ratio.value / margin), error, ratio.n - 1), ratio.n)


def _error(ratio: Ratio, *, one_look: bool = False) -> float | None:
    """Standard error of the logarithm of a ratio of pairs. None if it has no interval."""
    if ratio.low is None or ratio.high is None:
        return None
    return math.log(ratio.high / ratio.low) / 2 / critical(ratio.n - 1, None if one_look else ratio.n)


def critical(freedom: float, pairs: int | None) -> float:
    """Half of a 95 % interval, in standard errors.

    Args:
        freedom: degrees of freedom of the standard error.
        pairs: as for `least_found`.
    """
    outside = SIGNIFICANCE if pairs is None else looking.level(pairs, SIGNIFICANCE)
    return float(special.stdtrit(freedom, 1.0 - outside / 2))


def corrected_p(estimate: Estimate, pairs: int | None) -> float:
    """Two-sided p of a mean. `pairs` as for `least_found`."""
    return estimate.p if pairs is None else looking.corrected(estimate.p, pairs)


def critical_smaller(freedom: float, pairs: int) -> float:
    """How far a mean must be from an effect that matters, in standard errors, to be surely smaller. `pairs` are looked at."""
    return float(special.stdtrit(freedom, 1.0 - looking.SMALLER.level(pairs, SIGNIFICANCE)))


def unpaired_ratio(first: Sequence[float], second: Sequence[float]) -> Ratio | None:
    """Ratio of the geometric means of `first` and `second`, which were measured apart.

    Drift between the two is in the ratio and not in its interval. In `paired_ratio` it is in neither. Looks count as for pairs,
    by the smaller number of values.

    Args:
        first, second: positive values. Others are left out.
    """
    logs = [[math.log(value) for value in values if _positive(value)] for values in (first, second)]
    number = min(map(len, logs))
    return _as_ratio(of_samples(logs[1], logs[0]), number) if number else None


def _as_ratio(logarithm: Estimate, n: int, *, one_look: bool = False) -> Ratio:
    if n < (2 if one_look else LEAST_PAIRS):
        return Ratio(value=math.exp(logarithm.mean), low=None, high=None, n=n)
    looks = None if one_look else n
    half = critical(logarithm.freedom, looks) * logarithm.error
    low, high = (exp(logarithm.mean + side * half) for side in (-1.0, 1.0))
    return Ratio(value=math.exp(logarithm.mean), low=low, high=high, n=n, p=corrected_p(logarithm, looks))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given, by the step-down rule of Holm (1979).

    Call different what has an adjusted p below a level. Then the chance that any such call is false is below that level, for
    any dependence between the tests.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min((len(p_values) - rank) * p_values[place], 1.0))
        adjusted[place] = largest
    return adjusted


def hochberg(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given, by the step-up rule of Hochberg (1988).

    As `holm`, and never larger: n values that are all below a level are all called. The chance that any such call is false is
    below that level for tests that are independent or depend positively on each other (Sarkar 1998).
    """
    adjusted = [0.0] * len(p_values)
    smallest = 1.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__, reverse=True), start=1):
        smallest = min(smallest, rank * p_values[place])
        adjusted[place] = smallest
    return adjusted


def verdicts(ratios: Sequence[tuple[str, Ratio]], smallest_effect: float | None = None) -> list[Judged]:
    """Judge all ratios that a reader sees together, as one family.

    A ratio is above or below one if its own interval and its corrected p both exclude one. At 95 %, no verdict of the whole
    family is false, however often repeats are added. Ratios of fewer than VERDICT_PAIRS pairs get no verdict.

    Args:
        ratios: each with its name.
        smallest_effect: the difference that matters, e.g. 0.05. A ratio that is surely nearer to one is called so. At 95 %, no
            such verdict of the family is false either, see `smaller_p`.

    Returns:
        The same ratios in the same order, judged.
    """
    tested = [place for place, (_, ratio) in enumerate(ratios) if ratio.decided and ratio.p is not None]
    untested = [1.0] * (len(ratios) - len(tested))

    different = dict(zip(tested, holm([ratios[place][1].p or 0.0 for place in tested] + untested), strict=False))
    smaller = {}
    if smallest_effect is not None:
        tests = [_smaller_p(ratios[place][1], smallest_effect) for place in tested]
        looks, one_look = [[p[which] for p in tests] + untested for which in (0, 1)]
        # Those of few pairs are kept: more repeats may test them.
        one_look[len(tested) :] = [0.0] * len(untested)
        smaller = dict(zip(tested, smaller_p(looks, one_look), strict=False))
    return [
        Judged(
            name=name,
            ratio=ratio,
            verdict=_verdict(ratio, different.get(place), smaller.get(place, 1.0)),
            p=different.get(place),
            family=len(ratios),
            smallest_effect=smallest_effect,
            smaller_p=smaller.get(place),
        )
        for place, (name, ratio) in enumerate(ratios)
    ]


def smaller_p(looks: Sequence[float], one_look: Sequence[float]) -> list[float]:
    """Adjusted p-values of a family of one-sided tests that differences are as large as the effect that matters.

    A difference that is far larger is surely not called smaller. It would still take its share of the level from the others. So
    tests of a one-look p above KEPT are set aside at this look. The p of the others is uniform below KEPT, or larger, so it is
    divided by KEPT (Zhao, Small & Su 2019) and corrected by `hochberg`. Both rules hold for independent tests. The tests of a
    report share rows: tests/compare/core/test_statistics.py and `selftest` simulate that.

    Args:
        looks: p of each test, corrected for looks.
        one_look: the same, not corrected.
    """
    if len(looks) == 1:
        return list(looks)
    kept = [place for place, p in enumerate(one_look) if p <= KEPT]
    adjusted = dict(zip(kept, hochberg([min(looks[place] / KEPT, 1.0) for place in kept]), strict=True))
    return [adjusted.get(place, 1.0) for place in range(len(looks))]


def _smaller_p(ratio: Ratio, effect: float) -> tuple[float, float]:
    """Of two one-sided tests (Schuirmann 1987): that the true ratio is at least 1 + effect, or at most 1 / (1 + effect).

    No truth is both, so each test may have the whole level.

    Returns:
        (p corrected for looks, p of this look).
    """
    error, inside = _error(ratio), math.log1p(effect) - abs(math.log(ratio.value))
    if error is None:
        return 1.0, 1.0
    p = float(special.stdtr(ratio.n - 1, -inside / error)) if error else float(inside <= 0.0)
    return looking.SMALLER.corrected(p, ratio.n) if inside > 0.0 else 1.0, p


def beside(ratio: Ratio, border: float) -> tuple[float, float]:
    """Whether a true ratio of pairs is above a border, or below it.

    No truth is both, so each of the two one-sided tests may have the whole level. They hold however often repeats are added.

    Returns:
        (p of the test that it is not above, p of the test that it is not below). 1 for fewer than VERDICT_PAIRS pairs.
    """
    error, distance = _error(ratio), math.log(ratio.value / border)
    if error is None or not ratio.decided:
        return 1.0, 1.0
    t = distance / error if error else math.copysign(math.inf, distance)
    above, below = (looking.SMALLER.corrected(float(special.stdtr(ratio.n - 1, side * t)), ratio.n) for side in (-1.0, 1.0))
    return above, below


def _verdict(ratio: Ratio, p: float | None, smaller_p: float) -> Verdict:
    if p is None or ratio.low is None or ratio.high is None:
        return "too few repeats to tell"
    if p < SIGNIFICANCE and not ratio.low <= 1.0 <= ratio.high:
        return "above" if ratio.low > 1.0 else "below"
    return "no difference that matters" if smaller_p < SIGNIFICANCE else "no difference shown"


def chance_of(confusion: Sequence[Sequence[int]]) -> float:
    """The accuracy of always naming the most frequent class. Rows of the matrix are true classes."""
    counts = list(map(sum, confusion))
    return max(counts) / sum(counts)


def is_no_better_than(chance: float, accuracy: float, num_examples: int) -> bool:
    """Whether so many examples do not show that an accuracy is above that of guessing (binomial test, one-sided)."""
    correct = round(accuracy * num_examples)
    return float(special.bdtrc(correct - 1, num_examples, chance)) > SIGNIFICANCE


def fell(before: float, after: float, num_examples: int) -> bool:
    """Whether an accuracy on so many examples fell by more than chance shows: two exact binomial intervals do not meet."""
    tail, counts = (1.0 - CONFIDENCE) / 2.0, [round(accuracy * num_examples) for accuracy in (before, after)]
    low = float(special.bdtri(counts[0] - 1, num_examples, 1.0 - tail)) if counts[0] else 0.0
    high = float(special.bdtri(counts[1], num_examples, tail)) if counts[1] < num_examples else 1.0
    return high < low


def resolution(ratios: Sequence[Ratio], comparisons: int, *, one_look: bool = False) -> float | None:
    """The relative difference that the median of these ratios would have shown. None if none has an interval.

    Args:
        one_look: as they were made, see `paired_ratio`.
    """
    errors = [(error, ratio.n) for ratio in ratios if (error := _error(ratio, one_look=one_look)) is not None]
    found = [least_found(error, n - 1, comparisons, None if one_look else n) for error, n in errors]
    return math.expm1(float(np.median(found))) if found else None


def pairs_needed(ratio: Ratio, border: float) -> int | None:
    """How many pairs would tell a ratio from a border above it, at the rate of POWER.

    Args:
        ratio: of one look. It is taken for the true one, and its noise for that of the pairs to come.

    Returns:
        None beyond MOST_PAIRS, and where the ratio has no interval or lies above the border.
    """
    error, distance = _error(ratio, one_look=True), math.log(border / ratio.value)
    if error is None or distance <= 0.0:
        return None
    for number in range(ratio.n + 1, MOST_PAIRS + 1):
        if least_found(error * math.sqrt(ratio.n / number), number - 1, 1) <= distance:
            return number
    return None


def inverse(ratio: Ratio) -> Ratio:
    """The inverse ratio."""
    return Ratio(
        value=1.0 / ratio.value,
        low=None if ratio.high is None else _inverse(ratio.high),
        high=None if ratio.low is None else _inverse(ratio.low),
        n=ratio.n,
        p=ratio.p,
    )


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def exp(logarithm: float) -> float:
    """exp, limited to the range of floats. Two wild repeats can have a wider interval."""
    return math.exp(min(max(logarithm, -700.0), 700.0))


def _inverse(value: float) -> float:
    return 1.0 / value
