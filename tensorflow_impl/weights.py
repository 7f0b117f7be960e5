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
    by_variable = {id(variable): gradient for variable, gradient in zip(model.trainable_variables, gradients, strict=True)}
    return {
        parameter.name: _reordered(layer, parameter.name, by_variable[id(variable)].numpy())
        for parameter in architecture.parameters()
        if parameter.trainable
        for layer, variable in [_variable(model, parameter.name)]
    }


def _variable(model: keras.Model, name: str) -> tuple[keras.layers.Layer, Any]:
    layer_name, _, role = name.rpartition(".")
    layer = models.find_layer(model, layer_name)
    return layer, getattr(layer, role)


def _reordered(layer: keras.layers.Layer, name: str, array: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    # Twin: Keras keeps a depthwise kernel as HWC1, canonically it is HW1C; the swap is its own inverse.
    if isinstance(layer, keras.layers.DepthwiseConv2D) and name.endswith(".kernel"):
        return array.swapaxes(2, 3)
    return array
