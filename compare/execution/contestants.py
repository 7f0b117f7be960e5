"""Contestants: what is compared. Each is a twin with an interpreter and switches, under a name of its own.

A name that nobody has entered is the twin of that name, in this interpreter, with the usual switches.
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
from compare.core.option_parsing import chosen

FOLDER = Path(".environments")
"""Of environments that `env create` makes, in the working directory."""

TAKE_CONTESTANTS = "run, parity, scaling, plan, stragglers, regress, bisect, layers, predict and conformance"
"""Commands that take any twin."""

_MOST_NAMED = 5
"""Changes of an environment that a refusal names."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=60)]
"""It stands in file names, ids of rows and tables."""


class Contestant(Frozen):
    """One side of a comparison."""

    name: Name
    twin: Name
    """Of `launch.FRAMEWORKS`, or of a package that its interpreter has."""
    python: str | None = None
    """Absolute path of the interpreter that runs the twin. None: this process's own."""
    switches: dict[str, bool | int | float | str] = Field(default={}, strict=True)
    """Switches of the twin, by the names that its `describe` lists. They go over those of the spec."""

    @field_validator("python", mode="before")
    @classmethod
    def _found(cls, python: Any) -> Any:
        if isinstance(python, str) and (not python or "\0" in python):
            raise ValueError("it is no path")
        return str(interpreter(python)) if isinstance(python, str) else python

    @classmethod
    def of_word(cls, word: str) -> Self:
        """Read `NAME=TWIN[@PYTHON][,switch=value...]`. Values are YAML, as with `--set`.

        Raises:
            SpecError: the word has another form.
        """
        name, equals, rest = word.partition("=")
        subject, *assignments = rest.split(",")
        twin, at, python = subject.partition("@")
        pairs = [assignment.partition("=") for assignment in assignments]
        if not (name and equals and twin) or (at and not python) or not all(key and sign for key, sign, _ in pairs):
            raise SpecError(
                f"--contestant takes NAME=TWIN[@PYTHON][,switch=value...]. Received: {word!r}. Use e.g. "
                "pytorch-old=pytorch@.venv-old/bin/python."
            )
        if twice := {key for key, _, _ in pairs if [key for key, _, _ in pairs].count(key) > 1}:
            raise SpecError(f"--contestant {name} sets {min(twice)} twice. Received: {word!r}. Set it once.")
        try:
            switches = {key: plain_values.from_yaml(text) for key, _, text in pairs}
        except plain_values.PlainValuesError as error:
            raise SpecError(f"--contestant {name} has a value that cannot be read. Received: {word!r} ({error}).") from None
        return cls.of_fields(name, {"twin": twin, "switches": switches, **({"python": python} if at else {})})

    @classmethod
    def of_fields(cls, name: str, fields: Any) -> Self:
        """Read the entry of a spec file: `{twin: ..., python: ..., switches: {...}}`.

        Raises:
            SpecError: a field is refused.
        """
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


_ENTERED: dict[str, Contestant] = {}


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


def enter(contestants: Iterable[Contestant]) -> None:
    """Make contestants known by their names, in place of earlier ones."""
    _ENTERED.update({each.name: each for each in contestants})


def leave() -> None:
    """Forget all contestants."""
    _ENTERED.clear()


def named(name: str) -> Contestant:
    return _ENTERED.get(name) or Contestant(name=name, twin=name)


def entered(names: Iterable[str]) -> list[Contestant]:
    """Those of these names that were entered, and are more than a twin's name."""
    return [_ENTERED[name] for name in names if name in _ENTERED]


def check(names: Sequence[str], twins: Collection[str]) -> list[str]:
    """Check names of contestants: each once, each entered or a twin's that this interpreter has.

    Raises:
        SpecError: one is not.
    """
    known = dict.fromkeys([*twins, *_ENTERED])
    return chosen("--frameworks", names, tuple(known if known.keys() >= set(names) else known | _brought()))


def choose(
    frameworks: Sequence[str] | None,
    words: Sequence[str],
    in_file: Mapping[str, Any],
    twins: Collection[str],
    *,
    elsewhere: bool = False,
) -> list[str]:
    """Enter the contestants of a command, and return the names of those that are compared.

    Args:
        frameworks: names of `--frameworks`: twins, or contestants of the spec file. None: not given.
        words: each `--contestant`.
        in_file: `contestants` of the spec file. They are compared if the command line names none.
        twins: all that there are.
        elsewhere: whether other interpreters run them all. Each says for itself which twins it has.

    Raises:
        SpecError: a contestant is refused, two have one name, or a twin is unknown.
    """
    leave()
    of_file = [Contestant.of_fields(name, fields) for name, fields in in_file.items()]
    of_line = [Contestant.of_word(word) for word in words]
    names = [each.name for each in of_line]
    for twice in (name for name in names if names.count(name) > 1 or name in (frameworks or ())):
        raise SpecError(f"Two contestants are named {twice}. Received: {' and '.join(words)}. Give each a name of its own.")
    for each in (*of_file, *of_line):
        if each.name != each.twin and (each.name in twins or each.name in _brought()):
            raise SpecError(f"{each.name} is the name of another twin. Received: {each.name}={each.twin}. Choose another name.")
        if each.python is None and each.twin not in twins and not elsewhere:
            chosen(f"The twin of {each.name}", [each.twin], (*twins, *_brought()))
    enter([*of_file, *of_line])
    if frameworks is not None or of_line:
        asked = [*(frameworks or ()), *names]
        if elsewhere:
            enter(Contestant.of_fields(name, {"twin": name}) for name in asked if name not in _ENTERED)
        return check(asked, twins)
    return [each.name for each in of_file] or list(twins)


def own_twins(option: str, words: Sequence[str], twins: Collection[str]) -> list[str]:
    """Check names where only the suite's own twins will do.

    Raises:
        SpecError: one is another twin's or a contestant's, unknown, or named twice.
    """
    for word in words:
        if word not in twins and (word in _ENTERED or word in _brought()):
            what = "a contestant" if word in _ENTERED else "the twin of a package"
            raise SpecError(
                f"{option} takes the suite's own twins here. Received: {word!r}, {what}. Use {', '.join(twins)}. "
                f"{TAKE_CONTESTANTS} take {what}."
            )
    return chosen(option, words, tuple(twins))


def _brought() -> dict[str, Any]:
    """Twins of packages that are installed beside this program. Reading them takes a tenth of a second."""
    return dict(plugins.installed(plugins.TWINS))


def differing(one: Environment, other: Environment) -> list[tuple[str, str | None, str | None]]:
    """(what, its version in one environment, its version in the other) of all that differs. None: it is not there.

    A library counts only if both know it.
    """
    ours, theirs = (dict(text.split("==", 1) for text in each.distributions) for each in (one, other))
    found = [("Python", one.python, other.python)]
    found += [(name, ours.get(name), theirs.get(name)) for name in sorted({*ours, *theirs})]
    found += [(name, one.libraries[name], other.libraries[name]) for name in one.libraries if name in other.libraries]
    return [each for each in found if each[1] != each[2]]


def changes(before: Environment, now: Environment) -> str | None:
    """What has changed in an environment, in words. None: nothing that a run can import."""
    if before.distributions_hash == now.distributions_hash:
        return None
    found = [
        f"{name} {'was added' if then is None else f'was {then}'}, {'is gone' if here is None else f'now {here}'}"
        for name, then, here in differing(before, now.model_copy(update={"libraries": {}}))
    ]
    return some(found) or "it has another build of Python"


def some(texts: Sequence[str], most: int = _MOST_NAMED) -> str:
    """The first of these texts, and how many more there are."""
    return "; ".join([*texts[:most], *([f"and {len(texts) - most} more"] if len(texts) > most else [])])
