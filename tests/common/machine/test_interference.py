import pytest

from common.machine import interference
from common.machine.interference import Meter, Usage


def test_other_work_is_what_the_machine_did_and_this_process_did_not() -> None:
    start = Usage(wall_seconds=100.0, machine_cpu_seconds=50.0, process_cpu_seconds=20.0)
    later = Usage(wall_seconds=110.0, machine_cpu_seconds=65.0, process_cpu_seconds=30.0)
    coarse = later.plus(Usage(process_cpu_seconds=10.0))  # clocks are coarse: no negative work
    readings = iter([start, start, later, coarse])
    others = Meter(read=lambda cpus: next(readings))
    assert [others.cores_of_others() for _ in range(3)] == [0.0, 0.5, 0.0], "no time has passed at first"


def test_what_others_do_while_this_process_waits_is_left_out() -> None:
    """Planted: a process that waits for its turn for 30 s, in which others use 60 s of CPU time."""
    moments = [(100.0, 50.0), (110.0, 55.0), (140.0, 115.0), (150.0, 120.0)]
    readings = iter([Usage(wall_seconds=wall, machine_cpu_seconds=used) for wall, used in moments])
    others = Meter(read=lambda cpus: next(readings))
    with others.paused():
        pass
    assert others.cores_of_others() == 0.5


def test_what_is_read_is_this_process_and_the_machine() -> None:
    before = interference.usage_until_now(None)
    while (used := interference.usage_until_now(None).minus(before)).process_cpu_seconds < 0.1:
        pass
    assert used.machine_cpu_seconds == used.budget_cpu_seconds > 0.0
    assert used.wall_seconds > 0.0 and used.stolen_cpu_seconds >= 0.0
    one = interference.usage_until_now([0])
    assert 0.0 < one.budget_cpu_seconds <= one.machine_cpu_seconds + 1.0 and one.stolen_cpu_seconds <= one.budget_cpu_seconds


@pytest.mark.parametrize(
    ("cores_of_others", "budget", "description", "lost"),
    [(1.5, 2, {"logical_cores": 3}, 0.5), (0.5, 2, {"logical_cores": 3}, 0.0), (0.5, 2, {}, 0.5)],
)
def test_other_work_takes_from_a_budget_what_the_other_cores_do_not_give(
    cores_of_others: float, budget: int, description: dict[str, int], lost: float
) -> None:
    assert interference.cores_taken(cores_of_others, budget, description) == lost
