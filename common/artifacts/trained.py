"""A trained model as one file: weights in the layout that both frameworks share, and a card that says how to use them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import pydantic
from pydantic import Field

from common.artifacts import checked_arrays, records
from common.artifacts.records import RecordError
from common.artifacts.schema import Metrics
from common.frozen import Finite
from common.models import architectures, weights
from common.models.architectures import Architecture
from common.models.input_scaling import InputScaling
from common.models.weights import Weights, WeightsError
from common.spec import MODELS, Precision, SpecError

SUFFIX = ".safetensors"
MOST_CARD_BYTES = 2**24
"""Size limit in bytes of a card in a separate file."""
_VERSION = "1"
_REMEDY = "Use the best.safetensors of a run; `convert` makes one from a framework's own file."
_Above0 = Annotated[float, Field(gt=0)]


class Card(Finite):
    """How to use weights, and where they come from."""

    framework: str = Field(pattern=r"^[\w .-]+$")
    """Framework that trained the weights. Letters are restricted here and in `model`, because both are printed."""
    versions: dict[str, str]
    model: str = Field(pattern=r"^\w+(\.\w+)*$")
    width: float = 1.0
    depth: float = 1.0
    dropout: float | None = None
    """Structure of a built-in model, as in the spec."""
    class_names: tuple[str, ...] = Field(min_length=1)
    image_size: int = Field(ge=1, le=4096)
    """Height and width in pixels."""
    pixel_mean: tuple[float, float, float]
    """Value that is subtracted from each channel, for pixels in 0..1."""
    pixel_std: tuple[_Above0, _Above0, _Above0]
    """Divisor of each channel."""
    precision: Precision
    spec_hash: str
    """`Spec.digest` of the training run."""
    data_hash: str
    """`Dataset.content_hash` of the training data."""
    seed: int
    epoch: int
    """Number of the epoch, from 1. The weights are those at its end."""
    validation: Metrics | None
    chance_accuracy: float | None = Field(None, ge=0, le=1)
    """Accuracy of always predicting the most frequent class of the validation split. None: not counted."""

    @property
    def scaling(self) -> InputScaling:
        return InputScaling(self.pixel_mean, self.pixel_std)


class Trained(NamedTuple):
    """A trained model: its card, architecture and weights."""

    card: Card
    architecture: Architecture
    weights: Weights


def save(card: Card, values: Weights, path: Path) -> None:
    """Replace the file of a trained model atomically.

    Raises:
        OSError: it cannot be written.
    """
    checked_arrays.write(path, {"version": _VERSION, "card": card.model_dump_json()}, values)


def load(
    path: Path, user_model: str | None = None, *, remedy: str = _REMEDY, check_card: Callable[[Card], None] | None = None
) -> Trained:
    """Read the file of a trained model. No code from it is run.

    Args:
        path: a file that `save` has written.
        user_model: the user's own module, `package.module`, that the file may name. A name that is only in a file is never
            imported.
        remedy: a sentence that says how to create the file again.
        check_card: raises an error for a card that the caller does not accept, before its model is looked up.
    """
    try:
        metadata, values = checked_arrays.read(path, kind="trained model", remedy=remedy, version=_VERSION)
    except RecordError as error:
        raise WeightsError(str(error)) from None
    card = card_from(metadata.get("card", ""), path, remedy=remedy)
    if check_card is not None:
        check_card(card)
    architecture = architecture_of(card, path, user_model)
    weights.check(values, architecture, path)
    return Trained(card, architecture, values)


def card_from(text: str | bytes, path: Path, *, remedy: str = _REMEDY) -> Card:
    """Parse a card from JSON."""
    try:
        return Card.model_validate_json(text)
    except pydantic.ValidationError as error:
        raise WeightsError(
            records.torn_message(path, "card of a trained model", f"{error.error_count()} faults", remedy)
        ) from None


def architecture_of(card: Card, path: Path, user_model: str | None = None) -> Architecture:
    """Return the architecture of a card's model."""
    if card.model not in MODELS and card.model != user_model:
        raise WeightsError(
            f"{path} is of a model of somebody's own, which would have to be imported. Received: {card.model!r}. Say --model "
            f"{card.model} if you trust that module."
        )
    try:
        return architectures.resolve(
            card.model,
            len(card.class_names),
            card.image_size,
            width=card.width,
            depth=card.depth,
            dropout=card.dropout,
        )
    except SpecError as error:
        if card.model not in MODELS:
            raise
        raise WeightsError(f"{path} does not fit its model: {error}") from None
