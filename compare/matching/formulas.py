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


PADDING_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap", "symmetric": "symmetric"}
"""By PyTorch's name: NumPy's."""


def padded(x: Array, padding: Any, mode: str = "zeros") -> Array:
    """An image with values around it, by a mode of `PADDING_MODES`."""
    return np.pad(x, ((0, 0), *map(tuple, padding), (0, 0)), PADDING_MODES[mode])  # pyright: ignore[reportArgumentType, reportCallIssue]


def transposed_size(size: Sequence[int], kernel: Sequence[int], settings: Mapping[str, Any]) -> list[int]:
    """(height, width) of all that a transposed convolution makes, before anything is cut off."""
    zipped = zip(size, kernel[:2], settings["stride"], settings["dilation"], strict=True)
    return [(one - 1) * stride + (reach - 1) * apart_by + 1 for one, reach, stride, apart_by in zipped]


def transposed(
    x: Array, kernel: Array, bias: Array | None, settings: Mapping[str, Any], start: Sequence[int], size: Sequence[int]
) -> Array:
    """A part of what a transposed convolution makes: `size` rows and columns, which begin at `start`."""
    count, height, width, channels = x.shape
    down, across = settings["stride"]
    spread = np.zeros((count, (height - 1) * down + 1, (width - 1) * across + 1, channels))
    spread[:, ::down, ::across] = x
    reach = [(one - 1) * apart_by for one, apart_by in zip(kernel.shape[:2], settings["dilation"], strict=True)]
    zipped = zip(reach, start, size, spread.shape[1:3], strict=True)
    padding = [[most - first, whole - own + first] for most, first, whole, own in zipped]
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
"""By words: where a pixel of the new image lies in the old one, and the constant of the cubic. 0: linear. None: the nearest."""


def resized(x: Array, size: Sequence[int], how: str) -> Array:
    """An image of another height and width, by one of `INTERPOLATIONS`."""
    rows, columns = (_weights(old, new, *INTERPOLATIONS[how]) for old, new in zip(x.shape[1:3], size, strict=True))
    return np.einsum("ih,nhwc,jw->nijc", rows, x, columns, optimize=True)


def _weights(old: int, new: int, places: str, cubic: float | None) -> Array:
    """[new, old]: by how much each old pixel counts in each new one."""
    at = {
        "corner": np.arange(new) * old / new,
        "centre": (np.arange(new) + 0.5) * old / new - 0.5,
        "aligned": np.arange(new) * (old - 1) / max(new - 1, 1),
    }[places]
    found = np.zeros((new, old))
    if cubic is None:
        found[np.arange(new), np.clip(np.floor(at + 0.5 * (places == "centre")).astype(int), 0, old - 1)] = 1
        return found
    for step in (-1, 0, 1, 2):
        pixel = np.floor(at).astype(int) + step
        far = np.abs(at - pixel)
        near = ((cubic + 2) * far - (cubic + 3)) * far**2 + 1
        share = np.where(far <= 1, near, np.where(far < 2, cubic * (((far - 5) * far + 8) * far - 4), 0))
        if not cubic:
            share = np.maximum(1 - far, 0)
        if cubic == -0.5:  # TensorFlow's: pixels outside do not count
            share = np.where((pixel >= 0) & (pixel < old), share, 0)
        np.add.at(found, (np.arange(new), np.clip(pixel, 0, old - 1)), share)
    return found / found.sum(1, keepdims=True)


def attention(queries: Array, keys: Array, values: Array, *, heads: int, factor: float) -> Array:
    """Of [N, tokens, channels]: values by the softmax over keys of products with queries, times a factor."""
    query, key, value = (each.reshape(*each.shape[:2], heads, -1) for each in (queries, keys, values))
    scores = np.einsum("nqhd,nkhd->nhqk", query, key, optimize=True)
    return np.einsum("nhqk,nkhd->nqhd", special.softmax(factor * scores, -1), value, optimize=True)


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


def by_class(x: Array, outputs: Array, labels: Array) -> Array:
    """[values, classes that occur]: the gradient of the last dense kernel, and the cross-entropy, of each class alone.

    Args:
        x: [N, inputs] of the layer.
        outputs: [N, classes], its logits.
        labels: [N].
    """
    errors = special.softmax(outputs, -1)
    errors[np.arange(len(labels)), labels] -= 1
    each = -special.log_softmax(outputs, -1)[np.arange(len(labels)), labels]
    of_class = ((labels == one) for one in np.unique(labels))
    return np.stack([np.append((x[rows].T @ errors[rows]).reshape(-1), each[rows].sum()) for rows in of_class], -1)


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
    elif settings["rule"] == "rmsprop":
        new, epsilon = 1 - settings["decay"], settings["epsilon"]
        square = (new - new**2 * ("centered" in settings["more"])) * gradient**2
        root = np.sqrt(square + epsilon) if settings["epsilon_below_root"] else np.sqrt(square) + epsilon
        change = -rate * gradient / root
    else:
        return None
    return change if settings["coupled"] else change - rate * decay * weights
