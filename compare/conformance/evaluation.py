"""The referee in evaluation mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from common.models.architectures import Architecture, BatchNorm, Dropout, Layer
from compare.proof.differences import Arrays
from compare.proof.referee import network
from compare.proof.referee.layers import Array, Backward
from compare.proof.referee.network import Network, RefereeBatch


class _Evaluation(Network):
    """The referee's network in evaluation mode."""

    def _layer(self, layer: Layer, x: Array) -> tuple[Array, Backward]:
        back: Backward = lambda dy: (dy, {})  # noqa: E731  nobody goes back
        if isinstance(layer, Dropout):
            return x, back
        if isinstance(layer, BatchNorm):
            mean, variance, gamma, beta = (self._array(layer, role) for role in ("mean", "variance", "gamma", "beta"))
            return (x - mean) / np.sqrt(variance + layer.epsilon) * gamma + beta, back
        return super()._layer(layer, x)


def logits(architecture: Architecture, arrays: Arrays, images: npt.NDArray[Any]) -> Array:
    """Return the referee's logits in evaluation mode for pixels without normalisation."""
    pixels = network.scaled(images, [0.0] * 3, [1.0] * 3, np.float64)
    evaluation = _Evaluation(arrays, RefereeBatch(pixels, np.zeros(len(images), np.int64)))
    return evaluation.through(architecture.layers, pixels)[0]
