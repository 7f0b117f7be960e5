"""A report over ten thousand stored runs, made up, and how long it takes."""

import subprocess
import sys
import time
from pathlib import Path

from common.artifacts import event_log, results
from compare.results import store
from compare.running import launch
from compare.running.matrix import Row
from tests.support import comparisons

MODES, REPEATS = ("serial", "data_parallel", "multi_process", "parameter_server"), 1250
ROWS = [comparisons.row(framework, mode) for framework in ("pytorch", "tensorflow") for mode in MODES]
RUNS = len(ROWS) * REPEATS
EPOCHS = 10


def stored(folder: Path) -> None:
    """Store them."""
    store.write_plan(folder, comparisons.comparison(ROWS, REPEATS))
    for row in ROWS:
        for repeat in range(REPEATS):
            _store(folder, row, repeat)


def told(folder: Path) -> str:
    """What `python -m compare report` prints of a folder."""
    command = [sys.executable, "-m", "compare", "report", str(folder)]
    return subprocess.run(command, cwd=launch.PROJECT_ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def seconds(folder: Path, rounds: int) -> list[float]:
    """Of the command, so many times, over runs that are stored in a new folder."""
    folder.mkdir()
    stored(folder)
    found: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        told(folder)
        found.append(time.perf_counter() - start)
    return found


def _store(folder: Path, row: Row, repeat: int) -> None:
    pace = 1.0 + 0.01 * (repeat % 7)
    run = comparisons.good(row, pace, repeat)
    run = run.model_copy(update={"epochs": [comparisons.epoch(number + 1, pace) for number in range(EPOCHS)]})
    directory = store.run_folder(folder, row.id, repeat)
    directory.mkdir(parents=True)
    # As `results.save` does, but for the wait until each of so many files is on the disk.
    (directory / results.RESULT_FILE).write_bytes(results.to_line(run))
    for epoch in run.epochs:
        event_log.append_event(directory, "epoch", **epoch.model_dump())
