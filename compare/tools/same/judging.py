"""Judges two curves: the same, rounding, or another training. Steps are aligned, and differences compared with a limit.

With copies moved by one unit in the last place, the limit is the rule of the timed rows, `compare.proof.step_truth.loss_limit`.
Without them it is what a step may differ by: `FLOAT32_TOLERANCE` at first, or what a coarser dtype rounds, and at most
`AMPLIFIED` times the difference so far with each step. Beyond this limit it is another training. Within it, copies have to
tell. A limit above `SHARP` tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from compare.cli import differences
from compare.cli.differences import FLOAT32_TOLERANCE
from compare.proof.step_truth import ROUNDING_FACTOR, loss_limit, rounding_error
from compare.proof.tolerances import AMPLIFIED
from compare.tools.same.curves import LINES, UNITS, Curve, LossesError

Floats = npt.NDArray[np.float64]
Verdict = Literal["same", "rounding", "another training", "cannot tell"]
SHARP = 1e-2
"""Largest limit, relative to the larger loss, of a step that can tell trainings apart."""
_MOST_GAP = 20
"""Number of steps behind which a difference without copies tells nothing."""


class Aligned(NamedTuple):
    """Two curves at their common steps, up to the first one where both are no number."""

    steps: npt.NDArray[np.int64]
    """[N] numbers of the steps, those of A."""
    a: Floats
    """[N] losses. The last one of one side may be no number."""
    b: Floats
    places: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    """[N] places of these steps in both curves."""
    in_order: bool
    """Whether steps are aligned in their order, because their numbers differ."""
    both_end: int | None = None
    """First step that is no number in both."""
    diverged: Literal["", "A", "B"] = ""
    """Side that is no number at the last step."""


class Copies(NamedTuple):
    """How much the losses of a side change in its copies."""

    rounding: Floats
    """[N] rounding error at each step, see `rounding_error`."""
    number: int
    is_moved: bool
    """Whether inputs were moved by one unit in the last place. If not, the command was only repeated."""


@dataclass(frozen=True, kw_only=True)
class CurveComparison:
    """The answer for two curves."""

    curves: tuple[Curve, Curve]
    aligned: Aligned
    difference: Floats
    """[N] absolute differences. Infinite where one side is no number."""
    relative: Floats
    """[N] relative to the larger of both losses."""
    limit: Floats
    """[N] largest difference that rounding explains."""
    verdict: Verdict
    missing: tuple[int, int]
    """Number of steps of A, and of B, behind the last common one."""
    gaps: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    """[N] steps of A, and of B, before the last common one that the other side should have."""
    is_partial: bool = False
    """Whether steps are missing, and nobody asked for the common ones alone."""
    by_copies: Floats | None = None
    """[N] largest difference that copies explain. Without copies None."""
    copies: tuple[Copies | None, Copies | None] = (None, None)

    @property
    def first(self) -> int | None:
        """Index of the first difference. None: there is none."""
        return next(iter(np.flatnonzero(self.difference > 0).tolist()), None)

    @property
    def first_beyond(self) -> int | None:
        """Index of the first difference that rounding does not explain. None: there is none."""
        return next(iter(np.flatnonzero(self.difference > self.limit).tolist()), None)

    @property
    def excess(self) -> float:
        """Largest difference, divided by its limit."""
        ratios = np.divide(self.difference, self.limit, out=np.where(self.difference > 0, np.inf, 0.0), where=self.limit > 0)
        return float(ratios.max())

    @property
    def is_moved(self) -> bool:
        return any(copies.is_moved for copies in self.known_copies.values())

    @property
    def known_copies(self) -> dict[str, Copies]:
        """The copies that count, by side, A and B."""
        return _counting(self.copies)

    @property
    def dtype(self) -> str:
        """The coarser dtype of both curves."""
        return max((curve.dtype for curve in self.curves), key=UNITS.__getitem__)

    @property
    def is_by_unit(self) -> bool:
        """Whether copies are too near to their runs to explain the differences, and `dtype` or digits do. There are copies."""
        rounding = np.max([copies.rounding for copies in self.known_copies.values()], axis=0)
        return bool((self.difference > ROUNDING_FACTOR * np.maximum.accumulate(rounding)).any())

    @property
    def first_blunt(self) -> int | None:
        """Index of the first step where copies differ by more than `SHARP`. None: there is none, or there are no copies."""
        if self.by_copies is None:
            return None
        return next(iter(np.flatnonzero(_is_blunt(self.by_copies, self.aligned)).tolist()), None)


def align(a: Curve, b: Curve, most_steps: int | None = None) -> Aligned:
    """Align two curves by the numbers of their steps.

    In order, if one has no such numbers, or if one counts from 0 and the other from 1.

    Args:
        most_steps: common steps that are compared, from the first. None: all.
    """
    counts_from = {int(a.steps[0]), int(b.steps[0])}
    in_order = a.is_counted or b.is_counted or (len(a.steps) == len(b.steps) and counts_from == {0, 1})
    if in_order:
        number = min(len(a.steps), len(b.steps))
        places = np.arange(number), np.arange(number)
    else:
        _, *both = np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)
        places = both[0], both[1]
    if not len(places[0]):
        ranges = " and ".join(f"{curve.steps[0]} to {curve.steps[-1]}" for curve in (a, b))
        raise LossesError(f"A and B have no step in common. Received: {ranges}. Align them in order: --step {LINES}.")
    places = places[0][:most_steps], places[1][:most_steps]
    losses = a.losses[places[0]], b.losses[places[1]]
    finite = np.isfinite(losses[0]), np.isfinite(losses[1])
    end, both_end, diverged = len(losses[0]), None, ""
    if not (finite[0] & finite[1]).all():
        end = int(np.argmin(finite[0] & finite[1]))
        if finite[0][end] == finite[1][end]:
            both_end = int(a.steps[places[0]][end])
        else:
            diverged = "B" if finite[0][end] else "A"
            end += 1
    if not end:
        raise LossesError(f"The first losses of A and B are no numbers. Received: {losses[0][0]} and {losses[1][0]}.")
    return Aligned(
        a.steps[places[0]][:end], losses[0][:end], losses[1][:end], (places[0][:end], places[1][:end]),
        in_order and not np.array_equal(a.steps[places[0]], b.steps[places[1]]), both_end, diverged,
    )  # fmt: skip


def measure_copies(
    base: Curve, copies: Sequence[Curve], places: npt.NDArray[np.int64], letter: str, *, is_moved: bool
) -> Copies:
    """Measure how much the losses of a side change in its copies.

    Args:
        base: the curve of its usual run.
        copies: curves of the copies.
        places: places of the aligned steps in the curve.
        letter: A or B.
    """
    is_finite = np.isfinite(base.losses[places])
    for copy in copies:
        if not np.array_equal(copy.steps, base.steps):
            ranges = " and ".join(f"{len(curve.steps)} to step {curve.steps[-1]}" for curve in (base, copy))
            raise LossesError(f"A copy of {letter} has other steps. Received: {ranges}. Let every run train the same steps.")
        if len(ends := np.flatnonzero(is_finite & ~np.isfinite(copy.losses[places]))):
            place = int(places[ends[0]])
            advice = f"Compare the steps before it: --steps {ends[0]}" if ends[0] else "Mend the training first"
            raise LossesError(
                f"A copy of {letter} is no number at step {base.steps[place]}, so its rounding is not known there. Received: "
                f"{copy.losses[place]}, and {base.losses[place]:.9g} in the usual run. {advice}."
            )
    errors = differences.absolute(
        np.stack([copy.losses[places] for copy in copies]), np.stack([base.losses[places]] * len(copies))
    )
    errors = np.where(is_finite, errors, 0.0)  # a usual run that is no number is another training, whatever its copies do
    return Copies(np.asarray(rounding_error(errors), np.float64), len(copies), is_moved)


def judge(
    a: Curve,
    b: Curve,
    aligned: Aligned,
    copies: tuple[Copies | None, Copies | None] = (None, None),
    *,
    most_steps: int | None = None,
) -> CurveComparison:
    """Judge two aligned curves.

    Args:
        copies: of A and of B.
        most_steps: as in `align`.
    """
    difference = np.asarray(differences.absolute(aligned.a, aligned.b), np.float64)
    relative = np.asarray(differences.relative(aligned.a, aligned.b), np.float64)
    known = list(_counting(copies).values())
    by_copies = _limit_by_copies(a, b, aligned, known) if known else None
    limit = np.zeros_like(difference) if by_copies is None else by_copies
    if not (known and known[0].is_moved):
        limit = np.maximum(limit, _limit_without_copies(a, b, aligned, difference))
    ends = [int(curve.steps[place[-1]]) for curve, place in zip((a, b), aligned.places, strict=True)]
    missing = tuple(int(np.sum(curve.steps > end)) for curve, end in zip((a, b), ends, strict=True))
    if len(aligned.steps) == most_steps or aligned.both_end is not None:
        missing = (0, 0)
    gaps = (_without_partner(a, b, aligned), _without_partner(b, a, aligned))
    is_partial = any(missing) or (len(aligned.steps) != most_steps and any(len(steps) > 0 for steps in gaps))
    if (difference > limit).any():
        verdict: Verdict = "another training"
    elif is_partial:
        verdict = "cannot tell"
    elif not difference.any():
        verdict = "same"
    else:
        is_explained = by_copies is not None and (difference <= by_copies).all() and not _is_blunt(by_copies, aligned).any()
        verdict = "rounding" if is_explained else "cannot tell"
    return CurveComparison(
        curves=(a, b), aligned=aligned, difference=difference, relative=relative, limit=limit, verdict=verdict,
        missing=(missing[0], missing[1]), gaps=gaps, is_partial=is_partial, by_copies=by_copies, copies=copies,
    )  # fmt: skip


def _counting(copies: tuple[Copies | None, Copies | None]) -> dict[str, Copies]:
    """Return copies by side: moved ones alone, if there are any."""
    known = {letter: of_side for letter, of_side in zip("AB", copies, strict=True) if of_side is not None}
    return {letter: of_side for letter, of_side in known.items() if of_side.is_moved} or known


def _without_partner(curve: Curve, other: Curve, aligned: Aligned) -> npt.NDArray[np.int64]:
    """Return the steps of a curve, up to the last common one, that the other curve should have: it has no step so near.

    A curve that is logged every tenth step lacks none of the nine between. Curves that are aligned in order lack none.
    """
    if aligned.in_order:
        return np.empty(0, np.int64)
    last = aligned.steps[-1]
    steps, others = (np.unique(of_side.steps[of_side.steps <= last]) for of_side in (curve, other))
    usual = float(np.quantile(np.diff(others), 0.5, method="lower")) if len(others) > 1 else 1.0
    after = np.searchsorted(others, steps)
    distance = np.abs(others[np.minimum(after, len(others) - 1)] - steps)
    before = np.where(after > 0, np.abs(steps - others[np.maximum(after - 1, 0)]), np.inf)
    return steps[np.minimum(distance, before) >= usual]


def _limit_by_copies(a: Curve, b: Curve, aligned: Aligned, copies: Sequence[Copies]) -> Floats:
    unit, scale = max(UNITS[a.dtype], UNITS[b.dtype]), scale_of(aligned)
    limits = [loss_limit(of_side.rounding[None], scale, unit) for of_side in copies]
    return np.maximum.accumulate(np.max(limits, axis=0)) + _resolution(a, b, aligned)


def _resolution(a: Curve, b: Curve, aligned: Aligned) -> Floats:
    return a.resolution[aligned.places[0]] + b.resolution[aligned.places[1]]


def _is_blunt(limit: Floats, aligned: Aligned) -> npt.NDArray[np.bool_]:
    return limit > SHARP * scale_of(aligned)


def _limit_without_copies(a: Curve, b: Curve, aligned: Aligned, difference: Floats) -> Floats:
    """Return what rounding may differ by, from the first difference on amplified by each step that was trained since.

    Between lines that are counted, any number of steps may lie.
    """
    scale, resolution = scale_of(aligned), _resolution(a, b, aligned)
    gaps = np.diff(aligned.steps, prepend=min(int(aligned.steps[0]), 1)).clip(0, _MOST_GAP)
    if a.is_counted or b.is_counted:
        gaps = np.full_like(gaps, _MOST_GAP)
    start = start_tolerance(a, b)
    differing = np.maximum(np.divide(difference, scale, out=np.zeros_like(scale), where=scale > 0), start)
    differing = np.maximum(differing, np.divide(resolution, scale, out=np.zeros_like(scale), where=scale > 0))
    before = np.concatenate([[start], np.maximum.accumulate(differing)[:-1]])
    limit = before * AMPLIFIED**gaps * scale + resolution
    for beyond in np.flatnonzero(difference > limit)[:1].tolist():  # what follows such a difference is no rounding
        limit[beyond:] = limit[beyond] / scale[beyond] * scale[beyond:]
    return limit


def start_tolerance(a: Curve, b: Curve) -> float:
    """Return the largest relative difference of first losses that rounding explains without copies.

    A dtype coarser than float32 counts if both have it. One side alone in lower precision is a difference to be told.
    """
    return max(FLOAT32_TOLERANCE, ROUNDING_FACTOR * min(UNITS[curve.dtype] for curve in (a, b)))


def scale_of(aligned: Aligned) -> Floats:
    """Return the larger of both losses at each step, or the finite one."""
    a, b = np.abs(aligned.a), np.abs(aligned.b)
    larger = np.fmax(a, b)
    return np.where(np.isfinite(larger), larger, np.fmin(a, b))
