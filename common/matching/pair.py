"""Two models that `match` has proved to be the same, as one model that `run` takes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from common.matching.records import Array
from common.models.architectures import Architecture, Opaque
from common.spec import SpecError


@dataclass(frozen=True)
class Side:
    """One framework's model of a pair."""

    model: str
    """`package.module:name` of its class, or of a function that makes it."""
    layers: dict[str, str]
    """Name of each layer in the architecture, and in this model."""
    flattened: dict[str, tuple[int, int, int]] = field(default_factory=dict[str, tuple[int, int, int]])
    """Layers that take an image flattened channels first, unlike the other model: its (height, width, channels)."""

    def order(self, name: str) -> Array | None:
        """Of a flattened image in front of a layer: the place in this model of each value in the order height, width, channels.

        None: the order is that one, or there is no flattened image.
        """
        if name not in self.flattened:
            return None
        height, width, channels = self.flattened[name]
        return np.arange(height * width * channels).reshape(channels, height, width).transpose(1, 2, 0).reshape(-1)


def check_trained(side: Side, architecture: Architecture, trained: int) -> None:
    """Compare the number of values that a built model trains with that of its architecture.

    Raises:
        SpecError: they differ.
    """
    wanted = sum(parameter.size for parameter in architecture.parameters() if parameter.trainable)
    if trained != wanted:
        mend = "Freeze no layer." if trained < wanted else "Leave out layers that take no part in a pass."
        raise SpecError(f"{side.model} must train the {wanted} values that were matched. Received: {trained}. {mend}")


def whole(model: Opaque, num_classes: int, image_size: int) -> Architecture:
    """The architecture of a pair. Whoever resolves it refuses another number of classes than the pair was matched with."""
    return Architecture(model.name, image_size, num_classes, (model,))
