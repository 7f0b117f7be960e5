"""Conversion between the canonical weights of `common.models.weights` and the model's own arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.models.architectures import Architecture
from common.models.weights import ReadOnlyWeights, Weights
from tensorflow_impl import channels, device, models, shards


def load(model: keras.Model, architecture: Architecture, weights: ReadOnlyWeights) -> None:
    """Set every parameter and statistic of a model from canonical arrays, rounded to the model's precision."""
    for parameter in architecture.parameters():
        canonical = weights[parameter.name]
        for holder, part in channels.holders(_layer(model, parameter.name)):
            whole = canonical[..., part]
            for variable, rows in shards.parts(_variable(holder, parameter.name)):
                array = _reordered(holder, parameter.name, whole[..., rows])
                for copy in device.copies(variable.value):
                    copy.assign(array)


def extract(model: keras.Model, architecture: Architecture) -> Weights:
    """Return every parameter and statistic by canonical name, in the canonical layout and the model's precision."""
    return {parameter.name: _gather(model, parameter.name, _local_parts) for parameter in architecture.parameters()}


def extract_gradients(model: keras.Model, architecture: Architecture, gradients: list[tf.Tensor]) -> Weights:
    """Return the gradient of every trainable parameter by canonical name. The list has the order of the model's parameters."""
    by_variable = {id(variable): gradient for variable, gradient in zip(model.trainable_variables, gradients, strict=True)}
    return {
        parameter.name: _gather(
            model, parameter.name, lambda variable: [by_variable[id(part)] for part, _ in shards.parts(variable)]
        )
        for parameter in architecture.parameters()
        if parameter.trainable
    }


def positions(model: keras.Model, architecture: Architecture) -> dict[str, int]:
    """Return the index of each trainable parameter in the model's own list, by canonical name and in canonical order."""
    position_by_id = {id(variable): position for position, variable in enumerate(model.trainable_variables)}
    names = [parameter.name for parameter in architecture.parameters() if parameter.trainable]
    return {name: position_by_id[id(_variable(_layer(model, name), name))] for name in names}


def flatten(name: str, tensor: tf.Tensor) -> tf.Tensor:
    """Return all values of a parameter's gradient, in the canonical layout."""
    # Twin: Keras' layouts have the canonical order of values; HWC1 and HW1C have the same.
    return tf.reshape(tensor, [-1])


def restore(name: str, values: tf.Tensor, variable: Any) -> tf.Tensor:
    """Reshape values from `flatten` into the gradient of a model's own variable."""
    return tf.reshape(values, variable.shape)


def _gather(model: keras.Model, name: str, local_parts: Callable[[Any], list[Any]]) -> npt.NDArray[np.floating]:
    layer = _layer(model, name)
    arrays: list[npt.NDArray[np.floating]] = []
    for holder, _ in channels.holders(layer):
        variable = _variable(holder, name)
        arrays.append(shards.gather(variable, [_reordered(holder, name, part.numpy()) for part in local_parts(variable)]))
    return channels.gather(layer, arrays)


def _local_parts(variable: Any) -> list[Any]:
    """Return the values of a variable's parts in this process."""
    return [device.copies(part.value)[0] for part, _ in shards.parts(variable)]


def _layer(model: keras.Model, name: str) -> keras.layers.Layer:
    return models.find_layer(model, name.rpartition(".")[0])


def _variable(layer: keras.layers.Layer, name: str) -> Any:
    return getattr(layer, name.rpartition(".")[2])


def _reordered(layer: keras.layers.Layer, name: str, array: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    # Twin: Keras stores a depthwise kernel as HWC1; the canonical layout is HW1C. The swap is its own inverse.
    depthwise = isinstance(layer, keras.layers.DepthwiseConv2D) or getattr(layer, "is_depthwise", False)
    if depthwise and name.endswith(".kernel"):
        return array.swapaxes(2, 3)
    return array
