import math
from typing import Any

import pytest

from common import spec
from common.results import StepParts
from compare import tables
from compare.findings import findings
from compare.matrix import Row
from compare.summary import Summary, epoch_seconds, images_per_second, summarize
from tests.compare import made


def _by_id(summaries: list[Summary]) -> dict[str, Summary]:
    return {summary.id: summary for summary in summaries}


def test_speedups_are_given_against_one_core_and_the_same_cores() -> None:
    rows = [made.row("pytorch", cores=1), made.row("pytorch"), made.row("pytorch", "multi_process")]
    seconds = (8.0, 5.0, 4.0)
    stored = made.repeated().model_copy(
        update={
            "comparison": made.comparison(rows),
            "runs": {row.id: {0: made.good(row, each)} for row, each in zip(rows, seconds, strict=True)},
        }
    )
    one, both, parallel = summarize(stored)
    assert one.speedup_one_core is None and one.pays is None
    assert both.speedup_one_core is not None and both.speedup_one_core.value == pytest.approx(1.6)
    assert both.speedup_same_cores is None and both.pays is None
    assert parallel.speedup_one_core is not None and parallel.speedup_one_core.value == pytest.approx(2.0)
    assert parallel.speedup_same_cores is not None and parallel.speedup_same_cores.value == pytest.approx(1.25)
    assert parallel.parallel_efficiency == pytest.approx(1.0)  # twice as fast on two cores


def test_on_accelerators_efficiency_counts_devices() -> None:
    rows = [made.row("pytorch"), made.row("pytorch", "data_parallel")]
    runs = {
        row.id: {0: made.good(row, each).model_copy(update={"device": "cuda"})}
        for row, each in zip(rows, (6.0, 4.0), strict=True)
    }
    stored = made.repeated().model_copy(update={"comparison": made.comparison(rows), "runs": runs})
    assert summarize(stored)[1].parallel_efficiency == pytest.approx(0.75)


def test_a_row_that_was_not_parallel_has_figures_but_no_speedup() -> None:
    summary = _by_id(summarize(made.troubled()))["pytorch-data_parallel-2"]
    assert summary.status == "not parallel"
    assert summary.epoch_seconds is not None
    assert summary.speedup_one_core is None and summary.speedup_same_cores is None and summary.pays is None


def test_a_killed_row_keeps_its_epochs_but_counts_in_no_median() -> None:
    summary = _by_id(summarize(made.troubled()))["pytorch-multi_process-2"]
    assert (summary.status, summary.epochs_done, len(summary.epochs)) == ("killed", 1, 1)
    assert summary.train.accuracy is None and summary.epoch_seconds is None


def test_one_bad_repeat_marks_the_row_and_the_good_ones_count() -> None:
    stored = made.repeated()
    row = stored.comparison.rows[0]
    stored.runs[row.id][3] = made.bad(row, "diverged", "loss is nan", epochs=1)
    summary = summarize(stored)[0]
    assert (summary.status, summary.reason) == ("diverged", "1 of 5 repeats: loss is nan")
    assert summary.repeats_done == 4
    assert summary.train.accuracy is not None and summary.train.accuracy.n == 4


def test_the_first_step_difference_is_relative_and_the_largest_of_the_repeats() -> None:
    stored = made.repeated()
    row = stored.comparison.rows[0]
    stored.runs[row.id][2] = made.good(row, 4.0, 2, first_step_loss=2.3 * (1 + 1e-6))
    first, _, third, _ = summarize(stored)
    assert first.first_step_difference == pytest.approx(1e-6, rel=1e-3)
    assert third.first_step_difference == first.first_step_difference


def test_a_framework_alone_has_no_first_step_difference() -> None:
    rows = [made.row("pytorch")]
    stored = made.repeated().model_copy(
        update={"comparison": made.comparison(rows), "runs": {rows[0].id: {0: made.good(rows[0], 1.0)}}}
    )
    assert summarize(stored)[0].first_step_difference is None


def test_the_input_alone_is_judged_by_all_its_images_over_all_its_seconds() -> None:
    stored = made.input_only(timed_steps=20)
    summaries = summarize(stored)
    rate, seconds = summaries[2].images_per_second, summaries[2].epoch_seconds
    assert rate is not None and rate.median == pytest.approx(20 * 64 / 4.001)  # the mean of its epochs' rates is 100 times that
    assert seconds is not None and seconds.median == pytest.approx(640 * 4.001 / (20 * 64))
    found = findings(stored, summaries)
    assert len(found.frameworks) == 3 and found.troubles == []


@pytest.mark.parametrize(("timed", "too_short"), [(16, []), (15, [2]), (7, [1, 2]), (3, [0, 1, 2])])
def test_an_input_of_too_few_timed_batches_gets_a_caution_and_no_verdict(timed: int, too_short: list[int]) -> None:
    stored = made.input_only(timed_steps=timed)
    found = findings(stored, summarize(stored))
    assert len(found.frameworks) == 3 - len(too_short)
    said = [sentence.partition(": ")[2] for sentence in found.troubles if sentence.startswith("pytorch")]
    needed = {0: 4, 1: 8, 2: 16}
    assert said == [
        f"{timed} timed batches, of {needed[workers]} that show a steady pace: rely on no rate of it, and make it longer with "
        "--epochs."
        for workers in too_short
    ]


def test_the_input_alone_says_nothing_of_weights_and_order() -> None:
    stored = made.input_only()
    sentences = findings(stored, summarize(stored)).sameness
    assert "Same data in all 30 runs that recorded it." in sentences
    assert not any("weights" in sentence or "order" in sentence for sentence in sentences)


def test_runs_of_one_step_have_no_seconds_and_no_verdict() -> None:
    stored = made.repeated()
    for row in stored.comparison.rows:
        for repeat, result in stored.runs[row.id].items():
            epochs = [
                epoch.model_copy(update={"timed_steps": 0, "timed_images": 0, "timed_seconds": 0.0}) for epoch in result.epochs
            ]
            stored.runs[row.id][repeat] = result.model_copy(update={"epochs": epochs})
    summaries = summarize(stored)
    assert all(summary.epoch_seconds is None and summary.speedup_same_cores is None for summary in summaries)
    assert findings(stored, summaries).frameworks == []


@pytest.mark.parametrize(("field", "what"), [("order_hash", "order of examples"), ("weights_hash", "initial weights")])
def test_unequal_hashes_are_called_out(field: str, what: str) -> None:
    stored = made.repeated()
    row = stored.comparison.rows[1]
    stored.runs[row.id][0] = stored.runs[row.id][0].model_copy(update={field: "another"})
    sentences = findings(stored, summarize(stored)).sameness
    assert f"NOT the same {what}: 2 different among 20 runs. Their figures do not compare." in sentences


def test_a_diverged_run_leaves_nan_out_of_the_medians() -> None:
    stored = made.repeated()
    row = stored.comparison.rows[0]
    record = made.epoch(1, 1.0, loss=math.nan)
    stored.runs[row.id][0] = made.bad(row, "diverged", "loss is nan", 0).model_copy(update={"epochs": [record]})
    loss = summarize(stored)[0].train.loss
    assert loss is not None and math.isfinite(loss.median)


@pytest.mark.parametrize(
    ("cores", "others", "lost"), [(1, 1.0, 0.0), (1, 1.4, 0.4), (2, 0.1, 0.1), (2, 0.6, 0.6), (1, None, None)]
)
def test_work_of_others_counts_where_it_takes_from_the_budget(cores: int, others: float | None, lost: float | None) -> None:
    rows = [made.row("pytorch", cores=cores)]
    run = made.good(rows[0], 1.0).model_copy(update={"cores_of_others": others, "machine": {"logical_cores": 2}})
    stored = made.repeated().model_copy(
        update={"comparison": made.comparison(rows), "runs": {rows[0].id: dict.fromkeys(range(5), run)}}
    )
    (summary,) = summarize(stored)
    assert summary.cores_lost == (None if lost is None else pytest.approx(lost))
    expected = []
    if lost and lost > 0.15:
        name = f"pytorch serial, {cores} core{'s' if cores > 1 else ''}"
        expected = [f"{name}: other work took {lost:.2f} cores of its budget of {cores}: rely on no time of it."]
    assert findings(stored, [summary]).troubles == expected


@pytest.mark.parametrize(
    ("wait", "said"),
    [
        (0.05, []),
        (0.3, ["pytorch serial, 2 cores: waits 30% of its training time for its input: both count."]),
        (0.8, ["pytorch serial, 2 cores: waits 80% of its training time for its input: the input bounds it."]),
    ],
)
def test_a_run_that_waits_for_its_input_is_told(wait: float, said: list[str]) -> None:
    rows = [made.row("pytorch")]
    run = made.good(rows[0], 1.0)
    assert run.phases is not None
    phases = run.phases.model_copy(update={"training_seconds": 10.0, "input_wait_seconds": 10.0 * wait})
    stored = made.repeated().model_copy(
        update={"comparison": made.comparison(rows), "runs": {rows[0].id: {0: run.model_copy(update={"phases": phases})}}}
    )
    assert findings(stored, summarize(stored)).bounds == said


def test_images_per_second_are_those_of_the_seconds_that_speedups_are_made_of() -> None:
    row = made.row("pytorch")
    run = made.good(row, 1.0).model_copy(update={"epochs": [made.epoch(1, 1.0), made.epoch(2, 4.0)]})
    assert epoch_seconds(run) == 2.5
    assert images_per_second(run) == 640 / 2.5


def test_rows_that_would_share_a_name_are_named_by_their_ids() -> None:
    stored = made.repeated(1)
    (serial,) = [row for row in stored.comparison.rows if row.id == "pytorch-serial-2"]
    other = serial.model_copy(update={"id": "pytorch-serial-2-batch32", "spec": serial.spec.with_fields(global_batch_size=32)})
    rows = [*stored.comparison.rows, other]
    runs = stored.runs | {other.id: {0: made.good(other, 1.0)}}
    both = stored.model_copy(update={"comparison": made.comparison(rows), "runs": runs})
    names = {each.id: each.name for each in summarize(both)}
    assert names[serial.id] == serial.id and names[other.id] == other.id
    assert names["tensorflow-serial-2"] == "tensorflow serial, 2 cores"


@pytest.mark.parametrize(
    ("word", "fields", "expected"),
    [
        ("pipeline", {}, 1 / 5),
        ("pipeline_1f1b", {"pipeline": {"micro_batches": 8}}, 1 / 9),
        ("model_parallel", {}, 1 / 2),
        # Each copy's two stages cut its 31 examples in no parts.
        ("hybrid_pipeline", {"global_batch_size": 62}, 1 / 2),
        ("pipeline_async", {}, None),
        ("multi_process", {}, None),
        ("hybrid_tensor", {}, None),
    ],
)
def test_the_idle_part_of_a_step_that_the_formula_expects_is_that_of_its_stages_and_micro_batches(
    word: str, fields: dict[str, Any], expected: float | None
) -> None:
    wanted = spec.build(spec.with_variant({"cores": 2, "epochs": 2, **fields}, word, 2))
    row = Row(id="it", framework="pytorch", spec=wanted)
    parts = StepParts(steps=3, step_seconds=0.5, compute_seconds=0.375, idle_seconds=0.125)
    runs = {"it": {0: made.good(row, 1.0).model_copy(update={"step_parts": parts})}}
    (found,) = summarize(made.repeated(1).model_copy(update={"comparison": made.comparison([row]), "runs": runs}))
    assert found.expected_idle == (None if expected is None else pytest.approx(expected))
    (table,) = tables.step_table([found])
    shown = "expected_idle_milliseconds" in [column.key for column in table.columns]
    assert shown == (expected is not None)
    assert not shown or table.rows[0]["expected_idle_milliseconds"] == pytest.approx(500 * (expected or 0.0))
