"""The ratio of two runs that took turns: which slices count, and what a disturbed one costs."""

from __future__ import annotations

from typing import Any

import pytest

from common.artifacts.schema import RunResult, Slice
from compare.judgement import slices
from tests.support import comparisons


def run(*seconds: float, steps: int = 10, taken: dict[int, float] | None = None, **epoch_fields: Any) -> RunResult:
    """A run of one epoch with slices of these seconds.

    Args:
        steps: steps of a slice.
        taken: {slice: CPU seconds that other work took}.
    """
    made = [
        Slice(
            first_step=2 + steps * place,
            steps=steps,
            seconds=value,
            taken_cpu_seconds=(taken or {}).get(place, 0.0),
            stolen_cpu_seconds=0.0,
        )
        for place, value in enumerate(seconds)
    ]
    result = comparisons.good(comparisons.row("pytorch"), sum(seconds))
    return result.model_copy(update={"epochs": [result.epochs[0].model_copy(update={"slices": made, **epoch_fields})]})


FAST = run(*[1.0] * 10)


def test_the_ratio_of_one_run_over_another_is_the_reciprocal_of_the_other_way_round() -> None:
    slow = run(*[2.0 + place / 10 for place in range(10)])
    ratio, back = slices.ratio(slow, FAST), slices.ratio(FAST, slow)
    assert ratio is not None and back is not None
    assert 2.0 < ratio < 2.9 and ratio == pytest.approx(1 / back)


def test_a_slow_slice_hardly_moves_the_ratio_and_a_disturbed_one_not_at_all() -> None:
    assert slices.ratio(run(*[2.0] * 9, 200.0), FAST) == pytest.approx(2.0)
    assert slices.ratio(run(*[2.0] * 8, 200.0, 200.0, taken={8: 100.0, 9: 100.0}), FAST) == pytest.approx(2.0)


def test_too_few_slices_that_are_whole_and_undisturbed_in_both_make_no_ratio() -> None:
    assert slices.ratio(run(*[2.0] * 7), FAST) is None
    assert slices.ratio(run(*[2.0] * 10, taken=dict.fromkeys(range(3), 1.0)), FAST) is None
    assert slices.ratio(FAST, run(*[2.0] * 10, left_out=[2, 15, 29])) is None
    assert slices.ratio(run(*[2.0] * 10), comparisons.good(comparisons.row("pytorch"), 1.0)) is None


def test_slices_of_other_steps_are_no_pairs() -> None:
    assert [*slices.paired(run(*[1.0] * 10, steps=9), FAST)] == []
    assert len([*slices.paired(FAST, FAST)]) == 10
