"""What `make bench` saves, made by pytest-benchmark itself: its own tools read it, and so do `regress` and `history`."""

import subprocess
import sys
from pathlib import Path

import pytest

from common.machine import machine
from compare.core.errors import FolderError
from compare.execution import launch
from compare.judgement import measurements
from compare.regression import history, regress
from compare.regression.records import Criteria
from tests.compare.regression.repository import git

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


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Two saved files of one benchmark that takes a quarter of a second by its own clock."""
    (tmp_path / "test_ticks.py").write_text(BENCHMARK)
    plugins = ("-p", "tests.conftest", "-p", "tests.benchmarks.conftest", "-p", "no:cacheprovider")
    saving = ("--benchmark-only", "--benchmark-autosave", "--benchmark-save-data", f"--benchmark-storage={tmp_path / 'kept'}")
    command = [sys.executable, "-m", "pytest", *plugins, *saving, "--framework", "pytorch", str(tmp_path / "test_ticks.py")]
    for _ in range(2):
        done = subprocess.run(
            command, cwd=launch.PROJECT_ROOT, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return tmp_path / "kept"


@pytest.mark.slow
def test_saved_benchmarks_are_read_by_both_tools(storage: Path) -> None:
    first, _ = sorted(storage.rglob("*.json"))
    found = measurements.read(first)
    (subject,) = found.subjects.values()
    assert subject.name == "test_a_tick[pytorch]"
    assert subject.samples == {"seconds": {0: 0.25}} and subject.spreads["seconds"].n == 6
    facts = machine.describe()
    assert found.machine == {fact: facts.get(fact) for fact in machine.IDENTITY}
    assert found.versions["torch"] == machine.versions("torch")["torch"]
    if facts["commit"]:
        assert found.commit == facts["commit"] and found.committed_at is not None
    assert regress.judge_stored(first, None, Criteria()).exit_code == 5  # a process a side is no sample of either
    (together,) = measurements.read(storage).subjects.values()
    assert together.samples == {"seconds": {0: 0.25, 1: 0.25}}
    assert [point.value.median for point in history.points(storage, ["seconds"], separate_files=True)[0]] == [0.25, 0.25]
    tool = [str(Path(sys.executable).with_name("pytest-benchmark")), "--storage", str(storage), "compare"]
    shown = subprocess.run([*tool, "0001", "0002"], capture_output=True, text=True, check=True).stdout
    assert shown.count("test_a_tick[pytorch]") == 2


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
    team = tmp_path / "team"
    team.mkdir()
    git(team, "init", "-q", "-b", "main")
    (team / "test_work.py").write_text(OF_WORK)
    for seconds, tag in ((0.25, "base"), (0.5, "slower")):
        (team / "work.py").write_text(WORK.replace("SECONDS", str(seconds)))
        git(team, "add", "test_work.py", "work.py")
        git(team, "commit", "-q", "-m", tag)
        git(team, "tag", tag)

    def measure(number: int) -> None:
        own = ("-p", "no:cacheprovider", "--benchmark-only", "--benchmark-autosave", "--rootdir", str(team))
        environment = {"PATH": "/usr/bin:/bin", "NOISE": str(0.01 * (number % 3)), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", *own, "test_work.py"]
        done = subprocess.run(command, cwd=team, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr

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
        (each, 5, "files") for each in commits
    )
    (team / "work.py").write_text((team / "work.py").read_text() + "# a change\n")
    measure(0)
    with pytest.raises(FolderError, match=r"benchmarks of 3 commits.*\+changes \(1 file\)"):
        regress.judge_stored(storage, None, Criteria())
    named = regress.judge_stored(Path(f"{storage}@base"), Path(f"{storage}@slower"), Criteria())
    assert named.changes == judged.changes and any("with uncommitted changes, left out" in each for each in named.cautions)
