"""`python -m compare completion SHELL`: a `convtwins` command for the shell, with completion."""

from __future__ import annotations

import enum
import os
import shlex
import sys
from typing import Annotated

import typer
from typer.completion import completion_init  # pyright: ignore[reportPrivateImportUsage]  typer says nowhere else

from compare.execution.launch import PROJECT_ROOT

NAME = "convtwins"
VARIABLE = "_CONVTWINS_COMPLETE"
"""A shell that wants completions sets this environment variable."""


class Shell(enum.StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


_SCRIPTS = {
    Shell.bash: """\
{name}() {{ PYTHONPATH={root} {python} -m compare "$@"; }}
_{name}() {{
    local IFS=$'\\n'
    COMPREPLY=($(COMP_WORDS="${{COMP_WORDS[*]}}" COMP_CWORD=$COMP_CWORD {variable}=complete_bash {name} 2>/dev/null))
}}
complete -o default -F _{name} {name}
""",
    Shell.zsh: """\
{name}() {{ PYTHONPATH={root} {python} -m compare "$@" }}
_{name}() {{ eval "$(_TYPER_COMPLETE_ARGS="${{words[1,$CURRENT]}}" {variable}=complete_zsh {name} 2>/dev/null)" }}
compdef _{name} {name}
""",
    Shell.fish: """\
function {name}; PYTHONPATH={root} {python} -m compare $argv; end
function __{name}
    set -lx {variable} complete_fish
    set -lx _TYPER_COMPLETE_FISH_ACTION $argv[1]
    set -lx _TYPER_COMPLETE_ARGS (commandline -cp)
    {name} 2>/dev/null
end
complete --command {name} --no-files --condition "__{name} is-args" --arguments "(__{name} get-args)"
""",
}


def command(shell: Annotated[Shell, typer.Argument(help="Whose script.")]) -> None:
    """Print a script that defines the command `convtwins` with completion. Source it in your shell."""
    root, python = shlex.quote(str(PROJECT_ROOT)), shlex.quote(sys.executable)
    typer.echo(_SCRIPTS[shell].format(name=NAME, root=root, python=python, variable=VARIABLE), nl=False)


def prepare() -> None:
    """Set up the answers if a shell asks for completions."""
    if VARIABLE in os.environ:
        completion_init()
