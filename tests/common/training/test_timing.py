import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.artifacts.schema import Phases
from common.machine import machine
from common.training import timing
from tests.support import processes

PHASES = ("build", "first_step", "training", "evaluation")


@contextmanager
def a_clock() -> Generator[Callable[[float], None]]:
    """A clock of common.training.timing that only moves on when told to by how many seconds."""
    now = [0.0]

    def advance(seconds: float) -> None:
        now[0] += seconds

    with pytest.MonkeyPatch.context() as patch:  # all clocks of a process at once, in everything that reads one
        patch.setattr(timing, "time", SimpleNamespace(time=lambda: now[0], perf_counter=lambda: now[0] - 70))
        patch.setattr(timing.machine, "clock", lambda: 5000 + now[0])
        yield advance


def do_nothing() -> None:
    pass


def by_phase(phases: Phases) -> dict[str, float]:
    return {name: getattr(phases, f"{name}_seconds") for name in ("import", *PHASES, "other")}


moments = st.lists(st.tuples(st.sampled_from((*PHASES, "other")), st.integers(0, 1000)), max_size=12)


@given(st.integers(0, 100), moments)
def test_phases_have_their_own_seconds_and_add_up_to_the_wall_time(started: int, moments: list[tuple[str, int]]) -> None:
    expected = dict.fromkeys(("import", *PHASES, "other"), 0.0) | {"import": float(started)}
    with a_clock() as advance:
        stopwatch = timing.Stopwatch(do_nothing, 5000 - started)
        for name, seconds in moments:
            expected[name] += seconds
            if name == "other":
                advance(seconds)
            else:
                with stopwatch.phase(name) as timer:
                    advance(seconds)
                assert timer.seconds == seconds
            phases = stopwatch.phases()
            assert by_phase(phases) == expected
            assert sum(by_phase(phases).values()) == phases.wall_seconds
        assert stopwatch.phases().wall_seconds == started + sum(seconds for _, seconds in moments)


def test_the_device_is_awaited_before_a_phase_and_within_it() -> None:
    with a_clock() as advance:
        stopwatch = timing.Stopwatch(lambda: advance(8), 5000)
        with stopwatch.phase("training") as timer:
            advance(1)
        assert timer.seconds == 1 + 8
        assert by_phase(stopwatch.phases()) == dict.fromkeys(("import", *PHASES), 0) | {"training": 9, "other": 8}


@pytest.mark.parametrize(("phase", "waited"), [("training", 5), ("first_step", 0), ("evaluation", 0)])
def test_waiting_for_input_is_a_part_of_the_phase_and_the_runs_where_it_trains(phase: str, waited: int) -> None:
    with a_clock() as advance:
        stopwatch = timing.Stopwatch(do_nothing, 5000)
        with stopwatch.phase(phase) as timer:
            for seconds in (2, 3):
                with timer.waiting_for_input():
                    advance(seconds)
                advance(10)
        assert (timer.seconds, timer.input_wait_seconds) == (25, 5)
        assert stopwatch.phases().input_wait_seconds == waited
        assert by_phase(stopwatch.phases())[phase] == stopwatch.phases().wall_seconds == 25


def test_what_a_failing_block_took_is_counted_and_its_error_passed_on() -> None:
    with a_clock() as advance:
        stopwatch = timing.Stopwatch(do_nothing, 5000)

        def train() -> None:
            with stopwatch.phase("training") as timer, timer.waiting_for_input():
                advance(4)
                raise ArithmeticError("loss")

        with pytest.raises(ArithmeticError):
            train()
        phases = stopwatch.phases()
        assert (phases.training_seconds, phases.input_wait_seconds, phases.wall_seconds) == (4, 4, 4)


def test_without_a_start_or_with_one_in_the_future_it_counts_from_now() -> None:
    for started in (None, 5003):
        with a_clock() as advance:
            stopwatch = timing.Stopwatch(do_nothing, started)
            advance(2)
            assert (stopwatch.phases().import_seconds, stopwatch.phases().wall_seconds) == (0, 2)


@pytest.mark.parametrize(("jumps", "stepped"), [([], 0), ([-5], 5), ([-5, 30], 30), ([7, -7], 7)])
def test_a_system_time_that_is_set_and_set_back_is_seen_when_a_batch_comes(jumps: list[float], stepped: float) -> None:
    now, own = 1000.0, 3.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "time", SimpleNamespace(time=lambda: now, perf_counter=lambda: own))
        timer = timing.Timer()
        for seconds in jumps:
            with timer.waiting_for_input():
                now, own = now + 1 + seconds, own + 1
        assert timer.measure_clock_step() == stepped


# When the run was started.


def test_a_launchers_own_start_is_taken_to_the_last_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(timing.STARTED_VARIABLE, repr(1760000000.1234567))
    assert timing.process_started() == 1760000000.1234567


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere psutil says it in whole seconds")
def test_a_process_started_between_its_launch_and_its_first_line() -> None:
    ask = "from common.training import timing; time.sleep(0.2); print(timing.process_started(), first)"
    launched = machine.clock()
    code = f"import time; first = time.clock_gettime(time.CLOCK_BOOTTIME); {ask}"
    done = processes.python("-c", code, **{timing.STARTED_VARIABLE: None}).succeeded()
    started, first = map(float, done.stdout.split())
    tick = 0.05  # the kernel counts in hundredths
    assert launched - tick <= started <= first + tick
