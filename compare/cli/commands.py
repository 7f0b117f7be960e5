"""The frame of every command: its options, their rules, errors, interruption, progress, delivery and exit code."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar, get_type_hints

import typer

from common import errors
from common.spec import written
from compare.cli import exits
from compare.cli.interrupt import Interrupted, interruptible
from compare.cli.option_rules import GivenOptions, OptionRule
from compare.cli.option_types import OptionType
from compare.cli.progress import Display, display

AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
_Resource = TypeVar("_Resource")


class Deliverable(Protocol):
    """A report: `compare.reporting.document.Report`, or what is printed in its place."""

    def deliver(self, folder: Path | None, *, as_json: bool) -> int:
        """Write the report to its folder, if it has one, and print it. Returns the exit code."""
        ...


@dataclass(frozen=True)
class Outcome:
    """A report with its folder, as a command returns it."""

    report: Deliverable
    folder: Path | None = None
    """Folder that the report is written to. None: it is only printed."""
    finish: Callable[[int], int] = lambda code: code
    """Work after the delivery. It gets the exit code so far, and returns the command's."""


class Invocation:
    """One run of a command. A command that has a parameter of this type gets it from the frame.

    Attributes:
        resources: contexts that end after the delivery, such as the lock of a results folder.
        interrupt_message: last line of the command if it is interrupted. Empty: the usual one.
        as_json: whether the report is printed as JSON.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.resources = ExitStack()
        self.interrupt_message = ""
        self._display = ExitStack()
        self._progress: Display | None = None

    def hold(self, resource: AbstractContextManager[_Resource]) -> _Resource:
        """Enter a context that ends after the delivery."""
        return self.resources.enter_context(resource)

    @property
    def progress(self) -> Display:
        """The display of progress on stderr. It starts when it is first used, and ends before the delivery."""
        if self._progress is None:
            self._progress = self._display.enter_context(display())
        return self._progress

    def run(self, function: Callable[[], Outcome | Deliverable | int | None]) -> int:
        """Run a command's function and deliver its report. Returns the exit code."""
        try:
            with interruptible(), self.resources:
                with self._display:
                    outcome = function()
                if isinstance(outcome, int | None):
                    return outcome or 0
                if not isinstance(outcome, Outcome):
                    outcome = Outcome(outcome)
                return outcome.finish(outcome.report.deliver(outcome.folder, as_json=self.as_json))
        except Interrupted as interruption:
            interruption.message = self.interrupt_message or interruption.message
            raise


def command(
    *rules: OptionRule, within: Callable[[Mapping[str, Any]], AbstractContextManager[Any]] = nullcontext
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a command of a function from settings to a report, for `MODULES` of `compare/__main__.py`.

    The function returns a report, which is printed, or an `Outcome`, which names its folder too. Such a command has `--json`.
    A function that delivers its report itself returns the exit code. One that only prints a text returns None.
    An error that a user can fix is raised.

    A parameter of type `Invocation` is given by the frame. One whose type is a dataclass stands for the options of its fields.
    One with an `OptionType` in its annotation gets the value of the text that a user types.

    Args:
        rules: which options go together. They are checked in this order, before the function is called.
        within: returns a context for the whole command, e.g. one that writes an error to a file. It gets the values of the
            options by parameter, an option with an `OptionType` as text.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        parameters: list[inspect.Parameter] = []
        groups: dict[str, Any] = {}
        invocation_names: list[str] = []
        for parameter in signature.parameters.values():
            if parameter.annotation is Invocation:
                invocation_names.append(parameter.name)
            elif dataclasses.is_dataclass(parameter.annotation):
                groups[parameter.name] = parameter.annotation
                parameters += _group_parameters(parameter.annotation)
            else:
                parameters.append(parameter)
        is_reporting = signature.return_annotation is not None
        if is_reporting:
            parameters.append(_parameter("as_json", AsJson, default=False))
        parameters.append(_parameter("context", typer.Context))
        defaults = {parameter.name: parameter.default for parameter in parameters}
        option_types = {parameter.name: kind for parameter in parameters if (kind := _option_type(parameter)) is not None}
        parameters = [_as_text(parameter, option_types.get(parameter.name)) for parameter in parameters]

        @functools.wraps(function)
        def wrapper(context: typer.Context, **values: Any) -> None:
            invocation = Invocation(as_json=is_reporting and values.pop("as_json"))
            given = GivenOptions(context)
            with errors.settings_typed(given.setting), written.remembered(), exits.exit_on_error(), within(values):
                for rule in rules:
                    rule.check(given)
                for name, kind in option_types.items():
                    option = given.parameter(name)
                    values[name] = kind.parse(option.names[0], values[name]) if option.is_typed else defaults[name]
                arguments = _with_groups(values, groups) | dict.fromkeys(invocation_names, invocation)
                code = invocation.run(functools.partial(function, **arguments))
            raise typer.Exit(code)

        # Typer looks for the options of a command here.
        vars(wrapper)["__signature__"] = inspect.Signature(parameters)
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def _parameter(name: str, annotation: Any, *, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option_type(parameter: inspect.Parameter) -> OptionType | None:
    metadata = getattr(parameter.annotation, "__metadata__", ())
    return next((fact for fact in metadata if isinstance(fact, OptionType)), None)


def _as_text(parameter: inspect.Parameter, kind: OptionType | None) -> inspect.Parameter:
    """Return the parameter as typer sees it: an option with a type of the suite's is a text."""
    if kind is None:
        return parameter
    default = parameter.default
    text_type = str | None if default is None else str
    if default not in (None, inspect.Parameter.empty):
        default = kind.format(default)
    facts = [fact for fact in parameter.annotation.__metadata__ if fact is not kind]
    return parameter.replace(annotation=Annotated[text_type, *facts], default=default)


def _group_parameters(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [_parameter(field.name, types[field.name], default=field.default) for field in dataclasses.fields(group)]


def _with_groups(values: Mapping[str, Any], groups: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a function, with an object in place of the options of each group."""
    arguments = dict(values)
    for name, group in groups.items():
        arguments[name] = group(**{field.name: arguments.pop(field.name) for field in dataclasses.fields(group)})
    return arguments
