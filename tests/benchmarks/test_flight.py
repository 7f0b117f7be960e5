"""What one record of the flight recorder takes, for history (`make bench`). See `tests.benchmarks.flight` for its share."""

import importlib

from pytest_benchmark.fixture import BenchmarkFixture

from tests.planted import recorded


def test_seconds_of_a_record(benchmark: BenchmarkFixture, framework: str) -> None:
    importlib.import_module(f"{framework}_impl.collectives")
    before = recorded.begun()
    with recorded.recording() as record:
        benchmark(record)
    assert recorded.begun() > before
