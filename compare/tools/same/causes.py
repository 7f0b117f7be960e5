"""Causes that fit the pattern of two curves: those that explain B's losses in numbers, or those that the place suggests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from compare.cli.differences import FLOAT32_TOLERANCE
from compare.tools.same.curves import UNITS
from compare.tools.same.judging import CurveComparison, Floats

LIKELY = 1e-3
"""Smallest relative difference whose causes are proposed where nothing tells rounding from another training."""
EXPLAINED, FITTED = 1e-2, 1e-3
"""Largest part of a difference that a cause which explains it in numbers may leave, and one with a fitted number."""
_MOST_SHIFT = 8
_LEAST_STEPS = 3
"""Fewest steps that a pattern has to explain."""
_LEAST_NOISE_STEPS = 8
_ROUND_FACTOR = 1e-4
"""Largest relative distance of a single ratio from a whole number."""
_MOSTLY = 0.75
"""Smallest part of the steps that have one factor, if the other steps are short batches."""
_NEAR, _ABOUT = 0.06, 0.25
"""Largest relative distance of a fitted factor from a whole number that is named in its place, and from the number of processes
of a command."""
_LEAST_RATE_STEPS, _MOST_RATE_POINTS, _MOST_RATE = 8, 400, 32.0
"""Fewest steps for the factor of a learning rate, most points that it is fitted to, and its largest value."""
_UNEXPLAINED, _UNEXPLAINED_SPEED = 0.02, 0.5
"""Largest part of the squared differences that a fitted learning rate may leave if its number is named, and if it tells which
curve falls faster."""
_PRECISION_DIFFERENCE = 2e-2
"""Largest relative difference of a first loss that a lower precision explains."""
_UNCORRELATED = 0.4
_SAME_MEAN = 1e-4
"""Largest difference of the means of two curves that have the same examples, as a part of the largest difference."""
_SMALL = 0.3
"""Largest median difference that suggests a lower precision, divided by the median change from step to step."""
_ONE_SIDED = 0.9
"""Least part of the steps that a curve must be above the other one, to be called above it from the start."""
_SPEED_STEPS = 5
"""Steps behind the first update that tell which curve falls faster."""
_UNMOVED = 1e4
"""Range of the losses of a training, divided by that of one which does not train."""
_MOST_PARTS = 1024


class CurveCause(NamedTuple):
    """One possible reason of a difference, as facts. `same_words` has the words and the experiment."""

    name: str
    values: Mapping[str, Any] = {}
    variant: str = ""
    residual: float | None = None
    """Largest difference that remains once the cause is taken into account, as a part of the largest difference. None: the
    cause is suggested by the place or the form of the difference alone."""

    @property
    def key(self) -> str:
        return f"{self.name}/{self.variant}" if self.variant else self.name


class _Pattern(NamedTuple):
    """Two curves and their difference, without values that are no numbers."""

    comparison: CurveComparison
    a: Floats
    b: Floats
    difference: Floats
    """[N] B's losses minus A's."""
    start: int
    """Index of the first difference that rounding does not explain."""

    def residual(self, ours: Floats, theirs: Floats, explained: float = EXPLAINED) -> float | None:
        """Return the part of the difference that remains if `ours` stands for `theirs`. None: too much remains."""
        largest = float(np.abs(self.difference).max())
        written = 2 * sum(float(curve.resolution.max()) for curve in self.comparison.curves)
        if len(ours) < _LEAST_STEPS or not largest or 10 * written > largest:
            return None
        remaining = float(np.abs(ours - theirs).max())
        return remaining / largest if remaining <= max(explained * largest, written) else None


def explain(comparison: CurveComparison, processes: tuple[int | None, int | None] = (None, None)) -> list[CurveCause]:
    """Return the causes that fit, the likeliest first. Empty if rounding explains the difference, or may well do so.

    Args:
        processes: number of processes that A's and B's commands start, where their words say it.
    """
    start = comparison.first_beyond
    is_open = comparison.verdict == "cannot tell" and not comparison.is_moved
    if start is None and is_open and comparison.relative.max() > LIKELY:
        start = int(np.argmax(comparison.relative > FLOAT32_TOLERANCE))
    if start is None:
        return []
    aligned = comparison.aligned
    is_finite = np.isfinite(aligned.a) & np.isfinite(aligned.b)
    a, b = aligned.a[is_finite], aligned.b[is_finite]
    end = [CurveCause("divergence", {"one": aligned.diverged, "step": int(aligned.steps[-1])})] if aligned.diverged else []
    if not len(a) or start >= len(a):
        return end
    pattern = _Pattern(comparison, a, b, b - a, start)
    exact = [cause for of_kind in _EXACT for cause in of_kind(pattern)]
    exact.sort(key=lambda cause: cause.residual or 0.0)
    causes = [*(exact or _by_place(pattern)), *end]
    return [cause._replace(values={**cause.values, **_of_processes(cause, processes)}) for cause in causes]


def _of_processes(cause: CurveCause, processes: tuple[int | None, int | None]) -> dict[str, Any]:
    """Return the side whose number of processes is the factor of a cause."""
    factor = cause.values.get("times") or 0.0
    for letter, number in zip("AB", processes, strict=True):
        if number and number > 1 and any(math.isclose(factor, whole, rel_tol=_ABOUT) for whole in (number, 1 / number)):
            return {"processes": number, "of": letter}
    return {}


# Causes that explain the numbers.


def _scaled(pattern: _Pattern) -> Iterator[CurveCause]:
    """B's losses are a multiple of A's, at every step or at the first one."""
    a, b = pattern.a, pattern.b
    if not (a != 0).all():
        return
    ratio = float(np.median(b / a))
    fits = np.abs(b - ratio * a) <= FITTED * np.abs(pattern.difference)
    if (residual := pattern.residual(ratio * a, b, FITTED)) is not None:
        yield CurveCause("loss-scale", {"times": ratio}, "", residual)
    elif fits[0] and fits.mean() >= _MOSTLY and abs(ratio - 1) > _ROUND_FACTOR:  # a short batch has another factor
        yield CurveCause("loss-scale", {"times": ratio, "steps": int(fits.sum()), "all": len(a)}, "mostly", 0.0)
    elif pattern.start == 0:
        first = float(b[0] / a[0])
        parts = round(first if first >= 1 else 1 / first) if first > 0 and min(first, 1 / first) > 1 / _MOST_PARTS else 0
        factor = float(parts if first >= 1 else 1 / max(parts, 1))
        if parts > 1 and abs(first / factor - 1) <= _ROUND_FACTOR:
            yield CurveCause("loss-scale", {"times": factor}, "first", abs(first / factor - 1))


def _shifted(pattern: _Pattern) -> Iterator[CurveCause]:
    """B's losses are A's of some steps earlier or later."""
    if np.ptp(pattern.a) == 0:
        return
    for steps in range(1, min(_MOST_SHIFT, len(pattern.a) - _LEAST_STEPS) + 1):
        for late, early, one in ((pattern.b, pattern.a, "B"), (pattern.a, pattern.b, "A")):
            residual = pattern.residual(late[steps:], early[:-steps])
            if residual is not None and np.ptp(early[:-steps]) > 0:
                yield CurveCause("step-shift", {"one": one, "other": "AB".replace(one, ""), "steps": steps}, "", residual)
                return


def _offset(pattern: _Pattern) -> Iterator[CurveCause]:
    """A constant is added."""
    constant = float(np.median(pattern.difference))
    residual = pattern.residual(pattern.a + constant, pattern.b, FITTED)
    if residual is not None and len(pattern.a) > _LEAST_STEPS and np.ptp(pattern.a) > 0:
        yield CurveCause("loss-offset", {"by": constant}, "", residual)


def _averaged(pattern: _Pattern) -> Iterator[CurveCause]:
    """One side logs means of the other's losses: of a window, since the epoch's begin, or with exponential weights."""
    sides = (("B", pattern.a, pattern.b), ("A", pattern.b, pattern.a))
    for (one, plain, averaged), curves in zip(sides, (pattern.comparison.curves, pattern.comparison.curves[::-1]), strict=True):
        if np.ptp(plain) == 0 or len(plain) < _LEAST_STEPS:
            continue
        values = {"one": one, "other": "AB".replace(one, "")}
        means = _running_means(plain, len(plain))
        tolerance = EXPLAINED * float(np.abs(pattern.difference).max())
        wrong = np.flatnonzero(np.abs(means - averaged) > tolerance)
        period = int(wrong[0]) if len(wrong) else len(plain)
        if period >= 2 and (residual := pattern.residual(_running_means(plain, period), averaged)) is not None:
            yield CurveCause("running-mean", {**values, "period": period if len(wrong) else None}, "", residual)
            return
        if averaged[0] != plain[1]:
            weight = float((averaged[1] - plain[1]) / (averaged[0] - plain[1]))
            if (
                0.05 < weight < 1
                and (residual := pattern.residual(_smoothed(plain, averaged[0], weight), averaged, FITTED)) is not None
            ):
                yield CurveCause("running-mean", {**values, "weight": weight}, "exponential", residual)
                return
        steps, gaps = curves[1].steps, np.unique(np.diff(curves[1].steps))
        if len(gaps) == 1 and gaps[0] > 1 and not pattern.comparison.aligned.in_order:
            window = int(gaps[0])
            starts, ends = (np.searchsorted(curves[0].steps, last, "right") for last in (steps - window, steps))
            whole = np.flatnonzero(ends - starts == window)
            sums = [math.fsum(curves[0].losses[starts[place] : ends[place]].tolist()) for place in whole.tolist()]
            residual = pattern.residual(np.array(sums) / window, curves[1].losses[whole])
            if residual is not None:
                yield CurveCause("running-mean", {**values, "window": window}, "window", residual)


def _running_means(losses: Floats, period: int) -> Floats:
    """Return the mean of the losses since the last multiple of `period`."""
    blocks = [losses[start : start + period] for start in range(0, len(losses), period)]
    return np.concatenate([np.cumsum(block) / np.arange(1, len(block) + 1) for block in blocks])


def _smoothed(losses: Floats, first: float, weight: float) -> Floats:
    smoothed = [first]
    for loss in losses[1:].tolist():
        smoothed.append(weight * smoothed[-1] + (1 - weight) * loss)
    return np.array(smoothed)


def _in_parts(pattern: _Pattern) -> Iterator[CurveCause]:
    """One side logs a loss for each part of a batch of the other."""
    for one, few, many in (("B", *pattern.comparison.curves), ("A", *pattern.comparison.curves[::-1])):
        parts, rest = divmod(len(many.losses), len(few.losses))
        if rest or not 2 <= parts <= _MOST_PARTS:
            continue
        groups = many.losses.reshape(len(few.losses), parts)
        for combined, variant in ((groups.mean(axis=1), "mean"), (groups.sum(axis=1), "sum")):
            residual = pattern.residual(combined, few.losses)
            if residual is not None:
                values = {"one": one, "other": "AB".replace(one, ""), "parts": parts}
                yield CurveCause("micro-batches", values, variant, residual)
                return


def _permuted(pattern: _Pattern) -> Iterator[CurveCause]:
    residual = pattern.residual(np.sort(pattern.a), np.sort(pattern.b))
    if residual is not None and np.ptp(pattern.a) > 0:
        yield CurveCause("order", {}, "exact", residual)
    elif _is_noise(pattern.difference) and abs(pattern.difference.mean()) <= _SAME_MEAN * np.abs(pattern.difference).max():
        yield CurveCause("order", {}, "mean", 0.0)


def _at_ends(pattern: _Pattern) -> Iterator[CurveCause]:
    """Only every n-th step differs."""
    places = np.flatnonzero(pattern.comparison.difference > pattern.comparison.limit)
    if not len(places):  # proposed although nothing is beyond the limit, see `LIKELY`
        return
    period = int(places[0]) + 1
    number = len(pattern.a) // period
    is_regular = period > 2 and len(places) == number and np.array_equal(places + 1, period * np.arange(1, number + 1))
    if is_regular and (number > 1 or period == len(pattern.a)):
        yield CurveCause("last-batch", {"period": period}, "logged", 0.0)


def _unmoved(pattern: _Pattern) -> Iterator[CurveCause]:
    for one, other, still, moving in (("B", "A", pattern.b, pattern.a), ("A", "B", pattern.a, pattern.b)):
        if len(still) >= _LEAST_STEPS and np.ptp(moving) > _UNMOVED * np.ptp(still) and pattern.start > 0:
            yield CurveCause("no-update", {"one": one, "other": other}, "", 0.0)


def _precision(pattern: _Pattern) -> Iterator[CurveCause]:
    dtypes = [curve.dtype for curve in pattern.comparison.curves]
    coarse = [dtype in ("bfloat16", "float16") for dtype in dtypes]
    if coarse[0] != coarse[1] and len(pattern.a) >= _LEAST_STEPS:
        one = "B" if coarse[1] else "A"
        if len(np.unique(pattern.b if coarse[1] else pattern.a)) >= _LEAST_STEPS:
            yield CurveCause("precision", {"one": one, "dtype": dtypes[coarse[1]]}, "values", 0.0)


_EXACT: Sequence[Callable[[_Pattern], Iterator[CurveCause]]] = (
    _scaled, _shifted, _offset, _averaged, _in_parts, _permuted, _at_ends, _unmoved, _precision,
)  # fmt: skip


# Causes that the place of the first difference suggests.


def _by_place(pattern: _Pattern) -> Iterator[CurveCause]:
    aligned = pattern.comparison.aligned
    epochs = _epochs(pattern.comparison)
    is_by_epoch = epochs is not None and len(epochs) > 1 and bool((np.diff(epochs) > 0).all())
    has_gaps = is_by_epoch or bool((np.diff(aligned.steps) > 1).any()) or int(aligned.steps[0]) > 1
    if pattern.start == 0:
        yield from _from_first_step(pattern, has_gaps=has_gaps)
    elif has_gaps:
        rate = _learning_rate(pattern)
        yield from [rate] if rate and not rate.variant else []
        yield CurveCause(
            "between-lines", {"step": int(aligned.steps[pattern.start]), "before": int(aligned.steps[pattern.start - 1])}
        )
    elif pattern.start == 1:
        speed = "faster" if pattern.difference[1 : 1 + _SPEED_STEPS].mean() < 0 else "more slowly"  # too fast ends in a rise
        rate = _learning_rate(pattern) or CurveCause("learning-rate", {"speed": speed}, "unknown")
        order = CurveCause("order", {"step": int(aligned.steps[1])}, "second")
        yield from [order, rate] if rate.variant and _is_noise(pattern.difference[1:]) else [rate, order]
    elif pattern.start == 2:
        yield CurveCause("second-update", {"step": int(aligned.steps[2])})
        yield CurveCause("order", {"step": int(aligned.steps[2])}, "second")
    else:
        yield from _late(pattern)


def _from_first_step(pattern: _Pattern, *, has_gaps: bool) -> Iterator[CurveCause]:
    comparison, difference = pattern.comparison, pattern.difference
    third = max(len(difference) // 3, 1)
    begin, end = (float(np.abs(part).mean()) for part in (difference[:third], difference[-third:]))
    order, weights = CurveCause("order"), CurveCause("initial-weights")
    median = float(np.median(comparison.relative[: len(difference)]))
    uneven = CurveCause("uneven-parts", {"by": median})
    if has_gaps and (rate := _learning_rate(pattern)) and not rate.variant:
        yield rate
    precision = CurveCause("precision", {"by": float(comparison.relative[0])}, "size")
    changes = np.abs(np.diff(pattern.a))
    is_small = len(changes) > 0 and np.median(np.abs(difference)) <= _SMALL * np.median(changes)
    if comparison.relative[0] <= _PRECISION_DIFFERENCE and is_small:
        if _is_noise(difference):
            yield from (uneven, precision, weights) if median > UNITS["bfloat16"] / 2 else (precision, uneven, weights)
        else:
            is_likely = comparison.relative[0] <= _PRECISION_DIFFERENCE / 10
            yield from (precision, weights) if is_likely else (weights, precision)
    elif _is_noise(difference):
        yield from (order, CurveCause("one-rank"), CurveCause("draws"), uneven, weights)
    elif max(float((difference > 0).mean()), float((difference < 0).mean())) < _ONE_SIDED:
        yield from (order, CurveCause("batch-statistics"), weights)
    elif len(difference) >= _LEAST_STEPS and end < begin / 2:
        yield from (weights, CurveCause("loss-definition"), CurveCause("batch-statistics"))
    else:
        yield from (CurveCause("loss-definition"), CurveCause("batch-statistics"), weights)


def _late(pattern: _Pattern) -> Iterator[CurveCause]:
    """Some updates agree. Then a step differs: the end of an epoch, or a setting that changes there."""
    start, step = pattern.start, int(pattern.comparison.aligned.steps[pattern.start])
    epochs = _epochs(pattern.comparison)
    noise = float(np.median(np.abs(np.diff(pattern.a)))) or math.inf
    is_large = abs(float(pattern.difference[start])) > noise / 2
    reshuffled = CurveCause("order", {"step": step}, "epoch")
    short = CurveCause("last-batch", {"step": step}, "epoch")
    setting = CurveCause("late-setting", {"step": step, "updates": start - 1})
    if epochs is not None:
        starts_epoch = bool(epochs[start] != epochs[start - 1])
        ends_epoch = start + 1 < len(epochs) and bool(epochs[start + 1] != epochs[start])
        if starts_epoch:
            yield from (reshuffled, short) if is_large else (short, reshuffled)
        elif ends_epoch:
            yield short
        yield setting
        return
    if is_large:
        yield from (reshuffled, short, setting)
    else:
        yield from (short, setting)


def _epochs(comparison: CurveComparison) -> npt.NDArray[np.int64] | None:
    for curve, places in zip(comparison.curves, comparison.aligned.places, strict=True):
        if curve.epochs is not None and curve.epochs.min() < curve.epochs.max():
            return curve.epochs[places]
    return None


def _is_noise(difference: Floats) -> bool:
    """Whether differences change their sign as independent numbers do, so that neither curve stays above the other."""
    if len(difference) < _LEAST_NOISE_STEPS or not difference.any():
        return False
    squares = float(np.square(difference).sum())
    correlation = float((difference[1:] * difference[:-1]).sum()) / squares
    mean_in_errors = abs(float(difference.sum())) / math.sqrt(squares)
    return correlation < _UNCORRELATED and mean_in_errors < 3.0


def _learning_rate(pattern: _Pattern) -> CurveCause | None:
    """Return the factor of the learning rate, if B's losses fall as A's do at another speed, or which of them falls faster.

    A's losses are modelled as a sum of decays f(t) with noise, B's as f(times t) with the same noise, since both train on the
    same batches. So the difference is f(times t) - f(t), with little noise.
    """
    number = len(pattern.a)
    if number < _LEAST_RATE_STEPS:
        return None
    blocks = np.array_split(np.arange(number), min(number, _MOST_RATE_POINTS))
    steps = pattern.comparison.aligned.steps[:number]
    time, a, difference = (
        np.array([values[block].mean() for block in blocks]) for values in (steps - steps[0], pattern.a, pattern.difference)
    )
    rates = np.geomspace(0.3 / time[-1], 2.0, 12)
    plain = np.exp(-np.outer(time, rates))
    noise = float(np.median(np.abs(np.diff(a)))) or float(np.abs(difference).max())
    weight = 10.0 / float(np.abs(difference).std() or np.abs(difference).max())
    target = np.concatenate([a / noise, weight * difference])
    fits: list[tuple[float, float, float]] = []
    for times in np.geomspace(1 / _MOST_RATE, _MOST_RATE, 161).tolist():
        change = np.exp(-np.outer(times * time, rates)) - plain
        model = np.block([[plain / noise, np.full((len(a), 1), 1 / noise)], [weight * change, np.zeros((len(a), 1))]])
        try:
            parts, error = nnls(model, target)
        except RuntimeError:  # it does not converge: the columns are nearly the same
            continue
        left = np.square(difference - change @ parts[:-1]).sum() / np.square(difference).sum()
        fits.append((error, times, float(left)))
    if not fits:
        return None
    _, times, unexplained = min(fits)
    if unexplained > _UNEXPLAINED_SPEED or 1 / 1.1 < times < 1.1:
        return None
    if unexplained > _UNEXPLAINED:  # losses of a real network are no sum of decays: the speed is right, its number may be not
        return CurveCause("learning-rate", {"speed": "faster" if times > 1 else "more slowly"}, "unknown")
    whole = round(max(times, 1 / times))
    named = float(whole if times > 1 else 1 / whole)
    times = named if abs(times / named - 1) <= _NEAR and whole > 1 else times
    return CurveCause("learning-rate", {"times": times, "explained": 1.0 - unexplained})
