"""A pair of models that `match` has proved equivalent, as one model that `run` takes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from common.matching.records import Array
from common.models.architectures import Architecture, Opaque
from common.spec import SpecError


@dataclass(frozen=True)
class PairedModel:
    """One framework's model of a pair."""

    model: str
    """`package.module:name` of the model's class, or of a function that builds it."""
    layers: dict[str, str]
    """Names of layers: in the architecture to in this model."""
    flattened: dict[str, tuple[int, int, int]] = field(default_factory=dict[str, tuple[int, int, int]])
    """Layers that take an image flattened channels first, unlike the other model, to the image's (height, width, channels)."""

    def order(self, name: str) -> Array | None:
        """Return the index in this model of each value of a layer's flattened input, in the order height, width, channels.

        None: the model has that order too, or the layer's input is no flattened image.
        """
        if name not in self.flattened:
            return None
        height, width, channels = self.flattened[name]
        return np.arange(height * width * channels).reshape(channels, height, width).transpose(1, 2, 0).reshape(-1)


def check_trained(paired_model: PairedModel, architecture: Architecture, num_trained: int) -> None:
    """Compare the number of values that a built model trains with that of its architecture."""
    expected = sum(parameter.size for parameter in architecture.parameters() if parameter.trainable)
    if num_trained != expected:
        fix = "Freeze no layer." if num_trained < expected else "Leave out layers that take no part in a pass."
        raise SpecError(
            f"{paired_model.model} must train the {expected} values that were matched. Received: {num_trained}. {fix}"
        )


def pair_architecture(model: Opaque, num_classes: int, image_size: int) -> Architecture:
    """Build the architecture of a pair. The caller checks that the pair was matched with this number of classes."""
    return Architecture(model.name, image_size, num_classes, (model,))


Side, whole = PairedModel, pair_architecture
"""Names that files of `match --write` from earlier versions import."""
