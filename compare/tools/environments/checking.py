"""Check what an environment offers each twin: imports, versions, devices and libraries, and which distributions clash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pydantic

from common.frozen import Frozen
from common.machine import environment
from compare.cli import exits, wording
from compare.cli.errors import LaunchError
from compare.reporting.document import Mark, Report
from compare.reporting.tables import Column, Table
from compare.running import launch
from compare.running.contestants import Contestant
from compare.running.twins import Twins
from compare.tools.environments import creating

LEAST_DRIVERS = {12: "525.60.13", 13: "580.65.06"}
"""Major version of CUDA: the lowest NVIDIA driver that it runs on (CUDA Toolkit release notes, table 3)."""


class TwinStatus(Frozen):
    """Whether one twin runs in one environment, and its versions, devices and libraries."""

    twin: str
    refusal: str | None = None
    """Why it does not run there."""
    installed: bool = True
    """Whether its framework is there at all."""
    versions: dict[str, str] = {}
    devices: list[str] = []
    libraries: dict[str, str] = {}
    cautions: list[str] = []

    @property
    def status(self) -> str:
        return self.refusal or "runs"


class EnvironmentCheck(Frozen):
    """One environment: its distributions, its clashes and its twins."""

    name: str
    interpreter: str
    python: str = ""
    distributions: tuple[str, ...] = ()
    distributions_hash: str = ""
    needed: dict[str, str] = {}
    """{distribution: version} of the packages that every twin imports."""
    lock: str | None = None
    """Path of the lock that the environment was made from. None: it was not made by `env create`."""
    error: str | None = None
    """Why its interpreter cannot be used."""
    clashes: list[str] = []
    twins: list[TwinStatus] = []

    @property
    def fault(self) -> str | None:
        """Why no comparison should use it."""
        if self.error or self.clashes:
            return self.error or self.clashes[0]
        broken = [twin for twin in self.twins if twin.refusal and twin.installed]
        if broken or not any(twin.refusal is None for twin in self.twins):
            return "; ".join(f"{twin.twin}: {twin.refusal}" for twin in broken or self.twins)
        return None


def inspect(name: str, python: str | None) -> EnvironmentCheck:
    """List an environment without importing a framework.

    Args:
        name: name of the environment.
        python: its interpreter. None: this process's.
    """
    subjects = {twin: _contestant(twin, name, python) for twin in launch.FRAMEWORKS}
    interpreter = next(iter(subjects.values())).interpreter
    try:
        answers = {twin: launch.inspect(subject, "--clashes") for twin, subject in subjects.items()}
        for twin in next(iter(answers.values()))["brought"]:
            try:
                answers[twin] = launch.inspect(_contestant(twin, name, python))
            except pydantic.ValidationError:
                refusal = "Its name cannot stand in a contestant. Use letters, digits, dots, dashes and underscores."
                answers[twin] = {"refusal": refusal, "installed": False, "libraries": {}}
            except LaunchError as error:  # its package is broken, which says nothing of the others
                answers[twin] = {"refusal": str(error), "installed": True, "libraries": {}}
    except LaunchError as error:
        return EnvironmentCheck(name=name, interpreter=interpreter, error=str(error))
    facts = next(iter(answers.values()))
    record = creating.read_record(Path(interpreter).parents[1])
    return EnvironmentCheck(
        name=name,
        interpreter=interpreter,
        python=facts["python"],
        distributions=facts["distributions"],
        distributions_hash=facts["distributions_hash"],
        needed={package: version for package, version in facts["needed"].items() if version is not None},
        lock=record and record.lock,
        clashes=facts["clashes"],
        twins=[
            TwinStatus(twin=twin, refusal=answer["refusal"], installed=answer["installed"], libraries=answer["libraries"])
            for twin, answer in answers.items()
        ],
    )


def check(name: str, python: str | None) -> EnvironmentCheck:
    """List an environment as `inspect` does, and import every framework that is there, each in a process of its own."""
    result = inspect(name, python)
    usable = [twin.twin for twin in result.twins if twin.refusal is None]
    subjects = {twin: _contestant(twin, name, python) for twin in usable}
    session = Twins([subject.name for subject in subjects.values()], subjects.values())
    with session.describe_all() as answer:
        twins = [
            _with_description(twin, subjects[twin.twin].name, answer) if twin.twin in usable else twin for twin in result.twins
        ]
    return result.model_copy(update={"twins": twins})


def _contestant(twin: str, name: str, python: str | None) -> Contestant:
    """Return a twin of an environment. Letters of its name are refused elsewhere. The name stands in messages alone.

    Raises:
        ValidationError: the twin's name has such letters.
    """
    contestant = Contestant(name=twin, twin=twin, python=python)
    return contestant.model_copy(update={"name": f"{twin} in {wording.visible(name)}"})


def _with_description(status: TwinStatus, name: str, answer: Callable[[str], dict[str, Any]]) -> TwinStatus:
    try:
        description = answer(name)
    except LaunchError as error:
        return status.model_copy(update={"refusal": str(error)})
    libraries = status.libraries | description.get("libraries", {})
    return status.model_copy(
        update={
            "versions": description["versions"],
            "devices": [f"{device['name']} ({device['kind']})" for device in description["devices"]],
            "libraries": libraries,
            "cautions": _cautions(libraries, on_gpu=any(device["kind"] != "cpu" for device in description["devices"])),
        }
    )


def _cautions(libraries: dict[str, str], *, on_gpu: bool) -> list[str]:
    """Explain why a framework that was built for CUDA sees no GPU. Empty if it does, or was built without CUDA."""
    cuda, driver = libraries.get("CUDA"), libraries.get("NVIDIA driver")
    if cuda is None or driver is None or on_gpu:
        return []
    least = LEAST_DRIVERS.get(environment.release_numbers(cuda)[0])
    if least and environment.release_numbers(driver) < environment.release_numbers(least):
        return [f"CUDA {cuda} needs an NVIDIA driver from {least} on. Found: {driver}. It sees no GPU."]
    return [f"It was built with CUDA {cuda}, there is an NVIDIA driver {driver}, and it sees no GPU."]


_LIST_COLUMNS = (
    Column("name", "environment"),
    Column("python", "Python"),
    Column("count", "distributions", pick=lambda check: len(check.distributions)),
    Column("twins", "runs", pick=lambda check: ", ".join(twin.twin for twin in check.twins if twin.refusal is None)),
    Column("lock", "made from", fold=40),
    Column("fault", "fault", fold=60),
    Column("interpreter", "interpreter", fold=40, terminal=False),
)
_TWIN_COLUMNS = (
    Column("twin", "twin"),
    Column("here", "here", pick="status", fold=60),
    Column("versions", "versions", pick=lambda twin: wording.versions(twin.versions)),
    Column("devices", "devices", pick=lambda twin: ", ".join(twin.devices)),
    Column("libraries", "libraries", pick=lambda twin: wording.versions(twin.libraries)),
)


def listing(checks: Sequence[EnvironmentCheck]) -> Report:
    """The environments of a folder, a line each."""
    return Report(
        title="Environments",
        facts=[] if checks else ["There is none. Make one with `env create NAME --lock FILE`."],
        tables=[Table.from_items("environments", "Environments", _LIST_COLUMNS, checks)] if checks else [],
        values={"environments": [check.model_dump(mode="json") for check in checks]},
    )


def report(result: EnvironmentCheck) -> Report:
    """Report all that is known of one environment."""
    cautions = [f"{twin.twin}: {caution}" for twin in result.twins for caution in twin.cautions]
    return Report(
        title=f"Environment {result.name}",
        marks=[Mark("Usable", "no" if result.fault else "yes", "bad" if result.fault else "good")],
        facts=[
            f"{result.interpreter}, Python {result.python or 'unknown'}, {len(result.distributions)} distributions "
            f"({result.distributions_hash[:12]}){f', made from {result.lock}' if result.lock else ''}",
            *([f"What every twin needs: {wording.versions(result.needed)}"] if result.needed else []),
        ],
        findings=[
            ("What does not work?", [result.fault] if result.fault and result.fault not in result.clashes else []),
            ("What clashes?", result.clashes),
            ("Cautions", cautions),
        ],
        tables=[Table.from_items("twins", "Twins", _TWIN_COLUMNS, result.twins)] if result.twins else [],
        values={"environment": result.model_dump(mode="json"), "fault": result.fault},
        exit_code=exits.RUN_FAILED if result.fault else 0,
    )
