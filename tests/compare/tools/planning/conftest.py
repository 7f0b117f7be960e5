"""A machine and models whose times are made up, so that no framework is asked."""

from typing import Any

import pytest

from common.machine import machine as this_machine
from common.spec import Spec
from compare.running.twins import Twins
from compare.tools.planning import measuring
from compare.tools.planning.case import Costs
from compare.tools.planning.planned_machine import Device, FrameworkTimings, PlannedMachine
from tests.compare.tools.planning import made
from tests.support.comparisons import with_fields


class Times:
    """What this machine would have measured: a second for a batch in `left`, two in `right`."""

    def __init__(self) -> None:
        self.disturbed = False
        self.links = made.links(made.link(1e-3, 1e-9))
        self.batches: list[set[tuple[int, int]]] = []
        self.servers: list[bool] = []
        self.options: dict[str, dict[str, Any]] = {}

    def this_machine(
        self, twins: Twins, wanted: Spec, replicas: int, hosts: list[str], shown: Any, server: bool
    ) -> PlannedMachine:
        own = {
            name: FrameworkTimings(versions={name: "1.0"}, links=self.links, disturbed=self.disturbed) for name in twins.names
        }
        self.servers.append(server)
        devices = [Device(name=f"cpu {index}") for index in range(replicas)]
        facts = this_machine.describe()
        return PlannedMachine(name="made up", facts=facts, devices=devices, cores_of_device=4 // replicas, frameworks=own)

    def model_costs(
        self, twins: Twins, name: str, wanted: Spec, batches: set[tuple[int, int]], cores: int, shown: Any
    ) -> Costs:
        self.batches.append(batches)
        self.options[name] = wanted.framework_options
        factor = {"left": 1.0, "right": 2.0}[name]
        found = made.costs(made.architecture(wanted.model), process_mib=100.0)
        times = [
            with_fields(found.times[0], cores=own, batch_size=size, whole_seconds=factor * size / made.BATCH / own**0.5)
            for own, size in batches
        ]
        return with_fields(found, times=times)


@pytest.fixture
def times(fake_twins: pytest.MonkeyPatch) -> Times:
    made_up = Times()
    # Whoever starts a command hands no times in. Measured ones take minutes, and no closed form is known of them.
    fake_twins.setattr(measuring, "this_machine", made_up.this_machine)
    fake_twins.setattr(measuring, "model_costs", made_up.model_costs)
    return made_up
