"""Figures of rows, and what is found in them. Sentences are kept in snapshots; tests name the facts."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from common import spec
from common.artifacts.schema import EpochRecord, Noise, Restart, RunResult, StepParts
from common.data import notes
from common.machine.rates import DeviceRates, Rates
from common.models.work import Work
from compare.judgement import cautions, sameness
from compare.judgement.findings import ComparisonFindings, findings
from compare.judgement.row_figures import NOT_COMPARABLE
from compare.judgement.run_figures import epoch_seconds, images_per_second, limit, time_to_accuracy
from compare.judgement.run_pairs import pairs_of_seconds
from compare.judgement.statement_words import sentences as sentences_of
from compare.judgement.statement_words import unreliable_rows_note
from compare.judgement.summary import summarize
from compare.reporting import comparison_report, comparison_tables, latex, step_tables, tables
from compare.reporting.epoch_tables import target_table
from compare.reporting.step_tables import limit_table
from compare.results.store import ProofRecord, StoredComparison
from compare.running.matrix import Row
from compare.statistics.statistics import JudgedRatio
from tests.support import comparisons
from tests.support.comparisons import epoch, good, of_rows, repeated, row, score, with_fields, with_plan, with_runs
from tests.support.statements import in_words

FIRST = "pytorch-serial-2"
"""Row of `comparisons.repeated`."""
MODES = ("serial-2", "data_parallel-2")
BUSY: dict[str, Any] = {"cores_of_others": 1.5, "machine": {"logical_cores": 2}}
"""Fields of a run that other work disturbed."""
WORK = Work(forward_flops=10**9, backward_flops=2 * 10**9, values_moved=10**6, weights=0)
RATES = {2: Rates(cores=2, float32_gflops=960.0, float64_gflops=480.0, copy_gb_per_second=1.28)}


def _find(stored: StoredComparison) -> ComparisonFindings:
    return findings(stored, summarize(stored))


def _untimed(run: RunResult) -> list[EpochRecord]:
    """The epochs of a run without a timed step."""
    return [with_fields(record, timed_steps=0, timed_images=0, timed_seconds=0.0) for record in run.epochs]


def _verdicts(sentences: list[str]) -> list[str]:
    """Without the sentence on the conditions that all share."""
    return [sentence for sentence in sentences if not sentence.startswith(("All hold for ", "All as above"))]


def test_speedups_are_given_against_one_core_and_the_same_cores() -> None:
    rows = [row("pytorch", cores=1), row("pytorch"), row("pytorch", "multi_process")]
    one, both, parallel = summarize(of_rows(rows, (8.0, 5.0, 4.0)))
    assert one.speedup_one_core is None and one.pays is None
    assert both.speedup_one_core is not None and both.speedup_one_core.value == pytest.approx(1.6)
    assert both.speedup_same_cores is None and both.pays is None
    assert parallel.speedup_one_core is not None and parallel.speedup_one_core.value == pytest.approx(2.0)
    assert parallel.speedup_same_cores is not None and parallel.speedup_same_cores.value == pytest.approx(1.25)
    assert parallel.parallel_efficiency == pytest.approx(1.0)  # twice as fast on two cores


def test_rows_of_other_batches_are_never_held_against_each_other(snapshot: SnapshotAssertion) -> None:
    """Serial and parallel rows, each of two global batches, in two frameworks, as a scaling lays them out."""
    stored = repeated()
    rows: list[Row] = []
    runs: dict[str, dict[int, RunResult]] = {}
    for like in stored.comparison.rows:
        for batch, slower in ((64, 1.0), (128, 3.0)):
            other = with_fields(like, id=f"{like.id}-batch{batch}", spec=like.spec.with_fields(global_batch_size=batch))
            rows.append(other)
            runs[other.id] = {
                repeat: good(other, slower * epoch_seconds(run), repeat) for repeat, run in stored.runs[like.id].items()
            }
    judged = comparison_report.judge(StoredComparison(comparison=comparisons.comparison(rows, 5), runs=runs, set_aside=[]))
    configurations = [f"{mode}-batch{batch}" for mode in MODES for batch in (64, 128)]
    assert [verdict.name for verdict in judged.findings.verdicts] == [
        *(f"pytorch-{configuration} against tensorflow-{configuration}" for configuration in configurations),
        *(f"{name}-data_parallel-2-batch{batch}" for name in ("pytorch", "tensorflow") for batch in (64, 128)),
    ]
    speedups = [summary.speedup_same_cores.value for summary in judged.summaries if summary.speedup_same_cores]
    assert speedups == pytest.approx([2.0, 2.0, 4.01 / 6.0, 4.01 / 6.0], rel=0.03)
    assert judged.in_words(judged.findings.contestants) == snapshot


def test_on_accelerators_efficiency_counts_devices() -> None:
    stored = of_rows([row("pytorch"), row("pytorch", "data_parallel")], (6.0, 4.0), device="cuda")
    assert summarize(stored)[1].parallel_efficiency == pytest.approx(0.75)


def test_a_row_that_was_not_parallel_has_figures_but_no_speedup_and_a_killed_one_its_epochs_but_no_median() -> None:
    summaries = {summary.id: summary for summary in summarize(comparisons.troubled())}
    one_replica, killed = summaries["pytorch-data_parallel-2"], summaries["pytorch-multi_process-2"]
    assert one_replica.status == "not parallel" and one_replica.epoch_seconds is not None
    assert one_replica.speedup_one_core is None and one_replica.speedup_same_cores is None and one_replica.pays is None
    assert (killed.status, killed.epochs_done, len(killed.epochs)) == ("killed", 1, 1)
    assert killed.train.accuracy is None and killed.epoch_seconds is None


def test_one_bad_repeat_marks_the_row_and_the_good_ones_count() -> None:
    stored = repeated()
    stored.runs[FIRST][3] = comparisons.bad(stored.comparison.rows[0], "diverged", "loss is nan", epochs=1)
    summary = summarize(stored)[0]
    assert (summary.status, summary.reason) == ("diverged", "loss is nan (1 of 5 repeats)")
    assert summary.repeats_done == 4
    assert summary.train.accuracy is not None and summary.train.accuracy.n == 4


def test_the_first_step_difference_is_relative_and_the_largest_of_the_repeats() -> None:
    first, _, third, _ = summarize(with_runs(repeated(), FIRST, [2], first_step_loss=2.3 * (1 + 1e-6)))
    assert first.first_step_difference == pytest.approx(1e-6, rel=1e-3)
    assert third.first_step_difference == first.first_step_difference
    (alone,) = summarize(of_rows([row("pytorch")]))
    assert alone.first_step_difference is None


def _losses_rung(framework: str, tolerance: Any, status: str = "passed", precision: str = "float32") -> dict[str, Any]:
    return {"precision": precision, "framework": framework, "first_tolerance": tolerance, "status": status}


def _apart(difference: float, rungs: list[Any]) -> StoredComparison:
    """First losses that differ so much between the frameworks, and the rungs of the proof."""
    stored = with_runs(repeated(), "tensorflow", first_step_loss=2.3 * (1 + difference))
    return with_plan(stored, proof=ProofRecord(verdict="proved", sentence="", rungs=rungs))


@pytest.mark.parametrize(
    ("rungs", "agrees"),
    [
        ([], False),
        ([_losses_rung("pytorch", 4e-6), _losses_rung("tensorflow", 5e-6)], False),
        ([_losses_rung("pytorch", 2e-5), _losses_rung("tensorflow", 1e-5)], True),
        ([_losses_rung("pytorch", 2e-5, "failed"), _losses_rung("tensorflow", 1e-5)], False),
        ([_losses_rung("pytorch", 9e-4, precision="float64"), {}, _losses_rung("tensorflow", "9")], False),
        ([_losses_rung("pytorch", -1.0), _losses_rung("tensorflow", math.inf)], False),
        ([_losses_rung("pytorch", 4e-4), _losses_rung("tensorflow", 4e-4)], True),
    ],
)
def test_the_first_losses_may_differ_by_what_the_arithmetic_of_a_deep_network_allows(rungs: list[Any], agrees: bool) -> None:
    """Its own proof has judged them: a fixed tolerance would refuse an honest run of a deep network."""
    stored = _apart(2.5e-5, rungs)
    assert sameness.first_losses_agree(stored, summarize(stored)[0]) is agrees
    found = _find(stored)
    sentences = in_words(stored)
    assert found.comparable is agrees
    assert any("the first losses agree." in sentence for sentence in sentences["sameness"]) is agrees


@pytest.mark.parametrize("allowed", [1.6e-3, 6e-4])
@pytest.mark.parametrize(("difference", "agrees"), [(9e-6, True), (9e-4, None), (3e-3, False)])
def test_a_tolerance_that_proves_nothing_lets_nothing_agree(
    difference: float, agrees: bool | None, allowed: float, snapshot: SnapshotAssertion
) -> None:
    stored = _apart(difference, [_losses_rung(name, allowed) for name in ("pytorch", "tensorflow")])
    assert sameness.first_losses_agree(stored, summarize(stored)[0]) is agrees
    assert [sentence for sentence in in_words(stored)["sameness"] if "first float32 losses" in sentence] == snapshot


@pytest.mark.parametrize(
    ("verdicts", "headline"),
    [
        (["proved"] * 4, "proved"),
        (["proved", "proved in float64", "proved", "proved"], "proved in float64"),
        (["not claimed", "proved", "proved", "proved"], "proved in float64"),
        (["proved", "not claimed", "proved", "proved"], "proved"),
        (["not claimed"] * 4, "proved in float64"),
    ],
)
def test_the_headline_is_no_stronger_than_the_rows(verdicts: list[str], headline: str, snapshot: SnapshotAssertion) -> None:
    """The second row is a parallel mode, which may train something else by design. Where no row is proved as it is timed, no
    table is said to tell which are."""
    stored = repeated()
    row_verdicts = {planned.id: verdict for planned, verdict in zip(stored.comparison.rows, verdicts, strict=True)}
    stored = with_plan(
        stored, proof=ProofRecord(verdict="proved", sentence="proved: 9 rungs passed", row_verdicts=row_verdicts)
    )
    assert stored.comparison.headline == headline
    assert in_words(stored)["sameness"][0] == snapshot


def test_a_row_that_was_interrupted_names_its_repeats_without_a_result_too() -> None:
    stored = repeated()
    killed = comparisons.bad(stored.comparison.rows[0], "killed", "interrupted", epochs=1)
    stored.runs[FIRST] = {**{repeat: stored.runs[FIRST][repeat] for repeat in (0, 1)}, 2: killed}
    judged = comparison_report.judge(stored)
    first = judged.summaries[0]
    assert (first.status, first.reason) == ("incomplete", "1 of 5 repeats was interrupted, 2 have no result")
    assert "repeats: 5 planned, 3 to 5 made" in comparison_report.facts(judged)[0]
    assert "5 repeats" in comparison_report.facts(comparison_report.judge(repeated()))[0]
    stored.runs[FIRST] = {2: killed}
    assert summarize(stored)[0].reason == "interrupted (1 of 5 repeats, 4 more have no result)"


def test_an_interrupted_repeat_is_missing_beside_what_failed_and_beside_what_was_not_parallel() -> None:
    stored = repeated()
    planned = stored.comparison.rows[0]
    interrupted = comparisons.bad(planned, "killed", "interrupted; its result could not be read", epochs=0)
    stored.runs[FIRST] |= {2: comparisons.bad(planned, "failed", "no memory", epochs=0), 3: interrupted}
    summary = summarize(stored)[0]
    assert (summary.status, summary.reason) == ("failed", "no memory (1 of 5 repeats, 1 more was interrupted)")
    finished = with_fields(stored.runs[FIRST][0], status="not parallel", reason="fewer replicas")
    stored.runs[FIRST] = {**dict.fromkeys(range(4), finished), 4: interrupted}
    assert summarize(stored)[0].status == "not parallel"
    stored.runs[FIRST] = {0: interrupted}
    assert summarize(stored)[0].status == "killed"


def test_the_input_alone_is_judged_by_all_its_images_over_all_its_seconds() -> None:
    stored = comparisons.input_only(timed_steps=20)
    summaries = summarize(stored)
    rate, seconds = summaries[2].images_per_second, summaries[2].epoch_seconds
    assert rate is not None and rate.median == pytest.approx(20 * 64 / 4.001)  # the mean of its epochs' rates is 100 times that
    assert seconds is not None and seconds.median == pytest.approx(640 * 4.001 / (20 * 64))
    sentences = in_words(stored)
    assert len(_verdicts(sentences["contestants"])) == 3 and sentences["troubles"] == []


def test_an_input_pays_only_where_it_is_surely_faster_than_inline() -> None:
    stored = comparisons.input_only()
    quick, slow = "pytorch-serial-2-1workers", "pytorch-serial-2-2workers"
    for row_id, factor in ((quick, 0.5), (slow, 2.0)):
        runs = {repeat: comparisons.paced(run, factor) for repeat, run in stored.runs[row_id].items()}
        stored = comparisons.with_fields(stored, runs=stored.runs | {row_id: runs})
    judged = comparison_report.judge(stored)
    values = {statement.rows[0]: statement.values for statement in judged.findings.inputs if statement.rows}
    verdicts = {row: JudgedRatio.model_validate(value["judged"]) for row, value in values.items()}
    assert (verdicts[quick].verdict, round(verdicts[quick].ratio.value, 2)) == ("above", 2.0)
    assert (verdicts[slow].verdict, round(verdicts[slow].ratio.value, 2)) == ("below", 0.5)
    assert set(values) == {f"{name}-serial-2-{number}workers" for name in ("pytorch", "tensorflow") for number in (1, 2)}
    sentences = judged.in_words(judged.findings.inputs)
    assert any("1 worker pays: it is 2.00" in sentence and "as fast as the input inline" in sentence for sentence in sentences)


@pytest.mark.parametrize(("timed", "too_short"), [(16, 0), (15, 1), (7, 2), (3, 3)])
def test_an_input_of_too_few_timed_batches_gets_a_caution_and_no_verdict(
    timed: int, too_short: int, snapshot: SnapshotAssertion
) -> None:
    """Those with most workers first: with none 4 batches are enough, with one 8, with two 16."""
    sentences = in_words(comparisons.input_only(timed_steps=timed))
    assert len(_verdicts(sentences["contestants"])) == 3 - too_short
    assert len(sentences["troubles"]) == bool(too_short) and sentences["troubles"] == snapshot


def test_the_input_alone_says_nothing_of_weights_and_order() -> None:
    *_, data = in_words(comparisons.input_only())["sameness"]
    assert data == "Same data in all 30 runs that recorded it."
    assert not {"weights", "order"} & set(" ".join(in_words(comparisons.input_only())["sameness"]).split())


def test_runs_of_one_step_have_no_seconds_and_no_verdict() -> None:
    stored = with_runs(repeated(), epochs=_untimed)
    assert all(summary.epoch_seconds is None and summary.speedup_same_cores is None for summary in summarize(stored))
    assert in_words(stored)["contestants"] == []


@pytest.mark.parametrize(
    ("fields", "repeats"),
    [({"weights_hash": "another"}, [0]), ({"order_hash": "another"}, [0]), ({"first_step_loss": 2.4}, range(5))],
)
def test_no_speedup_and_no_verdict_is_shown_where_the_runs_did_not_train_the_same(
    fields: dict[str, Any], repeats: list[int], snapshot: SnapshotAssertion
) -> None:
    """Planted in one framework alone: in one run, or in all of a row. What differs is called out."""
    judged = comparison_report.judge(with_runs(repeated(), "pytorch-data_parallel-2", repeats, **fields))
    assert not judged.findings.comparable and judged.in_words(judged.findings.sameness) == snapshot
    parallel = [summary for summary in judged.summaries if summary.mode == "data_parallel"]
    assert [summary.pays for summary in parallel] == [NOT_COMPARABLE] * 2
    assert [summary.reported_ratio("speedup_same_cores") for summary in parallel] == [NOT_COMPARABLE] * 2
    table = tables.to_markdown(comparison_tables.speedup_table(judged.summaries))
    assert NOT_COMPARABLE in table and " 2.00" not in table and "pays" not in table.partition("| ---")[2]


def test_the_order_is_that_of_runs_that_trained_as_long(snapshot: SnapshotAssertion) -> None:
    stored = with_runs(repeated(), "tensorflow", epochs=lambda run: run.epochs[:1], order_hash="a shorter one")
    found = _find(stored)
    sentences = in_words(stored)
    assert found.comparable and sentences["sameness"] == snapshot


def test_a_diverged_run_leaves_nan_out_of_the_medians() -> None:
    stored = repeated()
    diverged = comparisons.bad(stored.comparison.rows[0], "diverged", "loss is nan", 0)
    stored.runs[FIRST][0] = with_fields(diverged, epochs=[epoch(1, 1.0, loss=math.nan)])
    loss = summarize(stored)[0].train.loss
    assert loss is not None and math.isfinite(loss.median)


@pytest.mark.parametrize(
    ("cores", "others", "lost"),
    [(1, 1.0, 0.0), (1, 1.4, 0.4), (2, 0.1, 0.1), (2, 0.6, 0.6), (2, 0.154, 0.154), (1, None, None)],
)
def test_work_of_others_counts_where_it_takes_from_the_budget(
    cores: int, others: float | None, lost: float | None, snapshot: SnapshotAssertion
) -> None:
    """More digits are shown of 0.154: 0.15 would not show that it is more than 0.15. A side of a regression is not made
    again."""
    stored = of_rows([row("pytorch", cores=cores)], repeats=5, **BUSY | {"cores_of_others": others})
    (summary,) = summarize(stored)
    assert summary.cores_lost == (None if lost is None else pytest.approx(lost))
    side = with_plan(stored, argv=["regress", "--interleaved", "main"])
    sentences = [sentences_of(cautions.statements(of, [summary]), [summary]) for of in (stored, side)]
    assert [len(of) for of in sentences] == [int(lost is not None and lost > 0.15)] * 2
    assert sentences == snapshot


@pytest.mark.parametrize(
    ("argv", "advised"),
    [
        (["run"], {"--repeats", "--epochs", "--again"}),
        (["reproduce", "x", "--scale", "smoke"], {"--again", "--scale"}),
        (["reproduce", "x", "--scale=full"], {"--again"}),
    ],
)
def test_a_reproduction_is_not_advised_what_its_scale_fixes(
    argv: list[str], advised: set[str], snapshot: SnapshotAssertion
) -> None:
    stored = with_runs(repeated(1), epochs=lambda run: [with_fields(record, timed_steps=0) for record in run.epochs], **BUSY)
    by_subject = in_words(with_plan(stored, argv=argv))
    sentences = [*by_subject["contestants"], *by_subject["modes"], *by_subject["troubles"]]
    assert {"--repeats", "--epochs", "--again", "--scale"} & set(" ".join(sentences).replace(".", " ").split()) == advised
    assert sentences == snapshot


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"batch_norm_statistics": "synchronised"},
        {"batch_norm_statistics": "synchronised", "schedule": {"scaling": "linear"}},
    ],
)
def test_a_run_that_went_on_with_fewer_replicas_says_what_that_changed(
    fields: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    planned = row("pytorch", "multi_process")
    planned = with_fields(planned, spec=planned.spec.with_fields(least_replicas=1, **fields))
    death = Restart(reason="killed by SIGKILL", epochs=1, steps=0, seconds_lost=1.0, replicas=1)
    assert in_words(of_rows([planned], restarts=[death]))["troubles"] == snapshot


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
    stored = with_plan(repeated(1), class_names=[str(number) for number in range(len(confusion or range(10)))])
    judged = comparison_report.judge(with_runs(stored, FIRST, test=score(accuracy, 1.0), confusion=confusion))
    assert [summary.guesses for summary in judged.summaries] == [guesses, False, False, False]
    assert [(trouble.kind, trouble.rows) for trouble in judged.findings.troubles] == [("guesses", (FIRST,))] * guesses
    words = "no better than guessing"
    main = comparison_tables.main_table(judged.summaries)
    assert (f"{words}: 1 of 4 rows." in main.note) == guesses
    for table in (main, comparison_tables.accuracy_table(judged.summaries)):
        assert (words in tables.to_markdown(table)) == guesses
        assert [cells.get("guessing") for cells in table.rows] == [words if guesses else None, None, None, None]


def test_a_clock_that_a_busy_machine_may_have_disturbed_is_a_caution_on_the_row_and_on_its_verdicts(
    snapshot: SnapshotAssertion,
) -> None:
    """The run itself is no failure: a defect of the clock would have ended it."""
    late = "losses came 2.00 s after the clock had stopped; the clock ran 3.00 s"
    judged = comparison_report.judge(with_runs(repeated(), FIRST, [3], clock_caution=late))
    assert [summary.in_doubt for summary in judged.summaries] == [True, False, False, False]
    assert judged.summaries[0].status == "ok"
    serial, parallel = _verdicts(judged.in_words(judged.findings.contestants))
    assert "do not rely on this" in serial and "do not rely on this" not in parallel
    assert [judged.in_words(judged.findings.troubles), serial] == snapshot


@pytest.mark.parametrize(("wait", "bound"), [(0.05, False), (0.3, True), (0.8, True)])
def test_a_run_that_waits_for_its_input_is_told(wait: float, bound: bool, snapshot: SnapshotAssertion) -> None:
    """Up to half of its training time both count; above, the input bounds it."""
    waiting = {"phases__training_seconds": 10.0, "phases__input_wait_seconds": 10.0 * wait}
    bounds = in_words(with_runs(of_rows([row("pytorch")]), **waiting))["bounds"]
    assert len(bounds) == bound and bounds == snapshot


def test_verdicts_on_frameworks_and_modes_are_one_family() -> None:
    found = _find(repeated())
    sentences = in_words(repeated())
    assert [(verdict.name, verdict.verdict, verdict.family) for verdict in found.verdicts] == [
        ("pytorch-serial-2 against tensorflow-serial-2", "no difference shown", 4),
        ("pytorch-data_parallel-2 against tensorflow-data_parallel-2", "above", 4),
        ("pytorch-data_parallel-2", "above", 4),
        ("tensorflow-data_parallel-2", "below", 4),
    ]
    assert sentences["surety"] and sentences["surety"][0].startswith("Chance ") and "4 comparisons" in sentences["surety"][0]


def test_a_gain_that_is_lost_among_many_comparisons_does_not_pay_in_the_table_either(snapshot: SnapshotAssertion) -> None:
    stored = repeated()
    serial, parallel = stored.comparison.rows[:2]
    seconds = (4.15, 4.04, 4.2, 4.07, 4.08)  # p = 0.03 against serial, by itself
    runs = {
        serial.id: {repeat: good(serial, of_epoch, repeat) for repeat, of_epoch in enumerate(seconds)},
        parallel.id: {repeat: good(parallel, 4.0, repeat) for repeat in range(5)},
    }
    alone = with_fields(stored, comparison=comparisons.comparison([serial, parallel], 5), runs=runs)
    assert [summary.pays for summary in summarize(alone)] == [None, "pays"]
    judged = comparison_report.judge(with_fields(stored, runs=stored.runs | runs))
    assert judged.summaries[1].pays == "no gain shown"
    assert [sentence for sentence in judged.in_words(judged.findings.modes) if sentence.startswith("pytorch")] == snapshot


def _with_seeds(stored: StoredComparison, seeds: tuple[int, ...]) -> StoredComparison:
    """The same runs, each repeat of another seed, with the weights, order, first loss and accuracy of its seed."""

    def seed(run: RunResult) -> int:
        return seeds[run.repeat % len(seeds)]

    return with_runs(
        with_plan(stored, settings__seeds=tuple(seeds)),
        spec=lambda run: with_fields(run.spec, seed=seed(run)),
        weights_hash=lambda run: f"weights {seed(run)}",
        order_hash=lambda run: f"order {seed(run)}",
        first_step_loss=lambda run: 2.0 + seed(run),
        test=lambda run: score(0.7 + 0.02 * seed(run), 0.6),
    )


def test_runs_of_several_seeds_are_the_same_training_seed_by_seed(snapshot: SnapshotAssertion) -> None:
    judged = comparison_report.judge(_with_seeds(repeated(6), (0, 1, 4)))
    assert judged.findings.comparable and judged.in_words(judged.findings.contestants)
    assert [summary.first_step_difference for summary in judged.summaries] == [0.0] * 4
    assert judged.in_words(judged.findings.sameness) == snapshot


@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        ("pytorch-data_parallel-2", {"order_hash": "another"}),
        ("pytorch-data_parallel-2", {"weights_hash": "another"}),
        ("pytorch-data_parallel-2", {"first_step_loss": 9.0}),
        ("", {"data_hash": "another split"}),
    ],
)
def test_a_run_that_parts_from_its_seeds_others_makes_figures_incomparable_and_so_do_other_data_of_a_seed(
    rows: str, fields: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    found = _find(with_runs(_with_seeds(repeated(), (0, 1, 2, 3, 4)), rows, [2], **fields))
    sentences = in_words(with_runs(_with_seeds(repeated(), (0, 1, 2, 3, 4)), rows, [2], **fields))
    assert not found.comparable and sentences["contestants"] == []
    assert sentences["sameness"] == snapshot


def test_accuracy_over_seeds_counts_each_seed_once() -> None:
    summary = summarize(_with_seeds(repeated(5), (0, 2)))[0]  # seed 0 three times, seed 2 twice
    over = summary.test_accuracy_over_seeds
    assert over is not None
    assert (summary.seeds, over.n, over.median) == (2, 2, pytest.approx(0.72))
    assert summary.test.accuracy is not None and summary.test.accuracy.median == 0.7


def test_one_seed_has_no_accuracy_over_seeds() -> None:
    judged = comparison_report.judge(repeated())
    assert all(summary.test_accuracy_over_seeds is None and summary.seeds == 1 for summary in judged.summaries)
    assert judged.in_words(judged.findings.scores) == []


@pytest.mark.parametrize(("accuracy", "until"), [(0.5, (3.85, 1)), (0.75, (7.85, 2)), (0.76, None)])
def test_time_to_accuracy_counts_the_first_step_and_no_evaluation(accuracy: float, until: tuple[float, int] | None) -> None:
    assert time_to_accuracy(good(row("pytorch"), 4.0), accuracy) == until


def test_time_to_an_accuracy_counts_steps_that_were_not_timed_at_the_pace_of_the_others() -> None:
    run = good(row("pytorch"), 4.0)
    first = run.epochs[0]
    untimed = first.timed_steps // 4
    epoch = first.model_copy(
        update={
            "timed_steps": first.timed_steps - untimed,
            "timed_seconds": first.timed_seconds * (first.timed_steps - untimed) / first.timed_steps,
            "left_out": [*range(2, 2 + untimed)],
        }
    )
    assert untimed > 0
    expected = time_to_accuracy(run, 0.5)
    assert expected is not None
    found = time_to_accuracy(run.model_copy(update={"epochs": [epoch]}), 0.5)
    assert found == (pytest.approx(expected[0]), 1)


def test_time_to_an_accuracy_holds_the_first_steps_until_then_and_no_later_ones() -> None:
    run = good(row("pytorch"), 4.0)
    first, second = run.epochs
    epochs = [
        with_fields(first, first_step_seconds=1.0),
        with_fields(second, first_step_seconds=8.0),  # of the process that went on
    ]
    run = with_fields(run, epochs=epochs, phases__first_step_seconds=9.0, resumes=1)
    assert time_to_accuracy(run, 0.5) == (4.6, 1)
    assert time_to_accuracy(run, 0.75) == (16.6, 2)


def test_repeats_that_never_reach_the_accuracy_are_counted(snapshot: SnapshotAssertion) -> None:
    stored = with_runs(with_plan(repeated(), settings__target_accuracy=0.75), FIRST, [1], epochs=lambda run: run.epochs[:1])
    judged = comparison_report.judge(stored)
    target = judged.summaries[0].target
    assert target is not None and target.seconds is not None
    assert (target.reached, target.seconds.n, judged.summaries[0].repeats_done) == (4, 5, 5)
    (table,) = target_table(judged.summaries)
    assert [cells["reached"] for cells in table.rows] == ["4 of 5", "5 of 5", "5 of 5", "5 of 5"]
    assert judged.in_words(judged.findings.scores)[0] == snapshot


def test_repeats_that_diverge_before_the_accuracy_are_counted_too() -> None:
    stored = with_plan(repeated(), settings__target_accuracy=0.75)
    diverged = comparisons.bad(stored.comparison.rows[0], "diverged", "the loss is not finite", 1)
    stored.runs[FIRST] |= dict.fromkeys((1, 2, 4), diverged)
    target = summarize(stored)[0].target
    assert target is not None and (target.reached, target.repeats, target.seconds) == (2, 5, None)


def test_a_few_quick_repeats_do_not_pass_for_all(snapshot: SnapshotAssertion) -> None:
    stored = with_runs(
        with_plan(repeated(), settings__target_accuracy=0.75), FIRST, [1, 2, 4], epochs=lambda run: run.epochs[:1]
    )
    target = summarize(stored)[0].target
    assert target is not None and (target.reached, target.seconds, target.epochs) == (2, None, None)
    assert in_words(stored)["scores"][0] == snapshot


@pytest.mark.parametrize(("apart", "paired"), [(0, True), (100, True), (7200, False)])
def test_runs_that_were_not_made_in_turn_are_no_pairs(apart: float, paired: bool, snapshot: SnapshotAssertion) -> None:
    """Repeats begin an hour after each other, those of other rows `apart` seconds after the first row's."""

    def started_at(run: RunResult, seconds: float) -> str:
        return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=run.repeat, seconds=seconds)).isoformat()

    stored = with_runs(repeated(), started_at=lambda run: started_at(run, apart))
    stored = with_runs(stored, FIRST, started_at=lambda run: started_at(run, 0))
    first, other, *_ = stored.comparison.rows
    assert len(pairs_of_seconds(stored, slow=first, fast=other)) == (5 if paired else 0)
    troubles = in_words(stored)["troubles"]
    assert bool(troubles) == (not paired) and troubles == snapshot


def test_the_phases_of_a_row_are_those_of_one_repeat_and_add_up() -> None:
    build, training = (1.0, 9.0, 5.0, 2.0, 8.0), (9.0, 2.0, 8.0, 2.0, 1.0)

    def wall_seconds(run: RunResult) -> float:
        assert run.phases is not None
        return run.phases.wall_seconds - 0.5 - run.phases.training_seconds + build[run.repeat] + training[run.repeat]

    def wall(run: RunResult) -> Any:
        return with_fields(
            run.phases, build_seconds=build[run.repeat], training_seconds=training[run.repeat], wall_seconds=wall_seconds(run)
        )

    summary = summarize(with_runs(repeated(), FIRST, phases=wall))[0]
    phases = summary.phases
    assert phases is not None and (phases.build_seconds, phases.training_seconds) == (1.0, 9.0)
    six = ("import", "build", "first_step", "training", "evaluation", "other")
    assert sum(getattr(phases, f"{name}_seconds") for name in six) == pytest.approx(phases.wall_seconds)
    assert summary.wall_seconds is not None and summary.wall_seconds.median == phases.wall_seconds


def test_training_seconds_are_the_median_over_repeats_and_not_of_the_repeat_with_the_median_wall_time() -> None:
    training, wall = (1.0, 2.0, 9.0), (20.0, 30.0, 25.0)
    stored = with_runs(
        repeated(3),
        FIRST,
        phases=lambda run: with_fields(run.phases, training_seconds=training[run.repeat], wall_seconds=wall[run.repeat]),
    )
    assert "2.00 (1.50 to 5.50)" in tables.to_markdown(comparison_tables.seconds_table(summarize(stored)))


@pytest.mark.parametrize(("rows", "is_said"), [(FIRST, True), ("", False)])
def test_nothing_is_said_of_how_sure_verdicts_are_where_none_is_given(rows: str, is_said: bool) -> None:
    assert bool(in_words(with_runs(repeated(), rows, noise=Noise(cores_stolen=1.0)))["surety"]) is is_said


@pytest.mark.parametrize(
    ("noise", "is_said"),
    [
        (Noise(), False),
        (Noise(load_start=3.9, frequency_end_mhz=2800.0, cores_stolen=0.1), False),
        (Noise(cores_stolen=0.4), True),
        (Noise(load_start=7.25), True),
        (Noise(frequency_end_mhz=2000.0), True),
    ],
)
def test_a_noisy_run_says_so(noise: Noise, is_said: bool, snapshot: SnapshotAssertion) -> None:
    """One repeat of the first of four rows, on a machine of two cores."""
    quiet = Noise(load_start=1.0, load_end=2.0, frequency_start_mhz=2000.0, frequency_end_mhz=3000.0, cores_stolen=0.0)
    stored = with_plan(with_runs(repeated(), noise=quiet), machine={"logical_cores": 2})
    troubles = in_words(with_runs(stored, FIRST, [3], noise=noise))["troubles"]
    assert [trouble.partition(":")[0] for trouble in troubles] == ["pytorch serial, 2 cores"] * is_said
    assert troubles == snapshot


def test_work_on_the_very_cpus_of_a_run_counts_though_others_were_free() -> None:
    taken = {"cores_of_others": 1.0, "machine": {"logical_cores": 8}, "noise": Noise(cores_taken=0.9)}
    (summary,) = summarize(of_rows([row("pytorch")], **taken))
    assert summary.cores_lost == 0.9 and summary.disturbed


def test_stolen_time_takes_the_verdicts_reliability(snapshot: SnapshotAssertion) -> None:
    judged = comparison_report.judge(with_runs(repeated(), FIRST, [0], noise=Noise(cores_stolen=0.5)))
    serial = _verdicts(judged.in_words(judged.findings.contestants))[0]
    assert "not known" in serial and "times as fast" not in serial and serial == snapshot
    doubts = {sentence.split()[0]: "disturbed" in sentence for sentence in _verdicts(judged.in_words(judged.findings.modes))}
    assert doubts == {"pytorch": True, "tensorflow": False}  # whose serial row, and whose not
    parallel = [summary for summary in judged.summaries if summary.mode != "serial"]
    assert [summary.pays == "disturbed" for summary in parallel] == [True, False]
    assert [summary.hidden_ratios for summary in parallel] == [{"speedup_same_cores": "disturbed"}, {}]
    assert all(summary.speedup_same_cores for summary in parallel)  # in the JSON


def test_verdicts_whose_runs_other_work_disturbed_are_named_for_programs_too() -> None:
    assert not any(verdict.disturbed for verdict in _find(repeated()).verdicts)
    verdicts = _find(with_runs(repeated(), FIRST, **BUSY)).verdicts
    assert {verdict.name for verdict in verdicts if verdict.disturbed} == {
        "pytorch-data_parallel-2",
        "pytorch-serial-2 against tensorflow-serial-2",
    }


def test_a_row_is_held_against_the_rates_of_its_cores_and_precision() -> None:
    stored = with_plan(repeated(), work=WORK, rates=RATES)
    found = summarize(stored)[0].limit  # 160 images a second
    assert found is not None
    assert (found.gflop_per_image, found.gflops, found.matrix_fraction) == (3.0, pytest.approx(480.0), pytest.approx(0.5))
    assert (found.mb_per_image, found.gb_per_second, found.copy_fraction) == (4.0, pytest.approx(0.64), pytest.approx(0.5))
    (table,) = limit_table(summarize(stored))
    assert table.rows[0]["matrix_fraction"] == pytest.approx(0.5)
    double = limit(stored.comparison, stored.comparison.rows[0].spec.with_fields(precision="float64"), "cpu", 160.0)
    assert double is not None and double.matrix_fraction == 1.0


@pytest.mark.parametrize(("device", "cores"), [("cuda", 2), ("cpu", 1), (None, 2)])
def test_what_is_not_known_of_a_device_is_left_out(device: str | None, cores: int) -> None:
    plan = with_plan(repeated(), work=WORK, rates=RATES).comparison
    found = limit(plan, plan.rows[0].spec.with_fields(cores=cores), device, 160.0)
    assert found is not None and found.gflops == pytest.approx(480.0)
    assert found.matrix_fraction is None and found.copy_fraction is None
    assert limit(plan, plan.rows[0].spec, device, math.nan) is None


def test_a_gpu_is_held_to_its_own_rates_times_the_replicas() -> None:
    plan = with_plan(repeated(), work=WORK).comparison
    run = plan.rows[1].spec
    assert run.replicas == 2
    plain = limit(plan, run, "cuda: made up", 160.0)
    own = limit(plan, run, "cuda: made up", 160.0, DeviceRates(matrix_gflops=50.0, copy_gb_per_second=25.0))
    assert plain is not None and own is not None and plain.matrix_fraction is None
    assert own.matrix_fraction == pytest.approx(own.gflops / 100.0)
    assert own.copy_fraction == pytest.approx(own.gb_per_second / 50.0)


@pytest.mark.parametrize(("schedule", "compared"), [("gpipe", True), ("asynchronous", False)])
def test_the_first_loss_of_an_asynchronous_pipeline_is_of_no_untrained_model(schedule: str, compared: bool) -> None:
    settings = {"mode": "pipeline", "replicas": 2, "cores": 2, "epochs": 2, "pipeline": {"schedule": schedule}}
    rows = [Row(id=f"{name}-pipeline", contestant=name, spec=spec.build(settings)) for name in ("pytorch", "tensorflow")]
    judged = comparison_report.judge(with_runs(of_rows(rows, 4.0), "tensorflow", first_step_loss=2.3 + 1e-3))
    assert [summary.first_step_difference is not None for summary in judged.summaries] == [compared] * 2
    assert judged.findings.comparable != compared


def test_images_per_second_are_those_of_the_seconds_that_speedups_are_made_of() -> None:
    run = with_fields(good(row("pytorch"), 1.0), epochs=[epoch(1, 1.0), epoch(2, 4.0)])
    assert epoch_seconds(run) == 2.5
    assert images_per_second(run) == 640 / 2.5


def test_rows_that_would_share_a_name_are_named_by_their_ids() -> None:
    stored = repeated(1)
    serial, *_ = stored.comparison.rows
    other = with_fields(serial, id=f"{FIRST}-batch32", spec=serial.spec.with_fields(global_batch_size=32))
    both = of_rows([*stored.comparison.rows, other])
    names = {summary.id: summary.name for summary in summarize(both)}
    assert names[FIRST] == FIRST and names[other.id] == other.id
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
    parts = StepParts(steps=3, step_seconds=0.5, compute_seconds=0.375, idle_seconds=0.125)
    (found,) = summarize(of_rows([Row(id="it", contestant="pytorch", spec=wanted)], step_parts=parts))
    assert found.expected_idle == (None if expected is None else pytest.approx(expected))
    (table,) = step_tables.step_table([found])
    shown = "expected_idle_milliseconds" in [column.key for column in table.columns]
    assert shown == (expected is not None)
    assert not shown or table.rows[0]["expected_idle_milliseconds"] == pytest.approx(500 * (expected or 0.0))


@pytest.mark.parametrize(("examples", "larger"), [(63, True), (64, False)])
def test_a_training_without_a_timed_step_says_that_its_batch_is_larger_than_the_split(
    examples: int, larger: bool, snapshot: SnapshotAssertion
) -> None:
    stored = with_runs(with_plan(repeated(), train_examples=examples), FIRST, epochs=_untimed)
    assert stored.comparison.rows[0].spec.global_batch_size == 64
    (caution,) = in_words(stored)["troubles"]
    assert ("holds all 63 training images" in caution) == larger and caution == snapshot


@pytest.mark.parametrize("repeats", [[0, 1, 2, 3, 4], [0, 1, 2, 3], [3]], ids=["all", "all but one", "one"])
def test_a_row_says_so_as_long_as_one_repeat_is_too_short_to_know_of_other_work(
    repeats: list[int], snapshot: SnapshotAssertion
) -> None:
    """As do the verdicts on it, and no others. The cure stands behind it, in place of more repeats."""
    short = with_runs(repeated(), FIRST, repeats, cores_used=None)
    run = short.runs[short.comparison.rows[0].id][0]
    judged = comparison_report.judge(
        with_runs(short, FIRST, repeats, phases=run.phases.model_copy(update={"training_seconds": 0.4}))
    )
    assert judged.summaries[0].unwatched_repeats == len(repeats)
    (caution,) = (caution for caution in judged.cautions if caution.kind == "unwatched")
    assert caution.advice is not None and caution.advice.options == ("--epochs", "3")  # 2 epochs take 0.4 s
    screen = comparison_report.report(judged, Path("out")).screen
    assert screen is not None and not screen.next
    (trouble,) = (answer for answer in screen.answers if answer.label == "Trouble")
    assert any(sentence.endswith("Use --epochs 3 or more.") for sentence in trouble.sentences)
    assert [summary.in_doubt for summary in judged.summaries] == [True, False, False, False]
    assert [
        judged.in_words(judged.findings.troubles),
        judged.in_words(judged.findings.contestants),
        judged.in_words(judged.findings.modes),
    ] == snapshot


@pytest.mark.parametrize(
    ("accuracies", "losses", "broke_down"),
    [
        ((0.5, 0.9, 0.85), (1.0, 0.3, 0.4), False),  # wavers
        ((0.5, 0.9, 0.1), (1.0, 0.3, 9.0), True),
        ((0.1, 0.1, 0.1), (2.3, 2.2, 2.4), False),  # has never learnt
        ((0.1, 0.1, 0.1), (2.3, 2.2, 50.0), True),
        ((0.5, 0.9, 0.9), (1.0, 0.01, 0.1), False),  # ten times nothing
        ((0.3, 0.48, 0.44), (1.0, 0.9, 1.0), False),  # 48 and then 44 of 100 right: that may be chance
    ],
)
def test_a_training_that_breaks_down_in_the_end_gets_a_caution(
    accuracies: tuple[float, ...], losses: tuple[float, ...], broke_down: bool, snapshot: SnapshotAssertion
) -> None:
    scores = zip(accuracies, losses, strict=True)
    epochs = [epoch(number, 1.0, accuracy, loss) for number, (accuracy, loss) in enumerate(scores, start=1)]
    troubles = in_words(with_runs(repeated(3), FIRST, [0, 2], epochs=epochs))["troubles"]
    assert len(troubles) == broke_down and troubles == snapshot


@pytest.mark.parametrize(("largest", "broke_down"), [(90, False), (50, True)])
def test_a_training_that_was_never_better_than_guessing_cannot_break_down(largest: int, broke_down: bool) -> None:
    epochs = [epoch(1, 1.0, 0.9), epoch(2, 1.0, 0.2)]
    stored = with_runs(repeated(1), FIRST, epochs=epochs, confusion=[[largest, 0], [100 - largest, 0]])
    assert any("became much worse" in caution for caution in in_words(stored)["troubles"]) == broke_down


def _restarted(seconds_lost: float) -> StoredComparison:
    death = Restart(reason="killed by SIGKILL", epochs=1, steps=2, seconds_lost=seconds_lost)
    return with_runs(repeated(), FIRST, [0], restarts=[death])


def _killed_in_its_first_epoch() -> StoredComparison:
    stored = repeated(5)
    stored.runs[FIRST][4] = comparisons.bad(stored.comparison.rows[0], "killed", "killed by SIGKILL", epochs=0)
    return stored


CAUTIONS: dict[str, Callable[[], StoredComparison]] = {
    "near equal ones of many rows are one with their number and names": lambda: with_runs(
        with_runs(with_runs(repeated(1), **BUSY), "data_parallel", cores_of_others=1.25), "pytorch", resumes=2
    ),
    "a budget of threads that share cores": lambda: with_runs(
        with_runs(repeated(), FIRST, machine={"cpus": [0, 1], "physical_cores": 1}),
        "pytorch-data_parallel-2",
        machine={"cpus": [0, 2], "physical_cores": 2},
    ),
    "a breakdown without a validation split is of training accuracy": lambda: with_runs(
        repeated(1),
        FIRST,
        epochs=[with_fields(epoch(number, 1.0, accuracy), validation=None) for number, accuracy in ((1, 0.9), (2, 0.2))],
    ),
    "doubtful data": lambda: with_plan(
        repeated(1), data_notes=["left out 1 of 9 files: 1 empty", notes.caution("two. Rename one")]
    ),
    "images in two classes and in two splits": lambda: with_plan(
        repeated(1), data_notes=[notes.in_two_classes(1), notes.in_two_splits(48, 48, "test", "train")]
    ),
    "one repeat above the budget of cores": lambda: with_runs(
        repeated(), FIRST, cores_used=lambda run: (1.9, 1.8, 2.0, 2.4, 1.7)[run.repeat]
    ),
    "what a restart has lost is less than a second and not nothing": lambda: _restarted(0.0),
    "what a restart has lost is a few seconds": lambda: _restarted(1.26),
    "what a restart has lost is many seconds": lambda: _restarted(75.4),
    "an end in the first epoch is not after those of others": _killed_in_its_first_epoch,
}


@pytest.mark.parametrize("name", CAUTIONS)
def test_cautions(name: str, snapshot: SnapshotAssertion) -> None:
    assert in_words(CAUTIONS[name]())["troubles"] == snapshot


def test_a_comparison_without_trouble_has_no_caution() -> None:
    assert in_words(repeated())["troubles"] == in_words(repeated(1))["troubles"] == []


def test_images_in_two_splits_are_told_in_the_captions_of_scores() -> None:
    judged = comparison_report.judge(CAUTIONS["images in two classes and in two splits"]())
    captions = {table.name: table.note for table in comparison_report.report_tables(judged)}
    assert all("48 of 48 test images" in captions[name] for name in ("comparison", "accuracy"))


def test_cores_used_is_a_median_and_one_repeat_may_exceed_the_budget() -> None:
    found = summarize(CAUTIONS["one repeat above the budget of cores"]())[0]
    assert (found.cores_used, found.most_cores_used, found.exceeds_budget) == (1.9, 2.4, True)


def test_where_no_time_of_any_row_is_reliable_for_one_reason_no_row_is_named(snapshot: SnapshotAssertion) -> None:
    first, second, *_ = summarize(repeated())
    one, other = (with_fields(summary, cores_lost=1.0) for summary in (first, second))
    late = with_fields(second, clock_caution="late")
    found = [unreliable_rows_note([("a", one), ("b", beside)]) for beside in (other, second, late)]
    assert found == snapshot


def test_captions_of_times_name_the_rows_in_doubt_and_how_many_repeats_they_are_of() -> None:
    stored = with_runs(repeated(3), FIRST, [0], **BUSY)
    del stored.runs[FIRST][2]
    summaries = summarize(stored)
    note = f"2 to 3 of each row. {unreliable_rows_note((summary.name, summary) for summary in summaries)}"
    assert "pytorch serial, 2 cores" in note
    written = {table.name: table for table in comparison_tables.written_tables(summaries)}
    for name in ("seconds", "epoch_seconds", "phases", "epochs"):
        assert note in tables.to_markdown(written[name])
        assert note in latex.to_latex(written[name]).replace("~", " ").replace("\allowbreak", "")


def test_a_single_verdict_names_all_its_conditions_and_the_switches_that_decide(snapshot: SnapshotAssertion) -> None:
    stored = of_rows([row("pytorch"), row("tensorflow")], (4.0, 2.0), repeats=5)
    for name, own in (("pytorch", {"graph": "eager", "memory_format": "contiguous"}), ("tensorflow", {"graph": "function"})):
        stored = with_runs(stored, name, switches={"onednn": True, **own}, epochs=_slower_by_repeat)
    assert in_words(stored)["contestants"] == snapshot


def _slower_by_repeat(run: RunResult) -> list[EpochRecord]:
    return [with_fields(record, timed_seconds=record.timed_seconds * (1 + 0.003 * run.repeat)) for record in run.epochs]
