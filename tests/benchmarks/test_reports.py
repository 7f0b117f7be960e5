"""Seconds of `python -m compare report` over ten thousand stored runs (`make bench`; looked for: under 10 s)."""

import subprocess
import sys
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from common import results
from compare import launch, store
from compare.matrix import Row
from tests.compare import made

MODES, REPEATS = ("serial", "data_parallel", "multi_process", "parameter_server"), 1250
EPOCHS = 10


def test_seconds_of_a_report_over_ten_thousand_runs(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    rows = [made.row(framework, mode) for framework in ("pytorch", "tensorflow") for mode in MODES]
    store.write_plan(tmp_path, made.comparison(rows, REPEATS))
    for row in rows:
        for repeat in range(REPEATS):
            _store(tmp_path, row, repeat)

    def told() -> str:
        command = [sys.executable, "-m", "compare", "report", str(tmp_path)]
        return subprocess.run(command, cwd=launch.PROJECT_ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout

    printed = benchmark.pedantic(told, rounds=3, warmup_rounds=1)
    assert f"{REPEATS} repeats" in " ".join(printed.split()) and all(row.framework in printed for row in rows)


def _store(folder: Path, row: Row, repeat: int) -> None:
    pace = 1.0 + 0.01 * (repeat % 7)
    run = made.good(row, pace, repeat)
    run = run.model_copy(update={"epochs": [made.epoch(number + 1, pace) for number in range(EPOCHS)]})
    directory = store.run_folder(folder, row.id, repeat)
    directory.mkdir(parents=True)
    # As `results.save` does, but for the wait until each of so many files is on the disk.
    (directory / results.RESULT_FILE).write_text(results.with_checksum(run.model_dump_json()), "utf-8")
    for epoch in run.epochs:
        results.append_event(directory, "epoch", **epoch.model_dump())
