import sys

import pytest

from common.machine import rates


def test_rates_are_measured_in_a_process_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "measure", pytest.fail)
    found = rates.measure_in_subprocess(1)
    assert found is not None and found.cores == 1
    assert found.gflops("float32") == found.float32_gflops > 0
    assert found.gflops("float64") == found.float64_gflops > 0
    assert found.copy_gb_per_second > 0


def test_a_measurement_that_fails_leaves_the_rates_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    assert rates.measure_in_subprocess(1) is None
    monkeypatch.setattr(sys, "executable", "echo")  # prints no rates
    assert rates.measure_in_subprocess(1) is None


def test_the_best_of_several_tries_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = [(0.0, 3.0), (3.0, 4.0), (4.0, 6.0)]
    clock = iter([0.0, *(tick for start, end in tries for tick in (start, start, end)), 9.0])
    monkeypatch.setattr(rates.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(rates, "MIN_SECONDS", 8.0)
    assert rates._best_seconds(lambda: None) == 1.0
