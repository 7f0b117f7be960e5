"""The command line: in this process, or in one of its own."""

from __future__ import annotations

import contextvars
import functools
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import typer
from typer.main import get_command
from typer.testing import CliRunner

from common.errors import UserError
from compare.__main__ import MODULES, app
from tests.support import processes
from tests.support.processes import Finished

_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
OTHER_PROGRAMS = {"dask", "git", "pytest"}
"""Programs whose options an error may name."""
_END_OF_SENTENCE = re.compile(r"[.?] (?=[A-Z])|\n")

Case = TypeVar("Case", bound=str | Sequence[Any])


def here(*cases: Case) -> list[Case]:
    """Return the cases whose command is here. That of a tool goes with the tool's folder.

    Args:
        cases: each starts with a command line, as one text or as its words.
    """

    def command(case: Any) -> str:
        return case.split()[0] if isinstance(case, str) else command(case[0])

    return [case for case in cases if command(case) in MODULES or command(case).startswith("--")]


@dataclass(frozen=True)
class Ended(Finished):
    """A command that ran in this process."""

    interleaved: str = ""
    """Both outputs as a terminal would show them."""
    exception: BaseException | None = None
    """The error that the command did not handle. None: there was none."""
    words: tuple[str, ...] = ()
    """What stood behind `convtwins`."""

    @property
    def output(self) -> str:
        return self.interleaved

    @property
    def progress(self) -> list[str]:
        """The lines of standard error, without the one that says how busy this machine is."""
        return [line for line in self.stderr.splitlines() if not line.startswith("Other programs use ")]

    @property
    def refusal(self) -> UserError:
        """The message on standard error, to be read by its parts. Typer's own message stands in a box below the usage."""
        boxed = [line.strip("│ ") for line in self.stderr.splitlines() if line.startswith("│")]
        return UserError(" ".join(boxed) if boxed and self.stderr.startswith("Usage:") else self.stderr.strip())

    @property
    def strange_options(self) -> set[str]:
        """The options in the message on standard error that the command does not have.

        Those that were typed do not count, nor those of another command or program that the same sentence names before them.
        """
        strange: set[str] = set()
        for sentence in _END_OF_SENTENCE.split(str(self.refusal)):
            for option in _OPTION.finditer(sentence):
                words_before = re.findall(r"[a-z]+", sentence[: option.start()])
                others = [word for word in words_before if word in MODULES]
                if OTHER_PROGRAMS.intersection(words_before) or option.group().startswith("--benchmark-"):
                    continue
                commands = [self.words, *((other,) for other in others)]
                if option.group() not in self.words and not any(option.group() in options_of(words) for words in commands):
                    strange.add(option.group())
        return strange

    def succeeded(self) -> Ended:
        """Return this. Fail with its output, or raise its exception, if it did not end with exit code 0."""
        if self.exception is not None and not isinstance(self.exception, SystemExit):
            raise self.exception
        assert self.exit_code == 0, f"exit code {self.exit_code}\n{self.output}"
        return self


def convtwins(*words: object, stdin: str | None = None, **variables: str | None) -> Ended:
    """Run `convtwins WORDS` in this process.

    Args:
        words: what stands behind the command's name.
        stdin: text for standard input.
        variables: environment variables; None removes one.
    """
    own_context = contextvars.copy_context()  # so no later test prints all because this command had --full
    result = own_context.run(CliRunner().invoke, app, list(map(str, words)), input=stdin, env=variables)
    return Ended(result.exit_code, result.stdout, result.stderr, result.output, result.exception, tuple(map(str, words)))


@functools.cache
def options_of(words: tuple[str, ...]) -> frozenset[str]:
    """Return the options of the command that a command line names, of `env create` those of `create`."""
    command: Any = get_command(app)
    for word in words:
        if not hasattr(command, "get_command"):
            break
        command = command.get_command(typer.Context(command), word) or command
    return frozenset(name for param in command.params for name in (*param.opts, *param.secondary_opts)) | {"--help"}


def convtwins_json(*words: object, exit_code: int = 0) -> Any:
    """Run `convtwins WORDS --json` in this process and return the value it prints."""
    ended = convtwins(*words, "--json")
    assert ended.exit_code == exit_code, f"exit code {ended.exit_code}\n{ended.output}"
    return json.loads(ended.stdout)


def convtwins_process(*words: object, **how: Any) -> Finished:
    """Run `convtwins WORDS` in a process of its own. `how` is that of `processes.run`."""
    return processes.run([sys.executable, "-m", "compare", *words], **how)
