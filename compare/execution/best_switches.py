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
from compare.core import wording
from compare.core.statistics import Ratio

SCHEMA_VERSION = 1
FOLDER = "best"
"""In the cache folder."""

_IDENTITY = ("processor", "logical_cores", "host")


class Budget(Frozen):
    """How much tuning found the best switches of a framework."""

    switches: list[str] | None
    """That were tried. None: all that the framework has."""
    rounds: int
    steps: int
    configurations: int
    """That were measured, at most once a round."""

    def is_equal(self, other: Budget) -> bool:
        """Whether both frameworks had the same budget. One of them may have more switches to spend it on."""
        return (self.switches, self.rounds, self.steps) == (other.switches, other.rounds, other.steps)

    @property
    def words(self) -> str:
        tried = "all switches" if self.switches is None else ", ".join(self.switches)
        return f"{tried}, {self.rounds} rounds of {self.steps} steps"


class Best(Frozen):
    """The best switches of one framework and model, and where they were measured."""

    schema_version: int = SCHEMA_VERSION
    framework: str
    model: str
    machine: Facts
    """See `identity`."""
    versions: dict[str, str]
    """Of the framework's packages."""
    options: dict[str, Any]
    """The switches that differ from `usual`. Empty if nothing was surely faster."""
    ratio: Ratio | None
    """Images per second over those of `usual`. None if `usual` is the best."""
    budget: Budget | None = None
    """None: not recorded."""
    measured_at: str
    """UTC, ISO 8601."""
    spec: Spec
    """Of the runs, as `usual` had them."""


def identity(description: Mapping[str, Any]) -> dict[str, Any]:
    """What identifies this machine for a framework: processor, host and the devices that its `describe` lists."""
    facts = machine.describe()
    return {fact: facts[fact] for fact in _IDENTITY} | {"devices": [device["name"] for device in description["devices"]]}


def path(framework: str, model: str, description: Mapping[str, Any], cache_dir: str | None) -> Path:
    """The file of the best switches."""
    here = atomic_files.digest(identity(description))[:16]
    return cache.folder(cache_dir) / FOLDER / f"{here}-{framework}-{model}.json"


def save(found: Best, description: Mapping[str, Any], cache_dir: str | None) -> Path:
    """Store them atomically, in place of earlier ones."""
    where = path(found.framework, found.model, description, cache_dir)
    records.write(where, found)
    return where


def load(framework: str, model: str, description: Mapping[str, Any], cache_dir: str | None, device: Device = "auto") -> Best:
    """The best switches stored for this machine, or for its CPU alone.

    Raises:
        SpecError: nothing reliable is stored. The message names the command that finds them.
    """
    where = path(framework, model, description, cache_dir)
    held = f" --set device={device}" if device != "auto" else ""
    again = f"Run: {machine.COMMAND} optimize --model {model} --frameworks {framework}{held}"
    found = records.read(
        where,
        Best,
        what=f"record of the best switches for {model} in {framework} on this machine",
        again=again,
        raises=SpecError,
    )
    if found.schema_version != SCHEMA_VERSION or found.versions != description["versions"]:
        raise SpecError(
            f"switches best were found for {model} with other versions of {framework} ({wording.versions(found.versions)}). "
            f"Here: {wording.versions(description['versions'])}. {again}"
        )
    return found


def options(run: Spec, framework: str, description: Mapping[str, Any]) -> tuple[dict[str, Any], Budget | None]:
    """The switches that make a run `best`: those found for its model here that fit the run; and the budget that found them.

    For example, numbers of threads that were found with sixteen cores do not fit a run with two cores or several processes.

    Raises:
        SpecError: nothing was found, as `load`.
    """
    found = load(framework, run.model, description, run.paths.cache_dir, run.device)
    known = description["options"]

    def fits(name: str, value: Any) -> bool:
        alike = all(getattr(run, field) == getattr(found.spec, field) for field in known[name].get("found_for", ()))
        return alike and spec.incompatibility(run, known[name], value) is None

    fitting = {name: value for name, value in found.options.items() if name in known and fits(name, value)}
    return fitting, found.budget
