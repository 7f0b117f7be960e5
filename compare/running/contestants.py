"""Contestants: what is compared. Each is a twin with an interpreter and switches, under a name of its own.

A name without a definition is the twin of that name, in this interpreter, with the usual switches.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self, cast

import pydantic
from pydantic import Field, PrivateAttr, StringConstraints, field_validator

from common.artifacts.schema import Environment
from common.frozen import Frozen
from common.machine import plugins
from common.machine.machine import Facts
from common.spec import Spec, SpecError, plain_values, written
from common.spec.errors import format_value
from compare.cli.option_parsing import parse_choices

FOLDER = Path(".environments")
"""Folder of the environments that `env create` makes, relative to the working directory."""

TAKE_CONTESTANTS = "run, parity, scaling, plan, stragglers, regress, bisect, layers, predict and conformance"
"""Commands that take any twin."""

_MOST_LISTED = 5
"""Number of changes of an environment that a refusal names."""

_USER_FIELDS = {"twin", "python", "switches"}
"""Fields that a spec file may set."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=60)]
"""A contestant's name. It stands in file names, ids of rows and tables."""


@dataclass(frozen=True)
class Checkout:
    """Where the processes of a contestant import their code from. It is there for one command, and is not stored."""

    root: Path | None = None
    """Another checkout of the suite, where they work. None: this one."""
    folder: Path | None = None
    """Their working directory. None: `root`, else the caller's."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables added to a twin's: where it finds a user's own model."""
    spec_json: Callable[[str, Spec], str] = lambda row_id, run: run.to_json()
    """Function that returns the spec of a row, by its id, as this code understands it."""


class Contestant(Frozen):
    """One side of a comparison."""

    name: Name
    twin: Name
    """Name of a twin: one of `launch.FRAMEWORKS`, or one from a package that the interpreter has."""
    python: str | None = None
    """Absolute path of the interpreter that runs the twin. None: this process's own."""
    switches: dict[str, bool | int | float | str] = Field(default={}, strict=True)
    """Switches of the twin, by the names that its `describe` lists. They override those of the spec."""
    base_of: Name | None = None
    """Name of the contestant that is measured against this one in turn: `regress` and `bisect` do so. None: no pairs."""
    revision: Facts = {}
    """Facts of its code that differ from those of the comparison's machine: commit, dirty, repository and the like."""
    _checkout: Checkout | None = PrivateAttr(default=None)

    @property
    def checkout(self) -> Checkout | None:
        """Where its processes import their code from. None: this checkout, as for every contestant that a folder names."""
        return self._checkout

    def at(self, revision: Facts, checkout: Checkout) -> Self:
        """Return the contestant with the code of another checkout."""
        other = self.model_copy(update={"revision": revision})
        other._checkout = checkout
        return other

    def as_base(self) -> Self:
        """Return the contestant as the base of pairs: its head has this one's name."""
        name = self.from_fields(f"{self.name}-base", {"twin": self.twin}).name  # it is checked
        return self.model_copy(update={"name": name, "base_of": self.name})

    def head_row(self, row_id: str) -> str:
        """Return the id that a row of this contestant has on the side of the head."""
        return (self.base_of or self.name) + row_id.removeprefix(self.name)

    @property
    def interpreter(self) -> str:
        """Path of the interpreter that runs the twin."""
        return self.python or sys.executable

    @field_validator("python", mode="before")
    @classmethod
    def _absolute_path(cls, python: Any) -> Any:
        if isinstance(python, str) and (not python or "\0" in python):
            raise ValueError("it is no path")
        return str(interpreter(python)) if isinstance(python, str) else python

    @classmethod
    def plain(cls, twin: str) -> Self:
        """Return a twin under its own name, in this interpreter, with the usual switches."""
        return cls(name=twin, twin=twin)

    @classmethod
    def from_option(cls, word: str) -> Self:
        """Read `NAME=TWIN[@PYTHON][,switch=value...]`. Values are YAML, as with `--set`."""
        name, equals, rest = word.partition("=")
        subject, *assignments = rest.split(",")
        twin, at, python = subject.partition("@")
        pairs = [assignment.partition("=") for assignment in assignments]
        if not (name and equals and twin) or (at and not python) or not all(key and sign for key, sign, _ in pairs):
            raise SpecError(
                f"--contestant takes NAME=TWIN[@PYTHON][,switch=value...]. Received: {word!r}. Use e.g. "
                "pytorch-old=pytorch@.venv-old/bin/python."
            )
        if duplicates := {key for key, _, _ in pairs if [key for key, _, _ in pairs].count(key) > 1}:
            raise SpecError(f"--contestant {name} sets {min(duplicates)} twice. Received: {word!r}. Set it once.")
        try:
            switches = {key: plain_values.from_yaml(text) for key, _, text in pairs}
            for key, _, text in pairs:
                written.remember(text, f"contestants.{name}.switches.{key}", f"--contestant {name}: {key}")
        except plain_values.PlainValuesError as error:
            raise SpecError(f"--contestant {name} has a value that cannot be read. Received: {word!r} ({error}).") from None
        return cls.from_fields(name, {"twin": twin, "switches": switches, **({"python": python} if at else {})})

    @classmethod
    def from_fields(cls, name: str, fields: Any) -> Self:
        """Read the entry of a spec file: `{twin: ..., python: ..., switches: {...}}`."""
        if not isinstance(fields, Mapping):
            received = format_value(fields, f"contestants.{name}")
            raise SpecError(f"contestants.{name} must be a group of fields. Received: {received}. Write {{twin: pytorch}}.")
        if others := [field for field in ("base_of", "revision") if fields.get(field)]:
            raise SpecError(f"contestants.{name} takes twin, python and switches. Received: {others[0]}. Leave it out.")
        try:
            return cls.model_validate({**cast(Mapping[str, Any], fields), "name": name})
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            location = first["loc"][:2]  # a third part is a type that a switch may have
            received = format_value(first.get("input"), ("contestants", name, *location))
            if location[:1] == ("switches",):
                field = written.name_of(("contestants", name, *location))
                kind = "a word, a number, true or false" if location[1:] else "a group of switches"
                raise SpecError(f"{field} takes {kind}. Received: {received}. Mend it, or leave it out.") from None
            field = ".".join(map(str, location))
            use = f"Fields are {', '.join(field for field in cls.model_fields if field in _USER_FIELDS)}."
            if location in (("name",), ("twin",)) and first["type"] != "missing":
                use = "Use letters, digits, dots, dashes and underscores; begin with a letter or a digit."
            raise SpecError(
                f"The contestant {name} has a {field} that is refused: {first['msg']}. Received: {received}. {use}"
            ) from None


def interpreter(python: str) -> Path:
    """The absolute path of an interpreter. Links are not followed, because a virtual environment is known by its own.

    Args:
        python: the path of an interpreter or of a virtual environment's folder. A word without a slash is an environment of
            `env create`, else a program of PATH.
    """
    if "/" not in python and not (FOLDER / python).is_dir() and (program := shutil.which(python)) is not None:
        python = program
    elif "/" not in python:
        python = str(FOLDER / python / "bin" / "python")
    path = os.path.abspath(os.path.expanduser(python))  # noqa: PTH100, PTH111 (resolve() would follow links)
    return Path(path, "bin", "python") if os.path.isdir(path) else Path(path)  # noqa: PTH112


def resolve(names: Iterable[str], definitions: Iterable[Contestant] = ()) -> list[Contestant]:
    """Return the contestants of these names. A name without a definition stands for the twin of that name."""
    defined = {definition.name: definition for definition in definitions}
    return [defined.get(name) or Contestant.plain(name) for name in names]


def check(names: Sequence[str], known: Collection[str]) -> list[str]:
    """Check names of contestants: each once, each known or the twin of a package that this interpreter has."""
    return parse_choices(
        "--frameworks", names, tuple(known if set(known) >= set(names) else dict.fromkeys([*known, *installed_twins()]))
    )


def builtin_twins(option: str, words: Sequence[str], twins: Collection[str]) -> list[str]:
    """Check the values of an option that takes the suite's own twins only."""
    for word in words:
        if word not in twins and word in installed_twins():
            raise SpecError(
                f"{option} takes the suite's own twins here. Received: {word!r}, the twin of a package. Use "
                f"{', '.join(twins)}. {TAKE_CONTESTANTS} take the twin of a package."
            )
    return parse_choices(option, words, tuple(twins))


def installed_twins() -> dict[str, Any]:
    """Twins of packages that are installed in this interpreter. Reading them takes a tenth of a second."""
    return dict(plugins.installed(plugins.TWINS))


def version_differences(one: Environment, other: Environment) -> list[tuple[str, str | None, str | None]]:
    """List (name, version in one environment, version in the other) of everything that differs. None: it is not installed.

    A library counts only if both environments record it.
    """
    first_versions, second_versions = (
        dict(text.split("==", 1) for text in environment.distributions) for environment in (one, other)
    )
    versions = [("Python", one.python, other.python)]
    versions += [
        (name, first_versions.get(name), second_versions.get(name)) for name in sorted({*first_versions, *second_versions})
    ]
    versions += [(name, one.libraries[name], other.libraries[name]) for name in one.libraries if name in other.libraries]
    return [entry for entry in versions if entry[1] != entry[2]]


def describe_changes(before: Environment, now: Environment) -> str | None:
    """Describe how an environment has changed. None: nothing that a run can import has changed."""
    if before.distributions_hash == now.distributions_hash:
        return None
    sentences = [
        f"{name} {'was added' if old is None else f'was {old}'}, {'is gone' if new is None else f'now {new}'}"
        for name, old, new in version_differences(before, now.model_copy(update={"libraries": {}}))
    ]
    return join_first(sentences) or "it has another build of Python"


def join_first(texts: Sequence[str], most: int = _MOST_LISTED) -> str:
    """Join the first texts with semicolons, and say how many more there are."""
    return "; ".join([*texts[:most], *([f"and {len(texts) - most} more"] if len(texts) > most else [])])
