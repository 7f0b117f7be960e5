"""Conversion between the canonical weights of `common.models.weights` and the model's own arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from common.models.architectures import Architecture
from common.models.weights import ReadOnlyWeights, Weights
from jax_impl.models import JaxModel


def load(model: JaxModel, architecture: Architecture, weights: ReadOnlyWeights) -> None:
    """Set every parameter and statistic of a model from canonical arrays, rounded to the model's precision."""
    # Twin: JAX's layouts are the canonical ones, so nothing is turned.
    for arrays in (model.parameters, model.statistics):
        for name, array in arrays.items():
            values = weights[name]
            if (received := np.shape(values)) != array.shape:
                raise ValueError(f"{name} must have shape {array.shape}. Received: {received}.")
            arrays[name] = jnp.array(values, array.dtype)


def extract(model: JaxModel, architecture: Architecture) -> Weights:
    """Return every parameter and statistic by canonical name, in the canonical layout and the model's precision."""
    arrays = {**model.parameters, **model.statistics}
    return {parameter.name: np.array(arrays[parameter.name]) for parameter in architecture.parameters()}


def extract_gradients(model: JaxModel, architecture: Architecture, gradients: Mapping[str, Any]) -> Weights:
    """Return the gradient of every trainable parameter by canonical name, in canonical order."""
    return {
        name: np.array(gradients[name])
        for name in (parameter.name for parameter in architecture.parameters() if parameter.trainable)
    }
