"""Forward and backward pass of a whole network: an architecture's layers, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from common.models import architectures
from common.models.architectures import Architecture, Layer
from compare.proof.referee import layers
from compare.proof.referee.layers import Array, Backward

Weights = dict[str, Array]
"""Arrays by canonical name, e.g. `conv1.kernel`, BatchNorm's running statistics among them."""

BATCH_NORM: dict[str, tuple[float, float]] = dict.fromkeys(architectures.MODELS, (1e-5, 0.1))
"""Model: (epsilon, weight of the new batch in the running statistics). Repeated here on purpose: with the shared description of
the suite's models, a mistake in it would be the referee's too."""


class RefereeBatch(NamedTuple):
    """Batch of scaled images [N, H, W, 3], labels [N], and for each dropout a mask [N, units], true where a value is kept."""

    images: Array
    labels: npt.NDArray[np.int64]
    masks: Sequence[npt.NDArray[np.bool_]] = ()


class Gradients(NamedTuple):
    """Mean loss of a batch, logits [N, classes], gradients of all weights, and BatchNorm's running statistics after it."""

    loss: np.floating[Any]
    logits: Array
    gradients: Weights
    statistics: Weights


def scaled(images: npt.NDArray[np.uint8], mean: Sequence[float], deviation: Sequence[float], dtype: Any) -> Array:
    """Scale pixels: (pixel / 255 - mean) / deviation of each channel."""
    return (images.astype(dtype) / np.asarray(255, dtype) - np.asarray(mean, dtype)) / np.asarray(deviation, dtype)


def gradients(architecture: Architecture, weights: Mapping[str, Array], batch: RefereeBatch) -> Gradients:
    """Compute loss, logits and gradients of one batch in training mode. BatchNorm uses the statistics of the batch."""
    network = Network(weights, batch)
    network.constants = BATCH_NORM.get(architecture.name)
    logits, backward = network.through(architecture.layers, batch.images)
    loss, dlogits = layers.cross_entropy(logits, batch.labels)
    backward(dlogits)
    return Gradients(loss, logits, network.gradients, network.statistics)


class Network:
    """One forward and backward pass. It collects gradients and statistics by canonical name."""

    def __init__(self, weights: Mapping[str, Array], batch: RefereeBatch) -> None:
        self._weights = weights
        self._masks: Iterator[npt.NDArray[np.bool_]] = iter(batch.masks)
        self.constants: tuple[float, float] | None = None  # of BatchNorm; None: those of each layer
        self.mean_of: Callable[[Array], Array] = layers.mean  # of BatchNorm
        self.gradients: Weights = {}
        self.statistics: Weights = {}

    def through(self, sequence: Sequence[Layer], x: Array) -> tuple[Array, Backward]:
        """Run layers one after the other. Return their output and the backward function through all of them."""
        steps: list[tuple[str, Backward]] = []
        for layer in sequence:
            x, backward = self._layer(layer, x)
            steps.append((layer.name, backward))

        def back(dy: Array) -> tuple[Array, dict[str, Array]]:
            for name, backward in reversed(steps):
                dy, by_role = backward(dy)
                self.gradients |= {f"{name}.{role}": array for role, array in by_role.items()}
            return dy, {}

        return x, back

    def _layer(self, layer: Layer, x: Array) -> tuple[Array, Backward]:
        match layer:
            case architectures.Conv():
                bias = self._array(layer, "bias") if layer.bias else None
                return layers.convolution(x, self._array(layer, "kernel"), bias, layer.stride, layer.padding, layer.groups)
            case architectures.BatchNorm():
                return self._batch_norm(layer, x)
            case architectures.ReLU():
                return self.relu(x)
            case architectures.MaxPool():
                return self.max_pooling(layer, x)
            case architectures.AveragePool():
                return layers.average_pooling(x, layer.kernel_size, layer.stride, layer.padding)
            case architectures.GlobalAveragePool():
                return layers.global_average(x)
            case architectures.Flatten():
                return layers.flatten(x)
            case architectures.Dense():
                return layers.dense(x, self._array(layer, "kernel"), self._array(layer, "bias"))
            case architectures.Dropout():
                return layers.dropout(x, next(self._masks), layer.rate)
            case architectures.Residual() | architectures.Concatenation():
                return self._joined(layer, x)
            case _:
                raise TypeError(f"{type(layer).__name__} is no layer of a whole model")

    def relu(self, x: Array) -> tuple[Array, Backward]:
        """Apply ReLU. Rounding may decide here, so that a subclass can take another decision."""
        return layers.relu(x)

    def max_pooling(self, layer: architectures.MaxPool, x: Array) -> tuple[Array, Backward]:
        """Apply max-pooling. Rounding may decide here too."""
        return layers.max_pooling(x, layer.kernel_size, layer.stride, layer.padding)

    def _batch_norm(self, layer: architectures.BatchNorm, x: Array) -> tuple[Array, Backward]:
        """Normalise by the batch. The running variance takes the unbiased variance of the batch."""
        (epsilon, weight_of_new), gamma = self.constants or (layer.epsilon, layer.momentum), self._array(layer, "gamma")
        y, backward, mean, variance = layers.batch_normalisation(x, gamma, self._array(layer, "beta"), epsilon, self.mean_of)
        count, momentum = x.size // x.shape[-1], x.dtype.type(weight_of_new)
        for role, new in (("mean", mean), ("variance", variance * x.dtype.type(count) / x.dtype.type(count - 1))):
            self.statistics[f"{layer.name}.{role}"] = (1 - momentum) * self._array(layer, role) + momentum * new
        return y, backward

    def _joined(self, layer: architectures.Residual | architectures.Concatenation, x: Array) -> tuple[Array, Backward]:
        """Add two branches, then apply ReLU if the layer has one; or concatenate branches. An empty branch is the identity."""
        passes = [self.through(branch, x) for branch in architectures.branches(layer)]
        outputs, is_sum = [output for output, _ in passes], isinstance(layer, architectures.Residual)
        y, cut = (outputs[0] + outputs[1], None) if is_sum else layers.concatenation(outputs)

        def backward(dy: Array) -> tuple[Array, dict[str, Array]]:
            slopes = [back(part)[0] for (_, back), part in zip(passes, cut(dy) if cut else [dy, dy], strict=True)]
            return sum(slopes[1:], start=slopes[0]), {}

        if isinstance(layer, architectures.Concatenation) or not layer.relu:
            return y, backward
        y, through_relu = self.relu(y)
        return y, lambda dy: backward(through_relu(dy)[0])

    def _array(self, layer: Any, role: str) -> Array:
        return self._weights[f"{layer.name}.{role}"]
