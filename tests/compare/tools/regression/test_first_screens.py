"""What regress, bisect and history print first."""

import json
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from compare.reporting.document import Report
from compare.statistics import statistics
from compare.statistics.statistics import Ratio
from compare.tools.regression import bisect_report, bisection, history, judging, measurements, regress_report, regress_screen
from compare.tools.regression.bisection import BisectionOutcome, Enough, Unmeasurable
from compare.tools.regression.candidates import BisectionQuery, Candidate, Candidates
from compare.tools.regression.records import Criteria, Judgement
from compare.tools.regression.regress_screen import MeasuredBy
from tests.support import comparisons
from tests.support.snapshots import FOLDER, Screens, printed

BOTH = {"pytorch": 4.0, "tensorflow": 5.0}
QUIET = tuple(1.0 + (factor - 1.0) / 4 for factor in (*comparisons.NOISE, 1.015))
NOISY = (1.0, 1.06, 0.95, 1.04, 0.98, 1.02)
DISTURBED = {"cores_of_others": 1.5, "machine": {"logical_cores": 2}}
_OF_FILES = 3
"""A blank line, the page, and everything else."""


def judge(
    folder: Path,
    now: dict[str, float],
    noise: Sequence[float] = QUIET,
    *,
    paired: bool = True,
    commit: str = "b" * 40,
    **changed: Any,
) -> Judgement:
    """The judgement of a base of both frameworks, and a head of these seconds."""
    base = comparisons.results_folder(folder / "base", BOTH, noise=noise)
    head = comparisons.results_folder(folder / "head", now, noise=noise[::-1], machine={"commit": commit}, changed=changed)
    return judging.judge(*map(measurements.read, (base, head)), Criteria(), paired=paired)


def answers_of(report: Report) -> dict[str, Sequence[str]]:
    assert report.screen is not None
    return {answer.label: answer.sentences for answer in report.screen.answers}


def measured_by(repeats: int, *options: str) -> MeasuredBy:
    words = ["regress", "--interleaved", "HEAD~1", "--frameworks", "pytorch", "--repeats", str(repeats), *options]
    return MeasuredBy(repeats, words, Path("results/last"))


SLOWER = {"pytorch": 4.8, "tensorflow": 5.0}
JUDGED: dict[str, tuple[Callable[[Path], Judgement], int]] = {
    "slower": (lambda folder: judge(folder, SLOWER, NOISY), 6),
    "both_slower": (lambda folder: judge(folder, {"pytorch": 4.8, "tensorflow": 6.5}, weights_hash="others"), 6),
    "as_fast": (lambda folder: judge(folder, BOTH), 6),
    "itself": (lambda folder: judge(folder, BOTH, commit="a" * 40), 6),
    "noisy": (lambda folder: judge(folder, BOTH, NOISY), 6),
    "few": (lambda folder: judge(folder, BOTH, QUIET[:3]), 3),
    "disturbed": (lambda folder: judge(folder, BOTH, **DISTURBED), 6),
    "failed": (lambda folder: judge(folder, BOTH, status="failed", reason="exit code 1"), 6),
    "apart": (lambda folder: judge(folder, SLOWER, paired=False), 0),
}


@pytest.mark.parametrize("name", JUDGED)
def test_a_judgement_has_eight_lines_besides_its_files(screens: Screens, name: str, tmp_path: Path) -> None:
    make, repeats = JUDGED[name]
    report = regress_report.report(make(tmp_path), measured_by(repeats) if repeats else None)
    shown = screens(report, most=regress_screen.LINES + _OF_FILES)
    assert f"exit code {report.exit_code}" in shown


def test_only_what_the_json_calls_a_regression_is_called_worse(tmp_path: Path) -> None:
    judged = judge(tmp_path, {"pytorch": 4.8, "tensorflow": 5.2}, NOISY)  # the noise may hide that of tensorflow
    answers = answers_of(regress_report.report(judged, measured_by(6)))
    assert [each.name for each in judged.changes if each.verdict == "regression"] == ["pytorch serial, 2 cores"]
    (worse,), (unsure, *_) = answers["Worse"], answers["Unsure"]
    assert worse.startswith("pytorch serial, 2 cores, seconds per epoch: +20.0 %")
    assert "tensorflow" in unsure and "pytorch" not in unsure
    assert "No change shown in 8" in " ".join(answers["Verdict"])  # and not 9: one of them is not ruled out


def test_pairs_that_would_tell_are_named_as_in_the_whole_report(tmp_path: Path) -> None:
    judged = judge(tmp_path, BOTH, NOISY)
    needed = regress_report._pairs_needed(judged)
    shown = printed(regress_report.report(judged, measured_by(6)), 100)
    assert f"about {needed} pairs" in shown and f"--frameworks pytorch --repeats {needed}" in " ".join(shown.split())
    own_limits = [change.model_copy(update={"limit": 0.2}) for change in judged.changes]
    of_limits = regress_report._pairs_needed(judged.model_copy(update={"changes": own_limits}))
    assert needed is not None and of_limits is not None and of_limits < needed
    accuracy = [0.70, 0.75, 0.72, 0.78, 0.71, 0.74]
    sides = [
        comparisons.results_folder(tmp_path / side, {"pytorch": 4.0}, noise=QUIET, accuracy=values, seeds=range(6))
        for side, values in (("before", accuracy), ("now", accuracy[::-1]))
    ]
    judged = judging.judge(*map(measurements.read, sides), Criteria(), paired=True)
    assert judged.num_not_ruled_out == 1 and "pairs would" not in printed(regress_report.report(judged, measured_by(6)), 200)


def test_two_sides_that_were_measured_apart_are_no_test_of_the_same_code(tmp_path: Path) -> None:
    (sentence,) = answers_of(regress_report.report(judge(tmp_path, BOTH, paired=False)))["Sure?"]
    assert "1 of 20" not in sentence and "apart" in sentence


@pytest.mark.parametrize("name", ["test_" + "long_" * 30, "test_x"])
def test_many_worse_benchmarks_of_any_name_stay_within_eight_lines(tmp_path: Path, name: str) -> None:
    sides = []
    for side, seconds in (("before", 0.01), ("now", 0.02)):
        for number, factor in enumerate(QUIET):
            rounds = {f"{name}[{each}]": [seconds * factor] * 5 for each in range(9)}
            comparisons.benchmark_file(tmp_path / side / f"000{number}_x.json", rounds)
        sides.append(measurements.read(tmp_path / side))
    shown = printed(regress_report.report(judging.judge(*sides, Criteria(), paired=False)), 100, None)
    assert shown.count("\n") + 1 <= regress_screen.LINES + _OF_FILES and "REGRESSION in 9 of 9 figures" in shown
    assert all(len(line) <= 100 for line in shown.splitlines()) and "; 6 more" in shown


def next_of(report: Report) -> list[list[str]]:
    assert report.screen is not None
    return [shlex.split(command)[1:] for _, command in report.screen.next]


def test_proposed_commands_are_whole(tmp_path: Path) -> None:
    """They name the options that said what is measured, and the folder that holds the runs, given or not."""
    by = measured_by(6, "--epochs", "3", "--no-proof", "--out=elsewhere")
    again = regress_report.report(judge(tmp_path / "disturbed", BOTH, **DISTURBED), by)
    measured = ["--frameworks", "pytorch", "--repeats", "6", "--epochs", "3"]
    assert next_of(again) == [["regress", "--interleaved", "HEAD~1", *measured, "--no-proof", "--out", "results/last"]]
    slower = regress_report.report(judge(tmp_path / "slower", SLOWER), by)
    options = ["--frameworks", "pytorch", "--epochs", "3"]
    assert next_of(slower) == [["bisect", "--good", "a" * 8, "--only", "pytorch-serial-2", *options]]
    few = measured_by(3, "--epochs", "3", "--no-proof")
    more = next_of(regress_report.report(judge(tmp_path / "few", BOTH, QUIET[:3]), few))
    assert more == [["regress", "--interleaved", "HEAD~1", *options, "--no-proof", "--repeats", "5"]]


def test_a_command_is_advised_more_pairs_by_a_whole_command_line(tmp_path: Path) -> None:
    """It has no rounds."""
    sides = []
    noisier = (1.0, 1.12, 0.9, 1.08, 0.96, 1.04)
    for side, seconds, noise in (("before", 1.0, noisier), ("now", 1.08, noisier[::-1])):
        for number, factor in enumerate(noise):
            comparisons.benchmark_file(tmp_path / side / f"000{number}_x.json", {"python train.py": [seconds * factor] * 5})
        sides.append(measurements.read(tmp_path / side))
    judged = judging.judge(*sides, Criteria(), paired=False)
    assert judged.num_not_ruled_out == 1 and regress_report._pairs_needed(judged) is None
    command = ["regress", "--interleaved", "HEAD~1", "--command", "python train.py"]
    report = regress_report.report(judged, MeasuredBy(6, [*command, "--out=x"], Path("x")))
    assert next_of(report) == [[*command, "--repeats", "12"]]


def test_a_sentence_of_trouble_is_never_cut(tmp_path: Path) -> None:
    report = regress_report.report(judge(tmp_path, BOTH, **DISTURBED), measured_by(6))
    for label, sentences in answers_of(report).items():
        assert all(not sentence.endswith("…") for sentence in sentences), label


# The search for a change.


def searched(levels: Sequence[float], noise: float = 0.01, broken: Sequence[int] = ()) -> Report:
    """The report of a search among commits of these relative times."""

    def measure(earlier: int, later: int, enough: Enough) -> Ratio | None:
        if later in broken:
            raise Unmeasurable("it does not build")
        drawn = [1.0 + noise * (place % 3 - 1) for place in range(6)]
        return statistics.paired_ratio([(levels[later] * each, levels[earlier]) for each in drawn])

    found = bisection.search(len(levels) - 1, measure, 0.05)
    trials = [comparisons.with_fields(trial, pairs=6) for trial in found.trials]
    return reported(comparisons.with_fields(found, trials=trials), len(levels))


def reported(found: BisectionOutcome, number: int) -> Report:
    def unused(*sides: object) -> AbstractContextManager[Any]:
        raise AssertionError

    each = [Candidate(str(place) * 8, f"{str(place) * 8} change {place}", str(place) * 40) for place in range(number)]
    row = comparisons.row("pytorch")
    all_candidates = Candidates[Any](each, row.id, comparisons.MACHINE, "", {}, unused, unused, {})
    words = ["bisect", "--good", "HEAD~6", "--frameworks", "pytorch"]
    query = BisectionQuery("epoch_seconds", 0.05, "HEAD~6")
    return bisect_report.report(found, all_candidates, query, MeasuredBy(30, words, Path("results/search")))


SEARCHED: dict[str, Callable[[], Report]] = {
    "found": lambda: searched([1.0, 1.0, 1.0, 1.0, 1.5, 1.5, 1.5]),
    "one_of_several": lambda: searched([1.0, 1.0, 1.5, 1.5, 1.5], broken=(1, 2)),
    "no_regression": lambda: searched([1.0] * 5),
    "undecided": lambda: searched([1.0, 1.0, 1.5], noise=0.4),
}


@pytest.mark.parametrize("name", SEARCHED)
def test_a_search_names_the_change_or_says_why_not(screens: Screens, name: str) -> None:
    report = SEARCHED[name]()
    values = json.loads(report.to_json())
    assert values["search"]["outcome"] == name.replace("_", " ")
    shown = screens(report)
    assert ("First bad:" in shown) == (values["first_bad"] is not None) == ("git show" in shown)
    assert f"Exit code {values['exit_code']}" in " ".join(shown.split())


def test_a_search_that_other_work_disturbed_says_so_and_how_to_go_on(screens: Screens) -> None:
    trial = bisection.BisectionTest(
        what="the ends", earlier=0, later=2, level=0.02, border=1.0, ratio=None, verdict="undecided", pairs=3, disturbed=3,
        doubts=["3 of 3 runs of 22222222 change 2 were disturbed: other work took 0.97 cores of 2, more than 0.15."],
    )  # fmt: skip
    screens(reported(BisectionOutcome(outcome="undecided", last_good=0, first_bad=2, trials=[trial], skipped={}), 3))


def test_a_search_that_found_the_branch_slower_says_that_first_and_no_ratio_of_few_pairs(screens: Screens) -> None:
    ratios = [
        statistics.paired_ratio([(level * (1.0 + 0.01 * (place % 3 - 1)), 1.0) for place in range(number)])
        for level, number in ((1.133, 6), (1.06, 2))
    ]
    ends = bisection.BisectionTest(
        what="the ends", earlier=0, later=3, level=0.02, border=1.064, ratio=ratios[0], verdict="bad", pairs=6
    )
    middle = bisection.BisectionTest(
        what="a candidate", earlier=0, later=2, level=0.01, border=1.064, ratio=ratios[1], verdict="undecided", pairs=5,
        disturbed=3,
        doubts=["3 of 5 runs of 22222222 change 2 were disturbed: other work took 0.97 cores of 2, more than 0.15."],
    )  # fmt: skip
    undecided = BisectionOutcome(outcome="undecided", last_good=0, first_bad=3, trials=[ends, middle], skipped={})
    shown = screens(reported(undecided, 4))
    verdict = " ".join(shown.split()).partition("Verdict ")[2]
    assert verdict.startswith("The branch is slower: 1.13 (1.12 to 1.15) times. Not yet known which of 3 commits. Exit code 5.")
    assert "1.06 " not in shown and "1.060" not in shown
    assert "At 22222222 change 2: other programs took cores from 3 of 5 pairs." in verdict


# Figures over commits.


def over_commits(folder: Path, number: int, seconds: Sequence[float] = (2.0, 2.1, 3.0), **other: Any) -> Report:
    for place in range(number):
        at, values = f"2026-01-0{place + 1}T00:00:00+00:00", {"pytorch": seconds[place % len(seconds)], "tensorflow": 3.0}
        machine = {"commit": str(place) * 40, "dirty": place == 1}
        comparisons.results_folder(folder / str(place), values, created_at=at, machine=machine)
    if other:
        comparisons.benchmark_file(folder / "x.json", {"test_step": [0.01] * 5})
        comparisons.results_folder(folder / "other", BOTH, machine={"processor": "Another CPU"})
    points, left_out, is_damaged = history.points(folder, ["epoch_seconds", "seconds"])
    return history.report(points, folder, (), [*left_out, *other.get("left_out", ())], is_damaged=is_damaged or bool(other))


def test_a_history_shows_the_latest_and_the_first_measurement(
    screens: Screens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = screens(over_commits(Path("results"), 3))
    assert "3 at 22222222" in shown and "2 at 00000000" in shown and "11111111" not in shown
    assert "convtwins regress results/1 results/2" in shown
    assert not any(word in shown for word in ("slower", "faster", "worse"))  # nothing is tested


def test_a_history_of_several_machines_and_of_something_damaged(
    screens: Screens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    screens(over_commits(Path("results"), 2, left_out=["results/torn is not a whole comparison."]), FOLDER)
