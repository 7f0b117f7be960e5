"""What an environment offers for each twin: imports, versions, devices, libraries, and what clashes in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pydantic

from common.frozen import Frozen
from common.machine import environment
from compare.core import exits, wording
from compare.core.errors import LaunchError
from compare.environments import creating
from compare.execution import contestants, launch
from compare.execution.contestants import Contestant
from compare.reporting.document import Mark, Report
from compare.reporting.tables import Column, Table

LEAST_DRIVERS = {12: "525.60.13", 13: "580.65.06"}
"""Major version of CUDA: the lowest NVIDIA driver that it runs on (CUDA Toolkit release notes, table 3)."""


class Subject(Frozen):
    """One twin in one environment."""

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
    def here(self) -> str:
        return self.refusal or "runs"


class Checked(Frozen):
    """An environment."""

    name: str
    interpreter: str
    python: str = ""
    distributions: tuple[str, ...] = ()
    distributions_hash: str = ""
    needed: dict[str, str] = {}
    """Versions of what every twin imports."""
    lock: str | None = None
    """That it was made from."""
    error: str | None = None
    """Why its interpreter cannot be used."""
    clashes: list[str] = []
    twins: list[Subject] = []

    @property
    def fault(self) -> str | None:
        """Why no comparison should use it."""
        if self.error or self.clashes:
            return self.error or self.clashes[0]
        broken = [each for each in self.twins if each.refusal and each.installed]
        if broken or not any(each.refusal is None for each in self.twins):
            return "; ".join(f"{each.twin}: {each.refusal}" for each in broken or self.twins)
        return None


def look(name: str, python: str | None) -> Checked:
    """List an environment without importing a framework.

    Args:
        name: of the environment.
        python: its interpreter. None: this process's.
    """
    subjects = [_enter(twin, name, python) for twin in launch.FRAMEWORKS]
    interpreter = launch.interpreter(subjects[0])
    try:
        found = {twin: launch.inspect(_subject(twin, name), "--clashes") for twin in launch.FRAMEWORKS}
        for twin in next(iter(found.values()))["brought"]:
            try:
                _enter(twin, name, python)
            except pydantic.ValidationError:
                refusal = "Its name cannot stand in a contestant. Use letters, digits, dots, dashes and underscores."
                found[twin] = {"refusal": refusal, "installed": False, "libraries": {}}
                continue
            found[twin] = launch.inspect(_subject(twin, name))
    except LaunchError as error:
        return Checked(name=name, interpreter=interpreter, error=str(error))
    own = next(iter(found.values()))
    made = creating.made(Path(interpreter).parents[1])
    return Checked(
        name=name,
        interpreter=interpreter,
        python=own["python"],
        distributions=own["distributions"],
        distributions_hash=own["distributions_hash"],
        needed={each: version for each, version in own["needed"].items() if version is not None},
        lock=made and made.lock,
        clashes=own["clashes"],
        twins=[
            Subject(twin=twin, refusal=each["refusal"], installed=each["installed"], libraries=each["libraries"])
            for twin, each in found.items()
        ],
    )


def check(name: str, python: str | None) -> Checked:
    """The same, and import every framework that is there. Each answers in a process of its own."""
    found = look(name, python)
    there = [each.twin for each in found.twins if each.refusal is None]
    with launch.asked([_subject(twin, name) for twin in there]) as answer:
        twins = [_described(each, name, answer) if each.twin in there else each for each in found.twins]
    return found.model_copy(update={"twins": twins})


def _subject(twin: str, name: str) -> str:
    """Name of the contestant, as messages call it."""
    return f"{twin} in {wording.visible(name)}"


def _enter(twin: str, name: str, python: str | None) -> str:
    """Enter the contestant and return its name. It has letters that a contestant's own may not, and stands in messages alone.

    Raises:
        ValidationError: the twin's name has such letters.
    """
    subject = Contestant(name=twin, twin=twin, python=python).model_copy(update={"name": _subject(twin, name)})
    contestants.enter([subject])
    return subject.name


def _described(subject: Subject, name: str, answer: Callable[[str], dict[str, Any]]) -> Subject:
    try:
        description = answer(_subject(subject.twin, name))
    except LaunchError as error:
        return subject.model_copy(update={"refusal": str(error)})
    libraries = subject.libraries | description.get("libraries", {})
    return subject.model_copy(
        update={
            "versions": description["versions"],
            "devices": [f"{device['name']} ({device['kind']})" for device in description["devices"]],
            "libraries": libraries,
            "cautions": _cautions(libraries, on_gpu=any(device["kind"] != "cpu" for device in description["devices"])),
        }
    )


def _cautions(libraries: dict[str, str], *, on_gpu: bool) -> list[str]:
    """What keeps a framework that was built for CUDA from a GPU."""
    cuda, driver = libraries.get("CUDA"), libraries.get("NVIDIA driver")
    if cuda is None or driver is None or on_gpu:
        return []
    least = LEAST_DRIVERS.get(environment.numbers(cuda)[0])
    if least and environment.numbers(driver) < environment.numbers(least):
        return [f"CUDA {cuda} needs an NVIDIA driver from {least} on. Found: {driver}. It sees no GPU."]
    return [f"It was built with CUDA {cuda}, there is an NVIDIA driver {driver}, and it sees no GPU."]


_LISTED = (
    Column("name", "environment"),
    Column("python", "Python"),
    Column("count", "distributions", pick=lambda each: len(each.distributions)),
    Column("twins", "runs", pick=lambda each: ", ".join(twin.twin for twin in each.twins if twin.refusal is None)),
    Column("lock", "made from", fold=40),
    Column("fault", "fault", fold=60),
    Column("interpreter", "interpreter", fold=40, terminal=False),
)
_TWINS = (
    Column("twin", "twin"),
    Column("here", "here", fold=60),
    Column("versions", "versions", pick=lambda each: wording.versions(each.versions)),
    Column("devices", "devices", pick=lambda each: ", ".join(each.devices)),
    Column("libraries", "libraries", pick=lambda each: wording.versions(each.libraries)),
)


def listing(found: Sequence[Checked]) -> Report:
    """The environments of a folder, a line each."""
    return Report(
        title="Environments",
        facts=[] if found else ["There is none. Make one with `env create NAME --lock FILE`."],
        tables=[Table.of("environments", "Environments", _LISTED, found)] if found else [],
        values={"environments": [each.model_dump(mode="json") for each in found]},
    )


def report(found: Checked) -> Report:
    """All that is known of one environment."""
    cautions = [f"{each.twin}: {caution}" for each in found.twins for caution in each.cautions]
    return Report(
        title=f"Environment {found.name}",
        marks=[Mark("Usable", "no" if found.fault else "yes", "bad" if found.fault else "good")],
        facts=[
            f"{found.interpreter}, Python {found.python or 'unknown'}, {len(found.distributions)} distributions "
            f"({found.distributions_hash[:12]}){f', made from {found.lock}' if found.lock else ''}",
            *([f"What every twin needs: {wording.versions(found.needed)}"] if found.needed else []),
        ],
        findings=[
            ("What does not work?", [found.fault] if found.fault and found.fault not in found.clashes else []),
            ("What clashes?", found.clashes),
            ("Cautions", cautions),
        ],
        tables=[Table.of("twins", "Twins", _TWINS, found.twins)] if found.twins else [],
        values={"environment": found.model_dump(mode="json"), "fault": found.fault},
        exit_code=exits.RUN_FAILED if found.fault else 0,
    )
