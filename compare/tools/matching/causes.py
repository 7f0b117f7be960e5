"""Finds why outputs of two models differ: a suspected cause holds if both agree once it is corrected in one side's values."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from common.matching import recording
from common.matching.records import Array, Layer
from compare.tools.matching import formulas
from compare.tools.matching.alignment import normalised_name, signature
from compare.tools.matching.divergence import SAME_VALUES_TOLERANCE, Divergence
from compare.tools.matching.formulas import max_relative_difference

BIASED_VARIANCE, ROUNDED_CONSTANTS, LOWER_PRECISION = "biased-variance", "rounded-constants", "lower-precision"
ROUNDING_CAUSES = {ROUNDED_CONSTANTS, LOWER_PRECISION}
"""Causes that are a framework's own rounding. They act wherever their layer runs, and explain no larger difference."""
_MOST_RUNS = 8
"""Largest number of runs of adjacent channels that a cause lists."""
_NO_ACTIVATION = "no activation"
_NO_PADDING = [[0, 0], [0, 0]]


class Cause(NamedTuple):
    """One reason for a difference, as facts. `match_words` has the words."""

    name: str
    """A key of `match_words.KNOWN_CAUSES`."""
    values: Mapping[str, Any] = {}
    """Figures and names that its words contain. `one` and `other` are frameworks."""
    where: str = ""
    """The user's files and lines. Empty: not known."""
    residual: float | None = None
    """Relative difference that remains once the cause is corrected. None: it was read from the models and not tried out.
    Infinite: no correction that was tried out leaves less."""
    variant: str = ""
    """Which of the several forms of this cause it is."""
    size: float | None = None
    """Relative difference that this cause alone makes at `at`. None: not known."""
    at: str = ""
    """Name of the layer or array that `size` was measured at. Empty: not known."""

    @property
    def is_verified(self) -> bool:
        """Whether it was tried out, and explains the difference."""
        return self.residual is not None and math.isfinite(self.residual)

    @property
    def places(self) -> list[str]:
        """Names of all layers with this cause. The difference is largest at the first."""
        return [*filter(None, [self.at]), *self.values.get("also", ())]

    def facts(self) -> dict[str, Any]:
        """Return the fields, and whether it was tried out: JSON has no infinite residual."""
        return {**self._asdict(), "is_tried": self.residual is not None}


_Form = Callable[[Any], Array]
"""Function from an index of examples to the values of these examples."""
_Experiments = Iterator[Cause | None]
"""Results of the experiments on a suspected cause. None: it does not explain the difference."""


def _corrected(
    divergence: Divergence,
    name: str,
    corrected: Array,
    target: Array,
    values: Mapping[str, Any],
    variant: str = "",
    where: str = "",
    *,
    tolerance: float | None = None,
) -> Cause | None:
    """Return the cause if one side's values, with it corrected, are the other side's. See `Cause` for its fields."""
    residual = max_relative_difference(corrected, target)
    cause = Cause(name, values, where or divergence.where, residual, variant)
    return cause if residual <= (divergence.tolerance if tolerance is None else tolerance) else None


def _distinguished(
    divergence: Divergence,
    name: str,
    outputs: Sequence[Array],
    forms: Callable[[Array], Mapping[Any, _Form]],
    variant: str = "",
    where: str = "",
    *,
    stated: Sequence[Sequence[Any]] = ((), ()),
    least: float = 0.0,
    sample: Any = np.s_[:1],
    **values: Any,
) -> Cause | None:
    """Return the cause if each side's values are one of several forms, and no form fits both sides.

    Args:
        divergence: the place where the models differ.
        name, variant, where: see `Cause`.
        outputs: float[N, ...], the values of both sides.
        forms: function from values to forms of their shape, by a key that `match_words` has words for.
        stated: keys that each side's layers state, preferred to others that fit.
        least: tolerance of the forms, if it is larger than that of the divergence.
        sample: index of the examples that are tried first, since most forms do not fit.
        values: further values of the cause.
    """
    tolerance = max(divergence.tolerance, least)

    def residual(form: _Form, values: Array, scale: float) -> float:
        try:
            difference = max_relative_difference(form(sample), values[sample], scale)
            return difference if difference > tolerance else max_relative_difference(form(np.s_[:]), values)
        except ValueError:  # a window is larger than the image
            return math.inf

    fits: list[dict[Any, float]] = []
    for output in outputs:
        scale = float(np.abs(output).max(initial=0.0))
        residuals = {key: residual(form, output, scale) for key, form in forms(output).items()}
        fits.append({key: value for key, value in residuals.items() if value <= tolerance})
        if not fits[-1]:
            return None
    if fits[0].keys() & fits[1].keys():
        return None
    fitting = [[key for key in keys if key in fit][:1] or [*fit] for keys, fit in zip(stated, fits, strict=True)]
    values = {**divergence.named(), **values, "forms": json.loads(json.dumps(fitting))}
    return Cause(name, values, where or divergence.where, min(fits[1].values()), variant)


class _Hypothesis(NamedTuple):
    """A suspected cause. The first of its experiments that succeeds names it."""

    experiments: Callable[[Divergence], _Experiments]
    unless: str = ""
    """Name of a cause that explains as much. It is not tried out if that one was found."""


def explain_divergence(divergence: Divergence) -> list[Cause]:
    """Return the causes of a difference between outputs, first those that were tried out."""
    causes: list[Cause] = []
    for experiments, unless in _HYPOTHESES:
        if all(cause.name != unless for cause in causes):
            causes += itertools.islice(filter(None, experiments(divergence)), 1)
    causes = [
        cause if (cause.residual or 0.0) < divergence.difference / 2 else cause._replace(residual=math.inf) for cause in causes
    ]
    causes = [
        cause._replace(size=divergence.difference, at=divergence.at)
        if cause.is_verified and math.isfinite(divergence.difference)
        else cause
        for cause in causes
    ]
    for name in ("softmax-output", "normalisation-place"):
        if conclusive := [cause for cause in causes if cause.name == name and (cause.residual or 0.0) < math.inf]:
            return conclusive  # no activation is missing beside it
    return sorted(causes or _pairing(divergence), key=lambda cause: cause.residual is None)[:3]


def _pairing(divergence: Divergence) -> Iterator[Cause]:
    """Layers of equal kind and shapes that only their order tells apart.

    Pairs that the user, names or paths confirm do not count. A pair that agrees counts if another layer takes
    the same input: values do not tell the two apart. A pair that does not agree counts if the first pair that differs is of its
    kind and shapes.
    """
    left, right = divergence.sides
    layers = left.layers[divergence.mode], right.layers[divergence.mode]
    both = [(one, other) for one, other in divergence.pairs.items() if one in layers[0] and other in layers[1]]
    inputs = {one: left.values(divergence.mode, one)[0] for one, _ in both}
    agree = {
        one: divergence.close(left.values(divergence.mode, one)[1], right.values(divergence.mode, other)[1])
        for one, other in both
    }
    first_different = next((signature(layers[0][one]) for one, _ in both if not agree[one]), None)
    groups: dict[tuple[Any, ...], list[tuple[Layer, Layer]]] = {}
    for one, other in both:
        if one not in divergence.confirmed:
            groups.setdefault(signature(layers[0][one]), []).append((layers[0][one], layers[1][other]))
    mismatched: list[Any] = []
    for shared, pairs in groups.items():
        doubtful = [
            (one, other)
            for one, other in pairs
            if (
                any(divergence.close(inputs[one.name], inputs[sibling.name]) for sibling, _ in pairs if sibling is not one)
                if agree[one.name]
                else shared == first_different
            )
        ]
        names = [[layer.name for layer in side] for side in zip(*doubtful, strict=True)]
        if len(doubtful) > 1 and {*map(normalised_name, names[0])} != {*map(normalised_name, names[1])}:
            mismatched.append([[*side_names] for side_names in names])
    if mismatched:
        yield Cause("pairing", {"paired": mismatched}, divergence.where)


def _float32(divergence: Divergence) -> _Experiments:
    difference = max_relative_difference(*divergence.outputs)
    for place, side in enumerate(divergence.sides):
        layers = side.layers[divergence.mode].values()
        # A function may be the framework's own, as `tf.image.resize`, which takes float64 and gives float32.
        low = [layer for layer in layers if layer.dtype not in ("float64", "") and (layer.parameters or layer.kind != "other")]
        if low and difference < 1e-4:
            values = {"one": side.name, "layer": low[0].name, "dtype": low[0].dtype}
            yield Cause("float32", values, low[0].where or "", difference if difference < 1e-5 else None, "layer")
        for pair in (divergence.inputs, divergence.outputs):
            one, other = pair[place], pair[1 - place]
            rounded = other.astype(np.float32).astype(np.float64)
            if one.shape == other.shape and not np.array_equal(one, other) and np.array_equal(one, rounded):
                yield Cause("float32", {"one": side.name}, divergence.where, max_relative_difference(one, rounded))


def _lower_precision(divergence: Divergence) -> _Experiments:
    """A layer that gives values of float32 alone, though it takes others. It may have rounded on the way, not at the end.

    If a model calls functions that are not recorded, the next layer takes such values, in some of its channels perhaps.
    """
    pairs = divergence.inputs, divergence.outputs
    for place, side in enumerate(divergence.sides):
        for layer in divergence.layers_since_agreement[place]:
            inputs, outputs = side.values(divergence.mode, layer.name)
            if (
                _is_float32(outputs)
                and not _is_float32(inputs)
                and all(max_relative_difference(*pair) <= SAME_VALUES_TOLERANCE for pair in pairs)
            ):
                values = {"one": side.name, "layer": layer.name}
                yield Cause(LOWER_PRECISION, values, layer.where or divergence.where, None, "layer")
        for pair in pairs:
            mine, other = (array.reshape(-1, array.shape[-1]) for array in (pair[place], pair[1 - place]))
            if mine.shape != other.shape or max_relative_difference(mine, other) > formulas.ROUNDED_TOLERANCE:
                continue
            differ = np.abs(mine - other).max(0, initial=0.0) > divergence.tolerance * np.abs(mine).max(initial=0.0)
            if differ.any() and _is_float32(mine[:, differ]) and not _is_float32(other[:, differ]):
                yield Cause(LOWER_PRECISION, {"one": side.name}, divergence.where)


def _is_float32(values: Array) -> bool:
    """Return whether float32 represents all values. Zeros alone prove nothing."""
    with np.errstate(over="ignore"):
        return bool(values.any()) and np.array_equal(values, values.astype(np.float32))


def _scaling(divergence: Divergence) -> _Experiments:
    """A layer that scales and shifts, with constants that are rounded: what it states must give what the other model has."""
    for place, side in enumerate(divergence.sides):
        for layer in divergence.layers_since_agreement[place]:
            if "offset" not in layer.settings:
                continue
            x, y = side.values(divergence.mode, layer.name)
            scale, offset = (np.asarray(layer.settings[key]) for key in ("scale", "offset"))
            if not {scale.size, offset.size} <= {1, x.shape[-1]}:
                continue
            stated = x * scale + offset
            for pair in (divergence.inputs, divergence.outputs):
                if divergence.close(*pair):
                    continue  # else it would explain what another fault of this layer makes
                mine, other = pair[place], pair[1 - place]
                # Zeros that pad and a flattened image leave the values and their order as they are.
                if (
                    np.array_equal(mine[mine != 0], y[y != 0])
                    and max_relative_difference(stated, other)
                    < max_relative_difference(y, stated)
                    <= formulas.ROUNDED_TOLERANCE
                ):
                    values = {"one": side.name, "layer": layer.name}
                    yield _corrected(divergence, ROUNDED_CONSTANTS, stated, other, values, "scaling", tolerance=formulas.CLOSE)


def _input(divergence: Divergence) -> _Experiments:
    if divergence.layers is None or divergence.close(*divergence.inputs):
        return
    left, right = divergence.inputs
    if divergence.layers[0].parameters and left.ndim == 4 and right.ndim == 4 and left.size == right.size:
        for order in itertools.permutations((1, 2, 3)):
            form = left.transpose(0, *order)
            if form.shape == right.shape:
                axes = [("height", "width", "channels")[axis - 1] for axis in order]
                values = {**divergence.named(), "layer": divergence.layers[1].name, "axes": axes}
                yield _corrected(divergence, "data-format", form, right, values, "axes")
    if len(divergence.nearest_agreeing) > 1 or left.shape != right.shape:
        return
    if left.ndim == 4:
        count, height, width, channels = left.shape
        nchw = left.transpose(0, 3, 1, 2)
        forms = {
            "reshaped from channels, height, width instead of transposed": nchw.reshape(left.shape),
            "reshaped to channels, height, width instead of transposed": (
                left.reshape(count, channels, height, width).transpose(0, 2, 3, 1)
            ),
            "with the channels in reverse order (RGB, BGR)": left[..., ::-1],
            "upside down": left[:, ::-1],
            "mirrored": left[:, :, ::-1],
        }
        for words, form in forms.items():
            yield _corrected(divergence, "data-format", form, right, {**divergence.named(), "form": words}, "image")
    flat = [array.reshape(-1, array.shape[-1]) for array in (left, right)]
    if not np.isfinite(flat).all() or not np.ptp(flat[0], axis=0).all():
        return  # no line goes through one point
    scale, shift = np.empty(flat[0].shape[1]), np.empty(flat[0].shape[1])
    for channel in range(len(scale)):
        fitted = np.polynomial.Polynomial.fit(flat[0][:, channel], flat[1][:, channel], 1).convert().coef
        scale[channel], shift[channel] = (*fitted, 0.0, 0.0)[1::-1]
    values = {**divergence.named(), "scale": scale.tolist(), "shift": np.where(np.abs(shift) < 1e-9, 0, shift).tolist()}
    yield _corrected(divergence, "input-scaling", flat[0] * scale + shift, flat[1], values, tolerance=1e-9)


def _order(divergence: Divergence) -> _Experiments:
    left, right = divergence.sides
    if divergence.layers is not None and divergence.layers[0].parameters and not divergence.close(*divergence.inputs):
        ours, theirs = divergence.layers
        for one, other in divergence.pairs.items():
            candidate = right.layers[divergence.mode][other]
            if other == theirs.name or signature(candidate) != signature(ours):
                continue
            mine = divergence.inputs[0]
            if not divergence.close(left.values(divergence.mode, one)[0], mine):
                values = {**divergence.named(), "layer": ours.name, "called": other}
                where = f"{ours.where}, {candidate.where}"
                yield _corrected(divergence, "order", mine, right.values(divergence.mode, other)[0], values, "layers", where)
    if len(divergence.nearest_agreeing) < 2 or any(
        layer.flattened for side in divergence.layers_since_agreement for layer in side
    ):
        return
    for one, other in (divergence.inputs, divergence.outputs):
        if one.shape != other.shape or divergence.close(one, other):
            continue
        fingerprints = [
            np.random.default_rng(0).random(array.size // array.shape[-1]) @ array.reshape(-1, array.shape[-1])
            for array in (one, other)
        ]
        order = np.argsort(fingerprints[0])[np.argsort(np.argsort(fingerprints[1]))]
        runs = np.split(order, np.flatnonzero(np.diff(order) != 1) + 1)
        # Where channels are equal, such as dead ones, their order is not certain.
        is_told = len(runs) <= _MOST_RUNS and len(np.unique(fingerprints[0])) == len(order)
        channels = [[int(run[0]), int(run[-1])] for run in runs] if is_told else []
        values = {**divergence.named(), "concatenates": "concatenate" in divergence.kinds, "channels": channels}
        yield _corrected(divergence, "order", one[..., order], other, values)


def _softmax(divergence: Divergence) -> _Experiments:
    if divergence.layers is not None and divergence.layers[0].kind != "activation":
        return
    for place in (0, 1):
        mine, other = divergence.outputs[place], divergence.outputs[1 - place]
        if mine.ndim != 2 or mine.shape != other.shape:
            continue
        for words, function in (("probabilities (softmax)", special.softmax), ("log-probabilities", special.log_softmax)):
            yield _corrected(
                divergence, "softmax-output", function(other, -1), mine, {**divergence.named(place), "returns": words}
            )


def _dropout(divergence: Divergence) -> _Experiments:
    if "dropout" not in divergence.kinds:
        return
    for x, left, right in divergence.shared_inputs():
        ours, theirs = (formulas.dropout(x, y, divergence.tolerance) for y in (left, right))
        if ours is None or theirs is None:
            continue
        residual = max(
            max_relative_difference(np.where(y != 0, x / (1 - rate), 0), y) for y, rate in ((left, ours), (right, theirs))
        )
        if 0 in (ours, theirs) and ours != theirs:
            values = {**divergence.named(int(ours == 0)), "rate": ours or theirs}
            residual = max_relative_difference(x, left if ours == 0 else right)
            yield Cause("dropout-active", values, divergence.where, residual, divergence.mode)
        elif not math.isclose(ours, theirs, rel_tol=1e-6):
            yield Cause("dropout-rate", {**divergence.named(), "rates": [ours, theirs]}, divergence.where, residual)
        elif x.ndim == 4 and x.shape == left.shape == right.shape:
            drops_channels = [bool(np.all((y == 0) == (y == 0).all((1, 2), keepdims=True) | (x == 0))) for y in (left, right)]
            if drops_channels[0] != drops_channels[1]:
                yield Cause("dropout-rate", divergence.named(drops_channels[1]), divergence.where, residual, "channels")


def _bias(divergence: Divergence) -> _Experiments:
    if divergence.layers is None:
        return
    roles = [side.parameters(layer.name) for side, layer in zip(divergence.sides, divergence.layers, strict=True)]
    for place in (0, 1):
        for role in ("bias", "beta"):
            if role in roles[place] and role not in roles[1 - place]:
                values = {**divergence.named(1 - place), "layer": divergence.layers[1 - place].name, "role": role}
                corrected = divergence.outputs[1 - place] + roles[place][role]
                yield _corrected(divergence, "bias-missing", corrected, divergence.outputs[place], values)


def _normalises(divergence: Divergence) -> bool:
    """Return whether the first layers that differ are normalisations of the same input."""
    layers = divergence.layers
    return layers is not None and layers[0].kind.endswith("_norm") and divergence.close(*divergence.inputs)


def _normalised(divergence: Divergence) -> tuple[bool, bool, Array] | None:
    """Return whether each side normalises with the batch's statistics, and what the right side must then give.

    None: the layers are no normalisations of the same input, or neither statistics give their outputs.
    """
    if divergence.layers is None or not _normalises(divergence):
        return None
    kind, groups = divergence.layers[0].kind, divergence.layers[0].settings.get("groups", 1)
    parameters = divergence.sides[0].parameters(divergence.layers[0].name)
    fits: list[tuple[bool, Array]] = []
    for layer, output in zip(divergence.layers, divergence.outputs, strict=True):
        epsilon = layer.settings["epsilon"]
        for batch in (False, True):
            values = formulas.normalisation(kind, divergence.inputs[0], parameters, epsilon, groups, batch=batch)
            if divergence.close(values, output):
                fits.append((batch, values))
                break
        else:
            return None
    return fits[0][0], fits[1][0], fits[1][1]


def _of_layers(divergence: Divergence, key: str) -> dict[str, Any]:
    """Return the names of the layers that differ first, and a setting of both."""
    layers = divergence.layers or ()
    return {
        **divergence.named(),
        "layers": [layer.name for layer in layers],
        "kind": layers[0].kind if layers else "",
        key: [layer.settings.get(key) for layer in layers],
    }


def _normalised_axis(divergence: Divergence) -> _Experiments:
    if divergence.layers is None or not _normalises(divergence):
        return
    left, right = (layer.settings.get("axis", -1) for layer in divergence.layers)
    if left != right:
        yield Cause("data-format", _of_layers(divergence, "axis"), divergence.where, None, "axis")


def _epsilon(divergence: Divergence) -> _Experiments:
    values = _of_layers(divergence, "epsilon")
    epsilons = [layer.settings.get("epsilon") for layer in divergence.layers or ()]
    if (normalised := _normalised(divergence)) is not None and epsilons[0] != epsilons[1]:
        yield _corrected(divergence, "epsilon", normalised[2], divergence.outputs[1], values)


def _batch_norm_mode(divergence: Divergence) -> _Experiments:
    if (normalised := _normalised(divergence)) is not None and normalised[0] != normalised[1]:
        values = {**_of_layers(divergence, "epsilon"), "mode": divergence.mode, "batch": [normalised[0], normalised[1]]}
        yield _corrected(divergence, "batch-norm-mode", normalised[2], divergence.outputs[1], values)


def _addition(divergence: Divergence) -> _Experiments:
    """An addition that one model lacks, with or without ReLU behind it."""
    additions = divergence.layers_of_kind("add")
    if len(additions[0]) == len(additions[1]):
        return
    place = 0 if len(additions[0]) > len(additions[1]) else 1
    where = ", ".join(dict.fromkeys(layer.where for layer in additions[place] if layer.where))
    for pair in (divergence.inputs, divergence.outputs):
        mine, other = pair[place], pair[1 - place]
        if mine.shape != other.shape:
            continue
        # A block may be long: what it begins with stands far in front of what it ends with.
        for value, earlier in itertools.product(divergence.nearest_agreeing, divergence.agreeing):
            if value is earlier or not value.shape == earlier.shape == mine.shape:
                continue
            total = value + earlier
            for form, bare in ((total, value), (np.maximum(total, 0), np.maximum(value, 0))):
                if divergence.close(bare, other):
                    yield _corrected(divergence, "addition-missing", form, mine, divergence.named(place), where=where)


def _padding(divergence: Divergence) -> _Experiments:
    """Recompute both sides with the left model's weights and settings, so that only the padding differs."""
    if divergence.layers is None or divergence.layers[0].kind not in ("conv", "depthwise_conv", "transposed_conv"):
        return
    kind, settings = divergence.layers[0].kind, divergence.layers[0].settings
    parameters = divergence.sides[0].parameters(divergence.layers[0].name)
    kernel, bias = parameters["kernel"], parameters.get("bias")
    stated: list[Any] = [layer.settings.get("padding") for layer in divergence.layers]

    def padded(x: Array, _: Array) -> dict[Any, _Form]:
        sizes = zip(x.shape[1:3], settings["kernel"], settings["stride"], settings["dilation"], strict=True)
        same = [list(recording.same_padding(*geometry)) for geometry in sizes]
        around = [[size // 2, size // 2] for size in settings["kernel"]]
        return {
            (_pairs(padding), mode): lambda few, padding=padding, mode=mode: formulas.convolution(
                formulas.pad(x[few], padding, mode), kernel, bias, settings, _NO_PADDING, kind == "depthwise_conv"
            )
            for padding in (*stated, same, around, [pair[::-1] for pair in same], _NO_PADDING)
            for mode in (formulas.PADDING_MODES if padding != _NO_PADDING else ("zeros",))
        }

    def cut(x: Array, y: Array) -> dict[Any, _Form]:
        full = formulas.transposed_size(x.shape[1:3], kernel.shape, settings)
        surplus = [whole - size for whole, size in zip(full, y.shape[1:3], strict=True)]
        return {
            _pairs([(start, extent - start) for start, extent in zip(starts, surplus, strict=True)]): (
                lambda few, starts=starts: formulas.transposed_convolution(x[few], kernel, bias, settings, starts, y.shape[1:3])
            )
            for starts in itertools.product(*(range(max(extent, 0) + 1) for extent in surplus))
        }

    for x, *outputs in divergence.shared_inputs():
        if x.ndim != 4:
            continue
        if kind == "transposed_conv":
            if outputs[0].ndim == outputs[1].ndim == 4 and x.shape[-1] == kernel.shape[-1]:
                # Keras's `valid` gives the whole map, and more where the kernel is smaller than the stride.
                is_whole = all(size >= step for size, step in zip(kernel.shape[:2], settings["stride"], strict=True))
                forms = functools.partial(cut, x)
                yield _distinguished(divergence, "padding", outputs, forms, variant="cut", is_whole=is_whole)
        elif outputs[0] is divergence.outputs[0] and x.shape[-1] == divergence.inputs[0].shape[-1]:
            modes = [layer.settings["padding_mode"] for layer in divergence.layers]
            keys = [[(_pairs(padding), mode)] for padding, mode in zip(stated, modes, strict=True)]
            yield _distinguished(divergence, "padding", divergence.outputs, functools.partial(padded, x), stated=keys)


def _pairs(padding: Iterable[Iterable[int]]) -> Any:
    """Return ((top, bottom), (left, right)), which may be a key."""
    return tuple(tuple(map(int, pair)) for pair in padding)


_POOLS = {
    "maximum": ("maximum", "ignored"),
    "maximum with zeros around": ("maximum", "zeros"),
    "average": ("average", "counted"),
    "average without padding": ("average", "not counted"),
}
"""(figure, how it takes the padding) by mode of `formulas.pooling`."""


def _pooling(divergence: Divergence) -> _Experiments:
    pools = [[layer for layer in side if "window" in layer.settings] for side in divergence.layers_since_agreement]

    def key(window: Any, padding: Any, mode: str) -> tuple[Any, ...]:
        figure, around = _POOLS[mode]
        return (figure, tuple(window), *((_pairs(padding), around) if padding != _NO_PADDING else ()))

    forms: dict[Any, tuple[Any, ...]] = {}
    for settings in (layer.settings for side in pools for layer in side):
        window, stride = settings["window"], settings["stride"]
        for padding in (settings["padding"], _NO_PADDING, [[size // 2, size // 2] for size in window]):
            for mode in _POOLS:
                forms.setdefault(key(window, padding, mode), (window, stride, padding, mode))
    stated = [[key(layer.settings["window"], layer.settings["padding"], _pool_mode(layer)) for layer in side] for side in pools]

    def pooled(x: Array, _: Array) -> dict[Any, _Form]:
        return {key: lambda few, form=form: formulas.pooling(x[few], *form) for key, form in forms.items()}

    for x, *outputs in divergence.shared_inputs():
        if x.ndim == 4:
            yield _distinguished(divergence, "pooling", outputs, functools.partial(pooled, x), stated=stated)


def _pool_mode(layer: Layer) -> str:
    """Return the mode of `formulas.pooling` that a pooling layer states."""
    if layer.kind == "max_pool":
        return "maximum"
    return "average" if layer.settings.get("count_padding") else "average without padding"


def _interpolation(divergence: Divergence) -> _Experiments:
    """Compare rules of resizing, with a tolerance for TensorFlow, which resizes in float32."""

    def resized(x: Array, y: Array) -> dict[str, _Form]:
        return {rule: lambda few, rule=rule: formulas.resize(x[few], y.shape[1:3], rule) for rule in formulas.INTERPOLATIONS}

    stated, least = (["nearest"], ["nearest"]), formulas.ROUNDED_TOLERANCE
    for x, *outputs in divergence.shared_inputs():
        if x.ndim == 4 and all(y.ndim == 4 and y.shape[-1] == x.shape[-1] and y.shape[1:3] != x.shape[1:3] for y in outputs):
            yield _distinguished(
                divergence, "interpolation", outputs, functools.partial(resized, x), stated=stated, least=least
            )


def _attention(divergence: Divergence) -> _Experiments:
    """Queries, keys and values must agree. Three layers give them, or one gives all of them side by side."""
    tokens = [array for array in divergence.nearest_agreeing if array.ndim == 3]
    triples: list[Sequence[Array]] = [np.split(array, 3, -1) for array in tokens if array.shape[-1] % 3 == 0]
    same_shape = [array for array in tokens if array.shape == tokens[0].shape][:3]
    triples += itertools.permutations(same_shape) if len(same_shape) == 3 else []

    def attention_forms(triple: Sequence[Array], y: Array) -> dict[tuple[float, int], _Form]:
        width = triple[0].shape[-1]
        heads = [number for number in range(1, width + 1) if width % number == 0 and y.shape == triple[0].shape]

        def form(index: Any, count: int, factor: float) -> Array:
            key_index = index[:1] if isinstance(index, tuple) else index  # a few queries, of all keys
            return formulas.attention(triple[0][index], triple[1][key_index], triple[2][key_index], heads=count, factor=factor)

        return {
            (float(f"{factor:.6g}"), count): functools.partial(form, count=count, factor=factor)
            for count in heads
            for factor in {1.0, width**-0.5, *((width // count) ** power for power in (-0.5, -1.0, 0.5))}
        }

    for _, outputs in divergence.differing_inputs():
        for triple in triples:
            yield _distinguished(
                divergence, "attention", outputs, functools.partial(attention_forms, triple), sample=np.s_[:1, :4]
            )


def _normalisation_place(divergence: Divergence) -> _Experiments:
    """A normalisation in front of a function, behind it, or elsewhere. What the next layers take tells where it stands."""
    left, right = divergence.sides
    layers = [layer for side in divergence.sides for layer in side.layers[divergence.mode].values()]
    activations = [formulas.stated_activation(layer.settings) for layer in layers if layer.kind == "activation"]
    stated = dict.fromkeys([_NO_ACTIVATION, "ReLU", *activations])
    functions = {words: formulas.ACTIVATIONS[words] for words in stated if words in formulas.ACTIVATIONS}
    functions["the mean over height and width"] = lambda x: x.mean((1, 2)) if x.ndim == 4 else x

    def forms(y: Array, x: Array, normal: Callable[[Array], Array], words: str, at: str) -> dict[str, _Form]:
        function = functions[words]
        elsewhere: dict[str, _Form] = {"elsewhere": lambda few: function(x[few])}
        if words == _NO_ACTIVATION:
            return {f"in front of {at}": lambda few: normal(x[few]), **elsewhere}
        in_front: dict[str, _Form] = {f"in front of {words}": lambda few: function(normal(x[few]))}
        return {**in_front, f"behind {words}": lambda few: normal(function(x[few])), **elsewhere}

    for one, other in divergence.pairs.items():
        ours, theirs = left.layers[divergence.mode].get(one), right.layers[divergence.mode].get(other)
        if ours is None or theirs is None or not ours.kind.endswith("_norm"):
            continue
        if divergence.close(left.values(divergence.mode, one)[0], right.values(divergence.mode, other)[0]):
            continue
        batch = ours.kind == "batch_norm" and divergence.mode == "training"
        parameters, settings = left.parameters(one), ours.settings
        how = {"epsilon": settings["epsilon"], "groups": settings.get("groups", 1), "batch": batch}
        normal = functools.partial(formulas.normalisation, ours.kind, parameters=parameters, **how)
        where = ", ".join(filter(None, (ours.where, theirs.where)))
        for at, outputs in divergence.differing_inputs():
            for x in (*divergence.nearest_agreeing, *outputs):
                if x.shape[-1:] != next(iter(parameters.values())).shape:
                    continue
                for words in functions:
                    yield _distinguished(
                        divergence,
                        "normalisation-place",
                        outputs,
                        functools.partial(forms, x=x, normal=normal, words=words, at=at),
                        layers=[one, other],
                        where=where,
                        sample=np.s_[:] if batch else np.s_[:1],
                    )
        return  # a difference behind the first may follow from it


def _place(divergence: Divergence) -> dict[str, Any]:
    """Return where another activation stands: the layers, whether they take the same, and the functions in front of them."""
    return {
        **divergence.named(),
        "layers": [layer.name for layer in divergence.layers or ()],
        "same_input": divergence.layers is not None and divergence.close(*divergence.inputs),
        "functions": [layer.name for side in divergence.unpaired for layer in side if layer.kind == "activation"],
    }


def _activation(divergence: Divergence) -> _Experiments:
    if divergence.layers is not None and divergence.layers[0].kind == "dropout":
        return
    settings = [[layer.settings for layer in layers] for layers in divergence.layers_of_kind("activation")]
    stated = [[formulas.stated_activation(layer_settings) for layer_settings in side] for side in settings]
    slopes = [layer_settings["slope"] for layer_settings in (*settings[0], *settings[1]) if "slope" in layer_settings]
    for x, *outputs in divergence.shared_inputs():
        fits = [formulas.activations(x, y, slopes) for y in outputs]
        if not all(fits):
            continue
        stated_fits = [next((name for name in names if name in fit), "") for names, fit in zip(stated, fits, strict=True)]
        common = [name for name in (*filter(None, stated_fits), *fits[0]) if name in fits[0] and name in fits[1]]
        if common and not (
            all(stated_fits) and stated_fits[0] != stated_fits[1]
        ):  # else the models say themselves that they differ
            if max_relative_difference(outputs[0], outputs[1]) > formulas.ROUNDED_TOLERANCE or math.isinf(
                fits[0][common[0]].rounded
            ):
                continue
            fit = max((side_fits[common[0]] for side_fits in fits), key=lambda candidate: candidate.exact)
            if fit.rounded >= fit.exact:  # no constant is rounded: what it takes differs already, or it is another function
                continue
            values = {"one": divergence.names[fit is fits[1][common[0]]], "activation": common[0]}
            yield Cause(ROUNDED_CONSTANTS, values, divergence.where, fit.residual, "activation")
        elif divergence.layers is not None or not (fits[0].keys() | fits[1].keys()) & {"softmax", "log-softmax"}:
            forms = [[name] if name else [*fit] for name, fit in zip(stated_fits, fits, strict=True)]
            residual = max(min(fit.residual for fit in side_fits.values()) for side_fits in fits)
            yield Cause("activation", {**_place(divergence), "forms": forms}, divergence.where, residual)


def _activation_among_functions(divergence: Divergence) -> _Experiments:
    """Another activation among functions that one model does not record: the other's functions, with it in their place."""
    for place, side in enumerate(divergence.sides):
        functions = divergence.unpaired[place]
        places = [index for index, layer in enumerate(functions) if layer.kind == "activation"]
        if len(places) != 1 or any(layer.kind == "activation" for layer in divergence.unpaired[1 - place]):
            continue
        activation, following = functions[places[0]], functions[places[0] + 1 :]
        x = side.values(divergence.mode, activation.name)[0]
        if not any(divergence.close(x, array) for array in divergence.nearest_agreeing):
            continue
        stated, target = formulas.stated_activation(activation.settings), divergence.inputs[1 - place]
        fits: dict[str, float] = {}
        for name, function in formulas.ACTIVATIONS.items():
            residual = max_relative_difference(functools.reduce(_apply_layer, following, function(x)), target)
            if residual <= divergence.tolerance:
                fits[name] = residual
        if fits and stated not in fits:
            forms = [[*fits], [*fits]]
            forms[place] = [stated]
            yield Cause("activation", {**_place(divergence), "forms": forms}, divergence.where, max(fits.values()))


def _apply_layer(x: Array, layer: Layer) -> Array:
    """Return the output of a layer without parameters for x. Empty, if its kind is not known here."""
    settings = layer.settings
    if layer.kind in ("max_pool", "average_pool") and "window" in settings and x.ndim == 4:
        return formulas.pooling(x, settings["window"], settings["stride"], settings["padding"], _pool_mode(layer))
    if layer.kind == "global_average_pool" and x.ndim == 4:
        return x.mean((1, 2), keepdims=len(layer.output) == 3)
    return x.reshape(len(x), -1) if layer.kind == "flatten" and x.size else np.empty(0)


def _activation_before_addition(divergence: Divergence) -> _Experiments:
    """An activation in front of an addition, with or without ReLU behind it."""
    if not any(divergence.layers_of_kind("add")):
        return
    after_sum: dict[bool, Callable[[Array], Array]] = {False: lambda x: x, True: formulas.ACTIVATIONS["ReLU"]}

    def forms(value: Array, earlier: Array, _: Array) -> dict[Any, _Form]:
        return {
            (name, relu): lambda few, inner=inner, outer=outer: outer(inner(value[few]) + earlier[few])
            for name, inner in formulas.ACTIVATIONS.items()
            for relu, outer in after_sum.items()
        }

    activations = [
        [formulas.stated_activation(layer.settings) for layer in side] for side in divergence.layers_of_kind("activation")
    ]
    stated = [[(name, relu) for name in (*side, _NO_ACTIVATION) for relu in after_sum] for side in activations]
    for outputs in (divergence.outputs, divergence.inputs):
        if divergence.close(*outputs):
            continue
        for value, earlier in itertools.product(divergence.nearest_agreeing, divergence.agreeing):
            if value is not earlier and value.shape == earlier.shape == outputs[0].shape == outputs[1].shape:
                both = functools.partial(forms, value, earlier)
                yield _distinguished(
                    divergence, "activation", outputs, both, variant="addition", stated=stated, sample=np.s_[:1, ..., :1]
                )


_HYPOTHESES = (
    _Hypothesis(_float32),
    _Hypothesis(_lower_precision, unless="float32"),
    _Hypothesis(_scaling),
    _Hypothesis(_input, unless=ROUNDED_CONSTANTS),
    _Hypothesis(_order),
    _Hypothesis(_softmax),
    _Hypothesis(_dropout),
    _Hypothesis(_bias),
    _Hypothesis(_normalised_axis),
    _Hypothesis(_epsilon),
    _Hypothesis(_batch_norm_mode),
    _Hypothesis(_addition),
    _Hypothesis(_padding),
    _Hypothesis(_pooling),
    _Hypothesis(_interpolation),
    _Hypothesis(_attention),
    _Hypothesis(_normalisation_place),
    _Hypothesis(_activation),
    # Functions in front are tried only if recorded values show no other activation.
    _Hypothesis(_activation_among_functions, unless="activation"),
    _Hypothesis(_activation_before_addition, unless="activation"),
)
