"""Reads and writes the planned machine as YAML, which users can edit, and finds it in the cache folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pydantic
import yaml

from common import spec
from common.artifacts import atomic_files
from common.data import cache
from common.machine import machine
from common.spec import SpecError
from compare.execution import best_switches
from compare.planning.costs import PlannedMachine

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
            f"{path} is no machine: {place}: {first['msg']}. Received: {first.get('input')!r}. Mend the file, or write a new "
            f"one: {machine.COMMAND} plan --machine {HERE} --out DIR."
        ) from None
    if planned_machine.schema_version != SCHEMA_VERSION:
        raise SpecError(
            f"{path} has schema_version {planned_machine.schema_version}. This version reads {SCHEMA_VERSION}. Write it anew."
        )
    return planned_machine


def text(planned_machine: PlannedMachine) -> str:
    """Return the file's content."""
    return _HEAD + yaml.safe_dump(planned_machine.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
