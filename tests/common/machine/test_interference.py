import time

import pytest

from common.machine import interference, machine
from common.machine.interference import Meter


def test_other_work_is_what_the_machine_did_and_this_process_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"time": 100.0, "busy": 50.0, "own": 20.0}
    monkeypatch.setattr(time, "monotonic", lambda: now["time"])
    monkeypatch.setattr(machine, "busy_cpu_seconds", lambda: now["busy"])
    monkeypatch.setattr(machine, "cpu_seconds", lambda: now["own"])
    others = Meter()
    assert others.cores_of_others() == 0.0  # no time has passed
    now.update(time=110.0, busy=65.0, own=30.0)
    assert others.cores_of_others() == 0.5
    now.update(own=40.0)
    assert others.cores_of_others() == 0.0  # clocks are coarse: no negative work


@pytest.mark.parametrize(
    ("cores_of_others", "budget", "description", "lost"),
    [(1.5, 2, {"logical_cores": 3}, 0.5), (0.5, 2, {"logical_cores": 3}, 0.0), (0.5, 2, {}, 0.5)],
)
def test_other_work_takes_from_a_budget_what_the_other_cores_do_not_give(
    cores_of_others: float, budget: int, description: dict[str, int], lost: float
) -> None:
    assert interference.cores_taken(cores_of_others, budget, description) == lost
