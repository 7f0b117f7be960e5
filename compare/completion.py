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
    root, python = shlex.quote(str(PROJECT_ROOT)), shlex.quote(sys.executable)
    if shell == "fish":  # which keeps PYTHONPATH as a list
        typer.echo(f"function {NAME}; env PYTHONPATH=(string join : -- {root} $PYTHONPATH) {python} -m compare $argv; end")
    else:
        typer.echo(f'{NAME}() {{ env PYTHONPATH={root}"${{PYTHONPATH:+:$PYTHONPATH}}" {python} -m compare "$@"; }}')
    script = get_completion_script(prog_name=NAME, complete_var=VARIABLE, shell=shell)
    typer.echo(script.replace("env ", ""))  # `env` starts programs only, and `convtwins` is a function
