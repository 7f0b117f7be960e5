"""Which verdict two curves get: missing steps, blunt copies, coarse dtypes, counted lines and written digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compare.tools.same import causes, curves, judging
from compare.tools.same.curves import Curve, LossesError
from compare.tools.same.judging import Copies, CurveComparison

STEPS = 40
A = 0.3 + 0.5 * np.exp(-np.arange(STEPS) / 15.0) + np.random.default_rng(3).normal(0, 0.03, STEPS)


def curve(losses: Any, first: int = 1, every: int = 1, *, is_counted: bool = False) -> Curve:
    losses = np.asarray(losses, np.float64)
    return Curve("made", first + every * np.arange(len(losses)), losses, is_counted=is_counted)


def judged(
    a: Curve, b: Curve, rounding: Any = None, most_steps: int | None = None, *, is_moved: bool = True
) -> CurveComparison:
    """Compare two curves. `rounding` is that of copies of A."""
    aligned = judging.align(a, b, most_steps)
    copies = None if rounding is None else Copies(np.broadcast_to(rounding, len(aligned.steps)), 3, is_moved)
    return judging.judge(a, b, aligned, (copies, None), most_steps=most_steps)


def changed(start: int, by: float) -> Any:
    return np.where(np.arange(STEPS) < start, A, A + by)


# Copies.


def test_copies_that_differ_much_at_later_steps_explain_nothing_there() -> None:
    rounding = np.where(np.arange(STEPS) < 5, 1e-7, 1.0)
    half = np.where(np.arange(STEPS) < 5, A, A / 2)
    comparison = judged(curve(A), curve(half), rounding)
    assert comparison.verdict == "cannot tell" and comparison.first_blunt == 5
    assert judged(curve(A), curve(half), rounding[:5], most_steps=5).verdict == "same"
    assert judged(curve(A), curve(A * (1 + 1e-8)), rounding[:5], most_steps=5).verdict == "rounding"


def test_a_copy_that_is_no_number_is_refused_with_the_steps_before_it() -> None:
    copy = curve(np.where(np.arange(STEPS) < 7, A, np.nan))
    with pytest.raises(LossesError, match=r"(?s)copy of A is no number at step 8.*--steps 7"):
        judging.measure_copies(curve(A), [copy], np.arange(STEPS), "A", is_moved=True)
    assert judging.measure_copies(curve(A), [copy], np.arange(7), "A", is_moved=True).number == 1


def test_a_side_that_is_no_number_is_another_training_whatever_its_copies_do() -> None:
    a, b = curve(A), curve(np.where(np.arange(STEPS) < 7, A, np.nan))
    aligned = judging.align(a, b)
    copies = judging.measure_copies(b, [b], aligned.places[1], "B", is_moved=True)
    assert judging.judge(a, b, aligned, (None, copies)).verdict == "another training"


@pytest.mark.parametrize(("by", "verdict"), [(5e-4, "rounding"), (2e-3, "another training")])
def test_repeats_are_judged_by_the_larger_limit(by: float, verdict: str) -> None:
    a, b = curve(A), curve(changed(0, by))
    assert judged(a, b).verdict == "another training"
    comparison = judged(a, b, 1e-4, is_moved=False)
    assert comparison.verdict == verdict and bool(causes.explain(comparison)) == (verdict == "another training")


@pytest.mark.parametrize(("rounding", "is_by_unit"), [(0.0, True), (1e-9, True), (1e-7, False)])
def test_a_dtype_is_the_measure_only_where_copies_are_nearer_than_the_sides(rounding: float, *, is_by_unit: bool) -> None:
    a, b = (curve(np.float32(losses)) for losses in (A, A * (1 + 2e-7)))
    comparison = judged(a, b, rounding, is_moved=False)
    assert (comparison.verdict, comparison.is_by_unit, comparison.dtype) == ("rounding", is_by_unit, "float32")


def test_moved_copies_alone_count_where_there_are_some() -> None:
    a, b = curve(A), curve(A * (1 + 1e-8))
    copies = Copies(np.full(STEPS, 1e-3), 3, is_moved=False), Copies(np.full(STEPS, 1e-8), 4, is_moved=True)
    comparison = judging.judge(a, b, judging.align(a, b), copies)
    assert {letter: of_side.number for letter, of_side in comparison.known_copies.items()} == {"B": 4}
    assert comparison.verdict == "rounding" and comparison.limit.max() < 1e-6


def test_repeats_that_are_far_apart_tell_nothing() -> None:
    comparison = judged(curve(A), curve(1.3 * A), 0.5, is_moved=False)
    assert comparison.verdict == "cannot tell" and comparison.first_blunt == 0


# Steps.


def test_more_steps_than_there_are_do_not_excuse_a_training_that_ended() -> None:
    a, b = curve(A), curve(A[:20])
    for most_steps, verdict in ((None, "cannot tell"), (1000, "cannot tell"), (21, "cannot tell"), (20, "same"), (5, "same")):
        assert judged(a, b, most_steps=most_steps).verdict == verdict, most_steps


@pytest.mark.parametrize(
    ("steps", "number"),
    [
        pytest.param(np.arange(21, 41), 20, id="a late begin"),
        pytest.param(np.delete(np.arange(1, 41), [10, 11]), 2, id="lost lines"),
        pytest.param(np.arange(10, 41, 10), 0, id="every tenth"),
        pytest.param(np.array([10, 20, 40]), 1, id="every tenth, one lost"),
    ],
)
def test_steps_that_one_side_lacks_are_counted(steps: Any, number: int) -> None:
    a, b = curve(A), Curve("made", steps, A[steps - 1])
    for comparison, side in ((judged(a, b), 0), (judged(b, a), 1)):
        assert len(comparison.gaps[side]) == number and not len(comparison.gaps[1 - side])
        assert comparison.verdict == ("cannot tell" if number else "same")
    asked = judged(a, b, most_steps=len(steps))
    assert asked.verdict == "same" and len(asked.gaps[0]) == number


# Without copies.


def as_bfloat16(losses: Any) -> Any:
    return (np.asarray(losses, np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def test_one_unit_of_a_coarse_dtype_is_no_other_training() -> None:
    a = as_bfloat16(A)
    b = a.copy()
    b[0] = (a[:1].view(np.uint32) + 0x10000).view(np.float32)[0]
    assert judged(curve(a), curve(b)).verdict == "cannot tell"
    b[0] = 1.2 * a[0]
    assert judged(curve(a), curve(as_bfloat16(b))).verdict == "another training"


def test_lines_that_are_counted_may_be_any_number_of_steps_apart() -> None:
    a, b = curve(A, is_counted=True), curve(changed(1, 3e-3), is_counted=True)
    assert judged(a, b).verdict == "cannot tell"
    assert judged(a, b, 1e-7).verdict == "another training"
    assert judged(curve(A), curve(changed(1, 3e-3))).verdict == "another training"


def test_sparse_steps_whose_difference_nothing_judges_have_causes() -> None:
    comparison = judged(curve(A, 10, 10), curve(changed(5, 2e-2), 10, 10))
    assert comparison.verdict == "cannot tell" and comparison.first_beyond is None
    assert "between-lines" in [cause.key for cause in causes.explain(comparison)]


# WrittenDigits.


@pytest.mark.parametrize(
    ("form", "number", "is_significant"), [("%.4f", 4, False), ("%.4g", 4, True), ("%.3e", 4, True), ("%.2f", 2, False)]
)
def test_digits_that_are_written_give_the_error_of_each_loss(form: str, number: int, is_significant: bool) -> None:
    losses = 2.302585 * np.exp(-np.arange(60) / 12)
    written = curve([float(form % loss) for loss in losses])
    assert written.digits == (number, is_significant)
    error = np.abs(written.losses - losses)
    assert (error <= written.resolution * (1 + 1e-9)).all()
    assert (error > written.resolution / 10).any()


def test_a_unit_of_the_last_significant_digit_is_no_other_training() -> None:
    a, b = ([float(f"{loss:.4g}") for loss in losses] for losses in (2.3024 * A**3, 2.3024 * A**3 * (1 + 2e-4)))
    assert curve(a).digits == (4, True)
    assert judged(curve(a), curve(b)).verdict != "another training"


# Hostile steps.


def test_windows_of_any_length_take_no_time() -> None:
    a, b = curve(A), Curve("made", np.array([1, 2**40, 2**41 - 1]), A[:3] + 1)
    comparison = judging.judge(a, b, judging.align(a, b), (Copies(np.full(1, 1e-7), 3, is_moved=True), None))
    assert causes.explain(comparison)


def test_a_window_has_the_steps_that_are_there() -> None:
    a = curve(A)
    b = curve(A.reshape(-1, 8).mean(axis=1), first=8, every=8)
    keys = [cause.key for cause in causes.explain(judged(a, b, 1e-7))]
    assert keys[0] == "running-mean/window"


# Causes.


def test_a_mean_of_means_over_uneven_parts_is_proposed_before_precision() -> None:
    generator = np.random.default_rng(1)
    by_example = A[:, None] * (1 + generator.normal(0, 0.15, (STEPS, 64)))
    thirds = (by_example[:, :21].mean(axis=1) + by_example[:, 21:].mean(axis=1)) / 2
    comparison = judged(curve(by_example.mean(axis=1)), curve(thirds), 1e-7)
    assert [cause.key for cause in causes.explain(comparison)][:2] == ["uneven-parts", "precision/size"]


def test_the_text_of_numbers_keeps_the_digits() -> None:
    text = "step,loss\n" + "".join(f"{step},{loss:.3e}\n" for step, loss in enumerate(A / 7, 1))
    assert curves.parse(text, "x.csv").digits == (4, True)
