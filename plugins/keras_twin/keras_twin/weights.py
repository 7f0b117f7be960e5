"""Conversion between the canonical weights of `common.models.weights` and the model's own variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
from keras import ops

from common.models.architectures import Architecture
from common.models.weights import ReadOnlyWeights, Weights


def load(model: keras.Model, architecture: Architecture, weights: ReadOnlyWeights) -> None:
    """Set every parameter and statistic of a model from canonical arrays, rounded to the model's precision."""
    for parameter in architecture.parameters():
        variable = _variable(model, parameter.name)
        variable.assign(np.asarray(_reordered(model, parameter.name, np.asarray(weights[parameter.name])), variable.dtype))


def extract(model: keras.Model, architecture: Architecture) -> Weights:
    """Return every parameter and statistic by canonical name, in the canonical layout and the model's precision."""
    return {
        parameter.name: _reordered(model, parameter.name, host_array(_variable(model, parameter.name)))
        for parameter in architecture.parameters()
    }


def extract_gradients(model: keras.Model, architecture: Architecture, gradients: Sequence[Any]) -> Weights:
    """Return the gradient of every trainable parameter by canonical name. The list has the order of the model's variables."""
    by_variable = {id(variable): gradient for variable, gradient in zip(model.trainable_variables, gradients, strict=True)}
    return {
        parameter.name: _reordered(model, parameter.name, host_array(by_variable[id(_variable(model, parameter.name))]))
        for parameter in architecture.parameters()
        if parameter.trainable
    }


def host_array(values: Any) -> npt.NDArray[Any]:
    """Copy a variable or a tensor to the host."""
    return np.array(ops.convert_to_numpy(values))


def _variable(model: keras.Model, name: str) -> Any:
    layer, _, role = name.rpartition(".")
    return getattr(model.get_layer(layer), role)


def _reordered(model: keras.Model, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Keras stores a depthwise kernel as HWC1; the canonical layout is HW1C. The swap is its own inverse.
    layer, _, role = name.rpartition(".")
    is_depthwise = role == "kernel" and isinstance(model.get_layer(layer), keras.layers.DepthwiseConv2D)
    return array.swapaxes(2, 3) if is_depthwise else array
