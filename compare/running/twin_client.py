"""Calls to a twin about a model or a trained model, each in a process of its own."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

from common.artifacts.trained import Trained
from common.machine.private_folder import PrivateFolder
from common.models.weights import WeightsError
from common.spec import Spec, SpecError
from common.training import inference
from compare.cli import exits
from compare.cli.errors import LaunchError
from compare.running import launch
from compare.running.contestants import Contestant
from compare.running.launch import Call, StartedProcess
from compare.running.taking_turns import Seat

CustomModel = Annotated[
    str | None, typer.Option("--model", help="Your own package.module that the checkpoint may name and import.")
]


def call(contestant: Contestant, arguments: Sequence[str | Path], log: Path) -> None:
    """Run one command of a twin.

    Args:
        arguments: the command and its arguments.
        log: file that gets its output.
    """
    launch.waited_for(calling(contestant, arguments, log))


def calling(
    contestant: Contestant, arguments: Sequence[str | Path], log: Path, seat: Seat | None = None
) -> Generator[StartedProcess, None, None]:
    """Run one command of a twin as `call` does, one look at its process for each step of the generator.

    Args:
        seat: its place in a round of processes that take turns. None: it works without a pause.
    """
    log.unlink(missing_ok=True)
    words = [str(word) for word in arguments]
    code = yield from launch.calling(Call(contestant, words, log, environment=_environment(seat)))
    if code == 0:
        return
    last = launch.last_line(log)
    if code == exits.USAGE:
        raise WeightsError(last)
    raise LaunchError(f"{contestant.name} cannot {arguments[0]} ({launch.describe_exit(code)}): {last}")


def query(contestant: Contestant, command: str, spec: Spec, *options: str) -> bytes:
    """Run a command of a twin about a spec, and return what it writes."""
    return launch.waited_for(querying(contestant, command, spec, *options))


def querying(
    contestant: Contestant, command: str, spec: Spec, *options: str, seat: Seat | None = None
) -> Generator[StartedProcess, None, bytes]:
    """Run a command as `query` does, one look at its process for each step of the generator. See `calling` for the seat."""
    with PrivateFolder() as temporary:
        path, out, log = (temporary.path / name for name in ("spec.json", "answer", "log.txt"))
        path.write_text(spec.to_json(), encoding="utf-8")
        words = [command, str(path), "--out", str(out), *options]
        code = yield from launch.calling(Call(contestant, words, log, spec.hang_seconds, _environment(seat)))
        if code != 0:
            message = launch.last_line(log) or launch.describe_exit(code)
            raise (SpecError if code == exits.USAGE else LaunchError)(f"{contestant.name}: {message}")
        return out.read_bytes()


def _environment(seat: Seat | None) -> Mapping[str, str]:
    return {} if seat is None else seat.environment


def logits(contestant: Contestant, path: Path, model: Trained, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.floating]:
    """Compute a contestant's logits of a few images.

    Args:
        images: uint8 [N, S, S, 3].

    Returns:
        The logits, [N, classes].
    """
    with PrivateFolder() as temporary:
        images_file, out = temporary.path / "images.npy", temporary.path / "logits.safetensors"
        np.save(images_file, images, allow_pickle=False)
        call(
            contestant,
            ["score", path, "--images", images_file, "--out", out, *model_arguments(model)],
            temporary.path / "log.txt",
        )
        return inference.load_logits(out, model, len(images))


def model_arguments(model: Trained) -> list[str]:
    """Arguments that let a twin import the module of a user's own model. The user has already allowed it."""
    return ["--model", model.card.model]
