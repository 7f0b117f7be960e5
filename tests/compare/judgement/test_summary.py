import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from common import spec
from common.artifacts.schema import Noise, Restart, RunResult, StepParts
from common.data.sources.splits import CAUTION, IN_TWO_CLASSES, IN_TWO_SPLITS
from common.machine.rates import DeviceRates, Rates
from common.models.work import Work
from compare.execution import store
from compare.execution.matrix import Row
from compare.execution.store import StoredComparison
from compare.judgement import cautions
from compare.judgement.findings import findings
from compare.judgement.row_figures import Summary, unreliable_rows_note
from compare.judgement.run_figures import epoch_seconds, images_per_second, limit, time_to_accuracy
from compare.judgement.summary import pairs_of_seconds, summarize
from compare.reporting import comparison_report, comparison_tables, latex, step_tables, tables
from compare.reporting.comparison_report import JudgedComparison
from compare.reporting.epoch_tables import target_table
from compare.reporting.step_tables import limit_table
from tests.support import comparisons

AGAIN = "run --resume DIR --again disturbed makes its repeats again."

MODES = ("serial-2", "data_parallel-2")


def _by_id(summaries: list[Summary]) -> dict[str, Summary]:
    return {summary.id: summary for summary in summaries}


def test_speedups_are_given_against_one_core_and_the_same_cores() -> None:
    rows = [comparisons.row("pytorch", cores=1), comparisons.row("pytorch"), comparisons.row("pytorch", "multi_process")]
    seconds = (8.0, 5.0, 4.0)
    stored = comparisons.repeated().model_copy(
        update={
            "comparison": comparisons.comparison(rows),
            "runs": {row.id: {0: comparisons.good(row, each)} for row, each in zip(rows, seconds, strict=True)},
        }
    )
    one, both, parallel = summarize(stored)
    assert one.speedup_one_core is None and one.pays is None
    assert both.speedup_one_core is not None and both.speedup_one_core.value == pytest.approx(1.6)
    assert both.speedup_same_cores is None and both.pays is None
    assert parallel.speedup_one_core is not None and parallel.speedup_one_core.value == pytest.approx(2.0)
    assert parallel.speedup_same_cores is not None and parallel.speedup_same_cores.value == pytest.approx(1.25)
    assert parallel.parallel_efficiency == pytest.approx(1.0)  # twice as fast on two cores


def _of_two_batches() -> StoredComparison:
    """Serial and parallel rows, each of two global batches, in two frameworks, as a scaling lays them out."""
    stored = comparisons.repeated()
    rows: list[Row] = []
    runs: dict[str, dict[int, RunResult]] = {}
    for row in stored.comparison.rows:
        for batch, slower in ((64, 1.0), (128, 3.0)):
            spec = row.spec.with_fields(global_batch_size=batch)
            rows.append(row.model_copy(update={"id": f"{row.id}-batch{batch}", "spec": spec}))
            runs[rows[-1].id] = {
                repeat: comparisons.good(rows[-1], slower * epoch_seconds(run), repeat)
                for repeat, run in stored.runs[row.id].items()
            }
    return stored.model_copy(update={"comparison": comparisons.comparison(rows, 5), "runs": runs})


def test_rows_of_other_batches_are_never_held_against_each_other() -> None:
    stored = _of_two_batches()
    summaries = summarize(stored)
    found = findings(stored, summaries)
    assert [each.name for each in found.verdicts] == [
        *(
            f"pytorch-{row} against tensorflow-{row}"
            for row in [f"{each}-batch{batch}" for each in MODES for batch in (64, 128)]
        ),
        *(f"{name}-data_parallel-2-batch{batch}" for name in ("pytorch", "tensorflow") for batch in (64, 128)),
    ]
    speedups = [each.speedup_same_cores.value for each in summaries if each.speedup_same_cores]
    assert speedups == pytest.approx([2.0, 2.0, 4.01 / 6.0, 4.01 / 6.0], rel=0.03)
    assert (
        found.contestants[0]
        == "All with simple_cnn, float32, switches usual, on Some CPU, unequal conditions (neither closed nor open division)."
    )
    assert found.contestants[2].startswith("no difference shown between")
    assert found.contestants[2].endswith(": batch 128, serial on 2 cores, row serial-2-batch128.")


def test_on_accelerators_efficiency_counts_devices() -> None:
    rows = [comparisons.row("pytorch"), comparisons.row("pytorch", "data_parallel")]
    runs = {
        row.id: {0: comparisons.good(row, each).model_copy(update={"device": "cuda"})}
        for row, each in zip(rows, (6.0, 4.0), strict=True)
    }
    stored = comparisons.repeated().model_copy(update={"comparison": comparisons.comparison(rows), "runs": runs})
    assert summarize(stored)[1].parallel_efficiency == pytest.approx(0.75)


def test_a_row_that_was_not_parallel_has_figures_but_no_speedup() -> None:
    summary = _by_id(summarize(comparisons.troubled()))["pytorch-data_parallel-2"]
    assert summary.status == "not parallel"
    assert summary.epoch_seconds is not None
    assert summary.speedup_one_core is None and summary.speedup_same_cores is None and summary.pays is None


def test_a_killed_row_keeps_its_epochs_but_counts_in_no_median() -> None:
    summary = _by_id(summarize(comparisons.troubled()))["pytorch-multi_process-2"]
    assert (summary.status, summary.epochs_done, len(summary.epochs)) == ("killed", 1, 1)
    assert summary.train.accuracy is None and summary.epoch_seconds is None


def test_one_bad_repeat_marks_the_row_and_the_good_ones_count() -> None:
    stored = comparisons.repeated()
    row = stored.comparison.rows[0]
    stored.runs[row.id][3] = comparisons.bad(row, "diverged", "loss is nan", epochs=1)
    summary = summarize(stored)[0]
    assert (summary.status, summary.reason) == ("diverged", "loss is nan (1 of 5 repeats)")
    assert summary.repeats_done == 4
    assert summary.train.accuracy is not None and summary.train.accuracy.n == 4


def test_the_first_step_difference_is_relative_and_the_largest_of_the_repeats() -> None:
    stored = comparisons.repeated()
    row = stored.comparison.rows[0]
    stored.runs[row.id][2] = comparisons.good(row, 4.0, 2, first_step_loss=2.3 * (1 + 1e-6))
    first, _, third, _ = summarize(stored)
    assert first.first_step_difference == pytest.approx(1e-6, rel=1e-3)
    assert third.first_step_difference == first.first_step_difference


def losses_rung(framework: str, tolerance: Any, status: str = "passed", name: str = "8 one step in float32: losses") -> Any:
    return {"name": name, "framework": framework, "first_tolerance": tolerance, "status": status}


@pytest.mark.parametrize(
    ("rungs", "agrees"),
    [
        ([], False),
        ([losses_rung("pytorch", 4e-6), losses_rung("tensorflow", 5e-6)], False),
        ([losses_rung("pytorch", 2e-5), losses_rung("tensorflow", 1e-5)], True),
        ([losses_rung("pytorch", 2e-5, "failed"), losses_rung("tensorflow", 1e-5)], False),
        ([losses_rung("pytorch", 9e-4, name="8 one step in float32: gradients"), {}, losses_rung("tensorflow", "9")], False),
        ([losses_rung("pytorch", -1.0), losses_rung("tensorflow", math.inf)], False),
        ([losses_rung("pytorch", 4e-4), losses_rung("tensorflow", 4e-4)], True),
    ],
)
def test_the_first_losses_may_differ_by_what_the_arithmetic_of_a_deep_network_allows(rungs: list[Any], agrees: bool) -> None:
    """Its own proof has judged them: a fixed tolerance would refuse an honest run of a deep network."""
    stored = comparisons.repeated()
    for row_id in ("tensorflow-serial-2", "tensorflow-data_parallel-2"):
        for repeat, run in stored.runs[row_id].items():
            stored.runs[row_id][repeat] = run.model_copy(update={"first_step_loss": 2.3 * (1 + 2.5e-5)})
    record = store.ProofRecord(verdict="proved", sentence="", rungs=rungs)
    stored = stored.model_copy(update={"comparison": stored.comparison.model_copy(update={"proof": record})})
    found = findings(stored, summarize(stored))
    assert found.comparable is agrees
    assert any(said.startswith("Timed configuration: agrees:") for said in found.sameness) is agrees


@pytest.mark.parametrize("allowed", [1.6e-3, 6e-4])
def test_a_tolerance_that_proves_nothing_lets_nothing_agree(allowed: float) -> None:
    rungs = [losses_rung(name, allowed) for name in ("pytorch", "tensorflow")]
    record = store.ProofRecord(verdict="proved", sentence="", rungs=rungs)
    for apart, said in (
        (9e-6, "agrees"),
        (9e-4, "within what rounding may do here, which is too much to tell"),
        (3e-3, "DOES NOT AGREE: figures do not compare"),
    ):
        stored = comparisons.repeated()
        for row_id in ("tensorflow-serial-2", "tensorflow-data_parallel-2"):
            for repeat, run in stored.runs[row_id].items():
                stored.runs[row_id][repeat] = run.model_copy(update={"first_step_loss": 2.3 * (1 + apart)})
        stored = stored.model_copy(update={"comparison": stored.comparison.model_copy(update={"proof": record})})
        sentences = findings(stored, summarize(stored)).sameness
        assert any(each.startswith(f"Timed configuration: {said}: ") for each in sentences)


@pytest.mark.parametrize(
    ("verdicts", "headline"),
    [
        (["proved"] * 4, "proved"),
        (["proved", "proved in float64", "proved", "proved"], "proved in float64"),
        (["not claimed", "proved", "proved", "proved"], "proved in float64"),
        (["proved", "not claimed", "proved", "proved"], "proved"),
    ],
)
def test_the_headline_is_no_stronger_than_the_rows(verdicts: list[str], headline: str) -> None:
    """The second row is a parallel mode, which may train something else by design."""
    stored = comparisons.repeated()
    rows = {row.id: verdict for row, verdict in zip(stored.comparison.rows, verdicts, strict=True)}
    record = store.ProofRecord(verdict="proved", sentence="proved: 9 rungs passed", row_verdicts=rows)
    stored = stored.model_copy(update={"comparison": stored.comparison.model_copy(update={"proof": record})})
    first = findings(stored, summarize(stored)).sameness[0]
    assert first.startswith(f"Identical training: {headline}: 9 rungs passed.") and ("the table" in first) == (
        headline != "proved"
    )


def test_where_no_row_is_proved_as_it_is_timed_no_table_is_said_to_tell_which_are() -> None:
    stored = comparisons.repeated()
    record = store.ProofRecord(
        verdict="proved", sentence="proved: 9 rungs", row_verdicts={row.id: "not claimed" for row in stored.comparison.rows}
    )
    stored = stored.model_copy(update={"comparison": stored.comparison.model_copy(update={"proof": record})})
    first = findings(stored, summarize(stored)).sameness[0]
    assert first.endswith("No row is proved as it is timed.")


def test_a_row_that_was_interrupted_names_its_repeats_without_a_result_too() -> None:
    stored = comparisons.repeated()
    row = stored.comparison.rows[0]
    killed = comparisons.bad(row, "killed", "interrupted", epochs=1)
    stored.runs[row.id] = {**{repeat: stored.runs[row.id][repeat] for repeat in (0, 1)}, 2: killed}
    summaries = summarize(stored)
    assert (summaries[0].status, summaries[0].reason) == (
        "incomplete",
        "1 of 5 repeats was interrupted, 2 have no result",
    )
    alone = stored.model_copy(update={"runs": {**stored.runs, row.id: {2: killed}}})
    assert summarize(alone)[0].reason == "interrupted (1 of 5 repeats, 4 more have no result)"
    compared = JudgedComparison(stored, summaries, findings(stored, summaries))
    assert "repeats: 5 planned, 3 to 5 made" in comparison_report.facts(compared)[0]
    whole = comparisons.repeated()
    assert "5 repeats" in comparison_report.facts(JudgedComparison(whole, summarize(whole), compared.findings))[0]


def test_an_interrupted_repeat_is_missing_beside_what_failed_and_beside_what_was_not_parallel() -> None:
    stored = comparisons.repeated()
    row = stored.comparison.rows[0]
    interrupted = comparisons.bad(row, "killed", "interrupted; its result could not be read", epochs=0)
    stored.runs[row.id] |= {2: comparisons.bad(row, "failed", "no memory", epochs=0), 3: interrupted}
    assert (
        summary := summarize(stored)[0]
    ).status == "failed" and summary.reason == "no memory (1 of 5 repeats, 1 more was interrupted)"
    finished = stored.runs[row.id][0].model_copy(update={"status": "not parallel", "reason": "fewer replicas"})
    stored.runs[row.id] = {**dict.fromkeys(range(4), finished), 4: interrupted}
    assert summarize(stored)[0].status == "not parallel"
    stored.runs[row.id] = {0: interrupted}
    assert summarize(stored)[0].status == "killed"


def test_a_framework_alone_has_no_first_step_difference() -> None:
    rows = [comparisons.row("pytorch")]
    stored = comparisons.repeated().model_copy(
        update={"comparison": comparisons.comparison(rows), "runs": {rows[0].id: {0: comparisons.good(rows[0], 1.0)}}}
    )
    assert summarize(stored)[0].first_step_difference is None


def _verdicts(sentences: list[str]) -> list[str]:
    """Without the sentence on the conditions that all share."""
    return [sentence for sentence in sentences if not sentence.startswith(("All with ", "All as above"))]


def test_the_input_alone_is_judged_by_all_its_images_over_all_its_seconds() -> None:
    stored = comparisons.input_only(timed_steps=20)
    summaries = summarize(stored)
    rate, seconds = summaries[2].images_per_second, summaries[2].epoch_seconds
    assert rate is not None and rate.median == pytest.approx(20 * 64 / 4.001)  # the mean of its epochs' rates is 100 times that
    assert seconds is not None and seconds.median == pytest.approx(640 * 4.001 / (20 * 64))
    found = findings(stored, summaries)
    assert len(_verdicts(found.contestants)) == 3 and found.troubles == []


@pytest.mark.parametrize(("timed", "too_short"), [(16, []), (15, [2]), (7, [1, 2]), (3, [0, 1, 2])])
def test_an_input_of_too_few_timed_batches_gets_a_caution_and_no_verdict(timed: int, too_short: list[int]) -> None:
    stored = comparisons.input_only(timed_steps=timed)
    found = findings(stored, summarize(stored))
    assert len(_verdicts(found.contestants)) == 3 - len(too_short)
    fed = {0: ("", 4), 1: (", 1 worker", 8), 2: (", 2 workers", 16)}
    rows = [
        f"{contestant} serial, 2 cores{fed[workers][0]} ({timed} of {fed[workers][1]})"
        for contestant in ("pytorch", "tensorflow")
        for workers in too_short
    ]
    which = "All 6 rows" if len(rows) == 6 else f"{len(rows)} of 6 rows"
    assert found.troubles == [
        f"{which}: too few timed batches to show a steady pace: rely on no rate of them. Make them longer with --epochs. "
        f"These are: {'; '.join(rows)}."
    ] * bool(rows)


def test_the_input_alone_says_nothing_of_weights_and_order() -> None:
    stored = comparisons.input_only()
    sentences = findings(stored, summarize(stored)).sameness
    assert "Same data in all 30 runs that recorded it." in sentences
    assert not any("weights" in sentence or "order" in sentence for sentence in sentences)


def test_runs_of_one_step_have_no_seconds_and_no_verdict() -> None:
    stored = comparisons.repeated()
    for row in stored.comparison.rows:
        for repeat, result in stored.runs[row.id].items():
            epochs = [
                epoch.model_copy(update={"timed_steps": 0, "timed_images": 0, "timed_seconds": 0.0}) for epoch in result.epochs
            ]
            stored.runs[row.id][repeat] = result.model_copy(update={"epochs": epochs})
    summaries = summarize(stored)
    assert all(summary.epoch_seconds is None and summary.speedup_same_cores is None for summary in summaries)
    assert findings(stored, summaries).contestants == []


@pytest.mark.parametrize(("field", "what"), [("order_hash", "order of examples"), ("weights_hash", "initial weights")])
def test_unequal_hashes_are_called_out(field: str, what: str) -> None:
    stored = comparisons.repeated()
    row = stored.comparison.rows[1]
    stored.runs[row.id][0] = stored.runs[row.id][0].model_copy(update={field: "another"})
    sentences = findings(stored, summarize(stored)).sameness
    assert f"NOT the same {what}: 2 different among 20 runs. Their figures do not compare." in sentences


@pytest.mark.parametrize(
    ("plant", "rows"),
    [
        ({"weights_hash": "another"}, 1),
        ({"order_hash": "another"}, 1),
        ({"first_step_loss": 2.4}, 5),
    ],
)
def test_no_speedup_and_no_verdict_is_shown_where_the_runs_did_not_train_the_same(plant: dict[str, Any], rows: int) -> None:
    """Planted in one framework alone: in one run, or in all of a row."""
    stored = comparisons.repeated()
    row = stored.comparison.rows[1]
    for repeat in range(rows):
        stored.runs[row.id][repeat] = stored.runs[row.id][repeat].model_copy(update=plant)
    summaries = summarize(stored)
    assert not findings(stored, summaries).comparable
    parallel = [summary for summary in summaries if summary.mode == "data_parallel"]
    assert [summary.pays for summary in parallel] == ["not comparable"] * 2
    assert all(summary.reported_ratio("speedup_same_cores") == "not comparable" for summary in parallel)
    table = tables.to_markdown(comparison_tables.speedup_table(summaries))
    assert "not comparable" in table and " 2.00" not in table and "pays" not in table.partition("| ---")[2]


def test_the_order_is_that_of_runs_that_trained_as_long() -> None:
    stored = comparisons.repeated()
    for row in stored.comparison.rows:
        for repeat, result in stored.runs[row.id].items():
            if row.contestant == "tensorflow":
                shorter = result.model_copy(update={"epochs": result.epochs[:1], "order_hash": "a shorter one"})
                stored.runs[row.id][repeat] = shorter
    found = findings(stored, summarize(stored))
    said = "Same order of examples in all 20 runs that recorded it. Only runs that ended after the same number of epochs are"
    assert found.comparable and any(sentence.startswith(said) for sentence in found.sameness)


def test_a_diverged_run_leaves_nan_out_of_the_medians() -> None:
    stored = comparisons.repeated()
    row = stored.comparison.rows[0]
    record = comparisons.epoch(1, 1.0, loss=math.nan)
    stored.runs[row.id][0] = comparisons.bad(row, "diverged", "loss is nan", 0).model_copy(update={"epochs": [record]})
    loss = summarize(stored)[0].train.loss
    assert loss is not None and math.isfinite(loss.median)


@pytest.mark.parametrize(
    ("cores", "others", "lost"),
    [(1, 1.0, 0.0), (1, 1.4, 0.4), (2, 0.1, 0.1), (2, 0.6, 0.6), (2, 0.154, 0.154), (1, None, None)],
)
def test_work_of_others_counts_where_it_takes_from_the_budget(cores: int, others: float | None, lost: float | None) -> None:
    rows = [comparisons.row("pytorch", cores=cores)]
    run = comparisons.good(rows[0], 1.0).model_copy(update={"cores_of_others": others, "machine": {"logical_cores": 2}})
    stored = comparisons.repeated().model_copy(
        update={"comparison": comparisons.comparison(rows), "runs": {rows[0].id: dict.fromkeys(range(5), run)}}
    )
    (summary,) = summarize(stored)
    assert summary.cores_lost == (None if lost is None else pytest.approx(lost))
    expected = []
    if lost and lost > 0.15:
        name = f"pytorch serial, {cores} core{'s' if cores > 1 else ''}"
        digits = 3 if lost < 0.155 else 2  # 0.15 would not show that it is more than 0.15
        expected = [f"{name}: other work took {lost:.{digits}f} cores of its budget of {cores}: rely on no time of it. {AGAIN}"]
    assert findings(stored, [summary]).troubles == expected
    of_a_side = stored.comparison.model_copy(update={"argv": ["regress", "--interleaved", "main"]})
    alone = [each.removesuffix(f" {AGAIN}") for each in expected]
    assert findings(stored.model_copy(update={"comparison": of_a_side}), [summary]).troubles == alone


@pytest.mark.parametrize(
    ("argv", "advised"),
    [
        (["run"], ["--repeats 5. A verdict needs 5 repeats.", "or more images or --epochs."]),
        (["reproduce", "x", "--scale", "smoke"], ["--again disturbed. A verdict needs 5 repeats. A larger --scale helps."]),
        (["reproduce", "x", "--scale=full"], ["--again disturbed. A verdict needs 5 repeats."]),
    ],
)
def test_a_reproduction_is_not_advised_what_its_scale_fixes(argv: list[str], advised: list[str]) -> None:
    stored = comparisons.repeated(1)
    for runs in stored.runs.values():
        short = [epoch.model_copy(update={"timed_steps": 0}) for epoch in runs[0].epochs]
        update = {"cores_of_others": 1.5, "machine": {"logical_cores": 2}, "epochs": short}
        runs[0] = runs[0].model_copy(update=update)
    stored = stored.model_copy(update={"comparison": stored.comparison.model_copy(update={"argv": argv})})
    found = findings(stored, summarize(stored))
    said = " ".join([*found.contestants, *found.modes, *found.troubles])
    assert all(each in said for each in advised), said
    usual = ("--repeats", "--epochs")
    assert all((each in said) == (argv == ["run"]) for each in usual)
    assert ("A larger --scale helps." in said) == (argv[-1] == "smoke")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "BatchNorm, where the model has it, normalised the 64 images and not 32 of a replica"),
        ({"batch_norm_statistics": "synchronised"}, "sums have fewer parts, so the same mathematics but for rounding"),
        (
            {"batch_norm_statistics": "synchronised", "schedule": {"scaling": "linear"}},
            "the learning rate was scaled for 1 replica",
        ),
    ],
)
def test_a_run_that_went_on_with_fewer_replicas_says_what_that_changed(fields: dict[str, Any], said: str) -> None:
    row = comparisons.row("pytorch", "multi_process")
    row = row.model_copy(update={"spec": row.spec.with_fields(least_replicas=1, **fields)})
    death = Restart(reason="killed by SIGKILL", epochs=1, steps=0, seconds_lost=1.0, replicas=1)
    run = comparisons.good(row, 1.0).model_copy(update={"restarts": [death]})
    stored = StoredComparison(comparison=comparisons.comparison([row]), runs={row.id: {0: run}}, set_aside=[])
    told = cautions.sentences(stored, summarize(stored))
    when = "from its last checkpoint when it had finished 1 epoch"
    assert any(f"went on with 1 of 2 replicas (--elastic), {when}: {said}. That run does not count." in each for each in told)
    assert any("was restarted by itself (--elastic): killed by SIGKILL" in each for each in told)


def test_near_equal_cautions_of_many_rows_are_one_with_their_number_and_their_names() -> None:
    stored = comparisons.repeated(1)
    for row_id, runs in stored.runs.items():
        busy = {"cores_of_others": 1.5 if "serial" in row_id else 1.25, "machine": {"logical_cores": 2}}
        runs[0] = runs[0].model_copy(update=busy | ({"resumes": 2} if row_id.startswith("pytorch") else {}))
    assert findings(stored, summarize(stored)).troubles == [
        "2 of 4 rows: cut short and continued from a checkpoint. Their wall time leaves out what was lost in between. Each "
        "epoch is timed by itself. These are: pytorch serial, 2 cores (2 times); pytorch data_parallel x2 (2 times).",
        "All 4 rows: other work took cores of their budgets: rely on no time of them. run --resume DIR --again disturbed makes "
        "their repeats again. These are: pytorch serial, 2 cores "
        "(1.50 of 2); pytorch data_parallel x2 (1.25 of 2); tensorflow serial, 2 cores (1.50 of 2); tensorflow "
        "data_parallel x2 (1.25 of 2).",
    ]


@pytest.mark.parametrize(
    ("accuracy", "confusion", "guesses"),
    [
        (0.52, [[50, 0], [48, 2]], True),  # 52 of 100 right, where half is one class
        (0.9, [[50, 0], [10, 40]], False),
        (0.9, [[90, 0], [10, 0]], True),  # always the class of 90 in 100
        (0.98, [[89, 1], [1, 9]], False),
        (0.11, None, True),  # of ten classes
        (0.3, None, False),
    ],
)
def test_an_accuracy_that_is_no_better_than_guessing_is_called_so(
    accuracy: float, confusion: list[list[int]] | None, guesses: bool
) -> None:
    stored = comparisons.repeated(1)
    names = [str(number) for number in range(len(confusion or range(10)))]
    stored = stored.model_copy(update={"comparison": stored.comparison.model_copy(update={"class_names": names})})
    row = stored.comparison.rows[0]
    scored = {"test": comparisons.score(accuracy, 1.0), "confusion": confusion}
    stored.runs[row.id][0] = stored.runs[row.id][0].model_copy(update=scored)
    first, *others = summaries = summarize(stored)
    assert first.guesses == guesses and not any(each.guesses for each in others)
    said = "no better than guessing"
    caution = "not shown to be better than guessing"
    assert [caution in each for each in findings(stored, summaries).troubles] == [True] * guesses
    assert ("Test accuracy no better than guessing: 1 of 4 rows." in comparison_tables.main_table(summaries).note) == guesses
    for table in (comparison_tables.main_table(summaries), comparison_tables.accuracy_table(summaries)):
        assert (said in tables.to_markdown(table)) == guesses
        assert [row.get("guessing") for row in table.rows] == [said if guesses else None, None, None, None]


def test_a_clock_that_a_busy_machine_may_have_disturbed_is_a_caution_on_the_row_and_on_its_verdicts() -> None:
    """The run itself is no failure: a defect of the clock would have ended it."""
    stored = comparisons.repeated()
    row = stored.comparison.rows[0]
    late = "losses came 2.00 s after the clock had stopped; the clock ran 3.00 s"
    stored.runs[row.id][3] = stored.runs[row.id][3].model_copy(update={"clock_caution": late})
    summaries = summarize(stored)
    assert [summary.in_doubt for summary in summaries].count(True) == 1 and summaries[0].status == "ok"
    found = findings(stored, summaries)
    assert f"{summaries[0].name}: {late}. Some work may not be timed: rely on no time of it." in found.troubles
    assert _verdicts(found.contestants)[0].endswith("so some work may not be timed: do not rely on this.")
    assert not _verdicts(found.contestants)[1].endswith("do not rely on this.")


@pytest.mark.parametrize(
    ("wait", "said"),
    [
        (0.05, []),
        (0.3, ["pytorch serial, 2 cores: waits 30 % of its training time for its input: both count."]),
        (0.8, ["pytorch serial, 2 cores: waits 80 % of its training time for its input: the input bounds it."]),
    ],
)
def test_a_run_that_waits_for_its_input_is_told(wait: float, said: list[str]) -> None:
    rows = [comparisons.row("pytorch")]
    run = comparisons.good(rows[0], 1.0)
    assert run.phases is not None
    phases = run.phases.model_copy(update={"training_seconds": 10.0, "input_wait_seconds": 10.0 * wait})
    stored = comparisons.repeated().model_copy(
        update={
            "comparison": comparisons.comparison(rows),
            "runs": {rows[0].id: {0: run.model_copy(update={"phases": phases})}},
        }
    )
    assert findings(stored, summarize(stored)).bounds == said


def test_verdicts_on_frameworks_and_modes_are_one_family() -> None:
    stored = comparisons.repeated()
    found = findings(stored, summarize(stored))
    assert [(each.name, each.verdict, each.family) for each in found.verdicts] == [
        ("pytorch-serial-2 against tensorflow-serial-2", "no difference shown", 4),
        ("pytorch-data_parallel-2 against tensorflow-data_parallel-2", "above", 4),
        ("pytorch-data_parallel-2", "above", 4),
        ("tensorflow-data_parallel-2", "below", 4),
    ]
    assert found.surety and found.surety[0].startswith("4 comparisons make one family")


def test_a_gain_that_is_lost_among_many_comparisons_does_not_pay_in_the_table_either() -> None:
    stored = comparisons.repeated()
    one, two = (row for row in stored.comparison.rows if row.contestant == "pytorch")
    seconds = (4.15, 4.04, 4.2, 4.07, 4.08)  # p = 0.03 against serial, by itself
    serial = {repeat: comparisons.good(one, each, repeat) for repeat, each in enumerate(seconds)}
    parallel = {repeat: comparisons.good(two, 4.0, repeat) for repeat in range(5)}
    alone = stored.model_copy(
        update={"comparison": comparisons.comparison([one, two], 5), "runs": {one.id: serial, two.id: parallel}}
    )
    assert [summary.pays for summary in summarize(alone)] == [None, "pays"]
    among = stored.model_copy(update={"runs": stored.runs | {one.id: serial, two.id: parallel}})
    summaries = summarize(among)
    assert summaries[1].pays == "no gain shown"
    (said,) = [sentence for sentence in findings(among, summaries).modes if sentence.startswith("pytorch")]
    assert "no gain shown" in said and "among 4 comparisons" in said and "by itself" in said


def _with_seeds(stored: StoredComparison, seeds: tuple[int, ...]) -> StoredComparison:
    """The same runs, each repeat of another seed, with the weights, order, first loss and accuracy of its seed."""
    plan = stored.comparison.model_copy(update={"seeds": list(seeds)})
    for row in stored.comparison.rows:
        for repeat, run in stored.runs[row.id].items():
            seed = seeds[repeat % len(seeds)]
            of_seed = {
                "spec": plan.row_for_repeat(row, repeat).spec,
                "weights_hash": f"weights {seed}",
                "order_hash": f"order {seed}",
                "first_step_loss": 2.0 + seed,
                "test": comparisons.score(0.7 + 0.02 * seed, 0.6),
            }
            stored.runs[row.id][repeat] = run.model_copy(update=of_seed)
    return stored.model_copy(update={"comparison": plan})


def test_runs_of_several_seeds_are_the_same_training_seed_by_seed() -> None:
    stored = _with_seeds(comparisons.repeated(6), (0, 1, 4))
    summaries = summarize(stored)
    found = findings(stored, summaries)
    assert found.comparable and found.contestants
    assert [summary.first_step_difference for summary in summaries] == [0.0] * 4
    same = "Same initial weights and order of examples in all 24 runs that recorded them, within each of 3 seeds."
    assert same in found.sameness


@pytest.mark.parametrize("field", ["order_hash", "weights_hash", "first_step_loss"])
def test_a_run_that_parts_from_its_seeds_others_makes_figures_incomparable(field: str) -> None:
    stored = _with_seeds(comparisons.repeated(), (0, 1, 2, 3, 4))
    row = stored.comparison.rows[1]
    stored.runs[row.id][2] = stored.runs[row.id][2].model_copy(update={field: 9.0 if field.endswith("loss") else "another"})
    found = findings(stored, summarize(stored))
    assert not found.comparable and found.contestants == []


def test_other_data_of_another_seed_make_figures_incomparable() -> None:
    stored = _with_seeds(comparisons.repeated(), (0, 1, 2, 3, 4))
    for row in stored.comparison.rows:
        stored.runs[row.id][2] = stored.runs[row.id][2].model_copy(update={"data_hash": "another split"})
    found = findings(stored, summarize(stored))
    assert not found.comparable
    assert "NOT the same data: 2 different among 20 runs. Their figures do not compare." in found.sameness


def test_accuracy_over_seeds_counts_each_seed_once() -> None:
    stored = _with_seeds(comparisons.repeated(5), (0, 2))  # seed 0 three times, seed 2 twice
    summary = summarize(stored)[0]
    over = summary.test_accuracy_over_seeds
    assert over is not None
    assert (summary.seeds, over.n, over.median) == (2, 2, pytest.approx(0.72))
    assert summary.test.accuracy is not None and summary.test.accuracy.median == 0.7


def test_one_seed_has_no_accuracy_over_seeds() -> None:
    stored = comparisons.repeated()
    summaries = summarize(stored)
    assert all(summary.test_accuracy_over_seeds is None and summary.seeds == 1 for summary in summaries)
    assert findings(stored, summaries).scores == []


@pytest.mark.parametrize(
    ("accuracy", "until"),
    [(0.5, (3.85, 1)), (0.75, (7.85, 2)), (0.76, None)],
)
def test_time_to_accuracy_counts_the_first_step_and_no_evaluation(accuracy: float, until: tuple[float, int] | None) -> None:
    assert time_to_accuracy(comparisons.good(comparisons.row("pytorch"), 4.0), accuracy) == until


def test_repeats_that_never_reach_the_accuracy_are_counted() -> None:
    stored = comparisons.repeated()
    row = stored.comparison.rows[0]
    slow = stored.runs[row.id][1]
    stored.runs[row.id][1] = slow.model_copy(update={"epochs": slow.epochs[:1]})
    stored = stored.model_copy(update={"comparison": stored.comparison.model_copy(update={"target_accuracy": 0.75})})
    summaries = summarize(stored)
    target = summaries[0].target
    assert target is not None and target.seconds is not None
    assert (target.reached, target.seconds.n, summaries[0].repeats_done) == (4, 5, 5)
    said = findings(stored, summaries).scores
    assert said[0].startswith(
        "pytorch serial, 2 cores: validation accuracy 0.75 after 7.85 s (7.77 to 7.93) and 2 epochs, in 4 of"
    )
    (table,) = target_table(summaries)
    assert [row["reached"] for row in table.rows] == ["4 of 5", "5 of 5", "5 of 5", "5 of 5"]


def test_repeats_that_diverge_before_the_accuracy_are_counted_too() -> None:
    stored = comparisons.repeated()
    row = stored.comparison.rows[0]
    for repeat in (1, 2, 4):
        stored.runs[row.id][repeat] = comparisons.bad(row, "diverged", "the loss is not finite", 1)
    stored = stored.model_copy(update={"comparison": stored.comparison.model_copy(update={"target_accuracy": 0.75})})
    target = summarize(stored)[0].target
    assert target is not None and (target.reached, target.repeats, target.seconds) == (2, 5, None)


def _begun(stored: StoredComparison, row: Row, seconds: float) -> None:
    """All repeats of a row begin so long after midnight, and each of them an hour after the one before."""
    midnight = datetime(2026, 1, 1, tzinfo=UTC)
    for repeat, run in stored.runs[row.id].items():
        at = midnight + timedelta(hours=repeat, seconds=seconds)
        stored.runs[row.id][repeat] = run.model_copy(update={"started_at": at.isoformat()})


@pytest.mark.parametrize(("apart", "paired"), [(0, True), (100, True), (7200, False)])
def test_runs_that_were_not_made_in_turn_are_no_pairs(apart: float, paired: bool) -> None:
    stored = comparisons.repeated()
    first, *others = stored.comparison.rows
    _begun(stored, first, 0)
    for other in others:
        _begun(stored, other, apart)
    pairs = pairs_of_seconds(stored, slow=first, fast=others[0])
    assert len(pairs) == (5 if paired else 0)
    said = (
        "Repeats 1, 2, 3, 4, 5: not all runs were made in turn. Up to 2.0 hours lie between them. Runs so far apart are in no "
    )
    troubles = findings(stored, summarize(stored)).troubles
    assert any(sentence.startswith(said) for sentence in troubles) == (not paired)


def test_a_few_quick_repeats_do_not_pass_for_all() -> None:
    stored = comparisons.repeated()
    row = stored.comparison.rows[0]
    for repeat in (1, 2, 4):
        run = stored.runs[row.id][repeat]
        stored.runs[row.id][repeat] = run.model_copy(update={"epochs": run.epochs[:1]})
    stored = stored.model_copy(update={"comparison": stored.comparison.model_copy(update={"target_accuracy": 0.75})})
    summaries = summarize(stored)
    target = summaries[0].target
    assert target is not None and (target.reached, target.seconds, target.epochs) == (2, None, None)
    assert findings(stored, summaries).scores[0] == (
        "pytorch serial, 2 cores: validation accuracy 0.75 was reached in 2 of 5 repeats, which leaves no median; 4.00 s per "
        "epoch."
    )


def test_the_phases_of_a_row_are_those_of_one_repeat_and_add_up() -> None:
    stored = comparisons.repeated()
    row = stored.comparison.rows[0]
    for repeat, (build, training) in enumerate([(1.0, 9.0), (9.0, 2.0), (5.0, 8.0), (2.0, 2.0), (8.0, 1.0)]):
        run = stored.runs[row.id][repeat]
        assert run.phases is not None
        wall = run.phases.wall_seconds - 0.5 - run.phases.training_seconds + build + training
        parts = {"build_seconds": build, "training_seconds": training, "wall_seconds": wall}
        stored.runs[row.id][repeat] = run.model_copy(update={"phases": run.phases.model_copy(update=parts)})
    summary = summarize(stored)[0]
    phases = summary.phases
    assert phases is not None and (phases.build_seconds, phases.training_seconds) == (1.0, 9.0)
    six = ("import", "build", "first_step", "training", "evaluation", "other")
    assert sum(getattr(phases, f"{name}_seconds") for name in six) == pytest.approx(phases.wall_seconds)
    assert summary.wall_seconds is not None and summary.wall_seconds.median == phases.wall_seconds


@pytest.mark.parametrize(("busy", "is_said"), [(1, True), (4, False)])
def test_nothing_is_said_of_how_sure_verdicts_are_where_none_is_given(busy: int, is_said: bool) -> None:
    stored = comparisons.repeated()
    for row in stored.comparison.rows[:busy]:
        for repeat, run in stored.runs[row.id].items():
            stored.runs[row.id][repeat] = run.model_copy(update={"noise": Noise(cores_stolen=1.0)})
    assert bool(findings(stored, summarize(stored)).surety) is is_said


def _noisy(noise: Noise) -> list[str]:
    """The cautions on the first of four rows, when one of its repeats met this noise."""
    stored = comparisons.repeated()
    quiet = Noise(load_start=1.0, load_end=2.0, frequency_start_mhz=2000.0, frequency_end_mhz=3000.0, cores_stolen=0.0)
    for row in stored.comparison.rows:
        for repeat, run in stored.runs[row.id].items():
            stored.runs[row.id][repeat] = run.model_copy(update={"noise": quiet})
    first = stored.runs[stored.comparison.rows[0].id]
    first[3] = first[3].model_copy(update={"noise": noise})
    plan = stored.comparison.model_copy(update={"machine": {"logical_cores": 2}})
    stored = stored.model_copy(update={"comparison": plan})
    return findings(stored, summarize(stored)).troubles


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        (Noise(), []),
        (Noise(load_start=3.9, frequency_end_mhz=2800.0, cores_stolen=0.1), []),
        (Noise(cores_stolen=0.4), [f"the hypervisor took 0.40 cores of its budget of 2: rely on no time of it. {AGAIN}"]),
        (Noise(load_start=7.25), ["began at a load average of 7.2 on 2 logical cores."]),
        (
            Noise(frequency_end_mhz=2000.0),
            ["its CPUs ended at 2000 MHz, those of another row at 3000: their times do not compare well."],
        ),
    ],
)
def test_a_noisy_run_says_so(noise: Noise, said: list[str]) -> None:
    assert _noisy(noise) == [f"pytorch serial, 2 cores: {sentence}" for sentence in said]


def test_work_on_the_very_cpus_of_a_run_counts_though_others_were_free() -> None:
    rows = [comparisons.row("pytorch", cores=2)]
    taken = {"cores_of_others": 1.0, "machine": {"logical_cores": 8}, "noise": Noise(cores_taken=0.9)}
    run = comparisons.good(rows[0], 1.0).model_copy(update=taken)
    (summary,) = summarize(
        comparisons.repeated().model_copy(update={"comparison": comparisons.comparison(rows), "runs": {rows[0].id: {0: run}}})
    )
    assert summary.cores_lost == 0.9 and summary.disturbed


def test_a_budget_of_threads_that_share_cores_is_said() -> None:
    stored = comparisons.repeated()
    first, second, *_ = (row.id for row in stored.comparison.rows)
    for row, cpus, physical in ((first, [0, 1], 1), (second, [0, 2], 2)):
        for repeat, run in stored.runs[row].items():
            machine = {"cpus": cpus, "physical_cores": physical}
            stored.runs[row][repeat] = run.model_copy(update={"machine": machine})
    (said,) = (each for each in findings(stored, summarize(stored)).troubles if "hardware threads" in each)
    assert said == (
        "A budget of 2 cores was 2 hardware threads of 1 physical core. Two threads of a core do less than two cores."
    )


def test_time_to_an_accuracy_holds_the_first_steps_until_then_and_no_later_ones() -> None:
    run = comparisons.good(comparisons.row("pytorch"), 4.0)
    first, second = run.epochs
    epochs = [
        first.model_copy(update={"first_step_seconds": 1.0}),
        second.model_copy(update={"first_step_seconds": 8.0}),  # of the process that went on
    ]
    assert run.phases is not None
    phases = run.phases.model_copy(update={"first_step_seconds": 9.0})
    run = run.model_copy(update={"epochs": epochs, "phases": phases, "resumes": 1})
    assert time_to_accuracy(run, 0.5) == (4.6, 1)
    assert time_to_accuracy(run, 0.75) == (16.6, 2)


def test_stolen_time_takes_the_verdicts_reliability() -> None:
    stored = comparisons.repeated()
    row = stored.comparison.rows[0]
    stored.runs[row.id][0] = stored.runs[row.id][0].model_copy(update={"noise": Noise(cores_stolen=0.5)})
    found = findings(stored, summarize(stored))
    told = _verdicts(found.contestants)[0]
    assert told.startswith("pytorch against tensorflow: no finding") and "times as fast" not in told
    assert told.endswith(
        "Other work disturbed these runs. Make them again on an idle machine: run --resume DIR --again disturbed."
    )
    assert {summary.contestant: summary.pays == "disturbed" for summary in summarize(stored) if summary.mode != "serial"} == {
        "pytorch": True,
        "tensorflow": False,
    }
    doubts = {sentence.split()[0]: "disturbed" in sentence for sentence in _verdicts(found.modes)}
    assert doubts == {"pytorch": True, "tensorflow": False}  # whose serial row, and whose not
    parallel = [summary for summary in summarize(stored) if summary.mode != "serial"]
    assert [summary.hidden_ratios for summary in parallel] == [{"speedup_same_cores": "disturbed"}, {}]
    assert all(summary.speedup_same_cores for summary in parallel)  # in the JSON


def test_a_row_is_held_against_the_rates_of_its_cores_and_precision() -> None:
    stored = comparisons.repeated()
    counted = Work(forward_flops=10**9, backward_flops=2 * 10**9, values_moved=10**6, weights=0)
    rates = {2: Rates(cores=2, float32_gflops=960.0, float64_gflops=480.0, copy_gb_per_second=1.28)}
    plan = stored.comparison.model_copy(update={"work": counted, "rates": rates})
    stored = stored.model_copy(update={"comparison": plan})
    found = summarize(stored)[0].limit  # 160 images a second
    assert found is not None
    assert (found.gflop_per_image, found.gflops, found.matrix_fraction) == (3.0, pytest.approx(480.0), pytest.approx(0.5))
    assert (found.mb_per_image, found.gb_per_second, found.copy_fraction) == (4.0, pytest.approx(0.64), pytest.approx(0.5))
    (table,) = limit_table(summarize(stored))
    assert table.rows[0]["matrix_fraction"] == pytest.approx(0.5)
    run = stored.comparison.rows[0].spec
    assert limit(plan, run.with_fields(precision="float64"), "cpu", 160.0).matrix_fraction == 1.0  # type: ignore[union-attr]


@pytest.mark.parametrize(("device", "cores"), [("cuda", 2), ("cpu", 1), (None, 2)])
def test_what_is_not_known_of_a_device_is_left_out(device: str | None, cores: int) -> None:
    counted = Work(forward_flops=10**9, backward_flops=2 * 10**9, values_moved=10**6, weights=0)
    rates = {2: Rates(cores=2, float32_gflops=960.0, float64_gflops=480.0, copy_gb_per_second=1.28)}
    plan = comparisons.repeated().comparison.model_copy(update={"work": counted, "rates": rates})
    found = limit(plan, plan.rows[0].spec.with_fields(cores=cores), device, 160.0)
    assert found is not None and found.gflops == pytest.approx(480.0)
    assert found.matrix_fraction is None and found.copy_fraction is None
    assert limit(plan, plan.rows[0].spec, device, math.nan) is None


@pytest.mark.parametrize(("schedule", "compared"), [("gpipe", True), ("asynchronous", False)])
def test_the_first_loss_of_an_asynchronous_pipeline_is_of_no_untrained_model(schedule: str, compared: bool) -> None:
    settings = {"mode": "pipeline", "replicas": 2, "cores": 2, "epochs": 2, "pipeline": {"schedule": schedule}}
    rows = [Row(id=f"{name}-pipeline", contestant=name, spec=spec.build(settings)) for name in ("pytorch", "tensorflow")]
    runs = {row.id: {0: comparisons.good(row, 4.0, first_step_loss=2.3 + 1e-3 * number)} for number, row in enumerate(rows)}
    stored = StoredComparison(comparison=comparisons.comparison(rows), runs=runs, set_aside=[])
    found = summarize(stored)
    assert [summary.first_step_difference is not None for summary in found] == [compared] * 2
    assert findings(stored, found).comparable != compared


def test_a_gpu_is_held_to_its_own_rates_times_the_replicas() -> None:
    stored = comparisons.repeated()
    counted = Work(forward_flops=10**9, backward_flops=2 * 10**9, values_moved=10**6, weights=0)
    plan = stored.comparison.model_copy(update={"work": counted})
    run = next(row.spec for row in stored.comparison.rows if row.spec.replicas == 2)
    plain = limit(plan, run, "cuda: made up", 160.0)
    own = limit(plan, run, "cuda: made up", 160.0, DeviceRates(matrix_gflops=50.0, copy_gb_per_second=25.0))
    assert plain is not None and own is not None and plain.matrix_fraction is None
    assert own.matrix_fraction == pytest.approx(own.gflops / 100.0)
    assert own.copy_fraction == pytest.approx(own.gb_per_second / 50.0)


def test_images_per_second_are_those_of_the_seconds_that_speedups_are_made_of() -> None:
    row = comparisons.row("pytorch")
    run = comparisons.good(row, 1.0).model_copy(update={"epochs": [comparisons.epoch(1, 1.0), comparisons.epoch(2, 4.0)]})
    assert epoch_seconds(run) == 2.5
    assert images_per_second(run) == 640 / 2.5


def test_rows_that_would_share_a_name_are_named_by_their_ids() -> None:
    stored = comparisons.repeated(1)
    (serial,) = [row for row in stored.comparison.rows if row.id == "pytorch-serial-2"]
    other = serial.model_copy(update={"id": "pytorch-serial-2-batch32", "spec": serial.spec.with_fields(global_batch_size=32)})
    rows = [*stored.comparison.rows, other]
    runs = stored.runs | {other.id: {0: comparisons.good(other, 1.0)}}
    both = stored.model_copy(update={"comparison": comparisons.comparison(rows), "runs": runs})
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
    row = Row(id="it", contestant="pytorch", spec=wanted)
    parts = StepParts(steps=3, step_seconds=0.5, compute_seconds=0.375, idle_seconds=0.125)
    runs = {"it": {0: comparisons.good(row, 1.0).model_copy(update={"step_parts": parts})}}
    (found,) = summarize(comparisons.repeated(1).model_copy(update={"comparison": comparisons.comparison([row]), "runs": runs}))
    assert found.expected_idle == (None if expected is None else pytest.approx(expected))
    (table,) = step_tables.step_table([found])
    shown = "expected_idle_milliseconds" in [column.key for column in table.columns]
    assert shown == (expected is not None)
    assert not shown or table.rows[0]["expected_idle_milliseconds"] == pytest.approx(500 * (expected or 0.0))


def test_a_training_without_a_timed_step_says_that_its_batch_is_larger_than_the_split() -> None:
    stored = comparisons.repeated()
    row = stored.comparison.rows[0]
    untimed = {
        repeat: run.model_copy(update={"epochs": [epoch.model_copy(update={"timed_steps": 0}) for epoch in run.epochs]})
        for repeat, run in stored.runs[row.id].items()
    }
    size = row.spec.global_batch_size
    for examples, larger in ((size - 1, True), (size, False)):
        comparison = stored.comparison.model_copy(update={"train_examples": examples})
        short = stored.model_copy(update={"runs": stored.runs | {row.id: untimed}, "comparison": comparison})
        (told,) = [each for each in cautions.sentences(short, summarize(short)) if "no epoch time can be told" in each]
        assert (f"a batch of {size} is larger than the training split of {examples}" in told) == larger


def test_a_run_too_short_to_know_of_other_work_says_so() -> None:
    stored = comparisons.repeated()
    row = stored.comparison.rows[0]
    short = {repeat: run.model_copy(update={"cores_used": None}) for repeat, run in stored.runs[row.id].items()}
    stored = stored.model_copy(update={"runs": stored.runs | {row.id: short}})
    told = "pytorch serial, 2 cores: too short to tell whether other work disturbed it: rely on no time of it."
    found = findings(stored, summarize(stored))
    assert found.troubles.count(told) == 1
    doubted = [said for said in found.contestants + found.modes if "Too short to tell whether other work disturbed it" in said]
    assert doubted and all("serial on 2 cores" in said or "data_parallel" in said for said in doubted)


@pytest.mark.parametrize(
    ("accuracies", "losses", "said"),
    [
        ((0.5, 0.9, 0.85), (1.0, 0.3, 0.4), None),  # wavers
        ((0.5, 0.9, 0.1), (1.0, 0.3, 9.0), "validation accuracy 0.9000 at epoch 2, 0.1000 at epoch 3, the last"),
        ((0.1, 0.1, 0.1), (2.3, 2.2, 2.4), None),  # has never learnt
        ((0.1, 0.1, 0.1), (2.3, 2.2, 50.0), "training loss 2.2000 at epoch 2, 50.0000 at epoch 3, the last"),
        ((0.5, 0.9, 0.9), (1.0, 0.01, 0.1), None),  # ten times nothing
        ((0.3, 0.48, 0.44), (1.0, 0.9, 1.0), None),  # 48 and then 44 of 100 right: that may be chance
    ],
)
def test_a_training_that_breaks_down_in_the_end_gets_a_caution(
    accuracies: tuple[float, ...], losses: tuple[float, ...], said: str | None
) -> None:
    stored = comparisons.repeated(3)
    row = stored.comparison.rows[0]
    scores = zip(accuracies, losses, strict=True)
    epochs = [comparisons.epoch(number, 1.0, accuracy, loss) for number, (accuracy, loss) in enumerate(scores, start=1)]
    for repeat in (0, 2):
        stored.runs[row.id][repeat] = stored.runs[row.id][repeat].model_copy(update={"epochs": epochs})
    expected = f"pytorch serial, 2 cores: broke down: {said}, in 2 of 3 repeats. Its scores are those of the end. "
    troubles = findings(stored, summarize(stored)).troubles
    assert troubles == ([] if said is None else [f"{expected}Try a smaller learning rate."])


def test_a_run_without_a_validation_split_that_breaks_down_gets_a_caution_too() -> None:
    stored = comparisons.repeated(1)
    row = stored.comparison.rows[0]
    epochs = [comparisons.epoch(number, 1.0, accuracy) for number, accuracy in ((1, 0.9), (2, 0.2))]
    epochs = [epoch.model_copy(update={"validation": None}) for epoch in epochs]
    stored.runs[row.id][0] = stored.runs[row.id][0].model_copy(update={"epochs": epochs})
    (caution,) = findings(stored, summarize(stored)).troubles
    assert "broke down: training accuracy 0.9000 at epoch 1, 0.2000 at epoch 2, the last." in caution


def test_where_no_time_of_any_row_is_reliable_for_one_reason_no_row_is_named() -> None:
    first, second, *_ = summarize(comparisons.repeated())
    one, other = (each.model_copy(update={"cores_lost": 1.0}) for each in (first, second))
    assert unreliable_rows_note([("a", one), ("b", other)]) == "Rely on no time of any row: disturbed by other work."
    assert unreliable_rows_note([("a", one), ("b", second)]) == "Rely on no time of a: disturbed by other work."
    late = second.model_copy(update={"clock_caution": "late"})
    assert unreliable_rows_note([("a", one), ("b", late)]).count("Rely on no time of") == 2


def test_images_that_stand_in_two_classes_or_splits_are_a_caution() -> None:
    stored = comparisons.repeated(1)
    assert not any("wrong label" in each for each in findings(stored, summarize(stored)).troubles)
    plan = stored.comparison.model_copy(
        update={"data_notes": [f"{IN_TWO_CLASSES}: 1", f"48 of 48 test images are training {IN_TWO_SPLITS}"]}
    )
    stored = stored.model_copy(update={"comparison": plan})
    assert findings(stored, summarize(stored)).troubles == [
        "The data: images that stand in more than one class, equal pixel for pixel: 1. So some of them have a wrong label, or "
        "the classes overlap. convtwins data FOLDER names them.",
        "The data: 48 of 48 test images are training images too, equal pixel for pixel. Accuracy on them is no accuracy on new "
        "images. convtwins data FOLDER names them.",
    ]
    summaries = summarize(stored)
    of_it = JudgedComparison(stored, summaries, findings(stored, summaries))
    captions = {table.name: table.note for table in comparison_report.report_tables(of_it)}
    assert all("48 of 48 test images are training images too" in captions[name] for name in ("comparison", "accuracy"))


def test_what_is_doubtful_in_the_data_is_a_caution() -> None:
    stored = comparisons.repeated(1)
    plan = stored.comparison.model_copy(update={"data_notes": ["left out 1 of 9 files: 1 empty", f"{CAUTION}two. Rename one"]})
    stored = stored.model_copy(update={"comparison": plan})
    assert findings(stored, summarize(stored)).troubles == ["The data: two. Rename one."]


@pytest.mark.parametrize(("largest", "broke"), [(90, False), (50, True)])
def test_a_training_that_was_never_better_than_guessing_cannot_break_down(largest: int, broke: bool) -> None:
    stored = comparisons.repeated(1)
    row = stored.comparison.rows[0]
    epochs = [comparisons.epoch(number, 1.0, accuracy) for number, accuracy in ((1, 0.9), (2, 0.2))]
    confusion = [[largest, 0], [100 - largest, 0]]
    stored.runs[row.id][0] = stored.runs[row.id][0].model_copy(update={"epochs": epochs, "confusion": confusion})
    assert any("broke down" in each for each in findings(stored, summarize(stored)).troubles) == broke


def test_training_seconds_are_the_median_over_repeats_and_not_of_the_repeat_with_the_median_wall_time() -> None:
    stored = comparisons.repeated(3)
    row = stored.comparison.rows[0]
    for repeat, (training, wall) in enumerate([(1.0, 20.0), (2.0, 30.0), (9.0, 25.0)]):
        run = stored.runs[row.id][repeat]
        assert run.phases is not None
        phases = run.phases.model_copy(update={"training_seconds": training, "wall_seconds": wall})
        stored.runs[row.id][repeat] = run.model_copy(update={"phases": phases})
    table = comparison_tables.seconds_table(summarize(stored))
    assert "2.00 (1.50 to 5.50)" in tables.to_markdown(table)


def test_captions_of_times_name_the_rows_in_doubt_and_how_many_repeats_they_are_of() -> None:
    stored = comparisons.repeated(3)
    row = stored.comparison.rows[0]
    busy = {"cores_of_others": 1.5, "machine": {"logical_cores": 2}}
    stored.runs[row.id][0] = stored.runs[row.id][0].model_copy(update=busy)
    del stored.runs[row.id][2]
    for table in comparison_tables.written_tables(summarize(stored)):
        if table.name in ("seconds", "epoch_seconds", "phases", "epochs"):
            said = "Repeats: 2 to 3 of each row. Rely on no time of pytorch serial, 2 cores: disturbed by other work."
            assert said in latex.to_latex(table).replace("~", " ").replace("\allowbreak", "") and said in tables.to_markdown(
                table
            )


def test_a_single_verdict_names_all_its_conditions_and_the_switches_that_decide() -> None:
    rows = [comparisons.row("pytorch"), comparisons.row("tensorflow")]
    ran = {"pytorch": {"graph": "eager", "memory_format": "contiguous"}, "tensorflow": {"graph": "function"}}
    ran = {name: {"onednn": True, **switches} for name, switches in ran.items()}
    runs = {
        row.id: {
            repeat: comparisons.good(row, seconds + 0.01 * repeat, repeat).model_copy(update={"switches": ran[row.contestant]})
            for repeat in range(5)
        }
        for row, seconds in zip(rows, (4.0, 2.0), strict=True)
    }
    stored = StoredComparison(comparison=comparisons.comparison(rows, 5), runs=runs, set_aside=[])
    (said,) = findings(stored, summarize(stored)).contestants
    assert said.startswith("tensorflow is ") and "times as fast as pytorch (p < 0.001): simple_cnn, batch 64, float32, " in said
    assert said.endswith(
        f"serial on {rows[0].spec.cores} cores, switches usual (pytorch eager contiguous, tensorflow function), on Some CPU, "
        "unequal conditions (neither closed nor open division)."
    )


def test_cores_used_is_a_median_and_one_repeat_may_exceed_the_budget() -> None:
    stored = comparisons.repeated(5)
    runs = stored.runs["pytorch-serial-2"]
    for repeat, used in enumerate((1.9, 1.8, 2.0, 2.4, 1.7)):
        runs[repeat] = runs[repeat].model_copy(update={"cores_used": used})
    found = summarize(stored)[0]
    assert (found.cores_used, found.most_cores_used, found.exceeds_budget) == (1.9, 2.4, True)
    assert any("used 2.40 cores of a budget of 2." in each for each in cautions.sentences(stored, summarize(stored)))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "less than a second of work was lost"), (1.26, "1.3 s of work were lost"), (75.4, "75 s of work were lost")],
)
def test_what_restarts_have_lost_is_never_said_to_be_nothing(seconds: float, said: str) -> None:
    stored = comparisons.repeated()
    death = Restart(reason="killed by SIGKILL", epochs=1, steps=2, seconds_lost=seconds)
    runs = stored.runs["pytorch-serial-2"]
    runs[0] = runs[0].model_copy(update={"restarts": [death]})
    assert any(each.endswith(f"{said}.") for each in cautions.sentences(stored, summarize(stored)))


def test_a_run_that_ended_in_its_first_epoch_is_not_said_to_have_ended_after_those_of_others() -> None:
    stored = comparisons.repeated(5)
    row = stored.comparison.rows[0]
    stored.runs[row.id][4] = comparisons.bad(row, "killed", "killed by SIGKILL", epochs=0)
    (said,) = (each for each in findings(stored, summarize(stored)).troubles if "killed" in each)
    assert "killed before the end of its first epoch" in said


def test_verdicts_whose_runs_other_work_disturbed_are_named_for_programs_too() -> None:
    stored = comparisons.repeated(5)
    row = stored.comparison.rows[0]
    assert not any(each.disturbed for each in findings(stored, summarize(stored)).verdicts)
    for repeat, run in stored.runs[row.id].items():
        busy = {"cores_of_others": 1.5, "machine": {"logical_cores": 2}}
        stored.runs[row.id][repeat] = run.model_copy(update=busy)
    verdicts = findings(stored, summarize(stored)).verdicts
    assert {each.name for each in verdicts if each.disturbed} == {
        "pytorch-data_parallel-2",
        "pytorch-serial-2 against tensorflow-serial-2",
    }
