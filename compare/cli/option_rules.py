"""Rules between the options of a command: which need others, and which exclude each other.

A rule names an option as a user types it, e.g. `--out`, and an argument by its word in the help, e.g. `BASELINE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import typer

from common.spec import SpecError


class AllExcept:
    """All options of a command except some. `--full` is one of these: it only sets how much is printed."""

    def __init__(self, *names: str) -> None:
        self.names = (*names, "--full")


OptionNames = str | Sequence[str] | AllExcept


class GivenOption:
    """An option or argument of a command that is started, and whether and how the user typed it."""

    def __init__(self, parameter: Any, context: typer.Context) -> None:
        source = context.get_parameter_source(parameter.name)
        self.is_typed = source is not None and source.name == "COMMANDLINE"
        self.parameter_name = parameter.name
        self.is_argument = parameter.param_type_name == "argument"
        self.names = (
            [parameter.metavar or parameter.name.upper()]
            if self.is_argument
            else [*parameter.opts, *parameter.secondary_opts[:1]]
        )
        self._value = context.params.get(parameter.name)
        self._metavar = parameter.metavar

    @property
    def value(self) -> str:
        """The value in words. Empty for a switch."""
        if isinstance(self._value, bool):
            return ""
        return " ".join(map(str, self._value)) if isinstance(self._value, list | tuple) else str(self._value)

    @property
    def label(self) -> str:
        """The option as a user types it, e.g. `--proof/--no-proof`, or the value of an argument."""
        return self.value if self.is_argument else "/".join(self.names)

    @property
    def usage(self) -> str:
        """The option with the word that stands for its value, e.g. `--good REV`."""
        metavar = "" if self.is_argument else (self._metavar or "").removesuffix(" ...")
        return f"{self.names[0]} {metavar}".strip()

    @property
    def typed_words(self) -> str:
        """The option with the value that the user typed. `--no-proof` is the last name of `--proof`."""
        name = self.names[-1] if self._value is False else self.names[0]
        return self.value if self.is_argument else f"{name} {self.value}".strip()


class GivenOptions:
    """All options and arguments of a command that is started."""

    def __init__(self, context: typer.Context) -> None:
        self.command = context.command.name
        self._options = [GivenOption(parameter, context) for parameter in context.command.params]

    def select(self, names: OptionNames) -> list[GivenOption]:
        """Return the options of these names, in the order of the help.

        Raises:
            KeyError: the command has no such option.
        """
        listed = [names] if isinstance(names, str) else names.names if isinstance(names, AllExcept) else names
        if unknown := set(listed) - {"--full"} - {name for option in self._options for name in option.names}:
            raise KeyError(f"{self.command} has no option {', '.join(sorted(unknown))}")
        return [
            option
            for option in self._options
            if any(name in listed for name in option.names) is not isinstance(names, AllExcept)
        ]

    def setting(self, field: str, value: object) -> str | None:
        """Return what a user types to set a dotted field of the spec. None: this command cannot set it."""
        names = {name for option in self._options for name in option.names}
        if (option_name := f"--{field.rpartition('.')[2].replace('_', '-')}") in names:
            return f"{option_name} {value}"
        return f"--set {field}={value}" if "--set" in names else None

    def parameter(self, name: str) -> GivenOption:
        """Return an option by the name of its parameter."""
        return next(option for option in self._options if option.parameter_name == name)

    def typed(self, names: OptionNames) -> list[GivenOption]:
        """Return those of these options that the user typed."""
        return [option for option in self.select(names) if option.is_typed]


class OptionRule(Protocol):
    """A rule between options."""

    def check(self, given: GivenOptions) -> None:
        """Refuse options that break the rule."""
        ...


@dataclass(frozen=True)
class Needs:
    """Each of some options needs one of others."""

    options: OptionNames
    others: OptionNames
    advice: str = ""

    def check(self, given: GivenOptions) -> None:
        options, others = given.typed(self.options), given.select(self.others)
        if options and not any(other.is_typed for other in others):
            usages = _joined([other.usage for other in others], "or")
            missing = "it" if len(others) == 1 else "one of them"
            go, it = ("goes", "it") if len(options) == 1 else ("go", "them")
            raise SpecError(
                f"{', '.join(option.label for option in options)} {go} with {usages}. "
                f"Received: {', '.join(option.typed_words for option in options)} without {missing}. "
                f"{self.advice or f'Add {usages}, or leave {it} out.'}"
            )


@dataclass(frozen=True)
class Excludes:
    """No option of some goes with one of others.

    Attributes:
        why: what an option of the first does, as the end of a sentence.
    """

    options: OptionNames
    others: OptionNames
    why: str = ""
    advice: str = ""

    def check(self, given: GivenOptions) -> None:
        options, others = given.typed(self.options), given.typed(self.others)
        if not options or not others:
            return
        if self.why:
            received = ", ".join(other.label for other in others)
            leave_out = f"Leave {'it' if len(others) == 1 else 'them'} out."
            raise SpecError(f"{options[0].names[0]} {self.why}. Received also: {received}. {self.advice or leave_out}")
        raise SpecError(
            f"{options[0].names[0]} and {others[0].names[0]} exclude each other. Received: both. "
            f"{self.advice or 'Use one of them.'}"
        )


@dataclass(frozen=True)
class OneOf:
    """Exactly one of some options is needed."""

    options: Sequence[str]
    advice: str = ""

    def check(self, given: GivenOptions) -> None:
        typed = given.typed(self.options)
        if not typed:
            usages = _joined([option.usage for option in given.select(self.options)], "or")
            none = "neither" if len(self.options) == 2 else "none of them"
            raise SpecError(f"{given.command} needs {usages}. Received: {none}. {self.advice or f'Add {usages}.'}")
        if len(typed) > 1:
            first, second, *_ = (option.names[0] for option in typed)
            raise SpecError(f"{first} and {second} exclude each other. Received: both. Use one of them.")


def _joined(words: Sequence[str], conjunction: str) -> str:
    return f" {conjunction} ".join(filter(None, (", ".join(words[:-1]), words[-1])))
