"""t-tests that stay valid if repeats are added until a difference shows, or is shown not to matter.

Suppose that equal runs are tested at a fixed 5 % after each added repeat. Then a false difference is found in 10 % of cases by
8 repeats, and in 19 % by 20. So each number of pairs has a level of its own, and the levels of all numbers of pairs
together make 5 %: a group-sequential test (Jennison & Turnbull 2000) whose intervals hold at every look (Jennison & Turnbull
1989).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt


class AlphaSpending:
    """Alpha spending: how a level of 5 % is shared among the numbers of pairs.

    Args:
        few: number of pairs: its relative level. Fewer pairs are not tested.
        six_pairs: relative level of 6 pairs. For more pairs than `few` names, the level falls from it.
        decline: exponent of the level's fall with the number of pairs.
        factors: log10(h): P(for some n, the p of a single test < h · `weight`(n)) / h, for runs of unknown noise at the border
            of what is tested. By numerical integration over the Markov chain of the t statistic;
            tests/compare/statistics/test_alpha_spending.py repeats it.
    """

    def __init__(self, few: Mapping[int, float], six_pairs: float, decline: float, factors: Mapping[float, float]) -> None:
        self._few_pairs, self._six_pairs, self.decline = few, six_pairs, decline
        self._one_look = np.array(list(factors))
        self._all_looks = self._one_look + np.log10(list(factors.values()))

    def weight(self, pairs: int) -> float:
        """Return the level of the test over so many pairs, relative to that over 5. Zero if they are not tested."""
        if pairs <= max(self._few_pairs):
            return self._few_pairs.get(pairs, 0.0)
        return self._six_pairs * (6 / pairs) ** self.decline

    def corrected_p(self, p: float, pairs: int) -> float:
        """Return the p of a test over so many pairs, corrected for looks at every other number of pairs."""
        return float(self.corrected_p_array(np.array([p]), pairs)[0])

    def corrected_p_array(self, p: npt.NDArray[np.float64], pairs: int) -> npt.NDArray[np.float64]:
        """Return the p-values of many tests over so many pairs each, corrected for looks at every other number of pairs."""
        one_look = np.clip(p / self.weight(pairs), 1e-300, 1.0)
        return np.where(p > 0.0, 10.0 ** np.interp(np.log10(one_look), self._one_look, self._all_looks), 0.0)

    def level(self, pairs: int, all_looks: float) -> float:
        """Return the level of a single test over so many pairs, given the level `all_looks` of all looks together."""
        return self.weight(pairs) * float(10.0 ** np.interp(np.log10(all_looks), self._all_looks, self._one_look))


TWO_SIDED = AlphaSpending(
    {3: 0.05, 4: 0.1, 5: 1.0},
    six_pairs=0.3,
    decline=1.5,
    factors={
        -300.0: 5.0, -12.0: 3.46, -10.0: 3.32, -8.0: 3.11, -7.0: 2.96, -6.0: 2.81, -5.0: 2.62, -4.5: 2.5, -4.0: 2.38,
        -3.5: 2.23, -3.0: 2.07, -2.5: 1.9, -2.0: 1.71, -1.5: 1.52, -1.0: 1.34, -0.5: 1.17, 0.0: 1.0,
    },
)  # fmt: skip
"""Spending of two-sided tests that two runs are equal. Most of the level goes to 5 pairs, which most users run."""

EQUIVALENCE = AlphaSpending(
    dict.fromkeys(range(5, 11), 1.0),
    six_pairs=(10 / 6) ** 1.5,
    decline=1.5,
    factors={
        -300.0: 300.0, -10.0: 13.5, -8.0: 12.0, -7.0: 11.2, -6.0: 10.1, -5.0: 8.95, -4.5: 8.23, -4.0: 7.52, -3.5: 6.79,
        -3.0: 5.98, -2.5: 5.12, -2.0: 4.27, -1.75: 3.84, -1.5: 3.41, -1.25: 3.0, -1.0: 2.59, -0.75: 2.19, -0.5: 1.81, 0.0: 1.0,
    },
)  # fmt: skip
"""Spending of one-sided tests that a difference is as large as the smallest effect. 5 to 10 pairs share most of the level:
equal runs of 3 % noise need some nine pairs to show that they differ by less than 5 %."""

corrected_p, level = TWO_SIDED.corrected_p, TWO_SIDED.level
