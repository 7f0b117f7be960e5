"""Records what layers take and give in one layout for all frameworks, and draws the masks of dropout."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from common.matching.records import IMAGE, SEED, Array, Layer

_OF_ONE_LAYOUT = ("conv", "depthwise_conv", "transposed_conv", "batch_norm", "group_norm")
"""Kinds of layers that know one layout alone. An image that was turned is no image to them."""


class Recorder:
    """One pass through a model. Images become NHWC; an image that was flattened has the order height, width, channels.

    Args:
        keep: whether layers and values are kept. Masks need no more than the last image.
        step: of the training, for the masks.
        edges: whether what feeds each layer is looked for, which takes longer than the pass.
    """

    def __init__(self, *, keep: bool = True, step: int = 0, edges: bool = False) -> None:
        self.keep, self.step, self._edges = keep, step, edges
        self.layers: list[Layer] = []
        self.values: list[tuple[Array, Array]] = []
        self.orders: dict[str, Array] = {}
        """Of a layer that takes a flattened image: the place in the framework's order of each canonical value."""
        self._image: Array | None = None
        """The last one."""
        self._images: list[Array] = []
        """All so far: a model may add an earlier one, or turn it."""
        self._order: Array | None = None
        self._flattened: str | None = None
        self._is_input = False
        """Whether the image is the model's own input. What is done to it before any layer runs is not recorded."""
        self._ordered: Array | None = None
        """The last flattened image that got an order. Several dense layers may take it."""
        self._last: str | None = None
        """Its order."""
        self._masks = 0
        self._input: Array | None = None
        """The model's own input as NHWC."""

    def takes(self, given: Array, image: Sequence[int], *, channels_first: bool) -> None:
        """The model's own input is the first image: a model may flatten it before any layer runs.

        Args:
            given: in the framework's own layout. In another one, as a user's function may prepare it, it is left alone.
            image: (height, width, channels).
        """
        layouts = tuple(image), (image[2], *image[:2])
        self._input = given.transpose(0, 2, 3, 1) if given.ndim == 4 and channels_first else given
        if given.shape[1:] == layouts[channels_first] and layouts[0] != layouts[1]:
            self._image, self._is_input = self._input, True
            self._images.append(self._input)

    def add(self, layer: Layer, given: Array, made: Array, *, channels_first: bool | None) -> None:
        """Record one call.

        Args:
            layer: what is known of it.
            given, made: its input and output, in the framework's own layout or, if the model has turned it, in the other one.
            channels_first: that layout. None: of an image, the channels are the last axis, since the layer works along that.
        """
        if channels_first is None:
            channels_first = False
        elif layer.kind not in _OF_ONE_LAYOUT:  # it gives its output in the layout in which it takes its input
            channels_first ^= self.is_turned(given, channels_first)
        taken = self._canonical(given, channels_first)
        order, flattened = (self._order, self._flattened) if given.ndim == 2 else (None, None)
        if order is not None:
            self.orders.setdefault(layer.name, order)
        if layer.kind == "dense":
            self._order = self._flattened = None
            if not (self._is_input or self._ordered is not None):
                self._image = None
        only_exchanges = not layer.parameters and _exchanges_axes(given, made)
        if only_exchanges and (self._turns(given, made, channels_first) or self._told(made, channels_first)):
            return  # who reads its output gets the image as it was
        channels_first ^= not layer.parameters and self.is_turned(made, channels_first)
        given_out = self._canonical(made, channels_first)
        flattened = self._flattened if layer.kind == "flatten" else flattened
        if given_out.ndim == 4 and not only_exchanges:  # else a later one may put the channels first
            self._image, self._order, self._flattened = given_out, None, None
            self._images.append(given_out)
            self._is_input, self._ordered, self._last = False, None, None
        if not self.keep:
            return
        known = {each.name for each in self.layers}
        name, calls = layer.name, 1
        while name in known:  # the same layer is called again
            calls += 1
            name = f"{layer.name}#{calls}"
        values = taken.astype(np.float64), given_out.astype(np.float64)
        update = {"name": name, "output": list(given_out.shape[1:]), "dtype": made.dtype.name, "flattened": flattened}
        edges = self._fed_by(layer.kind, *values) if self._edges else []
        self.layers.append(layer.model_copy(update={**update, "fed_by": edges}))
        self.values.append(values)

    def keep_mask(self, given: Array, shape: Sequence[int], rate: float, *, channels_first: bool) -> Array:
        """Which values a dropout keeps, in the framework's layout: the same draw in all frameworks.

        Args:
            given: what it takes, in that layout or, if the model has turned it, in the other one.
            shape: of the mask: that of `given`, or 1 where values are dropped together.
        """
        self._canonical(given, channels_first)  # finds the order of an image that the model itself has just flattened
        channels_first ^= self.is_turned(given, channels_first)
        canonical = (shape[0], shape[2], shape[3], shape[1]) if len(shape) == 4 and channels_first else tuple(shape)
        draw = np.random.default_rng([SEED, 1, self.step, self._masks]).random(canonical)
        self._masks += 1
        kept = draw >= rate
        if len(shape) == 4:
            return kept.transpose(0, 3, 1, 2) if channels_first else kept
        if self._order is not None and len(shape) == 2 and shape[1] == len(self._order):
            native = np.empty_like(kept)
            native[:, self._order] = kept
            return native
        return kept

    def is_turned(self, array: Array, channels_first: bool) -> bool:
        """Whether values are an image in the other layout, as torch's `permute` or Keras's Permute((3, 1, 2)) puts it.

        Values tell. Those that no layer gave, as a function makes them, tell by the shape of the last image.
        """
        if array.ndim != 4 or self._image is None:
            return False
        told = self._told(array, channels_first)
        if told is not None:
            return told
        native, other = _layouts(self._image, channels_first)
        return array.shape == other.shape != native.shape

    def _told(self, array: Array, channels_first: bool) -> bool | None:
        """Whether values are an image in the other layout: the last one that fits. None: they are no image so far."""
        for image in reversed(self._images):
            native, other = _layouts(image, channels_first)
            if _same(native, array):
                return False
            if _same(other, array):
                return True
        return None

    def _fed_by(self, kind: str, taken: Array, made: Array) -> list[str]:
        """See `Layer.fed_by`. An edge is where a layer takes the values that another one gave.

        Values that several layers gave, such as the zeros of weights that begin as zeros, tell nothing.
        """
        if kind == "concatenate":
            return self._joined(made)
        if kind != "add":
            return self._sources(taken)
        rest = made - taken if made.shape == taken.shape else None
        other = [] if rest is None else self._one_of([pair for pair in self._given() if _near(pair[1], rest)])
        sources = self._sources(taken)
        return [*sources, *other] if sources and other else []

    def _sources(self, taken: Array) -> list[str]:
        """The calls that gave values: one, or several that are joined. A ReLU that is not recorded may stand behind them."""
        for relu in (False, True):
            if fitting := [(name, made) for name, made in self._given() if _same(made, taken, relu=relu)]:
                return self._one_of(fitting)
            if joined := self._joined(taken, relu=relu):
                return joined
            for layer, (own, _) in zip(self.layers, self.values, strict=True):
                if layer.kind not in ("add", "concatenate") and layer.fed_by and _same(own, taken, relu=relu):
                    return layer.fed_by
        return [] if any(layer.parameters for layer in self.layers) else [IMAGE]

    def _one_of(self, fitting: Sequence[tuple[str, Array]]) -> list[str]:
        """The first of these calls, if each only hands on what the next one gave. None where all values are the same."""
        if not fitting or np.ptp(fitting[0][1]) == 0:
            return []
        by_name = {layer.name: layer for layer in self.layers}
        hands_on = (
            one in by_name and not by_name[one].parameters and by_name[one].fed_by == [other]
            for (one, _), (other, _) in itertools.pairwise(fitting)
        )
        return [fitting[0][0]] if all(hands_on) else []

    def _given(self) -> Iterable[tuple[str, Array]]:
        """(name of the call, its output), the last first. The model's input comes last."""
        for layer, (_, made) in zip(reversed(self.layers), reversed(self.values), strict=True):
            yield layer.name, made
        if self._input is not None:
            yield IMAGE, self._input

    def _joined(self, values: Array, *, relu: bool = False) -> list[str]:
        """The calls whose outputs stand side by side in the last axis. Empty: there are none."""
        found: list[str] = []
        done, whole = 0, values.shape[-1]
        while done < whole:
            fitting = [
                (name, each)
                for name, each in self._given()
                if each.shape[:-1] == values.shape[:-1] and _same(each, values[..., done : done + each.shape[-1]], relu=relu)
            ]
            size = max((each.shape[-1] for _, each in fitting), default=0)
            if not (one := self._one_of([pair for pair in fitting if pair[1].shape[-1] == size])):
                return []
            found += one
            done += size
        return found

    def _turns(self, given: Array, made: Array, channels_first: bool) -> bool:
        """Whether a layer has put an image into the other layout. The image may come from what is not recorded."""
        if made.shape == given.shape or given.shape[1:3] == (1, 1) or given.shape[3] == 1:
            return False
        return np.array_equal(made, given.transpose((0, 2, 3, 1) if channels_first else (0, 3, 1, 2)))

    def _canonical(self, array: Array, channels_first: bool) -> Array:
        if array.ndim == 4:
            return array.transpose(0, 2, 3, 1) if channels_first else array
        if array.ndim != 2 or self._image is None:
            return array
        height, width, channels = self._image.shape[1:]
        if array.shape[1] != height * width * channels or height * width == 1 or channels == 1:
            return array
        if self._order is None:
            by = {
                "hwc": self._image.reshape(len(array), -1),
                "chw": self._image.transpose(0, 3, 1, 2).reshape(len(array), -1),
            }
            same = [name for name, flat in by.items() if np.array_equal(flat, array)]
            default = "chw" if channels_first else "hwc"
            if len(same) != 1 and self._ordered is not None:  # behind a dense layer, another array may have as many values
                if not np.array_equal(self._ordered, array):
                    return array
            elif not same and self._is_input:
                same = [name for name, flat in by.items() if _scaled(flat, array)]
                if len(same) != 1:
                    return array
            self._flattened = same[0] if len(same) == 1 else self._last or default
            self._last, self._ordered = self._flattened, array
            places = np.arange(math.prod((height, width, channels)))
            chw = places.reshape(channels, height, width).transpose(1, 2, 0).reshape(-1)
            self._order = chw if self._flattened == "chw" else places
        return array[:, self._order]


def _layouts(image: Array, channels_first: bool) -> tuple[Array, Array]:
    """A canonical image in the framework's own layout, and in the other one."""
    first = image.transpose(0, 3, 1, 2)
    return (first, image) if channels_first else (image, first)


def _same(made: Array, taken: Array, *, relu: bool = False) -> bool:
    """Whether values are the same, or the same of each example where an image was flattened, behind a ReLU if there is one."""
    if made.shape != taken.shape:
        if taken.ndim != 2 or len(made) != len(taken) or made.size != taken.size:
            return False
        made = made.reshape(taken.shape)
    for few in (np.s_[:1, ..., :1], np.s_[:]):  # most differ in the first values
        if not np.array_equal(np.maximum(made[few], 0) if relu else made[few], taken[few]):
            return False
    return True


def _near(made: Array, rest: Array) -> bool:
    """Whether values are the same, except for the rounding of a sum."""
    if made.shape != rest.shape:
        return False
    return all(np.allclose(made[few], rest[few]) for few in (np.s_[:1, ..., :1], np.s_[:]))  # most differ in the first values


def _scaled(image: Array, array: Array) -> bool:
    """Whether each value of some images was only scaled and shifted, by the same in each of them."""
    if len(image) < 4:
        return False
    left, right = (each - each.mean(0) for each in (image, array))
    products = (left * right).sum(0) ** 2, (left * left).sum(0) * (right * right).sum(0)
    return bool(np.allclose(*products, rtol=1e-6, atol=0))


def _exchanges_axes(given: Array, made: Array) -> bool:
    """Whether images differ by the order of their axes alone."""
    if given.ndim != 4 or made.ndim != 4:
        return False
    orders = (order for order in itertools.permutations((1, 2, 3)) if order != (1, 2, 3))
    return any(np.array_equal(made, given.transpose(0, *order)) for order in orders)


def to_canonical(array: Array, role: str, order: Array | None) -> Array:
    """Reorder the inputs of a parameter behind a flattened image. Its other axes are canonical already."""
    if order is None or role == "bias":
        return array
    return array[order]


def to_native(array: Array, role: str, order: Array | None) -> Array:
    """The reverse of `to_canonical`."""
    if order is None or role == "bias":
        return array
    native = np.empty_like(array)
    native[order] = array
    return native


def same_padding(size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """(before, after) of TensorFlow's `same` padding."""
    total = max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return total // 2, total - total // 2


def unique_names(model: Any, held: Callable[[Any], Iterable[Any]]) -> dict[int, str]:
    """A name for each layer of a model, by its id: its own. Where several have that one, the names around it stand before it.

    Args:
        model: whose layers have a `name`.
        held: the layers that a layer holds itself, in order.
    """
    paths: dict[int, tuple[str, ...]] = {}

    def walk(layer: Any, around: tuple[str, ...]) -> None:
        for each in held(layer):
            if id(each) not in paths:  # else it is shared
                paths[id(each)] = (*around, each.name)
                walk(each, paths[id(each)])

    walk(model, ())
    shared, given = Counter(path[-1] for path in paths.values()), Counter[str]()
    found: dict[int, str] = {}
    for key, path in paths.items():
        name = path[-1] if shared[path[-1]] == 1 else "/".join(path)
        given[name] += 1
        found[key] = name if given[name] == 1 else f"{name}~{given[name]}"
    return found
