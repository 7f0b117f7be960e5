"""Patterns of two curves, and the causes that are proposed for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare.tools.same import causes, judging, same_words
from compare.tools.same.causes import CurveCause
from compare.tools.same.curves import Curve
from compare.tools.same.judging import CurveComparison

STEPS = 48
DRAWS = np.random.default_rng(3)
TREND = 0.3 + 0.5 * np.exp(-np.arange(STEPS) / 15.0)
NOISE = DRAWS.normal(0, 0.03, STEPS)
A = TREND + NOISE


CORPUS = Path(__file__).parent / "corpus"


def curve(losses: Any, first: int = 1, every: int = 1, epochs: Any = None) -> Curve:
    losses = np.asarray(losses, np.float64)
    return Curve("made", first + every * np.arange(len(losses)), losses, epochs)


def judged(a: Curve, b: Curve, **options: Any) -> CurveComparison:
    return judging.judge(a, b, judging.align(a, b), **options)


def first_cause(b: Any, a: Any = A, processes: tuple[int | None, int | None] = (None, None)) -> CurveCause:
    a, b = (losses if isinstance(losses, Curve) else curve(losses) for losses in (a, b))
    number = len(judging.align(a, b).steps)
    copies = judging.Copies(np.full(number, 1e-7), 3, is_moved=True)
    comparison = judged(a, b, copies=(copies if b.dtype != "bfloat16" else None, None))
    assert comparison.verdict == "another training"
    return causes.explain(comparison, processes)[0]


def spread(times: float) -> np.ndarray[Any, Any]:
    """The same noise around a curve that falls faster."""
    return 0.3 + 0.5 * np.exp(-times * np.arange(STEPS) / 15.0) + NOISE


def changed(start: int, by: Any) -> np.ndarray[Any, Any]:
    other = A.copy()
    other[start:] += by
    return other


ORDER = np.random.default_rng(5)
CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "a multiple": (2 * A, "loss-scale", {"times": 2.0}),
    "a part": (A / 4, "loss-scale", {"times": 0.25}),
    "a multiple at first alone": (np.concatenate([[3 * A[0]], spread(3)[1:] * 2.5]), "loss-scale/first", {"times": 3.0}),
    "a sum over examples, with short batches": (
        A * np.where(np.arange(1, STEPS + 1) % 12, 16, 5), "loss-scale/mostly", {"times": 16.0, "steps": 44},
    ),
    "another order, whose differences swing": (A + 0.1 * np.sin(0.35 * np.arange(STEPS) + 0.5), "order", {}),
    "a constant": (A + 0.125, "loss-offset", {}),
    "later by two steps": (np.concatenate([A[:2], A[:-2]]), "step-shift", {"one": "B", "steps": 2}),
    "earlier by one step": (np.concatenate([A[1:], A[-1:]]), "step-shift", {"one": "A", "steps": 1}),
    "a running mean": (np.cumsum(A) / np.arange(1, STEPS + 1), "running-mean", {"one": "B", "period": None}),
    "a running mean of each epoch": (causes._running_means(A, 12), "running-mean", {"period": 12}),
    "an exponential mean": (causes._smoothed(A, float(A[0]), 0.9), "running-mean/exponential", {"one": "B"}),
    "the same in another order": (ORDER.permutation(A), "order/exact", {}),
    "only every twelfth step": (A + 0.02 * (np.arange(1, STEPS + 1) % 12 == 0), "last-batch/logged", {"period": 12}),
    "twice the learning rate": (spread(2.0), "learning-rate", {"times": 2.0}),
    "a fifth of the learning rate": (spread(0.2), "learning-rate", {}),
    "other batches": (TREND + DRAWS.normal(0, 0.03, STEPS), "order", {}),
    "other initial weights": (A + 0.2 * np.exp(-np.arange(STEPS) / 6.0), "initial-weights", {}),
    "another loss": (A + 0.2 + 0.05 * np.exp(-np.arange(STEPS) / 6.0), "loss-definition", {}),
    "a second update": (changed(2, 0.01 * np.sqrt(np.arange(STEPS - 2) + 1)), "second-update", {"step": 3}),
    "a small difference late": (changed(12, 0.002 * np.arange(1, STEPS - 11)), "last-batch/epoch", {"step": 13}),
    "a large difference late": (changed(12, 0.1 * DRAWS.normal(1, 1, STEPS - 12)), "order/epoch", {"step": 13}),
    "numbers of bfloat16": (
        (A.astype(np.float32).view(np.uint32) & 0xFFFF0000).astype(np.uint32).view(np.float32), "precision/values",
        {"one": "B", "dtype": "bfloat16"},
    ),
    "a small difference from the first step on": (A * (1 + DRAWS.normal(0, 1e-3, STEPS)), "precision/size", {}),
    "no number": (np.where(np.arange(STEPS) < 20, A, np.nan), "divergence", {"one": "B", "step": 21}),
}  # fmt: skip


@pytest.mark.parametrize(("b", "key", "values"), CASES.values(), ids=CASES)
def test_a_pattern_has_its_cause_first(b: Any, key: str, values: dict[str, Any]) -> None:
    cause = first_cause(b)
    assert cause.key == key, cause
    assert values.items() <= cause.values.items()


def test_one_that_does_not_train_is_named_where_the_batch_is_always_the_same() -> None:
    cause = first_cause(np.full(STEPS, TREND[0]), TREND)
    assert (cause.key, cause.values["one"]) == ("no-update", "B")


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_losses_of_micro_batches_are_put_together(combine: str) -> None:
    parts = np.stack([A + 0.05, A - 0.05], axis=1) / (2 if combine == "sum" else 1)
    assert first_cause(parts.ravel()).key == f"micro-batches/{combine}"


def test_means_of_a_window_that_one_side_logs_are_those_of_the_other() -> None:
    cause = first_cause(curve(A.reshape(-1, 6).mean(axis=1), first=6, every=6))
    assert (cause.key, cause.values["window"]) == ("running-mean/window", 6)


def test_a_factor_that_is_the_number_of_processes_says_so() -> None:
    cause = first_cause(spread(2.1), processes=(None, 2))
    assert (cause.values["processes"], cause.values["of"]) == (2, "B")
    assert "B starts 2 processes" in same_words.cause_sentence(cause) and "by 2," in same_words.experiment(cause)


@pytest.mark.parametrize(("start", "key"), [(12, "order/epoch"), (11, "last-batch/epoch"), (17, "late-setting")])
def test_epochs_that_are_written_tell_what_a_step_is(start: int, key: str) -> None:
    epochs = np.arange(STEPS) // 12
    by = 0.1 if key == "order/epoch" else 0.01
    a, b = curve(A, epochs=epochs), curve(changed(start, by * np.arange(1, STEPS - start + 1)), epochs=epochs)
    assert first_cause(b, a).key == key


@pytest.mark.parametrize("b", [case[0] for case in CASES.values()], ids=CASES)
@pytest.mark.parametrize("every", [1, 10])
def test_patterns_that_may_be_rounding_are_looked_at_too(b: Any, every: int) -> None:
    comparison = judged(curve(A, first=every, every=every), curve(b, first=every, every=every))
    for cause in causes.explain(comparison, (None, 2)):
        assert same_words.cause_sentence(cause) and same_words.experiment(cause)


def test_what_differs_first_comes_before_the_end_of_a_training_that_overflows() -> None:
    b = np.where(np.arange(STEPS) < 20, spread(3.0), np.nan)
    *others, last = causes.explain(
        judged(curve(A), curve(b), copies=(judging.Copies(np.full(21, 1e-7), 3, is_moved=True), None))
    )
    assert last.key == "divergence" and others[0].name == "learning-rate"


def test_between_logged_steps_nothing_is_said_of_a_step() -> None:
    keys = [cause.key for cause in causes.explain(judged(curve(A, every=10), curve(changed(5, 3.0), every=10), copies=COPIES))]
    assert "between-lines" in keys


COPIES = (judging.Copies(np.full(STEPS, 1e-7), 3, is_moved=True), None)


def test_what_rounding_explains_needs_no_cause() -> None:
    comparison = judged(curve(A), curve(A * (1 + 1e-8)), copies=COPIES)
    assert comparison.verdict == "rounding" and causes.explain(comparison) == []


@pytest.mark.parametrize("key", same_words.CAUSES)
def test_every_cause_has_a_sentence_and_an_experiment(key: str) -> None:
    values = {
        "one": "B", "other": "A", "times": 2.0, "explained": 0.9, "step": 3, "steps": 1, "by": 0.1, "period": 4, "weight": 0.9,
        "window": 5, "parts": 2, "dtype": "bfloat16", "updates": 7, "before": 2, "speed": "faster",
        "all": 9,
    }  # fmt: skip
    name, _, variant = key.partition("/")
    cause = CurveCause(name, values, variant)
    for sentence in (same_words.cause_sentence(cause), same_words.experiment(cause)):
        assert sentence.endswith(".") and "{" not in sentence


@pytest.mark.parametrize("name", ["twice_the_rate", "twice_the_rate_with_dropout"])
def test_losses_of_a_network_tell_which_falls_faster_and_no_wrong_number(name: str) -> None:
    """PyTorch trained a small network at one rate and at twice that. A sum of decays does not describe its losses."""
    a, b = np.loadtxt(CORPUS / f"{name}.csv", delimiter=",", skiprows=1).T
    copies = judging.Copies(np.full(len(a), 1e-7), 3, is_moved=True)
    causes_found = causes.explain(judged(curve(a), curve(b), copies=(copies, None)), (None, None))
    (rate,) = [cause for cause in causes_found if cause.name == "learning-rate"]
    assert (rate.key, rate.values["speed"]) == ("learning-rate/unknown", "faster")


def test_a_rate_that_ends_in_a_rise_is_told_by_its_first_steps() -> None:
    """A large rate falls faster, and rises later."""
    b = A.copy()
    b[1:7] -= np.linspace(0.02, 0.12, 6)
    b[7:] += np.linspace(0.0, 3.0, STEPS - 7) ** 2
    comparison = judged(curve(A), curve(b), copies=(judging.Copies(np.full(STEPS, 1e-7), 3, is_moved=True), None))
    speeds = {cause.values.get("speed") for cause in causes.explain(comparison, (None, None)) if cause.name == "learning-rate"}
    assert speeds == {"faster"}
