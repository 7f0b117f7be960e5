"""The fastest switches that `convtwins optimize` has found, by machine, framework and model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import spec
from common.artifacts import atomic_files, records
from common.data import cache
from common.frozen import Frozen
from common.machine import machine
from common.machine.machine import Facts
from common.spec import Device, Spec, SpecError
from compare.cli import wording
from compare.statistics.statistics import Ratio

SCHEMA_VERSION = 1
FOLDER = "best"
"""Subfolder of the cache folder."""

_IDENTITY = ("processor", "processor_model", "logical_cores", "host")


class SwitchSearchBudget(Frozen):
    """How much search found the best switches of a framework."""

    switches: list[str] | None
    """Names of the switches that were tried. None: all that the framework has."""
    rounds: int
    steps: int
    configurations: int
    """Number of configurations that were measured, each at most once a round."""

    def is_equal(self, other: SwitchSearchBudget) -> bool:
        """Whether both frameworks had the same budget. One of them may have more switches to spend it on."""
        return (self.switches, self.rounds, self.steps) == (other.switches, other.rounds, other.steps)

    @property
    def words(self) -> str:
        tried = "all switches" if self.switches is None else ", ".join(self.switches)
        return f"{tried}, {self.rounds} rounds of {self.steps} steps"


class BestSwitches(Frozen):
    """The best switches of one framework and model, and where they were measured."""

    schema_version: int = SCHEMA_VERSION
    framework: str
    model: str
    machine: Facts
    """Facts about the machine, see `identity`."""
    versions: dict[str, str]
    """{package: version} of the framework's packages."""
    options: dict[str, Any]
    """The switches that differ from `usual`. Empty if nothing was surely faster."""
    ratio: Ratio | None
    """Images per second over those of `usual`. None if `usual` is the best."""
    budget: SwitchSearchBudget | None = None
    """Budget of the search. None: not recorded."""
    measured_at: str
    """Time of the measurement: UTC, ISO 8601."""
    spec: Spec
    """Spec of the runs with the `usual` switches."""


def identity(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that identify this machine for a framework: processor, host, and the devices of its `describe`."""
    facts = machine.describe()
    return {fact: facts[fact] for fact in _IDENTITY} | {"devices": [device["name"] for device in description["devices"]]}


def path(framework: str, model: str, description: Mapping[str, Any], cache_dir: str | None) -> Path:
    """Return the path of the file that stores the best switches."""
    machine_digest = atomic_files.digest(identity(description))[:16]
    return cache.folder(cache_dir) / FOLDER / f"{machine_digest}-{framework}-{model}.json"


def save(best: BestSwitches, description: Mapping[str, Any], cache_dir: str | None) -> Path:
    """Store best switches atomically, in place of earlier ones, and return the path of the file."""
    file = path(best.framework, best.model, description, cache_dir)
    records.write(file, best)
    return file


def load(
    framework: str, model: str, description: Mapping[str, Any], cache_dir: str | None, device: Device = "auto"
) -> BestSwitches:
    """Load the best switches that are stored for this machine, or for its CPU alone."""
    file = path(framework, model, description, cache_dir)
    device_option = f" --set device={device}" if device != "auto" else ""
    again = f"Run: {machine.COMMAND} optimize --model {model} --frameworks {framework}{device_option}"
    best = records.read(
        file,
        BestSwitches,
        kind=f"record of the best switches for {model} in {framework} on this machine",
        remedy=again,
        raises=SpecError,
    )
    if best.schema_version != SCHEMA_VERSION or best.versions != description["versions"]:
        raise SpecError(
            f"switches best were found for {model} with other versions of {framework} ({wording.versions(best.versions)}). "
            f"Here: {wording.versions(description['versions'])}. {again}"
        )
    return best


def options(run: Spec, framework: str, description: Mapping[str, Any]) -> tuple[dict[str, Any], SwitchSearchBudget | None]:
    """Return the best switches of this machine that fit a run, and the budget of the search that found them.

    For example, numbers of threads that were found with sixteen cores do not fit a run with two cores or several processes.
    """
    best = load(framework, run.model, description, run.paths.cache_dir, run.device)
    known = description["options"]

    def fits(name: str, value: Any) -> bool:
        is_same_work = all(getattr(run, field) == getattr(best.spec, field) for field in known[name].get("found_for", ()))
        return is_same_work and spec.incompatibility(run, known[name], value) is None

    options = {name: value for name, value in best.options.items() if name in known and fits(name, value)}
    return options, best.budget
