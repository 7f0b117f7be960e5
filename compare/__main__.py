"""`convtwins COMMAND`, or `python -m compare COMMAND` in a checkout: the command line, one function a command."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import inspect
import io
import itertools
import os
import re
import shutil
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

from common.machine import plugins
from compare.cli import tools
from compare.cli.interrupt import SIGNAL_EXIT_BASE, Interrupted, exit_on_signal, interruptible

with exit_on_signal():
    import typer
    from typer.core import TyperCommand, TyperGroup
    from typer.exceptions import TyperException
    from typer.main import get_command

NAME = "convtwins"
CORE = {
    name: f"compare.{folder}.{name}"
    for folder, names in (("comparison", ["run"]), ("reporting", ["report", "export"]), ("proof", ["parity", "models"]))
    for name in names
}
MODULES = CORE | tools.commands()
"""Module whose function `command` runs each of the suite's own commands, in the order of `--help`: first those of the core."""
PLUGINS = {"concurrency": "hangs", "watch": "hangs"}
"""Folder in `plugins` of each command there, so that a missing one can be answered. Others may bring commands too."""

EXIT_UNWRITTEN = EXIT_UNFINISHED = 1
EXIT_UNREAD = SIGNAL_EXIT_BASE + signal.SIGPIPE
"""Exit code if stdout was closed by the reader (`| head`). That is no failure, and 0 would be a verdict."""

_FOLDERS = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "CONVTWINS_CACHE", "TORCH_HOME", "KERAS_HOME")
"""Environment variables of folders that commands use."""

_MIN_TABLE_COLUMNS = 100
"""Smallest number of columns of a terminal that shows a command's options as a table. A narrower table cuts long names."""


class _Command(TyperCommand):
    """A command that explains the error of a wrong option. Its help has no table on a narrow terminal."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        self._refuse_missing_values(ctx, list(itertools.takewhile(lambda word: word != "--", args)))
        try:
            return super().parse_args(ctx, args)
        except TyperException as error:
            self._explain(error)
            raise

    def _refuse_missing_values(self, ctx: Any, words: list[str]) -> None:
        """Refuse an option without all of its values. Typer would take the next option for a value."""
        options: dict[str, Any] = {
            name: param
            for param in self.params
            if param.param_type_name == "option"
            for name in (*param.opts, *param.secondary_opts)
        }
        for place, word in enumerate(words, 1):
            option = options.get(word)
            if option is None or option.is_flag:
                continue
            values = list(itertools.takewhile(lambda value: value not in options, words[place : place + option.nargs]))
            if len(values) < option.nargs:
                needed = f"It needs {option.nargs} value{'s' * (option.nargs > 1)}"
                usage = f"{word} {(option.metavar or 'VALUE').removesuffix(' ...')}"
                raise typer.BadParameter(f"{needed}. Received: {' '.join(values) or 'none'}. Type {usage}.", ctx, option)

    def _explain(self, error: Any) -> None:
        """Add the received value to an error, or the field that other frameworks call by the name of this unknown option."""
        if details := getattr(error.__cause__, "errors", None):  # of pydantic, which typer asks
            message = error.message.removeprefix("Value error, ").rstrip(".")
            error.message = f"{message}. Received: {details()[0]['input']}."
        if getattr(error, "option_name", "") == "--contestant":
            from compare.running.contestants import TAKE_CONTESTANTS

            error.message, error.possibilities = f"{error.message}. {TAKE_CONTESTANTS} take contestants.", None
        from common.spec.errors import FOREIGN_NAMES

        options = {option for param in self.params for option in param.opts}
        if error.message.startswith("Got unexpected extra argument") and not any(
            param.param_type_name == "argument" for param in self.params
        ):
            example = ", e.g. --model NAME" if "--model" in options else ""
            error.message = f"{error.message}. {self.name} takes options alone{example}."
        field = FOREIGN_NAMES.get(getattr(error, "option_name", "").strip("-").replace("-", "_"))
        if field and "--set" in options and f"--{field.rpartition('.')[2].replace('_', '-')}" not in options:
            error.message, error.possibilities = f"{error.message}. Use --set {field}=VALUE.", None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if shutil.get_terminal_size().columns < _MIN_TABLE_COLUMNS:
            self.rich_markup_mode = None
        super().format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SystemExit as ending:
            if ending.code:
                raise
            print("The command ended before its work was done.", file=sys.stderr)  # e.g. by sys.exit in a user's own code
            raise SystemExit(EXIT_UNFINISHED) from ending


class _Listed(TyperCommand):
    """A command in a list: its name and help alone."""


class _Commands(TyperGroup):
    """The group of commands, which imports a command only when it is used. Importing all of them takes seconds."""

    _only_lists: dict[str, str] | None = None
    """Modules of all commands while their list is made."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self._only_lists or modules())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = self._only_lists or (MODULES if cmd_name in MODULES else modules())
        if self._only_lists or cmd_name not in known:  # for an unknown name: all, to suggest one
            if cmd_name in PLUGINS and cmd_name not in known:
                _refuse(_missing(cmd_name), 2)
            for name in known.keys() - self.commands.keys():
                panel = "Core" if name in CORE else "Tools" if name in MODULES else "Plug-ins"
                self.commands[name] = _Listed(name, help=_help_of(known[name]), rich_help_panel=panel)
        elif isinstance(self.commands.get(cmd_name), _Listed | None):
            only = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            with exit_on_signal():
                module = importlib.import_module(known[cmd_name])
            only.command(cmd_name, cls=_Command, context_settings=_SETTINGS)(module.command)
            self.commands[cmd_name] = get_command(only)
            command = self.commands[cmd_name]
            command.params += [param for param in self.params if param.name == "version"]
            if any("--json" in param.opts for param in command.params):  # it reports
                command.params += _report_options()
        return self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with self._listing():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        with self._listing():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _listing(self) -> Generator[None]:
        self._only_lists = modules()
        try:
            yield
        finally:
            self._only_lists = None


def modules() -> dict[str, str]:
    """Return the module of each command: the suite's own, then those of installed plug-ins."""
    brought = plugins.entry_values(plugins.COMMANDS)
    return MODULES | {name: module for name, module in brought.items() if name not in MODULES and source_of(module) is not None}


def _missing(name: str) -> str:
    """Return the answer to a command of a plug-in that is not installed."""
    from common.machine.machine import INSTALLED

    folder = PLUGINS[name]
    fix = f"pip install ./plugins/{folder} in a clone of Convtwins" if INSTALLED else "make setup"  # it is on no index
    return f"A package is missing. Received: {name}, a command of convtwins-{folder}. Run: {fix}"


def source_of(module: str) -> Path | None:
    """Return the file of a module in a package. None: there is none, as an entry point may be wrong. Nothing is imported."""
    package, *names = module.split(".")
    spec = importlib.util.find_spec(package) if package else None
    folders = spec.submodule_search_locations if spec is not None else None
    places = [Path(folder, *names) for folder in folders or ()]
    files = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
    return next(filter(Path.is_file, files), None)


def _help_of(module: str) -> str:
    """Return the help of a command, from the source of its module. Nothing is imported."""
    path = source_of(module)
    source = path.read_text(encoding="utf-8") if path is not None else ""
    match = re.search(r'^def command\(.*?^    """(.*?)"""', source, re.MULTILINE | re.DOTALL)
    return inspect.cleandoc(match[1]) if match else ""


def _show_all(full: bool) -> None:
    from compare.cli import terminal

    terminal.show_all(full)


def _report(
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Print everything: all tables, findings and cautions. Without it, the first screen.",
            callback=_show_all,
            expose_value=False,
        ),
    ] = False,
) -> None:
    """Stand for every command that reports: it has their common option."""


def _report_options() -> list[Any]:
    only = typer.Typer(add_completion=False)
    only.command(cls=_Command)(_report)
    return [param for param in get_command(only).params if param.name == "full"]


def _show_version(version: bool) -> None:
    if version:
        from common.machine import code_version, machine

        typer.echo(f"{NAME} {code_version.in_words(code_version.describe(machine.PROJECT_ROOT))}")
        raise typer.Exit


_SETTINGS = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(cls=_Commands, context_settings=_SETTINGS, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def _all(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show version and commit, and exit.", callback=_show_version, is_eager=True, expose_value=False
        ),
    ] = False,
) -> None:
    """Train the same CNN in two frameworks, serially and in parallel; prove it is the same training; compare honestly."""


class _Output(io.TextIOWrapper):
    """A stdout that ends the command with one line if it cannot be written. No command takes this for its own failure."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Flush only. A user's own code must not close the command's stdout."""
        self.flush()

    def _give_up(self, error: OSError) -> NoReturn:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # drops what still waits to be written
        if isinstance(error, BrokenPipeError):
            raise SystemExit(EXIT_UNREAD) from None
        from common.artifacts import atomic_files  # not before it is needed: it takes long

        advice = atomic_files.remedy(error, "send it elsewhere")
        print(f"The output cannot be written ({error.strerror}). {advice}", file=sys.stderr)
        raise SystemExit(EXIT_UNWRITTEN) from None


# Tens of thousands of results are millions of objects and no garbage. Collecting it would double the time to read them.
COLLECT_AFTER = (100_000, 50, 1000)


def _refuse(words: str, code: int) -> NoReturn:
    print(words, file=sys.stderr)
    raise SystemExit(code)


def _is_text(word: str) -> bool:
    """Tell whether a word from the system was UTF-8. Reports and results could not hold it else."""
    return word.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in word)


def _refuse_surroundings() -> None:
    """Refuse an environment that no command could work with, and remove variables that would mislead libraries."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        _refuse("stdout is closed. Send it to a file, or to /dev/null.", EXIT_UNWRITTEN)
    for before, word in itertools.pairwise(sys.argv):
        if not word or re.fullmatch("--[a-z-]+=", word):  # an empty path would be the current folder
            which = word or before
            _refuse(f"A value is empty. Received: '' after {which}. Give it a value, or leave the option out.", 2)
        if not _is_text(word):
            _refuse(f"Words and names must be UTF-8. Received: {word!a}. Rename the file.", 2)
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        _refuse("The current folder is not there any more. Change to another.", EXIT_UNFINISHED)
    folders = {name: os.environ.get(name, "") for name in _FOLDERS} | {"The current folder": here}
    for name, folder in folders.items():
        if not _is_text(folder):
            _refuse(f"{name} must be UTF-8. Received: {folder!a}. Use another folder.", 2)
    if not os.environ.get("COLUMNS", "1").strip("0"):
        del os.environ["COLUMNS"]  # Rich would print nothing
    os.environ["MPLBACKEND"] = "agg"  # that of a notebook is no package of this environment


def main() -> None:
    """Run the command line of this process."""
    _refuse_surroundings()
    gc.set_threshold(*COLLECT_AFTER)
    sys.stdout = _Output(sys.stdout.buffer, sys.stdout.encoding, sys.stdout.errors, line_buffering=sys.stdout.isatty())
    with interruptible(until_exit=True):
        try:
            app(prog_name=NAME)
        except Interrupted as interruption:  # outside of the command's own clean-up
            print(interruption.message, file=sys.stderr)
            sys.exit(interruption.exit_code)
        finally:
            sys.stdout.flush()
            gc.freeze()  # no collection at exit either


if __name__ == "__main__":
    main()
