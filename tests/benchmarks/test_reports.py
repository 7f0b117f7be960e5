"""Seconds of `python -m compare report` over ten thousand stored runs (`make bench`; the bar is among `bars`)."""

from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from tests.benchmarks import reports


def test_seconds_of_a_report_over_ten_thousand_runs(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    reports.stored(tmp_path)
    printed = benchmark.pedantic(reports.told, (tmp_path,), rounds=3, warmup_rounds=1)
    assert f"{reports.REPEATS} repeats" in " ".join(printed.split()) and all(row.framework in printed for row in reports.ROWS)
