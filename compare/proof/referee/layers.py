"""Forward and backward of each kind of layer.

Each function returns the layer's output y and a function that turns dL/dy into (dL/dx, gradients by role). Images are
[N, H, W, C]; features are [N, F]; kernels are [K, K, C, O], where C are the inputs of one group; biases are [O]. Strides count
for both axes. Every array has the dtype of the input, float32, float64 or longdouble. Large ones are changed in place (iadd).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import iadd
from typing import Any

import numpy as np
import numpy.typing as npt

from common.models.architectures import Padding

Array = npt.NDArray[np.floating[Any]]
Backward = Callable[[Array], tuple[Array, dict[str, Array]]]


def convolution(
    x: Array, kernel: Array, bias: Array | None, stride: int, padding: Padding, groups: int = 1
) -> tuple[Array, Backward]:
    """y[n,i,j,g,o] = bias[g,o] + sum over a,b,c of x[n, stride i + a, stride j + b, g, c] kernel[a,b,c,g,o], zeros around x.

    Each group g has its own inputs c and outputs o.
    """
    (size, _, inputs, outputs), patches = kernel.shape, views(x, padding, 0.0, kernel.shape[0], stride)
    patches = patches.reshape(*patches.shape[:5], groups, inputs)
    shared, places = kernel.reshape(size, size, inputs, groups, outputs // groups), list(np.ndindex(size, size))
    y: Any = reduce(iadd, (_product("nijgc,cgo->nijgo", patches[:, :, :, a, b], shared[a, b]) for a, b in places))

    def backward(dy: Array, with_kernel: bool = True) -> tuple[Array, dict[str, Array]]:
        split = dy.reshape(*dy.shape[:3], groups, -1)
        dkernel = [_product("nijgc,nijgo->cgo", patches[:, :, :, a, b], split) for a, b in places if with_kernel]
        gradients = {"kernel": np.stack(dkernel).reshape(kernel.shape)} if with_kernel else {}
        gradients |= {} if bias is None else {"bias": dy.sum((0, 1, 2))}
        dpatches = ((_product("nijgo,cgo->nijgc", split, shared[at]).reshape(*dy.shape[:3], -1), at) for at in places)
        return _summed_patches(dpatches, x, size, stride, padding), gradients

    return y.reshape(*y.shape[:3], outputs) + (0 if bias is None else bias), backward


def windows(x: Array, size: int, stride: int, padding: Padding) -> Array:
    """Return the windows of max-pooling: [N, H', W', size * size, C], in row order. Padding is minus infinity."""
    patches = views(x, padding, -np.inf, size, stride)
    return patches.reshape(*patches.shape[:3], size * size, x.shape[3])


def max_pooling(x: Array, size: int, stride: int, padding: Padding, winner: Any = None) -> tuple[Array, Backward]:
    """Take each window's maximum, or its value `winner` [N, H', W', 1, C]. Padding never wins; of equal ones the first does."""
    flat = windows(x, size, stride, padding)
    winner = flat.argmax(3)[:, :, :, None] if winner is None else winner

    def backward(dy: Array) -> tuple[Array, dict[str, Array]]:
        dpatches = ((np.where(winner[:, :, :, 0] == a * size + b, dy, 0), (a, b)) for a, b in np.ndindex(size, size))
        return _summed_patches(dpatches, x, size, stride, padding), {}

    return np.take_along_axis(flat, winner, 3)[:, :, :, 0], backward


def average_pooling(x: Array, size: int, stride: int, padding: Padding) -> tuple[Array, Backward]:
    """Take the mean over the pixels of each window: a depthwise sum over their number. Padding is no pixel."""
    ones = np.ones((size, size, 1, x.shape[3]), x.dtype)
    y, backward = convolution(x, ones, None, stride, padding, x.shape[3])
    pixels, _ = convolution(np.ones_like(x[:1]), ones, None, stride, padding, x.shape[3])
    return y / pixels, lambda dy: (backward(dy / pixels)[0], {})


def batch_normalisation(
    x: Array, gamma: Array, beta: Array, epsilon: float, mean_of: Callable[[Array], Array]
) -> tuple[Array, Backward, Array, Array]:
    """Normalise: y = gamma (x - mean) / sqrt(variance + epsilon) + beta, over every axis but the last (Ioffe & Szegedy 2015).

    Returns y, the backward function, the mean [C] and the biased variance [C].
    """
    axes = tuple(range(x.ndim - 1))
    centre = mean_of(x)
    centred = x - centre
    variance = mean_of(np.square(centred))
    deviation = np.sqrt(variance + x.dtype.type(epsilon))
    normal = np.divide(centred, deviation, out=centred)

    def backward(dy: Array) -> tuple[Array, dict[str, Array]]:
        dgamma, dbeta, count = (dy * normal).sum(axes), dy.sum(axes), x.dtype.type(x.size // x.shape[-1])
        dx = reduce(iadd, (normal * (-dgamma / count), dy, -dbeta / count)) * (gamma / deviation)
        return dx, {"gamma": dgamma, "beta": dbeta}

    return iadd(gamma * normal, beta), backward, centre, variance


def mean(x: Array, lanes: int = 8) -> Array:
    """Take the mean over every axis but the last, in `lanes` sums side by side, as vector units add. One: term after term."""
    flat = x.reshape(-1, x.shape[-1])
    whole = len(flat) // lanes * lanes
    sums = flat[:whole].reshape(lanes, -1, x.shape[-1]).sum(1)
    return (sums.sum(0) + flat[whole:].sum(0)) / x.dtype.type(len(flat))


def dense(x: Array, kernel: Array, bias: Array) -> tuple[Array, Backward]:
    """Multiply: y = x kernel + bias; x [N, I], kernel [I, O]."""
    return x @ kernel + bias, lambda dy: (dy @ kernel.T, {"kernel": x.T @ dy, "bias": dy.sum(0)})


def relu(x: Array) -> tuple[Array, Backward]:
    """Return max(x, 0). The gradient at zero is zero."""
    return np.maximum(x, x.dtype.type(0)), lambda dy: (dy * (x > 0).astype(dy.dtype), {})


def global_average(x: Array) -> tuple[Array, Backward]:
    """Take the mean over height and width: [N, H, W, C] to [N, C]."""
    pixels = x.dtype.type(x.shape[1] * x.shape[2])
    return x.sum((1, 2)) / pixels, lambda dy: (np.broadcast_to(dy[:, None, None] / pixels, x.shape), {})


def concatenation(parts: Sequence[Array]) -> tuple[Array, Callable[[Array], list[Array]]]:
    """Concatenate the channels of all parts. Also return a function that cuts dL/dy into the parts' gradients."""
    ends = np.cumsum([0, *(part.shape[-1] for part in parts)])
    return np.concatenate(parts, -1), lambda dy: [dy[..., start:end] for start, end in itertools.pairwise(ends)]


def flatten(x: Array) -> tuple[Array, Backward]:
    """Reshape [N, H, W, C] to [N, H W C]."""
    return x.reshape(len(x), -1), lambda dy: (dy.reshape(x.shape), {})


def dropout(x: Array, mask: npt.NDArray[np.bool_], rate: float) -> tuple[Array, Backward]:
    """Keep values where `mask` [N, units] is true, divided by the probability 1 - rate of being kept; else zero."""
    factor = mask / x.dtype.type(1 - rate)
    return x * factor, lambda dy: (dy * factor, {})


def cross_entropy(logits: Array, labels: npt.NDArray[np.int64]) -> tuple[np.floating[Any], Array]:
    """Return (mean over examples of -log softmax(logits)[label], its gradient [N, classes])."""
    shifted = logits - logits.max(1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    gradient, rows = np.exp(logarithms), np.arange(len(labels))
    gradient[rows, labels] -= 1
    return -logarithms[rows, labels].mean(), gradient / logits.dtype.type(len(labels))


def views(x: Array, padding: Padding, value: float, size: int, stride: int) -> Array:
    """Return a view of every window of x, padded with a value: [N, H', W', size, size, C]."""
    padded = np.pad(x, ((0, 0), *padding, (0, 0)), constant_values=value) if any(map(any, padding)) else x
    strided = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(1, 2))[:, ::stride, ::stride]
    return np.moveaxis(strided, 3, 5)


def _product(formula: str, x: Array, y: Array) -> Array:
    """Compute an Einstein sum. With one group it is a product of matrices, which is fast."""
    if x.shape[-2] > 1:
        return np.einsum(formula, x, y)
    left, right = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
    if formula.endswith("->cgo"):
        return (left.T @ right)[:, None]
    return (left @ (right if formula.endswith("o") else right.T)).reshape(*x.shape[:-1], -1)


def _summed_patches(patches: Iterator[tuple[Array, Any]], x: Array, size: int, stride: int, padding: Padding) -> Array:
    """Transpose `views`: add the values [N, H', W', C] of each place (a, b) of a window where they came from."""
    if size == stride == 1 and not any(map(any, padding)):
        return next(patches)[0]
    (top, bottom), (left, right), (_, height, width, _) = *padding, x.shape
    summed = np.zeros((len(x), top + height + bottom, left + width + right, x.shape[3]), x.dtype)
    for values, (a, b) in patches:
        rows, columns = values.shape[1:3]
        summed[:, a : a + stride * rows : stride, b : b + stride * columns : stride] += values
    return summed[:, top : top + height, left : left + width]
