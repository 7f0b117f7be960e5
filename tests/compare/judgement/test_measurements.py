"""What `make bench` saves, made by pytest-benchmark itself: its own tools read it, and so do `regress` and `history`."""

import subprocess
import sys
from pathlib import Path

import pytest

from common.machine import machine
from compare.execution import launch
from compare.judgement import measurements
from compare.regression import history, regress
from compare.regression.records import Criteria

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
    assert [point.value.median for point in history.points(storage, ["seconds"])[0]] == [0.25, 0.25]
    tool = [str(Path(sys.executable).with_name("pytest-benchmark")), "--storage", str(storage), "compare"]
    shown = subprocess.run([*tool, "0001", "0002"], capture_output=True, text=True, check=True).stdout
    assert shown.count("test_a_tick[pytorch]") == 2
