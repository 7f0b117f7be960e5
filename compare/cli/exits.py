"""How a command ends: its exit code, and the reason in a line on stderr."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager

import typer

from common.artifacts import atomic_files
from common.errors import UserError
from common.machine.plain_file import PlainFileError
from compare.cli.interrupt import Interrupted

RUN_FAILED, USAGE, DATA_REFUSED, UNKNOWN, FINDINGS = 1, 2, 4, 5, 6


@contextmanager
def exit_on_error() -> Generator[None]:
    """End the command with a message and an exit code if the block raises an error that a user can fix.

    Raises:
        typer.Exit: in place of UserError, PlainFileError, OSError and Interrupted.
    """
    try:
        yield
    except Interrupted as interruption:
        code, message = interruption.exit_code, interruption.message
    except UserError as error:
        code, message = error.exit_code, str(error)
    except PlainFileError as error:
        code, message = USAGE, f"{error}. Remove it, or name another folder."
    except OSError as error:
        code, message = RUN_FAILED, f"{error}. {_advice(error)} The same command continues from what is there."
    else:
        return
    typer.echo(message, err=True)
    raise typer.Exit(code)


def _advice(error: OSError) -> str:
    if error.filename is None and error.errno == errno.EINVAL:  # a wait has no file, and its length is never wrong
        return "A wait was refused, as it is where the system's clock jumps: check the clock."
    return atomic_files.remedy(error, "name another folder")
