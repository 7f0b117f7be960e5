"""The CNNs, built from `common.models.architectures`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from common.models import architectures, user_code
from common.models import weights as common_weights
from common.models.architectures import Architecture, Layer
from jax_impl import batch_norm
from jax_impl.batch_norm import ReplicaGroup

Arrays = dict[str, Any]
"""Arrays by canonical name. Twin: JAX's layouts are the canonical ones."""
Network = Callable[..., tuple[jax.Array, Arrays]]
"""Pure function from (arrays, images, masks, training, rows=None) to (logits, new statistics)."""


@dataclass
class JaxModel:
    """A network and its arrays. Twin: JAX's functions take arrays and return new ones; a step replaces them here."""

    network: Network
    parameters: Arrays
    """Trainable arrays."""
    statistics: Arrays
    """Running statistics of BatchNorm."""


def build(
    architecture: Architecture,
    precision: str,
    group: ReplicaGroup | None = None,
    arithmetic: str = "full",
    depthwise: str = "grouped",
) -> JaxModel:
    """Build a model.

    The model takes images [N, H, W, 3] in 0..1, in the framework's layout, and the dropout masks. It returns logits.
    """
    builder = user_builder(architecture)
    if builder:
        network = builder(architecture, precision, group)
    else:
        network = _Network(architecture, group, jnp.dtype("bfloat16" if arithmetic == "bfloat16" else precision), depthwise)
    arrays = {name: jnp.asarray(array, precision) for name, array in common_weights.initial(architecture, 0).items()}
    trainable = {parameter.name for parameter in architecture.parameters() if parameter.trainable}
    return JaxModel(
        network,
        {name: array for name, array in arrays.items() if name in trainable},
        {name: array for name, array in arrays.items() if name not in trainable},
    )


def user_builder(architecture: Architecture) -> Any | None:
    """Return `build_<framework>(architecture, precision, group)` of a user's model module. None: the module has none."""
    if architecture.name in architectures.MODELS or "." not in architecture.name:
        return None
    return getattr(user_code.module(architecture.name), "build_jax", None)


def summarize(architecture: Architecture) -> dict[str, Any]:
    """Describe a built model: each layer's name, kind, output shape (NHWC) and number of values, JSON-ready."""
    model, size = build(architecture, "float32"), architecture.image_size
    network = _Network(architecture, None, jnp.dtype("float32"), "grouped")
    images = jnp.zeros((1, size, size, 3))
    masks = [jnp.ones((1, dropout.units), bool) for dropout in architecture.dropouts]
    jax.eval_shape(lambda: network({**model.parameters, **model.statistics}, images, masks, training=False))
    arrays = {**model.parameters, **model.statistics}
    return {
        "framework": "jax",
        "model": architecture.name,
        "layers": [
            {
                "name": layer.name,
                "kind": type(layer).__name__,
                "output_shape": network.shapes[layer.name],
                "values": sum(array.size for name, array in arrays.items() if name.rpartition(".")[0] == layer.name),
            }
            for layer in architecture.leaves()
            if not isinstance(layer, architectures.ReLU)
        ],
        "values": num_values(model)[0],
        "trainable_values": num_values(model)[1],
    }


def num_values(model: JaxModel) -> tuple[int, int]:
    """Count the values of a built model: (all, trainable)."""
    trainable, others = (sum(array.size for array in arrays.values()) for arrays in (model.parameters, model.statistics))
    return trainable + others, trainable


class _ForwardPass(NamedTuple):
    """State that the layers of one forward pass share. Layers add new statistics and output shapes to it."""

    arrays: Arrays
    masks: Iterator[jax.Array]
    training: bool
    rows: jax.Array | None
    statistics: Arrays
    shapes: dict[str, list[int]]


class _Network:
    """An architecture, layer by layer. Layers compute in `dtype`; the logits have the arrays' precision."""

    def __init__(self, architecture: Architecture, group: ReplicaGroup | None, dtype: Any, depthwise: str) -> None:
        self._layers, self._group, self._dtype, self._depthwise = architecture.layers, group, dtype, depthwise
        self.shapes: dict[str, list[int]] = {}

    def __call__(
        self, arrays: Arrays, images: jax.Array, masks: Any, training: bool, rows: jax.Array | None = None
    ) -> tuple[jax.Array, Arrays]:
        forward_pass = _ForwardPass(arrays, iter(masks), training, rows, {}, self.shapes)
        logits = self._through(self._layers, images.astype(self._dtype), forward_pass)
        return logits.astype(images.dtype), forward_pass.statistics

    def _through(self, layers: tuple[Layer, ...], x: jax.Array, forward_pass: _ForwardPass) -> jax.Array:
        for layer in layers:
            if isinstance(layer, architectures.Residual):
                x = self._through(layer.body, x, forward_pass) + self._through(layer.shortcut, x, forward_pass)
                x = jax.nn.relu(x) if layer.relu else x
            elif isinstance(layer, architectures.Concatenation):
                x = jnp.concatenate([self._through(branch, x, forward_pass) for branch in layer.branches], -1)
            elif isinstance(layer, architectures.Dropout):
                x = x * next(forward_pass.masks).astype(x.dtype) * (1.0 / (1.0 - layer.rate)) if forward_pass.training else x
            elif isinstance(layer, architectures.BatchNorm) and forward_pass.training:
                x, new = batch_norm.normalise(layer, self._group, forward_pass.arrays, x, forward_pass.rows)
                forward_pass.statistics.update(new)
                x = x.astype(self._dtype)
            else:
                x = self._apply(layer, x, forward_pass.arrays)
            forward_pass.shapes[layer.name] = list(x.shape[1:])
        return x

    def _apply(self, layer: Layer, x: jax.Array, arrays: Arrays) -> jax.Array:
        def array(role: str) -> jax.Array:
            return arrays[f"{layer.name}.{role}"].astype(self._dtype)

        match layer:
            case architectures.Conv():
                if layer.is_depthwise and self._depthwise == "products":
                    x = _products(x, array("kernel"), layer.stride, layer.padding)
                else:
                    x = _convolution(x, array("kernel"), layer.stride, layer.padding, layer.groups)
                return x + array("bias") if layer.bias else x
            case architectures.BatchNorm():
                return batch_norm.apply_running(layer, arrays, x).astype(self._dtype)
            case architectures.ReLU():
                return jax.nn.relu(x)
            case architectures.MaxPool():
                return _windows(x, layer, -jnp.inf, lax.max)
            case architectures.AveragePool():
                pixels = _windows(jnp.ones_like(x[:1, :, :, :1]), layer, 0.0, lax.add)  # without padding, which does not count
                return _windows(x, layer, 0.0, lax.add) / pixels
            case architectures.GlobalAveragePool():
                return x.mean((1, 2))
            case architectures.Flatten():
                return x.reshape(len(x), -1)
            case architectures.Dense():
                return x @ array("kernel") + array("bias")
            case _:
                raise TypeError(f"{type(layer).__name__} is no leaf")


def _convolution(x: jax.Array, kernel: jax.Array, stride: int, padding: architectures.Padding, groups: int) -> jax.Array:
    # Twin: XLA takes any padding, so none is a separate step. Images are NHWC and kernels HWIO, as everywhere in the suite.
    layouts = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=layouts, feature_group_count=groups)


def _windows(x: jax.Array, layer: architectures.MaxPool | architectures.AveragePool, start: float, join: Any) -> jax.Array:
    """Reduce the values of each window. Padding has the value `start`."""
    window, strides = (1, layer.kernel_size, layer.kernel_size, 1), (1, layer.stride, layer.stride, 1)
    return lax.reduce_window(x, start, join, window, strides, ((0, 0), *layer.padding, (0, 0)))


def _products(x: jax.Array, kernel: jax.Array, stride: int, padding: architectures.Padding) -> jax.Array:
    """Compute a depthwise convolution as a sum of products, which XLA fuses. Its grouped convolution is slow on a CPU."""
    size = kernel.shape[0]
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    height, width = (((length - size) // stride) * stride + 1 for length in x.shape[1:3])
    products = [
        x[:, row : row + height : stride, column : column + width : stride] * kernel[row, column, 0]
        for row in range(size)
        for column in range(size)
    ]
    return sum(products[1:], products[0])
