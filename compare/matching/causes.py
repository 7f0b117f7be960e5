"""Why two models part. A suspected correction is applied to one side's recorded numbers; the cause holds if they agree then."""

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
from compare.matching.alignment import Alignment, in_words, plain, signature
from compare.matching.formulas import apart, close

BIASED, ROUNDED, LOWER = "biased-variance", "rounded-constants", "lower-precision"
ROUNDINGS = {ROUNDED, LOWER}
"""Causes that are a framework's own rounding. They act wherever their layer runs, and explain no larger difference."""
ALIKE = 1e-6
"""Relative difference of values behind rounded constants that still are the same values."""
_MOST_RUNS = 8
"""Channels side by side in both models make a run. No more runs are told one by one."""
_SIXTHS, _LEFT = 2.0, 1e-3
"""All gradients may differ by the first, in units of what a rounded sixth changes, for each hard sigmoid.

One gradient must differ by a rounded sixth. With this corrected, no more than the second may be left.
"""
_SMALL, _BEHIND = 1e-6, 1e-8
"""Behind the last hard sigmoid, gradients may differ by the second.

A gradient that is smaller than the first, against the largest, counts as that large.
"""
KNOWN = {
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
    ROUNDED: (
        "TensorFlow keeps a constant (of GELU, a slope, a scaling) in float32, PyTorch a sixth in the gradient of a hard "
        "sigmoid. Accepted if nothing larger is behind it."
    ),
    LOWER: (
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
    BIASED: "Running variances are biased in one model. Keras's own layer cannot do otherwise.",
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
    """Of `KNOWN`."""
    sentence: str
    where: str
    """The user's files and lines. Empty: not known."""
    residual: float | None = None
    """What is left of the difference once the cause is corrected. None: it was read from the models and not tried out.
    Infinite: no correction that was tried out leaves less."""

    @property
    def verified(self) -> str:
        """What the experiment found."""
        if self.residual is None:
            return f"Not tried out: read from the {'values' if self.name == LOWER else 'models'}."
        if math.isinf(self.residual):
            return "Not verified: no correction was found."
        return f"Verified: with this corrected, the two differ by {self.residual:.1e} there."

    @property
    def in_words(self) -> str:
        """The cause with its experiment and its lines."""
        return f"{self.name}: {self.sentence} {self.verified}{self._see}"

    @property
    def note(self) -> str:
        """The cause with its lines alone."""
        return f"{self.name}: {self.sentence}{self._see}"

    @property
    def _see(self) -> str:
        return f" See {self.where}." if self.where else ""


@dataclass(frozen=True)
class Side:
    """One model, measured."""

    name: str
    """Of its framework."""
    layers: Mapping[str, Mapping[str, Layer]]
    """By mode and name."""
    arrays: Mapping[str, Array]
    optimizers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why it fails in passes of `records.far`, by their words."""

    def values(self, mode: str, name: str) -> tuple[Array, Array]:
        """(input, output) of a layer."""
        place = list(self.layers[mode]).index(name)
        return self.arrays[f"{mode}/{place}/in"], self.arrays[f"{mode}/{place}/out"]

    def parameters(self, name: str, of: str = "start") -> dict[str, Array]:
        """Parameters of a layer by role. Each call of a layer has those of the layer."""
        prefix = f"{of}/{name.partition('#')[0]}."
        return {key.removeprefix(prefix): value for key, value in self.arrays.items() if key.startswith(prefix)}


def alike(left: Side, right: Side, one: str, other: str) -> tuple[bool, bool]:
    """Whether two layers take and give the same in inference, but for constants that are rounded to float32."""
    pairs = zip(left.values("inference", one), right.values("inference", other), strict=True)
    taken, given = (all(apart(mine[:some], others[:some]) <= ALIKE for some in (1, None)) for mine, others in pairs)
    return taken, given


@dataclass(frozen=True)
class Split:
    """The first place where two models part in one pass."""

    mode: str
    sides: tuple[Side, Side]
    layers: tuple[Layer, Layer] | None
    """None: the models' outputs alone differ."""
    inputs: tuple[Array, Array]
    outputs: tuple[Array, Array]
    before: tuple[Array, ...]
    """Values that agree, the nearest first: a few. The image is the last, where no more layers agree."""
    earlier: tuple[Array, ...]
    """All values that agree, the nearest first. The last is the image."""
    alone: tuple[tuple[Layer, ...], tuple[Layer, ...]]
    """Layers since then that have no counterpart."""
    after: str
    """The last layers that agree."""
    pairs: Mapping[str, str]
    """Of layers with parameters."""
    given: frozenset[str]
    """Left names of the pairs that order did not tell: the user, names or paths did."""
    tolerance: float = formulas.CLOSE
    """Relative difference within which values count as equal."""

    @property
    def difference(self) -> float:
        return apart(*self.outputs)

    @property
    def at_the_end(self) -> bool:
        """Whether these outputs are the models', so that nothing behind them can differ."""
        logits = (side.arrays[f"{self.mode}/logits"] for side in self.sides)
        return all(np.array_equal(mine, own) for mine, own in zip(self.outputs, logits, strict=True))

    def close(self, left: Array, right: Array) -> bool:
        """Whether two arrays agree within the tolerance."""
        return apart(left, right) <= self.tolerance

    @property
    def between(self) -> tuple[list[Layer], list[Layer]]:
        """Layers of each model since the last that agree."""
        ends = self.layers or (None, None)
        return [*filter(None, (ends[0], *self.alone[0]))], [*filter(None, (ends[1], *self.alone[1]))]

    @property
    def kinds(self) -> set[str]:
        return {layer.kind for side in self.between for layer in side}

    @property
    def where(self) -> str:
        named = [*(self.layers or ()), *self.alone[0], *self.alone[1]]
        if not named:  # a function behind all layers
            named = [layer for side in self.sides for layer in list(side.layers[self.mode].values())[-1:]]
        return ", ".join(dict.fromkeys(each.where for each in named if each.where))

    def names(self) -> tuple[str, str]:
        return self.sides[0].name, self.sides[1].name

    def values(self) -> list[tuple[Array, Array, Array]]:
        """(x, left y, right y): what both sides may have made of the same x."""
        found: list[tuple[Array, Array, Array]] = []
        if self.layers is not None and self.close(*self.inputs):
            found.append((self.inputs[0], *self.outputs))
        for x in self.before:
            found += [(x, *pair) for pair in (self.inputs, self.outputs) if not self.close(*pair)]
        return found

    def taken(self) -> Iterator[tuple[str, tuple[Array, Array]]]:
        """The first layers with parameters that take other values, in words, and these: a few."""
        ran = [side.layers[self.mode] for side in self.sides]
        pairs = (pair for pair in self.pairs.items() if all(name in own for name, own in zip(pair, ran, strict=True)))
        both = (
            (f"{one}, {other}", (self.sides[0].values(self.mode, one)[0], self.sides[1].values(self.mode, other)[0]))
            for one, other in pairs
        )
        return itertools.islice((each for each in both if not self.close(*each[1])), 3)


def first_split(
    mode: str, sides: tuple[Side, Side], alignment: Alignment, images: Array, tolerance: float = formulas.CLOSE
) -> Split | None:
    """Where two models part by more than the tolerance. None: their outputs agree within it."""
    left, right = sides
    ours, theirs = left.layers[mode], right.layers[mode]
    pairs = [(one, other) for one, other in alignment.pairs if one in ours and other in theirs]
    agreed: list[Array] = [images]
    beside: list[Array] = []
    """What a branch gives that takes nothing of the first layers that differ: that it agrees evens nothing out."""
    pending: tuple[str, str] | None = None
    last: tuple[str, str] | None = None
    for one, other in pairs:
        mine, other_values = left.values(mode, one), right.values(mode, other)
        if apart(mine[1], other_values[1]) > tolerance and not _evened_out(mode, sides, (one, other), tolerance):
            pending = pending or (one, other)
            if one in alignment.names:
                break
            continue
        if pending is not None and any(apart(mine[0], each) <= tolerance for each in (*agreed, *beside)):
            beside.append(mine[1])
            continue
        pending, last, beside = None, (one, other), []
        if apart(mine[0], other_values[0]) <= tolerance and not any(np.array_equal(mine[0], each) for each in agreed[-3:]):
            agreed.append(mine[0])  # what a function made that one model does not record
        agreed.append(mine[1])
    logits = left.arrays[f"{mode}/logits"], right.arrays[f"{mode}/logits"]
    if pending is None and apart(*logits) <= tolerance:
        return None
    if pending is not None:
        ends = (ours[pending[0]], theirs[pending[1]])
        values = left.values(mode, pending[0]), right.values(mode, pending[1])
        inputs, outputs = _without_zeros(ends, (values[0][0], values[1][0])), (values[0][1], values[1][1])
    else:
        ends, inputs, outputs = None, logits, logits
    alone = tuple(
        _alone(layers, last and last[place], pending and pending[place], {pair[place] for pair in pairs})
        for place, layers in enumerate((ours, theirs))
    )
    earlier, after = tuple(reversed(agreed)), "the image" if last is None else ", ".join(last)
    alone_in_each = alone[0], alone[1]
    return Split(
        *(mode, sides, ends, inputs, outputs, earlier[:6], earlier, alone_in_each, after),
        *(alignment.names, alignment.given, tolerance),
    )


def _evened_out(mode: str, sides: tuple[Side, Side], pair: tuple[str, str], tolerance: float) -> bool:
    """Whether layers of other sizes agree once a layer without parameters has cut one of them."""
    outputs = [side.values(mode, name)[1] for side, name in zip(sides, pair, strict=True)]
    if outputs[0].size == outputs[1].size:
        return False
    for side, name, other in zip(sides, pair, reversed(outputs), strict=True):
        names = list(side.layers[mode])
        behind = itertools.takewhile(
            lambda each, ran=side.layers[mode]: not ran[each].parameters, names[names.index(name) + 1 :]
        )
        if any(apart(side.values(mode, each)[1], other) <= tolerance for each in behind):
            return True
    return False


def _without_zeros(layers: tuple[Layer, Layer], inputs: tuple[Array, Array]) -> tuple[Array, Array]:
    """The inputs of two convolutions. Zeros around one of them do not count where the other convolution adds them itself."""
    found = [*inputs]
    for place, layer in enumerate(layers):
        one, other, padding = inputs[place], inputs[1 - place], layer.settings.get("padding")
        if not layer.kind.endswith("conv") or not padding or one.ndim != 4 or one.shape == other.shape:
            continue
        if formulas.padded(one, padding).shape == other.shape:
            bare = other[:, padding[0][0] :, padding[1][0] :][:, : one.shape[1], : one.shape[2]]
            if np.array_equal(formulas.padded(bare, padding), other):
                found[1 - place] = bare
    return found[0], found[1]


def _alone(layers: Mapping[str, Layer], after: str | None, until: str | None, paired: set[str]) -> tuple[Layer, ...]:
    names = list(layers)
    start = 0 if after is None else names.index(after) + 1
    end = len(names) if until is None else names.index(until)
    return tuple(layers[name] for name in names[start:end] if name not in paired)


# Causes of a first difference in the outputs of layers.


def of_split(split: Split) -> list[Cause]:
    """Causes of a difference between outputs, those that were tried out first."""
    found = [
        cause if (cause.residual or 0.0) < split.difference / 2 else cause._replace(residual=math.inf)
        for test in _OF_SPLIT
        for cause in test(split)
    ]
    for name in ("softmax-output", "normalisation-place"):
        if alone := [cause for cause in found if cause.name == name and (cause.residual or 0.0) < math.inf]:
            return alone  # no activation is missing beside it
    return sorted(found or list(_pairing(split)), key=lambda cause: cause.residual is None)[:3]


def _pairing(split: Split) -> Iterator[Cause]:
    """Layers of equal kind and shapes that only their order tells apart.

    Those that the user, their names or their paths have paired do not count. A pair that agrees counts if another layer takes
    the same input: values do not tell the two apart. A pair that does not agree counts if the first pair that parts is of its
    kind and shapes.
    """
    left, right = split.sides
    ran = left.layers[split.mode], right.layers[split.mode]
    both = [(one, other) for one, other in split.pairs.items() if one in ran[0] and other in ran[1]]
    taken = {one: left.values(split.mode, one)[0] for one, _ in both}
    agree = {one: split.close(left.values(split.mode, one)[1], right.values(split.mode, other)[1]) for one, other in both}
    parted = next((signature(ran[0][one]) for one, _ in both if not agree[one]), None)
    groups: dict[tuple[Any, ...], list[tuple[Layer, Layer]]] = {}
    for one, other in both:
        if one not in split.given:
            groups.setdefault(signature(ran[0][one]), []).append((ran[0][one], ran[1][other]))
    named: list[str] = []
    for shared, pairs in groups.items():
        doubtful = [
            (one, other)
            for one, other in pairs
            if (
                any(split.close(taken[one.name], taken[each.name]) for each, _ in pairs if each is not one)
                if agree[one.name]
                else shared == parted
            )
        ]
        names = [[layer.name for layer in side] for side in zip(*doubtful, strict=True)]
        if len(doubtful) > 1 and {*map(plain, names[0])} != {*map(plain, names[1])}:
            named.append(" were paired with ".join(", ".join(each) for each in names))
    if named:
        said = f"By order alone {'; '.join(named)}. If that is wrong, name the pairs with --map."
        yield Cause("pairing", said, split.where)


def _float32(split: Split) -> Iterator[Cause]:
    for place, side in enumerate(split.sides):
        ran = side.layers[split.mode].values()
        # A function may be the framework's own, as `tf.image.resize`, which takes float64 and gives float32.
        low = [each for each in ran if each.dtype not in ("float64", "") and (each.parameters or each.kind != "other")]
        if low and apart(*split.outputs) < 1e-4:
            said = f"{side.name}'s {low[0].name} computes in {low[0].dtype}, where float64 was asked for."
            yield Cause("float32", said, low[0].where or "", apart(*split.outputs) if apart(*split.outputs) < 1e-5 else None)
            return
        for one, other in ((split.inputs[place], split.inputs[1 - place]), (split.outputs[place], split.outputs[1 - place])):
            rounded = other.astype(np.float32).astype(np.float64)
            if one.shape == other.shape and not np.array_equal(one, other) and np.array_equal(one, rounded):
                said = f"{side.name}'s values are rounded to float32, where float64 was asked for."
                yield Cause("float32", said, split.where, apart(one, rounded))
                return
    yield from _lower_precision(split)


def _lower_precision(split: Split) -> Iterator[Cause]:
    """A layer that gives values of float32 alone, though it takes others. It may have rounded on the way, not at the end.

    Where a model calls functions that are not recorded, the next layer takes such values, in some of its channels perhaps.
    """
    for place, side in enumerate(split.sides):
        for layer in split.between[place]:
            taken, given = side.values(split.mode, layer.name)
            if (
                _is_float32(given)
                and not _is_float32(taken)
                and apart(*split.inputs) <= ALIKE
                and apart(*split.outputs) <= ALIKE
            ):
                said = (
                    f"{side.name}'s {layer.name} computes in float32, whatever it takes: of its values, none has more digits."
                )
                yield Cause(LOWER, said, layer.where or split.where)
                return
        for pair in (split.inputs, split.outputs):
            mine, other = (each.reshape(-1, each.shape[-1]) for each in (pair[place], pair[1 - place]))
            if mine.shape != other.shape or apart(mine, other) > formulas.ROUNDED:
                continue
            differ = np.abs(mine - other).max(0, initial=0.0) > split.tolerance * np.abs(mine).max(initial=0.0)
            if differ.any() and _is_float32(mine[:, differ]) and not _is_float32(other[:, differ]):
                said = f"{side.name} computes these values in float32, where float64 was asked for: none has more digits."
                yield Cause(LOWER, said, split.where)
                return


def _is_float32(values: Array) -> bool:
    """Whether float32 holds them all. Zeros alone tell nothing."""
    with np.errstate(over="ignore"):
        return bool(values.any()) and np.array_equal(values, values.astype(np.float32))


def _input(split: Split) -> Iterator[Cause]:
    if split.layers is None or split.close(*split.inputs) or any(_scaling(split)):
        return
    left, right = split.inputs
    if split.layers[0].parameters and left.ndim == 4 and right.ndim == 4 and left.size == right.size:
        for order in itertools.permutations((1, 2, 3)):
            form = left.transpose(0, *order)
            if form.shape == right.shape and split.close(form, right):
                axes = ", ".join(("height", "width", "channels")[axis - 1] for axis in order)
                said = (
                    f"{split.names()[1]}'s {split.layers[1].name} sees {split.names()[0]}'s {axes} as height, width, channels."
                )
                yield Cause("data-format", said, split.where, apart(form, right))
                return
    if len(split.before) > 1 or left.shape != right.shape:
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
            if split.close(form, right):
                said = f"{split.names()[1]}'s first layer sees {split.names()[0]}'s image {words}."
                yield Cause("data-format", said, split.where, apart(form, right))
                return
    flat = [each.reshape(-1, each.shape[-1]) for each in (left, right)]
    if not np.isfinite(flat).all() or not np.ptp(flat[0], axis=0).all():
        return  # no line goes through one point
    scale, shift = np.empty(flat[0].shape[1]), np.empty(flat[0].shape[1])
    for channel in range(len(scale)):
        fitted = np.polynomial.Polynomial.fit(flat[0][:, channel], flat[1][:, channel], 1).convert().coef
        scale[channel], shift[channel] = (*fitted, 0.0, 0.0)[1::-1]
    corrected = flat[0] * scale + shift
    if apart(corrected, flat[1]) < 1e-9:
        factor, plus = (_of_channels(each) for each in (scale, np.where(np.abs(shift) < 1e-9, 0, shift)))
        said = f"{split.names()[1]}'s first layer sees {split.names()[0]}'s pixels times {factor}, plus {plus}."
        yield Cause("input-scaling", said, split.where, apart(corrected, flat[1]))


def _of_channels(values: Array) -> str:
    """One number, or that of each channel where they differ."""
    words = [f"{each:.6g}" for each in values]
    return words[0] if np.allclose(values, values[0], 1e-7, 1e-9) else f"[{', '.join(words)}]"


def _scaling(split: Split) -> Iterator[Cause]:
    """A layer that scales and shifts, with constants that are rounded: what it states must give what the other model has."""
    for place, side in enumerate(split.sides):
        for layer in split.between[place]:
            if "offset" not in layer.settings:
                continue
            x, y = side.values(split.mode, layer.name)
            scale, offset = (np.asarray(layer.settings[key]) for key in ("scale", "offset"))
            if not {scale.size, offset.size} <= {1, x.shape[-1]}:
                continue
            stated = x * scale + offset
            for pair in (split.inputs, split.outputs):
                if split.close(*pair):
                    continue  # else it would explain what another fault of this layer makes
                mine, other = pair[place], pair[1 - place]
                # Zeros that pad and a flattened image leave the values and their order as they are.
                own = np.array_equal(mine[mine != 0], y[y != 0])
                if own and close(stated, other) and apart(stated, other) < apart(y, stated) <= formulas.ROUNDED:
                    said = f"{side.name}'s {layer.name} scales and shifts by constants that are rounded to float32."
                    yield Cause(ROUNDED, said, split.where, apart(stated, other))
                    return


def _order(split: Split) -> Iterator[Cause]:
    names = split.names()
    if split.layers is not None and split.layers[0].parameters and not split.close(*split.inputs):
        ours, theirs = split.layers
        for one, other in split.pairs.items():
            there = split.sides[1].layers[split.mode][other]
            if other == theirs.name or signature(there) != signature(ours):
                continue
            taken, own = split.sides[1].values(split.mode, other)[0], split.sides[0].values(split.mode, one)[0]
            if split.close(split.inputs[0], taken) and not split.close(own, split.inputs[0]):
                said = (
                    f"{names[0]} calls {ours.name} where {names[1]} calls {other}. If only the names are exchanged, add "
                    f"--map {ours.name}={other}."
                )
                yield Cause("order", said, f"{ours.where}, {there.where}", apart(split.inputs[0], taken))
                return
    if len(split.before) < 2 or any(each.flattened for side in split.between for each in side):
        return
    for left, right in (split.inputs, split.outputs):
        if left.shape != right.shape or split.close(left, right):
            continue
        marks = [
            np.random.default_rng(0).random(each.size // each.shape[-1]) @ each.reshape(-1, each.shape[-1])
            for each in (left, right)
        ]
        order = np.argsort(marks[0])[np.argsort(np.argsort(marks[1]))]
        if split.close(left[..., order], right):
            what = "concatenates" if "concatenate" in split.kinds else "joins the same channels"
            said = f"{names[1]} {what} in another order than {names[0]}{_in_runs(order, marks[0], names[0])}."
            yield Cause("order", said, split.where, apart(left[..., order], right))
            return


def _in_runs(order: npt.NDArray[Any], marks: Array, name: str) -> str:
    """Which channels of the other model stand side by side, where that is sure and short to say."""
    runs = np.split(order, np.flatnonzero(np.diff(order) != 1) + 1)
    if len(runs) > _MOST_RUNS or len(np.unique(marks)) < len(marks):  # channels that are equal, such as dead ones
        return ""
    words = [f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f": its channels are {name}'s {wording.joined(words)}, from 0"


def _activations(split: Split) -> Iterator[Cause]:
    """Each once: values that were recorded tell what functions in front need not tell again."""
    found = list(_activation(split))
    yield from found
    if not any(each.name == "activation" for each in found):
        yield from _first(test(split) for test in (_behind_functions, _in_sums))


def _place(split: Split) -> str:
    """Where another activation stands: `In front of conv2, conv2d_1 (relu6)`."""
    if split.layers is None:
        ends = "the output"
    else:
        ends = f"{split.layers[0].name}, {split.layers[1].name}"
        if split.close(*split.inputs):
            return f"At {ends}"
    named = [each.name for side in split.alone for each in side if each.kind == "activation"]
    return f"In front of {ends} ({', '.join(named)})" if named else f"In front of {ends}"


def _activation(split: Split) -> Iterator[Cause]:
    if split.layers is not None and split.layers[0].kind == "dropout":
        return
    settings = [[layer.settings for layer in each if layer.kind == "activation"] for each in split.between]
    stated = [[formulas.stated_activation(each) for each in side] for side in settings]
    slopes = [each["slope"] for each in (*settings[0], *settings[1]) if "slope" in each]
    for x, *both in split.values():
        fits = [formulas.activations(x, y, slopes) for y in both]
        if not all(fits):
            continue
        told = [next((name for name in names if name in fit), "") for names, fit in zip(stated, fits, strict=True)]
        common = [name for name in (*filter(None, told), *fits[0]) if name in fits[0] and name in fits[1]]
        if common and not (all(told) and told[0] != told[1]):  # else the models say themselves that they differ
            if apart(both[0], both[1]) > formulas.ROUNDED or math.isinf(fits[0][common[0]].rounded):
                continue
            fit = max((each[common[0]] for each in fits), key=lambda each: each.exact)
            if fit.rounded >= fit.exact:  # no constant is rounded: what it takes differs already, or it is another function
                continue
            rounded = split.names()[fit is fits[1][common[0]]]
            said = f"{rounded} computes its {common[0]} with constants that are rounded to float32."
            yield Cause(ROUNDED, said, split.where, fit.residual)
            return
        if split.layers is None and (fits[0].keys() | fits[1].keys()) & {"softmax", "log-softmax"}:
            continue
        words = [name or _any_of(fit) for name, fit in zip(told, fits, strict=True)]
        said = f"{_place(split)}: {split.names()[0]} applies {words[0]}, {split.names()[1]} {words[1]}."
        yield Cause("activation", said, split.where, max(min(fit.residual for fit in each.values()) for each in fits))
        return


def _behind_functions(split: Split) -> Iterator[Cause]:
    """Another activation among functions that one model does not record: the other's functions, with it in their place."""
    for place, side in enumerate(split.sides):
        functions = split.alone[place]
        places = [at for at, layer in enumerate(functions) if layer.kind == "activation"]
        if len(places) != 1 or any(layer.kind == "activation" for layer in split.alone[1 - place]):
            continue
        own, later = functions[places[0]], functions[places[0] + 1 :]
        x = side.values(split.mode, own.name)[0]
        if not any(split.close(x, each) for each in split.before):
            continue
        stated, target = formulas.stated_activation(own.settings), split.inputs[1 - place]
        fits: dict[str, float] = {}
        for name, function in formulas.ACTIVATIONS.items():
            made = functools.reduce(_applied, later, function(x))
            residual = apart(made, target)
            if residual <= split.tolerance:
                fits[name] = residual
        if fits and stated not in fits:
            words = [_any_of(fits), _any_of(fits)]
            words[place] = stated
            said = f"{_place(split)}: {split.names()[0]} applies {words[0]}, {split.names()[1]} {words[1]}."
            yield Cause("activation", said, split.where, max(fits.values()))
            return


def _applied(x: Array, layer: Layer) -> Array:
    """What a layer without parameters makes of x. Empty, if it is none of those that are known here."""
    settings = layer.settings
    if layer.kind in ("max_pool", "average_pool") and "window" in settings and x.ndim == 4:
        average = "average" if settings.get("count_padding") else "average without padding"
        how = "maximum" if layer.kind == "max_pool" else average
        return formulas.pooling(x, settings["window"], settings["stride"], settings["padding"], how)
    if layer.kind == "global_average_pool" and x.ndim == 4:
        return x.mean((1, 2), keepdims=len(layer.output) == 3)
    return x.reshape(len(x), -1) if layer.kind == "flatten" and x.size else np.empty(0)


def _any_of(fits: Iterable[str]) -> str:
    """Forms that fit, where no layer states which one it is."""
    first, *others = fits
    return f"{first} (these values do not tell it from {', '.join(others)})" if others else first


def _softmax(split: Split) -> Iterator[Cause]:
    if split.layers is not None and split.layers[0].kind != "activation":
        return
    left, right = split.outputs
    for place, (mine, other) in enumerate(((left, right), (right, left))):
        if mine.ndim != 2 or mine.shape != other.shape:
            continue
        for words, function in (("probabilities (softmax)", special.softmax), ("log-probabilities", special.log_softmax)):
            corrected = function(other, -1)
            if split.close(corrected, mine):
                names = split.names()
                said = f"{names[place]} returns {words}, {names[1 - place]} logits."
                yield Cause("softmax-output", said, split.where, apart(corrected, mine))
                return


def _dropout(split: Split) -> Iterator[Cause]:
    if "dropout" not in split.kinds:
        return
    for x, left, right in split.values():
        rates = formulas.dropout(x, left, split.tolerance), formulas.dropout(x, right, split.tolerance)
        if None in rates:
            continue
        names, (ours, theirs) = split.names(), (rates[0] or 0.0, rates[1] or 0.0)
        residual = max(apart(np.where(y != 0, x / (1 - rate), 0), y) for y, rate in ((left, ours), (right, theirs)))
        if 0 in rates and ours != theirs:
            active = 0 if theirs == 0 else 1
            when = "also in inference" if split.mode == "inference" else "in training"
            said = f"{names[active]} drops {rates[active]:.4g} of the values {when}, {names[1 - active]} none."
            yield Cause("dropout-active", said, split.where, apart(x, right if active == 0 else left))
        elif not math.isclose(ours, theirs, rel_tol=1e-6):
            said = f"{names[0]} drops {ours:.4g} of the values, {names[1]} {theirs:.4g}."
            yield Cause("dropout-rate", said, split.where, residual)
        elif x.ndim == 4 and x.shape == left.shape == right.shape:
            whole = [bool(np.all((y == 0) == (y == 0).all((1, 2), keepdims=True) | (x == 0))) for y in (left, right)]
            if whole[0] != whole[1]:
                said = f"{names[whole[1]]} drops whole channels, {names[whole[0]]} single values."
                yield Cause("dropout-rate", said, split.where, residual)
        return


_Form = Callable[[Any], Array]
"""What it makes of the examples that an index picks."""


def _told_apart(
    split: Split,
    cause: str,
    both: Sequence[Array],
    forms: Callable[[Array], Mapping[str, _Form]],
    said: str,
    *,
    stated: Sequence[Sequence[str]] = ((), ()),
    least: float = 0.0,
    few: Any = np.s_[:1],
) -> Iterator[Cause]:
    """A cause where the values of each side are one of some forms, and none of them is both's.

    Args:
        split: where the models part.
        cause: its name.
        both: float[N, ...], the values of both sides.
        forms: by words, for values of this size.
        said: the sentence, with places for a name and words of each side.
        stated: words that each side states, which come before others that fit.
        least: forms may differ by this, if it is more than the tolerance.
        few: the examples that are tried first, since most forms do not fit.
    """
    tolerance = max(split.tolerance, least)

    def residual(form: _Form, values: Array, scale: float) -> float:
        try:
            found = apart(form(few), values[few], scale)
            return found if found > tolerance else apart(form(np.s_[:]), values)
        except ValueError:  # a window is larger than the image
            return math.inf

    fits: list[dict[str, float]] = []
    for values in both:
        scale = float(np.abs(values).max(initial=0.0))
        made = {words: residual(form, values, scale) for words, form in forms(values).items()}
        fits.append({words: left for words, left in made.items() if left <= tolerance})
        if not fits[-1]:
            return
    if not fits[0].keys() & fits[1].keys():
        words = [next((each for each in own if each in fit), _any_of(fit)) for own, fit in zip(stated, fits, strict=True)]
        names = split.names()
        told = said.format(names[0], words[0], names[1], words[1])
        yield Cause(cause, told, split.where, min(fits[1].values()))


def _first(found: Iterable[Iterator[Cause]]) -> Iterator[Cause]:
    return itertools.islice(itertools.chain.from_iterable(found), 1)


def _padding(split: Split) -> Iterator[Cause]:
    """With the left model's weights and settings, so that nothing but the padding tells the two apart."""
    if split.layers is None or split.layers[0].kind not in ("conv", "depthwise_conv", "transposed_conv"):
        return
    kind, settings = split.layers[0].kind, split.layers[0].settings
    parameters = split.sides[0].parameters(split.layers[0].name)
    kernel, bias = parameters["kernel"], parameters.get("bias")

    def padded(x: Array) -> dict[str, _Form]:
        sizes = zip(x.shape[1:3], settings["kernel"], settings["stride"], settings["dilation"], strict=True)
        same = [list(recording.same_padding(*each)) for each in sizes]
        around = [[size // 2, size // 2] for size in settings["kernel"]]
        stated = [each.settings["padding"] for each in split.layers or ()]
        return {
            _padding_words(padding, mode): lambda few, padding=padding, mode=mode: formulas.convolution(
                formulas.padded(x[few], padding, mode), kernel, bias, settings, _NO_PADDING, kind == "depthwise_conv"
            )
            for padding in (*stated, same, around, [each[::-1] for each in same], _NO_PADDING)
            for mode in (formulas.PADDING_MODES if padding != _NO_PADDING else ("zeros",))
        }

    def cut(x: Array, y: Array) -> dict[str, _Form]:
        full = formulas.transposed_size(x.shape[1:3], kernel.shape, settings)
        rest = [whole - size for whole, size in zip(full, y.shape[1:3], strict=True)]
        sides = itertools.product(*(range(max(each, 0) + 1) for each in rest))
        return {
            _in_words([[start, each - start] for start, each in zip(starts, rest, strict=True)]): (
                lambda few, starts=starts: formulas.transposed(x[few], kernel, bias, settings, starts, y.shape[1:3])
            )
            for starts in sides
        }

    if kind == "transposed_conv":
        pairs = [(x, both) for x, *both in split.values() if x.ndim == both[0].ndim == both[1].ndim == 4]
        said = "{} cuts off {} of the whole map, {} {}."
        yield from _first(
            _told_apart(split, "padding", both, functools.partial(cut, x), said)
            for x, both in pairs
            if x.shape[-1] == kernel.shape[-1]
        )
        return
    stated = [[_padding_words(each.settings["padding"], each.settings["padding_mode"])] for each in split.layers]
    found = _first(
        _told_apart(split, "padding", split.outputs, lambda y, x=x: padded(x), "{} pads {}, {} {}.", stated=stated)
        for x, *both in split.values()
        if both[0] is split.outputs[0] and x.ndim == 4 and x.shape[-1] == split.inputs[0].shape[-1]
    )
    for each in found:
        zeros = all(mode not in each.sentence for mode in formulas.PADDING_MODES if mode != "zeros")
        yield each._replace(sentence=each.sentence.replace(" with zeros", "")) if zeros else each


_NO_PADDING = [[0, 0], [0, 0]]


def _padding_words(padding: Sequence[Sequence[int]], mode: str) -> str:
    return f"{_in_words(padding)} with zeros" if mode == "zeros" else f"{_in_words(padding)} by mode {mode}"


def _interpolation(split: Split) -> Iterator[Cause]:
    """TensorFlow resizes in float32."""

    def resized(x: Array, y: Array) -> dict[str, _Form]:
        return {
            words: lambda few, words=words: formulas.resized(x[few], y.shape[1:3], words) for words in formulas.INTERPOLATIONS
        }

    yield from _first(
        _told_apart(
            split,
            "interpolation",
            both,
            functools.partial(resized, x),
            "{} resizes by {}, {} by {}.",
            stated=(["nearest"], ["nearest"]),
            least=formulas.ROUNDED,
        )
        for x, *both in split.values()
        if x.ndim == 4 and all(y.ndim == 4 and y.shape[-1] == x.shape[-1] and y.shape[1:3] != x.shape[1:3] for y in both)
    )


def _attention(split: Split) -> Iterator[Cause]:
    """Queries, keys and values must agree. Three layers give them, or one gives all of them side by side."""
    tokens = [each for each in split.before if each.ndim == 3]
    threes: list[Sequence[Array]] = [np.split(each, 3, -1) for each in tokens if each.shape[-1] % 3 == 0]
    alike = [each for each in tokens if each.shape == tokens[0].shape][:3]
    threes += itertools.permutations(alike) if len(alike) == 3 else []

    def attended(three: Sequence[Array], y: Array) -> dict[str, _Form]:
        width = three[0].shape[-1]
        heads = [each for each in range(1, width + 1) if width % each == 0 and y.shape == three[0].shape]

        def form(few: Any, count: int, factor: float) -> Array:
            others = few[:1] if isinstance(few, tuple) else few  # a few queries, of all keys
            return formulas.attention(three[0][few], three[1][others], three[2][others], heads=count, factor=factor)

        return {
            f"{factor:.6g} in {wording.count(count, 'head')}": functools.partial(form, count=count, factor=factor)
            for count in heads
            for factor in {1.0, width**-0.5, *((width // count) ** power for power in (-0.5, -1.0, 0.5))}
        }

    said = "{} multiplies the scores of its attention by {}, {} by {}."
    yield from _first(
        _told_apart(split, "attention", both, functools.partial(attended, three), said, few=np.s_[:1, :4])
        for _, both in split.taken()
        for three in threes
    )


def _normalisation_place(split: Split) -> Iterator[Cause]:
    """A normalisation in front of a function, behind it, or elsewhere. What the next layers take tells where it stands."""
    left, right = split.sides
    ran = [layer.settings for side in split.sides for layer in side.layers[split.mode].values() if layer.kind == "activation"]
    stated = dict.fromkeys([_NOTHING, "ReLU", *map(formulas.stated_activation, ran)])
    functions = {words: formulas.ACTIVATIONS[words] for words in stated if words in formulas.ACTIVATIONS}
    functions["the mean over height and width"] = lambda x: x.mean((1, 2)) if x.ndim == 4 else x

    def forms(y: Array, x: Array, normal: Callable[[Array], Array], words: str, at: str) -> dict[str, _Form]:
        function = functions[words]
        elsewhere: dict[str, _Form] = {"elsewhere": lambda few: function(x[few])}
        if words == _NOTHING:
            return {f"in front of {at}": lambda few: normal(x[few]), **elsewhere}
        in_front: dict[str, _Form] = {f"in front of {words}": lambda few: function(normal(x[few]))}
        return {**in_front, f"behind {words}": lambda few: normal(function(x[few])), **elsewhere}

    for one, other in split.pairs.items():
        ours, theirs = left.layers[split.mode].get(one), right.layers[split.mode].get(other)
        if ours is None or theirs is None or not ours.kind.endswith("_norm"):
            continue
        if split.close(left.values(split.mode, one)[0], right.values(split.mode, other)[0]):
            continue
        batch = ours.kind == "batch_norm" and split.mode == "training"
        parameters, settings = left.parameters(one), ours.settings
        normal = functools.partial(
            formulas.normalisation,
            ours.kind,
            parameters=parameters,
            epsilon=settings["epsilon"],
            groups=settings.get("groups", 1),
            batch=batch,
        )
        found = _first(
            _told_apart(
                *(split, "normalisation-place", both),
                functools.partial(forms, x=x, normal=normal, words=words, at=at),
                f"{{}} has the normalisation {one} {{}}, {{}} has {other} {{}}.",
                few=np.s_[:] if batch else np.s_[:1],
            )
            for at, both in split.taken()
            for x in (*split.before, *both)
            if x.shape[-1:] == next(iter(parameters.values())).shape
            for words in functions
        )
        for each in found:
            yield each._replace(where=", ".join(filter(None, (ours.where, theirs.where))) or each.where)
        return  # what is behind the first may follow from it


_NOTHING = "no activation"


def _in_sums(split: Split) -> Iterator[Cause]:
    """An activation in front of an addition, with or without ReLU behind it."""
    added = [[each for each in side if each.kind == "add"] for side in split.between]
    if not any(added):
        return
    behind: dict[str, Callable[[Array], Array]] = {"": lambda x: x, " (behind the sum ReLU)": formulas.ACTIVATIONS["ReLU"]}

    def forms(value: Array, earlier: Array) -> dict[str, _Form]:
        return {
            f"{words}{more}": lambda few, inner=inner, outer=outer: outer(inner(value[few]) + earlier[few])
            for words, inner in formulas.ACTIVATIONS.items()
            for more, outer in behind.items()
        }

    of_each = [
        [formulas.stated_activation(each.settings) for each in side if each.kind == "activation"] for side in split.between
    ]
    stated = [[f"{each}{more}" for each in (*side, _NOTHING) for more in behind] for side in of_each]
    yield from _first(
        _told_apart(
            split,
            "activation",
            both,
            lambda y, value=value, earlier=earlier: forms(value, earlier),
            "In front of an addition: {} applies {}, {} {}.",
            stated=stated,
            few=np.s_[:1, ..., :1],
        )
        for both in (split.outputs, split.inputs)
        if not split.close(*both)
        for value, earlier in itertools.product(split.before, split.earlier)
        if value is not earlier and value.shape == earlier.shape == both[0].shape == both[1].shape
    )


def _addition(split: Split) -> Iterator[Cause]:
    """An addition that one model lacks, with or without ReLU behind it."""
    added = [[each for each in side if each.kind == "add"] for side in split.between]
    if len(added[0]) == len(added[1]):
        return
    place = 0 if len(added[0]) > len(added[1]) else 1
    names = split.names()
    where = ", ".join(dict.fromkeys(each.where for each in added[place] if each.where))
    for pair in (split.inputs, split.outputs):
        mine, other = pair[place], pair[1 - place]
        if mine.shape != other.shape:
            continue
        # A block may be long: what it begins with stands far in front of what it ends with.
        for value, earlier in itertools.product(split.before, split.earlier):
            if value is earlier or not value.shape == earlier.shape == mine.shape:
                continue
            total = value + earlier
            for form, bare in ((total, value), (np.maximum(total, 0), np.maximum(value, 0))):
                if split.close(bare, other) and split.close(form, mine):
                    said = f"{names[place]} adds an earlier value (a residual connection), {names[1 - place]} does not."
                    yield Cause("addition-missing", said, where or split.where, apart(form, mine))
                    return


def _in_words(padding: Sequence[Sequence[int]]) -> str:
    (top, bottom), (left, right) = padding
    return f"{top} above and {bottom} below, {left} left and {right} right"


def _pooling(split: Split) -> Iterator[Cause]:
    pools = [[each for each in side if "window" in each.settings] for side in split.between]
    forms: dict[str, tuple[Any, ...]] = {}
    for settings in (each.settings for side in pools for each in side):
        window, stride = settings["window"], settings["stride"]
        for padding in (settings["padding"], [[0, 0], [0, 0]], [[size // 2, size // 2] for size in window]):
            for how in ("maximum", "maximum with zeros around", "average", "average without padding"):
                forms.setdefault(_pool_words(window, padding, how), (window, stride, padding, how))
    stated = [
        [
            _pool_words(
                *(each.settings["window"], each.settings["padding"]),
                "maximum" if each.kind == "max_pool"
                else "average" if each.settings["count_padding"] else "average without padding",
            )
            for each in side
        ]
        for side in pools
    ]  # fmt: skip
    yield from _first(
        _told_apart(
            split,
            "pooling",
            both,
            lambda y, x=x: {words: lambda few, form=form: formulas.pooling(x[few], *form) for words, form in forms.items()},
            "{} takes {}, {} {}.",
            stated=stated,
        )
        for x, *both in split.values()
        if x.ndim == 4
    )


def _pool_words(window: Sequence[int], padding: Sequence[Sequence[int]], how: str) -> str:
    size = "x".join(map(str, window))
    if padding == [[0, 0], [0, 0]]:
        return f"the {how.partition(' ')[0]} of {size}"
    around = {"maximum": "", "maximum with zeros around": ", with zeros", "average": ", padding counted"}
    return f"the {how.partition(' ')[0]} of {size}, padded {_in_words(padding)}{around.get(how, ', padding not counted')}"


def _normalisation(split: Split) -> Iterator[Cause]:
    if split.layers is None or not split.layers[0].kind.endswith("_norm") or not split.close(*split.inputs):
        return
    x, (left, right), names = split.inputs[0], split.layers, split.names()
    parameters = split.sides[0].parameters(left.name)

    def normalised(epsilon: float, batch: bool) -> Array:
        return formulas.normalisation(left.kind, x, parameters, epsilon, left.settings.get("groups", 1), batch=batch)

    if left.settings.get("axis", -1) != right.settings.get("axis", -1):
        said = f"{names[1]}'s {right.name} normalises along axis {right.settings['axis']}, {names[0]}'s along the channels."
        yield Cause("data-format", said, split.where)
    for ours in (False, True):
        for theirs in (False, True):
            mine = normalised(left.settings["epsilon"], ours)
            other = normalised(right.settings["epsilon"], theirs)
            if not split.close(mine, split.outputs[0]) or not split.close(other, split.outputs[1]):
                continue
            if left.settings["epsilon"] != right.settings["epsilon"]:
                said = (
                    f"{names[0]}'s {left.name} adds epsilon {left.settings['epsilon']:g}, {names[1]}'s {right.name} "
                    f"{right.settings['epsilon']:g}."
                )
                yield Cause(
                    "epsilon", said, split.where, apart(normalised(right.settings["epsilon"], theirs), split.outputs[1])
                )
            if ours != theirs:
                words = {True: "the batch's statistics", False: "the running ones"}
                said = (
                    f"In {split.mode} {names[0]}'s {left.name} uses {words[ours]}, {names[1]}'s {right.name} {words[theirs]}."
                )
                residual = apart(normalised(right.settings["epsilon"], theirs), split.outputs[1])
                yield Cause("batch-norm-mode", said, split.where, residual)
            return


def _bias(split: Split) -> Iterator[Cause]:
    if split.layers is None:
        return
    for place, (side, layer) in enumerate(zip(split.sides, split.layers, strict=True)):
        for role, array in side.parameters(layer.name).items():
            if role in ("bias", "beta") and role not in split.sides[1 - place].parameters(split.layers[1 - place].name):
                corrected = split.outputs[1 - place] + array
                if split.close(corrected, split.outputs[place]):
                    other = split.layers[1 - place].name
                    said = f"{split.names()[1 - place]}'s {other} has no {role}. Without it, the layers agree."
                    yield Cause("bias-missing", said, split.where, apart(corrected, split.outputs[place]))


_OF_SPLIT: tuple[Callable[[Split], Iterator[Cause]], ...] = (
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


# Causes that stand in what the models are.


def of_layers(sides: tuple[str, str], alignment: Alignment, layers: Sequence[Mapping[str, Layer]]) -> list[Cause]:
    """Causes why parameters do not fit each other."""
    found: list[Cause] = []
    for left, right in alignment.incompatible:
        where = ", ".join(each.where for each in (left, right) if each is not None and each.where)
        axis = (right.settings if right is not None else {}).get("axis", -1)
        if axis != -1 and right is not None:
            said = f"{sides[1]}'s {right.name} normalises along axis {axis}, not along the channels."
            found.append(Cause("data-format", said, where))
        else:
            said = f"{sides[0]} has {in_words(left)}, where {sides[1]} has {in_words(right)}."
            found.append(Cause("layer-missing", said, where))
    for name, other in alignment.names.items():
        ours, theirs = layers[0][name], layers[1][other]
        for side, here, there in ((0, ours, theirs), (1, theirs, ours)):
            for role in here.parameters.keys() - there.parameters.keys():
                said = f"{sides[side]}'s {here.name} has a {role}, {sides[1 - side]}'s {there.name} has none."
                found.append(Cause("bias-missing", said, ", ".join(filter(None, (there.where, here.where)))))
    return found


def of_weights(left: Side, right: Side, alignment: Alignment, *, drawn: bool) -> list[Cause]:
    """Causes why parameters that both bring differ. `drawn`: they are as the models were built."""
    found: list[Cause] = []
    for name, other in alignment.names.items():
        ours, theirs = left.layers["inference"][name], right.layers["inference"][other]
        where = ", ".join(filter(None, (ours.where, theirs.where)))
        for role, mine in left.parameters(name).items():
            copied = right.parameters(other).get(role)
            if copied is None or close(mine, copied):
                continue
            for words, cause, form in _other_forms(left, ours, mine, role):
                if form.shape == copied.shape and close(form, copied):
                    said = f"{right.name}'s {other}.{role} holds {left.name}'s values {words}."
                    found.append(Cause(cause, said, where, apart(form, copied)))
                    break
    starts = [{key.removeprefix("start/"): value for key, value in side.arrays.items()} for side in (left, right)]
    found = found[:3] or of_initialisation((left.name, right.name), starts, alignment)
    if not found and drawn:
        said = (
            "As built, both draw parameters of the same size (root mean square). Only the draws differ. Leave --as-built out: "
            "then weights are copied."
        )
        found = [Cause("initialisation", said, "")]
    return found


def _other_forms(side: Side, ours: Layer, array: Array, role: str) -> Generator[tuple[str, str, Array]]:
    """(in words, cause, array): wrong forms of a copied parameter."""
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


def of_initialisation(names: tuple[str, str], starts: Sequence[Mapping[str, Array]], alignment: Alignment) -> list[Cause]:
    """Parameters that are drawn from other distributions as built. Differences within sampling error do not count."""
    different: list[str] = []
    for one, other in alignment.names.items():
        for role in ("kernel", "bias"):
            arrays = [start.get(f"{name}.{role}") for start, name in zip(starts, (one, other), strict=True)]
            if arrays[0] is None or arrays[1] is None:
                continue
            deviations = [float(np.sqrt(np.mean(np.square(array)))) for array in arrays if array is not None]
            apart_by = math.inf if min(deviations) == 0 else abs(math.log(deviations[0] / deviations[1]))
            if max(deviations) > 0 and apart_by > 5 / math.sqrt(arrays[0].size):
                different.append(f"{one}.{role} ({deviations[0]:.2g} and {deviations[1]:.2g})")
    if not different:
        return []
    more = f" and {len(different) - 4} more" if len(different) > 4 else ""
    said = (
        f"As built, {names[0]} and {names[1]} draw parameters of another size (root mean square): "
        f"{', '.join(different[:4])}{more}. Trainings that start from these differ."
    )
    return [Cause("initialisation", said, "")]


# Causes of a difference in what training changes.


def seeing_the_same(left: Side, right: Side, alignment: Alignment) -> dict[str, str]:
    """Layers with parameters that take the same in training mode, except for constants that are rounded to float32."""
    return {
        name: other
        for name, other in alignment.names.items()
        if name in left.layers["training"] and other in right.layers["training"]  # else it runs in inference alone
        if apart(left.values("training", name)[0], right.values("training", other)[0]) <= ALIKE
    }


def in_spreads(side: Side, name: str, left: Array, right: Array) -> tuple[Array, Array]:
    """Two running means of a layer in units of what rounding is measured against. Other statistics as they are.

    That is, of each channel, the largest mean of the layer, or the spread of the batch in this channel, if that is more.
    Behind another BatchNorm a mean may be zero but for rounding.

    Args:
        side: that `name` is of.
        name: of the statistic.
        left, right: float[channels].
    """
    layer = name.rpartition(".")[0]
    if not name.endswith(".mean") or layer not in side.layers["training"]:
        return left, right
    x, _ = side.values("training", layer)
    largest = max(np.abs(left).max(initial=0.0), np.abs(right).max(initial=0.0), 1e-30)
    scale = np.maximum(x.std(tuple(range(x.ndim - 1))), largest)
    return left / scale, right / scale


def of_statistics(left: Side, right: Side, names: Mapping[str, str], alike: Container[str]) -> list[Cause]:
    """Causes why running statistics differ after one pass in training mode. None, if they do not explain every layer.

    Args:
        left, right: the models.
        names: pairs of layers.
        alike: of them those of `seeing_the_same`. No cause here explains a difference of the others.
    """
    found: dict[str, list[Cause]] = {}
    for name, other in names.items():
        if name not in left.layers["training"] or other not in right.layers["training"]:
            continue
        if left.layers["training"][name].kind != "batch_norm" or "mean" not in left.layers["training"][name].parameters:
            continue
        laws: list[list[tuple[float, float, float]]] = []
        for side, own in ((left, name), (right, other)):
            x, _ = side.values("training", own)
            count = x.size // x.shape[-1]
            before, after = side.parameters(own), side.parameters(own, "statistics")
            mean, variance = x.mean(tuple(range(x.ndim - 1))), x.var(tuple(range(x.ndim - 1)))
            moved, spread = mean - before["mean"], math.sqrt(variance.max())
            fits: list[tuple[float, float, float]] = []
            for factor in (1.0, count / (count - 1)):
                grown = variance * factor - before["variance"]
                # Behind another BatchNorm a mean may be zero but for rounding. Then it tells no weight.
                told = ("mean", moved) if np.abs(moved).max() > ALIKE * spread else ("variance", grown)
                momentum = _ratio(after[told[0]] - before[told[0]], told[1])
                of_mean = apart(before["mean"] + momentum * moved, after["mean"], spread)
                of_variance = apart(before["variance"] + momentum * grown, after["variance"])
                fits.append((max(of_mean, of_variance), momentum, factor))
            laws.append([fit for fit in fits if fit[0] <= max(1e-9, min(fits)[0])])
        # One channel alone cannot tell the weight from the factor. Then the two count as alike as they may be.
        (residual, ours, factor), (other_residual, theirs, other_factor) = min(
            itertools.product(*laws),
            key=lambda pair: (abs(pair[0][1] - pair[1][1]) > 1e-9, pair[0][2] != pair[1][2], pair[0][0] + pair[1][0]),
        )
        residual = max(residual, other_residual)
        layers = left.layers["training"][name], right.layers["training"][other]
        where = ", ".join(filter(None, (each.where for each in layers)))
        both = left.parameters(name, "statistics"), right.parameters(other, "statistics")
        pairs = [(in_spreads(left, f"{name}.{role}", both[0][role], both[1][role]), role) for role in ("mean", "variance")]
        differs = any(apart(*pair, float(role == "mean")) > formulas.CLOSE for pair, role in pairs)
        if differs and (name not in alike or residual > 1e-9 or (abs(ours - theirs) <= 1e-9 and factor == other_factor)):
            return []
        if abs(ours - theirs) > 1e-9:
            convention = ", as if it were the weight of the old ones" if abs(ours + theirs - 1) < 1e-9 else ""
            said = (
                f"{left.name}'s {name} gives the new batch the weight {ours:.6g} in its running statistics, {right.name}'s "
                f"{other} {theirs:.6g}{convention}."
            )
            found.setdefault("batch-norm-momentum", []).append(Cause("batch-norm-momentum", said, where, residual))
        if factor != other_factor:
            biased = left if factor == 1.0 else right
            said = (
                f"{biased.name}'s running variance of {name} is the biased one; the other's is {max(factor, other_factor):.6g} "
                "times as large. No option of Keras's layer changes that. --accept biased-variance lets it pass."
            )
            found.setdefault(BIASED, []).append(Cause(BIASED, said, where, residual))
    return [each[0]._replace(residual=max(cause.residual or 0.0 for cause in each)) for each in found.values()]


def of_loss(left: Side, right: Side, names: Sequence[tuple[str, str]], labels: Array) -> list[Cause]:
    """Causes why losses differ of outputs that agree. `names` are those of `of_update`."""
    ours, theirs = left.arrays["loss"].item(), right.arrays["loss"].item()
    outputs = left.arrays["training/logits"]
    known = formulas.losses(outputs, labels)
    decay = _regularizer(left, right, names)
    if decay is not None:
        who, amount, residual = decay
        said = f"{who} adds a regularizer to the loss: {amount:.6g} times the square of each weight of some layers."
        return [Cause("weight-decay", said, "", residual)]
    mine, other = (
        [words for words, value in known.items() if math.isclose(value, loss, rel_tol=1e-9)] for loss in (ours, theirs)
    )
    if not mine or not other or not set(mine).isdisjoint(other):  # the same loss, of outputs that are not quite the same
        return list(_class_weights(left, right, names, labels))
    name = "label-encoding" if "labels" in mine[0] + other[0] and "smoothing" not in mine[0] + other[0] else "loss"
    residual = abs(known[other[0]] - theirs) / abs(theirs)
    return [Cause(name, f"{left.name} computes the {mine[0]}, {right.name} the {other[0]}.", "", residual)]


def _class_weights(left: Side, right: Side, names: Sequence[tuple[str, str]], labels: Array) -> Iterator[Cause]:
    """Losses that weight classes. Those that explain the loss and the gradient of the last layer are its weights."""
    outputs, classes = left.arrays["training/logits"], np.unique(labels)
    for pair in reversed(names) if len(classes) < len(labels) else ():  # else each image may have its own weight
        layers = [name.rpartition(".")[0] for name in pair]
        values = [side.values("training", name) for side, name in zip((left, right), layers, strict=True)]
        if not pair[0].endswith(".kernel") or values[0][0].ndim != 2 or not np.array_equal(values[0][1], outputs):
            continue
        found: list[tuple[Array, float, Array]] = []
        for side, name, (x, logits) in zip((left, right), pair, values, strict=True):
            parts = formulas.by_class(x, logits, labels)
            gradient, loss = _gradient(side, name).reshape(-1), side.arrays["loss"].reshape(-1)
            told = np.concatenate([gradient, loss])
            weights = np.linalg.lstsq(parts, told, rcond=None)[0]
            found.append((weights, apart(parts @ weights, told), parts))
        (ours, _, parts), (theirs, _, _) = found
        if max(found[0][1], found[1][1]) > 1e-9 or apart(ours, theirs) <= 1e-9:
            return
        residual = apart(parts[-1:] @ theirs, right.arrays["loss"])
        words = [_of_classes(classes, each) for each in (ours, theirs)]
        said = f"{left.name} weights {words[0]}, {right.name} {words[1]}."
        if close(ours / ours[0], theirs / theirs[0]):
            total = [float(each[np.searchsorted(classes, labels)].sum()) for each in (ours, theirs)]
            divisors = [
                "the sum of the weights" if math.isclose(each, 1) else "another number, such as that of the images"
                for each in total
            ]
            said = f"Both weight {words[0]}. {left.name} divides by {divisors[0]}, {right.name} by {divisors[1]}."
        yield Cause("class-weights", said, "", residual)
        return


def _of_classes(classes: Array, weights: Array) -> str:
    """`the classes 0, 1 and 2 as 1 : 2 : 0.5`."""
    if close(weights, np.full_like(weights, weights[0])):
        return "all classes alike"
    more = ", ..." if len(classes) > _MOST_RUNS else ""
    named, ratio = classes[:_MOST_RUNS], weights[:_MOST_RUNS] / weights[0]
    return f"the classes {', '.join(map(str, named))}{more} as {' : '.join(f'{each:.6g}' for each in ratio)}"


def _regularizer(left: Side, right: Side, names: Sequence[tuple[str, str]]) -> tuple[str, float, float] | None:
    """(who, its factor, what is left) if gradients differ by a multiple of the weights."""
    difference = (right.arrays["loss"] - left.arrays["loss"]).item()
    side, sign = (right, 1) if difference > 0 else (left, -1)
    total, factor = 0.0, 0.0
    for mine, theirs in names:
        ours, others = _gradient(left, mine), _gradient(right, theirs)
        if close(ours, others):
            continue
        gap, weights = sign * (others - ours), _start(left, mine)
        factor = _ratio(gap, 2 * weights)
        if apart(gap, 2 * factor * weights) > 1e-7:
            return None
        total += factor * float(np.square(weights).sum())
    if factor == 0 or not math.isclose(total, abs(difference), rel_tol=1e-6):
        return None
    return side.name, factor, abs(total - abs(difference)) / abs(difference)


def of_gradients(left: Side, right: Side, names: Sequence[tuple[str, str]], difference: float) -> list[Cause]:
    """Causes why gradients differ, by so much at most, where losses agree. `names` are those of `of_update`."""
    for one, other in names:
        gradients = _gradient(left, one), _gradient(right, other)
        for place, side in enumerate((left, right)):
            if not gradients[place].any() and gradients[1 - place].any():
                name = (one, other)[place]
                layer = side.layers["training"][name.rpartition(".")[0]]
                return [Cause("frozen", f"{side.name} does not train {name}: its gradient is zero.", layer.where or "")]
    return _rounded_sixth((left, right), names, difference)


def _rounded_sixth(sides: tuple[Side, Side], names: Sequence[tuple[str, str]], difference: float) -> list[Cause]:
    """A hard sigmoid divides by six. PyTorch multiplies its gradient by a sixth of float32, in float64 too.

    In front of the last hard sigmoid the gradients differ by just that factor. Behind it they agree.
    """
    off = abs(formulas.SIXTH - 1.0)
    for place, side in enumerate(sides):
        layers = side.layers["training"]
        gates = [at for at, layer in enumerate(layers.values()) if _is_hard_sigmoid(layer)]
        if not gates or difference > _SIXTHS * len(gates) * off:
            continue
        order = {name: at for at, name in enumerate(layers)}
        pairs = {pair[place]: [_gradient(each, name) for each, name in zip(sides, pair, strict=True)] for pair in names}
        least = _SMALL * max(float(np.abs(each).max(initial=0.0)) for pair in pairs.values() for each in pair)
        for name, gradients in reversed(pairs.items()):
            layer = name.rpartition(".")[0]
            if order[layer] > gates[-1]:
                if apart(gradients[0], gradients[1], least) > _BEHIND:
                    break
                continue
            residual = apart(gradients[place], gradients[1 - place] * formulas.SIXTH)
            if residual <= _LEFT * off and np.any(gradients[place]):
                said = (
                    f"Behind {layer}, {side.name} multiplies the gradient of a hard sigmoid by a sixth that is rounded to "
                    "float32, where float64 was asked for."
                )
                return [Cause(ROUNDED, said, layers[layer].where or "", residual)]
    return []


def _is_hard_sigmoid(layer: Layer) -> bool:
    return "function" in layer.settings and formulas.stated_activation(layer.settings) == "hard sigmoid"


def of_update(
    rule: str, left: Side, right: Side, names: Sequence[tuple[str, str]], judged: Sequence[npt.NDArray[np.bool_]]
) -> list[Cause]:
    """Causes why an update differs where gradients agree.

    Args:
        rule: of `Ask.rules`.
        left, right: the models.
        names: pairs of parameters that have gradients.
        judged: bool[n] for each pair. The components that are no rounding.
    """
    settings = left.optimizers[rule], right.optimizers[rule]
    sides = left, right
    own = [[pair[place] for pair in names] for place in (0, 1)]
    told = np.concatenate(judged)
    weights, gradients, firsts = (
        [
            np.concatenate([side.arrays[prefix + name].reshape(-1) for name in own[place]])[told]
            for place, side in enumerate(sides)
        ]
        for prefix in ("start/", "gradients/", f"{rule}/first/")
    )
    changes = [first - start for first, start in zip(firsts, weights, strict=True)]
    predicted = [formulas.first_update(each, weights[place], gradients[place]) for place, each in enumerate(settings)]
    known = all(each is not None and apart(each, changes[place]) < 1e-6 for place, each in enumerate(predicted))
    corrected = formulas.first_update(settings[1], weights[0], gradients[0]) if known else None
    residual = None if corrected is None else apart(corrected, changes[1])
    return of_settings((left.name, right.name), settings, residual)


def of_settings(names: tuple[str, str], settings: Sequence[Mapping[str, Any]], residual: float | None = None) -> list[Cause]:
    """Settings of two optimizers that make them part, at the first update or later.

    Args:
        names: of the frameworks.
        settings: of their optimizers.
        residual: what is left of the difference if both have the second one's. None: it was not tried out.
    """
    (ours, theirs), (one, other) = settings, names
    found: list[Cause] = []
    more = optimizer_settings((one, other), settings)
    keys = ("learning_rate", "momentum", "nesterov")
    if ours["rule"] == theirs["rule"] and "schedule" in ours["more"] | theirs["more"]:
        said = (
            f"The optimizers start at the learning rates {ours['learning_rate']:.9g} and {theirs['learning_rate']:.9g}. {more}"
        )
        found.append(Cause("learning-rate", said, "", residual))
    elif ours["rule"] != theirs["rule"] or any(ours[key] != theirs[key] for key in keys):
        said = "rule {rule}, learning rate {learning_rate:.9g}, momentum {momentum:.9g}"
        found.append(
            Cause("learning-rate", f"{one} takes {said.format(**ours)}; {other} {said.format(**theirs)}.", "", residual)
        )
    if ours["rule"] == theirs["rule"] == "adam" and any(
        ours[key] != theirs[key] for key in ("epsilon", "epsilon_before_correction")
    ):
        words = {True: "before", False: "after"}
        said = [f"{each['epsilon']:g} {words[each['epsilon_before_correction']]} the bias is corrected" for each in settings]
        found.append(Cause("adam-epsilon", f"{one}'s Adam adds epsilon {said[0]}, {other}'s {said[1]}.", "", residual))
    keys = ("decay", "epsilon", "epsilon_below_root")
    if (
        ours["rule"] == theirs["rule"] == "rmsprop"
        and residual is not None
        and residual < 1e-6
        and any(ours[key] != theirs[key] for key in keys)
    ):
        words = {True: "below the root", False: "behind the root"}
        said = [f"{each['epsilon']:g} {words[each['epsilon_below_root']]}, with decay {each['decay']:g}" for each in settings]
        found.append(Cause("rmsprop", f"{one}'s RMSprop adds epsilon {said[0]}; {other}'s {said[1]}.", "", residual))
    if any(ours[key] != theirs[key] for key in ("weight_decay", "coupled")) and ours["weight_decay"] + theirs["weight_decay"]:
        words = {True: "as part of the gradient (coupled)", False: "beside it (decoupled)"}
        said = [f"{each['weight_decay']:g} {words[each['coupled']]}" for each in settings]
        found.insert(0, Cause("weight-decay", f"{one} decays weights by {said[0]}, {other} by {said[1]}.", "", residual))
    if not found and more:
        found.append(Cause("learning-rate", more, ""))
    return found


def optimizer_settings(names: tuple[str, str], settings: Sequence[Mapping[str, Any]]) -> str:
    """Settings that one optimizer has, and the other lacks or has otherwise: in words, empty if there are none."""
    more = [each["more"] for each in settings]
    keys = [key for key in {**more[0], **more[1]} if more[0].get(key) != more[1].get(key)]
    told = [f"{key}: {names[0]} {more[0].get(key, 'none')}, {names[1]} {more[1].get(key, 'none')}" for key in keys]
    return f"The optimizers have other settings: {'; '.join(told)}." if told else ""


def _start(side: Side, name: str) -> Array:
    return side.arrays[f"start/{name}"]


def _gradient(side: Side, name: str) -> Array:
    return side.arrays[f"gradients/{name}"]


def _ratio(numerator: Array, denominator: Array) -> float:
    """The factor between two arrays, by least squares."""
    total = float(np.square(denominator).sum())
    return float((numerator * denominator).sum()) / total if total else 0.0
