"""Calls to a twin about a trained model, each in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

from common.artifacts.trained import Trained
from common.machine.private_folder import PrivateFolder
from common.models.weights import WeightsError
from common.training import inference
from compare.core import exits, wording
from compare.core.errors import LaunchError
from compare.execution import launch

OwnModel = Annotated[
    str | None, typer.Option("--model", help="Your own package.module that the checkpoint may name and import.")
]
_REASON_LENGTH = 400


def call(framework: str, words: Sequence[str | Path], log: Path) -> None:
    """Run one command of a twin.

    Args:
        words: the command and its arguments.
        log: gets its output.

    Raises:
        WeightsError: the twin refuses a file. The message is the twin's.
        LaunchError: it fails.
    """
    log.unlink(missing_ok=True)
    code = launch.call(framework, [str(word) for word in words], log=log)
    if code == 0:
        return
    last = last_line(log)
    if code == exits.USAGE:
        raise WeightsError(last)
    raise LaunchError(f"{framework} cannot {words[0]} ({launch.exit_words(code)}): {last}")


def last_line(log: Path) -> str:
    """The last line of a twin's log: its reason, or what ended it. Empty if it printed nothing."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return wording.one_line(lines[-1])[:_REASON_LENGTH] if lines else ""


def logits(framework: str, path: Path, model: Trained, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.floating]:
    """A framework's logits of a few images.

    Args:
        images: uint8 [N, S, S, 3].

    Returns:
        [N, classes].

    Raises:
        LaunchError: the twin fails.
    """
    with PrivateFolder() as temporary:
        given, out = temporary.path / "images.npy", temporary.path / "logits.safetensors"
        np.save(given, images, allow_pickle=False)
        call(framework, ["score", path, "--images", given, "--out", out, *own_model(model)], temporary.path / "log.txt")
        return inference.logits(out, model, len(images))


def own_model(model: Trained) -> list[str]:
    """Arguments that let a twin import the module of a user's own model. The user has already allowed it."""
    return ["--model", model.card.model]
