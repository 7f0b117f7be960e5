"""Causes in two models' layers, weights, losses, gradients, statistics and optimizers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from common.matching.records import Array, Layer
from compare.tools.matching import formulas
from compare.tools.matching.alignment import Alignment, describe_layer
from compare.tools.matching.causes import BIASED_VARIANCE, ROUNDED_CONSTANTS, Cause
from compare.tools.matching.divergence import SAME_VALUES_TOLERANCE, MeasuredModel, MeasuredPair
from compare.tools.matching.formulas import close, max_relative_difference

_MAX_SIXTHS, _MAX_REMAINDER = 2.0, 1e-3
"""Bounds of the test for a rounded sixth, in units of the relative change that this rounding makes.

All gradients may differ by the first bound for each hard sigmoid. One gradient must differ by a rounded sixth. With this
corrected, no more than the second bound may remain.
"""
_GRADIENT_FLOOR, _TOLERANCE_BEHIND = 1e-6, 1e-8
"""Relative floor and tolerance of gradients behind the last hard sigmoid.

A gradient that is smaller than the floor, relative to the largest one, counts as that large.
"""

# Causes in the models themselves.


def explain_layers(sides: tuple[str, str], alignment: Alignment, layers: Sequence[Mapping[str, Layer]]) -> list[Cause]:
    """Return causes why parameters do not fit each other."""
    causes: list[Cause] = []
    for left, right in alignment.incompatible:
        where = ", ".join(layer.where for layer in (left, right) if layer is not None and layer.where)
        axis = (right.settings if right is not None else {}).get("axis", -1)
        if axis != -1 and right is not None:
            causes.append(Cause("data-format", {"one": sides[1], "layer": right.name, "axis": axis}, where, None, "shape"))
        else:
            layers_of_sides = [describe_layer(left), describe_layer(right)]
            causes.append(Cause("layer-missing", {"one": sides[0], "other": sides[1], "layers": layers_of_sides}, where))
    for name, other in alignment.names.items():
        ours, theirs = layers[0][name], layers[1][other]
        for side, here, there in ((0, ours, theirs), (1, theirs, ours)):
            for role in here.parameters.keys() - there.parameters.keys():
                names = [here.name, there.name]
                values = {"one": sides[side], "other": sides[1 - side], "place": side, "role": role, "layers": names}
                causes.append(Cause("bias-missing", values, _where(there, here), None, "parameter"))
    return causes


def explain_weights(pair: MeasuredPair, *, as_built: bool) -> list[Cause]:
    """Return causes why the models' own parameters differ. `as_built`: nothing was copied since the models were built."""
    causes: list[Cause] = []
    for name, other in pair.alignment.names.items():
        ours, theirs = pair.left.layers["inference"][name], pair.right.layers["inference"][other]
        for role, mine in pair.left.parameters(name).items():
            copied = pair.right.parameters(other).get(role)
            if copied is None or close(mine, copied):
                continue
            for words, cause, form in _wrong_layouts(pair.left, ours, mine, role):
                if form.shape == copied.shape and close(form, copied):
                    values = {**pair.frameworks, "parameter": f"{other}.{role}", "form": words}
                    causes.append(Cause(cause, values, _where(ours, theirs), max_relative_difference(form, copied)))
                    break
    starts = [{key.removeprefix("start/"): value for key, value in side.arrays.items()} for side in pair.sides]
    causes = causes[:3] or explain_initialisation((pair.left.name, pair.right.name), starts, pair.alignment)
    if not causes and as_built:
        causes = [Cause("initialisation", variant="draws")]
    return causes


def _wrong_layouts(side: MeasuredModel, ours: Layer, array: Array, role: str) -> Generator[tuple[str, str, Array]]:
    """Yield (description, cause, array) of wrong layouts of a copied parameter."""
    if role == "kernel" and array.ndim == 4:
        yield "with height and width exchanged", "kernel-layout", array.transpose(1, 0, 2, 3)
        yield "upside down", "kernel-layout", array[::-1, ::-1]
        yield "with inputs and outputs exchanged", "kernel-layout", array.transpose(0, 1, 3, 2)
    if role == "kernel" and array.ndim == 2:
        names = list(side.layers["inference"])
        shapes = [side.layers["inference"][name].output for name in names[: names.index(ours.name)]]
        shapes = [[*side.values("inference", names[0])[0].shape[1:]], *shapes]
        images = [shape for shape in shapes if len(shape) == 3 and math.prod(shape) == len(array)]
        if images:
            height, width, channels = images[-1]
            chw = array.reshape(height, width, channels, -1).transpose(2, 0, 1, 3).reshape(array.shape)
            hwc = array.reshape(channels, height, width, -1).transpose(1, 2, 0, 3).reshape(array.shape)
            words = "in the other order of the flattened image (channels, height, width or height, width, channels)"
            yield words, "flatten-order", chw
            yield words, "flatten-order", hwc
        yield "transposed", "kernel-layout", array.T


def explain_initialisation(names: tuple[str, str], starts: Sequence[Mapping[str, Array]], alignment: Alignment) -> list[Cause]:
    """Return a cause for parameters that are drawn from other distributions as built. Sampling error does not count."""
    other_sizes: list[Any] = []
    for one, other in alignment.names.items():
        for role in ("kernel", "bias"):
            arrays = [start.get(f"{name}.{role}") for start, name in zip(starts, (one, other), strict=True)]
            if arrays[0] is None or arrays[1] is None:
                continue
            deviations = [float(np.sqrt(np.mean(np.square(array)))) for array in arrays if array is not None]
            log_ratio = math.inf if min(deviations) == 0 else abs(math.log(deviations[0] / deviations[1]))
            if max(deviations) > 0 and log_ratio > 5 / math.sqrt(arrays[0].size):
                other_sizes.append({"parameter": f"{one}.{role}", "root_mean_squares": [*deviations]})
    values = {"one": names[0], "other": names[1], "parameters": other_sizes}
    return [Cause("initialisation", values)] if other_sizes else []


# Causes of a difference in training.


def layers_with_equal_inputs(pair: MeasuredPair) -> dict[str, str]:
    """Return pairs of layers with parameters whose inputs agree in training mode, except for constants rounded to float32."""
    inputs = {
        names: (pair.left.values("training", names[0])[0], pair.right.values("training", names[1])[0])
        for names in pair.both_running("training")
    }
    return dict(names for names, arrays in inputs.items() if max_relative_difference(*arrays) <= SAME_VALUES_TOLERANCE)


def normalised_by_batch_std(side: MeasuredModel, name: str, left: Array, right: Array) -> tuple[Array, Array]:
    """Return two running means of a layer relative to a scale, so that rounding is small. Other statistics stay as they are.

    The scale of a channel is the largest mean of the layer, or the standard deviation of the batch in this channel, if that is
    larger. Behind another BatchNorm a mean may be zero except for rounding.

    Args:
        side: the model that has the layer.
        name: name of the statistic.
        left, right: float[channels].
    """
    layer = name.rpartition(".")[0]
    if not name.endswith(".mean") or layer not in side.layers["training"]:
        return left, right
    x, _ = side.values("training", layer)
    largest = max(np.abs(left).max(initial=0.0), np.abs(right).max(initial=0.0), 1e-30)
    scale = np.maximum(x.std(tuple(range(x.ndim - 1))), largest)
    return left / scale, right / scale


def explain_statistics(pair: MeasuredPair, equal_inputs: Container[str]) -> list[Cause]:
    """Return causes why running statistics differ after one training pass. Empty, if they do not explain every layer.

    Args:
        pair: the models, and the pairs of layers to explain.
        equal_inputs: pairs of `layers_with_equal_inputs`. No cause here explains a difference of the others.
    """
    causes: dict[str, list[Cause]] = {}
    for name, other in pair.both_running("training"):
        layer = pair.left.layers["training"][name]
        if layer.kind != "batch_norm" or "mean" not in layer.parameters:
            continue
        ours, theirs = _laws_of_both(pair, name, other)
        explains_all = name in equal_inputs and max(ours.error, theirs.error) <= 1e-9
        is_same_law = _equal_momentum(ours, theirs) and ours.factor == theirs.factor
        if (not explains_all or is_same_law) and _statistics_differ(pair, name, other):
            return []
        for cause in _compare_laws(pair, (name, other), (ours, theirs)):
            causes.setdefault(cause.name, []).append(cause)
    return [_joined(group) for group in causes.values()]


def explain_later_statistics(pair: MeasuredPair, equal_inputs: Container[str]) -> list[Cause]:
    """Return causes in the layers whose inputs differ. Each side's law is tried out on what its own layer takes."""
    causes: list[Cause] = []
    for name, other in pair.both_running("training"):
        layer = pair.left.layers["training"][name]
        if layer.kind != "batch_norm" or "mean" not in layer.parameters or name in equal_inputs:
            continue
        laws = _laws_of_both(pair, name, other)
        if max(law.error for law in laws) <= 1e-9:
            causes += _compare_laws(pair, (name, other), laws)
    return causes


def _laws_of_both(pair: MeasuredPair, name: str, other: str) -> tuple[_UpdateLaw, _UpdateLaw]:
    """Return the law of each side's layer.

    One channel alone cannot tell the weight from the factor. Then the two count as alike as they may be.
    """
    return min(
        itertools.product(_update_laws(pair.left, name), _update_laws(pair.right, other)),
        key=lambda laws: (not _equal_momentum(*laws), laws[0].factor != laws[1].factor, laws[0].error + laws[1].error),
    )


def _joined(causes: Sequence[Cause]) -> Cause:
    """Return the cause of several layers as one, at the layer where it makes most."""
    largest = max(causes, key=lambda cause: cause.size or 0.0)
    also = [cause.at for cause in causes if cause is not largest]
    return largest._replace(values={**largest.values, "also": also}, residual=max(cause.residual or 0.0 for cause in causes))


class _UpdateLaw(NamedTuple):
    """Law of a BatchNorm that updates its running statistics."""

    error: float
    """Relative error of the statistics that it predicts."""
    momentum: float
    """Weight of the new batch."""
    factor: float
    """Factor of the variance of the batch. 1: the biased variance."""


def _update_laws(side: MeasuredModel, name: str) -> list[_UpdateLaw]:
    """Return the laws that fit the running statistics of a layer, of two: with the biased and the unbiased variance."""
    x, _ = side.values("training", name)
    count = x.size // x.shape[-1]
    before, after = side.parameters(name), side.parameters(name, "statistics")
    mean, variance = x.mean(tuple(range(x.ndim - 1))), x.var(tuple(range(x.ndim - 1)))
    mean_change, std = mean - before["mean"], math.sqrt(variance.max())
    laws: list[_UpdateLaw] = []
    for factor in (1.0, count / (count - 1)):
        variance_change = variance * factor - before["variance"]
        # Behind another BatchNorm a mean may be zero except for rounding. Then it tells no weight.
        has_mean = np.abs(mean_change).max() > SAME_VALUES_TOLERANCE * std
        role, change = ("mean", mean_change) if has_mean else ("variance", variance_change)
        momentum = _ratio(after[role] - before[role], change)
        mean_error = max_relative_difference(before["mean"] + momentum * mean_change, after["mean"], std)
        variance_error = max_relative_difference(before["variance"] + momentum * variance_change, after["variance"])
        laws.append(_UpdateLaw(max(mean_error, variance_error), momentum, factor))
    return [law for law in laws if law.error <= max(1e-9, min(laws).error)]


def _moved_statistics(side: MeasuredModel, name: str, law: _UpdateLaw) -> dict[str, Array]:
    """Return the running statistics of a layer after one update by a law."""
    x, _ = side.values("training", name)
    before, axes = side.parameters(name), tuple(range(x.ndim - 1))
    batch = {"mean": x.mean(axes), "variance": x.var(axes) * law.factor}
    return {role: before[role] + law.momentum * (batch[role] - before[role]) for role in batch}


def _effect(side: MeasuredModel, name: str, laws: tuple[_UpdateLaw, _UpdateLaw]) -> float:
    """Return how much the running statistics of a layer differ if it updates them by one law or by the other."""
    one, other = (_moved_statistics(side, name, law) for law in laws)
    pairs = {role: normalised_by_batch_std(side, f"{name}.{role}", one[role], other[role]) for role in one}
    return max(max_relative_difference(*arrays, float(role == "mean")) for role, arrays in pairs.items())


def _equal_momentum(ours: _UpdateLaw, theirs: _UpdateLaw) -> bool:
    return abs(ours.momentum - theirs.momentum) <= 1e-9


def _statistics_differ(pair: MeasuredPair, name: str, other: str) -> bool:
    """Return whether the running statistics of two layers differ."""
    ours, theirs = pair.left.parameters(name, "statistics"), pair.right.parameters(other, "statistics")
    pairs = {
        role: normalised_by_batch_std(pair.left, f"{name}.{role}", ours[role], theirs[role]) for role in ("mean", "variance")
    }
    return any(max_relative_difference(*arrays, float(role == "mean")) > formulas.CLOSE for role, arrays in pairs.items())


def _compare_laws(pair: MeasuredPair, names: tuple[str, str], laws: tuple[_UpdateLaw, _UpdateLaw]) -> Iterator[Cause]:
    """Yield a cause if two layers give the new batch another weight, and one if they take another variance."""
    (left, right), (name, other), (ours, theirs) = pair.sides, names, laws
    residual = max(ours.error, theirs.error)
    where = _where(left.layers["training"][name], right.layers["training"][other])
    values = {**pair.frameworks, "layers": [name, other]}
    if not _equal_momentum(ours, theirs):
        variant = "complement" if abs(ours.momentum + theirs.momentum - 1) < 1e-9 else ""
        stated = left.layers["training"][name].settings.get("momentum")
        values |= {"weights": [ours.momentum, theirs.momentum], "stated": stated}
        size = _effect(left, name, (ours, ours._replace(momentum=theirs.momentum)))
        yield Cause("batch-norm-momentum", values, where, residual, variant, size, name)
    if ours.factor != theirs.factor:
        biased = left if ours.factor == 1.0 else right
        values = {"one": biased.name, "layer": name, "times": max(ours.factor, theirs.factor)}
        size = _effect(left, name, (ours, ours._replace(factor=theirs.factor)))
        yield Cause(BIASED_VARIANCE, values, where, residual, "", size, name)


def explain_loss(pair: MeasuredPair, labels: Array) -> list[Cause]:
    """Return causes why losses differ where outputs agree."""
    ours, theirs = (side.arrays["loss"].item() for side in pair.sides)
    known = formulas.losses(pair.left.arrays["training/logits"], labels)
    decay = _regularizer(pair)
    if decay is not None:
        place, amount, residual = decay
        values = {"one": pair.sides[place].name, "place": place, "factor": amount}
        return [Cause("weight-decay", values, "", residual, "regularizer")]
    mine, other = (
        [words for words, value in known.items() if math.isclose(value, loss, rel_tol=1e-9)] for loss in (ours, theirs)
    )
    if not mine or not other or not set(mine).isdisjoint(other):  # the same loss, of outputs that are not quite the same
        return list(_class_weights(pair, labels))
    name = "label-encoding" if "labels" in mine[0] + other[0] and "smoothing" not in mine[0] + other[0] else "loss"
    residual = abs(known[other[0]] - theirs) / abs(theirs)
    return [Cause(name, {**pair.frameworks, "losses": [mine[0], other[0]]}, "", residual)]


def _class_weights(pair: MeasuredPair, labels: Array) -> Iterator[Cause]:
    """Yield a cause if class weights explain the loss and the gradient of the last layer."""
    outputs, classes = pair.left.arrays["training/logits"], np.unique(labels)
    for names in reversed(pair.names()) if len(classes) < len(labels) else ():  # else each image may have its own weight
        layers = [name.rpartition(".")[0] for name in names]
        values = [side.values("training", name) for side, name in zip(pair.sides, layers, strict=True)]
        if not names[0].endswith(".kernel") or values[0][0].ndim != 2 or not np.array_equal(values[0][1], outputs):
            continue
        solutions: list[tuple[Array, float, Array]] = []
        for side, name, (x, logits) in zip(pair.sides, names, values, strict=True):
            parts = formulas.gradients_by_class(x, logits, labels)
            gradient, loss = _gradient(side, name).reshape(-1), side.arrays["loss"].reshape(-1)
            targets = np.concatenate([gradient, loss])
            weights = np.linalg.lstsq(parts, targets, rcond=None)[0]
            solutions.append((weights, max_relative_difference(parts @ weights, targets), parts))
        (ours, _, parts), (theirs, _, _) = solutions
        if max(solutions[0][1], solutions[1][1]) > 1e-9 or max_relative_difference(ours, theirs) <= 1e-9:
            return
        residual = max_relative_difference(parts[-1:] @ theirs, pair.right.arrays["loss"])
        facts = {
            **pair.frameworks,
            "classes": classes.tolist(),
            "weights": [_relative_weights(class_weights) for class_weights in (ours, theirs)],
            "sums": [float(class_weights[np.searchsorted(classes, labels)].sum()) for class_weights in (ours, theirs)],
        }
        variant = "divisor" if close(ours / ours[0], theirs / theirs[0]) else ""
        yield Cause("class-weights", facts, "", residual, variant)
        return


def _relative_weights(weights: Array) -> list[float]:
    """Return class weights relative to the first. All are 1 if they are equal."""
    equal = close(weights, np.full_like(weights, weights[0]))
    return (np.ones_like(weights) if equal else weights / weights[0]).tolist()


def _regularizer(pair: MeasuredPair) -> tuple[int, float, float] | None:
    """Return (place of the model, factor, residual) if gradients differ by a multiple of the weights."""
    left, right = pair.sides
    difference = (right.arrays["loss"] - left.arrays["loss"]).item()
    place, sign = (1, 1) if difference > 0 else (0, -1)
    total, factor = 0.0, 0.0
    for mine, theirs in pair.names():
        ours, others = _gradient(left, mine), _gradient(right, theirs)
        if close(ours, others):
            continue
        gap, weights = sign * (others - ours), _start(left, mine)
        factor = _ratio(gap, 2 * weights)
        if max_relative_difference(gap, 2 * factor * weights) > 1e-7:
            return None
        total += factor * float(np.square(weights).sum())
    if factor == 0 or not math.isclose(total, abs(difference), rel_tol=1e-6):
        return None
    return place, factor, abs(total - abs(difference)) / abs(difference)


def explain_gradients(pair: MeasuredPair, difference: float) -> list[Cause]:
    """Return causes why gradients differ, by `difference` at most, where losses agree."""
    for names in pair.names():
        gradients = [_gradient(side, name) for side, name in zip(pair.sides, names, strict=True)]
        for place, (side, name) in enumerate(zip(pair.sides, names, strict=True)):
            if not gradients[place].any() and gradients[1 - place].any():
                layer = side.layers["training"][name.rpartition(".")[0]]
                return [Cause("frozen", {"one": side.name, "place": place, "parameter": name}, layer.where or "")]
    return _rounded_sixth(pair, difference)


def _rounded_sixth(pair: MeasuredPair, difference: float) -> list[Cause]:
    """A hard sigmoid divides by six. PyTorch multiplies its gradient by a sixth of float32, in float64 too.

    In front of the last hard sigmoid the gradients differ by just that factor. Behind it they agree.
    """
    off = abs(formulas.SIXTH_RATIO - 1.0)
    for place, side in enumerate(pair.sides):
        layers = side.layers["training"]
        gates = [index for index, layer in enumerate(layers.values()) if _is_hard_sigmoid(layer)]
        if not gates or difference > _MAX_SIXTHS * len(gates) * off:
            continue
        order = {name: index for index, name in enumerate(layers)}
        gradients_by_name = {
            names[place]: [_gradient(model, name) for model, name in zip(pair.sides, names, strict=True)]
            for names in pair.names()
        }
        sizes = (np.abs(gradient).max(initial=0.0) for gradients in gradients_by_name.values() for gradient in gradients)
        least = _GRADIENT_FLOOR * float(max(sizes))
        for name, gradients in reversed(gradients_by_name.items()):
            layer = name.rpartition(".")[0]
            if order[layer] > gates[-1]:
                if max_relative_difference(gradients[0], gradients[1], least) > _TOLERANCE_BEHIND:
                    break
                continue
            residual = max_relative_difference(gradients[place], gradients[1 - place] * formulas.SIXTH_RATIO)
            if residual <= _MAX_REMAINDER * off and np.any(gradients[place]):
                values = {"one": side.name, "layer": layer}
                return [Cause(ROUNDED_CONSTANTS, values, layers[layer].where or "", residual, "gradient")]
    return []


def _is_hard_sigmoid(layer: Layer) -> bool:
    return "function" in layer.settings and formulas.stated_activation(layer.settings) == "hard sigmoid"


def explain_update(rule: str, pair: MeasuredPair, judged: Sequence[npt.NDArray[np.bool_]]) -> list[Cause]:
    """Return causes why an update differs where gradients agree.

    Args:
        rule: a rule of `OpenRequest.rules`.
        pair: the models.
        judged: bool[n] for each parameter with a gradient: the components that are not rounding alone.
    """
    settings = [side.optimizers[rule] for side in pair.sides]
    names_by_side = [[names[place] for names in pair.names()] for place in (0, 1)]
    mask = np.concatenate(judged)
    weights, gradients, firsts = (
        [
            np.concatenate([side.arrays[prefix + name].reshape(-1) for name in names_by_side[place]])[mask]
            for place, side in enumerate(pair.sides)
        ]
        for prefix in ("start/", "gradients/", f"{rule}/first/")
    )
    changes = [first - start for first, start in zip(firsts, weights, strict=True)]
    predicted = [
        formulas.first_update(rule_settings, weights[place], gradients[place]) for place, rule_settings in enumerate(settings)
    ]
    known = all(
        change is not None and max_relative_difference(change, changes[place]) < 1e-6 for place, change in enumerate(predicted)
    )
    corrected = formulas.first_update(settings[1], weights[0], gradients[0]) if known else None
    residual = None if corrected is None else max_relative_difference(corrected, changes[1])
    return explain_settings(pair.frameworks, settings, residual)


def explain_settings(
    frameworks: Mapping[str, Any], settings: Sequence[Mapping[str, Any]], residual: float | None = None
) -> list[Cause]:
    """Return causes in the settings of two optimizers that make updates differ, at the first one or later.

    Args:
        frameworks: see `MeasuredPair.frameworks`.
        settings: settings of their optimizers.
        residual: relative difference that remains if both have the second one's. None: it was not tried out.
    """
    ours, theirs = settings
    optimizers = [{key: value for key, value in side.items() if key != "more"} for side in settings]
    shared = {**frameworks, "optimizers": optimizers}
    differences = optimizer_settings(settings)
    causes: list[Cause] = []

    def differ(*keys: str) -> bool:
        return any(ours[key] != theirs[key] for key in keys)

    if not differ("rule") and "schedule" in ours["more"] | theirs["more"]:
        causes.append(Cause("learning-rate", {**shared, "settings": differences}, "", residual, "schedule"))
    elif differ("rule", "learning_rate", "momentum", "nesterov"):
        causes.append(Cause("learning-rate", shared, "", residual))
    if ours["rule"] == theirs["rule"] == "adam" and differ("epsilon", "epsilon_before_correction"):
        causes.append(Cause("adam-epsilon", shared, "", residual))
    is_explained = residual is not None and residual < 1e-6
    if ours["rule"] == theirs["rule"] == "rmsprop" and is_explained and differ("decay", "epsilon", "epsilon_below_root"):
        causes.append(Cause("rmsprop", shared, "", residual))
    if differ("weight_decay", "coupled") and ours["weight_decay"] + theirs["weight_decay"]:
        causes.insert(0, Cause("weight-decay", shared, "", residual))
    if not causes and differences:
        causes.append(Cause("learning-rate", {**shared, "settings": differences}, variant="settings"))
    return causes


def optimizer_settings(settings: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return (setting, value, other value) of the settings that only one optimizer has, or that differ. None: it has none."""
    ours, theirs = (side["more"] for side in settings)
    return [[key, ours.get(key), theirs.get(key)] for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]


def _where(*layers: Layer) -> str:
    return ", ".join(filter(None, (layer.where for layer in layers)))


def _start(side: MeasuredModel, name: str) -> Array:
    return side.arrays[f"start/{name}"]


def _gradient(side: MeasuredModel, name: str) -> Array:
    return side.arrays[f"gradients/{name}"]


def _ratio(numerator: Array, denominator: Array) -> float:
    """Return the factor between two arrays, by least squares."""
    total = float(np.square(denominator).sum())
    return float((numerator * denominator).sum()) / total if total else 0.0
