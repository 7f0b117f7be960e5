"""What repeats allow to be said: medians with spread, paired ratios with an interval, and words no stronger than these."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict
from scipy import stats

VERDICT_PAIRS = 5
"""Below this many pairs no verdict is given: a t-interval over fewer is too wide, a bootstrap raises false alarms."""

CONFIDENCE = 0.95


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Spread(_Frozen):
    """Median and interquartile range of `n` values."""

    median: float
    low: float
    """25 % quantile."""
    high: float
    """75 % quantile."""
    n: int


class Ratio(_Frozen):
    """The geometric mean of paired ratios, with its 95 % t-interval on the logarithms."""

    value: float
    low: float | None
    """None where there is a single pair: it has no interval."""
    high: float | None
    n: int

    @property
    def decided(self) -> bool:
        """Whether there are pairs enough for a verdict."""
        return self.n >= VERDICT_PAIRS

    @property
    def above_one(self) -> bool:
        return self.decided and self.low is not None and self.low > 1.0

    @property
    def below_one(self) -> bool:
        return self.decided and self.high is not None and self.high < 1.0


def spread(values: Sequence[float]) -> Spread | None:
    """Median and quartiles of the finite values; None where there is none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    low, median, high = (float(quantile) for quantile in np.quantile(finite, (0.25, 0.5, 0.75)))
    return Spread(median=median, low=low, high=high, n=len(finite))


def paired_ratio(pairs: Sequence[tuple[float, float]]) -> Ratio | None:
    """How many times the first of each pair is the second.

    Repeats are interleaved, so the two of a pair met the same state of the machine: its drift leaves their ratio alone.

    Args:
        pairs: positive values, the same repeat of two rows; pairs with a missing or non-positive value are left out.
    """
    logs = np.array([math.log(first / second) for first, second in pairs if _positive(first) and _positive(second)])
    if not len(logs):
        return None
    mean = float(logs.mean())
    if len(logs) == 1:
        return Ratio(value=math.exp(mean), low=None, high=None, n=1)
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(logs) - 1) * stats.sem(logs))
    return Ratio(value=math.exp(mean), low=_exp(mean - half), high=_exp(mean + half), n=len(logs))


def faster(seconds: Ratio, first: str, second: str) -> str:
    """Which of two is faster, in words.

    Args:
        seconds: seconds of `second` over seconds of `first`.
        first, second: their names.
    """
    quick, slow, times = (first, second, seconds) if seconds.value >= 1.0 else (second, first, inverse(seconds))
    if not seconds.decided:
        return (
            f"too few repeats to tell ({seconds.n} of {VERDICT_PAIRS}); {quick} {times.value:.2f} times as fast as {slow} here"
        )
    if not (seconds.above_one or seconds.below_one):
        return f"no difference shown between {first} and {second} ({first} {interval_words(seconds)} times as fast)"
    return f"{quick} is {interval_words(times)} times as fast as {slow}"


def pays(speedup: Ratio | None) -> str | None:
    """Whether a mode pays, given its speed-up over serial on the same cores; None where that is not known."""
    if speedup is None:
        return None
    if not speedup.decided:
        return "too few repeats to tell"
    if speedup.above_one:
        return "pays"
    return "does not pay" if speedup.below_one else "no gain shown"


def inverse(ratio: Ratio) -> Ratio:
    """The same comparison the other way round."""
    return Ratio(
        value=1.0 / ratio.value,
        low=None if ratio.high is None else _inverse(ratio.high),
        high=None if ratio.low is None else _inverse(ratio.low),
        n=ratio.n,
    )


def interval_words(ratio: Ratio) -> str:
    """`1.62 (1.58 to 1.66)`, or the value alone where there is no interval."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}"
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _exp(logarithm: float) -> float:
    """exp, held to the range of floats: two wild repeats have an interval wider than that."""
    return math.exp(min(max(logarithm, -700.0), 700.0))


def _inverse(value: float) -> float:
    return 1.0 / value
