"""How a command ends: its exit code, and the reason in a line on stderr."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import typer

from common.artifacts import atomic_files
from common.data.sources import DataRefused
from common.machine.plain_file import PlainFileError
from common.models.weights import WeightsError
from common.spec import SpecError
from compare.core.errors import FolderError, LaunchError, UnfitError
from compare.core.interrupt import Interrupted

RUN_FAILED, USAGE, DATA_REFUSED, UNKNOWN, FINDINGS = 1, 2, 4, 5, 6


@contextmanager
def reported() -> Generator[None]:
    """End the command with a message and an exit code if the block raises an error that a user can fix.

    Raises:
        typer.Exit: in place of SpecError, FolderError, WeightsError, PlainFileError, DataRefused, LaunchError, OSError and
            Interrupted.
    """
    try:
        yield
    except Interrupted as interruption:
        code, words = interruption.exit_code, interruption.words
    except (SpecError, FolderError, UnfitError, WeightsError) as error:
        code, words = USAGE, str(error)
    except PlainFileError as error:
        code, words = USAGE, f"{error}. Remove it, or name another folder."
    except DataRefused as error:
        code, words = DATA_REFUSED, str(error)
    except LaunchError as error:
        code, words = RUN_FAILED, str(error)
    except OSError as error:
        advice = atomic_files.remedy(error, "name another folder")
        code, words = RUN_FAILED, f"{error}. {advice} The same command continues from what is there."
    else:
        return
    typer.echo(words, err=True)
    raise typer.Exit(code)
