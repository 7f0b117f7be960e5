import time

import pytest

from common.machine import interference, machine
from common.machine.interference import Meter, Usage


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


def test_usage_from_before_its_fields_were_renamed_can_be_read() -> None:
    stored = {"wall": 8.0, "own": 4.0, "whole": 16.0, "held": 6.0, "stolen": 1.0}
    read = Usage.model_validate(stored)
    assert (read.wall_seconds, read.other_cpu_seconds, read.taken_cpu_seconds, read.stolen_cpu_seconds) == (8.0, 12.0, 2.0, 1.0)
    assert Usage.model_validate_json(read.model_dump_json()) == read
    assert read.plus(read).minus(read) == read


@pytest.mark.parametrize(
    ("cores_of_others", "budget", "description", "lost"),
    [(1.5, 2, {"logical_cores": 3}, 0.5), (0.5, 2, {"logical_cores": 3}, 0.0), (0.5, 2, {}, 0.5)],
)
def test_other_work_takes_from_a_budget_what_the_other_cores_do_not_give(
    cores_of_others: float, budget: int, description: dict[str, int], lost: float
) -> None:
    assert interference.cores_lost(cores_of_others, budget, description) == lost
