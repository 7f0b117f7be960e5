"""Regressions in stored measurements: what counts as one, and what is never taken for the lack of one."""

import json
import math
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from common.artifacts import results
from common.artifacts.schema import ProfiledOperation, TopOperations
from compare.core import errors, statistics
from compare.execution import store
from compare.judgement import measurements
from compare.regression import facts, judging, regress, regress_report
from compare.regression.records import Change, Criteria, Judgement
from tests.compare.regression.repository import git
from tests.support import comparisons
from tests.support.command_line import convtwins

FEWER = [
    comparisons.epoch(number, 4.0).model_copy(
        update={
            "epoch_images": 639,
            "images": 639,
            "train": comparisons.score(0.5, 1.0, 639),
            "timed_images": 639 - 64 * (number == 1),
        }
    )
    for number in (1, 2)
]
"""Epochs of one image less."""
BOTH = {"pytorch": 4.0, "tensorflow": 5.0}
NOISY = (1.0, 1.3, 0.8, 1.1, 0.9)
"""Of five runs whose mean may as well be a third longer."""
QUIET = tuple(1.0 + (factor - 1.0) / 4 for factor in comparisons.NOISE)


def judge(before: Path, now: Path | None, **criteria: Any) -> Judgement:
    return regress.judge_stored(before, now, Criteria(**criteria))


def compare(*arguments: str | Path) -> Any:
    return convtwins("regress", *arguments, COLUMNS="200")


def verdicts(judged: Judgement, metric: str = "epoch_seconds") -> list[str]:
    return [change.verdict for change in judged.changes if change.metric == metric]


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
    before = comparisons.results_folder(tmp_path / "before", BOTH, noise=QUIET)
    now = comparisons.results_folder(tmp_path / "now", {"pytorch": 4.0 * factor, "tensorflow": 5.0}, noise=QUIET)
    judged = judge(before, now)
    assert verdicts(judged) == [verdict, "no change shown"]
    assert judged.exit_code == code
    assert judged.changes[0].change.value == pytest.approx(factor)
    assert judged.tested == 2  # seconds of two rows: first step and memory are the same number in every run
    assert not judged.paired and [change.method for change in judged.changes] == ["Welch", "none", "none"] * 2
    assert {change.verdict for change in judged.changes if change.method == "none"} == {"no change shown"}


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_slowdown_that_the_noise_may_hide_is_neither_a_regression_nor_a_pass(tmp_path: Path, factor: float) -> None:
    before = comparisons.results_folder(tmp_path / "before", BOTH, noise=NOISY)
    judged = judge(before, comparisons.results_folder(tmp_path / "now", {**BOTH, "pytorch": 4.0 * factor}, noise=NOISY))
    assert verdicts(judged)[0] == "no change shown" and judged.changes[0].not_ruled_out
    assert judged.exit_code == 5
    wider = judge(tmp_path / "before", tmp_path / "now", threshold=1.0)
    assert wider.exit_code == 0 and wider.num_not_ruled_out == 0
    (said,) = (sentences for title, sentences in regress_report.sentences(judged) if "not ruled out" in title)
    assert said[0].startswith(f"pytorch serial, 2 cores, seconds per epoch: candidate {factor:.3f} (")


def test_operations_whose_time_changed_are_shown_with_the_largest_change_first(tmp_path: Path) -> None:
    def profiled(**milliseconds: float) -> dict[str, Any]:
        operations = [
            ProfiledOperation(name=name, calls=1.0, self_seconds=1e-3 * value, share=0.5)
            for name, value in milliseconds.items()
        ]
        return {"top_operations": TopOperations(steps=3, operations=operations)}

    before = comparisons.results_folder(tmp_path / "before", BOTH, changed=profiled(conv=4.0, add=1.0, gone=0.5))
    now = comparisons.results_folder(tmp_path / "now", BOTH, changed=profiled(conv=4.5, add=3.0, new=0.25))
    judged = judge(before, now)
    found = [(each.operation, pytest.approx(each.milliseconds)) for each in judged.operations if each.id.startswith("pytorch")]
    assert found == [("add", 2.0), ("conv", 0.5), ("gone", -0.5), ("new", 0.25)]
    (table,) = (each for each in regress_report.change_tables(judged) if each.name == "operations")
    assert table.rows[0]["operation"] == "add" and judged.exit_code == 0


DISTURBED = {"cores_of_others": 1.5, "machine": {"logical_cores": 2}}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (DISTURBED, "were disturbed: other work or the hypervisor took 1.50 cores of a budget of 2, more than 0.15."),
        ({"cores_used": None}, "were too short to tell whether other work disturbed them."),
        ({"clock_caution": "after 1 s"}, "got their losses late (after 1 s)."),
    ],
)
@pytest.mark.parametrize("side", [0, 1])
def test_times_of_disturbed_runs_are_shown_and_are_neither_a_pass_nor_a_regression(
    tmp_path: Path, side: int, changed: dict[str, Any], why: str
) -> None:
    """A baseline that was measured beside another job would let every later slowdown pass."""
    folders = [
        comparisons.results_folder(
            tmp_path / str(number), {"pytorch": 4.0 if number else 6.0}, changed=changed if number == side else None
        )
        for number in (0, 1)
    ]
    judged = judge(*folders)
    assert verdicts(judged) == verdicts(judged, "first_step_seconds") == ["not judged"] and judged.exit_code == 5
    assert verdicts(judged, "peak_memory_mib") == ["no change shown"]
    change = judged.changes[0]
    assert (change.baseline.median, change.candidate.median) == (6.0, 4.0)
    assert (change.change.low, change.change.p, change.adjusted_p, judged.tested) == (None, None, None, 0)
    said, _ = judged.cautions
    of = ("baseline", "candidate")[side]
    assert said == f"pytorch serial, 2 cores: 5 of 5 runs of the {of} {why} Their times do not count."
    assert "2 of 4 figures have no reliable times on both sides." in regress_report.headline(judged)
    told = dict(regress_report.sentences(judged))["Cannot tell"]
    assert told[0].endswith(
        f"not judged, because no time of the {of} is reliable. The ratio is of geometric means. Medians: 6 before, 4 now."
    )
    assert told[0].startswith("pytorch serial, 2 cores, seconds per epoch: candidate 0.667 times the baseline: ")


def spoil(folder: Path, repeats: Iterable[int], seconds: float = 9.0) -> None:
    """Disturb runs, so that their epochs take longer."""
    for repeat in repeats:
        spoilt = store.run_folder(folder, "pytorch-serial-2", repeat)
        run = results.load(spoilt / results.RESULT_FILE)
        results.save(comparisons.paced(run, seconds / run.epochs[0].seconds).model_copy(update=DISTURBED), spoilt)


def unjudged(before: Path, now: Path, *, paired: bool) -> tuple[str, Change, str]:
    """The headline, the seconds of an epoch, and the first sentence on what cannot be told."""
    judged = judging.judge(*map(measurements.read, (before, now)), Criteria(), paired=paired)
    assert verdicts(judged) == ["not judged"] and judged.exit_code == 5
    return regress_report.headline(judged), judged.changes[0], dict(regress_report.sentences(judged))["Cannot tell"][0]


def test_pairs_without_reliable_times_on_both_sides_show_the_reliable_ones_of_each(tmp_path: Path) -> None:
    noise = (1.0,) * 6
    before, now = (
        comparisons.results_folder(tmp_path / name, {"pytorch": size}, noise=noise) for name, size in (("a", 4.0), ("b", 5.0))
    )
    spoil(before, range(3))
    spoil(now, range(3, 6))
    headline, change, said = unjudged(before, now, paired=True)
    assert "figures have no pair with reliable times on both sides." in headline
    assert (change.baseline.median, change.baseline.high, change.candidate.median) == (4.0, 4.0, 5.0)
    assert (change.baseline.n, change.candidate.n) == (3, 3) and change.change.value == pytest.approx(1.25)
    assert said.endswith(
        "no pair has reliable times on both sides. The ratio is of geometric means. Medians of the reliable ones: 4 before, "
        "5 now."
    )


@pytest.mark.parametrize("paired", [True, False])
def test_reliable_times_of_one_side_are_shown_without_its_disturbed_ones(tmp_path: Path, paired: bool) -> None:
    noise = (1.0,) * 6
    before, now = (
        comparisons.results_folder(tmp_path / name, {"pytorch": size}, noise=noise) for name, size in (("a", 4.0), ("b", 5.0))
    )
    spoil(before, range(4))
    spoil(now, range(6), 5.0)
    _, change, said = unjudged(before, now, paired=paired)
    assert (change.baseline.median, change.baseline.n, change.candidate.n) == (4.0, 2, 6)
    assert said.endswith(
        "not judged, because no time of the candidate is reliable. The ratio is of geometric means. Medians: 4 before, 5 now."
    )
    spoil(before, range(6))
    _, change, said = unjudged(before, now, paired=paired)
    assert (change.baseline.median, change.baseline.n) == (9.0, 6)
    assert said.endswith(
        "not judged, because none of these times is reliable. The ratio is of geometric means. Medians: 9 before, 5 now."
    )


def test_a_disturbed_run_among_enough_others_is_left_out(tmp_path: Path) -> None:
    noise = (*comparisons.NOISE, 9.0)
    before = comparisons.results_folder(tmp_path / "before", {"pytorch": 4.0}, noise=noise)
    spoilt = store.run_folder(before, "pytorch-serial-2", 5)
    results.save(results.load(spoilt / results.RESULT_FILE).model_copy(update=DISTURBED), spoilt)
    judged = judge(before, comparisons.results_folder(tmp_path / "now", {"pytorch": 4.8}))
    assert verdicts(judged) == ["regression"] and judged.exit_code == 3
    (change,) = (change for change in judged.changes if change.metric == "epoch_seconds")
    assert change.change.value == pytest.approx(1.2) and change.baseline.n == 5


def test_a_metric_that_was_asked_for_and_not_measured_is_no_pass(tmp_path: Path) -> None:
    before, now = (comparisons.results_folder(tmp_path / name, {"pytorch": 4.0}) for name in ("before", "now"))
    assert judge(before, now).exit_code == 0
    judged = judge(before, now, metrics=("epoch_seconds", "device_peak_memory_mib"))
    assert judged.exit_code == 5
    assert [fact.what for fact in judged.facts if fact.verdict == "cannot tell"] == ["device memory MiB"]
    nothing = judge(before, comparisons.results_folder(tmp_path / "zero", {"pytorch": 4.0}, changed={"peak_memory_mib": 0.0}))
    assert nothing.exit_code == 5
    benchmarks = [
        comparisons.benchmark_file(tmp_path / f"{name}.json", {"test_step": list(comparisons.NOISE)}) for name in "ab"
    ]
    done = compare(*benchmarks, "--metric", "epoch_seconds")
    assert done.exit_code == 2 and "holds seconds alone. Received: --metric epoch_seconds" in done.stderr


def test_two_folders_have_one_interval_and_one_p_in_regress_and_report(tmp_path: Path) -> None:
    """Repeats may be added to both folders. A test with one look would find differences too often."""
    noise = (1.0, 1.06, 0.94, 1.03, 0.97, 1.01)
    judged = judge(
        comparisons.results_folder(tmp_path / "a", BOTH, noise=noise[:5]),
        comparisons.results_folder(tmp_path / "b", BOTH, noise=noise),
    )
    change = next(each for each in judged.changes if each.metric == "epoch_seconds")
    shown = statistics.unpaired_ratio(noise, noise[:5])
    assert shown is not None and change.change.p == pytest.approx(shown.p)
    assert (change.change.low, change.change.high) == pytest.approx((shown.low, shown.high))
    looked = statistics.mean_difference_of_samples([math.log(each) for each in noise[:5]], [math.log(each) for each in noise])
    assert change.change.p is not None and change.change.p > looked.p
    said = [line for _, lines in regress_report.sentences(judged) for line in lines]
    assert any("however often repeats are added" in line for line in said)


def test_one_low_p_among_many_figures_is_no_regression(tmp_path: Path) -> None:
    noise = (1.0, 1.06, 0.94, 1.03, 0.97)
    before = comparisons.results_folder(tmp_path / "before", BOTH, noise=noise)
    now = comparisons.results_folder(tmp_path / "now", {**BOTH, "pytorch": 4.0 * 1.085}, noise=noise)
    alone = judge(before, now, metrics=("epoch_seconds", "wall_seconds"), only="pytorch*")
    assert verdicts(alone) == ["no change shown"] and alone.tested == 2
    (change,) = (change for change in alone.changes if change.metric == "epoch_seconds")
    assert change.change.p is not None and change.change.p < 0.05 < (change.adjusted_p or 0.0)


@pytest.mark.parametrize(
    ("repeats", "verdict", "code"), [(5, "regression", 3), (4, "too few to tell", 5), (1, "too few to tell", 5)]
)
def test_too_few_repeats_are_an_error_not_a_pass(tmp_path: Path, repeats: int, verdict: str, code: int) -> None:
    before = comparisons.results_folder(tmp_path / "before", BOTH)
    now = comparisons.results_folder(tmp_path / "now", {"pytorch": 8.0, "tensorflow": 10.0}, noise=comparisons.NOISE[:repeats])
    judged = judge(before, now)
    assert set(verdicts(judged)) == {verdict} and judged.exit_code == code
    assert judged.changes[0].change.value == pytest.approx(2.0, rel=0.01)
    if code == 5:
        headline = regress_report.headline(judged)
        assert headline.startswith("CANNOT TELL whether there is a regression: ") and headline.endswith("have too few samples.")


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
    first = comparisons.results_folder(tmp_path / "before", {"pytorch": 4.0}, verdict=before)
    judged = judge(first, comparisons.results_folder(tmp_path / "now", {"pytorch": 2.0}, verdict=now))
    assert [fact.verdict for fact in judged.facts if fact.what.startswith("same training")] == [verdict]
    assert judged.exit_code == code


def test_first_losses_that_no_longer_agree_are_a_regression(tmp_path: Path) -> None:
    before = comparisons.results_folder(tmp_path / "before", BOTH)
    judged = judge(before, comparisons.results_folder(tmp_path / "now", BOTH, first_losses={"tensorflow": 2.4}))
    assert {(fact.baseline, fact.candidate, fact.verdict) for fact in judged.facts if "first loss" in fact.what} == {
        ("agrees", "does not agree", "regression")
    }
    assert judged.exit_code == 3


def test_a_copy_of_the_baseline_is_no_candidate(tmp_path: Path) -> None:
    at = "2026-01-01T00:00:00+00:00"
    before = comparisons.results_folder(tmp_path / "before", BOTH, changed={"started_at": at})
    shutil.copytree(before, tmp_path / "copy")
    with pytest.raises(errors.FolderError, match=r"copy holds the runs of .*before themselves\. Name another measurement"):
        judge(before, tmp_path / "copy")


def test_what_became_of_the_candidates_proof_is_said(tmp_path: Path) -> None:
    before = comparisons.results_folder(tmp_path / "before", BOTH)
    judged = judge(before, comparisons.results_folder(tmp_path / "now", BOTH, verdict="not claimed"))
    assert judged.cautions == ["The candidate's proof: not claimed: Losses agree."]


def test_that_nothing_was_proved_is_said(tmp_path: Path) -> None:
    before, now = (comparisons.results_folder(tmp_path / name, BOTH) for name in ("before", "now"))
    assert judge(before, now).cautions == [facts.UNPROVED]
    assert facts.UNPROVED not in judge(before, comparisons.results_folder(tmp_path / "later", BOTH, verdict="proved")).cautions


def test_first_losses_that_do_not_agree_and_were_not_recorded_before_are_no_pass(tmp_path: Path) -> None:
    before = comparisons.results_folder(tmp_path / "before", BOTH, changed={"first_step_loss": None})
    judged = judge(before, comparisons.results_folder(tmp_path / "now", BOTH, first_losses={"tensorflow": 2.4}))
    assert {fact.verdict for fact in judged.facts if "first loss" in fact.what} == {"cannot tell"}
    assert judged.exit_code == 5


def test_the_headline_says_that_a_slowdown_may_be_hidden(tmp_path: Path) -> None:
    noise = (1.0, 1.3, 0.8, 1.2, 0.9)
    before = comparisons.results_folder(tmp_path / "before", {"pytorch": 4.0}, noise=noise)
    judged = judge(
        before, comparisons.results_folder(tmp_path / "now", {"pytorch": 4.4}, noise=noise[::-1]), metrics=("epoch_seconds",)
    )
    assert judged.exit_code == 5
    assert regress_report.headline(judged) == (
        "CANNOT TELL whether there is a regression: 1 of 2 figures may be worse by more than the threshold "
        "(5 % of seconds and MiB, 1 % of accuracy)."
    )


def test_the_headline_counts_all_that_cannot_be_told_and_the_report_says_how_many_pairs_would_tell(tmp_path: Path) -> None:
    noise = (1.0, 1.06, 0.95, 1.04, 0.98, 1.02)
    before = comparisons.results_folder(tmp_path / "before", BOTH, noise=noise)
    now = comparisons.results_folder(tmp_path / "now", BOTH, noise=noise[::-1])
    spoil(now, range(3))
    criteria = Criteria(metrics=("epoch_seconds",))
    judged = judging.judge(*map(measurements.read, (before, now)), criteria, paired=True)
    assert regress_report.headline(judged) == (
        "CANNOT TELL whether there is a regression: 1 of 6 figures may be worse by more than the threshold (5 % of seconds and "
        "MiB, 1 % of accuracy) and 1 of 6 figures have too few pairs."
    )
    told = dict(regress_report.sentences(judged))["A regression beyond the threshold is not shown, and not ruled out"]
    needed = re.search(r"about (\d+) pairs would rule out the threshold: --repeats (\d+) in another --out", " ".join(told))
    assert needed is not None and needed[1] == needed[2] and 20 < int(needed[1]) < 60  # the ratios spread by 7 %


def test_a_measurement_of_two_sides_is_named_by_a_side(tmp_path: Path) -> None:
    for side in ("base", "head"):
        comparisons.results_folder(tmp_path / "both" / side, {"pytorch": 4.0})
    (tmp_path / "both" / "interleaved.json").write_text("{}")
    done = compare(tmp_path / "both" / "base", tmp_path / "both")
    assert done.exit_code == 2
    assert f"Name one of them: {tmp_path / 'both' / 'base'} or {tmp_path / 'both' / 'head'}." in " ".join(done.stderr.split())


def test_benchmark_files_that_other_work_may_have_disturbed_are_told(tmp_path: Path) -> None:
    before = benchmarks(tmp_path / "before", 0.01, noise=(1.0, 1.0, 1.0, 1.0, 3.0))
    cautions = judge(before, benchmarks(tmp_path / "now", 0.01)).cautions
    assert "test_step: the medians of the baseline's files differ by up to 3.0 times." in cautions
    assert not any("candidate's files differ" in each for each in cautions)
    assert "Files of pytest-benchmark do not say whether other work disturbed a benchmark." in cautions


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
    before = comparisons.results_folder(tmp_path / "before", {"pytorch": 4.0}, accuracy=of_seed, seeds=SEEDS)
    judged = judge(before, comparisons.results_folder(tmp_path / "now", {"pytorch": 4.0}, accuracy=now, seeds=SEEDS))
    assert verdicts(judged, "test_accuracy") == [verdict] and judged.exit_code == code
    (change,) = (change for change in judged.changes if change.metric == "test_accuracy")
    assert change.change.value == pytest.approx(-lost) and (change.method, change.change.n) == ("paired by seed", 5)
    (said,) = (sentences for title, sentences in regress_report.sentences(judged) if title == "How it was judged")
    assert any("paired by seed" in sentence for sentence in said)


@pytest.mark.parametrize(
    ("accuracy", "verdict", "code"), [(0.695, "not tested", 0), (0.6, "cannot tell", 5), (0.8, "not tested", 0)]
)
def test_repeats_of_one_seed_are_one_training_and_no_test_of_accuracy(
    tmp_path: Path, accuracy: float, verdict: str, code: int
) -> None:
    before = comparisons.results_folder(tmp_path / "before", {"pytorch": 4.0})
    judged = judge(before, comparisons.results_folder(tmp_path / "now", {"pytorch": 4.0}, accuracy=accuracy))
    assert verdicts(judged, "test_accuracy") == [] and judged.exit_code == code
    (fact,) = judged.facts
    assert (fact.what, fact.verdict) == ("test accuracy", verdict)
    assert fact.candidate == f"{accuracy:.4f}, of 1 seed of the 5 that a verdict needs"
    (said,) = (sentences for title, sentences in regress_report.sentences(judged) if title == "How it was judged")
    assert any("Rounding alone moves the accuracy" in sentence for sentence in said)


def test_equal_predictions_are_no_change_and_nothing_is_left_unsure(tmp_path: Path) -> None:
    same = {"predictions_hash": "p"}
    before = comparisons.results_folder(tmp_path / "before", {"pytorch": 4.0}, changed=same)
    judged = judge(before, comparisons.results_folder(tmp_path / "now", {"pytorch": 4.0}, changed=same))
    (fact,) = judged.facts
    assert (fact.candidate, fact.verdict) == ("0.7000, by equal predictions", "no change shown")
    assert not any("not ruled out" in title for title, _ in regress_report.sentences(judged))


def test_accuracies_of_other_seeds_do_not_compare(tmp_path: Path) -> None:
    before = comparisons.results_folder(tmp_path / "before", {"pytorch": 4.0}, seeds=SEEDS)
    judged = judge(before, comparisons.results_folder(tmp_path / "now", {"pytorch": 4.0}, seeds=(5, 6, 7, 8, 9)))
    assert [(fact.candidate, fact.verdict) for fact in judged.facts] == [("of seeds 5, 6, 7, 8, 9", "cannot tell")]
    untested = judge(
        before, comparisons.results_folder(tmp_path / "untested", {"pytorch": 4.0}, seeds=SEEDS, changed={"test": None})
    )
    assert ("of seeds 0, 1, 2, 3, 4", "not measured") in [(fact.baseline, fact.candidate) for fact in untested.facts]


def test_a_run_that_fails_now_is_a_regression_and_one_that_is_missing_cannot_be_told(tmp_path: Path) -> None:
    before = comparisons.results_folder(tmp_path / "before", BOTH)
    failed = comparisons.results_folder(tmp_path / "failed", BOTH, changed={"status": "failed", "reason": "exit code 1"})
    judged = judge(before, failed)
    assert judged.exit_code == 3
    assert {(fact.what, fact.candidate) for fact in judged.facts if fact.verdict == "regression"} == {
        ("ended", "failed: exit code 1 (5 of 5 repeats)")
    }
    fewer = judge(before, comparisons.results_folder(tmp_path / "fewer", {"pytorch": 4.0}))
    assert fewer.missing == ["tensorflow serial, 2 cores"] and fewer.exit_code == 5
    more = judge(tmp_path / "fewer", before)
    assert more.added == ["tensorflow serial, 2 cores"] and more.exit_code == 0


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ({"processor": "Another CPU"}, "different machines: processor was Some CPU and is Another CPU"),
        ({"logical_cores": 4}, "different machines: logical cores was 2 and is 4"),
        ({"host": "b", "gpus": ["H100"]}, "different machines: host was a and is b"),
        ({"gpus": ["H200"]}, "different machines: gpus was ['H100'] and is ['H200']"),
        ({"processor": ""}, "does not say its processor"),
        ({"logical_cores": None}, "does not say its logical cores"),
    ],
)
def test_another_machine_is_an_error(tmp_path: Path, machine: dict[str, Any], said: str) -> None:
    before = comparisons.results_folder(tmp_path / "before", BOTH, machine={"host": "a", "gpus": ["H100"]})
    done = compare(before, comparisons.results_folder(tmp_path / "now", BOTH, machine={"host": "a"} | machine))
    assert done.exit_code == 2 and said in done.stderr and done.stdout == ""


def test_other_versions_are_compared_and_told(tmp_path: Path) -> None:
    before = comparisons.results_folder(tmp_path / "before", BOTH)
    versions = {"pytorch": {"torch": "2.5"}, "tensorflow": {"tensorflow": "2.1"}}
    judged = judge(before, comparisons.results_folder(tmp_path / "now", BOTH, versions=versions, machine={"dirty": True}))
    assert judged.exit_code == 0
    assert judged.cautions == [
        "torch was 2.0 and is 2.5.",
        "The candidate was measured with uncommitted changes.",
        facts.UNPROVED,
    ]


def test_other_work_or_data_or_another_device_is_an_error(tmp_path: Path) -> None:
    before = comparisons.results_folder(tmp_path / "before", {"pytorch": 4.0})
    row = comparisons.row("pytorch")
    larger = row.model_copy(update={"spec": row.spec.model_copy(update={"global_batch_size": 128})})
    fewer = row.model_copy(update={"spec": row.spec.with_fields(data={"limit": 100})})
    for number, (options, said) in enumerate(
        [
            ({"rows": [larger]}, "/0: global_batch_size was 64 and is 128. Measure the same."),
            ({"rows": [fewer], "data_hash": "of 100"}, "/1: data.limit was None and is 100"),
            ({"data_hash": "other"}, "their data has other content. Received: digits and digits"),
            ({"changed": {"data_hash": "decoded otherwise"}}, "/3: content of the data: data before, decoded othe now"),
            ({"changed": {"epochs": FEWER, "phases": None}}, "/4: images of an epoch: 640 before, 639 now"),
            ({"changed": {"device": "cuda"}}, "/5: cpu before, cuda now"),
        ]
    ):
        done = compare(before, comparisons.results_folder(tmp_path / str(number), {"pytorch": 4.0}, **options))
        assert done.exit_code == 2 and said in done.stderr


def test_where_all_results_of_a_side_are_set_aside_nothing_is_told(tmp_path: Path) -> None:
    before, now = (comparisons.results_folder(tmp_path / name, {"pytorch": 4.0}) for name in ("before", "now"))
    for path in now.glob(f"runs/*/{results.RESULT_FILE}"):
        run = results.load(path)
        results.save(run.model_copy(update={"epochs": [run.epochs[0], run.epochs[0]]}), path.parent)
    done = compare(before, now)
    assert done.exit_code == 5 and "CANNOT TELL whether there is a regression" in done.stdout, done.output


def test_another_cache_or_limit_of_a_hang_is_the_same_work(tmp_path: Path) -> None:
    before = comparisons.results_folder(tmp_path / "before", {"pytorch": 4.0})
    row = comparisons.row("pytorch")
    elsewhere = row.model_copy(update={"spec": row.spec.model_copy(update={"hang_seconds": 300.0})})
    assert judge(before, comparisons.results_folder(tmp_path / "now", {"pytorch": 4.0}, rows=[elsewhere])).exit_code == 0


def test_other_initial_weights_are_told(tmp_path: Path) -> None:
    before = comparisons.results_folder(tmp_path / "before", {"pytorch": 4.0})
    judged = judge(before, comparisons.results_folder(tmp_path / "now", {"pytorch": 4.0}, changed={"weights_hash": "others"}))
    assert judged.cautions == [
        "pytorch serial, 2 cores: the initial weights changed, so the runs compute something else than before.",
        facts.UNPROVED,
    ]


def test_the_repository_of_ones_own_model_is_named_beside_the_commit(tmp_path: Path) -> None:
    folders = [
        comparisons.results_folder(tmp_path / name, BOTH, machine={"repository": "/of/a/team", "suite_commit": "b" * 40})
        for name in ("before", "now")
    ]
    done = compare(*folders, "--full")
    assert done.stdout.count("aaaaaaaa of /of/a/team,") == 2 and done.stdout.count("Trained by: the suite at bbbbbbbb") == 1
    assert judge(*folders).baseline.repository == "/of/a/team"


def test_results_that_are_left_out_are_named(tmp_path: Path) -> None:
    before, now = (comparisons.results_folder(tmp_path / name, BOTH) for name in ("before", "now"))
    torn = next(before.glob("runs/*/result.json"))
    torn.write_text(torn.read_text()[:-100])
    (said,) = (each for each in judge(before, now).cautions if each.startswith("The baseline: "))
    assert torn.relative_to(before).as_posix() in said and "not a whole result" in said


def test_a_repeat_that_one_side_lacks_is_no_change_of_its_seeds_hashes() -> None:
    assert not facts._hashes_differ({1: "a", 2: "b"}, {1: "a"}) and not facts._hashes_differ({}, {1: "a"})
    assert facts._hashes_differ({1: "a", 2: "b"}, {1: "a", 2: "a"}) and facts._hashes_differ({1: "a"}, {2: "b"})


def test_a_torn_file_among_benchmark_files_is_named(tmp_path: Path) -> None:
    whole = json.dumps({"machine_info": {"node": "here"}, "benchmarks": [], "datetime": "2026-01-01T00:00:00"})
    (tmp_path / "whole.json").write_text(whole)
    (tmp_path / "torn.json").write_text(whole[:-20])
    with pytest.raises(errors.FolderError, match=r"torn\.json is no whole file of pytest-benchmark"):
        measurements.read(tmp_path)


def test_a_missing_or_unreadable_baseline_is_an_error(tmp_path: Path) -> None:
    now, later = (comparisons.results_folder(tmp_path / name / name, BOTH) for name in ("now", "later"))
    (tmp_path / "torn.json").write_text('{"benchmarks": [')
    (tmp_path / "other.json").write_text("[]")
    for arguments, said in (
        ((), "There is no baseline"),
        ((tmp_path / "none", now), "There is no baseline at"),
        ((now, tmp_path / "none"), "There is no candidate at"),
        ((tmp_path, now), "holds no comparison"),
        ((tmp_path / "torn.json", now), "is no whole file of pytest-benchmark"),
        ((tmp_path / "other.json", now), "is no whole file of pytest-benchmark"),
        ((now,), "holds nothing newer that shares a row or benchmark with it"),
        ((now, now), "holds the runs of"),
        ((now, later, "--only", "jax*"), "no rows in common that match jax*"),
        ((now, now, "--threshold", "five"), "--threshold must be a fraction of at least 0. Received: 'five'"),
        (
            (now, now, "--threshold", "5"),
            "--threshold must have a percent sign from 1 on. Received: '5', which is 500%. Write 5%.",
        ),
        ((now, now, "--metric", "epoch_second"), "Did you mean epoch_seconds?"),
        ((now, now, "--repeats", "3", "--set", "seed=1"), "--repeats, --set need --interleaved REV or --environments A B"),
        ((now, "--interleaved", "HEAD"), "--interleaved measures both sides itself"),
    ):
        done = compare(*arguments)
        assert done.exit_code == 2 and said in done.stderr and done.stdout == "", (arguments, done.stderr)


def test_without_a_candidate_the_newest_later_one_that_measured_the_same_is_taken(tmp_path: Path) -> None:
    before = comparisons.results_folder(tmp_path / "b", BOTH, created_at="2026-01-02T00:00:00+00:00")
    comparisons.results_folder(tmp_path / "earlier", BOTH, created_at="2026-01-01T00:00:00+00:00")
    comparisons.results_folder(tmp_path / "a", {"pytorch": 8.0, "tensorflow": 5.0}, created_at="2026-01-04T00:00:00+00:00")
    comparisons.results_folder(tmp_path / "c", BOTH, created_at="2026-01-03T00:00:00+00:00")
    comparisons.results_folder(tmp_path / "other", {"jax": 8.0}, created_at="2026-01-05T00:00:00+00:00")
    done = compare(before, "--json")
    found = json.loads(done.stdout)
    assert found["candidate"]["source"] == str(tmp_path / "a") and found["exit_code"] == done.exit_code == 3


def test_a_newer_measurement_that_is_torn_is_named_and_no_older_one_is_taken_for_it(tmp_path: Path) -> None:
    before = comparisons.results_folder(tmp_path / "b", BOTH, created_at="2026-01-02T00:00:00+00:00")
    comparisons.results_folder(tmp_path / "c", BOTH, created_at="2026-01-03T00:00:00+00:00")
    torn = comparisons.results_folder(tmp_path / "d", BOTH, created_at="2026-01-04T00:00:00+00:00") / store.PLAN_FILE
    torn.write_bytes(torn.read_bytes()[:-20])
    done = compare(before)
    assert done.exit_code == 2 and str(torn) in "".join(done.stderr.split()), done.output
    assert "move it away, or name the candidate" in " ".join(done.stderr.split())


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
    assert "CANNOT TELL whether there is a regression: exit code 5." in compare(first).stdout
    done = compare(first, "--full")
    assert done.exit_code == 5 and done.stdout.startswith("CANNOT TELL") and str(second) in done.stdout
    assert (
        "test_step, seconds a round: candidate 1.059 times the baseline: 1 of the 5 benchmark files that a verdict needs."
        in " ".join(done.stdout.split())
    )


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
    assert compare(before, now).exit_code == code
    assert verdicts(judged, "seconds") == [verdict] * 2 and judged.exit_code == code
    assert {change.change.n for change in judged.changes} == {5}
    fewer = judge(before, benchmarks(tmp_path / "fewer", 0.02, noise=(1.0,) * 4))
    assert fewer.exit_code == 5
    benchmarks(tmp_path / "fewer", 0.01, noise=(1.0,), commit="b" * 40)
    with pytest.raises(errors.FolderError, match="holds benchmarks of more than one commit"):
        judge(before, tmp_path / "fewer")


def test_a_benchmark_file_of_another_project_or_without_a_machine_or_of_another_kind(tmp_path: Path) -> None:
    before = benchmarks(tmp_path / "a", 0.01)
    bare = benchmarks(tmp_path / "b", 0.01, keep=False)
    foreign = benchmarks(tmp_path / "c", 0.01, machine={"cpu": {"brand_raw": "Some CPU", "count": 2}})
    silent = benchmarks(tmp_path / "d", 0.01, machine={})
    assert compare(before, bare).exit_code == 0  # the statistics hold all that counts
    assert compare(before, foreign).exit_code == 0  # of any project, by what pytest-benchmark itself says of the machine
    assert "does not say its processor" in compare(before, silent).stderr
    other_kind = compare(before, comparisons.results_folder(tmp_path / "folder", BOTH))
    assert other_kind.exit_code == 2 and "Name two of a kind" in other_kind.stderr


def test_two_sides_measured_in_turn_are_judged_by_pairs(tmp_path: Path) -> None:
    drift = (1.0, 1.2, 1.4, 1.6, 1.8)  # of the machine, which pairs leave out
    seconds = {"pytorch": 4.0}
    comparisons.results_folder(tmp_path / "base", seconds, noise=drift)
    comparisons.results_folder(
        tmp_path / "head",
        {"pytorch": 4.4},
        noise=[each * jitter for each, jitter in zip(drift, comparisons.NOISE, strict=True)],
    )
    assert judge(tmp_path / "base", tmp_path / "head").exit_code == 5
    (tmp_path / "interleaved.json").write_text("{}")
    for judged in (judge(tmp_path / "base", tmp_path / "head"), judge(tmp_path, None)):
        assert judged.paired and verdicts(judged) == ["regression"] and judged.exit_code == 3
    assert not judge(tmp_path / "head", tmp_path / "base").paired


def test_the_report_says_the_verdict_first_on_the_terminal_and_in_markdown(tmp_path: Path) -> None:
    before = comparisons.results_folder(tmp_path / "before", BOTH, verdict="proved")
    now = comparisons.results_folder(tmp_path / "now", {"pytorch": 4.8, "tensorflow": 5.0}, verdict="proved")
    summary = tmp_path / "summary.md"
    summary.write_text("# Before\n")
    assert "Verdict  REGRESSION in 1 of 12 figures: exit code 3." in compare(before, now).stdout.splitlines()[2]
    done = compare(before, now, "--markdown", summary, "--full")
    assert done.exit_code == 3
    lines = done.stdout.splitlines()
    assert lines[0] == "REGRESSION in 1 of 12 figures."
    assert any(line.split()[:5] == ["pytorch", "serial,", "2", "cores", "seconds"] and "regression" in line for line in lines)
    (said,) = (line for line in lines if line.startswith("  pytorch serial, 2 cores, seconds per epoch: candidate 1.200 ("))
    assert said.endswith(") times the baseline, p < 0.001.")
    text = summary.read_text()
    assert text.startswith("# Before\n# REGRESSION in 1 of 12 figures.\n")
    assert "## Regressions\n\n- pytorch serial, 2 cores, seconds per epoch: candidate 1.200 (" in text
    assert "| run | metric | verdict | times (95 % interval) | p, Holm |" in text
    assert measurements.read(now).commit_name == "aaaaaaaa"


def test_of_runs_that_went_on_from_a_checkpoint_no_phase_and_no_memory_is_judged(tmp_path: Path) -> None:
    whole, resumed = (
        measurements.read(
            comparisons.results_folder(tmp_path / str(resumes), {"pytorch": 1.0}, changed={"resumes": resumes})
        ).subjects
        for resumes in (0, 1)
    )
    ((before, now),) = zip(whole.values(), resumed.values(), strict=True)
    lost = {"import", "build", "first_step", "evaluation", "wall"}
    assert before.samples.keys() - now.samples.keys() == {*(f"{name}_seconds" for name in lost), "peak_memory_mib"}
    assert {"epoch_seconds", "test_accuracy"} <= now.samples.keys()


def test_where_there_is_no_verdict_the_markdown_says_why(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    assert compare(tmp_path / "nowhere", "--markdown", summary).exit_code == 2
    assert summary.read_text().startswith("# No verdict\n\nThere is no baseline at ")


def test_a_row_that_was_not_run_before_is_not_better_for_being_run() -> None:
    assert [facts.status_verdict(before, "ok") for before in ("not run", "failed")] == ["cannot tell", "better"]


def test_a_verdict_that_lacks_one_thing_alone_names_it(tmp_path: Path) -> None:
    """Whatever it is that cannot be told, the headline says it, with nothing else beside it."""
    rest = {"test_load": [0.01] * 5}
    for name, more in (("before", {"test_step": [0.02] * 5}), ("now", {"test_stride": [0.02] * 5})):
        for number, factor in enumerate(QUIET):
            rounds = {each: [value * factor for value in values] for each, values in (rest | more).items()}
            comparisons.benchmark_file(tmp_path / name / f"000{number}_x.json", rounds)
    assert "1 benchmark of the baseline was not measured again" in compare(tmp_path / "before", tmp_path / "now").stdout
    done = compare(tmp_path / "before", tmp_path / "now", "--full")
    assert done.exit_code == 5, done.output
    said = "CANNOT TELL whether there is a regression: 1 benchmark of the baseline was not measured again."
    assert done.stdout.splitlines()[0] == said
    first = comparisons.results_folder(tmp_path / "proved", {"pytorch": 4.0}, verdict="proved")
    unproved = compare(first, comparisons.results_folder(tmp_path / "unproved", {"pytorch": 4.0}), "--full")
    assert unproved.exit_code == 5 and unproved.stdout.splitlines()[0].endswith(": 1 of 5 figures do not decide.")
    failed = [
        comparisons.results_folder(tmp_path / f"f{each}", {"pytorch": 4.0}, changed={"status": "failed"}) for each in "ab"
    ]
    assert all(said in compare(*failed).stdout for said in ("1 of 1 figures do not decide", "Nothing was measured on both"))
    nothing = compare(*failed, "--full")
    assert nothing.exit_code == 5 and nothing.stdout.splitlines()[0].endswith(
        ": 1 of 1 figures do not decide and nothing was measured on both sides."
    )


def test_a_time_of_zero_and_one_that_stands_twice_in_a_file_are_told(tmp_path: Path) -> None:
    """A coarse clock says 0. pytest --keep-duplicates writes one name twice."""

    def measured(name: str, ticks: Iterable[float], *, again: float = 1.0) -> Path:
        for number, (factor, tick) in enumerate(zip(QUIET, ticks, strict=True)):
            rounds = {"test_step": [0.01 * factor] * 5, "test_tick": [tick] * 5, "test_twin": [0.01 * again * factor] * 5}
            file = comparisons.benchmark_file(tmp_path / name / f"000{number}_x.json", rounds)
            values = json.loads(file.read_text())
            for each in values["benchmarks"]:
                each["fullname"], each["name"] = (each[key].replace("twin", "step") for key in ("fullname", "name"))
            file.write_text(json.dumps(values))
        return tmp_path / name

    before = measured("before", [0.0] * 5)
    done = compare(before, measured("now", [0.001] * 5), "--full")
    assert done.exit_code == 5 and done.stdout.splitlines()[0].endswith(": 1 of 3 figures do not decide.")
    assert "test_tick, seconds a round: not above 0, so there is no ratio before, measured now." in done.stdout
    some = compare(measured("some", [0.0, *[0.001] * 4]), tmp_path / "now", "--only", "*tick", "--full")
    assert some.exit_code == 5 and "have too few benchmark files" in some.stdout.splitlines()[0]
    assert "test_tick: 1 of 5 figures of the baseline do not count (seconds a round): not above 0." in some.stdout
    slower = judge(tmp_path / "now", measured("slower", [0.001] * 5, again=1.5))
    assert {change.name: change.verdict for change in slower.changes} == {
        "test_step": "no change shown",
        "test_tick": "no change shown",
        "test_step (2)": "regression",
    }


FIRST, SECOND, THIRD = "1" * 40, "2" * 40, "3" * 40
TURNS = "ABBAABBAAB"


def autosaved(folder: Path, turns: str, *, drift: float = 0.2, slowdown: float = 1.1, **rest: Any) -> Path:
    """One folder as --benchmark-autosave fills it: a file a letter (A, B and C are commits), on a machine that slows down."""
    commits, place = {"A": FIRST, "B": SECOND, "C": THIRD}, len(list(folder.rglob("*.json")))
    for letter in turns:
        place += 1
        seconds = (
            0.01
            * (1 + drift * ((place - 1) // 2))
            * (slowdown if letter == "B" else 1.0)
            * comparisons.NOISE[place % 5] ** 0.25
        )
        file = folder / "Linux-CPython-3.11-64bit" / f"{place:04}_{commits[letter]}.json"
        at = f"2026-01-01T00:{place:02}:00+00:00"
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
    assert "By their times, the files were measured in turn" in " ".join(compare(storage, "--full").stdout.split())
    apart = judge(autosaved(tmp_path / "apart", "AAAAABBBBB", drift=0.0), None)
    assert not apart.paired and apart.changes[0].method == "Welch" and apart.exit_code == 3
    told = " ".join(" ".join(lines) for _, lines in regress_report.sentences(apart))
    assert "Files made in turn (A, B, B, A, ...) can." in told and "--interleaved" not in told
    odd = judge(autosaved(storage, "B"), None)
    assert odd.paired and odd.changes[0].change.n == 5
    assert "test_step: 1 figure without a partner in the pairs, not counted (seconds a round)." in odd.cautions


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
    team = tmp_path / "team"
    team.mkdir()
    git(team, "init", "-q", "-b", "main")
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
    storage = autosaved(tmp_path / ".benchmarks", "AABBC")
    there = "11111111 (2 files), 22222222 (2 files) and 33333333 (1 file)"
    for words, said in (
        ((storage,), f"holds benchmarks of 3 commits, and two are compared. Received: {there}. Name two without changes"),
        ((f"{storage}@1111",), "holds benchmarks of 3 commits"),
        (
            (storage, f"{storage}@1111"),
            f"holds benchmarks of more than one commit. Received: {there}. Name one without changes",
        ),
        ((f"{storage}@main", f"{storage}@1111"), "no benchmarks that were measured at one clean commit main"),
        ((f"{storage}@1111", f"{storage}@1111"), "holds the runs of"),
        ((tmp_path / "none@main", storage), "There is no baseline at"),
    ):
        done = compare(*words)
        assert done.exit_code == 2 and said in done.stderr and done.stdout == "", (words, done.stderr)
    changed = autosaved(autosaved(tmp_path / "changed", "AAAAA"), "B", dirty=True)
    refused = compare(changed)
    assert refused.exit_code == 2 and "one clean commit 22222222+changes" in refused.stderr
    autosaved(changed, "BBBBB", drift=0.0)
    judged = judge(Path(f"{changed}@1111"), Path(f"{changed}@2222"))
    assert "The candidate: 1 file of 22222222 with uncommitted changes, left out." in judged.cautions
    assert judged.changes[0].candidate.n == 5
    elsewhere = {"convtwins": {"processor": "Another CPU", "logical_cores": 2}}
    mixed = autosaved(autosaved(tmp_path / "mixed", "AB"), "A", machine=elsewhere)
    assert "holds benchmarks of more than one machine" in compare(mixed).stderr
    apart = autosaved(autosaved(tmp_path / "machines", "AA"), "BB", machine=elsewhere)
    assert "were measured on different machines: processor was Some CPU" in compare(apart).stderr
