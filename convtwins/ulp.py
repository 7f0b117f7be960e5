"""Move inputs by one unit in the last place, for `convtwins same --copies 3 --ulp`.

This file needs NumPy alone. Where Convtwins is not installed, copy it beside your script: `from ulp import nudge`.
"""

from __future__ import annotations

import copy
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SEED_VARIABLE, COUNT_VARIABLE = "CONVTWINS_ULP", "CONVTWINS_ULP_COUNT"
"""Environment variables: seed of the directions, and a file that gets a line with the number of values that each call moves."""
_FORMATS = {
    "float64": (52, 0x7FEFFFFFFFFFFFFF), "float32": (23, 0x7F7FFFFF), "float16": (10, 0x7BFF), "bfloat16": (7, 0x7F7F),
    "float8_e4m3fn": (3, 0x7E), "float8_e5m2": (2, 0x7B),
}  # fmt: skip
"""(bits of the mantissa, bits of the largest finite number) of each dtype."""
_calls = itertools.count()


def nudge(values: Any, like: str | None = None) -> Any:
    """Return the values, each moved one unit in the last place up or down. Without `convtwins same --ulp`: unchanged.

    Call it before training, outside of compiled functions: on the data, on the initial weights, or on both. Directions come
    from a generator of its own, so no other draw of the script changes. Zeros, NaN, infinities, integers and plain numbers of
    Python stay. Values that share their memory, such as tied weights, move as one. A variable of Keras or TensorFlow is
    changed in place.

    Args:
        values: an array or tensor of NumPy, PyTorch, JAX, TensorFlow or Keras, or dicts, lists and tuples of these, such as
            `model.state_dict()` or `model.get_weights()`. With JAX any pytree.
        like: dtype that the training computes in, if it is coarser than that of the values, e.g. `bfloat16` with autocast.
    """
    if like is not None and like not in _FORMATS:
        raise ValueError(f"like must be one of {', '.join(_FORMATS)}. Received: {like!r}.")
    if (seed := os.environ.get(SEED_VARIABLE)) is None:
        return values
    moves = _Moves(like, np.random.default_rng([int(seed), next(_calls)]))
    moved = moves.move(values)
    if (file := os.environ.get(COUNT_VARIABLE)) is not None:
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(f"{moves.count}\n")
    return moved


class _Moves:
    """The moves of one call."""

    def __init__(self, like: str | None, generator: np.random.Generator) -> None:
        self.like = like
        self.generator = generator
        self.count = 0
        self.of_memory: dict[Any, tuple[Any, Any]] = {}
        """(values, moved values) by their place in memory. The values are held, so that no other takes the place."""

    def move(self, values: Any) -> Any:
        """Return moved values in the same form."""
        if isinstance(values, dict):
            moved = copy.copy(values)  # keeps a default factory, and the versions in a state_dict
            for name, value in values.items():
                moved[name] = self.move(value)
            return moved
        if isinstance(values, tuple) and hasattr(values, "_fields"):
            return type(values)(*(self.move(value) for value in values))
        if isinstance(values, (list, tuple)):
            return type(values)(self.move(value) for value in values)
        modules: dict[str, Any] = dict(sys.modules)  # a framework that the script has not imported made no value of it
        torch, jax, tensorflow = (modules.get(name) for name in ("torch", "jax", "tensorflow"))
        if torch is not None and isinstance(values, torch.Tensor):
            return self._tensor(values, torch)
        if hasattr(values, "assign") and hasattr(values, "numpy"):  # a variable of Keras, or of TensorFlow, also a tensor to it
            return self._once(id(values), values, lambda: self._assigned(values))
        if tensorflow is not None and tensorflow.is_tensor(values):
            return self._once(id(values), values, lambda: tensorflow.convert_to_tensor(self._array(values.numpy())))
        if jax is not None and isinstance(values, jax.Array):
            return self._once(id(values), values, lambda: jax.device_put(self._array(np.asarray(values)), values.sharding))
        if isinstance(values, np.ndarray):
            place = (values.__array_interface__["data"][0], values.shape, values.strides, values.dtype.str)
            return self._once(place, values, lambda: self._array(values))
        if isinstance(values, np.generic):
            return self._array(np.asarray(values))[()]
        if values is None or isinstance(values, (int, float, complex, str, bytes)):
            return values
        if jax is not None and not jax.tree_util.all_leaves([values]):
            leaves, structure = jax.tree_util.tree_flatten(values)
            return jax.tree_util.tree_unflatten(structure, [self.move(leaf) for leaf in leaves])
        raise TypeError(f"nudge takes arrays, tensors, and dicts, lists and tuples of them. Received: {type(values).__name__}.")

    def _once(self, place: Any, values: Any, move: Callable[[], Any]) -> Any:
        if place not in self.of_memory:
            self.of_memory[place] = values, move()
        return self.of_memory[place][1]

    def _assigned(self, variable: Any) -> Any:
        variable.assign(self._array(np.asarray(variable.numpy())))
        return variable

    def _tensor(self, values: Any, torch: Any) -> Any:
        """Return a moved tensor on the same device, with the same strides and the same need of a gradient."""
        if not values.dtype.is_floating_point:
            return values
        plain = values.detach()

        def move() -> Any:
            integers = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[values.element_size()]
            bits = self._bits(plain.cpu().contiguous().view(integers).numpy(), str(values.dtype).removeprefix("torch."))
            return torch.empty_like(plain).copy_(torch.from_numpy(bits).view(values.dtype))

        place = (plain.data_ptr(), plain.shape, plain.stride(), plain.dtype, str(plain.device))
        moved = self._once(place if plain.numel() else id(values), plain, move)
        if isinstance(values, torch.nn.Parameter):
            return torch.nn.Parameter(moved, values.requires_grad)
        return moved.detach().requires_grad_(values.requires_grad)

    def _array(self, array: Any) -> Any:
        name = array.dtype.name
        if name not in _FORMATS and not name.startswith(("float", "bfloat")):
            return array
        size = array.dtype.itemsize
        return self._bits(array.view(f"i{size}") if size <= 8 else array, name).view(array.dtype)

    def _bits(self, bits: Any, name: str) -> Any:
        """Return the bits of neighbours: as integers, floats of one sign stand in their order."""
        if name not in _FORMATS:
            raise TypeError(
                f"nudge moves values of {', '.join(_FORMATS)}. Received: {name}. Move them before they get that dtype."
            )
        mantissa, largest = _FORMATS[name]
        shift = max(mantissa - _FORMATS[self.like or name][0], 0)
        step = np.where(self.generator.random(bits.shape) < 0.5, 1, -1).astype(bits.dtype) << shift
        magnitude = bits & np.iinfo(bits.dtype).max
        # Zeros and the smallest subnormal numbers stay, and so do those without a finite neighbour.
        stays = (magnitude <= 1 << shift) | (magnitude > largest - (1 << shift))
        self.count += int(np.size(stays) - np.count_nonzero(stays))
        moved = bits.copy(order="K")
        np.add(bits, step, out=moved, where=~stays)
        return moved
