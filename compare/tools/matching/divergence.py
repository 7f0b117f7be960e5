"""Two measured models, and the first place where their values differ."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from common.matching.records import Array, Layer
from compare.tools.matching import formulas
from compare.tools.matching.alignment import Alignment
from compare.tools.matching.formulas import max_relative_difference

SAME_VALUES_TOLERANCE = 1e-6
"""Largest relative difference of values behind rounded constants that still count as the same values."""


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


@dataclass(frozen=True)
class MeasuredPair:
    """Two measured models, and the pairs of their layers."""

    left: MeasuredModel
    right: MeasuredModel
    alignment: Alignment

    @property
    def sides(self) -> tuple[MeasuredModel, MeasuredModel]:
        return self.left, self.right

    @property
    def frameworks(self) -> dict[str, Any]:
        """The frameworks as values of a cause."""
        return {"one": self.left.name, "other": self.right.name}

    def arrays(self, key: str) -> tuple[Array, Array]:
        """Return an array that both models have."""
        return self.left.arrays[key], self.right.arrays[key]

    def both_running(self, mode: str) -> list[tuple[str, str]]:
        """Return the names of the pairs of layers with parameters that run in a mode."""
        pairs = self.alignment.names.items()
        return [(one, other) for one, other in pairs if one in self.left.layers[mode] and other in self.right.layers[mode]]

    def names(self, prefix: str = "gradients/") -> list[tuple[str, str]]:
        """Return (left name, right name) of the parameters that both models have under a prefix. By default those trained."""
        names: list[tuple[str, str]] = []
        for one, other in self.alignment.names.items():
            for key in self.left.arrays:
                role = key.removeprefix(f"{prefix}{one}.")
                if role != key and f"{prefix}{other}.{role}" in self.right.arrays:
                    names.append((f"{one}.{role}", f"{other}.{role}"))
        return names

    def parameters(self, prefix: str) -> list[tuple[str, Array, Array]]:
        """Return (left name, left array, right array) of these parameters."""
        return [(one, self.left.arrays[prefix + one], self.right.arrays[prefix + other]) for one, other in self.names(prefix)]


def layers_agree(left: MeasuredModel, right: MeasuredModel, one: str, other: str) -> tuple[bool, bool]:
    """Return whether inputs and whether outputs of two layers agree in inference, except constants rounded to float32."""
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

    def layers_of_kind(self, kind: str) -> tuple[list[Layer], list[Layer]]:
        """Layers of each model since the last that agree, of one kind."""
        left, right = ([layer for layer in side if layer.kind == kind] for side in self.layers_since_agreement)
        return left, right

    @property
    def names(self) -> tuple[str, str]:
        return self.sides[0].name, self.sides[1].name

    @property
    def at(self) -> str:
        """The left name of the first layers that differ."""
        return "the output" if self.layers is None else self.layers[0].name

    def named(self, place: int = 0) -> dict[str, Any]:
        """Return the frameworks as values of a cause: `one` is that at this place."""
        return {"one": self.names[place], "other": self.names[1 - place], "place": int(place)}

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


def find_divergence(mode: str, pair: MeasuredPair, images: Array, tolerance: float = formulas.CLOSE) -> Divergence | None:
    """Return the first place where two models differ by more than the tolerance. None: their outputs agree within it."""
    (left, right), alignment = pair.sides, pair.alignment
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
            mode, pair.sides, (one, other), tolerance
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
        _unpaired_layers(layers, last and last[place], pending and pending[place], {names[place] for names in pairs})
        for place, layers in enumerate((ours, theirs))
    )
    earlier, after = tuple(reversed(agreed)), "the image" if last is None else ", ".join(last)
    unpaired_by_side = unpaired[0], unpaired[1]
    return Divergence(
        *(mode, pair.sides, ends, inputs, outputs, earlier[:6], earlier, unpaired_by_side, after),
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
