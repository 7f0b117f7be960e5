"""Verdicts and ratios in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from compare.cli.wording import percent
from compare.statistics.statistics import (
    CONFIDENCE,
    MARGIN,
    POWER,
    SIGNIFICANCE,
    VERDICT_PAIRS,
    JudgedRatio,
    Ratio,
    inverse,
    resolution,
)

_Contestant = TypeVar("_Contestant")

UNBOUNDED = "too few repeats for an interval"
"""Text in place of an interval that is too wide to mean anything."""
HOLDS = "Intervals hold however often repeats are added."
"""Note on intervals that are corrected for looks at every number of pairs."""


def verdict_text(judged: JudgedRatio, *, when_above: str, when_below: str, when_neither: str) -> str:
    """Return the verdict in words.

    The caller gives those for above, below and no difference shown; the others are always the same.
    """
    if judged.verdict == "no difference that matters":
        return f"no difference of {percent_words(judged.smallest_effect or 0.0)} or more"
    return {"above": when_above, "below": when_below, "no difference shown": when_neither}.get(judged.verdict, judged.verdict)


def percent_words(fraction: float) -> str:
    """Format a fraction as `5 %` or `2.5 %`."""
    return f"{float(f'{100 * fraction:.3g}'):g} %"


def faster(seconds: JudgedRatio, first: str, second: str) -> str:
    """Say which of two is faster, by how much and how surely.

    Args:
        seconds: seconds of `second` over seconds of `first`.
    """
    quick, slow, times = faster_side(seconds.ratio, first, second)
    if seconds.verdict == "too few repeats to tell":
        return f"{seconds.verdict} ({times.n} of {VERDICT_PAIRS}); {quick} is {times.value:.2f} times as fast as {slow} here"
    words = interval_words(times)
    if seconds.verdict not in ("above", "below"):
        text = verdict_text(seconds, when_above="", when_below="", when_neither=seconds.verdict)
        return f"{text} between {first} and {second}; {quick} is {words} times as fast{p_value_text(seconds)}"
    return f"{quick} is {words} times as fast as {slow}{within_margin_text(seconds)}{p_value_text(seconds)}"


def faster_side(seconds: Ratio, first: _Contestant, second: _Contestant) -> tuple[_Contestant, _Contestant, Ratio]:
    """Return (the faster of two, the slower, how many times as fast it is).

    Args:
        seconds: seconds of `second` over seconds of `first`.
    """
    return (first, second, seconds) if seconds.value >= 1.0 else (second, first, inverse(seconds))


def within_margin_text(judged: JudgedRatio) -> str:
    """Return `, by less than 1 %` if the whole interval of a verdict is that near to one, else an empty text."""
    low, high = judged.ratio.low, judged.ratio.high
    if judged.verdict not in ("above", "below") or low is None or high is None:
        return ""
    return f", by less than {percent(MARGIN)}" if low > 1.0 / (1.0 + MARGIN) and high < 1.0 + MARGIN else ""


def speedup_verdict(speedup: JudgedRatio | None) -> str | None:
    """Say whether a mode pays, given its speed-up over serial on the same cores. None if that is unknown."""
    return (
        None
        if speedup is None
        else verdict_text(speedup, when_above="pays", when_below="does not pay", when_neither="no gain shown")
    )


def p_value_text(judged: JudgedRatio) -> str:
    """Return ` (p = 0.012 among 4 comparisons)`, the end of a sentence. Empty if nothing was tested."""
    p = judged.smaller_p if judged.verdict == "no difference that matters" else judged.p
    if p is None or judged.ratio.p is None:
        return ""
    if judged.family == 1:
        return f" (p {p_words(p)})"
    lost_by_correction = judged.verdict == "no difference shown" and judged.ratio.p < SIGNIFICANCE
    uncorrected = f"; {p_value_words(judged.ratio.p)} by itself" if lost_by_correction else ""
    return f" (p {p_words(p)} among {judged.family} comparisons{uncorrected})"


def resolution_words(ratios: Sequence[Ratio], comparisons: int, *, one_look: bool = False, subject: str = "they") -> str:
    """Return the sentence on the smallest difference that these tests find, the end of a paragraph. Empty if it is unknown."""
    least = resolution(ratios, comparisons, one_look=one_look)
    if least is None:
        return ""
    return (
        f" Times vary from run to run. Judging by how much {subject} varied here, such a comparison finds a difference of "
        f"{difference_words(least)} in {percent(POWER)} of cases, and may miss a smaller one. This is an average, as repeats "
        "show the variation only roughly."
    )


def family_words(
    judged: Sequence[JudgedRatio], tests: str = "paired t-tests on the logarithms of the ratios of repeats"
) -> str | None:
    """Explain in sentences how the verdicts of a family were reached. None if none was tested.

    Args:
        tests: name of the tests that give the p-values.
    """
    tested_ratios = [ratio for ratio in judged if ratio.p is not None]
    if not tested_ratios:
        return None
    risk, level, number = percent(1.0 - CONFIDENCE), percent(CONFIDENCE), tested_ratios[0].family
    end = (
        " p says how often two equal ones would show such a difference by chance: 0.01 is once in 100 comparisons."
        " You may add repeats and look again as often as you like: the risk stays. So intervals are wider, and p is larger, "
        "than one plain t-test gives."
    )
    end += f"{resolution_words([ratio.ratio for ratio in tested_ratios], number)}"
    if number == 1:
        return f"If both were equal, chance alone would call one faster in at most {risk} of such reports ({tests}).{end}"
    return (
        f"Chance alone can make equal things look different. Of reports like this one, with {number} comparisons, at most "
        f"{risk} name any difference that is not there ({tests}, Holm-corrected). Each interval alone is {level} sure.{end}"
    )


def range_words(ratio: Ratio) -> str:
    """Format a ratio as `1.58 to 1.66`, or as the value alone if there is no interval."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}"
    digits = _digits(ratio.low, ratio.high)
    return f"{ratio.low:.{digits}f} to {ratio.high:.{digits}f}"


def bounded_words(ratio: Ratio) -> str:
    """Format a ratio as `1.62 (1.58 to 1.66)`, or as the value alone if it has no interval that means anything."""
    return interval_words(ratio) if ratio.is_bounded else f"{ratio.value:.2f}"


def difference_words(least: float) -> str:
    """Format a relative difference with two digits, as `5.7 %`."""
    return f"{float(f'{100 * least:.2g}'):g} %"


def interval_words(ratio: Ratio) -> str:
    """Format a ratio as `1.62 (1.58 to 1.66)`, or as the value alone if there is no interval."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}"
    if not ratio.is_bounded:
        return f"{ratio.value:.2f} ({UNBOUNDED})"
    return f"{ratio.value:.{_digits(ratio.low, ratio.high)}f} ({range_words(ratio)})"


def _digits(low: float, high: float) -> int:
    """Return the number of digits, at least two, that shows each bound on its own side of 1."""
    digits_apart_from_one = (digits for digits in range(2, 7) if 1.0 not in (round(low, digits), round(high, digits)))
    return next(digits_apart_from_one, 2)


def p_words(p: float) -> str:
    """Format a p-value as `= 0.012` or `< 0.001`."""
    return p_value_words(p) if p < 0.001 else f"= {p_value_words(p)}"


def p_value_words(p: float) -> str:
    """Format a p-value as `0.012` or `< 0.001`."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
