"""t-tests that stay valid if repeats are added until a difference shows.

A test of equal runs at a fixed 5 %, repeated after each added repeat, finds a false difference in 10 % of cases by 8 repeats
and in 19 % by 20. So each number of pairs has a level of its own, and the levels of all numbers of pairs together make 5 %:
a group-sequential test (Jennison & Turnbull 2000) whose intervals hold at every look (Jennison & Turnbull 1989).
"""

from __future__ import annotations

import numpy as np

_FEW = {3: 0.05, 4: 0.1, 5: 1.0}
_LATER, _DECLINE = 0.3, 1.5
"""Relative level of 6 pairs, and how fast that of more pairs falls. Most of the level goes to 5 pairs, which most users run."""

_FACTORS = {
    -300.0: 5.0, -12.0: 3.46, -10.0: 3.32, -8.0: 3.11, -7.0: 2.96, -6.0: 2.81, -5.0: 2.62, -4.5: 2.5, -4.0: 2.38, -3.5: 2.23,
    -3.0: 2.07, -2.5: 1.9, -2.0: 1.71, -1.5: 1.52, -1.0: 1.34, -0.5: 1.17, 0.0: 1.0,
}  # fmt: skip
"""log10(h): P(for some n, the p of a single test < h · `weight`(n)) / h, for equal runs of unknown noise.

By numerical integration over the Markov chain of the t statistic; tests/compare/core/test_looking.py repeats it.
"""
_ONE_LOOK = np.array(list(_FACTORS))
_ALL_LOOKS = _ONE_LOOK + np.log10(list(_FACTORS.values()))


def weight(pairs: int) -> float:
    """Level of the test over so many pairs, relative to that over 5. Zero for fewer than 3, which are not tested."""
    return 0.0 if pairs < 3 else _FEW.get(pairs) or _LATER * (6 / pairs) ** _DECLINE


def corrected(p: float, pairs: int) -> float:
    """The p of a test over at least 3 pairs, corrected for looks at every other number of pairs."""
    one_look = p / weight(pairs)
    if not 0.0 < one_look < 1.0:
        return min(one_look, 1.0)
    return float(10.0 ** np.interp(np.log10(one_look), _ONE_LOOK, _ALL_LOOKS))


def level(pairs: int, together: float) -> float:
    """Level of a test over at least 3 pairs, if all looks `together` are to have a level."""
    return weight(pairs) * float(10.0 ** np.interp(np.log10(together), _ALL_LOOKS, _ONE_LOOK))
