"""Simulate how many repeats `run --until-decided` needs for a whole family of questions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from compare.cli.wording import percent
from compare.reporting.tables import Cell, Column, Table
from compare.statistics import alpha_spending, statistics
from compare.statistics.statistics import POWER, SIGNIFICANCE, VERDICT_PAIRS
from compare.statistics.until_decided import UntilDecided

Floats, Integers, Booleans = npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.bool_]

QUESTION_COUNTS = (1, 2, 4, 8)
"""Numbers of questions that are decided together."""
NOISES = (0.01, 0.02, 0.03, 0.05)
"""Standard deviation of the logarithm of one run's time."""
DIFFERENCES: dict[str, tuple[float, ...]] = {
    "none": (0.0,),
    "2 %": (0.02,),
    "5 %": (0.05,),
    "10 %": (0.1,),
    "20 %": (0.2,),
    "none in half, 20 % in half": (0.0, 0.2),
}
"""{name: true differences}. The questions of a family cycle through them."""
MOST_FIXED_REPEATS = 1000
"""Largest number of repeats with a computed bound."""


class FamilyDecisions(NamedTuple):
    """Decisions on families of questions: arrays [families, questions]."""

    different: Booleans
    """Whether the family ended with this question decided as different."""
    smaller: Booleans
    """Whether the family ended with this difference decided as surely smaller than the effect that matters."""
    means: Floats
    """Means of the logarithms of the ratios of pairs."""
    repeats: Integers
    """[families]: repeats of the question that was decided last. All repeats if one is undecided."""

    @property
    def all_decided(self) -> Booleans:
        """[families]: whether all questions of a family are decided."""
        return np.all(self.different | self.smaller, axis=1)

    def wrong(self, truths: Floats, effect: float) -> Booleans:
        """Return [families]: whether any decision is false.

        False are: the wrong side is faster, equal sides are different, or a relevant difference is small.
        """
        wrong_direction = self.different & (np.sign(self.means) != np.sign(truths))
        return np.any(wrong_direction | self.smaller & (np.abs(truths) >= math.log1p(effect)), axis=1)


def decide(logs: Floats, until: UntilDecided) -> FamilyDecisions:
    """Decide families as `run --until-decided` does: a question gets no more pairs while it is decided.

    Args:
        logs: logarithms of the ratios of pairs: [families, questions, repeats].
        until: has the effect that matters.
    """
    families, questions, most = logs.shape
    shape, effect = (families, questions), math.log1p(until.smallest_effect)
    sums, squares = logs.cumsum(axis=2), (logs**2).cumsum(axis=2)
    different_p, looks_p, look_p, means = (np.ones(shape) for _ in range(4))
    different, smaller, repeats = np.zeros(shape, bool), np.zeros(shape, bool), np.full(families, most)
    for n in range(VERDICT_PAIRS, most + 1):
        undecided = ~(different | smaller)
        mean = sums[..., n - 1] / n
        error = np.sqrt(np.maximum(squares[..., n - 1] - n * mean**2, 1e-300) / (n - 1) / n)
        one_sided = special.stdtr(n - 1, (np.abs(mean) - effect) / error)
        means = np.where(undecided, mean, means)
        two_sided = 2.0 * special.stdtr(n - 1, -np.abs(mean) / error)
        different_p = np.where(undecided, alpha_spending.TWO_SIDED.corrected_p_array(two_sided, n), different_p)
        look_p = np.where(undecided, one_sided, look_p)
        equivalence_p = np.where(np.abs(mean) < effect, alpha_spending.EQUIVALENCE.corrected_p_array(one_sided, n), 1.0)
        looks_p = np.where(undecided, equivalence_p, looks_p)
        for family in np.flatnonzero(undecided.any(axis=1)):
            adjusted = statistics.holm(different_p[family].tolist())
            small = statistics.equivalence_p_values(looks_p[family].tolist(), look_p[family].tolist())
            different[family] = np.array(adjusted) < SIGNIFICANCE
            smaller[family] = (np.array(small) < SIGNIFICANCE) & ~different[family]
            if (different[family] | smaller[family]).all():
                repeats[family] = n
    return FamilyDecisions(different, smaller, means, repeats)


def least_fixed_repeats(truths: Sequence[float], noise: float, effect: float) -> int | None:
    """Return the fixed number of repeats that decides all questions in 90 % of cases, if noise is known and each errs in 5 %.

    No smaller fixed number does, whatever the test: it errs in at most 5 % for all questions together, so also for each.
    None: it is larger than MOST_FIXED_REPEATS.

    Args:
        truths: logarithm of each true ratio.
        noise: standard deviation of the logarithm of one run's time.
        effect: the difference that matters.
    """
    one_sided_z, two_sided_z = (float(special.ndtri(1.0 - SIGNIFICANCE / sides)) for sides in (1, 2))
    for n in range(1, MOST_FIXED_REPEATS + 1):
        error, power = noise * math.sqrt(2.0 / n), 1.0
        for truth in truths:
            different = special.ndtr(abs(truth) / error - two_sided_z) if truth else 0.0
            upper, lower = ((math.log1p(effect) + sign * truth) / error - one_sided_z for sign in (-1.0, 1.0))
            small = special.ndtr(upper) + special.ndtr(lower) - 1.0 if abs(truth) < math.log1p(effect) else 0.0
            power *= max(float(different), float(small))
        if power >= POWER:
            return n
    return None


def table(families: int, seed: int, until: UntilDecided) -> Table:
    """Tabulate repeats by noise, true difference and number of questions.

    Args:
        families: number of families that are simulated for each cell.
        seed: seed of the simulation.
        until: has the largest number of repeats, and the effect that matters.
    """
    generator = np.random.default_rng(seed)
    most = max(QUESTION_COUNTS)
    rows: list[dict[str, Cell]] = []
    for noise in NOISES:
        for name, differences in DIFFERENCES.items():
            row: dict[str, Cell] = {"noise": percent(noise), "difference": name}
            for number in QUESTION_COUNTS:
                truths = np.log1p(np.resize(differences, number))
                logs = generator.normal(0.0, noise * math.sqrt(2.0), (families, number, until.most_repeats))
                decisions = decide(logs + truths[:, None], until)
                decided_rate = float(decisions.all_decided.mean())
                row[str(number)] = f"{decisions.repeats.mean():.1f} ({np.quantile(decisions.repeats, POWER):.0f})"
                if number == most:
                    row |= {
                        "decided": percent(decided_rate),
                        "wrong": percent(decisions.wrong(truths, until.smallest_effect).mean(), 1),
                    }
                    row["known"] = least_fixed_repeats(truths.tolist(), noise, until.smallest_effect)
            rows.append(row)
    columns = (
        Column("noise", "noise of a run"),
        Column("difference", "true difference", fold=14),
        *(Column(str(number), f"{number} question{'s' if number > 1 else ''}") for number in QUESTION_COUNTS),
        Column("decided", f"{most}: decided"),
        Column("wrong", f"{most}: any false answer", fold=10),
        Column("known", f"{most}: bound", 0),
    )
    note = (
        f"Repeats until every question is decided: mean (90 % of families need at most), of {families:,} families. At most "
        f"{until.most_repeats}. A difference below {percent(until.smallest_effect)} does not matter. Bound: repeats fixed "
        "beforehand that decide all questions in 90 % of cases, if the noise is known and each question errs in 5 %."
    )
    return Table("repeats", "Repeats until decided", columns, rows, note=note)
