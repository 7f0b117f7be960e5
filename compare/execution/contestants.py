"""Contestants: what is compared. Each is a twin with an interpreter and switches, under a name of its own.

A name that is not registered is the twin of that name, in this interpreter, with the usual switches.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self, cast

import pydantic
from pydantic import Field, StringConstraints, field_validator

from common.artifacts.schema import Environment
from common.frozen import Frozen
from common.machine import plugins
from common.spec import SpecError, plain_values
from compare.core.option_parsing import parse_choices

FOLDER = Path(".environments")
"""Folder of the environments that `env create` makes, relative to the working directory."""

TAKE_CONTESTANTS = "run, parity, scaling, plan, stragglers, regress, bisect, layers, predict and conformance"
"""Commands that take any twin."""

_MOST_LISTED = 5
"""Number of changes of an environment that a refusal names."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=60)]
"""A contestant's name. It stands in file names, ids of rows and tables."""


class Contestant(Frozen):
    """One side of a comparison."""

    name: Name
    twin: Name
    """Name of a twin: one of `launch.FRAMEWORKS`, or one from a package that the interpreter has."""
    python: str | None = None
    """Absolute path of the interpreter that runs the twin. None: this process's own."""
    switches: dict[str, bool | int | float | str] = Field(default={}, strict=True)
    """Switches of the twin, by the names that its `describe` lists. They override those of the spec."""

    @field_validator("python", mode="before")
    @classmethod
    def _absolute_path(cls, python: Any) -> Any:
        if isinstance(python, str) and (not python or "\0" in python):
            raise ValueError("it is no path")
        return str(interpreter(python)) if isinstance(python, str) else python

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
        except plain_values.PlainValuesError as error:
            raise SpecError(f"--contestant {name} has a value that cannot be read. Received: {word!r} ({error}).") from None
        return cls.from_fields(name, {"twin": twin, "switches": switches, **({"python": python} if at else {})})

    @classmethod
    def from_fields(cls, name: str, fields: Any) -> Self:
        """Read the entry of a spec file: `{twin: ..., python: ..., switches: {...}}`."""
        if not isinstance(fields, Mapping):
            raise SpecError(f"contestants.{name} must be a group of fields. Received: {fields!r}. Write {{twin: pytorch}}.")
        try:
            return cls.model_validate({**cast(Mapping[str, Any], fields), "name": name})
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            use = f"Fields are {', '.join(field for field in cls.model_fields if field != 'name')}."
            if first["loc"] in (("name",), ("twin",)) and first["type"] != "missing":
                use = "Use letters, digits, dots, dashes and underscores; begin with a letter or a digit."
            raise SpecError(
                f"The contestant {name} has a {field} that is refused: {first['msg']}. Received: {first.get('input')!r}. {use}"
            ) from None


_REGISTRY: dict[str, Contestant] = {}


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


def register(contestants: Iterable[Contestant]) -> None:
    """Register contestants by their names. Each replaces an earlier one of its name."""
    _REGISTRY.update({contestant.name: contestant for contestant in contestants})


def clear_registry() -> None:
    """Remove all contestants from the registry."""
    _REGISTRY.clear()


def by_name(name: str) -> Contestant:
    """Return the registered contestant, or the twin of this name with this interpreter and the usual switches."""
    return _REGISTRY.get(name) or Contestant(name=name, twin=name)


def registered(names: Iterable[str]) -> list[Contestant]:
    """Return the registered contestants among these names. Names that stand for a plain twin are skipped."""
    return [_REGISTRY[name] for name in names if name in _REGISTRY]


def check(names: Sequence[str], twins: Collection[str]) -> list[str]:
    """Check names of contestants: each once, each registered or a twin's that this interpreter has."""
    known = dict.fromkeys([*twins, *_REGISTRY])
    return parse_choices("--frameworks", names, tuple(known if known.keys() >= set(names) else known | _installed_twins()))


def choose(
    frameworks: Sequence[str] | None,
    words: Sequence[str],
    in_file: Mapping[str, Any],
    twins: Collection[str],
    *,
    has_other_interpreters: bool = False,
) -> list[str]:
    """Register the contestants of a command, and return the names of those that are compared.

    Args:
        frameworks: values of `--frameworks`: twins, or contestants of the spec file. None: not given.
        words: values of `--contestant`.
        in_file: `contestants` of the spec file. They are compared if the command line names none.
        twins: names of the twins of this interpreter.
        has_other_interpreters: whether other interpreters run them all. Each says for itself which twins it has.
    """
    clear_registry()
    file_contestants = [Contestant.from_fields(name, fields) for name, fields in in_file.items()]
    option_contestants = [Contestant.from_option(word) for word in words]
    names = [contestant.name for contestant in option_contestants]
    for duplicate in (name for name in names if names.count(name) > 1 or name in (frameworks or ())):
        raise SpecError(f"Two contestants are named {duplicate}. Received: {' and '.join(words)}. Give each a name of its own.")
    for contestant in (*file_contestants, *option_contestants):
        if contestant.name != contestant.twin and (contestant.name in twins or contestant.name in _installed_twins()):
            received = f"{contestant.name}={contestant.twin}"
            raise SpecError(f"{contestant.name} is the name of another twin. Received: {received}. Choose another name.")
        if contestant.python is None and contestant.twin not in twins and not has_other_interpreters:
            parse_choices(f"The twin of {contestant.name}", [contestant.twin], (*twins, *_installed_twins()))
    register([*file_contestants, *option_contestants])
    if frameworks is not None or option_contestants:
        selection = [*(frameworks or ()), *names]
        if has_other_interpreters:
            register(Contestant.from_fields(name, {"twin": name}) for name in selection if name not in _REGISTRY)
        return check(selection, twins)
    return [contestant.name for contestant in file_contestants] or list(twins)


def builtin_twins(option: str, words: Sequence[str], twins: Collection[str]) -> list[str]:
    """Check the values of an option that takes the suite's own twins only."""
    for word in words:
        if word not in twins and (word in _REGISTRY or word in _installed_twins()):
            kind = "a contestant" if word in _REGISTRY else "the twin of a package"
            raise SpecError(
                f"{option} takes the suite's own twins here. Received: {word!r}, {kind}. Use {', '.join(twins)}. "
                f"{TAKE_CONTESTANTS} take {kind}."
            )
    return parse_choices(option, words, tuple(twins))


def _installed_twins() -> dict[str, Any]:
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
