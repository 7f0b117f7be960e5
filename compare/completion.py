"""`python -m compare completion SHELL`: a `convtwins` command for the shell, with completion."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Literal

import typer
from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage]  typer says nowhere else

from compare.execution.launch import PROJECT_ROOT

NAME = "convtwins"
VARIABLE = "_CONVTWINS_COMPLETE"
"""A shell that wants completions sets this environment variable."""


def command(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Whose script.")]) -> None:
    """Print a script that defines the command `convtwins` with completion. Source it in your shell."""
    run = f"env PYTHONPATH={shlex.quote(str(PROJECT_ROOT))} {shlex.quote(sys.executable)} -m compare"
    typer.echo(f"function {NAME}; {run} $argv; end" if shell == "fish" else f'{NAME}() {{ {run} "$@"; }}')
    script = get_completion_script(prog_name=NAME, complete_var=VARIABLE, shell=shell)
    typer.echo(script.replace("env ", ""))  # `env` starts programs only, and `convtwins` is a function
