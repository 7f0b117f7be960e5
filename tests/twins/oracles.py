"""What the twins must compute, said once more in plain NumPy and float64, without a look at how they do it."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from common.data.batches import EpochDraws
from common.models import architectures
from common.models.architectures import Architecture, Layer
from common.models.weights import Weights

Array = npt.NDArray[Any]


class Forward:
    """A forward pass of a whole network.

    Attributes:
        logits: [N, classes].
        outputs: what each layer gave, by its name.
        statistics: the running mean and variance after the pass; those of the weights in evaluation mode.
    """

    def __init__(
        self, architecture: Architecture, weights: Weights, images: Array, masks: Sequence[Array] = (), *, training: bool
    ) -> None:
        self._weights = weights
        self._masks = iter(masks)
        self._training = training
        self.outputs: dict[str, Array] = {}
        self.statistics = {
            parameter.name: weights[parameter.name] for parameter in architecture.parameters() if not parameter.trainable
        }
        self.logits = self._through(architecture.layers, images.astype(np.float64) / 255)

    def _through(self, layers: Sequence[Layer], x: Array) -> Array:
        for layer in layers:
            if isinstance(layer, architectures.Residual):
                x = self._through(layer.body, x) + self._through(layer.shortcut, x)
                x = np.maximum(x, 0) if layer.relu else x
            elif isinstance(layer, architectures.Concatenation):
                x = np.concatenate([self._through(branch, x) for branch in layer.branches], -1)
            else:
                x = self.outputs[layer.name] = self._apply(layer, x)
        return x

    def _apply(self, layer: Layer, x: Array) -> Array:
        match layer:
            case architectures.Conv():
                kernels = np.split(self._weights[f"{layer.name}.kernel"], layer.groups, -1)
                bias = self._weights[f"{layer.name}.bias"] if layer.bias else 0.0
                windows = np.split(_windows(layer, x, 0.0), layer.groups, 3)
                parts = [
                    np.einsum("nhwcij,ijco->nhwo", own, kernel, optimize=True)
                    for own, kernel in zip(windows, kernels, strict=True)
                ]
                return np.concatenate(parts, -1) + bias
            case architectures.BatchNorm():
                return self._batch_norm(layer, x)
            case architectures.ReLU():
                return np.maximum(x, 0)
            case architectures.MaxPool():
                return _windows(layer, x, -np.inf).max((-2, -1))
            case architectures.AveragePool():
                return np.nanmean(_windows(layer, x, np.nan), (-2, -1))
            case architectures.GlobalAveragePool():
                return x.mean((1, 2))
            case architectures.Flatten():
                return x.reshape(len(x), -1)
            case architectures.Dense():
                return x @ self._weights[f"{layer.name}.kernel"] + self._weights[f"{layer.name}.bias"]
            case architectures.Dropout():
                return np.where(next(self._masks), x / (1 - layer.rate), 0.0) if self._training else x
            case architectures.Residual() | architectures.Concatenation() | architectures.StageFragment():
                raise TypeError(f"{type(layer).__name__} is no leaf")

    def _batch_norm(self, layer: architectures.BatchNorm, x: Array) -> Array:
        gamma, beta, mean, variance = (self._weights[f"{layer.name}.{role}"] for role in ("gamma", "beta", "mean", "variance"))
        if self._training:
            old = 1 - layer.momentum
            batch_mean, batch_variance, unbiased = x.mean((0, 1, 2)), x.var((0, 1, 2)), x.var((0, 1, 2), ddof=1)
            self.statistics[f"{layer.name}.mean"] = old * mean + layer.momentum * batch_mean
            self.statistics[f"{layer.name}.variance"] = old * variance + layer.momentum * unbiased
            mean, variance = batch_mean, batch_variance
        return (x - mean) / np.sqrt(variance + layer.epsilon) * gamma + beta


def _windows(layer: Any, x: Array, value: float) -> Array:
    """[N, H, W, C] to [N, H', W', C, k, k]."""
    padded = np.pad(x, ((0, 0), *layer.padding, (0, 0)), constant_values=value)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (layer.kernel_size, layer.kernel_size), (1, 2))
    return windows[:, :: layer.stride, :: layer.stride]


def cross_entropy(logits: Array, labels: Array) -> Array:
    """[N] losses of [N, classes] logits."""
    shifted = logits - logits.max(1, keepdims=True)
    return np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]


def masks(drawn: EpochDraws) -> list[Array]:
    """One bool [N, units] a dropout."""
    return [
        np.unpackbits(bits, axis=1, count=units, bitorder="little").astype(np.bool_)
        for bits, units in zip(drawn.masks, drawn.mask_units, strict=True)
    ]


def augment(images: Array, flips: Array | None, shifts: Array | None) -> Array:
    """Pixel by pixel."""
    n, height, width, _ = images.shape
    out = np.zeros_like(images)
    for image in range(n):
        source = images[image, :, ::-1] if flips is not None and flips[image] else images[image]
        rows, columns = shifts[image] if shifts is not None else (0, 0)
        for i in range(height):
            for j in range(width):
                if 0 <= i + rows < height and 0 <= j + columns < width:
                    out[image, i, j] = source[i + rows, j + columns]
    return out


def sample(images: Array, affines: Array) -> Array:
    """Float64 [N, H, W, 3]: each value by itself, from the distances to the pixels around its point."""
    n, height, width, _ = images.shape
    out = np.zeros(images.shape)
    for image, i, j in np.ndindex(n, height, width):
        row, column = affines[image] @ (i, j, 1.0)
        for y in (math.floor(row), math.floor(row) + 1):
            for x in (math.floor(column), math.floor(column) + 1):
                if 0 <= y < height and 0 <= x < width:
                    out[image, i, j] += (1.0 - abs(row - y)) * (1.0 - abs(column - x)) * images[image, y, x]
    return out
