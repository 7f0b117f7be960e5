"""Verdicts under looking: simulated repeats that are added until a difference shows."""

import numpy as np
import numpy.typing as npt
import pytest
from scipy import special, stats

from compare.statistics import alpha_spending, statistics

Floats = npt.NDArray[np.float64]


def crossing(
    looks: alpha_spending.AlphaSpending, h: float, last: int, *, sides: int, cells: int = 150, most: float = 7.0
) -> float:
    """P(for some n of 3 to `last`, the p of n equal pairs < h * weight(n)), by integration.

    The vector of the first n logarithms has a random direction, so the cosine u of its angle to (1, ..., 1) is a Markov chain:
    u' = (sqrt(1 - w^2) sqrt(n) u + w) / sqrt(n + 1), with w^2 of a Beta(1/2, n/2). Its cells are equally wide in normal scores.
    With two sides, u is the cosine's magnitude.
    """
    edges = np.linspace(0.0, most, cells + 1) if sides == 2 else np.linspace(-most, most, 2 * cells + 1)

    def cosine(score: Floats, n: int) -> Floats:
        t = -special.stdtrit(n - 1, special.ndtr(-score))
        return t / np.sqrt(n - 1 + t * t)

    def boundary(n: int) -> Floats:
        return np.array([min(-special.ndtri(h * looks.weight(n) / sides), most)])

    def inside(mass: Floats, n: int, total: float) -> Floats:
        kept = mass * np.clip((boundary(n) - edges[:-1]) / np.diff(edges), 0.0, 1.0)
        return kept * (total / kept.sum())

    def below(limit: Floats, n: int, start: Floats) -> Floats:
        """P(u' <= limit), from each start."""
        back = start < 0.0
        found = from_positive(np.where(back, -limit, limit), n, np.abs(start))
        return np.where(back, 1.0 - found, found)

    def from_positive(limit: Floats, n: int, start: Floats) -> Floats:
        slope, limit = np.sqrt(n) * start, limit * np.sqrt(n + 1)
        root = np.sqrt(np.maximum(1.0 + slope**2 - limit**2, 0.0))
        low, high = ((limit + sign * slope * root) / (1.0 + slope**2) for sign in (-1.0, 1.0))
        found = of_part(low, n) + np.where(limit > 1.0, 1.0 - of_part(high, n), 0.0)
        return np.where(limit**2 >= 1.0 + slope**2, limit > 0.0, np.where(limit <= -1.0, 0.0, found))

    def of_part(w: Floats, n: int) -> Floats:
        w = np.clip(w, -1.0, 1.0)
        return special.stdtr(n, w * np.sqrt(n / np.maximum(1.0 - w * w, 1e-300)))

    def within(limit: Floats, n: int, start: Floats) -> Floats:
        return below(limit, n, start) - (below(-limit, n, start) if sides == 2 else 0.0)

    starts = (edges[1:] + edges[:-1]) / 2
    left = 1.0 - h * looks.weight(3)
    mass = inside(sides * np.diff(special.ndtr(edges)), 3, left)
    for n in range(3, last):
        start = cosine(starts, n)[:, None]
        left = float(mass.sum())
        if looks.weight(n + 1):
            left = float(mass @ within(cosine(boundary(n + 1), n + 1), n, start)[:, 0])
        mass = inside(mass @ np.diff(within(cosine(edges, n + 1), n, start), axis=1), n + 1, left)
    return 1.0 - left


def beyond(looks: alpha_spending.AlphaSpending, h: float, last: int, *, sides: int) -> float:
    """The same for all n above `last`, where the statistic is nearly normal: Pickands' rate of a high boundary."""
    p = h * looks.weight(last)
    return float(0.5 * special.ndtri(p / sides) ** 2 * p / looks.decline)


@pytest.mark.parametrize(
    ("looks", "sides"),
    [(alpha_spending.TWO_SIDED, 2), pytest.param(alpha_spending.EQUIVALENCE, 1, marks=pytest.mark.slow)],
    ids=["different", "smaller"],
)
@pytest.mark.parametrize("h", [0.033, *(pytest.param(h, marks=pytest.mark.slow) for h in (0.3, 0.0033, 1e-4))])
def test_the_factors_are_those_of_the_integral(looks: alpha_spending.AlphaSpending, sides: int, h: float) -> None:
    together = crossing(looks, h, 60, sides=sides) + beyond(looks, h, 60, sides=sides)
    assert looks.corrected_p(h, 5) == pytest.approx(together, rel=0.02)
    assert looks.corrected_p(h, 5) > 0.995 * together
    assert looks.level(5, looks.corrected_p(h, 5)) == pytest.approx(h)


def p_values(trials: int, last: int, seed: int, effect: float = 0.0) -> Floats:
    """p of one look at 3 to `last` pairs: [trials, last - 2]. The noise of a pair is 1."""
    logs = np.random.default_rng(seed).normal(effect, 1.0, (trials, last))
    sums, squares = logs.cumsum(axis=1), (logs**2).cumsum(axis=1)
    found = [
        2.0 * special.stdtr(n - 1, -np.abs(sums[:, n - 1]) * np.sqrt((n - 1) / (n * squares[:, n - 1] - sums[:, n - 1] ** 2)))
        for n in range(3, last + 1)
    ]
    return np.stack(found, axis=1)


@pytest.mark.parametrize("together", [0.05, 0.05 / 8])
def test_repeats_may_be_added_until_a_difference_shows(together: float) -> None:
    """Finding F: a fixed level, tested after every repeat, is the planted defect."""
    trials = 20_000
    one_look = p_values(trials, 40, seed=1)
    levels = np.array([alpha_spending.level(n, together) for n in range(3, 41)])
    alarms = (one_look < levels).any(axis=1).mean()
    assert alarms <= stats.binom.isf(0.001, trials, together) / trials
    assert alarms > 0.8 * together, "most of the level is used"
    fixed = (one_look[:, 2:] < together).any(axis=1).mean()
    assert fixed > 2 * together


def test_a_fixed_level_gives_the_false_winners_that_were_found() -> None:
    one_look = p_values(20_000, 20, seed=2)[:, 2:] < 0.05
    assert [one_look[:, : last - 4].any(axis=1).mean() for last in (8, 12, 20)] == pytest.approx([0.10, 0.14, 0.19], abs=0.01)


def test_five_pairs_lose_little() -> None:
    """The test over 5 pairs, which most users run: its critical value is 3.2, and that of a single look is 2.8."""
    at_five = p_values(20_000, 5, seed=3, effect=2.5)[:, 2]
    assert (at_five < alpha_spending.level(5, 0.05)).mean() > (at_five < 0.05).mean() - 0.03


@pytest.mark.parametrize("together", [0.05, 0.05 / 8])
def test_a_difference_that_matters_is_called_smaller_no_more_often_than_stated(together: float) -> None:
    """At a true difference of just the effect that matters. Planted: each look at the whole level."""
    trials = 20_000
    logs = np.random.default_rng(5).normal(0.0, 1.0, (trials, 40))
    sums, squares = logs.cumsum(axis=1), (logs**2).cumsum(axis=1)
    numbers = np.arange(5, 41)
    deviation = np.sqrt(squares[:, 4:] - sums[:, 4:] ** 2 / numbers) / np.sqrt(numbers - 1)
    t = sums[:, 4:] / np.sqrt(numbers) / deviation
    one_sided = special.stdtr(numbers - 1, t)
    levels = np.array([alpha_spending.EQUIVALENCE.level(int(n), together) for n in numbers])
    false = (one_sided < levels).any(axis=1).mean()
    assert 0.75 * together < false <= stats.binom.isf(0.001, trials, together) / trials
    assert (one_sided < together).any(axis=1).mean() > 2 * together


def test_fewer_than_three_pairs_are_not_tested() -> None:
    assert alpha_spending.TWO_SIDED.weight(2) == alpha_spending.EQUIVALENCE.weight(4) == 0.0
    two = statistics.paired_ratio([(1.0, 1.1), (1.0, 1.2)])
    assert two is not None and (two.n, two.low, two.high, two.p) == (2, None, None, None)


@pytest.mark.parametrize(("pairs", "comparisons"), [(5, 1), (5, 8), (8, 8)])
def test_the_stated_power_holds_where_the_noise_is_estimated(pairs: int, comparisons: int) -> None:
    """Finding G: the old formula, which takes the estimated noise for the true one, is the planted defect."""
    trials, freedom = 40_000, pairs - 1
    draw = np.random.default_rng(4)
    critical = special.stdtrit(freedom, 1 - alpha_spending.level(pairs, 0.05 / comparisons) / 2)

    def power(factor: float) -> float:
        """Of a second comparison, if the difference is so many times the standard error that a first one has estimated."""
        estimated, noise = (np.sqrt(draw.chisquare(freedom, trials) / freedom) for _ in range(2))
        return float((draw.normal(factor * estimated) > critical * noise).mean())

    assert power(statistics.detectable_mean(1.0, freedom, comparisons, pairs)) == pytest.approx(0.9, abs=0.006)
    assert power(special.nctdtrinc(freedom, 0.1, critical)) < 0.84
