"""`convtwins env`: environments for contestants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from common.spec import SpecError
from compare.cli import commands
from compare.cli.option_types import Choice
from compare.reporting.document import Report
from compare.running import contestants
from compare.tools.environments import checking, creating

ACTIONS = ("create", "list", "check")
_THIS = "this-one"
"""Name of this process's own environment in a report."""


@commands.command()
def command(
    action: Annotated[str, Choice(ACTIONS), typer.Argument(help=f"{', '.join(ACTIONS)}.")],
    name: Annotated[
        str | None, typer.Argument(help="Of the environment. To check: also a folder or an interpreter. Default: this one.")
    ] = None,
    lock: Annotated[
        Path | None, typer.Option("--lock", help="To create: a requirements file, or e.g. cpu for the suite's own.")
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", help="To create: the interpreter that makes it. Default: this one.")
    ] = None,
    no_deps: Annotated[
        bool, typer.Option("--no-deps", help="To create: install what the lock names, and nothing that this requires.")
    ] = False,
    folder: Annotated[Path, typer.Option("--folder", help="Where the environments are.")] = contestants.FOLDER,
) -> Report:
    """Make, list or check environments for contestants: env create NAME --lock FILE, env list, env check NAME."""
    if action != "create" and (lock or python or no_deps):
        raise SpecError(f"--lock, --python and --no-deps are for env create. Received: env {action}. Leave them out.")
    if action == "create":
        if name is None or lock is None:
            raise SpecError("env create needs a name and --lock FILE. Use e.g. env create torch-213 --lock torch-213.lock.")
        return checking.report(checking.check(name, str(creating.create(name, lock, folder, python, no_deps=no_deps))))
    if action == "list":
        environments = creating.environments(folder)
        return checking.listing([checking.inspect(path.name, str(path / "bin" / "python")) for path in environments])
    return checking.report(checking.check(*((_THIS, None) if name is None else _find(name, folder))))


def _find(name: str, folder: Path) -> tuple[str, str]:
    """Return (label, interpreter) of an environment by its name, its folder or its interpreter."""
    environment_path = (folder / name).absolute()
    interpreter = contestants.interpreter(str(environment_path) if environment_path.is_dir() else name)
    if not interpreter.exists():
        raise SpecError(
            f"env check takes the name of an environment, its folder, or an interpreter. Received: {name}, but there is no "
            f"{interpreter}. See env list, or make one with env create."
        )
    label = interpreter.parents[1].name if interpreter.parent.name == "bin" else interpreter.name
    return label.strip("._-") or "environment", str(interpreter)
