"""Move inputs by one unit in the last place, for `convtwins same --copies 3 --ulp`.

This file needs NumPy alone. Where Convtwins is not installed, copy it beside your script: `from ulp import nudge`.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

SEED_VARIABLE, COUNT_VARIABLE = "CONVTWINS_ULP", "CONVTWINS_ULP_COUNT"
"""Environment variables: seed of the directions, and a file that gets a line with the number of values that each call moves."""
_MANTISSA_BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}
_calls = itertools.count()


def nudge(values: Any, like: str | None = None) -> Any:
    """Return the values, each moved one unit in the last place up or down. Without `convtwins same --ulp`: unchanged.

    Call it before training, outside of compiled functions: on the data, on the initial weights, or on both. Directions come
    from a generator of its own, so no other draw of the script changes. Zeros, NaN, infinities and integers stay.

    Args:
        values: an array or tensor of NumPy, PyTorch, JAX, TensorFlow or Keras, or dicts, lists and tuples of these, such as
            `model.state_dict()` or `model.get_weights()`. With JAX any pytree.
        like: dtype that the training computes in, if it is coarser than that of the values, e.g. `bfloat16` with autocast.
    """
    if like is not None and like not in _MANTISSA_BITS:
        raise ValueError(f"like must be one of {', '.join(_MANTISSA_BITS)}. Received: {like!r}.")
    if (seed := os.environ.get(SEED_VARIABLE)) is None:
        return values
    generator = np.random.default_rng([int(seed), next(_calls)])
    count = [0]
    moved = _move(values, like, generator, count)
    if (file := os.environ.get(COUNT_VARIABLE)) is not None:
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(f"{count[0]}\n")
    return moved


def _move(values: Any, like: str | None, generator: np.random.Generator, count: list[int]) -> Any:
    if isinstance(values, dict):
        items = {name: _move(value, like, generator, count) for name, value in values.items()}
        return type(values)(items)
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*(_move(value, like, generator, count) for value in values))
    if isinstance(values, (list, tuple)):
        return type(values)(_move(value, like, generator, count) for value in values)
    modules: dict[str, Any] = dict(sys.modules)  # a framework that the script has not imported made no value of it
    torch, jax, tensorflow = (modules.get(name) for name in ("torch", "jax", "tensorflow"))
    if torch is not None and isinstance(values, torch.Tensor):
        if not values.dtype.is_floating_point:
            return values
        name = str(values.dtype).removeprefix("torch.")
        integers = {8: torch.int64, 4: torch.int32, 2: torch.int16}[values.element_size()]
        bits = values.detach().cpu().contiguous().view(integers).numpy()
        finite = torch.isfinite(values.detach()).cpu().numpy()
        moved = torch.from_numpy(_moved_bits(bits, finite, name, like, generator, count)).view(values.dtype).to(values.device)
        return torch.nn.Parameter(moved, values.requires_grad) if isinstance(values, torch.nn.Parameter) else moved
    if tensorflow is not None and tensorflow.is_tensor(values):
        return tensorflow.convert_to_tensor(_moved_array(values.numpy(), like, generator, count))
    if jax is not None and isinstance(values, jax.Array):
        return jax.device_put(_moved_array(np.asarray(values), like, generator, count), values.sharding)
    if isinstance(values, (np.ndarray, np.generic)):
        return _moved_array(np.asarray(values), like, generator, count)
    if hasattr(values, "numpy") and hasattr(values, "assign"):  # a variable of Keras or TensorFlow
        values.assign(_moved_array(np.asarray(values.numpy()), like, generator, count))
        return values
    if jax is not None and not jax.tree_util.all_leaves([values]):
        leaves, structure = jax.tree_util.tree_flatten(values)
        return jax.tree_util.tree_unflatten(structure, [_move(leaf, like, generator, count) for leaf in leaves])
    if isinstance(values, (int, str, bytes, type(None))):
        return values
    raise TypeError(f"nudge takes arrays, tensors, and dicts, lists and tuples of them. Received: {type(values).__name__}.")


def _moved_array(array: Any, like: str | None, generator: np.random.Generator, count: list[int]) -> Any:
    if array.dtype.name not in _MANTISSA_BITS:
        return array
    array = np.ascontiguousarray(array)
    bits = array.view(f"i{array.dtype.itemsize}")
    return _moved_bits(bits, np.isfinite(array), array.dtype.name, like, generator, count).view(array.dtype)


def _moved_bits(bits: Any, finite: Any, name: str, like: str | None, generator: np.random.Generator, count: list[int]) -> Any:
    """Return the bits of neighbours: as integers, floats of one sign stand in their order."""
    shift = max(_MANTISSA_BITS[name] - _MANTISSA_BITS[like or name], 0)
    step = np.where(generator.random(bits.shape) < 0.5, 1, -1).astype(bits.dtype) << shift
    magnitude = bits & np.iinfo(bits.dtype).max
    stays = ~finite | (magnitude <= abs(step))  # zeros and the smallest subnormal numbers
    count[0] += int(np.size(stays) - np.count_nonzero(stays))
    return np.where(stays, bits, bits + step)
