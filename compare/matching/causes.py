"""Finds why two models differ: a suspected cause holds if both agree once it is corrected in one side's recorded values."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from common.matching import recording
from common.matching.records import Array, Layer
from compare.core import wording
from compare.matching import formulas
from compare.matching.alignment import Alignment, describe_layer, normalised_name, signature
from compare.matching.formulas import close, max_relative_difference

BIASED_VARIANCE, ROUNDED_CONSTANTS, LOWER_PRECISION = "biased-variance", "rounded-constants", "lower-precision"
ROUNDING_CAUSES = {ROUNDED_CONSTANTS, LOWER_PRECISION}
"""Causes that are a framework's own rounding. They act wherever their layer runs, and explain no larger difference."""
SAME_VALUES_TOLERANCE = 1e-6
"""Largest relative difference of values behind rounded constants that still count as the same values."""
_MAX_RUNS = 8
"""Largest number of runs of adjacent channels, or of classes, that a sentence lists one by one."""
_MAX_SIXTHS, _MAX_REMAINDER = 2.0, 1e-3
"""Bounds of the test for a rounded sixth, in units of the relative change that this rounding makes.

All gradients may differ by the first bound for each hard sigmoid. One gradient must differ by a rounded sixth. With this
corrected, no more than the second bound may remain.
"""
_GRADIENT_FLOOR, _TOLERANCE_BEHIND = 1e-6, 1e-8
"""Relative floor and tolerance of gradients behind the last hard sigmoid.

A gradient that is smaller than the floor, relative to the largest one, counts as that large.
"""
KNOWN_CAUSES = {
    "layer-missing": "A layer with parameters is in one model only, or has another shape.",
    "pairing": "Layers of the same kind and shapes may be paired wrongly. `--map` names the right pairs.",
    "bias-missing": "A bias (or a scale or shift) is in one model only.",
    "flatten-order": "An image is flattened in the order height, width, channels in one model, channels first in the other.",
    "kernel-layout": "A kernel was copied with its axes in another order.",
    "initialisation": "As built, parameters are drawn from other distributions, or are other draws.",
    "input-scaling": "Pixels are scaled or shifted in one model.",
    "data-format": "Axes of the image are mixed up: reshaped instead of transposed, or normalised along the wrong one.",
    "order": "Layers run in another order, or channels are joined in another one.",
    "float32": "One model computes in float32 where float64 was asked for.",
    ROUNDED_CONSTANTS: (
        "TensorFlow keeps a constant (of GELU, a slope, a scaling) in float32, PyTorch a sixth in the gradient of a hard "
        "sigmoid. Accepted if nothing larger is behind it."
    ),
    LOWER_PRECISION: (
        "A framework computes a layer in float32 whatever it is given, as TensorFlow resizes images. Accepted if nothing "
        "larger is behind it."
    ),
    "addition-missing": "An earlier value is added (a residual connection) in one model only.",
    "padding": (
        "Padding lies on other sides, as TensorFlow's `same` with a stride, or has other values than zeros. A transposed "
        "convolution is cut on other sides."
    ),
    "activation": "Another activation, another variant of it (GELU), another slope, or none, also in front of an addition.",
    "pooling": "Another pooling, window or padding.",
    "interpolation": "An image is resized by another rule: nearest, bilinear, bicubic, with aligned corners.",
    "attention": "Scores of an attention are scaled by another factor, or it has another number of heads.",
    "normalisation-place": "A normalisation stands in another place, such as behind an activation or behind a block.",
    "epsilon": "A normalisation adds another epsilon.",
    "batch-norm-mode": "A normalisation uses the batch's statistics in one model and the running ones in the other.",
    "dropout-active": "Dropout is active in one model only, or in inference.",
    "dropout-rate": "Dropout has another rate, or drops whole channels in one model only.",
    "softmax-output": "One model returns probabilities, the other logits.",
    "batch-norm-momentum": "Running statistics move by another weight; Keras's momentum is 1 minus PyTorch's.",
    BIASED_VARIANCE: "Running variances are biased in one model. Keras's own layer cannot do otherwise.",
    "frozen": "A layer is trained in one model only.",
    "label-encoding": "A loss takes labels as other classes.",
    "loss": "Another loss: sum for mean, probabilities for logits, label smoothing, a regularizer.",
    "class-weights": "A loss weights the classes in one model only, by others, or divides by another number.",
    "adam-epsilon": "Adam adds another epsilon, or adds it before the bias is corrected, as Keras does.",
    "rmsprop": "RMSprop has another decay or epsilon, or adds epsilon below the root, as Keras does.",
    "weight-decay": "Weight decay is another, or part of the gradient (coupled) in one optimizer only.",
    "learning-rate": "Another learning rate, schedule, rule or momentum, or another setting of an optimizer.",
}
"""Every cause by name."""


class Cause(NamedTuple):
    """One reason for a difference."""

    name: str
    """A key of `KNOWN_CAUSES`."""
    sentence: str
    where: str
    """The user's files and lines. Empty: not known."""
    residual: float | None = None
    """Relative difference that remains once the cause is corrected. None: it was read from the models and not tried out.
    Infinite: no correction that was tried out leaves less."""

    @property
    def verified(self) -> str:
        """Result of the experiment, as a sentence."""
        if self.residual is None:
            return f"Not tried out: read from the {'values' if self.name == LOWER_PRECISION else 'models'}."
        if math.isinf(self.residual):
            return "Not verified: no correction was found."
        return f"Verified: with this corrected, the two differ by {self.residual:.1e} there."

    @property
    def full_text(self) -> str:
        """The cause with its experiment and its lines."""
        return f"{self.name}: {self.sentence} {self.verified}{self._reference}"

    @property
    def note(self) -> str:
        """The cause with its lines alone."""
        return f"{self.name}: {self.sentence}{self._reference}"

    @property
    def _reference(self) -> str:
        return f" See {self.where}." if self.where else ""


@dataclass(frozen=True)
class MeasuredModel:
    """One model, measured."""

    name: str
    """Name of its framework."""
    layers: Mapping[str, Mapping[str, Layer]]
    """Layers by mode and name."""
    arrays: Mapping[str, Array]
    optimizers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    """Reasons why the model fails in passes of `records.stress_inputs`, by the name of the pass."""

    def values(self, mode: str, name: str) -> tuple[Array, Array]:
        """(input, output) of a layer."""
        place = list(self.layers[mode]).index(name)
        return self.arrays[f"{mode}/{place}/in"], self.arrays[f"{mode}/{place}/out"]

    def parameters(self, name: str, stage: str = "start") -> dict[str, Array]:
        """Return the parameters of a layer by role. All calls of a layer share them."""
        prefix = f"{stage}/{name.partition('#')[0]}."
        return {key.removeprefix(prefix): value for key, value in self.arrays.items() if key.startswith(prefix)}


def layers_agree(left: MeasuredModel, right: MeasuredModel, one: str, other: str) -> tuple[bool, bool]:
    """Return whether inputs and whether outputs of two layers agree in inference, but for constants rounded to float32."""
    pairs = zip(left.values("inference", one), right.values("inference", other), strict=True)
    inputs_agree, outputs_agree = (
        all(max_relative_difference(mine[:stop], others[:stop]) <= SAME_VALUES_TOLERANCE for stop in (1, None))
        for mine, others in pairs
    )
    return inputs_agree, outputs_agree


@dataclass(frozen=True)
class Divergence:
    """The first place where two models differ in one pass."""

    mode: str
    sides: tuple[MeasuredModel, MeasuredModel]
    layers: tuple[Layer, Layer] | None
    """First pair of layers that differs. None: only the models' outputs differ."""
    inputs: tuple[Array, Array]
    outputs: tuple[Array, Array]
    nearest_agreeing: tuple[Array, ...]
    """The nearest few values that agree, the nearest first. The image is the last, where no more layers agree."""
    agreeing: tuple[Array, ...]
    """All values that agree, the nearest first. The last is the image."""
    unpaired: tuple[tuple[Layer, ...], tuple[Layer, ...]]
    """Layers of each model behind the last that agree, which have no counterpart."""
    last_agreeing: str
    """The last layers that agree."""
    pairs: Mapping[str, str]
    """Names of the paired layers with parameters."""
    confirmed: frozenset[str]
    """Left names of the pairs that the user, names or paths confirm, and not their order alone."""
    tolerance: float = formulas.CLOSE
    """Relative difference within which values count as equal."""

    @property
    def difference(self) -> float:
        return max_relative_difference(*self.outputs)

    @property
    def at_the_end(self) -> bool:
        """Whether these outputs are the models', so that nothing behind them can differ."""
        logits = (side.arrays[f"{self.mode}/logits"] for side in self.sides)
        return all(np.array_equal(output, model_logits) for output, model_logits in zip(self.outputs, logits, strict=True))

    def close(self, left: Array, right: Array) -> bool:
        """Whether two arrays agree within the tolerance."""
        return max_relative_difference(left, right) <= self.tolerance

    @property
    def layers_since_agreement(self) -> tuple[list[Layer], list[Layer]]:
        """Layers of each model since the last that agree."""
        ends = self.layers or (None, None)
        return [*filter(None, (ends[0], *self.unpaired[0]))], [*filter(None, (ends[1], *self.unpaired[1]))]

    @property
    def kinds(self) -> set[str]:
        return {layer.kind for side in self.layers_since_agreement for layer in side}

    @property
    def where(self) -> str:
        layers = [*(self.layers or ()), *self.unpaired[0], *self.unpaired[1]]
        if not layers:  # a function behind all layers
            layers = [layer for side in self.sides for layer in list(side.layers[self.mode].values())[-1:]]
        return ", ".join(dict.fromkeys(layer.where for layer in layers if layer.where))

    def names(self) -> tuple[str, str]:
        return self.sides[0].name, self.sides[1].name

    def shared_inputs(self) -> list[tuple[Array, Array, Array]]:
        """Return (x, left y, right y): outputs that both sides may have computed from the same x."""
        values: list[tuple[Array, Array, Array]] = []
        if self.layers is not None and self.close(*self.inputs):
            values.append((self.inputs[0], *self.outputs))
        for x in self.nearest_agreeing:
            values += [(x, *pair) for pair in (self.inputs, self.outputs) if not self.close(*pair)]
        return values

    def differing_inputs(self) -> Iterator[tuple[str, tuple[Array, Array]]]:
        """Yield (names, inputs) of the first layers with parameters whose inputs differ, three at most."""
        layers_by_side = [side.layers[self.mode] for side in self.sides]
        pairs = (
            pair
            for pair in self.pairs.items()
            if all(name in layers for name, layers in zip(pair, layers_by_side, strict=True))
        )
        inputs = (
            (f"{one}, {other}", (self.sides[0].values(self.mode, one)[0], self.sides[1].values(self.mode, other)[0]))
            for one, other in pairs
        )
        return itertools.islice((entry for entry in inputs if not self.close(*entry[1])), 3)


def find_divergence(
    mode: str,
    sides: tuple[MeasuredModel, MeasuredModel],
    alignment: Alignment,
    images: Array,
    tolerance: float = formulas.CLOSE,
) -> Divergence | None:
    """Return the first place where two models differ by more than the tolerance. None: their outputs agree within it."""
    left, right = sides
    ours, theirs = left.layers[mode], right.layers[mode]
    pairs = [(one, other) for one, other in alignment.pairs if one in ours and other in theirs]
    agreed: list[Array] = [images]
    branch_outputs: list[Array] = []
    """Outputs of branches that take nothing of the first layers that differ. Their agreement evens nothing out."""
    pending: tuple[str, str] | None = None
    last: tuple[str, str] | None = None
    for one, other in pairs:
        mine, other_values = left.values(mode, one), right.values(mode, other)
        if max_relative_difference(mine[1], other_values[1]) > tolerance and not _agree_after_cropping(
            mode, sides, (one, other), tolerance
        ):
            pending = pending or (one, other)
            if one in alignment.names:
                break
            continue
        if pending is not None and any(
            max_relative_difference(mine[0], array) <= tolerance for array in (*agreed, *branch_outputs)
        ):
            branch_outputs.append(mine[1])
            continue
        pending, last, branch_outputs = None, (one, other), []
        if max_relative_difference(mine[0], other_values[0]) <= tolerance and not any(
            np.array_equal(mine[0], array) for array in agreed[-3:]
        ):
            agreed.append(mine[0])  # the output of a function that one model does not record
        agreed.append(mine[1])
    logits = left.arrays[f"{mode}/logits"], right.arrays[f"{mode}/logits"]
    if pending is None and max_relative_difference(*logits) <= tolerance:
        return None
    if pending is not None:
        ends = (ours[pending[0]], theirs[pending[1]])
        values = left.values(mode, pending[0]), right.values(mode, pending[1])
        inputs, outputs = _strip_zero_padding(ends, (values[0][0], values[1][0])), (values[0][1], values[1][1])
    else:
        ends, inputs, outputs = None, logits, logits
    unpaired = tuple(
        _unpaired_layers(layers, last and last[place], pending and pending[place], {pair[place] for pair in pairs})
        for place, layers in enumerate((ours, theirs))
    )
    earlier, after = tuple(reversed(agreed)), "the image" if last is None else ", ".join(last)
    unpaired_by_side = unpaired[0], unpaired[1]
    return Divergence(
        *(mode, sides, ends, inputs, outputs, earlier[:6], earlier, unpaired_by_side, after),
        *(alignment.names, alignment.confirmed, tolerance),
    )


def _agree_after_cropping(
    mode: str, sides: tuple[MeasuredModel, MeasuredModel], pair: tuple[str, str], tolerance: float
) -> bool:
    """Return whether layers of different sizes agree once a layer without parameters has cropped one of them."""
    outputs = [side.values(mode, name)[1] for side, name in zip(sides, pair, strict=True)]
    if outputs[0].size == outputs[1].size:
        return False
    for side, name, other in zip(sides, pair, reversed(outputs), strict=True):
        names = list(side.layers[mode])
        following = itertools.takewhile(
            lambda layer_name, ran=side.layers[mode]: not ran[layer_name].parameters, names[names.index(name) + 1 :]
        )
        if any(max_relative_difference(side.values(mode, layer_name)[1], other) <= tolerance for layer_name in following):
            return True
    return False


def _strip_zero_padding(layers: tuple[Layer, Layer], inputs: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the inputs of two convolutions, one without the zeros that the other convolution adds itself."""
    stripped = [*inputs]
    for place, layer in enumerate(layers):
        one, other, padding = inputs[place], inputs[1 - place], layer.settings.get("padding")
        if not layer.kind.endswith("conv") or not padding or one.ndim != 4 or one.shape == other.shape:
            continue
        if formulas.pad(one, padding).shape == other.shape:
            bare = other[:, padding[0][0] :, padding[1][0] :][:, : one.shape[1], : one.shape[2]]
            if np.array_equal(formulas.pad(bare, padding), other):
                stripped[1 - place] = bare
    return stripped[0], stripped[1]


def _unpaired_layers(layers: Mapping[str, Layer], after: str | None, until: str | None, paired: set[str]) -> tuple[Layer, ...]:
    names = list(layers)
    start = 0 if after is None else names.index(after) + 1
    end = len(names) if until is None else names.index(until)
    return tuple(layers[name] for name in names[start:end] if name not in paired)


# Causes of a first difference in the outputs of layers.


def explain_divergence(divergence: Divergence) -> list[Cause]:
    """Return the causes of a difference between outputs, first those that were tried out."""
    causes = [
        cause if (cause.residual or 0.0) < divergence.difference / 2 else cause._replace(residual=math.inf)
        for test in _HYPOTHESES
        for cause in test(divergence)
    ]
    for name in ("softmax-output", "normalisation-place"):
        if conclusive := [cause for cause in causes if cause.name == name and (cause.residual or 0.0) < math.inf]:
            return conclusive  # no activation is missing beside it
    return sorted(causes or list(_pairing(divergence)), key=lambda cause: cause.residual is None)[:3]


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
    descriptions: list[str] = []
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
            descriptions.append(" were paired with ".join(", ".join(side_names) for side_names in names))
    if descriptions:
        sentence = f"By order alone {'; '.join(descriptions)}. If that is wrong, name the pairs with --map."
        yield Cause("pairing", sentence, divergence.where)


def _float32(divergence: Divergence) -> Iterator[Cause]:
    for place, side in enumerate(divergence.sides):
        layers = side.layers[divergence.mode].values()
        # A function may be the framework's own, as `tf.image.resize`, which takes float64 and gives float32.
        low = [layer for layer in layers if layer.dtype not in ("float64", "") and (layer.parameters or layer.kind != "other")]
        if low and max_relative_difference(*divergence.outputs) < 1e-4:
            sentence = f"{side.name}'s {low[0].name} computes in {low[0].dtype}, where float64 was asked for."
            yield Cause(
                "float32",
                sentence,
                low[0].where or "",
                max_relative_difference(*divergence.outputs) if max_relative_difference(*divergence.outputs) < 1e-5 else None,
            )
            return
        for one, other in (
            (divergence.inputs[place], divergence.inputs[1 - place]),
            (divergence.outputs[place], divergence.outputs[1 - place]),
        ):
            rounded = other.astype(np.float32).astype(np.float64)
            if one.shape == other.shape and not np.array_equal(one, other) and np.array_equal(one, rounded):
                sentence = f"{side.name}'s values are rounded to float32, where float64 was asked for."
                yield Cause("float32", sentence, divergence.where, max_relative_difference(one, rounded))
                return
    yield from _lower_precision(divergence)


def _lower_precision(divergence: Divergence) -> Iterator[Cause]:
    """A layer that gives values of float32 alone, though it takes others. It may have rounded on the way, not at the end.

    Where a model calls functions that are not recorded, the next layer takes such values, in some of its channels perhaps.
    """
    for place, side in enumerate(divergence.sides):
        for layer in divergence.layers_since_agreement[place]:
            inputs, outputs = side.values(divergence.mode, layer.name)
            if (
                _is_float32(outputs)
                and not _is_float32(inputs)
                and max_relative_difference(*divergence.inputs) <= SAME_VALUES_TOLERANCE
                and max_relative_difference(*divergence.outputs) <= SAME_VALUES_TOLERANCE
            ):
                sentence = (
                    f"{side.name}'s {layer.name} computes in float32, whatever it takes: of its values, none has more digits."
                )
                yield Cause(LOWER_PRECISION, sentence, layer.where or divergence.where)
                return
        for pair in (divergence.inputs, divergence.outputs):
            mine, other = (array.reshape(-1, array.shape[-1]) for array in (pair[place], pair[1 - place]))
            if mine.shape != other.shape or max_relative_difference(mine, other) > formulas.ROUNDED_TOLERANCE:
                continue
            differ = np.abs(mine - other).max(0, initial=0.0) > divergence.tolerance * np.abs(mine).max(initial=0.0)
            if differ.any() and _is_float32(mine[:, differ]) and not _is_float32(other[:, differ]):
                sentence = f"{side.name} computes these values in float32, where float64 was asked for: none has more digits."
                yield Cause(LOWER_PRECISION, sentence, divergence.where)
                return


def _is_float32(values: Array) -> bool:
    """Return whether float32 represents all values. Zeros alone prove nothing."""
    with np.errstate(over="ignore"):
        return bool(values.any()) and np.array_equal(values, values.astype(np.float32))


def _input(divergence: Divergence) -> Iterator[Cause]:
    if divergence.layers is None or divergence.close(*divergence.inputs) or any(_scaling(divergence)):
        return
    left, right = divergence.inputs
    if divergence.layers[0].parameters and left.ndim == 4 and right.ndim == 4 and left.size == right.size:
        for order in itertools.permutations((1, 2, 3)):
            form = left.transpose(0, *order)
            if form.shape == right.shape and divergence.close(form, right):
                axes = ", ".join(("height", "width", "channels")[axis - 1] for axis in order)
                sentence = (
                    f"{divergence.names()[1]}'s {divergence.layers[1].name} sees {divergence.names()[0]}'s {axes} as height, "
                    "width, channels."
                )
                yield Cause("data-format", sentence, divergence.where, max_relative_difference(form, right))
                return
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
            if divergence.close(form, right):
                sentence = f"{divergence.names()[1]}'s first layer sees {divergence.names()[0]}'s image {words}."
                yield Cause("data-format", sentence, divergence.where, max_relative_difference(form, right))
                return
    flat = [array.reshape(-1, array.shape[-1]) for array in (left, right)]
    if not np.isfinite(flat).all() or not np.ptp(flat[0], axis=0).all():
        return  # no line goes through one point
    scale, shift = np.empty(flat[0].shape[1]), np.empty(flat[0].shape[1])
    for channel in range(len(scale)):
        fitted = np.polynomial.Polynomial.fit(flat[0][:, channel], flat[1][:, channel], 1).convert().coef
        scale[channel], shift[channel] = (*fitted, 0.0, 0.0)[1::-1]
    corrected = flat[0] * scale + shift
    if max_relative_difference(corrected, flat[1]) < 1e-9:
        factor, plus = (_format_channels(values) for values in (scale, np.where(np.abs(shift) < 1e-9, 0, shift)))
        sentence = f"{divergence.names()[1]}'s first layer sees {divergence.names()[0]}'s pixels times {factor}, plus {plus}."
        yield Cause("input-scaling", sentence, divergence.where, max_relative_difference(corrected, flat[1]))


def _format_channels(values: Array) -> str:
    """Return one number, or a list of one for each channel where they differ."""
    words = [f"{value:.6g}" for value in values]
    return words[0] if np.allclose(values, values[0], 1e-7, 1e-9) else f"[{', '.join(words)}]"


def _scaling(divergence: Divergence) -> Iterator[Cause]:
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
                is_scaled = np.array_equal(mine[mine != 0], y[y != 0])
                if (
                    is_scaled
                    and close(stated, other)
                    and max_relative_difference(stated, other)
                    < max_relative_difference(y, stated)
                    <= formulas.ROUNDED_TOLERANCE
                ):
                    sentence = f"{side.name}'s {layer.name} scales and shifts by constants that are rounded to float32."
                    yield Cause(ROUNDED_CONSTANTS, sentence, divergence.where, max_relative_difference(stated, other))
                    return


def _order(divergence: Divergence) -> Iterator[Cause]:
    names = divergence.names()
    if divergence.layers is not None and divergence.layers[0].parameters and not divergence.close(*divergence.inputs):
        ours, theirs = divergence.layers
        for one, other in divergence.pairs.items():
            candidate = divergence.sides[1].layers[divergence.mode][other]
            if other == theirs.name or signature(candidate) != signature(ours):
                continue
            right_input, left_input = (
                divergence.sides[1].values(divergence.mode, other)[0],
                divergence.sides[0].values(divergence.mode, one)[0],
            )
            if divergence.close(divergence.inputs[0], right_input) and not divergence.close(left_input, divergence.inputs[0]):
                sentence = (
                    f"{names[0]} calls {ours.name} where {names[1]} calls {other}. If only the names are exchanged, add "
                    f"--map {ours.name}={other}."
                )
                yield Cause(
                    "order",
                    sentence,
                    f"{ours.where}, {candidate.where}",
                    max_relative_difference(divergence.inputs[0], right_input),
                )
                return
    if len(divergence.nearest_agreeing) < 2 or any(
        layer.flattened for side in divergence.layers_since_agreement for layer in side
    ):
        return
    for left, right in (divergence.inputs, divergence.outputs):
        if left.shape != right.shape or divergence.close(left, right):
            continue
        fingerprints = [
            np.random.default_rng(0).random(array.size // array.shape[-1]) @ array.reshape(-1, array.shape[-1])
            for array in (left, right)
        ]
        order = np.argsort(fingerprints[0])[np.argsort(np.argsort(fingerprints[1]))]
        if divergence.close(left[..., order], right):
            action = "concatenates" if "concatenate" in divergence.kinds else "joins the same channels"
            channels = _format_channel_order(order, fingerprints[0], names[0])
            sentence = f"{names[1]} {action} in another order than {names[0]}{channels}."
            yield Cause("order", sentence, divergence.where, max_relative_difference(left[..., order], right))
            return


def _format_channel_order(order: npt.NDArray[Any], fingerprints: Array, name: str) -> str:
    """Return how channels of the other model are ordered. Empty, where that is not certain or too long."""
    runs = np.split(order, np.flatnonzero(np.diff(order) != 1) + 1)
    if len(runs) > _MAX_RUNS or len(np.unique(fingerprints)) < len(fingerprints):  # channels that are equal, such as dead ones
        return ""
    words = [f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f": its channels are {name}'s {wording.joined(words)}, from 0"


def _activations(divergence: Divergence) -> Iterator[Cause]:
    """Yield causes by activations. Functions in front are tried only if recorded values show no other activation."""
    causes = list(_activation(divergence))
    yield from causes
    if not any(cause.name == "activation" for cause in causes):
        yield from _first_cause(test(divergence) for test in (_activation_among_functions, _activation_before_addition))


def _place(divergence: Divergence) -> str:
    """Return the place of another activation: `In front of conv2, conv2d_1 (relu6)`."""
    if divergence.layers is None:
        ends = "the output"
    else:
        ends = f"{divergence.layers[0].name}, {divergence.layers[1].name}"
        if divergence.close(*divergence.inputs):
            return f"At {ends}"
    activations = [layer.name for side in divergence.unpaired for layer in side if layer.kind == "activation"]
    return f"In front of {ends} ({', '.join(activations)})" if activations else f"In front of {ends}"


def _activation(divergence: Divergence) -> Iterator[Cause]:
    if divergence.layers is not None and divergence.layers[0].kind == "dropout":
        return
    settings = [
        [layer.settings for layer in layers if layer.kind == "activation"] for layers in divergence.layers_since_agreement
    ]
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
            rounded = divergence.names()[fit is fits[1][common[0]]]
            sentence = f"{rounded} computes its {common[0]} with constants that are rounded to float32."
            yield Cause(ROUNDED_CONSTANTS, sentence, divergence.where, fit.residual)
            return
        if divergence.layers is None and (fits[0].keys() | fits[1].keys()) & {"softmax", "log-softmax"}:
            continue
        words = [name or _format_candidates(fit) for name, fit in zip(stated_fits, fits, strict=True)]
        sentence = f"{_place(divergence)}: {divergence.names()[0]} applies {words[0]}, {divergence.names()[1]} {words[1]}."
        yield Cause(
            "activation", sentence, divergence.where, max(min(fit.residual for fit in side_fits.values()) for side_fits in fits)
        )
        return


def _activation_among_functions(divergence: Divergence) -> Iterator[Cause]:
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
            result = functools.reduce(_apply_layer, following, function(x))
            residual = max_relative_difference(result, target)
            if residual <= divergence.tolerance:
                fits[name] = residual
        if fits and stated not in fits:
            words = [_format_candidates(fits), _format_candidates(fits)]
            words[place] = stated
            sentence = f"{_place(divergence)}: {divergence.names()[0]} applies {words[0]}, {divergence.names()[1]} {words[1]}."
            yield Cause("activation", sentence, divergence.where, max(fits.values()))
            return


def _apply_layer(x: Array, layer: Layer) -> Array:
    """Return the output of a layer without parameters for x. Empty, if its kind is not known here."""
    settings = layer.settings
    if layer.kind in ("max_pool", "average_pool") and "window" in settings and x.ndim == 4:
        average = "average" if settings.get("count_padding") else "average without padding"
        how = "maximum" if layer.kind == "max_pool" else average
        return formulas.pooling(x, settings["window"], settings["stride"], settings["padding"], how)
    if layer.kind == "global_average_pool" and x.ndim == 4:
        return x.mean((1, 2), keepdims=len(layer.output) == 3)
    return x.reshape(len(x), -1) if layer.kind == "flatten" and x.size else np.empty(0)


def _format_candidates(fits: Iterable[str]) -> str:
    """Forms that fit, where no layer states which one it is."""
    first, *others = fits
    return f"{first} (these values do not tell it from {', '.join(others)})" if others else first


def _softmax(divergence: Divergence) -> Iterator[Cause]:
    if divergence.layers is not None and divergence.layers[0].kind != "activation":
        return
    left, right = divergence.outputs
    for place, (mine, other) in enumerate(((left, right), (right, left))):
        if mine.ndim != 2 or mine.shape != other.shape:
            continue
        for words, function in (("probabilities (softmax)", special.softmax), ("log-probabilities", special.log_softmax)):
            corrected = function(other, -1)
            if divergence.close(corrected, mine):
                names = divergence.names()
                sentence = f"{names[place]} returns {words}, {names[1 - place]} logits."
                yield Cause("softmax-output", sentence, divergence.where, max_relative_difference(corrected, mine))
                return


def _dropout(divergence: Divergence) -> Iterator[Cause]:
    if "dropout" not in divergence.kinds:
        return
    for x, left, right in divergence.shared_inputs():
        rates = formulas.dropout(x, left, divergence.tolerance), formulas.dropout(x, right, divergence.tolerance)
        if None in rates:
            continue
        names, (ours, theirs) = divergence.names(), (rates[0] or 0.0, rates[1] or 0.0)
        residual = max(
            max_relative_difference(np.where(y != 0, x / (1 - rate), 0), y) for y, rate in ((left, ours), (right, theirs))
        )
        if 0 in rates and ours != theirs:
            active = 0 if theirs == 0 else 1
            when = "also in inference" if divergence.mode == "inference" else "in training"
            sentence = f"{names[active]} drops {rates[active]:.4g} of the values {when}, {names[1 - active]} none."
            yield Cause(
                "dropout-active", sentence, divergence.where, max_relative_difference(x, right if active == 0 else left)
            )
        elif not math.isclose(ours, theirs, rel_tol=1e-6):
            sentence = f"{names[0]} drops {ours:.4g} of the values, {names[1]} {theirs:.4g}."
            yield Cause("dropout-rate", sentence, divergence.where, residual)
        elif x.ndim == 4 and x.shape == left.shape == right.shape:
            drops_channels = [bool(np.all((y == 0) == (y == 0).all((1, 2), keepdims=True) | (x == 0))) for y in (left, right)]
            if drops_channels[0] != drops_channels[1]:
                sentence = f"{names[drops_channels[1]]} drops whole channels, {names[drops_channels[0]]} single values."
                yield Cause("dropout-rate", sentence, divergence.where, residual)
        return


_Form = Callable[[Any], Array]
"""Function from an index of examples to the values of these examples."""


def _distinguish_forms(
    divergence: Divergence,
    cause: str,
    outputs: Sequence[Array],
    forms: Callable[[Array], Mapping[str, _Form]],
    template: str,
    *,
    stated: Sequence[Sequence[str]] = ((), ()),
    least: float = 0.0,
    sample: Any = np.s_[:1],
) -> Iterator[Cause]:
    """Yield a cause if each side's values are one of several candidate forms, and no form fits both sides.

    Args:
        divergence: the place where the models differ.
        cause: name of the cause.
        outputs: float[N, ...], the values of both sides.
        forms: function from values to candidate forms of their shape, by description.
        template: the sentence, with places for a name and a description of each side.
        stated: descriptions that each side's layers state, preferred to others that fit.
        least: tolerance of the forms, if it is larger than that of the divergence.
        sample: index of the examples that are tried first, since most forms do not fit.
    """
    tolerance = max(divergence.tolerance, least)

    def residual(form: _Form, values: Array, scale: float) -> float:
        try:
            difference = max_relative_difference(form(sample), values[sample], scale)
            return difference if difference > tolerance else max_relative_difference(form(np.s_[:]), values)
        except ValueError:  # a window is larger than the image
            return math.inf

    fits: list[dict[str, float]] = []
    for values in outputs:
        scale = float(np.abs(values).max(initial=0.0))
        residuals = {words: residual(form, values, scale) for words, form in forms(values).items()}
        fits.append({words: value for words, value in residuals.items() if value <= tolerance})
        if not fits[-1]:
            return
    if not fits[0].keys() & fits[1].keys():
        words = [
            next((name for name in options if name in fit), _format_candidates(fit))
            for options, fit in zip(stated, fits, strict=True)
        ]
        names = divergence.names()
        sentence = template.format(names[0], words[0], names[1], words[1])
        yield Cause(cause, sentence, divergence.where, min(fits[1].values()))


def _first_cause(candidates: Iterable[Iterator[Cause]]) -> Iterator[Cause]:
    return itertools.islice(itertools.chain.from_iterable(candidates), 1)


def _padding(divergence: Divergence) -> Iterator[Cause]:
    """Recompute both sides with the left model's weights and settings, so that only the padding differs."""
    if divergence.layers is None or divergence.layers[0].kind not in ("conv", "depthwise_conv", "transposed_conv"):
        return
    kind, settings = divergence.layers[0].kind, divergence.layers[0].settings
    parameters = divergence.sides[0].parameters(divergence.layers[0].name)
    kernel, bias = parameters["kernel"], parameters.get("bias")

    def padded(x: Array) -> dict[str, _Form]:
        sizes = zip(x.shape[1:3], settings["kernel"], settings["stride"], settings["dilation"], strict=True)
        same = [list(recording.same_padding(*geometry)) for geometry in sizes]
        around = [[size // 2, size // 2] for size in settings["kernel"]]
        stated = [layer.settings["padding"] for layer in divergence.layers or ()]
        return {
            _padding_words(padding, mode): lambda few, padding=padding, mode=mode: formulas.convolution(
                formulas.pad(x[few], padding, mode), kernel, bias, settings, _NO_PADDING, kind == "depthwise_conv"
            )
            for padding in (*stated, same, around, [pair[::-1] for pair in same], _NO_PADDING)
            for mode in (formulas.PADDING_MODES if padding != _NO_PADDING else ("zeros",))
        }

    def cut(x: Array, y: Array) -> dict[str, _Form]:
        full = formulas.transposed_size(x.shape[1:3], kernel.shape, settings)
        surplus = [whole - size for whole, size in zip(full, y.shape[1:3], strict=True)]
        sides = itertools.product(*(range(max(extent, 0) + 1) for extent in surplus))
        return {
            _format_padding([[start, extent - start] for start, extent in zip(starts, surplus, strict=True)]): (
                lambda few, starts=starts: formulas.transposed_convolution(x[few], kernel, bias, settings, starts, y.shape[1:3])
            )
            for starts in sides
        }

    if kind == "transposed_conv":
        pairs = [
            (x, outputs) for x, *outputs in divergence.shared_inputs() if x.ndim == outputs[0].ndim == outputs[1].ndim == 4
        ]
        template = "{} cuts off {} of the whole map, {} {}."
        yield from _first_cause(
            _distinguish_forms(divergence, "padding", outputs, functools.partial(cut, x), template)
            for x, outputs in pairs
            if x.shape[-1] == kernel.shape[-1]
        )
        return
    stated = [[_padding_words(layer.settings["padding"], layer.settings["padding_mode"])] for layer in divergence.layers]
    causes = _first_cause(
        _distinguish_forms(
            divergence, "padding", divergence.outputs, lambda y, x=x: padded(x), "{} pads {}, {} {}.", stated=stated
        )
        for x, *outputs in divergence.shared_inputs()
        if outputs[0] is divergence.outputs[0] and x.ndim == 4 and x.shape[-1] == divergence.inputs[0].shape[-1]
    )
    for cause in causes:
        zeros = all(mode not in cause.sentence for mode in formulas.PADDING_MODES if mode != "zeros")
        yield cause._replace(sentence=cause.sentence.replace(" with zeros", "")) if zeros else cause


_NO_PADDING = [[0, 0], [0, 0]]


def _padding_words(padding: Sequence[Sequence[int]], mode: str) -> str:
    return f"{_format_padding(padding)} with zeros" if mode == "zeros" else f"{_format_padding(padding)} by mode {mode}"


def _interpolation(divergence: Divergence) -> Iterator[Cause]:
    """Compare rules of resizing, with a tolerance for TensorFlow, which resizes in float32."""

    def resized(x: Array, y: Array) -> dict[str, _Form]:
        return {
            words: lambda few, words=words: formulas.resize(x[few], y.shape[1:3], words) for words in formulas.INTERPOLATIONS
        }

    yield from _first_cause(
        _distinguish_forms(
            divergence,
            "interpolation",
            outputs,
            functools.partial(resized, x),
            "{} resizes by {}, {} by {}.",
            stated=(["nearest"], ["nearest"]),
            least=formulas.ROUNDED_TOLERANCE,
        )
        for x, *outputs in divergence.shared_inputs()
        if x.ndim == 4 and all(y.ndim == 4 and y.shape[-1] == x.shape[-1] and y.shape[1:3] != x.shape[1:3] for y in outputs)
    )


def _attention(divergence: Divergence) -> Iterator[Cause]:
    """Queries, keys and values must agree. Three layers give them, or one gives all of them side by side."""
    tokens = [array for array in divergence.nearest_agreeing if array.ndim == 3]
    triples: list[Sequence[Array]] = [np.split(array, 3, -1) for array in tokens if array.shape[-1] % 3 == 0]
    same_shape = [array for array in tokens if array.shape == tokens[0].shape][:3]
    triples += itertools.permutations(same_shape) if len(same_shape) == 3 else []

    def attention_forms(triple: Sequence[Array], y: Array) -> dict[str, _Form]:
        width = triple[0].shape[-1]
        heads = [number for number in range(1, width + 1) if width % number == 0 and y.shape == triple[0].shape]

        def form(index: Any, count: int, factor: float) -> Array:
            key_index = index[:1] if isinstance(index, tuple) else index  # a few queries, of all keys
            return formulas.attention(triple[0][index], triple[1][key_index], triple[2][key_index], heads=count, factor=factor)

        return {
            f"{factor:.6g} in {wording.count(count, 'head')}": functools.partial(form, count=count, factor=factor)
            for count in heads
            for factor in {1.0, width**-0.5, *((width // count) ** power for power in (-0.5, -1.0, 0.5))}
        }

    template = "{} multiplies the scores of its attention by {}, {} by {}."
    yield from _first_cause(
        _distinguish_forms(
            divergence, "attention", outputs, functools.partial(attention_forms, triple), template, sample=np.s_[:1, :4]
        )
        for _, outputs in divergence.differing_inputs()
        for triple in triples
    )


def _normalisation_place(divergence: Divergence) -> Iterator[Cause]:
    """A normalisation in front of a function, behind it, or elsewhere. What the next layers take tells where it stands."""
    left, right = divergence.sides
    activation_settings = [
        layer.settings
        for side in divergence.sides
        for layer in side.layers[divergence.mode].values()
        if layer.kind == "activation"
    ]
    stated = dict.fromkeys([_NO_ACTIVATION, "ReLU", *map(formulas.stated_activation, activation_settings)])
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
        normal = functools.partial(
            formulas.normalisation,
            ours.kind,
            parameters=parameters,
            epsilon=settings["epsilon"],
            groups=settings.get("groups", 1),
            batch=batch,
        )
        causes = _first_cause(
            _distinguish_forms(
                *(divergence, "normalisation-place", outputs),
                functools.partial(forms, x=x, normal=normal, words=words, at=at),
                f"{{}} has the normalisation {one} {{}}, {{}} has {other} {{}}.",
                sample=np.s_[:] if batch else np.s_[:1],
            )
            for at, outputs in divergence.differing_inputs()
            for x in (*divergence.nearest_agreeing, *outputs)
            if x.shape[-1:] == next(iter(parameters.values())).shape
            for words in functions
        )
        for cause in causes:
            yield cause._replace(where=", ".join(filter(None, (ours.where, theirs.where))) or cause.where)
        return  # a difference behind the first may follow from it


_NO_ACTIVATION = "no activation"


def _activation_before_addition(divergence: Divergence) -> Iterator[Cause]:
    """An activation in front of an addition, with or without ReLU behind it."""
    additions = [[layer for layer in side if layer.kind == "add"] for side in divergence.layers_since_agreement]
    if not any(additions):
        return
    after_sum: dict[str, Callable[[Array], Array]] = {"": lambda x: x, " (behind the sum ReLU)": formulas.ACTIVATIONS["ReLU"]}

    def forms(value: Array, earlier: Array) -> dict[str, _Form]:
        return {
            f"{words}{suffix}": lambda few, inner=inner, outer=outer: outer(inner(value[few]) + earlier[few])
            for words, inner in formulas.ACTIVATIONS.items()
            for suffix, outer in after_sum.items()
        }

    activations = [
        [formulas.stated_activation(layer.settings) for layer in side if layer.kind == "activation"]
        for side in divergence.layers_since_agreement
    ]
    stated = [[f"{name}{suffix}" for name in (*side, _NO_ACTIVATION) for suffix in after_sum] for side in activations]
    yield from _first_cause(
        _distinguish_forms(
            divergence,
            "activation",
            outputs,
            lambda y, value=value, earlier=earlier: forms(value, earlier),
            "In front of an addition: {} applies {}, {} {}.",
            stated=stated,
            sample=np.s_[:1, ..., :1],
        )
        for outputs in (divergence.outputs, divergence.inputs)
        if not divergence.close(*outputs)
        for value, earlier in itertools.product(divergence.nearest_agreeing, divergence.agreeing)
        if value is not earlier and value.shape == earlier.shape == outputs[0].shape == outputs[1].shape
    )


def _addition(divergence: Divergence) -> Iterator[Cause]:
    """An addition that one model lacks, with or without ReLU behind it."""
    additions = [[layer for layer in side if layer.kind == "add"] for side in divergence.layers_since_agreement]
    if len(additions[0]) == len(additions[1]):
        return
    place = 0 if len(additions[0]) > len(additions[1]) else 1
    names = divergence.names()
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
                if divergence.close(bare, other) and divergence.close(form, mine):
                    sentence = f"{names[place]} adds an earlier value (a residual connection), {names[1 - place]} does not."
                    yield Cause("addition-missing", sentence, where or divergence.where, max_relative_difference(form, mine))
                    return


def _format_padding(padding: Sequence[Sequence[int]]) -> str:
    (top, bottom), (left, right) = padding
    return f"{top} above and {bottom} below, {left} left and {right} right"


def _pooling(divergence: Divergence) -> Iterator[Cause]:
    pools = [[layer for layer in side if "window" in layer.settings] for side in divergence.layers_since_agreement]
    forms: dict[str, tuple[Any, ...]] = {}
    for settings in (layer.settings for side in pools for layer in side):
        window, stride = settings["window"], settings["stride"]
        for padding in (settings["padding"], [[0, 0], [0, 0]], [[size // 2, size // 2] for size in window]):
            for how in ("maximum", "maximum with zeros around", "average", "average without padding"):
                forms.setdefault(_pool_words(window, padding, how), (window, stride, padding, how))
    stated = [
        [
            _pool_words(
                *(layer.settings["window"], layer.settings["padding"]),
                "maximum" if layer.kind == "max_pool"
                else "average" if layer.settings["count_padding"] else "average without padding",
            )
            for layer in side
        ]
        for side in pools
    ]  # fmt: skip
    yield from _first_cause(
        _distinguish_forms(
            divergence,
            "pooling",
            outputs,
            lambda y, x=x: {words: lambda few, form=form: formulas.pooling(x[few], *form) for words, form in forms.items()},
            "{} takes {}, {} {}.",
            stated=stated,
        )
        for x, *outputs in divergence.shared_inputs()
        if x.ndim == 4
    )


def _pool_words(window: Sequence[int], padding: Sequence[Sequence[int]], how: str) -> str:
    size = "x".join(map(str, window))
    if padding == [[0, 0], [0, 0]]:
        return f"the {how.partition(' ')[0]} of {size}"
    around = {"maximum": "", "maximum with zeros around": ", with zeros", "average": ", padding counted"}
    return f"the {how.partition(' ')[0]} of {size}, padded {_format_padding(padding)}{around.get(how, ', padding not counted')}"


def _normalisation(divergence: Divergence) -> Iterator[Cause]:
    if divergence.layers is None or not divergence.layers[0].kind.endswith("_norm") or not divergence.close(*divergence.inputs):
        return
    x, (left, right), names = divergence.inputs[0], divergence.layers, divergence.names()
    parameters = divergence.sides[0].parameters(left.name)

    def normalised(epsilon: float, batch: bool) -> Array:
        return formulas.normalisation(left.kind, x, parameters, epsilon, left.settings.get("groups", 1), batch=batch)

    if left.settings.get("axis", -1) != right.settings.get("axis", -1):
        sentence = f"{names[1]}'s {right.name} normalises along axis {right.settings['axis']}, {names[0]}'s along the channels."
        yield Cause("data-format", sentence, divergence.where)
    for ours in (False, True):
        for theirs in (False, True):
            mine = normalised(left.settings["epsilon"], ours)
            other = normalised(right.settings["epsilon"], theirs)
            if not divergence.close(mine, divergence.outputs[0]) or not divergence.close(other, divergence.outputs[1]):
                continue
            if left.settings["epsilon"] != right.settings["epsilon"]:
                sentence = (
                    f"{names[0]}'s {left.name} adds epsilon {left.settings['epsilon']:g}, {names[1]}'s {right.name} "
                    f"{right.settings['epsilon']:g}."
                )
                yield Cause(
                    "epsilon",
                    sentence,
                    divergence.where,
                    max_relative_difference(normalised(right.settings["epsilon"], theirs), divergence.outputs[1]),
                )
            if ours != theirs:
                words = {True: "the batch's statistics", False: "the running ones"}
                sentence = (
                    f"In {divergence.mode} {names[0]}'s {left.name} uses {words[ours]}, {names[1]}'s {right.name} "
                    f"{words[theirs]}."
                )
                residual = max_relative_difference(normalised(right.settings["epsilon"], theirs), divergence.outputs[1])
                yield Cause("batch-norm-mode", sentence, divergence.where, residual)
            return


def _bias(divergence: Divergence) -> Iterator[Cause]:
    if divergence.layers is None:
        return
    for place, (side, layer) in enumerate(zip(divergence.sides, divergence.layers, strict=True)):
        for role, array in side.parameters(layer.name).items():
            if role in ("bias", "beta") and role not in divergence.sides[1 - place].parameters(
                divergence.layers[1 - place].name
            ):
                corrected = divergence.outputs[1 - place] + array
                if divergence.close(corrected, divergence.outputs[place]):
                    other = divergence.layers[1 - place].name
                    sentence = f"{divergence.names()[1 - place]}'s {other} has no {role}. Without it, the layers agree."
                    yield Cause(
                        "bias-missing",
                        sentence,
                        divergence.where,
                        max_relative_difference(corrected, divergence.outputs[place]),
                    )


_HYPOTHESES: tuple[Callable[[Divergence], Iterator[Cause]], ...] = (
    *(
        _float32,
        _input,
        _scaling,
        _order,
        _softmax,
        _dropout,
        _bias,
        _normalisation,
        _addition,
        _padding,
        _pooling,
        _interpolation,
        _attention,
        _normalisation_place,
        _activations,
    ),
)


# Causes in the models themselves.


def explain_layers(sides: tuple[str, str], alignment: Alignment, layers: Sequence[Mapping[str, Layer]]) -> list[Cause]:
    """Return causes why parameters do not fit each other."""
    causes: list[Cause] = []
    for left, right in alignment.incompatible:
        where = ", ".join(layer.where for layer in (left, right) if layer is not None and layer.where)
        axis = (right.settings if right is not None else {}).get("axis", -1)
        if axis != -1 and right is not None:
            sentence = f"{sides[1]}'s {right.name} normalises along axis {axis}, not along the channels."
            causes.append(Cause("data-format", sentence, where))
        else:
            sentence = f"{sides[0]} has {describe_layer(left)}, where {sides[1]} has {describe_layer(right)}."
            causes.append(Cause("layer-missing", sentence, where))
    for name, other in alignment.names.items():
        ours, theirs = layers[0][name], layers[1][other]
        for side, here, there in ((0, ours, theirs), (1, theirs, ours)):
            for role in here.parameters.keys() - there.parameters.keys():
                sentence = f"{sides[side]}'s {here.name} has a {role}, {sides[1 - side]}'s {there.name} has none."
                causes.append(Cause("bias-missing", sentence, ", ".join(filter(None, (there.where, here.where)))))
    return causes


def explain_weights(left: MeasuredModel, right: MeasuredModel, alignment: Alignment, *, as_built: bool) -> list[Cause]:
    """Return causes why the models' own parameters differ. `as_built`: nothing was copied since the models were built."""
    causes: list[Cause] = []
    for name, other in alignment.names.items():
        ours, theirs = left.layers["inference"][name], right.layers["inference"][other]
        where = ", ".join(filter(None, (ours.where, theirs.where)))
        for role, mine in left.parameters(name).items():
            copied = right.parameters(other).get(role)
            if copied is None or close(mine, copied):
                continue
            for words, cause, form in _wrong_layouts(left, ours, mine, role):
                if form.shape == copied.shape and close(form, copied):
                    sentence = f"{right.name}'s {other}.{role} holds {left.name}'s values {words}."
                    causes.append(Cause(cause, sentence, where, max_relative_difference(form, copied)))
                    break
    starts = [{key.removeprefix("start/"): value for key, value in side.arrays.items()} for side in (left, right)]
    causes = causes[:3] or explain_initialisation((left.name, right.name), starts, alignment)
    if not causes and as_built:
        sentence = (
            "As built, both draw parameters of the same size (root mean square). Only the draws differ. Leave --as-built out: "
            "then weights are copied."
        )
        causes = [Cause("initialisation", sentence, "")]
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
    descriptions: list[str] = []
    for one, other in alignment.names.items():
        for role in ("kernel", "bias"):
            arrays = [start.get(f"{name}.{role}") for start, name in zip(starts, (one, other), strict=True)]
            if arrays[0] is None or arrays[1] is None:
                continue
            deviations = [float(np.sqrt(np.mean(np.square(array)))) for array in arrays if array is not None]
            log_ratio = math.inf if min(deviations) == 0 else abs(math.log(deviations[0] / deviations[1]))
            if max(deviations) > 0 and log_ratio > 5 / math.sqrt(arrays[0].size):
                descriptions.append(f"{one}.{role} ({deviations[0]:.2g} and {deviations[1]:.2g})")
    if not descriptions:
        return []
    more = f" and {len(descriptions) - 4} more" if len(descriptions) > 4 else ""
    sentence = (
        f"As built, {names[0]} and {names[1]} draw parameters of another size (root mean square): "
        f"{', '.join(descriptions[:4])}{more}. Trainings that start from these differ."
    )
    return [Cause("initialisation", sentence, "")]


# Causes of a difference in training.


def layers_with_equal_inputs(left: MeasuredModel, right: MeasuredModel, alignment: Alignment) -> dict[str, str]:
    """Return pairs of layers with parameters whose inputs agree in training mode, except for constants rounded to float32."""
    return {
        name: other
        for name, other in alignment.names.items()
        if name in left.layers["training"] and other in right.layers["training"]  # else it runs in inference alone
        if max_relative_difference(left.values("training", name)[0], right.values("training", other)[0])
        <= SAME_VALUES_TOLERANCE
    }


def normalised_by_batch_std(side: MeasuredModel, name: str, left: Array, right: Array) -> tuple[Array, Array]:
    """Return two running means of a layer relative to a scale, so that rounding is small. Other statistics stay as they are.

    The scale of a channel is the largest mean of the layer, or the standard deviation of the batch in this channel, if that is
    larger. Behind another BatchNorm a mean may be zero but for rounding.

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


def explain_statistics(
    left: MeasuredModel, right: MeasuredModel, names: Mapping[str, str], equal_inputs: Container[str]
) -> list[Cause]:
    """Return causes why running statistics differ after one training pass. Empty, if they do not explain every layer.

    Args:
        left, right: the models.
        names: pairs of layers.
        equal_inputs: pairs of `layers_with_equal_inputs`. No cause here explains a difference of the others.
    """
    causes: dict[str, list[Cause]] = {}
    for name, other in names.items():
        layer = left.layers["training"].get(name)
        if layer is None or other not in right.layers["training"]:
            continue
        if layer.kind != "batch_norm" or "mean" not in layer.parameters:
            continue
        # One channel alone cannot tell the weight from the factor. Then the two count as alike as they may be.
        ours, theirs = min(
            itertools.product(_update_laws(left, name), _update_laws(right, other)),
            key=lambda laws: (not _equal_momentum(*laws), laws[0].factor != laws[1].factor, laws[0].error + laws[1].error),
        )
        explains_all = name in equal_inputs and max(ours.error, theirs.error) <= 1e-9
        is_same_law = _equal_momentum(ours, theirs) and ours.factor == theirs.factor
        if (not explains_all or is_same_law) and _statistics_differ(left, right, name, other):
            return []
        for cause in _compare_laws((left, right), (name, other), (ours, theirs)):
            causes.setdefault(cause.name, []).append(cause)
    return [group[0]._replace(residual=max(cause.residual or 0.0 for cause in group)) for group in causes.values()]


class _UpdateLaw(NamedTuple):
    """Law by which a BatchNorm updates its running statistics."""

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
        # Behind another BatchNorm a mean may be zero but for rounding. Then it tells no weight.
        has_mean = np.abs(mean_change).max() > SAME_VALUES_TOLERANCE * std
        role, change = ("mean", mean_change) if has_mean else ("variance", variance_change)
        momentum = _ratio(after[role] - before[role], change)
        mean_error = max_relative_difference(before["mean"] + momentum * mean_change, after["mean"], std)
        variance_error = max_relative_difference(before["variance"] + momentum * variance_change, after["variance"])
        laws.append(_UpdateLaw(max(mean_error, variance_error), momentum, factor))
    return [law for law in laws if law.error <= max(1e-9, min(laws).error)]


def _equal_momentum(ours: _UpdateLaw, theirs: _UpdateLaw) -> bool:
    return abs(ours.momentum - theirs.momentum) <= 1e-9


def _statistics_differ(left: MeasuredModel, right: MeasuredModel, name: str, other: str) -> bool:
    """Return whether the running statistics of two layers differ."""
    ours, theirs = left.parameters(name, "statistics"), right.parameters(other, "statistics")
    pairs = {role: normalised_by_batch_std(left, f"{name}.{role}", ours[role], theirs[role]) for role in ("mean", "variance")}
    return any(max_relative_difference(*pair, float(role == "mean")) > formulas.CLOSE for role, pair in pairs.items())


def _compare_laws(
    sides: tuple[MeasuredModel, MeasuredModel], names: tuple[str, str], laws: tuple[_UpdateLaw, _UpdateLaw]
) -> Iterator[Cause]:
    """Yield a cause if two layers give the new batch another weight, and one if they take another variance."""
    (left, right), (name, other), (ours, theirs) = sides, names, laws
    residual = max(ours.error, theirs.error)
    layers = left.layers["training"][name], right.layers["training"][other]
    where = ", ".join(filter(None, (layer.where for layer in layers)))
    if not _equal_momentum(ours, theirs):
        is_other_convention = abs(ours.momentum + theirs.momentum - 1) < 1e-9
        convention = ", as if it were the weight of the old ones" if is_other_convention else ""
        sentence = (
            f"{left.name}'s {name} gives the new batch the weight {ours.momentum:.6g} in its running statistics, "
            f"{right.name}'s {other} {theirs.momentum:.6g}{convention}."
        )
        yield Cause("batch-norm-momentum", sentence, where, residual)
    if ours.factor != theirs.factor:
        biased = left if ours.factor == 1.0 else right
        sentence = (
            f"{biased.name}'s running variance of {name} is the biased one; the other's is "
            f"{max(ours.factor, theirs.factor):.6g} times as large. No option of Keras's layer changes that. "
            "--accept biased-variance lets it pass."
        )
        yield Cause(BIASED_VARIANCE, sentence, where, residual)


def explain_loss(left: MeasuredModel, right: MeasuredModel, names: Sequence[tuple[str, str]], labels: Array) -> list[Cause]:
    """Return causes why losses differ where outputs agree. `names`: see `explain_update`."""
    ours, theirs = left.arrays["loss"].item(), right.arrays["loss"].item()
    outputs = left.arrays["training/logits"]
    known = formulas.losses(outputs, labels)
    decay = _regularizer(left, right, names)
    if decay is not None:
        who, amount, residual = decay
        sentence = f"{who} adds a regularizer to the loss: {amount:.6g} times the square of each weight of some layers."
        return [Cause("weight-decay", sentence, "", residual)]
    mine, other = (
        [words for words, value in known.items() if math.isclose(value, loss, rel_tol=1e-9)] for loss in (ours, theirs)
    )
    if not mine or not other or not set(mine).isdisjoint(other):  # the same loss, of outputs that are not quite the same
        return list(_class_weights(left, right, names, labels))
    name = "label-encoding" if "labels" in mine[0] + other[0] and "smoothing" not in mine[0] + other[0] else "loss"
    residual = abs(known[other[0]] - theirs) / abs(theirs)
    return [Cause(name, f"{left.name} computes the {mine[0]}, {right.name} the {other[0]}.", "", residual)]


def _class_weights(
    left: MeasuredModel, right: MeasuredModel, names: Sequence[tuple[str, str]], labels: Array
) -> Iterator[Cause]:
    """Yield a cause if class weights explain the loss and the gradient of the last layer."""
    outputs, classes = left.arrays["training/logits"], np.unique(labels)
    for pair in reversed(names) if len(classes) < len(labels) else ():  # else each image may have its own weight
        layers = [name.rpartition(".")[0] for name in pair]
        values = [side.values("training", name) for side, name in zip((left, right), layers, strict=True)]
        if not pair[0].endswith(".kernel") or values[0][0].ndim != 2 or not np.array_equal(values[0][1], outputs):
            continue
        solutions: list[tuple[Array, float, Array]] = []
        for side, name, (x, logits) in zip((left, right), pair, values, strict=True):
            parts = formulas.gradients_by_class(x, logits, labels)
            gradient, loss = _gradient(side, name).reshape(-1), side.arrays["loss"].reshape(-1)
            targets = np.concatenate([gradient, loss])
            weights = np.linalg.lstsq(parts, targets, rcond=None)[0]
            solutions.append((weights, max_relative_difference(parts @ weights, targets), parts))
        (ours, _, parts), (theirs, _, _) = solutions
        if max(solutions[0][1], solutions[1][1]) > 1e-9 or max_relative_difference(ours, theirs) <= 1e-9:
            return
        residual = max_relative_difference(parts[-1:] @ theirs, right.arrays["loss"])
        words = [_format_class_weights(classes, class_weights) for class_weights in (ours, theirs)]
        sentence = f"{left.name} weights {words[0]}, {right.name} {words[1]}."
        if close(ours / ours[0], theirs / theirs[0]):
            totals = [float(class_weights[np.searchsorted(classes, labels)].sum()) for class_weights in (ours, theirs)]
            divisors = [
                "the sum of the weights" if math.isclose(value, 1) else "another number, such as that of the images"
                for value in totals
            ]
            sentence = f"Both weight {words[0]}. {left.name} divides by {divisors[0]}, {right.name} by {divisors[1]}."
        yield Cause("class-weights", sentence, "", residual)
        return


def _format_class_weights(classes: Array, weights: Array) -> str:
    """Return the ratio of class weights: `the classes 0, 1, 2 as 1 : 2 : 0.5`."""
    if close(weights, np.full_like(weights, weights[0])):
        return "all classes alike"
    more = ", ..." if len(classes) > _MAX_RUNS else ""
    numbers, ratio = classes[:_MAX_RUNS], weights[:_MAX_RUNS] / weights[0]
    return f"the classes {', '.join(map(str, numbers))}{more} as {' : '.join(f'{value:.6g}' for value in ratio)}"


def _regularizer(
    left: MeasuredModel, right: MeasuredModel, names: Sequence[tuple[str, str]]
) -> tuple[str, float, float] | None:
    """Return (framework, factor, residual) if gradients differ by a multiple of the weights."""
    difference = (right.arrays["loss"] - left.arrays["loss"]).item()
    side, sign = (right, 1) if difference > 0 else (left, -1)
    total, factor = 0.0, 0.0
    for mine, theirs in names:
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
    return side.name, factor, abs(total - abs(difference)) / abs(difference)


def explain_gradients(
    left: MeasuredModel, right: MeasuredModel, names: Sequence[tuple[str, str]], difference: float
) -> list[Cause]:
    """Return causes why gradients differ, by `difference` at most, where losses agree. `names`: see `explain_update`."""
    for one, other in names:
        gradients = _gradient(left, one), _gradient(right, other)
        for place, side in enumerate((left, right)):
            if not gradients[place].any() and gradients[1 - place].any():
                name = (one, other)[place]
                layer = side.layers["training"][name.rpartition(".")[0]]
                return [Cause("frozen", f"{side.name} does not train {name}: its gradient is zero.", layer.where or "")]
    return _rounded_sixth((left, right), names, difference)


def _rounded_sixth(
    sides: tuple[MeasuredModel, MeasuredModel], names: Sequence[tuple[str, str]], difference: float
) -> list[Cause]:
    """A hard sigmoid divides by six. PyTorch multiplies its gradient by a sixth of float32, in float64 too.

    In front of the last hard sigmoid the gradients differ by just that factor. Behind it they agree.
    """
    off = abs(formulas.SIXTH_RATIO - 1.0)
    for place, side in enumerate(sides):
        layers = side.layers["training"]
        gates = [index for index, layer in enumerate(layers.values()) if _is_hard_sigmoid(layer)]
        if not gates or difference > _MAX_SIXTHS * len(gates) * off:
            continue
        order = {name: index for index, name in enumerate(layers)}
        pairs = {pair[place]: [_gradient(model, name) for model, name in zip(sides, pair, strict=True)] for pair in names}
        least = _GRADIENT_FLOOR * max(float(np.abs(gradient).max(initial=0.0)) for pair in pairs.values() for gradient in pair)
        for name, gradients in reversed(pairs.items()):
            layer = name.rpartition(".")[0]
            if order[layer] > gates[-1]:
                if max_relative_difference(gradients[0], gradients[1], least) > _TOLERANCE_BEHIND:
                    break
                continue
            residual = max_relative_difference(gradients[place], gradients[1 - place] * formulas.SIXTH_RATIO)
            if residual <= _MAX_REMAINDER * off and np.any(gradients[place]):
                sentence = (
                    f"Behind {layer}, {side.name} multiplies the gradient of a hard sigmoid by a sixth that is rounded to "
                    "float32, where float64 was asked for."
                )
                return [Cause(ROUNDED_CONSTANTS, sentence, layers[layer].where or "", residual)]
    return []


def _is_hard_sigmoid(layer: Layer) -> bool:
    return "function" in layer.settings and formulas.stated_activation(layer.settings) == "hard sigmoid"


def explain_update(
    rule: str,
    left: MeasuredModel,
    right: MeasuredModel,
    names: Sequence[tuple[str, str]],
    judged: Sequence[npt.NDArray[np.bool_]],
) -> list[Cause]:
    """Return causes why an update differs where gradients agree.

    Args:
        rule: a rule of `OpenRequest.rules`.
        left, right: the models.
        names: pairs of parameters that have gradients.
        judged: bool[n] for each pair: the components that are not rounding alone.
    """
    settings = left.optimizers[rule], right.optimizers[rule]
    sides = left, right
    names_by_side = [[pair[place] for pair in names] for place in (0, 1)]
    mask = np.concatenate(judged)
    weights, gradients, firsts = (
        [
            np.concatenate([side.arrays[prefix + name].reshape(-1) for name in names_by_side[place]])[mask]
            for place, side in enumerate(sides)
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
    return explain_settings((left.name, right.name), settings, residual)


def explain_settings(
    names: tuple[str, str], settings: Sequence[Mapping[str, Any]], residual: float | None = None
) -> list[Cause]:
    """Return causes in the settings of two optimizers that make updates differ, at the first one or later.

    Args:
        names: names of the frameworks.
        settings: settings of their optimizers.
        residual: relative difference that remains if both have the second one's. None: it was not tried out.
    """
    (ours, theirs), (one, other) = settings, names
    causes: list[Cause] = []
    differences = optimizer_settings((one, other), settings)
    keys = ("learning_rate", "momentum", "nesterov")
    if ours["rule"] == theirs["rule"] and "schedule" in ours["more"] | theirs["more"]:
        rates = f"{ours['learning_rate']:.9g} and {theirs['learning_rate']:.9g}"
        text = f"The optimizers start at the learning rates {rates}. {differences}"
        causes.append(Cause("learning-rate", text, "", residual))
    elif ours["rule"] != theirs["rule"] or any(ours[key] != theirs[key] for key in keys):
        text = "rule {rule}, learning rate {learning_rate:.9g}, momentum {momentum:.9g}"
        causes.append(
            Cause("learning-rate", f"{one} takes {text.format(**ours)}; {other} {text.format(**theirs)}.", "", residual)
        )
    if ours["rule"] == theirs["rule"] == "adam" and any(
        ours[key] != theirs[key] for key in ("epsilon", "epsilon_before_correction")
    ):
        words = {True: "before", False: "after"}
        texts = [
            f"{rule_settings['epsilon']:g} {words[rule_settings['epsilon_before_correction']]} the bias is corrected"
            for rule_settings in settings
        ]
        causes.append(Cause("adam-epsilon", f"{one}'s Adam adds epsilon {texts[0]}, {other}'s {texts[1]}.", "", residual))
    keys = ("decay", "epsilon", "epsilon_below_root")
    if (
        ours["rule"] == theirs["rule"] == "rmsprop"
        and residual is not None
        and residual < 1e-6
        and any(ours[key] != theirs[key] for key in keys)
    ):
        words = {True: "below the root", False: "behind the root"}
        texts = [
            f"{rule_settings['epsilon']:g} {words[rule_settings['epsilon_below_root']]}, with decay {rule_settings['decay']:g}"
            for rule_settings in settings
        ]
        causes.append(Cause("rmsprop", f"{one}'s RMSprop adds epsilon {texts[0]}; {other}'s {texts[1]}.", "", residual))
    if any(ours[key] != theirs[key] for key in ("weight_decay", "coupled")) and ours["weight_decay"] + theirs["weight_decay"]:
        words = {True: "as part of the gradient (coupled)", False: "beside it (decoupled)"}
        texts = [f"{rule_settings['weight_decay']:g} {words[rule_settings['coupled']]}" for rule_settings in settings]
        causes.insert(0, Cause("weight-decay", f"{one} decays weights by {texts[0]}, {other} by {texts[1]}.", "", residual))
    if not causes and differences:
        causes.append(Cause("learning-rate", differences, ""))
    return causes


def optimizer_settings(names: tuple[str, str], settings: Sequence[Mapping[str, Any]]) -> str:
    """Describe the settings that only one optimizer has, or that differ. Empty if there are none."""
    extras = [rule_settings["more"] for rule_settings in settings]
    keys = [key for key in {**extras[0], **extras[1]} if extras[0].get(key) != extras[1].get(key)]
    differences = [f"{key}: {names[0]} {extras[0].get(key, 'none')}, {names[1]} {extras[1].get(key, 'none')}" for key in keys]
    return f"The optimizers have other settings: {'; '.join(differences)}." if differences else ""


def _start(side: MeasuredModel, name: str) -> Array:
    return side.arrays[f"start/{name}"]


def _gradient(side: MeasuredModel, name: str) -> Array:
    return side.arrays[f"gradients/{name}"]


def _ratio(numerator: Array, denominator: Array) -> float:
    """Return the factor between two arrays, by least squares."""
    total = float(np.square(denominator).sum())
    return float((numerator * denominator).sum()) / total if total else 0.0
