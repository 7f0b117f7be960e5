"""`convtwins predict`: labels images with a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from common.artifacts import trained
from common.artifacts.trained import Card, Trained
from common.data.dataset import BadImageError, list_faults
from common.data.decoding import decode
from common.data.sources import DataRefused
from common.machine import plain_file
from common.spec import SpecError
from common.training import scores
from compare.cli import commands, wording
from compare.judgement.row_figures import GUESSING
from compare.reporting.document import Report
from compare.reporting.tables import Column, Table
from compare.running import contestants, launch, options, twin_client
from compare.running.contestants import Contestant
from compare.running.twin_client import CustomModel
from compare.statistics import statistics

MAX_BYTES = 256 * 2**20
"""Largest size of an image file, in bytes: more than any of 50 megapixels needs."""


@dataclass(frozen=True)
class Predictions:
    """One framework's predictions for some images."""

    framework: str
    model: Trained
    paths: Sequence[Path]
    probabilities: npt.NDArray[np.float64]
    """Probability of each class, [N, classes]."""


@commands.command()
def command(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A trained model (best.safetensors of a run).")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="JPEG, PNG and other image files.")],
    frameworks: Annotated[
        str | None, typer.Option(help=f"{options.FRAMEWORKS} Here one. Default: the one that trained the model.")
    ] = None,
    contestant: options.Contestants = None,
    top: Annotated[int, typer.Option(min=1, help="Labels of each image that the table shows.")] = 3,
    model: CustomModel = None,
) -> Report:
    """Label images with a trained model, and show the probability of each class."""
    chosen = options.contestants(frameworks, contestant, ()).contestants if frameworks or contestant else []
    if len(chosen) > 1:
        names = ", ".join(twin.name for twin in chosen)
        raise SpecError(f"predict uses one framework. Received: {names}. Name one.")
    predictions = predict(checkpoint, images, *chosen, own_model=model)
    return report(predictions, checkpoint, top)


def predict(
    checkpoint: Path, paths: Sequence[Path], contestant: Contestant | None = None, *, own_model: str | None = None
) -> Predictions:
    """Label images.

    Images are decoded and resized by the suite's rule, as in training, and scaled by the model's card.

    Args:
        checkpoint: the file of a trained model.
        paths: at least one image file.
        contestant: runs the model. None: the framework that trained it.
        own_model: see `trained.load`.
    """
    trained_model = trained.load(checkpoint, own_model)
    if contestant is None:
        contestant = Contestant.plain(*contestants.check([trained_model.card.framework], [*launch.FRAMEWORKS]))
    elif contestant.python is not None:
        launch.probe(contestant)
    pixels = read_images(paths, trained_model.card.image_size)
    logits = twin_client.logits(contestant, checkpoint, trained_model, pixels)
    return Predictions(contestant.name, trained_model, paths, scores.probabilities(logits))


def read_images(paths: Sequence[Path], image_size: int) -> npt.NDArray[np.uint8]:
    """Read image files as uint8 [N, image_size, image_size, 3]."""
    decoded: list[npt.NDArray[np.uint8]] = []
    faults: list[str] = []
    with decode.ignore_warnings():
        for path in paths:
            try:
                decoded.append(decode.decode(_content(path), image_size))
            except (BadImageError, OSError) as error:
                faults.append(f"{path}: {error.strerror if isinstance(error, OSError) else error}")
    if faults:
        count = "An image" if len(faults) == 1 else f"{len(faults):,} images"
        raise DataRefused(f"{count} cannot be read. {list_faults(faults, len(faults))}\nLeave out what is no image.")
    return np.stack(decoded)


def report(predictions: Predictions, checkpoint: Path, top: int) -> Report:
    """Build a table of the labels for the terminal, with every probability as JSON."""
    card = predictions.model.card
    lines = zip(predictions.paths, predictions.probabilities, strict=True)
    images = [
        {
            "path": str(path),
            "label": card.class_names[int(line.argmax())],
            "probability": float(line.max()),
            "probabilities": dict(zip(card.class_names, line.tolist(), strict=True)),
        }
        for path, line in lines
    ]
    return Report(
        title="Predictions",
        terminal_tables=[_table(predictions, images, top)],
        elsewhere="--json",
        values={
            "checkpoint": str(checkpoint),
            "framework": predictions.framework,
            "card": card.model_dump(mode="json"),
            "no_better_than_guessing": is_guessing(card),
            "images": images,
        },
    )


def _table(predictions: Predictions, images: Sequence[dict[str, Any]], top: int) -> Table:
    card = predictions.model.card

    def other_labels(image: dict[str, Any]) -> str:
        likeliest = sorted(image["probabilities"].items(), key=lambda item: -item[1])
        return ", ".join(f"{wording.visible(name)} {probability:.4f}" for name, probability in likeliest[1:top])

    columns = (
        Column("image", "image", pick=lambda image: wording.visible(image["path"])),
        Column("label", "label", pick=lambda image: wording.visible(image["label"])),
        Column("probability", "probability", 4),
        *([Column("others", "next", pick=other_labels)] * (min(top, len(card.class_names)) > 1)),
    )
    title = f"{card.model}, trained in {card.framework} (epoch {card.epoch}), used in {predictions.framework}"
    note = f"Images are stretched to {card.image_size} x {card.image_size} pixels. A probability is the model's own word."
    if (validation := card.validation) is not None and is_guessing(card):
        reached = f"Its validation accuracy of {validation.accuracy:.4f} on {wording.count(validation.num_examples, 'image')}"
        note += f" {reached} is {GUESSING}: rely on no label."
    return Table.from_items("predictions", title, columns, images, note)


def is_guessing(card: Card) -> bool | None:
    """Whether the validation accuracy is not shown to be better than guessing. None: the card has none.

    All classes count as equally frequent if the card lacks the share of the most frequent one.
    """
    if (validation := card.validation) is None or not validation.num_examples:
        return None
    chance = card.chance_accuracy or 1.0 / len(card.class_names)
    return statistics.is_no_better_than_chance(
        chance, validation.num_correct / validation.num_examples, validation.num_examples
    )


def _content(path: Path) -> bytes:
    if path.is_dir():
        raise BadImageError("a folder", "name the files in it")
    return plain_file.read(path, MAX_BYTES)
