"""Layers, losses and optimizers in NumPy, to try out a suspected cause on recorded values."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from common.matching.records import Array
from compare.tools.matching.alignment import normalised_name

CLOSE = 1e-10
"""Largest relative difference of two arrays that count as equal: rounding of float64 through a whole model."""
ROUNDED_TOLERANCE = 3e-7
"""Largest relative difference that counts as equal for a function whose constants are rounded to float32."""


def max_relative_difference(left: Array, right: Array, floor: float = 0.0) -> float:
    """Return the largest difference over the largest value or `floor`. Infinite: sizes differ, or a value is not finite."""
    if left.size != right.size:
        return math.inf
    scale = max(np.abs(left).max(initial=0.0), np.abs(right).max(initial=0.0), floor, 1e-30)
    difference = float(np.abs(left.reshape(-1) - right.reshape(-1)).max(initial=0.0) / scale)
    return difference if math.isfinite(difference) else math.inf


def close(left: Array, right: Array) -> bool:
    """Return whether two arrays agree within rounding."""
    return max_relative_difference(left, right) <= CLOSE


def beyond_rounding(left: Array, right: Array, floor: float, tolerance: float) -> npt.NDArray[np.bool_]:
    """Return the components where the updates of two gradients can be compared.

    Adam divides each component by its own size. So it turns the rounding of a small component into a large update, as where
    a bias stands in front of BatchNorm. Such components agree within the scale of their array and not within their own.

    Args:
        left, right: float[...], the two gradients.
        floor: smallest scale, see `max_relative_difference`.
        tolerance: relative difference within which two gradients agree.

    Returns:
        bool[n], a mask of the flattened gradients.
    """
    left, right = left.reshape(-1), right.reshape(-1)
    scale = max(np.abs(left).max(initial=0.0), np.abs(right).max(initial=0.0), floor)
    difference = np.abs(left - right)
    rounding = (difference > tolerance * np.maximum(np.abs(left), np.abs(right))) & (difference <= tolerance * scale)
    return ~rounding


def _gelu(x: Array, root: float = math.sqrt(2)) -> Array:
    return 0.5 * x * (1 + special.erf(x / root))


def _gelu_tanh(x: Array, root: float = math.sqrt(2 / math.pi), cubic: float = 0.044715) -> Array:
    return 0.5 * x * (1 + np.tanh(root * (x + cubic * x**3)))


def _selu(x: Array, scale: float = 1.0507009873554805, alpha: float = 1.6732632423543772) -> Array:
    return scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _leaky_relu(x: Array, slope: float) -> Array:
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


SIXTH_RATIO = 6 * _float32(1 / 6)
"""Ratio of a sixth that is rounded to float32 to an exact sixth."""


class Fit(NamedTuple):
    """How well a function turns x into y."""

    exact: float
    """Largest relative difference."""
    rounded: float
    """Largest relative difference with constants that are rounded to float32. Infinite: the function has none."""

    @property
    def residual(self) -> float:
        return min(self)


def is_known(settings: Mapping[str, Any]) -> bool:
    """Return whether the function that a layer states is one of `activations`, or the layer states none."""
    return "function" not in settings or "slope" in settings or stated_activation(settings) in ACTIVATIONS


def activations(x: Array, y: Array, slopes: Sequence[float]) -> dict[str, Fit]:
    """Return the functions that turn x into y, by name. Small values may fit several functions.

    Args:
        x, y: float[...].
        slopes: slopes of a leaky ReLU, tried before a slope is fitted to y.
    """
    if x.shape != y.shape:
        return {}
    forms = {name: [function, *_ROUNDED_FORMS.get(name, [])] for name, function in ACTIVATIONS.items()}
    if (negative := x < 0).any():
        fitted_slope = float(f"{np.median(y[negative] / x[negative]):.6g}")
        for slope in (candidate for candidate in (*slopes, fitted_slope) if candidate not in (0, 1)):
            leaky = [functools.partial(_leaky_relu, slope=value) for value in (slope, _float32(slope))]
            forms.setdefault(leaky_relu_name(slope), [*leaky])
    fits: dict[str, Fit] = {}
    for name, functions in forms.items():
        exact, *rounded = (max_relative_difference(function(x), y) for function in functions)
        fits[name] = Fit(exact, min(rounded, default=math.inf))
    exact = {name: fit for name, fit in fits.items() if fit.residual <= CLOSE}
    return exact or {name: fit for name, fit in fits.items() if fit.residual <= ROUNDED_TOLERANCE}


def stated_activation(settings: Mapping[str, Any]) -> str:
    """Return the name in `activations` of the function that a layer states, or the stated name if it is not known."""
    if "slope" in settings:
        return leaky_relu_name(settings["slope"])
    if "approximate" in settings:
        return "GELU (tanh)" if settings["approximate"] == "tanh" else "GELU (erf)"
    stated = str(settings["function"])
    return {normalised_name(name): name for name in ACTIVATIONS}.get(normalised_name(stated), stated)


def leaky_relu_name(slope: float) -> str:
    """Return the name in `activations` of a leaky ReLU."""
    return f"leaky ReLU, slope {slope:g}"


def dropout(x: Array, y: Array, tolerance: float = CLOSE) -> float | None:
    """Return the rate of the dropout that turns x into y. 0: y is x, within the tolerance. None: no dropout does."""
    if x.size != y.size:
        return None
    x, y = x.reshape(-1), y.reshape(-1)
    nonzero = (y != 0) & (x != 0)
    if not nonzero.any():
        return None
    # By least squares: large values decide. A rounded slope in front moves small ones by much of their own size.
    scale = float((x[nonzero] * y[nonzero]).sum() / np.square(x[nonzero]).sum())
    if not scale or max_relative_difference(np.where(y != 0, x * scale, 0), y) > tolerance:
        return None
    return 0.0 if max_relative_difference(x, y) <= tolerance else 1 - 1 / scale


def _patches(x: Array, size: Sequence[int], stride: Sequence[int], padding: Any, dilation: Sequence[int], fill: float) -> Array:
    """Return the windows of x: [N, H', W', C, kernel height, kernel width]."""
    padded = np.pad(x, ((0, 0), *map(tuple, padding), (0, 0)), constant_values=fill)
    extents = tuple((length - 1) * gap + 1 for length, gap in zip(size, dilation, strict=True))
    windows = np.lib.stride_tricks.sliding_window_view(padded, extents, (1, 2))
    return windows[:, :: stride[0], :: stride[1], :, :: dilation[0], :: dilation[1]]


def convolution(
    x: Array, kernel: Array, bias: Array | None, settings: Mapping[str, Any], padding: Any, depthwise: bool
) -> Array:
    """Compute a convolution with explicit padding ((top, bottom), (left, right)); see `Layer.settings`."""
    patches = _patches(x, kernel.shape[:2], settings["stride"], padding, settings["dilation"], 0.0)
    if depthwise:
        y = np.einsum("nijcab,abcm->nijcm", patches, kernel).reshape(*patches.shape[:3], -1)
    else:
        groups = settings["groups"]
        parts = zip(np.split(patches, groups, 3), np.split(kernel, groups, 3), strict=True)
        y = np.concatenate(
            [np.einsum("nijcab,abco->nijo", part, kernel_part, optimize=True) for part, kernel_part in parts], -1
        )
    return y if bias is None else y + bias


PADDING_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap", "symmetric": "symmetric"}
"""NumPy's name of each padding mode of PyTorch."""


def pad(x: Array, padding: Any, mode: str = "zeros") -> Array:
    """Pad images by a mode of `PADDING_MODES`."""
    return np.pad(x, ((0, 0), *map(tuple, padding), (0, 0)), PADDING_MODES[mode])  # pyright: ignore[reportArgumentType, reportCallIssue]


def transposed_size(size: Sequence[int], kernel: Sequence[int], settings: Mapping[str, Any]) -> list[int]:
    """Return the (height, width) of a transposed convolution's output before it is cropped."""
    zipped = zip(size, kernel[:2], settings["stride"], settings["dilation"], strict=True)
    return [(length - 1) * stride + (kernel_length - 1) * gap + 1 for length, kernel_length, stride, gap in zipped]


def transposed_convolution(
    x: Array, kernel: Array, bias: Array | None, settings: Mapping[str, Any], start: Sequence[int], size: Sequence[int]
) -> Array:
    """Compute a transposed convolution, cropped to `size` rows and columns that begin at `start`."""
    count, height, width, channels = x.shape
    down, across = settings["stride"]
    spread = np.zeros((count, (height - 1) * down + 1, (width - 1) * across + 1, channels))
    spread[:, ::down, ::across] = x
    margins = [(length - 1) * gap for length, gap in zip(kernel.shape[:2], settings["dilation"], strict=True)]
    zipped = zip(margins, start, size, spread.shape[1:3], strict=True)
    padding = [[margin - first, whole - spread_size + first] for margin, first, whole, spread_size in zipped]
    form = {"stride": (1, 1), "dilation": settings["dilation"], "groups": 1}
    return convolution(spread, kernel[::-1, ::-1].swapaxes(2, 3), bias, form, padding, False)


INTERPOLATIONS: dict[str, tuple[str, float | None]] = {
    "nearest": ("corner", None),
    "nearest, of pixel centres": ("centre", None),
    "bilinear": ("centre", 0.0),
    "bilinear with aligned corners": ("aligned", 0.0),
    "bilinear, of pixel corners": ("corner", 0.0),
    "bicubic (-0.75)": ("centre", -0.75),
    "bicubic (-0.75) with aligned corners": ("aligned", -0.75),
    "bicubic (-0.5)": ("centre", -0.5),
}
"""(alignment of new pixels in the old image, constant of the cubic) of each rule. 0: linear. None: the nearest pixel."""


def resize(x: Array, size: Sequence[int], rule: str) -> Array:
    """Resize images to another height and width, by a rule of `INTERPOLATIONS`."""
    rows, columns = (_weights(old, new, *INTERPOLATIONS[rule]) for old, new in zip(x.shape[1:3], size, strict=True))
    return np.einsum("ih,nhwc,jw->nijc", rows, x, columns, optimize=True)


def _weights(old: int, new: int, alignment: str, cubic: float | None) -> Array:
    """Return [new, old]: the weight of each old pixel in each new one."""
    positions = {
        "corner": np.arange(new) * old / new,
        "centre": (np.arange(new) + 0.5) * old / new - 0.5,
        "aligned": np.arange(new) * (old - 1) / max(new - 1, 1),
    }[alignment]
    weights = np.zeros((new, old))
    if cubic is None:
        weights[np.arange(new), np.clip(np.floor(positions + 0.5 * (alignment == "centre")).astype(int), 0, old - 1)] = 1
        return weights
    for step in (-1, 0, 1, 2):
        pixel = np.floor(positions).astype(int) + step
        distance = np.abs(positions - pixel)
        near_weight = ((cubic + 2) * distance - (cubic + 3)) * distance**2 + 1
        weight = np.where(
            distance <= 1, near_weight, np.where(distance < 2, cubic * (((distance - 5) * distance + 8) * distance - 4), 0)
        )
        if not cubic:
            weight = np.maximum(1 - distance, 0)
        if cubic == -0.5:  # TensorFlow's: pixels outside do not count
            weight = np.where((pixel >= 0) & (pixel < old), weight, 0)
        np.add.at(weights, (np.arange(new), np.clip(pixel, 0, old - 1)), weight)
    return weights / weights.sum(1, keepdims=True)


def attention(queries: Array, keys: Array, values: Array, *, heads: int, factor: float) -> Array:
    """Compute attention of [N, tokens, channels]. The scores are multiplied by `factor` before the softmax over keys."""
    query, key, value = (array.reshape(*array.shape[:2], heads, -1) for array in (queries, keys, values))
    scores = np.einsum("nqhd,nkhd->nhqk", query, key, optimize=True)
    return np.einsum("nhqk,nkhd->nqhd", special.softmax(factor * scores, -1), value, optimize=True)


def pooling(x: Array, window: Sequence[int], stride: Sequence[int], padding: Any, mode: str) -> Array:
    """Pool by `maximum`, `maximum with zeros around`, `average` (padding counts) or `average without padding`."""
    patches = _patches(x, window, stride, padding, (1, 1), -np.inf if mode == "maximum" else 0.0)
    if mode.startswith("maximum"):
        return patches.max((-2, -1))
    if mode == "average":
        return patches.mean((-2, -1))
    counted = _patches(np.ones_like(x), window, stride, padding, (1, 1), 0.0)
    return patches.sum((-2, -1)) / counted.sum((-2, -1))


def normalisation(
    kind: str, x: Array, parameters: Mapping[str, Array], epsilon: float, groups: int = 1, *, batch: bool = False
) -> Array:
    """Compute batch, layer or group normalisation. `batch`: with the statistics of this batch."""
    gamma, beta = parameters.get("gamma", np.ones(1)), parameters.get("beta", np.zeros(1))
    if kind == "batch_norm":
        axes = tuple(range(x.ndim - 1))
        mean = x.mean(axes) if batch else parameters["mean"]
        variance = x.var(axes) if batch else parameters["variance"]
        return gamma * (x - mean) / np.sqrt(variance + epsilon) + beta
    if kind == "layer_norm":
        return gamma * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) + beta
    grouped = x.reshape(*x.shape[:-1], groups, -1)
    axes = (*range(1, x.ndim - 1), x.ndim)
    normalised = (grouped - grouped.mean(axes, keepdims=True)) / np.sqrt(grouped.var(axes, keepdims=True) + epsilon)
    return gamma * normalised.reshape(x.shape) + beta


def _cross_entropy(outputs: Array, labels: Array) -> float:
    return float(-special.log_softmax(outputs, -1)[np.arange(len(labels)), labels].mean())


def gradients_by_class(x: Array, outputs: Array, labels: Array) -> Array:
    """Return [values, classes that occur]: gradient of the last dense kernel and cross-entropy of each class alone.

    Args:
        x: [N, inputs], the inputs of the layer.
        outputs: [N, classes], the logits.
        labels: [N], class ids.
    """
    errors = special.softmax(outputs, -1)
    errors[np.arange(len(labels)), labels] -= 1
    cross_entropies = -special.log_softmax(outputs, -1)[np.arange(len(labels)), labels]
    masks = ((labels == label) for label in np.unique(labels))
    return np.stack([np.append((x[rows].T @ errors[rows]).reshape(-1), cross_entropies[rows].sum()) for rows in masks], -1)


LOGITS_LOSS, SUMMED_LOSS = "mean cross-entropy of logits", "sum of the cross-entropies of logits"
PROBABILITIES_LOSS = "cross-entropy of the outputs, taken as probabilities"
SMOOTHED_LOSS = "cross-entropy with label smoothing 0.1"


def losses(outputs: Array, labels: Array) -> dict[str, float]:
    """Return the values of several losses for these outputs, by name."""
    count = outputs.shape[1]
    clipped = np.clip(outputs, 1e-7, 1 - 1e-7)
    smoothed = np.full_like(outputs, 0.1 / count)
    smoothed[np.arange(len(labels)), labels] += 0.9
    return {
        LOGITS_LOSS: _cross_entropy(outputs, labels),
        SUMMED_LOSS: _cross_entropy(outputs, labels) * len(labels),
        "cross-entropy of a softmax of the outputs, taken as logits": _cross_entropy(special.softmax(outputs, -1), labels),
        PROBABILITIES_LOSS: _cross_entropy(np.log(clipped), labels),
        "cross-entropy with labels one too low": _cross_entropy(outputs, (labels - 1) % count),
        "cross-entropy with labels one too high": _cross_entropy(outputs, (labels + 1) % count),
        "cross-entropy with labels one too low, where 0 counts as no class": _without_class(outputs, labels - 1),
        "cross-entropy with labels one too high, where the last counts as no class": _without_class(outputs, labels + 1),
        "cross-entropy with labels in reverse order": _cross_entropy(outputs, count - 1 - labels),
        SMOOTHED_LOSS: float(-(smoothed * special.log_softmax(outputs, -1)).sum(-1).mean()),
    }


def _without_class(outputs: Array, labels: Array) -> float:
    """Compute the cross-entropy of one-hot labels, whose row is zero for a label that is no class."""
    known = (labels >= 0) & (labels < outputs.shape[1])
    return _cross_entropy(outputs[known], labels[known]) * known.mean() if known.any() else 0.0


def first_update(settings: Mapping[str, Any], weights: Array, gradient: Array) -> Array | None:
    """Return the change of the weights in an optimizer's first step. None: its rule is not known here."""
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
    elif settings["rule"] == "rmsprop":
        new, epsilon = 1 - settings["decay"], settings["epsilon"]
        square = (new - new**2 * ("centered" in settings["more"])) * gradient**2
        root = np.sqrt(square + epsilon) if settings["epsilon_below_root"] else np.sqrt(square) + epsilon
        change = -rate * gradient / root
    else:
        return None
    return change if settings["coupled"] else change - rate * decay * weights
