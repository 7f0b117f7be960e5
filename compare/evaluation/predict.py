"""`python -m compare predict`: labels images with a trained model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from common.artifacts import trained
from common.artifacts.trained import Trained
from common.data.dataset import BadFile, listed_below
from common.data.decoding import decode
from common.data.sources import DataRefused
from common.training import scores
from compare.core import exits, terminal
from compare.core.interrupt import interruptible
from compare.core.option_parsing import chosen
from compare.execution import launch, twin_client
from compare.execution.twin_client import OwnModel
from compare.reporting import tables
from compare.reporting.tables import Cell, Column, Table

MAX_BYTES = 256 * 2**20
"""Largest size of an image file: more than any of 50 megapixels needs."""


@dataclass(frozen=True)
class Predictions:
    """One framework's predictions for some images."""

    framework: str
    model: Trained
    paths: Sequence[Path]
    probabilities: npt.NDArray[np.float64]
    """[N, classes]."""


def command(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A trained model (best.safetensors of a run).")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="JPEG, PNG and other image files.")],
    frameworks: Annotated[
        str | None, typer.Option(help=f"{' or '.join(launch.FRAMEWORKS)}. Default: the one that trained it.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Labels of each image that the table shows.")] = 3,
    model: OwnModel = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every class's probability as JSON.")] = False,
) -> None:
    """Label images with a trained model, and show the probability of each class."""
    with exits.told(), interruptible():
        made = predict(checkpoint, images, frameworks, own_model=model)
    if as_json:
        typer.echo(json.dumps(to_plain(made, checkpoint), indent=1))
    else:
        console = terminal.stdout()
        tables.print_all(console, [table(made, top)], where="--json")


def predict(
    checkpoint: Path, paths: Sequence[Path], framework: str | None = None, *, own_model: str | None = None
) -> Predictions:
    """Label images.

    Images are decoded and resized by the suite's rule, as in training, and scaled by the model's card.

    Args:
        checkpoint: the file of a trained model.
        paths: at least one image file.
        framework: that runs the model; None: the one that trained it.
        own_model: see `trained.load`.

    Raises:
        WeightsError, SpecError: the model cannot be used.
        DataRefused: a file is not a usable image; all such files are named.
        LaunchError: the framework fails.
    """
    found = trained.load(checkpoint, own_model)
    (chosen_framework,) = chosen("--frameworks", [framework or found.card.framework], tuple(launch.FRAMEWORKS))
    pixels = read_images(paths, found.card.image_size)
    logits = twin_client.logits(chosen_framework, checkpoint, found, pixels)
    return Predictions(chosen_framework, found, paths, scores.probabilities(logits))


def read_images(paths: Sequence[Path], image_size: int) -> npt.NDArray[np.uint8]:
    """uint8 [N, image_size, image_size, 3] of image files.

    Raises:
        DataRefused: some are not usable images; each is named, with its error.
    """
    decoded: list[npt.NDArray[np.uint8]] = []
    faults: list[str] = []
    with decode.silent():
        for path in paths:
            try:
                decoded.append(decode.decode(_content(path), image_size))
            except (BadFile, OSError) as error:
                faults.append(f"{path}: {error.strerror if isinstance(error, OSError) else error}")
    if faults:
        count = "An image" if len(faults) == 1 else f"{len(faults):,} images"
        raise DataRefused(f"{count} cannot be read. {listed_below(faults, len(faults))}\nLeave out what is no image.")
    return np.stack(decoded)


def table(made: Predictions, top: int) -> Table:
    """A row for each image, with its most probable labels."""
    names = made.model.card.class_names
    shown = min(top, len(names))
    columns = (
        Column("image", "image"),
        Column("label", "label"),
        Column("probability", "probability", 4),
        *((Column("others", "next"),) if shown > 1 else ()),
    )
    rows: list[dict[str, Cell]] = []
    for path, line in zip(made.paths, made.probabilities, strict=True):
        first, *others = np.argsort(-line, kind="stable")[:shown]
        rows.append(
            {
                "image": str(path),
                "label": names[first],
                "probability": float(line[first]),
                "others": ", ".join(f"{names[label]} {line[label]:.4f}" for label in others),
            }
        )
    card = made.model.card
    return Table(
        "predictions",
        f"{card.model}, trained in {card.framework} (epoch {card.epoch}), used in {made.framework}",
        columns,
        rows,
        note=f"Images are stretched to {card.image_size} x {card.image_size} pixels. A probability is the model's own word.",
    )


def to_plain(made: Predictions, checkpoint: Path) -> dict[str, Any]:
    """Everything, JSON-ready."""
    card = made.model.card
    return {
        "checkpoint": str(checkpoint),
        "framework": made.framework,
        "card": card.model_dump(mode="json"),
        "images": [
            {
                "path": str(path),
                "label": card.class_names[int(line.argmax())],
                "probability": float(line.max()),
                "probabilities": dict(zip(card.class_names, line.tolist(), strict=True)),
            }
            for path, line in zip(made.paths, made.probabilities, strict=True)
        ],
    }


def _content(path: Path) -> bytes:
    if path.is_dir():
        raise BadFile("a folder", "name the files in it")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise BadFile(decode.TOO_LARGE, f"more than {MAX_BYTES / 2**20:.0f} MiB")
    return content
