"""Forward and backward of each kind of layer.

Each function returns the layer's output y and a function that turns dL/dy into (dL/dx, gradients by role). Images are
[N, H, W, C]; features are [N, F]; kernels are [K, K, C, O], or [K, K, 1, C] for a depthwise one; biases are [O]. Strides
count for both axes. Every array has the dtype of the input, float32, float64 or longdouble.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from common.models.architectures import Padding

Array = npt.NDArray[np.floating[Any]]
Backward = Callable[[Array], tuple[Array, dict[str, Array]]]


def convolution(x: Array, kernel: Array, bias: Array | None, stride: int, padding: Padding) -> tuple[Array, Backward]:
    """y[n,i,j,o] = bias[o] + sum over a,b,c of x[n, stride i + a, stride j + b, c] kernel[a,b,c,o], with zeros around x."""
    patches = _patches(x, padding, 0.0, kernel.shape[0], stride)
    y = np.tensordot(patches, kernel, axes=3)

    def backward(dy: Array) -> tuple[Array, dict[str, Array]]:
        found = {"kernel": np.tensordot(patches, dy, axes=((0, 1, 2), (0, 1, 2)))}
        if bias is not None:
            found["bias"] = dy.sum((0, 1, 2))
        dpatches = ((dy @ kernel[place].T, place) for place in np.ndindex(kernel.shape[:2]))
        return _summed_patches(dpatches, x.shape, dy.shape, stride, padding), found

    return (y if bias is None else y + bias), backward


def depthwise_convolution(x: Array, kernel: Array, stride: int, padding: Padding) -> tuple[Array, Backward]:
    """y[n,i,j,c] = sum over a,b of x[n, stride i + a, stride j + b, c] kernel[a,b,0,c], with zeros around x."""
    patches = _patches(x, padding, 0.0, kernel.shape[0], stride)
    places = list(np.ndindex(kernel.shape[:2]))

    def backward(dy: Array) -> tuple[Array, dict[str, Array]]:
        dkernel = np.stack([np.einsum("nijc,nijc->c", patches[:, :, :, a, b], dy) for a, b in places])
        dpatches = ((dy * kernel[*place, 0], place) for place in places)
        return _summed_patches(dpatches, x.shape, dy.shape, stride, padding), {"kernel": dkernel.reshape(kernel.shape)}

    return sum((patches[:, :, :, a, b] * kernel[a, b, 0] for a, b in places), start=np.zeros((), x.dtype)), backward


def windows(x: Array, size: int, stride: int, padding: Padding) -> Array:
    """What max-pooling chooses from: [N, H', W', size * size, C], in row order. Padding is minus infinity."""
    patches = _patches(x, padding, -np.inf, size, stride)
    return patches.reshape(*patches.shape[:3], size * size, x.shape[3])


def max_pooling(x: Array, size: int, stride: int, padding: Padding, winner: Any = None) -> tuple[Array, Backward]:
    """The maximum of each window. Padding never wins. Of equal maxima, the first in row order gets the gradient.

    `winner` [N, H', W', 1, C] says which value each window takes instead.
    """
    flat = windows(x, size, stride, padding)
    winner = flat.argmax(3)[:, :, :, None] if winner is None else winner

    def backward(dy: Array) -> tuple[Array, dict[str, Array]]:
        dpatches = ((dy * (winner[:, :, :, 0] == a * size + b), (a, b)) for a, b in np.ndindex(size, size))
        return _summed_patches(dpatches, x.shape, dy.shape, stride, padding), {}

    return np.take_along_axis(flat, winner, 3)[:, :, :, 0], backward


def batch_normalisation(
    x: Array, gamma: Array, beta: Array, epsilon: float, mean_of: Callable[[Array], Array]
) -> tuple[Array, Backward, Array, Array]:
    """Normalise: y = gamma (x - mean) / sqrt(variance + epsilon) + beta, over every axis but the last (Ioffe & Szegedy 2015).

    Returns y, the way back, the mean [C] and the biased variance [C].
    """
    axes = tuple(range(x.ndim - 1))
    centre = mean_of(x)
    centred = x - centre
    variance = mean_of(np.square(centred))
    deviation = np.sqrt(variance + x.dtype.type(epsilon))
    normal = centred / deviation

    def backward(dy: Array) -> tuple[Array, dict[str, Array]]:
        dx = gamma / deviation * (dy - dy.mean(axes) - normal * (dy * normal).mean(axes))
        return dx, {"gamma": (dy * normal).sum(axes), "beta": dy.sum(axes)}

    return gamma * normal + beta, backward, centre, variance


def mean(x: Array, lanes: int = 8) -> Array:
    """Over every axis but the last, in several sums side by side, as vector units add. In one lane, term after term."""
    flat = x.reshape(-1, x.shape[-1])
    whole = len(flat) // lanes * lanes
    sums = flat[:whole].reshape(lanes, -1, x.shape[-1]).sum(1)
    return (sums.sum(0) + flat[whole:].sum(0)) / x.dtype.type(len(flat))


def dense(x: Array, kernel: Array, bias: Array) -> tuple[Array, Backward]:
    """Multiply: y = x kernel + bias; x [N, I], kernel [I, O]."""
    return x @ kernel + bias, lambda dy: (dy @ kernel.T, {"kernel": x.T @ dy, "bias": dy.sum(0)})


def relu(x: Array) -> tuple[Array, Backward]:
    """max(x, 0). The gradient at zero is zero."""
    return np.maximum(x, x.dtype.type(0)), lambda dy: (dy * (x > 0), {})


def global_average(x: Array) -> tuple[Array, Backward]:
    """The mean over height and width: [N, H, W, C] to [N, C]."""
    pixels = x.dtype.type(x.shape[1] * x.shape[2])
    return x.sum((1, 2)) / pixels, lambda dy: (np.broadcast_to(dy[:, None, None] / pixels, x.shape), {})


def flatten(x: Array) -> tuple[Array, Backward]:
    """[N, H, W, C] to [N, H W C]."""
    return x.reshape(len(x), -1), lambda dy: (dy.reshape(x.shape), {})


def dropout(x: Array, kept: npt.NDArray[np.bool_], rate: float) -> tuple[Array, Backward]:
    """Values where `kept` [N, units] is true, divided by the probability 1 - rate of being kept; else zero."""
    factor = kept / x.dtype.type(1 - rate)
    return x * factor, lambda dy: (dy * factor, {})


def cross_entropy(logits: Array, labels: npt.NDArray[np.int64]) -> tuple[np.floating[Any], Array]:
    """(mean over examples of -log softmax(logits)[label], its gradient [N, classes])."""
    shifted = logits - logits.max(1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = exponentials.sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = (np.log(sums)[:, 0] - shifted[rows, labels]).mean()
    gradient = exponentials / sums
    gradient[rows, labels] -= 1
    return loss, gradient / logits.dtype.type(len(labels))


def _patches(x: Array, padding: Padding, value: float, size: int, stride: int) -> Array:
    """A view of every window of x, padded with a value: [N, H', W', size, size, C]."""
    padded = np.pad(x, ((0, 0), *padding, (0, 0)), constant_values=value)
    views = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(1, 2))[:, ::stride, ::stride]
    return np.moveaxis(views, 3, 5)


def _summed_patches(
    patches: Iterable[tuple[Array, Any]], shape: tuple[int, ...], outputs: tuple[int, ...], stride: int, padding: Padding
) -> Array:
    """The transpose of `_patches`: values [N, H', W', C] of each place (a, b) of a window, added where they came from."""
    (top, bottom), (left, right) = padding
    images, height, width, channels = shape
    x: Any = None
    rows, columns = outputs[1:3]
    for values, (a, b) in patches:
        x = np.zeros((images, height + top + bottom, width + left + right, channels), values.dtype) if x is None else x
        x[:, a : a + stride * rows : stride, b : b + stride * columns : stride] += values
    return x[:, top : top + height, left : left + width]
