"""Verdicts and ratios in words."""

from __future__ import annotations

from collections.abc import Sequence

from compare.core.statistics import CONFIDENCE, MARGIN, POWER, SIGNIFICANCE, VERDICT_PAIRS, Judged, Ratio, inverse, resolution
from compare.core.wording import percent

UNBOUNDED = "too few repeats to bound it"
"""Stands for an interval that says nothing else."""
HOLDS = "Intervals hold however often repeats are added."
"""Of intervals that `Looks` has corrected."""


def word(judged: Judged, *, above: str, below: str, neither: str) -> str:
    """The verdict in the words of its subject. The other verdicts read the same for all."""
    if judged.verdict == "no difference that matters":
        return f"no difference of {percent_words(judged.smallest_effect or 0.0)} or more"
    return {"above": above, "below": below, "no difference shown": neither}.get(judged.verdict, judged.verdict)


def percent_words(fraction: float) -> str:
    """`5 %`, `2.5 %`."""
    return f"{float(f'{100 * fraction:.3g}'):g} %"


def faster(seconds: Judged, first: str, second: str) -> str:
    """Which of two is faster, in words, and how surely.

    Args:
        seconds: seconds of `second` over seconds of `first`.
    """
    ratio = seconds.ratio
    quick, slow, times = (first, second, ratio) if ratio.value >= 1.0 else (second, first, inverse(ratio))
    if seconds.verdict == "too few repeats to tell":
        return f"{seconds.verdict} ({ratio.n} of {VERDICT_PAIRS}); {quick} is {times.value:.2f} times as fast as {slow} here"
    if seconds.verdict not in ("above", "below"):
        said = word(seconds, above="", below="", neither=seconds.verdict)
        return f"{said} between {first} and {second}; {first} is {range_words(ratio)} times as fast{surety(seconds)}"
    return f"{quick} is {range_words(times)} times as fast as {slow}{hardly(seconds)}{surety(seconds)}"


def hardly(judged: Judged) -> str:
    """`, by less than 1 %` if the whole interval of a verdict is so near to one, else an empty text."""
    low, high = judged.ratio.low, judged.ratio.high
    if judged.verdict not in ("above", "below") or low is None or high is None:
        return ""
    return f", by less than {percent(MARGIN)}" if low > 1.0 / (1.0 + MARGIN) and high < 1.0 + MARGIN else ""


def pays(speedup: Judged | None) -> str | None:
    """Whether a mode pays, given its speed-up over serial on the same cores. None if that is unknown."""
    return None if speedup is None else word(speedup, above="pays", below="does not pay", neither="no gain shown")


def surety(judged: Judged) -> str:
    """` (p = 0.012 among 4 comparisons)`, the end of a sentence. Empty if nothing was tested."""
    p = judged.smaller_p if judged.verdict == "no difference that matters" else judged.p
    if p is None or judged.ratio.p is None:
        return ""
    if judged.family == 1:
        return f" (p {p_words(p)})"
    alone = judged.verdict == "no difference shown" and judged.ratio.p < SIGNIFICANCE
    by_itself = f"; {p_words(judged.ratio.p).removeprefix('= ')} by itself" if alone else ""
    return f" (p {p_words(p)} among {judged.family} comparisons{by_itself})"


def resolution_words(ratios: Sequence[Ratio], comparisons: int, *, one_look: bool = False, tested: str = "they") -> str:
    """` At the noise that they met, ...`, the end of a paragraph on what was tested. Empty if that is unknown."""
    least = resolution(ratios, comparisons, one_look=one_look)
    if least is None:
        return ""
    return (
        f" At the noise that {tested} met, a difference of {difference_words(least)} is found in {percent(POWER)} of cases. "
        "This is an average over what the noise may truly be."
    )


def family_words(
    judged: Sequence[Judged], tests: str = "paired t-tests on the logarithms of the ratios of repeats"
) -> str | None:
    """How the verdicts of a family were reached, in sentences. None if none was tested.

    Args:
        tests: what its p-values come from.
    """
    tested = [each for each in judged if each.p is not None]
    if not tested:
        return None
    level, number = percent(CONFIDENCE), tested[0].family
    end = " This holds however often repeats are added. So intervals are wider, and p is larger, than one plain t-test gives."
    end += f"{resolution_words([each.ratio for each in tested], number)}"
    if number == 1:
        return f"One comparison was tested, at {level} ({tests}).{end}"
    return (
        f"{number} comparisons make one family: with {level} confidence no difference that it names is false ({tests}, "
        f"Holm-corrected). Each interval is that of its comparison alone.{end}"
    )


def range_words(ratio: Ratio) -> str:
    """`1.58 to 1.66`, or the value alone if there is no interval."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}"
    digits = _digits(ratio.low, ratio.high)
    return f"{ratio.low:.{digits}f} to {ratio.high:.{digits}f}"


def bounded_words(ratio: Ratio) -> str:
    """`1.58 to 1.66`, or the value alone where an interval says nothing."""
    return range_words(ratio) if ratio.is_bounded else f"{ratio.value:.2f}"


def difference_words(least: float) -> str:
    """`5.7 %`, a difference that is found, with two digits."""
    return f"{float(f'{100 * least:.2g}'):g} %"


def interval_words(ratio: Ratio) -> str:
    """`1.62 (1.58 to 1.66)`, or the value alone if there is no interval."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}"
    if not ratio.is_bounded:
        return f"{ratio.value:.2f} ({UNBOUNDED})"
    return f"{ratio.value:.{_digits(ratio.low, ratio.high)}f} ({range_words(ratio)})"


def _digits(low: float, high: float) -> int:
    """Enough digits to show each bound on its own side of 1: at least two."""
    seen = (digits for digits in range(2, 7) if 1.0 not in (round(low, digits), round(high, digits)))
    return next(seen, 2)


def p_words(p: float) -> str:
    """`= 0.012`, or `< 0.001`."""
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"
