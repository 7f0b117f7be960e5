"""Seconds of the scans for mean and standard deviation, for history; their ratios are bars (`tests.benchmarks.bars`)."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from common.data.preprocessing import dask_scan
from common.machine.machine import available_cores
from tests.benchmarks.scans import ARCHIVE, SIZE_PX, Scans

ROUNDS = 3


@pytest.fixture(scope="module")
def scans(test_data: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Scans:
    return Scans(test_data(ARCHIVE), tmp_path_factory.mktemp("scans"))


def test_seconds_of_a_scan_by_dask_in_threads(benchmark: BenchmarkFixture, framework: str, scans: Scans) -> None:
    with dask_scan.scanning(scans.encoded, SIZE_PX, available_cores(), "threads") as scan:
        assert benchmark.pedantic(scan, rounds=ROUNDS, warmup_rounds=1) == scans.by_twin(framework).sums


def test_seconds_of_a_scan_by_a_twin_process(benchmark: BenchmarkFixture, framework: str, scans: Scans) -> None:
    made = benchmark.pedantic(scans.by_twin, args=(framework,), rounds=ROUNDS, warmup_rounds=1)
    benchmark.extra_info["seconds_of_the_scan_alone"] = made.seconds
