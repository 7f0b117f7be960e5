"""The search for the first bad change: how often it names a wrong one, and what it does with a real repository."""

import json
import math
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import special

from common.artifacts import results
from common.artifacts.schema import Noise, RunResult
from common.machine import machine
from compare.comparison import comparison_plan, run
from compare.core import statistics
from compare.core.interrupt import Interrupted
from compare.core.statistics import Ratio
from compare.execution import contestants, executor, launch, store
from compare.execution.executor import CodeOverride
from compare.execution.matrix import Row
from compare.regression import bisection, candidates
from compare.regression.bisection import BisectionOutcome, Enough, Unmeasurable
from tests.compare import test_schema
from tests.compare.regression.conftest import upgrade
from tests.compare.regression.repository import copied, git
from tests.compare.regression.test_regress_for_real import PLANTED
from tests.compare.regression.test_revisions import commit, spec_module, worktrees
from tests.support import comparisons
from tests.support.command_line import convtwins

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


@pytest.mark.parametrize(
    ("levels", "noise", "threshold", "broken"),
    [
        pytest.param(STEP, 0.02, 0.03, (), marks=pytest.mark.slow), (STEP, 0.02, 0.03, (3, 4, 5)),
        pytest.param(HARD, 0.02, 0.0, (), marks=pytest.mark.slow),
        pytest.param(GRADUAL, 0.02, 0.05, (), marks=pytest.mark.slow), (NEAR, 0.03, 0.05, ()), (EQUAL, 0.03, 0.0, ()),
    ],
    ids=["a step", "broken candidates", "a small step", "many small steps", "near the border", "no difference"],
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

    monkeypatch.setattr(bisection, "one_sided_p_values", uncorrected)
    errors = sum(wrong(NEAR, simulated(NEAR, 0.03, 0.05, seed)) for seed in range(SEARCHES))
    assert errors > special.bdtrik(0.999, SEARCHES, 0.05)


def power(slowdown: float, noise: float) -> tuple[int, int]:
    """(searches that find the slow one of 17 changes, mean number of their pairs)."""
    levels = [0.0] * 9 + [math.log1p(slowdown)] * 9
    searches = [simulated(levels, noise, 0.05, seed) for seed in range(SEARCHES)]
    pairs = [sum(trial.ratio.n for trial in found.trials if trial.ratio) for found in searches]
    return sum((found.outcome, found.first_bad) == ("found", 9) for found in searches), round(sum(pairs) / SEARCHES)


@pytest.mark.slow
def test_the_page_says_what_a_search_finds() -> None:
    page = (launch.PROJECT_ROOT / "docs" / "regressions.md").read_text(encoding="utf-8")
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
    folder = tmp_path_factory.mktemp("history") / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
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
    monkeypatch.setattr(machine, "PROJECT_ROOT", folder)
    return folder


def commit_of(repository: Path, number: int) -> str:
    return git(repository, "log", "--format=%H", f"--grep=^change {number}$" if number else "--grep=^zero$")


@pytest.fixture
def stand_in(repository: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Runs that take no time; gives (state of the code, repeat) of each."""
    done: list[tuple[str, int]] = []
    here = {"processor": "Some CPU", "logical_cores": 2, "commit": git(repository, "rev-parse", "HEAD"), "dirty": False}

    def judged(request: run.ComparisonRequest, shown: Any) -> store.Comparison:
        own = {"machine": here, "seeds": list(request.settings.seeds)}
        rows = [comparisons.row(name) for name in request.frameworks]
        return comparisons.comparison(rows, request.settings.repeats).model_copy(update=own)

    def execute(row: Row, repeat: int, folder: Path, watch: Any, code: CodeOverride) -> RunResult:
        state = (code.root / "common/state").read_text()
        done.append((state, repeat))
        code.spec_json(row)
        if state == "broken":
            return comparisons.bad(row, "failed", "exit code 1: it does not build", epochs=0)
        seconds = (2.0 if int(state) < 5 else 3.0) * (1 + 0.01 * (repeat % 3) + 0.001 * int(state))
        made_up = comparisons.good(row, seconds, repeat)
        results.save(made_up, store.run_folder(folder, row.id, repeat))
        return made_up

    monkeypatch.setattr(comparison_plan, "build_plan", judged)
    monkeypatch.setattr(executor, "execute", execute)
    return done


def bisect(*words: str | Path) -> Any:
    return convtwins("bisect", *words, COLUMNS="200")


ONE_ROW = ("--frameworks", "pytorch", "--metric", "seconds_per_epoch")


def test_the_first_slow_commit_of_a_repository_is_found(
    repository: Path, stand_in: list[tuple[str, int]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = bisect("--good", commit_of(repository, 0), "--bad", "HEAD", *ONE_ROW, "--out", out)
    assert done.exit_code == 0, done.output
    slow = commit_of(repository, 5)
    assert f"  Verdict   First bad: {slow[:8]} change 5. It made seconds per epoch 1.5" in done.stdout
    kept = json.loads((out / "bisect.json").read_text())
    assert test_schema.faults("bisect", kept) == []
    assert kept["first_bad"] == slow and kept["suspects"] == [slow] and len(kept["candidates"]) == 7
    assert kept["candidates"][-1]["title"].endswith("change 6")  # what no run uses is no candidate
    assert worktrees(repository) == 1
    # Each test may be judged again by itself, and the whole search is not repeated.
    zero, last = (kept["candidates"][place]["identity"][:8] for place in (0, -1))
    assert convtwins("regress", out / f"{zero}-{last}").exit_code in (3, 5)
    runs = len(stand_in)
    assert bisect("--good", commit_of(repository, 0), *ONE_ROW, "--out", out).stdout == done.stdout
    assert len(stand_in) == runs
    other = bisect("--good", commit_of(repository, 1), *ONE_ROW, "--out", out)
    assert other.exit_code == 2 and "holds another bisection" in other.stderr


def test_an_interrupted_search_goes_on_where_it_was(
    repository: Path, stand_in: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, words = tmp_path / "out", ("--good", commit_of(repository, 0), *ONE_ROW)
    whole, left = executor.execute, [17]

    def interrupted(*rest: Any) -> RunResult:
        if not left[0]:
            raise Interrupted(signal.SIGINT)
        left[0] -= 1
        return whole(*rest)

    with monkeypatch.context() as patch:
        patch.setattr(executor, "execute", interrupted)
        done = bisect(*words, "--out", out)
    assert done.exit_code == 130 and f"with --out {out} continues" in done.stderr and worktrees(repository) == 1
    before = len(stand_in)
    assert before == 17
    done = bisect(*words, "--out", out, "--full")
    assert done.exit_code == 0 and "change 5" in done.stdout
    resumed = len(stand_in) - before
    fresh = bisect(*words, "--out", tmp_path / "fresh", "--full")
    assert fresh.stdout.splitlines()[0] == done.stdout.splitlines()[0]
    # The second start warms up two sides again, and repeats one half of a pair.
    assert before + resumed <= len(stand_in) - before - resumed + 3


def test_a_search_on_a_busy_machine_stops_early_names_the_disturbance_and_goes_on_later(
    repository: Path, stand_in: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = executor.execute

    def disturbed(row: Row, repeat: int, folder: Path, watch: Any, code: CodeOverride) -> RunResult:
        taken = 0.97 if folder.name == "head" else 0.1
        made_up = whole(row, repeat, folder, watch, code).model_copy(update={"noise": Noise(cores_taken=taken)})
        results.save(made_up, store.run_folder(folder, row.id, repeat))
        return made_up

    words = ("--good", commit_of(repository, 0), *ONE_ROW, "--most-repeats", "5", "--out", tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(executor, "execute", disturbed)
        done = bisect(*words)
    last = f"{commit_of(repository, 6)[:8]} change 6"
    assert done.exit_code == 5 and len(stand_in) == 2 + 2 * candidates.WASTED_PAIRS
    said = " ".join(done.stdout.split())
    assert f"Verdict CANNOT TELL about {last}: other work disturbed 3 of 3 pairs. Exit code 5." in said
    assert f"3 of 3 runs of {last} were disturbed: other work or the hypervisor took 0.97 cores of a budget of 2" in said
    assert "Search on an idle machine: the same command with the same --out goes on" in said and "unknown" not in said
    assert "6 candidates after" in said
    del stand_in[:]
    done = bisect(*words)
    assert done.exit_code == 0 and "change 5" in done.stdout, done.output
    assert stand_in[2:4] == [("0", 0), ("6", 0)]  # the pairs that did not count are made again
    done = bisect(*words)
    assert done.exit_code == 0
    trials = json.loads((tmp_path / "out" / "bisect.json").read_text())["search"]["trials"]
    assert done.stderr.count("decide already") == len(trials) > 1


def test_pairs_that_a_disturbance_does_not_spoil_count_on(
    repository: Path, stand_in: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory does not depend on other work."""
    whole = executor.execute

    def disturbed(row: Row, repeat: int, folder: Path, watch: Any, code: CodeOverride) -> RunResult:
        made_up = whole(row, repeat, folder, watch, code)
        larger = {"peak_memory_mib": 256.0 * made_up.epochs[0].timed_seconds, "noise": Noise(cores_taken=0.97)}
        made_up = made_up.model_copy(update=larger)
        results.save(made_up, store.run_folder(folder, row.id, repeat))
        return made_up

    monkeypatch.setattr(executor, "execute", disturbed)
    words = ("--frameworks", "pytorch", "--metric", "peak_memory_mib", "--out", tmp_path / "out")
    done = bisect("--good", commit_of(repository, 0), *words)
    assert done.exit_code == 0 and "change 5" in done.stdout and "disturbed" not in done.stdout, done.output


def test_the_subject_of_a_commit_is_cut_in_a_report(repository: Path, stand_in: list[tuple[str, int]], tmp_path: Path) -> None:
    commit(repository, f"a long subject {'of many words ' * 9}that ends", {"common/state": "7"})
    done = bisect("--good", commit_of(repository, 4), *ONE_ROW, "--out", tmp_path / "out", "--json")
    title = json.loads(done.stdout)["candidates"][-1]["title"]
    assert len(title) == 8 + 1 + 48 and "a long subject of many" in title and title.endswith("that ends")


def test_commits_that_cannot_be_measured_are_named_and_left_out(
    repository: Path, stand_in: list[tuple[str, int]], tmp_path: Path
) -> None:
    commit(repository, "other packages", {"requirements.lock": "torch==2\n", "common/state": "7"})
    commit(repository, "packages back", {"requirements.lock": "torch==1\n", "common/state": "broken"})
    commit(repository, "mended", {"common/state": "8"})
    good = commit_of(repository, 4)
    done = bisect("--good", good, *ONE_ROW, "--out", tmp_path / "out", "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["first_bad"] == commit_of(repository, 5), done.output
    reasons = found["search"]["skipped"].values()
    assert any("requirements.lock differs" in reason for reason in reasons)
    commit(repository, "broken end", {"common/state": "broken"})
    done = bisect("--good", good, *ONE_ROW, "--out", tmp_path / "other")
    assert done.exit_code == 2 and "exit code 1: it does not build" in done.stderr


def test_an_undecided_search_goes_on_with_more_pairs(
    repository: Path, stand_in: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs that are there count on: no test is begun again."""
    whole = executor.execute

    def noisy(row: Row, repeat: int, folder: Path, watch: Any, code: CodeOverride) -> RunResult:
        made_up = whole(row, repeat, folder, watch, code)
        away = 1.6 if repeat < 5 and repeat % 2 and folder.name == "head" else 1.0
        made_up = comparisons.good(row, made_up.epochs[0].timed_seconds * away, repeat)
        results.save(made_up, store.run_folder(folder, row.id, repeat))
        return made_up

    monkeypatch.setattr(executor, "execute", noisy)
    words = ("--good", commit_of(repository, 4), *ONE_ROW, "--out", tmp_path / "out")
    assert bisect(*words, "--most-repeats", "5").exit_code == 5
    runs = len(stand_in)
    done = bisect(*words, "--most-repeats", "40")
    assert done.exit_code == 0 and "change 5" in done.stdout, done.output
    (first,) = {repeat for _, repeat in stand_in[runs + 2 : runs + 3]}
    assert first == 5  # after the warm-up of both sides
    kept = json.loads((tmp_path / "out" / "bisection.json").read_text())
    assert (kept["most_repeats"], len(kept["seeds"])) == (40, 40)


def test_a_good_end_on_a_side_branch_is_refused(repository: Path, stand_in: list[tuple[str, int]], tmp_path: Path) -> None:
    git(repository, "checkout", "-q", "-b", "side", commit_of(repository, 2))
    commit(repository, "aside", {"common/aside": "1"})
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-edit", "side")
    done = bisect("--good", "side", *ONE_ROW, "--out", tmp_path / "out")
    assert done.exit_code == 2 and "stands in it as its merge: name that one" in done.stderr, done.output


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--good", "nowhere"), "git knows no revision 'nowhere'"),
        (("--good", "HEAD", "--bad", "HEAD~3"), "--good must be an earlier revision than --bad"),
        (("--good", "HEAD~1"), "Nothing that a run uses changed from HEAD~1 to HEAD"),
        ((), "bisect needs --good REV or --environments A B ... Received: neither"),
        (("--good", "HEAD~3", "--environments", "a", "b"), "Received: both"),
        (("--environments", "a", "b", "--bad", "HEAD"), "--bad goes with --good. Received: HEAD with --environments"),
        (("--good", "HEAD~3", "b"), "Environments need --environments. Received: b"),
        (("--good", "HEAD~3", "--metric", "speed"), "--metric names something unknown"),
        (("--good", "HEAD~3", "--metric", "epoch_seconds,wall_seconds"), "bisect follows one metric"),
        (("--good", "HEAD~3", "--frameworks", "pytorch,tensorflow"), "bisect follows one row"),
        (("--good", "HEAD~3", "--most-repeats", "4"), "--most-repeats"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_runs(
    repository: Path, stand_in: list[tuple[str, int]], tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    row = () if "--frameworks" in words else ("--frameworks", "pytorch")
    done = bisect(*words, *row, "--out", tmp_path / "out")
    assert done.exit_code == 2 and reason in done.stderr, done.output
    assert stand_in == [] and worktrees(repository) == 1


# Environments in order.


def test_the_first_slow_environment_is_found(
    fake_twins: pytest.MonkeyPatch, interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    pythons = interpreters(4)

    def execute(row: Row, repeat: int, folder: Path, watch: Any, code: CodeOverride | None) -> RunResult:
        place = [str(python) for python in pythons].index(launch.interpreter(row.contestant))
        made_up = comparisons.good(row, (2.0 if place < 2 else 3.0) * (1 + 0.01 * (repeat % 3) + 0.001 * place), repeat)
        made_up = made_up.model_copy(update={"framework": row.framework})
        results.save(made_up, store.run_folder(folder, row.id, repeat))
        return made_up

    fake_twins.setattr(executor, "execute", execute)
    words = ["--contestant", "it=left", "--out", tmp_path / "out", "--json"]
    done = bisect("--environments", *pythons, *words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["first_bad"] == str(pythons[2])
    done = bisect("--environments", pythons[0], *words)
    assert done.exit_code == 2 and "takes two or more, each once" in done.stderr
    contestants.clear_registry()


def test_a_bisection_does_not_go_on_in_another_environment(
    recorded: list[tuple[str, str]], interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    pythons = interpreters(2)
    words = ["--environments", *pythons, "--contestant", "it=left", "--out", tmp_path / "out", "--json"]
    done = bisect(*words)
    assert done.exit_code == 0 and json.loads(done.stdout)["first_bad"] == str(pythons[1]), done.output
    assert json.loads(done.stdout)["environments"] == [f"{pythons[0]} against {pythons[1]}: newer 0.0 against 1.0."]
    runs = len(recorded)
    upgrade(pythons[1])
    launch.DESCRIPTIONS.clear()
    done = bisect(*words)
    assert done.exit_code == 2 and "holds another bisection (distributions_hashes is" in done.stderr, done.output
    assert len(recorded) == runs
    contestants.clear_registry()


# For real.


@pytest.mark.slow
def test_memory_planted_in_one_of_several_commits_is_found(tmp_path: Path) -> None:
    clone = copied(tmp_path / "clone")
    code = (clone / PLANTED).read_text()
    for number in range(3):
        kept = "" if number == 0 else 'KEPT = b"x" * (500 * 2**20)\n'
        commit(clone, f"change {number}", {str(PLANTED): f"{code}\n\n{kept}# {number}\n"})
    words = ["--good", "HEAD~2", "--metric", "peak_memory_mib", "--frameworks", "pytorch", "--epochs", "1", "--limit", "100"]
    command = [sys.executable, "-m", "compare", "bisect", *words, "--json", "--out", tmp_path / "out"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["first_bad"] == git(clone, "rev-parse", "HEAD~1")
    assert worktrees(clone) == 1
