import pytest

from common.machine import rates


def test_rates_are_measured_in_a_process_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "measure", pytest.fail)  # nothing else can tell that it was not this process
    found = rates.measure_in_subprocess(1)
    assert found is not None and found.cores == 1
    assert found.gflops("float32") == found.float32_gflops > 0
    assert found.gflops("float64") == found.float64_gflops > 0
    assert found.copy_gb_per_second > 0


@pytest.mark.parametrize("interpreter", ["false", "echo", "/nowhere/python"])
def test_a_measurement_that_fails_or_prints_no_rates_leaves_them_unknown(interpreter: str) -> None:
    assert rates.measure_in_subprocess(1, interpreter) is None


def test_the_best_of_several_tries_counts() -> None:
    second = rates.MIN_SECONDS / 8.0
    tries = [(0.0, 3.0), (3.0, 4.0), (4.0, 6.0)]
    clock = iter([0.0, *(tick for start, end in tries for tick in (start, start, end)), 9.0])
    assert rates.best_seconds(lambda: None, lambda: second * next(clock)) == second
