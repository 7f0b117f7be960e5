"""Between the canonical weights of `common.weights` and the model's own arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.architectures import Architecture
from common.weights import Weights
from tensorflow_impl import models


def load(model: keras.Model, architecture: Architecture, weights: Mapping[str, npt.NDArray[np.floating]]) -> None:
    """Set every parameter and statistic of a model from canonical arrays, rounded to the model's precision."""
    for parameter in architecture.parameters():
        layer, variable = _variable(model, parameter.name)
        variable.assign(_reordered(layer, parameter.name, weights[parameter.name]))


def extract(model: keras.Model, architecture: Architecture) -> Weights:
    """Every parameter and statistic of a model by canonical name, in the canonical layout and the model's precision."""
    return {
        parameter.name: _reordered(layer, parameter.name, variable.numpy())
        for parameter in architecture.parameters()
        for layer, variable in [_variable(model, parameter.name)]
    }


def extract_gradients(model: keras.Model, architecture: Architecture, gradients: list[tf.Tensor]) -> Weights:
    """The gradient of every trainable parameter by canonical name, from a list in the order of the model's own."""
    return {
        name: _reordered(_variable(model, name)[0], name, gradients[position].numpy())
        for name, position in positions(model, architecture).items()
    }


def positions(model: keras.Model, architecture: Architecture) -> dict[str, int]:
    """Where the list of a model's own trainable parameters has each, by canonical name and in canonical order."""
    own = {id(variable): position for position, variable in enumerate(model.trainable_variables)}
    names = [parameter.name for parameter in architecture.parameters() if parameter.trainable]
    return {name: own[id(_variable(model, name)[1])] for name in names}


def flattened(name: str, tensor: tf.Tensor) -> tf.Tensor:
    """All values of a parameter's gradient, in the canonical layout."""
    # Twin: Keras' layouts hold their values in the canonical order, HWC1 as HW1C too.
    return tf.reshape(tensor, [-1])


def restored(name: str, values: tf.Tensor, variable: Any) -> tf.Tensor:
    """The gradient of a model's own variable, from what `flattened` gave."""
    return tf.reshape(values, variable.shape)


def _variable(model: keras.Model, name: str) -> tuple[keras.layers.Layer, Any]:
    layer_name, _, role = name.rpartition(".")
    layer = models.find_layer(model, layer_name)
    return layer, getattr(layer, role)


def _reordered(layer: keras.layers.Layer, name: str, array: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    # Twin: Keras keeps a depthwise kernel as HWC1, canonically it is HW1C; the swap is its own inverse.
    if isinstance(layer, keras.layers.DepthwiseConv2D) and name.endswith(".kernel"):
        return array.swapaxes(2, 3)
    return array
