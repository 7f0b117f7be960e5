"""The ratio of two runs that took turns: which slices count, and what a disturbed one costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.artifacts.schema import Noise, RunResult, Slice
from compare.judgement import cautions, run_figures, slices, summary
from compare.judgement.findings import findings
from compare.statistics.until_decided import UntilDecided
from tests.support import comparisons


def run(
    *seconds: float, steps: int = 10, steps_of_epoch: int = 0, taken: dict[int, float] | None = None, **epoch_fields: Any
) -> RunResult:
    """A run of one epoch with slices of these seconds.

    Args:
        steps: steps of a slice.
        steps_of_epoch: 0: those of the fixture.
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
    fields = {"slices": made, "steps": steps_of_epoch or result.epochs[0].steps, **epoch_fields}
    return result.model_copy(update={"epochs": [result.epochs[0].model_copy(update=fields)]})


FAST = run(*[1.0] * 10)


def test_the_ratio_of_one_run_over_another_is_the_reciprocal_of_the_other_way_round() -> None:
    slow = run(*[2.0 + place / 10 for place in range(10)])
    ratio, back = slices.ratio(slow, FAST), slices.ratio(FAST, slow)
    assert ratio is not None and back is not None
    assert 2.0 < ratio < 2.9 and ratio == pytest.approx(1 / back)


def test_a_slow_slice_hardly_moves_the_ratio_and_a_disturbed_one_not_at_all() -> None:
    assert slices.ratio(run(*[2.0] * 9, 200.0), FAST) == pytest.approx(2.0)
    assert slices.ratio(run(*[2.0] * 8, 200.0, 200.0, taken={8: 100.0, 9: 100.0}), FAST) == pytest.approx(2.0)


@pytest.mark.parametrize(("disturbed_slices", "is_disturbed"), [(4, False), (6, True)])
def test_a_row_is_disturbed_as_its_runs_are_by_the_median_of_their_slices(disturbed_slices: int, *, is_disturbed: bool) -> None:
    made = run(*[1.0] * 10, taken=dict.fromkeys(range(disturbed_slices), 1.0))
    made = comparisons.with_fields(made, noise=Noise(cores_taken=disturbed_slices / 10, cores_stolen=0.0))
    stored = comparisons.of_rows([comparisons.row("pytorch")], repeats=1)
    (row,) = stored.comparison.rows
    (judged,) = summary.summarize(comparisons.with_fields(stored, runs={row.id: {0: made}}))
    assert (run_figures.disturbing_cores(made) is not None, judged.disturbed) == (is_disturbed, is_disturbed)


def test_too_few_slices_that_are_undisturbed_in_both_make_no_ratio() -> None:
    assert slices.ratio(run(*[2.0] * 3), FAST) is None
    assert slices.ratio(run(*[2.0] * 4), FAST) == pytest.approx(2.0)
    assert slices.ratio(run(*[2.0] * 10, taken=dict.fromkeys(range(7), 1.0)), FAST) is None
    assert slices.ratio(run(*[2.0] * 10), comparisons.good(comparisons.row("pytorch"), 1.0)) is None


def test_a_slice_counts_by_its_timed_steps_wherever_the_others_were_recorded() -> None:
    """The recorded steps, two of ten in each slice, took no time of the slice."""
    recorded = [step for place in range(10) for step in (3 + 10 * place, 8 + 10 * place)]
    assert slices.ratio(run(*[1.6] * 10, left_out=recorded), FAST) == pytest.approx(2.0)
    assert slices.ratio(FAST, run(*[1.6] * 10, left_out=recorded)) == pytest.approx(0.5)
    assert slices.ratio(run(*[1.6] * 10, left_out=recorded), run(*[0.9] * 10, left_out=recorded[::2])) == pytest.approx(2.0)


def test_a_slice_of_which_a_run_timed_few_steps_is_no_pair() -> None:
    few = run(*[1.0] * 10, left_out=[*range(2, 8), *range(12, 17)])  # six of the first slice, five of the second
    assert [pair[0].slice.first_step for pair in slices.paired(few, FAST)] == [*range(12, 102, 10)]
    assert [pair[0].slice.first_step for pair in slices.paired(FAST, few)] == [*range(12, 102, 10)]
    assert [*slices.paired(run(*[1.0] * 10, left_out=[*range(2, 102)]), FAST)] == []


def test_the_slice_that_ends_an_epoch_counts_if_both_runs_timed_its_last_and_maybe_smaller_batch_or_neither_did() -> None:
    whole, without = (run(*[1.0] * 10, steps_of_epoch=101, left_out=left_out) for left_out in ([], [101]))
    counts = [len([*slices.paired(one, other)]) for one in (whole, without) for other in (whole, without)]
    assert counts == [10, 9, 9, 10]


def test_the_robust_mean_of_very_many_values_is_nearly_that_of_all_at_once() -> None:
    values = np.random.default_rng(0).exponential(1.0, 3 * slices.MOST_VALUES - 1)
    means = (values[:, None] + values)[np.triu_indices(len(values))] / 2
    assert slices.hodges_lehmann(values.tolist()) == pytest.approx(float(np.median(means)), abs=0.02)
    assert slices.hodges_lehmann([*values.tolist(), 1e9]) == pytest.approx(float(np.median(means)), abs=0.02)


@pytest.mark.parametrize("number", [slices.LEAST_SLICES, 8, 20])
@pytest.mark.parametrize("bursts", [False, True])
def test_the_robust_mean_of_slices_varies_no_more_than_whole_runs_and_half_as_much_after_bursts(
    number: int, *, bursts: bool
) -> None:
    """A burst meets one slice in ten and one of the two runs."""
    random = np.random.default_rng(number)

    def seconds() -> NDArray[np.float64]:
        noise = 1.0 + 0.08 * np.abs(random.standard_normal((1000, number)))
        lengths = 1.0 + random.exponential(0.6, noise.shape) * (random.random(noise.shape) < 0.1)
        return noise * lengths if bursts else noise

    one, other = seconds(), seconds()
    by_runs = np.log(one.sum(axis=1) / other.sum(axis=1)).std()
    by_slices = np.std([slices.hodges_lehmann(logs) for logs in np.log(one / other).tolist()])
    assert by_slices < (0.55 if bursts else 1.03) * by_runs


def test_a_row_whose_turns_were_other_steps_is_named() -> None:
    """The third row took turns of nine steps in the second repeat."""
    stored = comparisons.of_rows(
        [comparisons.row("pytorch"), comparisons.row("tensorflow"), comparisons.row("pytorch", "data_parallel")], repeats=3
    )
    runs = {
        row_id: {repeat: run(*[1.0] * 10, steps=9 if (number, repeat) == (2, 1) else 10) for repeat in repeats}
        for number, (row_id, repeats) in enumerate(stored.runs.items())
    }
    stored = stored.model_copy(update={"runs": runs})
    (caution,) = [found for found in cautions.statements(stored, summary.summarize(stored)) if found.kind == "out_of_step"]
    assert (caution.rows, caution.values) == ((list(runs)[2],), {"repeats": [2]})


def began_in_order(repeats: Sequence[list[int] | None]) -> Any:
    """Two rows with slices of these repeats, each given by which row began each of its slices first. None: no run ended."""
    rows = [comparisons.row("pytorch"), comparisons.row("tensorflow")]
    stored = comparisons.of_rows(rows, repeats=len(repeats))
    runs: dict[str, dict[int, RunResult]] = {}
    for number, row_id in enumerate(stored.runs):
        runs[row_id] = {}
        for repeat, firsts in enumerate(repeats):
            if firsts is None:
                continue
            made = run(*[1.0] * len(firsts))
            timed = [
                slice_.model_copy(update={"began_at": 1e9 + 2.0 * place + (first != number)})
                for place, (slice_, first) in enumerate(zip(made.epochs[0].slices, firsts, strict=True))
            ]
            runs[row_id][repeat] = made.model_copy(update={"epochs": [made.epochs[0].model_copy(update={"slices": timed})]})
    return stored.model_copy(update={"runs": runs})


@pytest.mark.parametrize(
    ("repeats", "named"),
    [
        ([[0, 1, 0], [1, 0, 1], [0, 1, 0]], None),  # as it should be
        ([[0, 1, 0, 1], [0, 1, 0, 1]], 0),  # planted: each repeat starts with the same row
        ([[1, 1, 1, 1], [0, 1, 1, 1]], 1),  # planted: starts alternate, turns do not
        ([[0, 0, 1, 1]], None),  # one repeat cannot alternate
        ([[0, 0]], None),  # too few turns to be even
        ([[0, 1, 0, 1], None, [0, 1, 0, 1]], None),  # the repeat that would have begun with the other row has failed
    ],
)
def test_a_row_that_always_starts_first_is_named(repeats: list[list[int] | None], named: int | None) -> None:
    stored = began_in_order(repeats)
    found = [each for each in cautions.statements(stored, summary.summarize(stored)) if each.kind == "always_first"]
    assert [each.rows for each in found] == ([] if named is None else [([*stored.runs][named],)])


def test_turns_without_times_or_of_interrupted_runs_name_no_row() -> None:
    stored = began_in_order([[0, 1, 0, 1], [0, 1, 0, 1]])
    (one, other) = ([*repeats.values()] for repeats in stored.runs.values())
    assert slices.first_rows({"a": one[0], "b": other[0]}) == ["a", "b", "a", "b"]
    assert slices.first_rows({"a": one[0], "b": FAST}) == []
    assert slices.first_rows({"a": one[0], "b": other[0].model_copy(update={"resumes": 1})}) == []


def test_a_run_that_was_made_again_without_its_round_is_named_and_its_slices_count_in_no_ratio() -> None:
    """A kill took the third row's run of the second repeat, and of the third repeat both parallel runs."""
    rows = [comparisons.row(framework, mode) for mode in ("serial", "data_parallel") for framework in ("pytorch", "tensorflow")]
    stored = comparisons.of_rows(rows, repeats=3)
    rounds = [["a"] * 4, ["b", "b", None, "b"], ["c", "c", "d", "d"]]
    runs = {
        row_id: {repeat: run(*[1.0] * 10).model_copy(update={"round_id": rounds[repeat][number]}) for repeat in repeats}
        for number, (row_id, repeats) in enumerate(stored.runs.items())
    }
    stored = stored.model_copy(update={"runs": runs})
    found = [found for found in cautions.statements(stored, summary.summarize(stored)) if found.kind == "made_later"]
    third, fourth = list(runs)[2:]
    assert {caution.rows: caution.values["repeats"] for caution in found} == {(third,): [2, 3], (fourth,): [3]}
    alone = runs[third][1]
    assert slices.ratio(alone, runs[fourth][1]) is None and slices.ratio(runs[third][2], runs[fourth][2]) is not None
    assert slices.ratio(runs[third][2], runs[next(iter(runs))][2]) is None
    regress = stored.comparison.model_copy(update={"argv": ["regress"]})  # whose pairs have a round each
    stored = stored.model_copy(update={"comparison": regress})
    assert not [found for found in cautions.statements(stored, summary.summarize(stored)) if found.kind == "made_later"]


@pytest.mark.parametrize(("between", "within"), [(0.0, 0.1), (0.1, 0.01)])
def test_the_noise_of_repeats_is_told_apart_from_that_within_them(between: float, within: float) -> None:
    random = np.random.default_rng(3)
    pairs = [
        (run(*np.exp(random.normal(random.normal(0.0, between), within, 100)).tolist()), run(*[1.0] * 100)) for _ in range(40)
    ]
    noise = slices.noise(pairs)
    assert noise is not None and noise.within_repeats == pytest.approx(within / 10, rel=0.1)
    assert noise.between_repeats == pytest.approx(math.hypot(between, within / 10), rel=0.3)
    assert slices.noise(pairs[:2]) is None and slices.noise([(run(1.0), run(1.0))] * 5) is None


@pytest.mark.parametrize(
    ("seconds", "taken", "counts"), [(0.06, 0.01, True), (0.06, 0.03, False), (1.0, 0.1, True), (1.0, 0.2, False)]
)
def test_a_tick_of_the_kernel_disturbs_no_slice(seconds: float, taken: float, *, counts: bool) -> None:
    slice_ = Slice(first_step=1, steps=4, seconds=seconds, taken_cpu_seconds=taken, stolen_cpu_seconds=0.0)
    assert slices.is_disturbed(slice_) is not counts


@pytest.mark.parametrize(
    ("ratio", "smallest_effect", "is_small"),
    [(1.02, None, True), (1.3, None, False), (1.0, 0.05, True), (1.0, 0.2, False)],
    ids=["small", "large", "hidden", "too small to be hidden"],
)
def test_a_verdict_on_frameworks_that_handovers_may_make_or_hide_gets_a_caution(
    ratio: float, smallest_effect: float | None, *, is_small: bool
) -> None:
    stored = comparisons.of_rows([comparisons.row("pytorch"), comparisons.row("tensorflow")], repeats=7)
    if smallest_effect is not None:
        until = UntilDecided(most_repeats=7, smallest_effect=smallest_effect)
        stored = stored.model_copy(update={"comparison": stored.comparison.with_settings(until=until)})
    factors = {"pytorch": ratio, "tensorflow": 1.0}
    runs = {
        row.id: {
            repeat: comparisons.with_fields(
                run(*[factors[row.framework] * (1.0 + 1e-4 * repeat**2)] * 10),
                framework=row.framework,
                repeat=repeat,
                spec=row.spec,
            )
            for repeat in range(7)
        }
        for row in stored.comparison.rows
    }
    stored = stored.model_copy(update={"runs": runs})
    found = findings(stored, summary.summarize(stored))
    (verdict,) = [judged for judged in found.verdicts if judged.verdict in ("above", "below", "no difference that matters")]
    assert [trouble.values["names"] for trouble in found.troubles if trouble.kind == "small_in_turns"] == (
        [[verdict.name]] if is_small else []
    )


def test_slices_of_other_steps_are_no_pairs() -> None:
    assert [*slices.paired(run(*[1.0] * 10, steps=9), FAST)] == []
    assert len([*slices.paired(FAST, FAST)]) == 10
