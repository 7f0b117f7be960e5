"""What layers, losses and optimizers compute, in NumPy: with it a suspected cause is tried out on recorded numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from common.matching.records import Array
from compare.matching.alignment import plain

CLOSE = 1e-10
"""Largest relative difference of two arrays that count as equal: rounding of float64 through a whole model."""
ROUNDED = 3e-7
"""The same for a function whose constants are rounded to float32."""


def apart(left: Array, right: Array, least: float = 0.0) -> float:
    """Largest difference, relative to the largest value, or to `least`. Infinite if sizes differ or a value is not finite."""
    if left.size != right.size:
        return math.inf
    scale = max(np.abs(left).max(initial=0.0), np.abs(right).max(initial=0.0), least, 1e-30)
    difference = float(np.abs(left.reshape(-1) - right.reshape(-1)).max(initial=0.0) / scale)
    return difference if math.isfinite(difference) else math.inf


def close(left: Array, right: Array) -> bool:
    """Whether two arrays agree within rounding."""
    return apart(left, right) <= CLOSE


def beyond_rounding(left: Array, right: Array, least: float, tolerance: float) -> npt.NDArray[np.bool_]:
    """Where an update of two gradients can be judged.

    Adam divides each component by its own size. So it turns the rounding of a small component into a large update, as where
    a bias stands in front of BatchNorm. Such components agree within the scale of their array and not within their own.

    Args:
        left, right: float[...], the two gradients.
        least: as of `apart`.
        tolerance: within which two gradients agree.

    Returns:
        bool[n], of the flattened gradients.
    """
    left, right = left.reshape(-1), right.reshape(-1)
    scale = max(np.abs(left).max(initial=0.0), np.abs(right).max(initial=0.0), least)
    difference = np.abs(left - right)
    rounding = (difference > tolerance * np.maximum(np.abs(left), np.abs(right))) & (difference <= tolerance * scale)
    return ~rounding


def _gelu(x: Array, root: float = math.sqrt(2)) -> Array:
    return 0.5 * x * (1 + special.erf(x / root))


def _gelu_tanh(x: Array, root: float = math.sqrt(2 / math.pi), cubic: float = 0.044715) -> Array:
    return 0.5 * x * (1 + np.tanh(root * (x + cubic * x**3)))


def _selu(x: Array, scale: float = 1.0507009873554805, alpha: float = 1.6732632423543772) -> Array:
    return scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _leaky(x: Array, slope: float) -> Array:
    return np.where(x > 0, x, slope * x)


def softplus(x: Array) -> Array:
    return np.logaddexp(0.0, x)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "no activation": lambda x: x,
    "ReLU": lambda x: np.maximum(x, 0),
    "ReLU6": lambda x: np.clip(x, 0, 6),
    "GELU (erf)": _gelu,
    "GELU (tanh)": _gelu_tanh,
    "SiLU": lambda x: x * special.expit(x),
    "ELU": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "SELU": _selu,
    "Mish": lambda x: x * np.tanh(softplus(x)),
    "sigmoid": special.expit,
    "tanh": np.tanh,
    "hard tanh": lambda x: np.clip(x, -1, 1),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "softplus": softplus,
    "hard swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hard sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "softmax": lambda x: special.softmax(x, -1),
    "log-softmax": lambda x: special.log_softmax(x, -1),
}


_ROUNDED_FORMS: dict[str, list[Callable[[Array], Array]]] = {
    "GELU (erf)": [
        lambda x: _gelu(x, _float32(math.sqrt(2))),
        lambda x: 0.5 * x * special.erfc(-x * _float32(math.sqrt(0.5))),
    ],
    "GELU (tanh)": [
        lambda x: _gelu_tanh(x, cubic=_float32(0.044715)),
        lambda x: _gelu_tanh(x, _float32(math.sqrt(2 / math.pi)), _float32(0.044715)),
    ],
    "SELU": [lambda x: _selu(x, _float32(1.0507009873554805), _float32(1.6732632423543772))],
    "hard swish": [lambda x: x * np.clip(x + 3, 0, 6) * _float32(1 / 6)],
    "hard sigmoid": [lambda x: np.clip(x + 3, 0, 6) * _float32(1 / 6)],
}
"""Functions with constants that are rounded to float32, as TensorFlow has them, and users who cast theirs."""


def _float32(constant: float) -> float:
    return float(np.float32(constant))


SIXTH = 6 * _float32(1 / 6)
"""By so much a sixth that is rounded to float32 is too large."""


class Fit(NamedTuple):
    """How well a function turns x into y."""

    exact: float
    """The largest relative difference."""
    rounded: float
    """The same with constants that are rounded to float32. Infinite: the function has none."""

    @property
    def residual(self) -> float:
        return min(self)


def is_known(settings: Mapping[str, Any]) -> bool:
    """Whether the function that a layer states is one of `activations`. A layer that states none has no other."""
    return "function" not in settings or "slope" in settings or stated_activation(settings) in ACTIVATIONS


def activations(x: Array, y: Array, slopes: Sequence[float]) -> dict[str, Fit]:
    """The functions that turn x into y, by name. Small values may not tell functions apart.

    Args:
        x, y: float[...].
        slopes: of a leaky ReLU, tried before the one that y shows.
    """
    if x.shape != y.shape:
        return {}
    forms = {name: [function, *_ROUNDED_FORMS.get(name, [])] for name, function in ACTIVATIONS.items()}
    if (negative := x < 0).any():
        shown = float(f"{np.median(y[negative] / x[negative]):.6g}")
        for slope in (each for each in (*slopes, shown) if each not in (0, 1)):
            leaky = [functools.partial(_leaky, slope=each) for each in (slope, _float32(slope))]
            forms.setdefault(leaky_words(slope), [*leaky])
    found: dict[str, Fit] = {}
    for name, functions in forms.items():
        exact, *rounded = (apart(function(x), y) for function in functions)
        found[name] = Fit(exact, min(rounded, default=math.inf))
    exact = {name: fit for name, fit in found.items() if fit.residual <= CLOSE}
    return exact or {name: fit for name, fit in found.items() if fit.residual <= ROUNDED}


def stated_activation(settings: Mapping[str, Any]) -> str:
    """The name in `activations` of the function that a layer states. Its own name, if that one is not known."""
    if "slope" in settings:
        return leaky_words(settings["slope"])
    if "approximate" in settings:
        return "GELU (tanh)" if settings["approximate"] == "tanh" else "GELU (erf)"
    stated = str(settings["function"])
    return {plain(name): name for name in ACTIVATIONS}.get(plain(stated), stated)


def leaky_words(slope: float) -> str:
    """The name in `activations` of a leaky ReLU."""
    return f"leaky ReLU, slope {slope:g}"


def dropout(x: Array, y: Array, tolerance: float = CLOSE) -> float | None:
    """The rate of the dropout that turns x into y. 0: y is x, within the tolerance. None: no dropout does."""
    if x.size != y.size:
        return None
    x, y = x.reshape(-1), y.reshape(-1)
    kept = (y != 0) & (x != 0)
    if not kept.any():
        return None
    # By least squares: large values decide. A rounded slope in front moves small ones by much of their own size.
    scale = float((x[kept] * y[kept]).sum() / np.square(x[kept]).sum())
    if not scale or apart(np.where(y != 0, x * scale, 0), y) > tolerance:
        return None
    return 0.0 if apart(x, y) <= tolerance else 1 - 1 / scale


def _patches(x: Array, size: Sequence[int], stride: Sequence[int], padding: Any, dilation: Sequence[int], fill: float) -> Array:
    """[N, H', W', C, kernel height, kernel width]."""
    padded = np.pad(x, ((0, 0), *map(tuple, padding), (0, 0)), constant_values=fill)
    reach = tuple((one - 1) * apart_by + 1 for one, apart_by in zip(size, dilation, strict=True))
    found = np.lib.stride_tricks.sliding_window_view(padded, reach, (1, 2))
    return found[:, :: stride[0], :: stride[1], :, :: dilation[0], :: dilation[1]]


def convolution(
    x: Array, kernel: Array, bias: Array | None, settings: Mapping[str, Any], padding: Any, depthwise: bool
) -> Array:
    """A convolution with explicit padding ((top, bottom), (left, right)); see `Layer.settings`."""
    patches = _patches(x, kernel.shape[:2], settings["stride"], padding, settings["dilation"], 0.0)
    if depthwise:
        y = np.einsum("nijcab,abcm->nijcm", patches, kernel).reshape(*patches.shape[:3], -1)
    else:
        groups = settings["groups"]
        parts = zip(np.split(patches, groups, 3), np.split(kernel, groups, 3), strict=True)
        y = np.concatenate([np.einsum("nijcab,abco->nijo", each, part, optimize=True) for each, part in parts], -1)
    return y if bias is None else y + bias


def pooling(x: Array, window: Sequence[int], stride: Sequence[int], padding: Any, how: str) -> Array:
    """`maximum`, `maximum with zeros around`, `average` (padding counts) or `average without padding`."""
    patches = _patches(x, window, stride, padding, (1, 1), -np.inf if how == "maximum" else 0.0)
    if how.startswith("maximum"):
        return patches.max((-2, -1))
    if how == "average":
        return patches.mean((-2, -1))
    counted = _patches(np.ones_like(x), window, stride, padding, (1, 1), 0.0)
    return patches.sum((-2, -1)) / counted.sum((-2, -1))


def normalisation(
    kind: str, x: Array, parameters: Mapping[str, Array], epsilon: float, groups: int = 1, *, batch: bool = False
) -> Array:
    """Batch, layer or group normalisation. `batch`: with the statistics of this batch."""
    gamma, beta = parameters.get("gamma", np.ones(1)), parameters.get("beta", np.zeros(1))
    if kind == "batch_norm":
        axes = tuple(range(x.ndim - 1))
        mean = x.mean(axes) if batch else parameters["mean"]
        variance = x.var(axes) if batch else parameters["variance"]
        return gamma * (x - mean) / np.sqrt(variance + epsilon) + beta
    if kind == "layer_norm":
        return gamma * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) + beta
    split = x.reshape(*x.shape[:-1], groups, -1)
    axes = (*range(1, x.ndim - 1), x.ndim)
    normal = (split - split.mean(axes, keepdims=True)) / np.sqrt(split.var(axes, keepdims=True) + epsilon)
    return gamma * normal.reshape(x.shape) + beta


def _cross_entropy(outputs: Array, labels: Array) -> float:
    return float(-special.log_softmax(outputs, -1)[np.arange(len(labels)), labels].mean())


def losses(outputs: Array, labels: Array) -> dict[str, float]:
    """What losses give for these outputs, by name."""
    count = outputs.shape[1]
    clipped = np.clip(outputs, 1e-7, 1 - 1e-7)
    smoothed = np.full_like(outputs, 0.1 / count)
    smoothed[np.arange(len(labels)), labels] += 0.9
    return {
        "mean cross-entropy of logits": _cross_entropy(outputs, labels),
        "sum of the cross-entropies of logits": _cross_entropy(outputs, labels) * len(labels),
        "cross-entropy of a softmax of the outputs, taken as logits": _cross_entropy(special.softmax(outputs, -1), labels),
        "cross-entropy of the outputs, taken as probabilities": _cross_entropy(np.log(clipped), labels),
        "cross-entropy with labels one too low": _cross_entropy(outputs, (labels - 1) % count),
        "cross-entropy with labels one too high": _cross_entropy(outputs, (labels + 1) % count),
        "cross-entropy with labels one too low, where 0 counts as no class": _without_class(outputs, labels - 1),
        "cross-entropy with labels one too high, where the last counts as no class": _without_class(outputs, labels + 1),
        "cross-entropy with labels in reverse order": _cross_entropy(outputs, count - 1 - labels),
        "cross-entropy with label smoothing 0.1": float(-(smoothed * special.log_softmax(outputs, -1)).sum(-1).mean()),
    }


def _without_class(outputs: Array, labels: Array) -> float:
    """As one-hot labels give it, whose row is zero for a label that is no class."""
    known = (labels >= 0) & (labels < outputs.shape[1])
    return _cross_entropy(outputs[known], labels[known]) * known.mean() if known.any() else 0.0


def first_update(settings: Mapping[str, Any], weights: Array, gradient: Array) -> Array | None:
    """The change of the weights in an optimizer's first step. None: its rule is not known here."""
    rate, decay = settings["learning_rate"], settings["weight_decay"]
    if settings["coupled"]:
        gradient = gradient + decay * weights
    if settings["rule"] == "sgd":
        momentum = settings["momentum"] if settings["nesterov"] else 0.0
        change = -rate * (1 + momentum) * gradient
    elif settings["rule"] == "adam":
        epsilon = settings["epsilon"]
        if settings["epsilon_before_correction"]:
            epsilon /= math.sqrt(1 - settings["beta_2"])
        change = -rate * settings["rounding"] * gradient / (np.abs(gradient) + epsilon)
    else:
        return None
    return change if settings["coupled"] else change - rate * decay * weights
