"""What `make bench` saves, made by pytest-benchmark itself: its own tools read it, and so do `regress` and `history`."""

import sys
from pathlib import Path
from typing import Any

import pytest

from common.machine import machine
from compare.cli.errors import FolderError
from compare.tools.regression import history, measurements, regress
from compare.tools.regression.records import Criteria
from tests.support import processes, trees
from tests.support.processes import git
from tests.support.refusals import refused

BENCHMARK = """
import pytest

class Clock:
    now = 0.0
    def __call__(self):
        return self.now

CLOCK = Clock()

def tick():
    CLOCK.now += 0.25

@pytest.mark.benchmark(timer=CLOCK)
def test_a_tick(benchmark, framework):
    benchmark.pedantic(tick, rounds=6)
"""


SAVING = ("-p", "no:cacheprovider", "--benchmark-only", "--benchmark-autosave")


def run_pytest(*words: object, **how: Any) -> None:
    """Run pytest in a process that knows nothing of this one."""
    alone = {"PYTEST_ADDOPTS": None, "PYTEST_XDIST_WORKER": None, "PYTHONDONTWRITEBYTECODE": "1"}
    processes.python("-m", "pytest", *SAVING, *words, **alone, **how).succeeded()


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Two saved files of one benchmark that takes a quarter of a second by its own clock."""
    trees.write(tmp_path, {"test_ticks.py": BENCHMARK})
    suite = ("-p", "tests.conftest", "-p", "tests.benchmarks.conftest", "--framework", "pytorch")
    for _ in range(2):
        run_pytest(*suite, "--benchmark-save-data", f"--benchmark-storage={tmp_path / 'kept'}", tmp_path / "test_ticks.py")
    return tmp_path / "kept"


@pytest.mark.slow
def test_saved_benchmarks_are_read_by_both_tools(storage: Path) -> None:
    first, _ = sorted(storage.rglob("*.json"))
    measurement = measurements.read(first)
    (subject,) = measurement.subjects.values()
    assert subject.name == "test_a_tick[pytorch]"
    assert subject.samples == {"seconds": {0: 0.25}} and subject.spreads["seconds"].n == 6
    facts = machine.describe()
    assert measurement.machine == {fact: facts.get(fact) for fact in machine.IDENTITY}
    assert measurement.versions["torch"] == machine.versions("torch")["torch"]
    if facts["commit"]:
        assert measurement.commit == facts["commit"] and measurement.committed_at is not None
    assert regress.judge_stored(first, None, Criteria()).exit_code == 5  # a process a side is no sample of either
    (together,) = measurements.read(storage).subjects.values()
    assert together.samples == {"seconds": {0: 0.25, 1: 0.25}}
    assert [point.value.median for point in history.points(storage, ["seconds"], separate_files=True)[0]] == [0.25, 0.25]
    tool = Path(sys.executable).with_name("pytest-benchmark")
    shown = processes.run([tool, "--storage", storage, "compare", "0001", "0002"]).succeeded()
    assert shown.stdout.count("test_a_tick[pytorch]") == 2


WORK = """
import os

class Clock:
    now = 0.0
    def __call__(self):
        return self.now

CLOCK = Clock()

def work():
    CLOCK.now += SECONDS * (1 + float(os.environ["NOISE"]))
"""
OF_WORK = """
import pytest
from work import CLOCK, work

@pytest.mark.benchmark(timer=CLOCK)
def test_work(benchmark):
    benchmark.pedantic(work, rounds=5)
"""


@pytest.mark.slow
def test_two_commits_in_the_default_storage_of_any_project_are_compared(tmp_path: Path) -> None:
    """A project that knows nothing of this suite saves both into `.benchmarks`: in turn, then with changes, then a third."""
    team = trees.write(tmp_path / "team", {"test_work.py": OF_WORK})
    git(team, "init", "-q", "-b", "main")
    for seconds, tag in ((0.25, "base"), (0.5, "slower")):
        trees.write(team, {"work.py": WORK.replace("SECONDS", str(seconds))})
        git(team, "add", "test_work.py", "work.py")
        git(team, "commit", "-q", "-m", tag)
        git(team, "tag", tag)

    def measure(number: int) -> None:
        run_pytest("--rootdir", team, "test_work.py", folder=team, NOISE=str(0.01 * (number % 3)))

    for number, tag in enumerate(("base", "slower", "slower", "base", "base", "slower", "slower", "base", "base", "slower")):
        git(team, "checkout", "-q", tag)
        measure(number)
    storage = team / ".benchmarks"
    judged = regress.judge_stored(storage, None, Criteria())
    assert judged.paired and judged.exit_code == 3 and judged.changes[0].change.n == 5
    assert judged.changes[0].change.value == pytest.approx(2.0, rel=0.01)
    commits = [git(team, "rev-parse", tag)[:8] for tag in ("base", "slower")]
    assert [judged.baseline.commit, judged.candidate.commit] == commits
    rows, *_ = history.points(storage, ["seconds"])
    assert sorted((point.commit_name, point.value.n, point.of) for point in rows) == sorted(
        (commit, 5, "files") for commit in commits
    )
    (team / "work.py").write_text((team / "work.py").read_text() + "# a change\n")
    measure(0)
    with refused(FolderError, field=str(storage), names=("3 commits", f"{commits[1]}+changes", "1 file")):
        regress.judge_stored(storage, None, Criteria())
    named = regress.judge_stored(Path(f"{storage}@base"), Path(f"{storage}@slower"), Criteria())
    assert named.changes == judged.changes and any(
        "uncommitted" in caution and "left out" in caution for caution in named.cautions
    )
