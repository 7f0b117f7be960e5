"""Regressions in stored measurements: what counts as one, and what is never taken for the lack of one."""

import json
import math
import re
import shutil
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from syrupy.assertion import SnapshotAssertion

from common.artifacts import results
from common.artifacts.schema import ProfiledOperation, RunResult, TopOperations
from compare.cli import errors
from compare.results import store
from compare.statistics import statistics
from compare.tools.regression import facts, judging, measurements, regress, regress_report
from compare.tools.regression.records import Change, Criteria, Judgement
from tests.compare.tools.regression.repository import git, initialised
from tests.support import comparisons, trees
from tests.support.command_line import convtwins, convtwins_json
from tests.support.refusals import check_ended, refused

UNPROVED = "Neither side has a proof that both frameworks train the same."
BOTH = {"pytorch": 4.0, "tensorflow": 5.0}
NOISY = (1.0, 1.3, 0.8, 1.1, 0.9)
"""Of five runs whose mean may as well be a third longer."""
QUIET = tuple(1.0 + (factor - 1.0) / 4 for factor in comparisons.NOISE)
DISTURBED = {"cores_of_others": 1.5, "machine": {"logical_cores": 2}}
Fields = Mapping[str, Any]


def sides(folder: Path, before: Fields | None = None, now: Fields | None = None, **both: Any) -> tuple[Path, Path]:
    """Two results folders: of pytorch alone, with fields of `comparisons.results_folder` of each side or of both."""
    first, second = (
        comparisons.results_folder(folder / name, **{"seconds": {"pytorch": 4.0}, **both, **(own or {})})
        for name, own in (("before", before), ("now", now))
    )
    return first, second


def judge(before: Path, now: Path | None, **criteria: Any) -> Judgement:
    return regress.judge_stored(before, now, Criteria(**criteria))


def judged_of(folder: Path, before: Fields | None = None, now: Fields | None = None, **both: Any) -> Judgement:
    return judge(*sides(folder, before, now, **both))


def judged_in_pairs(before: Path, now: Path, *, paired: bool = True, **criteria: Any) -> Judgement:
    return judging.judge(*map(measurements.read, (before, now)), Criteria(**criteria), paired=paired)


def verdicts(judged: Judgement, metric: str = "epoch_seconds") -> list[str]:
    return [change.verdict for change in judged.changes if change.metric == metric]


def change_of(judged: Judgement, metric: str) -> Change:
    (change,) = (change for change in judged.changes if change.metric == metric)
    return change


def words(judged: Judgement, *, only: str = "") -> dict[str, Any]:
    """What a report says of a judgement: its headline, and the sentences under each title that contains `only`."""
    sentences = {title: lines for title, lines in regress_report.sentences(judged) if only in title}
    return {"headline": regress_report.headline(judged), **sentences}


def test_an_estimate_is_that_of_the_textbook_tests() -> None:
    draw = np.random.default_rng(1)
    first, second = draw.normal(0.0, 1.0, 7), draw.normal(0.3, 2.0, 7)
    for estimate, oracle in (
        (
            statistics.mean_difference([now - before for before, now in zip(first, second, strict=True)]),
            stats.ttest_rel(second, first),
        ),
        (statistics.mean_difference_of_samples(first, second[:5]), stats.ttest_ind(second[:5], first, equal_var=False)),
    ):
        interval = oracle.confidence_interval(0.95)
        assert estimate.p == pytest.approx(oracle.pvalue)
        assert estimate.mean - estimate.half_width == pytest.approx(interval.low)
        assert estimate.mean + estimate.half_width == pytest.approx(interval.high)


def test_values_without_spread_are_equal_or_surely_different() -> None:
    same, other = [512.0] * 5, [513.0] * 5
    assert statistics.mean_difference_of_samples(same, same).p == statistics.mean_difference([0.0] * len(same)).p == 1.0
    assert statistics.mean_difference_of_samples(same, other).p == statistics.mean_difference([1.0] * len(same)).p == 0.0


def test_one_sample_has_no_interval() -> None:
    assert math.isinf(statistics.mean_difference([1.0]).half_width) and math.isinf(
        statistics.mean_difference_of_samples([1.0], [2.0, 3.0]).half_width
    )


def test_what_rounding_hides_is_in_the_error_of_equal_differences() -> None:
    estimate = statistics.mean_difference([0.01] * 5, rounding=0.01)
    assert estimate.error == pytest.approx(0.01 / math.sqrt(6 * 5)) and 0.001 < estimate.p < 0.01


def test_two_samples_of_the_same_machine_are_called_different_once_in_twenty_times() -> None:
    draw = np.random.default_rng(2)
    calls = [statistics.mean_difference_of_samples(*draw.normal(0.0, 0.02, (2, 5))).p < 0.05 for _ in range(4000)]
    assert 0.035 <= np.mean(calls) <= 0.055  # Welch's test errs on the safe side at n = 5


@pytest.mark.parametrize(
    ("factor", "verdict", "code"),
    [
        (1.0, "no change shown", 0),
        (1.025, "worse, within the threshold", 0),
        (1.048, "worse, within the threshold", 5),  # the interval reaches beyond the threshold
        (1.2, "regression", 3),
        (0.8, "better", 0),
    ],
)
def test_a_regression_is_larger_than_the_threshold_and_significant(
    tmp_path: Path, factor: float, verdict: str, code: int
) -> None:
    judged = judged_of(tmp_path, now={"seconds": {**BOTH, "pytorch": 4.0 * factor}}, seconds=BOTH, noise=QUIET)
    assert verdicts(judged) == [verdict, "no change shown"]
    assert judged.exit_code == code
    assert judged.changes[0].change.value == pytest.approx(factor)
    assert judged.tested == 2  # seconds of two rows: first step and memory are the same number in every run
    assert not judged.paired and [change.method for change in judged.changes] == ["Welch", "none", "none"] * 2
    assert {change.verdict for change in judged.changes if change.method == "none"} == {"no change shown"}


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_slowdown_that_the_noise_may_hide_is_neither_a_regression_nor_a_pass(
    tmp_path: Path, factor: float, snapshot: SnapshotAssertion
) -> None:
    folders = sides(tmp_path, now={"seconds": {**BOTH, "pytorch": 4.0 * factor}}, seconds=BOTH, noise=NOISY)
    judged = judge(*folders)
    assert verdicts(judged)[0] == "no change shown" and judged.changes[0].not_ruled_out
    assert judged.exit_code == 5
    assert words(judged, only="not ruled out") == snapshot
    wider = judge(*folders, threshold=1.0)
    assert wider.exit_code == 0 and wider.num_not_ruled_out == 0


def test_operations_whose_time_changed_are_shown_with_the_largest_change_first(tmp_path: Path) -> None:
    def profiled(**milliseconds: float) -> dict[str, Any]:
        operations = [
            ProfiledOperation(name=name, calls=1.0, self_seconds=1e-3 * value, share=0.5)
            for name, value in milliseconds.items()
        ]
        return {"top_operations": TopOperations(steps=3, operations=operations)}

    before, now = profiled(conv=4.0, add=1.0, gone=0.5), profiled(conv=4.5, add=3.0, new=0.25)
    judged = judged_of(tmp_path, {"changed": before}, {"changed": now}, seconds=BOTH)
    found = [(each.operation, pytest.approx(each.milliseconds)) for each in judged.operations if each.id.startswith("pytorch")]
    assert found == [("add", 2.0), ("conv", 0.5), ("gone", -0.5), ("new", 0.25)]
    (table,) = (each for each in regress_report.change_tables(judged) if each.name == "operations")
    assert table.rows[0]["operation"] == "add" and judged.exit_code == 0


@pytest.mark.parametrize(
    "changed",
    [DISTURBED, {"cores_used": None}, {"clock_caution": "after 1 s"}],
    ids=["disturbed", "unwatched", "losses come late"],
)
@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_times_of_disturbed_runs_are_shown_and_are_neither_a_pass_nor_a_regression(
    tmp_path: Path, side: str, changed: Fields, snapshot: SnapshotAssertion
) -> None:
    """A baseline that was measured beside another job would let every later slowdown pass."""
    own = {name: {"changed": changed} if name == side else {} for name in ("baseline", "candidate")}
    judged = judged_of(tmp_path, {"seconds": {"pytorch": 6.0}, **own["baseline"]}, own["candidate"])
    assert verdicts(judged) == verdicts(judged, "first_step_seconds") == ["not judged"] and judged.exit_code == 5
    assert verdicts(judged, "peak_memory_mib") == ["no change shown"]
    change = judged.changes[0]
    assert (change.baseline.median, change.candidate.median) == (6.0, 4.0)
    assert (change.change.low, change.change.p, change.adjusted_p, judged.tested) == (None, None, None, 0)
    assert change.unreliable == [side]
    assert [regress_report.headline(judged), judged.cautions[0], words(judged)["Cannot tell"][0]] == snapshot
    assert len(judged.cautions) == 2


def spoil(folder: Path, repeats: Iterable[int], seconds: float = 9.0) -> None:
    """Disturb runs, so that their epochs take longer."""
    for repeat in repeats:
        spoilt = store.run_folder(folder, "pytorch-serial-2", repeat)
        run = results.load(spoilt / results.RESULT_FILE)
        results.save(comparisons.with_fields(comparisons.paced(run, seconds / run.epochs[0].seconds), **DISTURBED), spoilt)


def unjudged(before: Path, now: Path, *, paired: bool) -> tuple[Judgement, Change]:
    judged = judged_in_pairs(before, now, paired=paired)
    assert verdicts(judged) == ["not judged"] and judged.exit_code == 5
    return judged, judged.changes[0]


def test_pairs_without_reliable_times_on_both_sides_show_the_reliable_ones_of_each(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    before, now = sides(tmp_path, now={"seconds": {"pytorch": 5.0}}, noise=(1.0,) * 6)
    spoil(before, range(3))
    spoil(now, range(3, 6))
    judged, change = unjudged(before, now, paired=True)
    assert (change.baseline.median, change.baseline.high, change.candidate.median) == (4.0, 4.0, 5.0)
    assert (change.baseline.n, change.candidate.n) == (3, 3) and change.change.value == pytest.approx(1.25)
    assert words(judged, only="Cannot tell") == snapshot


@pytest.mark.parametrize("paired", [True, False])
def test_reliable_times_of_one_side_are_shown_without_its_disturbed_ones(tmp_path: Path, paired: bool) -> None:
    before, now = sides(tmp_path, now={"seconds": {"pytorch": 5.0}}, noise=(1.0,) * 6)
    spoil(before, range(4))
    spoil(now, range(6), 5.0)
    _, change = unjudged(before, now, paired=paired)
    assert (change.baseline.median, change.baseline.n, change.candidate.median, change.candidate.n) == (4.0, 2, 5.0, 6)
    assert change.unreliable == ["candidate"]
    spoil(before, range(6))
    judged, change = unjudged(before, now, paired=paired)
    assert (change.baseline.median, change.baseline.n, change.unreliable) == (9.0, 6, ["baseline", "candidate"])
    assert "Medians: 9 before, 5 now" in words(judged)["Cannot tell"][0]


def test_a_disturbed_run_among_enough_others_is_left_out(tmp_path: Path) -> None:
    before, now = sides(tmp_path, {"noise": (*comparisons.NOISE, 9.0)}, {"seconds": {"pytorch": 4.8}})
    spoil(before, [5], 36.0)
    judged = judge(before, now)
    assert verdicts(judged) == ["regression"] and judged.exit_code == 3
    change = change_of(judged, "epoch_seconds")
    assert change.change.value == pytest.approx(1.2) and change.baseline.n == 5


def test_a_metric_that_was_asked_for_and_not_measured_is_no_pass(tmp_path: Path) -> None:
    before, now = sides(tmp_path)
    assert judge(before, now).exit_code == 0
    judged = judge(before, now, metrics=("epoch_seconds", "device_peak_memory_mib"))
    assert judged.exit_code == 5
    assert [fact.what for fact in judged.facts if fact.verdict == "cannot tell"] == ["device memory MiB"]
    assert judged_of(tmp_path / "zero", now={"changed": {"peak_memory_mib": 0.0}}).exit_code == 5
    files = [comparisons.benchmark_file(tmp_path / f"{name}.json", {"test_step": list(comparisons.NOISE)}) for name in "ab"]
    check_ended(convtwins("regress", *files, "--metric", "epoch_seconds"), received="--metric epoch_seconds")


def test_two_folders_have_one_interval_and_one_p_in_regress_and_report(tmp_path: Path) -> None:
    """Repeats may be added to both folders. A test with one look would find differences too often."""
    noise = (1.0, 1.06, 0.94, 1.03, 0.97, 1.01)
    judged = judged_of(tmp_path, {"noise": noise[:5]}, {"noise": noise})
    change = change_of(judged, "epoch_seconds")
    shown = statistics.unpaired_ratio(noise, noise[:5])
    assert shown is not None and change.change.p == pytest.approx(shown.p)
    assert (change.change.low, change.change.high) == pytest.approx((shown.low, shown.high))
    looked = statistics.mean_difference_of_samples([math.log(each) for each in noise[:5]], [math.log(each) for each in noise])
    assert change.change.p is not None and change.change.p > looked.p
    assert not judged.one_look and "You may add repeats and look again: the risk stays" in json.dumps(words(judged))


def test_one_low_p_among_many_figures_is_no_regression(tmp_path: Path) -> None:
    noise = (1.0, 1.06, 0.94, 1.03, 0.97)
    folders = sides(tmp_path, now={"seconds": {**BOTH, "pytorch": 4.0 * 1.085}}, seconds=BOTH, noise=noise)
    alone = judge(*folders, metrics=("epoch_seconds", "wall_seconds"), only="pytorch*")
    assert verdicts(alone) == ["no change shown"] and alone.tested == 2
    change = change_of(alone, "epoch_seconds")
    assert change.change.p is not None and change.change.p < 0.05 < (change.adjusted_p or 0.0)


@pytest.mark.parametrize(
    ("repeats", "verdict", "code"), [(5, "regression", 3), (4, "too few to tell", 5), (1, "too few to tell", 5)]
)
def test_too_few_repeats_are_an_error_not_a_pass(tmp_path: Path, repeats: int, verdict: str, code: int) -> None:
    slower = {"seconds": {"pytorch": 8.0, "tensorflow": 10.0}, "noise": comparisons.NOISE[:repeats]}
    judged = judged_of(tmp_path, now=slower, seconds=BOTH)
    assert set(verdicts(judged)) == {verdict} and judged.exit_code == code
    assert judged.changes[0].change.value == pytest.approx(2.0, rel=0.01)
    assert ("too few samples" in regress_report.headline(judged)) == (code == 5)


@pytest.mark.parametrize(
    ("before", "now", "verdict", "code"),
    [
        ("proved", "proved", "no change shown", 0),
        ("proved", "not proved", "regression", 3),
        ("proved", "not claimed", "regression", 3),
        ("proved", None, "cannot tell", 5),
        ("not proved", "proved", "better", 0),
        ("not proved", "not proved", "no change shown", 0),
        (None, "not proved", "cannot tell", 5),
        ("not claimed", "not proved", "cannot tell", 5),
        (None, "proved", "no change shown", 0),
    ],
)
def test_a_proof_that_is_lost_is_a_regression_at_any_speed(
    tmp_path: Path, before: str | None, now: str | None, verdict: str, code: int
) -> None:
    judged = judged_of(tmp_path, {"verdict": before}, {"seconds": {"pytorch": 2.0}, "verdict": now})
    assert [fact.verdict for fact in judged.facts if fact.what.startswith("same training")] == [verdict]
    assert judged.exit_code == code


@pytest.mark.parametrize(
    ("recorded", "before", "verdict", "code"),
    [({}, "agrees", "regression", 3), ({"first_step_loss": None}, "not recorded on both sides", "cannot tell", 5)],
)
def test_first_losses_that_no_longer_agree_are_a_regression_and_no_pass_if_they_were_not_recorded_before(
    tmp_path: Path, recorded: Fields, before: str, verdict: str, code: int
) -> None:
    judged = judged_of(tmp_path, {"changed": recorded}, {"first_losses": {"tensorflow": 2.4}}, seconds=BOTH)
    found = {(fact.baseline, fact.candidate, fact.verdict) for fact in judged.facts if "first loss" in fact.what}
    assert found == {(before, "does not agree", verdict)} and judged.exit_code == code


def test_a_copy_of_the_baseline_is_no_candidate(tmp_path: Path) -> None:
    before, _ = sides(tmp_path, seconds=BOTH, changed={"started_at": "2026-01-01T00:00:00+00:00"})
    shutil.copytree(before, tmp_path / "copy")
    with refused(errors.FolderError, field=str(tmp_path / "copy"), names=[before]):
        judge(before, tmp_path / "copy")


def test_runs_that_began_in_the_same_second_are_not_the_same_ones(tmp_path: Path) -> None:
    began = {"started_at": "2026-01-01T00:00:00+00:00"}  # runs that take turns start together
    assert verdicts(judged_of(tmp_path, now={"seconds": {"pytorch": 4.4}}, changed=began)) == ["regression"]


@pytest.mark.parametrize(
    ("now", "cautions"),
    [
        ({}, [UNPROVED]),
        ({"verdict": "proved"}, ["The head's proof: proved: Losses agree."]),
        ({"verdict": "not claimed"}, ["The head's proof: not claimed: Losses agree."]),
        (
            {"versions": {"pytorch": {"torch": "2.5"}, "tensorflow": {"tensorflow": "2.1"}}, "machine": {"dirty": True}},
            ["torch was 2.0 and is 2.5.", "The head was measured with uncommitted changes.", UNPROVED],
        ),
        (
            {"changed": {"weights_hash": "others"}},
            [
                *(f"{name} serial, 2 cores: other initial weights than before, so another training." for name in BOTH),
                UNPROVED,
            ],
        ),
    ],
    ids=["unproved", "proved", "not claimed", "other versions", "other weights"],
)
def test_what_else_differs_is_a_caution(tmp_path: Path, now: Fields, cautions: list[str]) -> None:
    judged = judged_of(tmp_path, now=now, seconds=BOTH)
    assert (judged.cautions, judged.exit_code) == (cautions, 0)


def test_the_headline_counts_all_that_cannot_be_told_and_the_report_says_how_many_pairs_would_tell(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    noise = (1.0, 1.06, 0.95, 1.04, 0.98, 1.02)
    before, now = sides(tmp_path, {"noise": noise}, {"noise": noise[::-1]}, seconds=BOTH)
    spoil(now, range(3))
    judged = judged_in_pairs(before, now, metrics=("epoch_seconds",))
    told = words(judged, only="not ruled out")
    assert told == snapshot
    needed = re.search(r"about (\d+) pairs .* --repeats (\d+) in a new folder", json.dumps(told))
    assert needed is not None and needed[1] == needed[2] and 20 < int(needed[1]) < 60  # the ratios spread by 7 %


def test_a_measurement_of_two_sides_is_named_by_a_side(tmp_path: Path) -> None:
    base, head = (comparisons.results_folder(tmp_path / "both" / side, {"pytorch": 4.0}) for side in ("base", "head"))
    trees.write(tmp_path / "both", {"interleaved.json": {}})
    check_ended(convtwins("regress", base, tmp_path / "both"), names=[base, head])


def test_benchmark_files_that_other_work_may_have_disturbed_are_told(tmp_path: Path) -> None:
    before = benchmarks(tmp_path / "before", 0.01, noise=(1.0, 1.0, 1.0, 1.0, 3.0))
    *rest, last = judge(before, benchmarks(tmp_path / "now", 0.01)).cautions
    differ = [each for each in rest if "files disagree" in each]
    assert len(differ) == 2 and all("base's" in each and "3.0 times another" in each for each in differ)
    assert "benchmark files" in last


SEEDS = (0, 1, 2, 3, 4)
SPREAD = (0.0, 0.004, -0.004, 0.002, -0.002)


@pytest.mark.parametrize(
    ("lost", "verdict", "code"),
    [(0.0, "no change shown", 0), (0.005, "worse, within the threshold", 0), (0.05, "regression", 3)],
)
def test_accuracy_is_tested_over_seeds(tmp_path: Path, lost: float, verdict: str, code: int) -> None:
    """Paired by seed: that some seeds are better than others, by much more than is lost, is in both."""
    of_seed = [0.7, 0.9, 0.75, 0.8, 0.85]
    now = [accuracy - lost + chance / 2 for accuracy, chance in zip(of_seed, SPREAD, strict=True)]
    judged = judged_of(tmp_path, {"accuracy": of_seed}, {"accuracy": now}, seeds=SEEDS)
    assert verdicts(judged, "test_accuracy") == [verdict] and judged.exit_code == code
    change = change_of(judged, "test_accuracy")
    assert change.change.value == pytest.approx(-lost) and (change.method, change.change.n) == ("paired by seed", 5)
    assert "paired by seed" in json.dumps(words(judged)["How it was judged"])


@pytest.mark.parametrize(
    ("accuracy", "verdict", "code"), [(0.695, "not tested", 0), (0.6, "cannot tell", 5), (0.8, "not tested", 0)]
)
def test_repeats_of_one_seed_are_one_training_and_no_test_of_accuracy(
    tmp_path: Path, accuracy: float, verdict: str, code: int
) -> None:
    judged = judged_of(tmp_path, now={"accuracy": accuracy})
    assert verdicts(judged, "test_accuracy") == [] and judged.exit_code == code
    (fact,) = judged.facts
    assert (fact.what, fact.verdict) == ("test accuracy", verdict)
    assert fact.candidate == f"{accuracy:.4f}, of 1 seed of the 5 that a verdict needs"
    assert "--seeds 0,1,2,3,4" in json.dumps(words(judged)["How it was judged"])


def test_equal_predictions_are_no_change_and_nothing_is_left_unsure(tmp_path: Path) -> None:
    judged = judged_of(tmp_path, changed={"predictions_hash": "p"})
    (fact,) = judged.facts
    assert (fact.candidate, fact.verdict) == ("0.7000, by equal predictions", "no change shown")
    assert words(judged, only="not ruled out").keys() == {"headline"}


def test_accuracies_of_other_seeds_do_not_compare(tmp_path: Path) -> None:
    other = judged_of(tmp_path / "other", {"seeds": SEEDS}, {"seeds": (5, 6, 7, 8, 9)})
    assert [(fact.candidate, fact.verdict) for fact in other.facts] == [("of seeds 5, 6, 7, 8, 9", "cannot tell")]
    untested = judged_of(tmp_path, now={"changed": {"test": None}}, seeds=SEEDS)
    assert ("of seeds 0, 1, 2, 3, 4", "not measured") in [(fact.baseline, fact.candidate) for fact in untested.facts]


def test_a_run_that_fails_now_is_a_regression_and_one_that_is_missing_cannot_be_told(tmp_path: Path) -> None:
    failed = judged_of(tmp_path, now={"changed": {"status": "failed", "reason": "exit code 1"}}, seconds=BOTH)
    assert failed.exit_code == 3
    assert {(fact.what, fact.candidate) for fact in failed.facts if fact.verdict == "regression"} == {
        ("ended", "failed: exit code 1 (5 of 5 repeats)")
    }
    both, one = sides(tmp_path, {"seconds": BOTH})
    fewer, more = judge(both, one), judge(one, both)
    assert fewer.missing == ["tensorflow serial, 2 cores"] and fewer.exit_code == 5
    assert more.added == ["tensorflow serial, 2 cores"] and more.exit_code == 0


@pytest.mark.parametrize(
    ("machine", "names"),
    [
        ({"processor": "Another CPU"}, ["processor was Some CPU and is Another CPU"]),
        ({"logical_cores": 4}, ["logical cores was 2 and is 4"]),
        ({"host": "b", "gpus": ["H100"]}, ["host was a and is b"]),
        ({"gpus": ["H200"]}, ["gpus was ['H100'] and is ['H200']"]),
        ({"processor": ""}, ["processor"]),
        ({"logical_cores": None}, ["logical cores"]),
    ],
)
def test_another_machine_is_an_error(tmp_path: Path, machine: dict[str, Any], names: list[str]) -> None:
    before = {"machine": {"host": "a", "gpus": ["H100"]}}
    folders = sides(tmp_path, before, {"machine": {"host": "a"} | machine}, seconds=BOTH)
    done = convtwins("regress", *folders)
    check_ended(done, names=names)
    assert done.stdout == ""


def with_spec(**fields: Any) -> dict[str, Any]:
    row = comparisons.row("pytorch")
    return {"rows": [comparisons.with_fields(row, spec=row.spec.with_fields(**fields))]}


def fewer_images(run: RunResult) -> dict[str, Any]:
    """The epochs of a run, of one image less."""
    epochs = [
        comparisons.with_fields(
            each, epoch_images=639, images=639, train=comparisons.score(0.5, 1.0, 639), timed_images=each.timed_images - 1
        )
        for each in run.epochs
    ]
    return {"epochs": epochs, "phases": None}


@pytest.mark.parametrize(
    ("now", "names"),
    [
        (with_spec(global_batch_size=128), ["global_batch_size was 64 and is 128"]),
        (with_spec(data={"limit": 100}) | {"data_hash": "of 100"}, ["data.limit was None and is 100"]),
        ({"data_hash": "other"}, ["digits and digits"]),
        ({"changed": {"data_hash": "decoded otherwise"}}, ["data before, decoded othe now"]),
        ({"changed": fewer_images(comparisons.good(comparisons.row("pytorch"), 4.0))}, ["640 before, 639 now"]),
        ({"changed": {"device": "cuda"}}, ["cpu before, cuda now"]),
    ],
    ids=["batch", "limit", "data", "decoded", "images", "device"],
)
def test_other_work_or_data_or_another_device_is_an_error(tmp_path: Path, now: Fields, names: list[str]) -> None:
    check_ended(convtwins("regress", *sides(tmp_path, now=now)), names=[*names, tmp_path / "now"])


def test_where_all_results_of_a_side_are_set_aside_nothing_is_told(tmp_path: Path) -> None:
    before, now = sides(tmp_path)
    for path in now.glob(f"runs/*/{results.RESULT_FILE}"):
        run = results.load(path)
        results.save(comparisons.with_fields(run, epochs=[run.epochs[0]] * 2), path.parent)
    judged = judge(before, now)
    assert judged.exit_code == 5 and not judged.changes


def test_another_limit_of_a_hang_is_the_same_work(tmp_path: Path) -> None:
    assert judged_of(tmp_path, now=with_spec(hang_seconds=300.0)).exit_code == 0


def test_the_repository_of_ones_own_model_is_named_beside_the_commit(tmp_path: Path) -> None:
    folders = sides(tmp_path, seconds=BOTH, machine={"repository": "/of/a/team", "suite_commit": "b" * 40})
    done = convtwins("regress", *folders, "--full")
    assert done.stdout.count("aaaaaaaa of /of/a/team,") == 2 and done.stdout.count("the suite at bbbbbbbb") == 1
    assert judge(*folders).baseline.repository == "/of/a/team"


def test_results_that_are_left_out_are_named(tmp_path: Path) -> None:
    before, now = sides(tmp_path, seconds=BOTH)
    torn = next(before.glob("runs/*/result.json"))
    torn.write_text(torn.read_text()[:-100])
    (caution,) = (each for each in judge(before, now).cautions if each.startswith("The base: "))
    assert torn.relative_to(before).as_posix() in caution


def test_a_repeat_that_one_side_lacks_is_no_change_of_its_seeds_hashes() -> None:
    assert not facts._hashes_differ({1: "a", 2: "b"}, {1: "a"}) and not facts._hashes_differ({}, {1: "a"})
    assert facts._hashes_differ({1: "a", 2: "b"}, {1: "a", 2: "a"}) and facts._hashes_differ({1: "a"}, {2: "b"})


def test_a_torn_file_among_benchmark_files_is_named(tmp_path: Path) -> None:
    whole = json.dumps({"machine_info": {"node": "here"}, "benchmarks": [], "datetime": "2026-01-01T00:00:00"})
    trees.write(tmp_path, {"whole.json": whole, "torn.json": whole[:-20]})
    with refused(errors.FolderError, field="torn.json"):
        measurements.read(tmp_path)


def test_a_baseline_or_candidate_that_does_not_compare_is_an_error(tmp_path: Path) -> None:
    now, later = (comparisons.results_folder(tmp_path / name / name, BOTH) for name in ("now", "later"))
    for candidate, names in (
        ((), [now, now.parent]),  # there is nothing newer beside it
        ((now,), [now]),
        ((later, "--only", "jax*"), [now, later, "jax*"]),
    ):
        done = convtwins("regress", now, *candidate)
        check_ended(done, names=names)
        assert done.stdout == ""


def test_without_a_candidate_the_newest_later_one_that_measured_the_same_is_taken(tmp_path: Path) -> None:
    slower = {**BOTH, "pytorch": 8.0}
    for name, day, seconds in (
        ("b", 2, BOTH),
        ("earlier", 1, BOTH),
        ("a", 4, slower),
        ("c", 3, BOTH),
        ("other", 5, {"jax": 8.0}),
    ):
        comparisons.results_folder(tmp_path / name, seconds, created_at=f"2026-01-0{day}T00:00:00+00:00")
    found = convtwins_json("regress", tmp_path / "b", exit_code=3)
    assert found["candidate"]["source"] == str(tmp_path / "a") and found["exit_code"] == 3


def test_a_newer_measurement_that_is_torn_is_named_and_no_older_one_is_taken_for_it(tmp_path: Path) -> None:
    before, _, newest = (
        comparisons.results_folder(tmp_path / name, BOTH, created_at=f"2026-01-0{day}T00:00:00+00:00")
        for name, day in (("b", 2), ("c", 3), ("d", 4))
    )
    torn = newest / store.PLAN_FILE
    torn.write_bytes(torn.read_bytes()[:-20])
    check_ended(convtwins("regress", before), names=[torn, "head"])


def benchmarks(folder: Path, seconds: float, noise: tuple[float, ...] = comparisons.NOISE, **rest: Any) -> Path:
    """A folder of benchmark files, one a process: each has its own layout in memory, which all of its rounds meet."""
    for number, factor in enumerate(noise):
        rounds = [seconds * factor * (1.0 + 0.001 * index) for index in range(30)]
        comparisons.benchmark_file(
            folder / "Linux" / f"000{number}_x.json", {"test_step": rounds, "test_input": rounds}, **rest
        )
    return folder


def test_rounds_of_one_process_are_one_sample(tmp_path: Path) -> None:
    """Thirty rounds that hardly differ, of two processes that do: by rounds alone, a sure regression of equal code."""
    first = comparisons.benchmark_file(tmp_path / "0001_a.json", {"test_step": [0.0100 + 1e-5 * each for each in range(30)]})
    rounds = {"test_step": [0.0106 + 1e-5 * each for each in range(30)]}
    second = comparisons.benchmark_file(tmp_path / "0002_b.json", rounds, measured_at="2026-01-02T00:00:00+00:00")
    judged = judge(first, None)
    assert judged.exit_code == 5 and judged.candidate.source == str(second)
    assert verdicts(judged, "seconds") == ["too few to tell"] and judged.changes[0].change.n == 1
    assert judged.changes[0].change.value == pytest.approx(1.059, abs=0.001)


@pytest.mark.parametrize(
    ("factor", "noise", "verdict", "code"),
    [
        (1.0, comparisons.NOISE, "no change shown", 0),
        (1.2, comparisons.NOISE, "regression", 3),
        (1.0, NOISY, "no change shown", 5),
        (1.2, NOISY, "no change shown", 5),
    ],
)
def test_folders_of_benchmark_files_are_compared_file_by_file(
    tmp_path: Path, factor: float, noise: tuple[float, ...], verdict: str, code: int
) -> None:
    before = benchmarks(tmp_path / "before", 0.01, noise=noise)
    now = benchmarks(tmp_path / "now", 0.01 * factor, noise=noise[::-1])
    judged = judge(before, now)
    assert convtwins("regress", before, now).exit_code == code
    assert verdicts(judged, "seconds") == [verdict] * 2 and judged.exit_code == code
    assert {change.change.n for change in judged.changes} == {5}
    fewer = benchmarks(tmp_path / "fewer", 0.02, noise=(1.0,) * 4)
    assert judge(before, fewer).exit_code == 5
    benchmarks(fewer, 0.01, noise=(1.0,), commit="b" * 40)
    with refused(errors.FolderError, names=[fewer, "more than one commit"]):
        judge(before, fewer)


def test_a_benchmark_file_of_another_project_or_without_a_machine_or_of_another_kind(tmp_path: Path) -> None:
    before = benchmarks(tmp_path / "a", 0.01)
    bare = benchmarks(tmp_path / "b", 0.01, keep=False)
    foreign = benchmarks(tmp_path / "c", 0.01, machine={"cpu": {"brand_raw": "Some CPU", "count": 2}})
    assert judge(before, bare).exit_code == 0  # the statistics hold all that counts
    assert judge(before, foreign).exit_code == 0  # of any project, by what pytest-benchmark itself says of the machine
    silent = benchmarks(tmp_path / "d", 0.01, machine={})
    check_ended(convtwins("regress", before, silent), names=[silent, "processor"])
    other = comparisons.results_folder(tmp_path / "folder", BOTH)
    check_ended(convtwins("regress", before, other), names=["two of a kind"])


def test_two_sides_measured_in_turn_are_judged_by_pairs(tmp_path: Path) -> None:
    drift = (1.0, 1.2, 1.4, 1.6, 1.8)  # of the machine, which pairs leave out
    noise = [each * jitter for each, jitter in zip(drift, comparisons.NOISE, strict=True)]
    base = comparisons.results_folder(tmp_path / "base", {"pytorch": 4.0}, noise=drift)
    head = comparisons.results_folder(tmp_path / "head", {"pytorch": 4.4}, noise=noise)
    assert judge(base, head).exit_code == 5
    trees.write(tmp_path, {"interleaved.json": {}})
    for judged in (judge(base, head), judge(tmp_path, None)):
        assert judged.paired and verdicts(judged) == ["regression"] and judged.exit_code == 3
    assert not judge(head, base).paired


def test_the_report_says_the_verdict_first_on_the_terminal_and_in_markdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = sides(Path("results"), now={"seconds": {**BOTH, "pytorch": 4.8}}, seconds=BOTH, verdict="proved")
    summary = trees.write(tmp_path, {"summary.md": "# Before\n"}) / "summary.md"
    assert "REGRESSION in 1 of 12 figures: exit code 3" in convtwins("regress", *folders).stdout.splitlines()[2]
    done = convtwins("regress", *folders, "--markdown", summary, "--full")
    assert done.exit_code == 3
    lines = done.stdout.splitlines()
    assert lines[0] == "REGRESSION in 1 of 12 figures."
    assert any(line.split()[:5] == ["pytorch", "serial,", "2", "cores", "seconds"] and "regression" in line for line in lines)
    assert summary.read_text() == snapshot
    assert measurements.read(folders[1]).commit_name == "aaaaaaaa"


def test_of_runs_that_went_on_from_a_checkpoint_no_phase_and_no_memory_is_judged(tmp_path: Path) -> None:
    whole, resumed = (
        measurements.read(folder).subjects
        for folder in sides(tmp_path, {"changed": {"resumes": 0}}, {"changed": {"resumes": 1}})
    )
    ((before, now),) = zip(whole.values(), resumed.values(), strict=True)
    lost = {"import", "build", "first_step", "evaluation", "wall"}
    assert before.samples.keys() - now.samples.keys() == {*(f"{name}_seconds" for name in lost), "peak_memory_mib"}
    assert {"epoch_seconds", "test_accuracy"} <= now.samples.keys()


def test_where_there_is_no_verdict_the_markdown_says_why(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    assert convtwins("regress", tmp_path / "nowhere", "--markdown", summary).exit_code == 2
    assert summary.read_text().startswith("# No verdict\n\nThere is no base at ")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--threshold", "much"], "--threshold must be a percentage or a fraction"),
        (["--metric", "speed"], "--metric names something unknown"),
        (["--interleaved", "HEAD"], "--interleaved measures both sides itself"),
        (["--repeats", 6], "--repeats goes with --interleaved REV or --environments A B"),
    ],
)
def test_an_option_that_is_refused_is_a_reason_in_the_markdown_too(tmp_path: Path, words: list[object], reason: str) -> None:
    summary = tmp_path / "summary.md"
    done = convtwins("regress", tmp_path, *words, "--markdown", summary)
    assert done.exit_code == 2 and done.stderr.startswith(reason)
    assert summary.read_text().startswith(f"# No verdict\n\n{reason}")


def test_a_row_that_was_not_run_before_is_not_better_for_being_run() -> None:
    assert [facts.status_verdict(before, "ok") for before in ("not run", "failed")] == ["cannot tell", "better"]


def test_a_verdict_that_lacks_one_thing_alone_names_it(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Whatever it is that cannot be told, the headline says it, with nothing else beside it."""
    rest = {"test_load": [0.01] * 5}
    for name, more in (("before", {"test_step": [0.02] * 5}), ("now", {"test_stride": [0.02] * 5})):
        for number, factor in enumerate(QUIET):
            rounds = {each: [value * factor for value in values] for each, values in (rest | more).items()}
            comparisons.benchmark_file(tmp_path / name / f"000{number}_x.json", rounds)
    failed = {"changed": {"status": "failed"}}
    judgements = {
        "a benchmark is gone": judge(tmp_path / "before", tmp_path / "now"),
        "the proof is gone": judged_of(tmp_path / "unproved", {"verdict": "proved"}),
        "nothing was measured": judged_of(tmp_path / "failed", failed, failed),
    }
    assert {judged.exit_code for judged in judgements.values()} == {5}
    assert {name: regress_report.headline(judged) for name, judged in judgements.items()} == snapshot
    gone = convtwins("regress", tmp_path / "before", tmp_path / "now")
    assert "1 benchmark of the base was not measured again" in gone.stdout
    nothing = convtwins("regress", *(tmp_path / "failed" / name for name in ("before", "now")))
    assert "The figure cannot be judged" in nothing.stdout and "Nothing was measured on both sides" in nothing.stdout


def test_a_time_of_zero_and_one_that_stands_twice_in_a_file_are_told(tmp_path: Path) -> None:
    """A coarse clock says 0. pytest --keep-duplicates writes one name twice."""

    def measured(name: str, ticks: Iterable[float], *, again: float = 1.0) -> Path:
        for number, (factor, tick) in enumerate(zip(QUIET, ticks, strict=True)):
            rounds = {"test_step": [0.01 * factor] * 5, "test_tick": [tick] * 5, "test_twin": [0.01 * again * factor] * 5}
            file = comparisons.benchmark_file(tmp_path / name / f"000{number}_x.json", rounds)
            file.write_text(file.read_text().replace("test_twin", "test_step"))
        return tmp_path / name

    before, now = measured("before", [0.0] * 5), measured("now", [0.001] * 5)
    judged = judge(before, now)
    tick = [fact for fact in judged.facts if fact.name == "test_tick"]
    assert judged.exit_code == 5 and [(fact.what, fact.verdict) for fact in tick] == [("seconds per call", "cannot tell")]
    assert "not above 0" in tick[0].baseline and tick[0].candidate == "measured"
    some = judge(measured("some", [0.0, *[0.001] * 4]), now, only="*tick")
    assert some.exit_code == 5 and verdicts(some, "seconds") == ["too few to tell"]
    assert any("test_tick" in each and "1 of 5 figures" in each and "zero or less" in each for each in some.cautions)
    slower = judge(now, measured("slower", [0.001] * 5, again=1.5))
    assert {change.name: change.verdict for change in slower.changes} == {
        "test_step": "no change shown",
        "test_tick": "no change shown",
        "test_step (2)": "regression",
    }


FIRST, SECOND, THIRD = "1" * 40, "2" * 40, "3" * 40
TURNS = "ABBAABBAAB"


def autosaved(
    folder: Path,
    turns: str,
    *,
    drift: float = 0.2,
    slowdown: float = 1.1,
    apart: timedelta = timedelta(minutes=1),
    **rest: Any,
) -> Path:
    """One folder as --benchmark-autosave fills it: a file a letter (A, B and C are commits), on a machine that slows down."""
    commits, place = {"A": FIRST, "B": SECOND, "C": THIRD}, len(list(folder.rglob("*.json")))
    for letter in turns:
        place += 1
        noise = (1 + drift * ((place - 1) // 2)) * comparisons.NOISE[place % 5] ** 0.25
        seconds = 0.01 * noise * (slowdown if letter == "B" else 1.0)
        file = folder / "Linux-CPython-3.11-64bit" / f"{place:04}_{commits[letter]}.json"
        at = (datetime(2026, 1, 1, tzinfo=UTC) + place * apart).isoformat()
        comparisons.benchmark_file(file, {"test_step": [seconds] * 5}, measured_at=at, commit=commits[letter], **rest)
        values = json.loads(file.read_text())
        values["commit_info"]["time"] = f"2025-01-0{'ABC'.index(letter) + 1}T00:00:00+00:00"
        file.write_text(json.dumps(values))
    return folder


def test_the_two_commits_of_one_folder_are_compared_in_pairs_if_they_were_measured_in_turn(tmp_path: Path) -> None:
    storage = autosaved(tmp_path / ".benchmarks", TURNS)
    judged = judge(storage, None)
    assert judged.paired and verdicts(judged, "seconds") == ["regression"] and judged.exit_code == 3
    assert [(side.source, side.commit) for side in (judged.baseline, judged.candidate)] == [
        (f"{storage}@{commit[:8]}", commit[:8]) for commit in (FIRST, SECOND)
    ]
    logs = {
        letter: [math.log(value) for value in seconds_of(storage, commit)] for letter, commit in (("A", FIRST), ("B", SECOND))
    }
    estimate = statistics.mean_difference([b - a for a, b in zip(logs["A"], logs["B"], strict=True)])
    assert judged.changes[0].change.value == pytest.approx(math.exp(estimate.mean))
    # More files may be saved, and all of them be judged again. A test with one look would find differences too often.
    p = judged.changes[0].change.p
    assert not judged.one_look and p is not None and p == pytest.approx(statistics.corrected_p(estimate, 5)) and p > estimate.p
    assert "By their times" in words(judged)["How it was judged"][0]
    apart = judge(autosaved(tmp_path / "apart", "AAAAABBBBB", drift=0.0), None)
    assert not apart.paired and apart.changes[0].method == "Welch" and apart.exit_code == 3
    how = words(apart)["How it was judged"][0]
    assert "(A, B, B, A, ...)" in how and "--interleaved" not in how
    odd = judge(autosaved(storage, "B"), None)
    assert odd.paired and odd.changes[0].change.n == 5
    assert any("test_step: 1 figure without a partner on the other side" in each for each in odd.cautions)


def test_files_that_were_saved_at_other_hours_are_no_pairs(tmp_path: Path) -> None:
    """The one is measured at night, the other at noon. The load of the day would pass for the change."""
    judged = judge(autosaved(tmp_path, "ABABABABAB", apart=timedelta(hours=12)), None)
    assert not judged.paired and {change.method for change in judged.changes} == {"Welch"}
    assert judge(autosaved(tmp_path / "evening", "ABABABABAB"), None).paired


@pytest.mark.parametrize(
    ("digits", "now", "verdict", "code"),
    [
        (1, 1.551, "no change shown", 5),  # 1.5 and 1.6: equal up to what is written
        (1, 1.545, "no change shown", 5),  # 1.5 each time: nothing to test, and a growth of 5 % may hide in it
        (3, 1.549, "no change shown", 0),
        (1, 1.95, "regression", 3),
        (3, 1.551, "worse, within the threshold", 0),
        (3, 1.651, "regression", 3),
    ],
)
def test_a_change_that_digits_left_out_can_make_is_not_shown(
    tmp_path: Path, digits: int, now: float, verdict: str, code: int
) -> None:
    storage = autosaved(tmp_path, TURNS)
    for commit, seconds in ((FIRST, 1.549), (SECOND, now)):
        for file in storage.rglob(f"*{commit}.json"):
            values = json.loads(file.read_text())
            (entry,) = values["benchmarks"]
            entry["stats"] |= dict.fromkeys(("median", "q1", "q3"), round(seconds, digits))
            entry["extra_info"] = {"convtwins": {"quantity": "figure", "cores_taken": 0.0}}
            file.write_text(json.dumps(values))
    judged = judge(storage, None)
    assert verdicts(judged, "figure") == [verdict] and judged.exit_code == code
    assert [judged.lacks_digits(change) for change in judged.changes] == [digits == 1]


def test_a_figure_that_cannot_be_tested_yet_is_in_the_family_already(tmp_path: Path) -> None:
    """Else each would be tested against fewer others than there are in the end."""
    seconds = {"pytorch": 4.0 * 1.05, "tensorflow": 5.0 * 1.05}
    before, now = sides(tmp_path, now={"seconds": seconds}, seconds=BOTH)
    whole = judged_in_pairs(before, now, metrics=("epoch_seconds",))
    spoil(now, [0])
    part = judged_in_pairs(before, now, metrics=("epoch_seconds",))
    first, second = (next(each for each in judged.changes if each.id.startswith("tensorflow")) for judged in (whole, part))
    assert (whole.tested, part.tested) == (2, 1) and second.adjusted_p == pytest.approx(2 * (second.change.p or 0.0))
    assert first.change == second.change


def seconds_of(storage: Path, commit: str) -> list[float]:
    files = [json.loads(path.read_text()) for path in sorted(storage.rglob("*.json"))]
    return [file["benchmarks"][0]["stats"]["median"] for file in files if file["commit_info"]["id"] == commit]


def test_folders_of_their_own_whose_files_were_made_in_turn_are_pairs_too(tmp_path: Path) -> None:
    autosaved(tmp_path / "both", TURNS)
    for name, commit in (("before", FIRST), ("now", SECOND)):
        (tmp_path / name).mkdir()
        for file in tmp_path.glob(f"both/*/*{commit}.json"):
            shutil.copy(file, tmp_path / name)
    judged = judge(tmp_path / "before", tmp_path / "now")
    assert judged.paired and judged.changes == judge(tmp_path / "both", None).changes


def test_a_commit_of_a_folder_is_named_by_its_digits_or_as_its_repository_knows_it(tmp_path: Path) -> None:
    team = initialised(tmp_path / "team")
    git(team, "commit", "-q", "--allow-empty", "-m", "now")
    storage = autosaved(team / ".benchmarks", TURNS + "CCCCC")
    for file in storage.rglob(f"*{SECOND}.json"):
        file.write_text(file.read_text().replace(SECOND, git(team, "rev-parse", "HEAD")))
    judged = judge(Path(f"{storage}@{FIRST[:7]}"), Path(f"{storage}@main"))
    assert judged.paired and judged.exit_code == 3  # the files of the third commit do not come between
    assert judge(Path(f"{storage}@main"), Path(f"{storage}@{FIRST}")).changes[0].verdict == "better"
    for file in storage.rglob(f"*{THIRD}.json"):
        file.unlink()
    assert judge(Path(f"{storage}@main"), None).candidate.commit == FIRST[:8]  # the other one


def test_commits_that_leave_open_what_is_compared_are_refused_with_all_that_are_there(tmp_path: Path) -> None:
    def refuses(*sides: object, **parts: Any) -> None:
        done = convtwins("regress", *sides)
        check_ended(done, **parts)
        assert done.stdout == ""

    storage = autosaved(tmp_path / ".benchmarks", "AABBC")
    there = "11111111 (2 files), 22222222 (2 files) and 33333333 (1 file"
    refuses(storage, received=there, names=[storage, "3 commits"])
    refuses(f"{storage}@1111", received=there, names=["3 commits"])
    refuses(storage, f"{storage}@1111", received=there, names=["more than one commit"])
    refuses(f"{storage}@main", f"{storage}@1111", received=there, names=[storage, "main", "revision"])
    refuses(f"{storage}@1111", f"{storage}@1111", names=[f"{storage}@11111111"])
    refuses(tmp_path / "none@main", storage, names=[tmp_path / "none@main"])
    (empty := tmp_path / "empty").mkdir()
    for named in (empty, f"{empty}@1111"):
        refuses(named, storage, names=[empty, "pytest --benchmark-autosave"])
    changed = autosaved(autosaved(tmp_path / "changed", "AAAAA"), "B", dirty=True)
    refuses(changed, names=["clean commit 22222222+changes"])
    autosaved(changed, "BBBBB", drift=0.0)
    judged = judge(Path(f"{changed}@1111"), Path(f"{changed}@2222"))
    assert any("1 file of 22222222 with uncommitted changes" in each for each in judged.cautions)
    assert judged.changes[0].candidate.n == 5
    elsewhere = {"convtwins": {"processor": "Another CPU", "logical_cores": 2}}
    refuses(autosaved(autosaved(tmp_path / "mixed", "AB"), "A", machine=elsewhere), names=["more than one machine"])
    apart = autosaved(autosaved(tmp_path / "machines", "AA"), "BB", machine=elsewhere)
    refuses(apart, names=["processor was Some CPU"])
