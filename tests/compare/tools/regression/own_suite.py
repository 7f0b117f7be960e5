"""A small project with a suite of pytest-benchmark, in a git repository: its benchmarks go by a clock that counts work."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.compare.tools.regression.repository import commit, initialised
from tests.support import processes
from tests.support.processes import Finished

WORK = """
COST = {"parse": 1.0, "write": 2.0}

def cost(name):
    return COST[name]
"""
SLOWER = WORK.replace('"parse": 1.0', '"parse": 1.2')
SUITE = """
import json
import os

import pytest

from work import cost

class Clock:
    # Each run of a measurement is a little slower or faster than the others.
    now = 0.0
    factor = 1.0 + 0.004 * (json.loads(os.environ.get("CONVTWINS_RUN", '{"pair": 0}'))["pair"] % 3)

    def __call__(self):
        return self.now

CLOCK = Clock()

def spend(name):
    CLOCK.now += CLOCK.factor * cost(name)

@pytest.mark.benchmark(timer=CLOCK)
@pytest.mark.parametrize("name", ["parse", "write"])
def test_speed(benchmark, name):
    benchmark.extra_info["convtwins"] = {"cores_taken": 0.0, "cores_stolen": 0.0}  # the machine of a test is busy
    benchmark.pedantic(spend, args=(name,), rounds=5)
"""
CONFTEST = """
import json
import os
from pathlib import Path

import pytest

TAKEN = Path(os.environ.get("TAKEN_FILE", Path(__file__).with_name("taken.json")))

@pytest.hookimpl(trylast=True)
def pytest_benchmark_update_json(output_json):
    # What other work took is what a file says.
    run = json.loads(os.environ.get("CONVTWINS_RUN", "{}"))
    taken = json.loads(TAKEN.read_text()) if TAKEN.exists() else {}
    place = f"{run.get('side')}-{run.get('pair')}"
    for each in output_json["benchmarks"]:
        notes = each["extra_info"].setdefault("convtwins", {})
        notes |= {"cores_taken": taken.get(place, {}).get(each["name"], 0.0), "cores_stolen": 0.0}
"""
FILES = {"src/work.py": WORK, "bench/test_work.py": SUITE, "bench/conftest.py": CONFTEST, ".gitignore": "__pycache__\n.*\n"}
ARGS = "bench -q -p no:cacheprovider"
ONE_PLUGIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p pytest_benchmark.plugin"}
"""Variables of a pytest that loads no other plug-in of this environment. It starts in half the time."""


def project(folder: Path, now: str = WORK, **files: str) -> Path:
    """A repository of two commits: `before`, and the head with another `src/work.py` or other files."""
    repository = initialised(folder)
    commit(repository, "before", FILES, "before")
    commit(repository, "now", {"src/work.py": now, "notes.txt": "now", **files})
    return repository


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder, as a user of a command does."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run_pytest(folder: Path, *words: object, **variables: str | None) -> Finished:
    """Run pytest with the plug-in in a process of its own."""
    alone = {
        **dict.fromkeys(ONE_PLUGIN),
        "PYTEST_XDIST_WORKER": None,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{processes.PROJECT}:src",
    }
    loaded = ("-m", "pytest", "-p", "no:convtwins", "-p", "convtwins.pytest_plugin", "-p", "no:cacheprovider")
    return processes.python(*loaded, *words, folder=folder, **{**alone, **variables})


def notes_of(file: Path) -> dict[str, Any]:
    """What the plug-in wrote of each benchmark of a file."""
    return {each["name"]: each["extra_info"]["convtwins"] for each in json.loads(file.read_text())["benchmarks"]}
