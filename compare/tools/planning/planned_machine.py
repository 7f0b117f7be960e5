"""The machine that a plan is for: its devices and links, and its YAML file, which users can edit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pydantic
import yaml
from pydantic import Field

from common import spec
from common.artifacts import atomic_files
from common.data import cache
from common.frozen import Finite, Moment
from common.machine import machine
from common.machine.machine import Facts
from common.spec import SpecError
from common.spec.errors import format_value
from compare.running import best_switches
from compare.statistics.scaling_laws import LinkModel

HERE = "here"
FOLDER = "plan"
"""Folder of the plans' measurements in the cache folder."""
SCHEMA_VERSION = 1

_HEAD = """\
# A machine for `convtwins plan --machine FILE`. Edit it to plan for a machine that is not here.
# devices: one for each replica. speed: against the device on which layers are timed. memory_mib may be left out.
# links: a message of n bytes takes alpha_seconds + beta_seconds_per_byte x n.
#   all_reduce: a hop of a ring of processes. send: from one process to another. server: a push or a pull of one worker.
#   memory: between replicas of one process.
# crowding: times as long as alone that a pass takes while every device computes.
"""

Positive = Annotated[float, Field(gt=0)]


class Device(Finite):
    """Hardware of one replica: a share of the cores, or an accelerator."""

    name: str
    speed: Positive = 1.0
    """Speed relative to the device that timed the layers."""
    memory_mib: Positive | None = None
    """Memory in MiB. None: unknown."""


class Links(Finite):
    """Links by kind: a message of n bytes takes alpha + beta n seconds. None: not measured, or the framework has none."""

    all_reduce: LinkModel | None = None
    """A hop of a ring of processes."""
    send: LinkModel | None = None
    """A message from one process to another."""
    server: LinkModel | None = None
    """A push or a pull of one worker, with the server's part of the update."""
    memory: LinkModel | None = None
    """A message between replicas of one process."""


class FrameworkTimings(Finite):
    """Timings of a machine in one framework."""

    versions: dict[str, str]
    disturbed: bool = False
    """Whether other work took cores while it was measured."""
    crowding: Annotated[float, Field(ge=1)] = 1.0
    """Ratio of the time of a pass while every device computes to its time alone."""
    links: Links = Links()


class PlannedMachine(Finite):
    """The machine that is planned for. Users can edit its file."""

    schema_version: int = 1
    name: str
    facts: Facts = {}
    measured_at: Moment | None = None
    """Time of the measurement. None: the machine was not measured as it is now."""
    devices: Annotated[list[Device], Field(min_length=1, max_length=4096)]
    """Devices in the order of replicas. A plan has at most as many replicas."""
    cores_of_device: Annotated[int, Field(ge=1)] = 1
    frameworks: dict[str, FrameworkTimings]


def cache_path(cache_dir: str | None, devices: list[str], cores: int, replicas: int, hosts: Sequence[str]) -> Path:
    """Return the path of this machine's measurement."""
    identity = best_switches.identity({"devices": [{"name": name} for name in devices]})
    key = atomic_files.digest({**identity, "cores": cores, "replicas": replicas, "hosts": list(hosts)})[:16]
    return cache.folder(cache_dir) / FOLDER / f"{key}.yaml"


def read(path: Path) -> PlannedMachine:
    """Read a machine's file."""
    values = spec.read_values(path, "machine file")
    try:
        planned_machine = PlannedMachine.model_validate(values)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise SpecError(
            f"{path} is no machine: {place}: {first['msg']}. Received: {format_value(first.get('input'), first['loc'])}. Mend "
            f"the file, or write a new one: {machine.COMMAND} plan --machine {HERE} --out DIR."
        ) from None
    if planned_machine.schema_version != SCHEMA_VERSION:
        raise SpecError(
            f"{path} has schema_version {planned_machine.schema_version}. This version reads {SCHEMA_VERSION}. Write it anew."
        )
    return planned_machine


def text(planned_machine: PlannedMachine) -> str:
    """Return the file's content."""
    return _HEAD + yaml.safe_dump(planned_machine.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
