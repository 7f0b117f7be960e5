"""Each refusal ends a command with its own exit code and its sentence, and no traceback."""

import errno
from typing import NoReturn

import pytest
import typer
from typer.testing import CliRunner

from common.data.decoding.decode import BadImageError
from common.data.sources import DataRefused
from common.machine.plain_file import PlainFileError
from common.models.weights import WeightsError
from common.spec import SpecError
from compare.cli import exits
from compare.cli.errors import FolderError, LaunchError, UnfitError
from compare.cli.interrupt import Interrupted

FULL = OSError(errno.ENOSPC, "No space left on device", "some/file")
ELSEWHERE = OSError(errno.EACCES, "Permission denied", "some/file")
JUMPING_CLOCK = OSError(errno.EINVAL, "Invalid argument")
GOES_ON = "The same command continues from what is there."


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (SpecError("a field"), 2, "a field"),
        (FolderError("a folder"), 2, "a folder"),
        (UnfitError("a twin"), 2, "a twin"),
        (WeightsError("an array"), 2, "an array"),
        (PlainFileError("a/pipe", errno.EINVAL, "is no plain file"), 2, "a/pipe is no plain file. Remove it, or name another"),
        (DataRefused("a class"), 4, "a class"),
        (BadImageError("an image"), 4, "an image"),
        (LaunchError("a process"), 1, "a process"),
        (FULL, 1, f"'some/file'. Free space, or name another folder. {GOES_ON}"),
        (ELSEWHERE, 1, f"'some/file'. Name another folder. {GOES_ON}"),
        (JUMPING_CLOCK, 1, f"check the clock. {GOES_ON}"),
        (Interrupted(2), 130, "Interrupted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_every_refusal_is_an_exit_code_and_a_sentence(raised: BaseException, code: int, said: str) -> None:
    app = typer.Typer()

    @app.command()
    def command() -> NoReturn:
        with exits.exit_on_error():
            raise raised

    done = CliRunner().invoke(app)
    assert done.exit_code == code and said in done.stderr and done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_defect_of_the_suite_is_no_refusal() -> None:
    with pytest.raises(KeyError), exits.exit_on_error():
        raise KeyError("x")
