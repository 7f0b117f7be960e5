"""Recording of layers' inputs and outputs in one layout for all frameworks, and the masks of dropout."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from common.matching.records import IMAGE, SEED, Array, Layer

_FIXED_LAYOUT_KINDS = ("conv", "depthwise_conv", "transposed_conv", "batch_norm", "group_norm")
"""Kinds of layers that accept one layout only. An image in the other layout is no image to them."""


class LayerRecorder:
    """Records one pass through a model. Images become NHWC; a flattened image gets the order height, width, channels.

    Args:
        keep: whether to keep layers and values. Masks need only the last image.
        step: training step, the seed of the masks.
        edges: whether to find the sources of each layer's input, which takes longer than the pass.
    """

    def __init__(self, *, keep: bool = True, step: int = 0, edges: bool = False) -> None:
        self.keep, self.step, self._edges = keep, step, edges
        self.layers: list[Layer] = []
        self.values: list[tuple[Array, Array]] = []
        self.orders: dict[str, Array] = {}
        """Order of a flattened image by the layer that takes it: the index in the framework's order of each canonical value."""
        self._image: Array | None = None
        """Last recorded image, NHWC."""
        self._images: list[Array] = []
        """All images so far, NHWC: a model may add an earlier one, or transpose it."""
        self._order: Array | None = None
        self._flatten_order: str | None = None
        self._is_input = False
        """Whether the image is the model's own input. Operations on it before any layer runs are not recorded."""
        self._ordered_image: Array | None = None
        """Last flattened image whose order was determined. Several dense layers may take it."""
        self._last_order: str | None = None
        """Order of `_ordered_image`: `hwc` or `chw`."""
        self._num_masks = 0
        self._input: Array | None = None
        """The model's own input as NHWC."""

    def set_input(self, values: Array, image: Sequence[int], *, channels_first: bool) -> None:
        """Record the model's own input as the first image: a model may flatten it before any layer runs.

        Args:
            values: the input. It is an image if it has the framework's layout, which a user's function may change.
            image: (height, width, channels).
        """
        layouts = tuple(image), (image[2], *image[:2])
        self._input = values.transpose(0, 2, 3, 1) if values.ndim == 4 and channels_first else values
        if values.shape[1:] == layouts[channels_first] and layouts[0] != layouts[1]:
            self._image, self._is_input = self._input, True
            self._images.append(self._input)

    def add(self, layer: Layer, layer_input: Array, layer_output: Array, *, channels_first: bool | None) -> None:
        """Record one call.

        Args:
            layer: the layer, without the fields that a recording adds.
            layer_input, layer_output: in the framework's own layout or, if the model has transposed it, in the other one.
            channels_first: the framework's layout. None: channels are the last axis of an image: the layer works along it.
        """
        if channels_first is None:
            channels_first = False
        elif layer.kind not in _FIXED_LAYOUT_KINDS:  # it gives its output in the layout in which it takes its input
            channels_first ^= self.is_other_layout(layer_input, channels_first)
        canonical_input = self._canonical(layer_input, channels_first)
        order, flattened = (self._order, self._flatten_order) if layer_input.ndim == 2 else (None, None)
        if order is not None:
            self.orders.setdefault(layer.name, order)
        if layer.kind == "dense":
            self._order = self._flatten_order = None
            if not (self._is_input or self._ordered_image is not None):
                self._image = None
        only_permutes = not layer.parameters and _is_axis_permutation(layer_input, layer_output)
        if only_permutes and (
            self._is_layout_change(layer_input, layer_output, channels_first) or self._find_layout(layer_output, channels_first)
        ):
            return  # who reads its output gets the image as it was
        channels_first ^= not layer.parameters and self.is_other_layout(layer_output, channels_first)
        canonical_output = self._canonical(layer_output, channels_first)
        flattened = self._flatten_order if layer.kind == "flatten" else flattened
        if canonical_output.ndim == 4 and not only_permutes:  # else a later one may put the channels first
            self._image, self._order, self._flatten_order = canonical_output, None, None
            self._images.append(canonical_output)
            self._is_input, self._ordered_image, self._last_order = False, None, None
        if not self.keep:
            return
        names = {recorded_layer.name for recorded_layer in self.layers}
        name, calls = layer.name, 1
        while name in names:  # the same layer is called again
            calls += 1
            name = f"{layer.name}#{calls}"
        values = canonical_input.astype(np.float64), canonical_output.astype(np.float64)
        update = {
            "name": name,
            "output": list(canonical_output.shape[1:]),
            "dtype": layer_output.dtype.name,
            "flattened": flattened,
        }
        edges = self._find_edges(layer.kind, *values) if self._edges else []
        self.layers.append(layer.model_copy(update={**update, "fed_by": edges}))
        self.values.append(values)

    def keep_mask(self, layer_input: Array, shape: Sequence[int], rate: float, *, channels_first: bool) -> Array:
        """Draw the mask of the values that a dropout keeps, in the framework's layout. All frameworks draw the same.

        Args:
            layer_input: in the framework's layout or, if the model has transposed it, in the other one.
            shape: shape of the mask: that of `layer_input`, or 1 where values are dropped together.
        """
        self._canonical(layer_input, channels_first)  # finds the order of an image that the model itself has just flattened
        channels_first ^= self.is_other_layout(layer_input, channels_first)
        canonical = (shape[0], shape[2], shape[3], shape[1]) if len(shape) == 4 and channels_first else tuple(shape)
        draw = np.random.default_rng([SEED, 1, self.step, self._num_masks]).random(canonical)
        self._num_masks += 1
        mask = draw >= rate
        if len(shape) == 4:
            return mask.transpose(0, 3, 1, 2) if channels_first else mask
        if self._order is not None and len(shape) == 2 and shape[1] == len(self._order):
            native = np.empty_like(mask)
            native[:, self._order] = mask
            return native
        return mask

    def is_other_layout(self, array: Array, channels_first: bool) -> bool:
        """Return whether values are an image in the other layout, as after torch's `permute` or Keras's Permute((3, 1, 2)).

        Values are compared with recorded images. For values that no layer returned, the shape of the last image decides.
        """
        if array.ndim != 4 or self._image is None:
            return False
        is_other = self._find_layout(array, channels_first)
        if is_other is not None:
            return is_other
        native, other = _layouts(self._image, channels_first)
        return array.shape == other.shape != native.shape

    def _find_layout(self, array: Array, channels_first: bool) -> bool | None:
        """Return whether values are a recorded image in the other layout. The last fitting one counts. None: none fits."""
        for image in reversed(self._images):
            native, other = _layouts(image, channels_first)
            if _is_equal(native, array):
                return False
            if _is_equal(other, array):
                return True
        return None

    def _find_edges(self, kind: str, layer_input: Array, layer_output: Array) -> list[str]:
        """Find the calls for `Layer.fed_by`: those whose output equals the layer's input.

        Values that several layers returned, such as zeros from weights that are initially zero, identify no call.
        """
        if kind == "concatenate":
            return self._concatenated_sources(layer_output)
        if kind != "add":
            return self._sources(layer_input)
        rest = layer_output - layer_input if layer_output.shape == layer_input.shape else None
        other = (
            [] if rest is None else self._unique_source([pair for pair in self._recorded_outputs() if _is_close(pair[1], rest)])
        )
        sources = self._sources(layer_input)
        return [*sources, *other] if sources and other else []

    def _sources(self, values: Array) -> list[str]:
        """Find the calls that returned values: one, or several that are concatenated. An unrecorded ReLU may follow them."""
        for relu in (False, True):
            if matches := [(name, output) for name, output in self._recorded_outputs() if _is_equal(output, values, relu=relu)]:
                return self._unique_source(matches)
            if sources := self._concatenated_sources(values, relu=relu):
                return sources
            for layer, (layer_input, _) in zip(self.layers, self.values, strict=True):
                if layer.kind not in ("add", "concatenate") and layer.fed_by and _is_equal(layer_input, values, relu=relu):
                    return layer.fed_by
        return [] if any(layer.parameters for layer in self.layers) else [IMAGE]

    def _unique_source(self, matches: Sequence[tuple[str, Array]]) -> list[str]:
        """Return the first of these calls, if each only passes on the next one's output. Empty if all values are equal."""
        if not matches or np.ptp(matches[0][1]) == 0:
            return []
        by_name = {layer.name: layer for layer in self.layers}
        passes_through = (
            name in by_name and not by_name[name].parameters and by_name[name].fed_by == [previous_name]
            for (name, _), (previous_name, _) in itertools.pairwise(matches)
        )
        return [matches[0][0]] if all(passes_through) else []

    def _recorded_outputs(self) -> Iterable[tuple[str, Array]]:
        """Yield (name of the call, its output), latest first. The model's input comes last."""
        for layer, (_, output) in zip(reversed(self.layers), reversed(self.values), strict=True):
            yield layer.name, output
        if self._input is not None:
            yield IMAGE, self._input

    def _concatenated_sources(self, values: Array, *, relu: bool = False) -> list[str]:
        """Find the calls whose outputs are concatenated along the last axis. Empty: there are none."""
        names: list[str] = []
        start, num_channels = 0, values.shape[-1]
        while start < num_channels:
            matches = [
                (name, output)
                for name, output in self._recorded_outputs()
                if output.shape[:-1] == values.shape[:-1]
                and _is_equal(output, values[..., start : start + output.shape[-1]], relu=relu)
            ]
            size = max((output.shape[-1] for _, output in matches), default=0)
            if not (sources := self._unique_source([pair for pair in matches if pair[1].shape[-1] == size])):
                return []
            names += sources
            start += size
        return names

    def _is_layout_change(self, layer_input: Array, layer_output: Array, channels_first: bool) -> bool:
        """Return whether a layer has transposed an image into the other layout. The image need not be recorded."""
        if layer_output.shape == layer_input.shape or layer_input.shape[1:3] == (1, 1) or layer_input.shape[3] == 1:
            return False
        return np.array_equal(layer_output, layer_input.transpose((0, 2, 3, 1) if channels_first else (0, 3, 1, 2)))

    def _canonical(self, array: Array, channels_first: bool) -> Array:
        if array.ndim == 4:
            return array.transpose(0, 2, 3, 1) if channels_first else array
        if array.ndim != 2 or self._image is None:
            return array
        height, width, channels = self._image.shape[1:]
        if array.shape[1] != height * width * channels or height * width == 1 or channels == 1:
            return array
        if self._order is None:
            flat_by_order = {
                "hwc": self._image.reshape(len(array), -1),
                "chw": self._image.transpose(0, 3, 1, 2).reshape(len(array), -1),
            }
            orders = [name for name, flat in flat_by_order.items() if np.array_equal(flat, array)]
            default = "chw" if channels_first else "hwc"
            if (
                len(orders) != 1 and self._ordered_image is not None
            ):  # behind a dense layer, another array may have as many values
                if not np.array_equal(self._ordered_image, array):
                    return array
            elif not orders and self._is_input:
                orders = [name for name, flat in flat_by_order.items() if _is_scaled(flat, array)]
                if len(orders) != 1:
                    return array
            self._flatten_order = orders[0] if len(orders) == 1 else self._last_order or default
            self._last_order, self._ordered_image = self._flatten_order, array
            positions = np.arange(math.prod((height, width, channels)))
            chw = positions.reshape(channels, height, width).transpose(1, 2, 0).reshape(-1)
            self._order = chw if self._flatten_order == "chw" else positions
        return array[:, self._order]


def _layouts(image: Array, channels_first: bool) -> tuple[Array, Array]:
    """Return a canonical image in the framework's own layout, and in the other one."""
    first = image.transpose(0, 3, 1, 2)
    return (first, image) if channels_first else (image, first)


def _is_equal(output: Array, values: Array, *, relu: bool = False) -> bool:
    """Return whether values are equal, after a ReLU if `relu`. A flattened image equals the image."""
    if output.shape != values.shape:
        if values.ndim != 2 or len(output) != len(values) or output.size != values.size:
            return False
        output = output.reshape(values.shape)
    for index in (np.s_[:1, ..., :1], np.s_[:]):  # most differ in the first values
        if not np.array_equal(np.maximum(output[index], 0) if relu else output[index], values[index]):
            return False
    return True


def _is_close(output: Array, expected: Array) -> bool:
    """Return whether values are equal up to the rounding of a sum."""
    if output.shape != expected.shape:
        return False
    return all(
        np.allclose(output[index], expected[index]) for index in (np.s_[:1, ..., :1], np.s_[:])
    )  # most differ in the first values


def _is_scaled(image: Array, array: Array) -> bool:
    """Return whether each value was only scaled and shifted, in the same way in all images."""
    if len(image) < 4:
        return False
    left, right = (values - values.mean(0) for values in (image, array))
    products = (left * right).sum(0) ** 2, (left * left).sum(0) * (right * right).sum(0)
    return bool(np.allclose(*products, rtol=1e-6, atol=0))


def _is_axis_permutation(layer_input: Array, layer_output: Array) -> bool:
    """Return whether images differ only by the order of their axes."""
    if layer_input.ndim != 4 or layer_output.ndim != 4:
        return False
    orders = (order for order in itertools.permutations((1, 2, 3)) if order != (1, 2, 3))
    return any(np.array_equal(layer_output, layer_input.transpose(0, *order)) for order in orders)


def to_canonical(array: Array, role: str, order: Array | None) -> Array:
    """Reorder the inputs of a parameter that follows a flattened image. Its other axes are canonical already."""
    if order is None or role == "bias":
        return array
    return array[order]


def to_native(array: Array, role: str, order: Array | None) -> Array:
    """Undo `to_canonical`."""
    if order is None or role == "bias":
        return array
    native = np.empty_like(array)
    native[order] = array
    return native


def same_padding(size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """Return (before, after) of TensorFlow's `same` padding."""
    total = max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return total // 2, total - total // 2


def unique_names(model: Any, sublayers: Callable[[Any], Iterable[Any]]) -> dict[int, str]:
    """Return a unique name for each layer of a model, by its id. Layers that share a name get their parents' names as a prefix.

    Args:
        model: a model whose layers have a `name`.
        sublayers: returns the direct sublayers of a layer, in order.
    """
    paths: dict[int, tuple[str, ...]] = {}

    def walk(layer: Any, parents: tuple[str, ...]) -> None:
        for sublayer in sublayers(layer):
            if id(sublayer) not in paths:  # else it is shared
                paths[id(sublayer)] = (*parents, sublayer.name)
                walk(sublayer, paths[id(sublayer)])

    walk(model, ())
    num_layers, num_given = Counter(path[-1] for path in paths.values()), Counter[str]()
    names: dict[int, str] = {}
    for key, path in paths.items():
        name = path[-1] if num_layers[path[-1]] == 1 else "/".join(path)
        num_given[name] += 1
        names[key] = name if num_given[name] == 1 else f"{name}~{num_given[name]}"
    return names
