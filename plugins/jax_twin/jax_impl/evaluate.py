"""Scoring: the model in evaluation mode, one batch at a time."""

from __future__ import annotations

from typing import Any

import jax

from common.models.input_scaling import InputScaling
from jax_impl import input, train
from jax_impl.models import Arrays, Network


def score(
    network: Network, arrays: Arrays, images: Any, labels: Any, objective: train.Objective, rows: Any = None
) -> tuple[jax.Array, jax.Array]:
    """Score one batch in evaluation mode."""
    predicted = logits(network, arrays, images, objective.scaling, objective.precision)
    return train.share_of_loss(predicted, labels, 1, objective.loss, rows), predicted.argmax(1)


def logits(network: Network, arrays: Arrays, images: Any, scaling: InputScaling, precision: str) -> jax.Array:
    """Return logits [N, classes] of images uint8 [N, H, W, 3] in evaluation mode."""
    return network(arrays, input.scale(images, precision, scaling), (), False)[0]
