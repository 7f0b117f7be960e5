"""The search for the first bad change: how often it names a wrong one, and what it does with a real repository."""

import json
import math
import random
import re
import shutil
import signal
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scipy import special

from common.artifacts.schema import Noise, RunResult
from common.machine import machine
from compare.cli.errors import NoAnswerError
from compare.cli.interrupt import Interrupted
from compare.running import launch
from compare.statistics import statistics
from compare.statistics.statistics import Ratio
from compare.tools.regression import benchmark_sides, bisection, candidates, records
from compare.tools.regression.bisection import BisectionOutcome, Enough, Unmeasurable
from compare.tools.regression.candidates import Candidate
from tests.compare.tools.regression.conftest import upgrade
from tests.compare.tools.regression.repository import commit, copied, git, initialised, spec_module, worktrees
from tests.compare.tools.regression.stand_in import StandIn, whole
from tests.compare.tools.regression.test_regress_for_real import PLANTED, TIMEOUT_SECONDS
from tests.support import comparisons, schemas
from tests.support.command_line import convtwins, convtwins_json, convtwins_process
from tests.support.refusals import check_ended, refused

# The rate of wrong answers, in made-up measurements.

MOST_PAIRS = 30


def simulated(
    levels: Sequence[float], noise: float, threshold: float, seed: int, broken: Collection[int] = ()
) -> BisectionOutcome:
    """A search among candidates whose figures are exp(level), with relative noise of each run. Broken ones do not run."""
    drawn = random.Random(seed)

    def measure(earlier: int, later: int, enough: Enough) -> Ratio | None:
        if later in broken:
            raise Unmeasurable("it does not build")
        pairs: list[tuple[float, float]] = []
        ratio = None
        while len(pairs) < MOST_PAIRS and not (len(pairs) >= 5 and enough(ratio)):
            after, before = (math.exp(levels[place] + drawn.gauss(0.0, noise)) for place in (later, earlier))
            pairs.append((after, before))
            ratio = statistics.paired_ratio(pairs)
        return ratio

    return bisection.search(len(levels) - 1, measure, threshold)


def wrong(levels: Sequence[float], found: BisectionOutcome) -> bool:
    """Whether an answer is false: a difference that is not there, or suspects on the wrong side of the border.

    A search that the ends do not decide names no suspects.
    """
    if found.outcome == "no regression" or (found.outcome == "undecided" and len(found.trials) == 1):
        return False
    if levels[-1] <= levels[0]:
        return True
    border = math.log(found.trials[0].border)
    return not levels[found.last_good] < border < levels[found.first_bad]


SEARCHES = 300
STEP = [0.0] * 5 + [0.06] * 12
"""The sixth of 17 candidates is slower by 6 %."""
HARD = [0.0] * 3 + [0.025] * 6
GRADUAL = [0.01 * place for place in range(17)]
EQUAL = [0.0] * 9
NEAR = [0.0, 0.07, 0.09, 0.16]
"""Two candidates near the border, on either side."""
TWO_EQUAL = [0.0] * 2
EQUAL_BUT_THE_LAST = [0.0] * 8 + [0.06]


@pytest.mark.parametrize(
    ("levels", "noise", "threshold", "broken"),
    [
        pytest.param(STEP, 0.02, 0.03, (), marks=pytest.mark.slow), (STEP, 0.02, 0.03, (3, 4, 5)),
        pytest.param(HARD, 0.02, 0.0, (), marks=pytest.mark.slow),
        pytest.param(GRADUAL, 0.02, 0.05, (), marks=pytest.mark.slow), (NEAR, 0.03, 0.05, ()), (EQUAL, 0.03, 0.0, ()),
        (TWO_EQUAL, 0.03, 0.0, ()), (EQUAL_BUT_THE_LAST, 0.02, 0.03, ()),
    ],
    ids=[
        "a step", "broken candidates", "a small step", "many small steps", "near the border", "no difference", "two equal",
        "equal but the last",
    ],
)  # fmt: skip
def test_at_most_one_search_in_twenty_names_a_wrong_change(
    levels: list[float], noise: float, threshold: float, broken: tuple[int, ...]
) -> None:
    searches = [simulated(levels, noise, threshold, seed, broken) for seed in range(SEARCHES)]
    assert not broken or any(found.outcome == "one of several" for found in searches)
    errors = sum(wrong(levels, found) for found in searches)
    # 5 % of them, and what chance adds to that in 999 of 1,000 such tests.
    assert errors <= special.bdtrik(0.999, SEARCHES, 0.05), errors
    assert all(math.fsum(trial.level for trial in found.trials) <= 0.05 + 1e-12 for found in searches)


def test_tests_that_do_not_share_their_level_name_wrong_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def uncorrected(ratio: Ratio, border: float) -> tuple[float, float]:
        error = statistics._error(ratio)
        if error is None or not ratio.has_enough_pairs:
            return 1.0, 1.0
        t = math.log(ratio.value / border) / error
        one_look = [float(special.stdtr(ratio.n - 1, side * t)) for side in (-1.0, 1.0)]
        return one_look[0] / 5, one_look[1] / 5  # as if each of the tests had the whole level, and one look

    monkeypatch.setattr(bisection, "one_sided_p_values", uncorrected)  # the defect
    errors = sum(wrong(NEAR, simulated(NEAR, 0.03, 0.05, seed)) for seed in range(SEARCHES))
    assert errors > special.bdtrik(0.999, SEARCHES, 0.05)


def test_the_ends_alone_set_the_border_before_a_candidate_is_measured() -> None:
    searches = [simulated(levels, 0.02, 0.03, seed) for levels in (STEP, GRADUAL) for seed in range(10)]
    searched = [found.trials for found in searches if len(found.trials) > 1]
    assert len(searched) > 10
    for ends, *others in searched:
        assert ends.ratio is not None and ends.border == pytest.approx(math.sqrt(ends.ratio.value))
        assert {trial.border for trial in others if trial.what == "a candidate"} <= {ends.border}


def test_a_border_from_the_pairs_of_the_ends_finds_no_difference_that_a_test_against_one_does_not() -> None:
    ends = [simulated([0.0, level], 0.03, 0.0, seed).trials[0] for level in (0.0, 0.02, 0.04) for seed in range(100)]
    bad = [trial for trial in ends if trial.verdict == "bad"]
    assert len(bad) > 20
    for trial in bad:
        assert trial.ratio is not None and statistics.one_sided_p_values(trial.ratio, 1.0)[0] < trial.level


def test_ends_whose_difference_is_not_tested_name_wrong_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def untested(ratio: Ratio, level: float, threshold: float) -> tuple[float, bisection.Verdict]:
        return math.sqrt(ratio.value), "bad" if ratio.value > 1.0 + threshold else "good"

    monkeypatch.setattr(bisection, "_judge_ends", untested)  # the defect
    errors = sum(wrong(EQUAL, simulated(EQUAL, 0.03, 0.0, seed)) for seed in range(100))
    assert errors > special.bdtrik(0.999, 100, 0.05)


def power(slowdown: float, noise: float) -> tuple[int, int]:
    """(searches that find the slow one of 17 changes, mean number of their pairs)."""
    levels = [0.0] * 9 + [math.log1p(slowdown)] * 9
    searches = [simulated(levels, noise, 0.05, seed) for seed in range(SEARCHES)]
    pairs = [sum(trial.ratio.n for trial in found.trials if trial.ratio) for found in searches]
    return sum((found.outcome, found.first_bad) == ("found", 9) for found in searches), round(sum(pairs) / SEARCHES)


@pytest.mark.slow
def test_the_page_says_what_a_search_finds() -> None:
    page = (launch.PROJECT_ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) % \| (\d+) % \| (\d+) of 300 \| (\d+) \|$", page, re.MULTILINE)
    made = [(int(slowdown), int(noise), *power(int(slowdown) / 100, int(noise) / 100)) for slowdown, noise, _, _ in rows]
    assert len(rows) == 4 and [tuple(map(int, row)) for row in rows] == made


def test_a_ratio_is_beside_a_border_by_the_test_that_shows_that_it_is_smaller() -> None:
    ratio = statistics.paired_ratio([(1.01 + 0.01 * place, 1.0) for place in range(6)])
    assert ratio is not None
    (judged,) = statistics.verdicts([("it", ratio)], 0.06)
    above, below = statistics.one_sided_p_values(ratio, 1.06)
    assert below == pytest.approx(judged.smaller_p) and below < 0.05 < above
    assert statistics.one_sided_p_values(ratio, 0.95)[0] < 0.001
    few = statistics.paired_ratio([(1.2, 1.0), (1.21, 1.0), (1.2, 1.0), (1.22, 1.0)])
    assert few is not None and statistics.one_sided_p_values(few, 1.0) == (1.0, 1.0)
    same = statistics.paired_ratio([(1.2, 1.0)] * 5)
    assert same is not None and statistics.one_sided_p_values(same, 1.0)[0] < 1e-9


def test_a_clear_step_is_found_wherever_it_is_in_few_tests() -> None:
    for number in (1, 2, 3, 8, 17):
        for first_bad in range(1, number + 1):
            levels = [0.0] * first_bad + [0.2] * (number + 1 - first_bad)
            found = simulated(levels, 0.01, 0.05, seed=first_bad)
            assert (found.outcome, found.first_bad, found.last_good) == ("found", first_bad, first_bad - 1)
            assert len(found.trials) <= 2 + math.ceil(math.log2(number))


def test_many_small_steps_are_no_single_change() -> None:
    searches = [simulated([0.02 * place for place in range(9)], 0.01, 0.05, seed) for seed in range(20)]
    assert {found.outcome for found in searches} <= {"gradual", "undecided", "found"}
    assert any(found.outcome != "found" for found in searches)


def test_ends_that_are_equal_end_the_search_at_once() -> None:
    for levels in ([0.0] * 5, [0.0, 0.0, -0.2]):
        found = simulated(levels, 0.01, 0.05, seed=1)
        assert (found.outcome, len(found.trials), found.suspects) == ("no regression", 1, [])


def test_candidates_that_cannot_be_measured_are_left_out() -> None:
    def measure(earlier: int, later: int, enough: Enough) -> Ratio | None:
        if later in (3, 4):
            raise Unmeasurable("it does not build")
        return statistics.paired_ratio([((1.2 if later >= 4 else 1.0) + 0.001 * place, 1.0) for place in range(6)])

    found = bisection.search(8, measure, 0.05)
    assert found.outcome == "one of several" and found.suspects == [3, 4, 5]
    assert found.skipped == {3: "it does not build", 4: "it does not build"}
    assert bisection.search(8, measure, 0.05, {3: "known", 4: "before"}).skipped == {3: "known", 4: "before"}
    with pytest.raises(Unmeasurable):
        bisection.search(4, measure, 0.05)


# With a repository, and runs that take no time.


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine commits, made once: each costs two processes. The sixth is slow; two change nothing that a run uses."""
    folder = initialised(tmp_path_factory.mktemp("history") / "repository")
    commit(folder, "zero", {"requirements.lock": "torch==1\n", "common/state": "0", "common/spec.py": spec_module()})
    for number in range(1, 7):
        commit(folder, f"change {number}", {"common/state": str(number)})
    commit(folder, "words", {"docs/page.md": "words"})
    commit(folder, "more words", {"docs/page.md": "more words"})
    return folder


@pytest.fixture
def repository(history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the nine commits in the place of the suite's own."""
    folder = shutil.copytree(history, tmp_path / "repository", symlinks=True)
    monkeypatch.setattr(machine, "PROJECT_ROOT", folder)  # the commands know no other suite than their own
    return folder


def commit_of(repository: Path, number: int) -> str:
    return git(repository, "log", "--format=%H", f"--grep=^change {number}$" if number else "--grep=^zero$")


@pytest.fixture
def stand_in(repository: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Runs that are slow from the fifth change on."""
    return StandIn(lambda state: (2.0 if int(state) < 5 else 3.0) + 0.001 * int(state), "common/state").install(monkeypatch)


bisect = partial(convtwins, "bisect")
ONE_ROW = ("--frameworks", "pytorch", "--metric", "seconds_per_epoch")


def test_the_first_slow_commit_of_a_repository_is_found(repository: Path, stand_in: StandIn, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = bisect("--good", commit_of(repository, 0), "--bad", "HEAD", *ONE_ROW, "--out", out).succeeded()
    slow = commit_of(repository, 5)
    assert f"  Verdict   First bad: {slow[:8]} change 5. It made seconds per epoch 1.5" in done.stdout
    stored = json.loads((out / "bisect.json").read_text())
    assert schemas.faults("bisect", stored) == []
    assert stored["first_bad"] == slow and stored["suspects"] == [slow] and len(stored["candidates"]) == 7
    assert stored["candidates"][-1]["title"].endswith("change 6")  # what no run uses is no candidate
    assert worktrees(repository) == 1
    # Each test may be judged again by itself, and the whole search is not repeated.
    zero, last = (stored["candidates"][place]["identity"][:8] for place in (0, -1))
    assert convtwins("regress", out / f"{zero}-{last}").exit_code in (3, 5)
    runs = len(stand_in.done)
    assert bisect("--good", commit_of(repository, 0), *ONE_ROW, "--out", out).stdout == done.stdout
    assert len(stand_in.done) == runs
    check_ended(bisect("--good", commit_of(repository, 1), *ONE_ROW, "--out", out), names=[out, "another bisection"])


def test_an_interrupted_search_goes_on_where_it_was(repository: Path, stand_in: StandIn, tmp_path: Path) -> None:
    out, words = tmp_path / "out", ("--good", commit_of(repository, 0), *ONE_ROW)

    def interrupt(run: RunResult, folder: Path) -> RunResult:
        if len(stand_in.done) == 17:
            raise Interrupted(signal.SIGINT)
        return run

    stand_in.behaviour = interrupt
    done = bisect(*words, "--out", out)
    assert done.exit_code == 130 and f"--out {out}" in done.stderr and worktrees(repository) == 1
    before = len(stand_in.done)
    assert before == 17
    stand_in.behaviour = whole
    done = bisect(*words, "--out", out, "--full").succeeded()
    resumed = len(stand_in.done) - before
    fresh = bisect(*words, "--out", tmp_path / "fresh", "--full")
    assert fresh.stdout.splitlines()[0] == done.stdout.splitlines()[0] and "change 5" in done.stdout
    # The second start warms up two sides again, and repeats one half of a pair.
    assert before + resumed <= len(stand_in.done) - before - resumed + 3


def test_a_search_on_a_busy_machine_stops_early_names_the_disturbance_and_goes_on_later(
    repository: Path, stand_in: StandIn, tmp_path: Path
) -> None:
    def disturbed(run: RunResult, folder: Path) -> RunResult:
        return comparisons.with_fields(run, noise=Noise(cores_taken=0.97 if folder.name == "head" else 0.1))

    words = ("--good", commit_of(repository, 0), *ONE_ROW, "--most-repeats", "5", "--out", tmp_path / "out")
    stand_in.behaviour = disturbed
    done = bisect(*words)
    last = f"{commit_of(repository, 6)[:8]} change 6"
    assert done.exit_code == 5 and len(stand_in.done) == 2 + 2 * records.WASTED_PAIRS
    shown = " ".join(done.stdout.split())
    assert (
        "Verdict CANNOT TELL whether the branch is slower: other programs took cores from 3 of 3 pairs. Exit code 5." in shown
    )
    assert f"3 of 3 runs of {last} were disturbed" in shown
    assert "3 of 3 runs" in shown and "0.97 cores of a budget of 2" in shown
    assert f"--out {tmp_path / 'out'}" in shown and "unknown" not in shown and "6 commits" in shown
    stand_in.done.clear()
    stand_in.behaviour = whole
    done = bisect(*words).succeeded()
    assert "change 5" in done.stdout
    # The pairs that did not count are made again.
    assert [(state, repeat) for state, _, repeat in stand_in.done[2:4]] == [("0", 0), ("6", 0)]
    done = bisect(*words).succeeded()
    trials = json.loads((tmp_path / "out" / "bisect.json").read_text())["search"]["trials"]
    assert done.stderr.count("decide already") == len(trials) > 1


def test_a_disturbed_commit_within_leaves_the_verdict_on_the_branch(
    repository: Path, stand_in: StandIn, tmp_path: Path
) -> None:
    middle = commit_of(repository, 3)[:8]
    stand_in.behaviour = lambda run, folder: comparisons.with_fields(
        run, noise=Noise(cores_taken=0.97 if folder.parent.name.endswith(middle) else 0.1)
    )
    words = ("--good", commit_of(repository, 0), *ONE_ROW, "--out", tmp_path / "out")
    done = bisect(*words)
    shown = " ".join(done.stdout.split())
    assert done.exit_code == 5 and "Verdict The branch is slower: 1.5" in shown
    assert "Not yet known which of 6 commits. Exit code 5." in shown
    assert f"At {middle} change 3: other programs took cores from 3 of 3 pairs." in shown
    assert f"commit {middle}, pair 3 of at most 30, head" in done.stderr and " left" not in done.stderr
    stand_in.behaviour = whole
    assert "change 5" in bisect(*words).succeeded().stdout


def test_a_disturbed_test_of_the_change_itself_goes_on(repository: Path, stand_in: StandIn, tmp_path: Path) -> None:
    places = [commit_of(repository, number)[:8] for number in (4, 5)]
    stand_in.behaviour = lambda run, folder: comparisons.with_fields(
        run, noise=Noise(cores_taken=0.97 if folder.parent.name == "-".join(places) else 0.1)
    )
    words = ("--good", commit_of(repository, 0), *ONE_ROW, "--out", tmp_path / "out")
    done = bisect(*words)
    shown = " ".join(done.stdout.split())
    assert done.exit_code == 5 and f"Not yet known whether {places[1]} change 5 alone made it so." in shown
    assert "go on when the machine is idle" in shown
    stand_in.behaviour = whole
    assert "First bad:" in bisect(*words).succeeded().stdout


def test_pairs_that_a_disturbance_does_not_spoil_count_on(repository: Path, stand_in: StandIn, tmp_path: Path) -> None:
    """Memory does not depend on other work."""
    stand_in.behaviour = lambda run, folder: comparisons.with_fields(
        run, peak_memory_mib=256.0 * run.epochs[0].timed_seconds, noise=Noise(cores_taken=0.97)
    )
    words = ("--frameworks", "pytorch", "--metric", "peak_memory_mib", "--out", tmp_path / "out")
    done = bisect("--good", commit_of(repository, 0), *words).succeeded()
    assert "change 5" in done.stdout and "disturbed" not in done.stdout, done.output


def test_the_subject_of_a_commit_is_cut_in_a_report(repository: Path, stand_in: StandIn, tmp_path: Path) -> None:
    commit(repository, f"a long subject {'of many words ' * 9}that ends", {"common/state": "7"})
    found = convtwins_json("bisect", "--good", commit_of(repository, 4), *ONE_ROW, "--out", tmp_path / "out")
    title = found["candidates"][-1]["title"]
    assert len(title) == 8 + 1 + 48 and "a long subject of many" in title and title.endswith("that ends")


def test_commits_that_cannot_be_measured_are_named_and_left_out(repository: Path, stand_in: StandIn, tmp_path: Path) -> None:
    commit(repository, "other packages", {"requirements.lock": "torch==2\n", "common/state": "7"})
    commit(repository, "packages back", {"requirements.lock": "torch==1\n", "common/state": "broken"})
    commit(repository, "mended", {"common/state": "8"})
    good = commit_of(repository, 4)
    found = convtwins_json("bisect", "--good", good, *ONE_ROW, "--out", tmp_path / "out")
    assert found["first_bad"] == commit_of(repository, 5)
    assert any("requirements.lock" in reason for reason in found["search"]["skipped"].values())
    commit(repository, "broken end", {"common/state": "broken"})
    done = bisect("--good", good, *ONE_ROW, "--out", tmp_path / "other")
    check_ended(done, names=["exit code 1: it does not build"])


def test_an_undecided_search_goes_on_with_more_pairs(repository: Path, stand_in: StandIn, tmp_path: Path) -> None:
    """The runs that are there count on: no test is begun again."""

    def noisy(run: RunResult, folder: Path) -> RunResult:
        return comparisons.paced(run, 1.6 if run.repeat < 5 and run.repeat % 2 and folder.name == "head" else 1.0)

    stand_in.behaviour = noisy
    words = ("--good", commit_of(repository, 4), *ONE_ROW, "--out", tmp_path / "out")
    assert bisect(*words, "--most-repeats", "5").exit_code == 5
    runs = len(stand_in.done)
    done = bisect(*words, "--most-repeats", "40").succeeded()
    assert "change 5" in done.stdout, done.output
    assert stand_in.done[runs + 2][2] == 5  # after the warm-up of both sides
    stored = json.loads((tmp_path / "out" / "bisection.json").read_text())
    assert (stored["most_repeats"], len(stored["seeds"])) == (40, 40)


def test_a_good_end_on_a_side_branch_is_refused(repository: Path, stand_in: StandIn, tmp_path: Path) -> None:
    git(repository, "checkout", "-q", "-b", "side", commit_of(repository, 2))
    commit(repository, "aside", {"common/aside": "1"})
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-edit", "side")
    check_ended(bisect("--good", "side", *ONE_ROW, "--out", tmp_path / "out"), received="side and HEAD", fix="merge")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--good", "nowhere"), {"names": ["'nowhere'"]}),
        (("--good", "HEAD", "--bad", "HEAD~3"), {"field": "--good", "names": ["--bad"]}),
        (("--good", "HEAD~1"), {"names": ["HEAD~1", "HEAD"]}),
        (("--good", "HEAD~3", "--frameworks", "pytorch,tensorflow"), {"field": "one row"}),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_runs(
    repository: Path, stand_in: StandIn, tmp_path: Path, words: tuple[str, ...], parts: dict[str, Any]
) -> None:
    check_ended(bisect("--frameworks", "pytorch", *words, "--out", tmp_path / "out"), **parts)
    assert stand_in.done == [] and worktrees(repository) == 1


# Environments in order.


def test_the_first_slow_environment_is_found(
    recorded: StandIn, interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    pythons = interpreters(4)
    recorded.seconds = lambda python: 2.0 if pythons.index(Path(python)) < 2 else 3.0
    words = ["--contestant", "it=left", "--out", tmp_path / "out"]
    assert convtwins_json("bisect", "--environments", *pythons, *words)["first_bad"] == str(pythons[2])
    check_ended(bisect("--environments", pythons[0], *words), field="--environments", names=["two or more"])


def test_a_bisection_does_not_go_on_in_another_environment(
    recorded: StandIn, interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    pythons = interpreters(2)
    words = ["--environments", *pythons, "--contestant", "it=left", "--out", tmp_path / "out"]
    found = convtwins_json("bisect", *words)
    assert found["first_bad"] == str(pythons[1])
    assert found["environments"] == [f"{pythons[0]} against {pythons[1]}: newer 0.0 against 1.0."]
    runs = len(recorded.done)
    upgrade(pythons[1])
    check_ended(bisect(*words), names=[tmp_path / "out", "another bisection", "distributions_hashes"])
    assert len(recorded.done) == runs


def broken(python: Path) -> None:
    """Let an interpreter end with an error, whatever it runs."""
    python.unlink()
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)


def test_an_environment_that_cannot_run_is_left_out_and_the_answer_lies_between_several(
    recorded: StandIn, interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    pythons = interpreters(5)
    broken(pythons[3])
    recorded.seconds = lambda python: 2.0 if pythons.index(Path(python)) < 3 else 3.0
    words = ["--environments", *pythons, "--contestant", "it=left", "--out", tmp_path / "out"]
    found = convtwins_json("bisect", *words, exit_code=5)
    assert found["first_bad"] is None and found["suspects"] == [str(python) for python in pythons[3:]]
    assert found["environments"] == [f"{pythons[2]} against {pythons[4]}: newer 2.0 against 4.0."]
    assert found["search"]["outcome"] == "one of several" and [*found["search"]["skipped"]] == ["3"]
    shown = "".join(bisect(*words).stdout.split())  # a long path may be folded
    assert f"{pythons[3]}wasleftout:Theinterpreterofitdoesnotwork(exitcode3):{pythons[3]}." in shown
    assert "Thefirstbadoneisamong2thatcouldnotbetoldapart." in shown
    broken(pythons[0])
    check_ended(bisect(*words[:-1], tmp_path / "other"), names=["does not work", pythons[0]])


def test_a_search_goes_on_when_an_environment_that_could_not_run_is_repaired(
    recorded: StandIn, interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    pythons = interpreters(3)
    whole_python = pythons[1].rename(tmp_path / "whole")
    recorded.seconds = lambda python: 2.0 if pythons.index(Path(python)) < 1 else 3.0
    words = ["--environments", *pythons, "--contestant", "it=left", "--out", tmp_path / "out"]

    def break_middle() -> None:
        pythons[1].write_text("#!/bin/sh\nexit 3\n")
        pythons[1].chmod(0o755)

    break_middle()
    ended = bisect(*words)
    assert ended.exit_code == 5
    assert f"{pythons[1]} is left out: The interpreter of it does not work (exit code 3)" in ended.stderr
    pythons[1].unlink()
    shutil.copyfile(whole_python, pythons[1], follow_symlinks=False)
    assert convtwins_json("bisect", *words)["first_bad"] == str(pythons[1])
    repaired = pythons[1].rename(tmp_path / "repaired")
    break_middle()
    assert bisect(*words).exit_code == 5
    repaired.rename(pythons[1])
    upgrade(pythons[1])
    check_ended(bisect(*words), names=["another bisection", "distributions_hashes.1"])


def test_an_environment_that_does_not_answer_in_time_is_not_left_out(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)

    def prepare(place: int) -> None:
        if place == 1:
            benchmark_sides.from_environment("head", str(python), answer_seconds=0.3)

    environments = [Candidate(f"environment-{place + 1}", f"env{place}", f"env{place}") for place in range(3)]
    with refused(NoAnswerError, received=python, names="0.3 s"):
        candidates.prepare_each(environments, prepare)


def test_an_environment_that_is_not_there_is_refused_as_it_was_typed(
    recorded: StandIn, interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    first, last = interpreters(2)
    words = ["--environments", first, "torch-999", last, "--contestant", "it=left", "--out", tmp_path / "out"]
    check_ended(bisect(*words), field="--environments", names="Received: torch-999.", fix="env create")


def test_an_environment_that_is_not_there_is_refused_before_anything_runs(
    recorded: StandIn, interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    first, last = interpreters(2)
    words = ["--environments", first, tmp_path / "nowhere", last, "--contestant", "it=left", "--out", tmp_path / "out"]
    check_ended(bisect(*words), field="--environments", received=tmp_path / "nowhere", fix="env create")
    assert recorded.done == []


# For real.


@pytest.mark.slow
def test_memory_planted_in_one_of_several_commits_is_found(tmp_path: Path) -> None:
    clone = copied(tmp_path / "clone")
    code = (clone / PLANTED).read_text()
    for number in range(3):
        kept = "" if number == 0 else 'KEPT = b"x" * (500 * 2**20)\n'
        commit(clone, f"change {number}", {str(PLANTED): f"{code}\n\n{kept}# {number}\n"})
    words = ["--good", "HEAD~2", "--metric", "peak_memory_mib", "--frameworks", "pytorch", "--epochs", "1", "--limit", "100"]
    done = convtwins_process(
        "bisect", *words, "--json", "--out", tmp_path / "out", folder=clone, timeout=TIMEOUT_SECONDS
    ).succeeded()
    assert done.json["first_bad"] == git(clone, "rev-parse", "HEAD~1")
    assert worktrees(clone) == 1
