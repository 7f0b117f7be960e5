"""Decisions of ReLUs and max-poolings in a forward pass. Rounding may change them."""

from __future__ import annotations

from typing import Any

import keras
import numpy.typing as npt
import tensorflow as tf

from common.models import architectures
from common.models.architectures import Architecture
from common.training import tracing
from tensorflow_impl import models


# Twin: a Keras model names its layers' inputs, which a second model returns. torch's functions are watched as they are called.
class DecisionRecorder:
    """Records the outputs of a model's ReLUs and the inputs of its max-poolings, and their decisions.

    A ReLU's output is above zero where its input is. The input itself is not requested: then its layer could not be computed in
    one kernel with the ReLU, as in a training step, and a value next to zero would be rounded differently.

    Args:
        model: the model that `models.build` builds from this architecture.
    """

    def __init__(self, model: keras.Model, architecture: Architecture) -> None:
        self._points = list(architectures.decision_layers(architecture.layers))
        self._layers = [models.find_layer(model, name) for name, _ in self._points]
        observed = [
            layer.input if isinstance(point, architectures.MaxPool) else layer.output
            for (_, point), layer in zip(self._points, self._layers, strict=True)
        ]
        self._observed_model = keras.Model(model.inputs, observed)

    def observe(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return the input images of each max-pooling, and a mask of the values that pass each ReLU, in training mode."""
        images = self._observed_model(inputs, training=True)
        images = images if isinstance(images, list) else [images]
        pools = [isinstance(point, architectures.MaxPool) for _, point in self._points]
        return [tf.cast(x, tf.float32) if is_pool else x > 0 for x, is_pool in zip(images, pools, strict=True)]

    def to_arrays(self, observed: list[tf.Tensor]) -> list[npt.NDArray[Any]]:
        """Return the decisions in `observed`, as `BaseTrainer.decisions` does."""
        arrays: list[npt.NDArray[Any]] = []
        for (_, point), layer, x in zip(self._points, self._layers, observed, strict=True):
            values = x.numpy()
            if isinstance(point, architectures.MaxPool):
                padding = point.padding if layer.padding == "same" else architectures.no_padding
                size, stride = point.kernel_size, point.stride
                arrays.append(tracing.winners(values, (size, size), (stride, stride), padding))
            else:
                arrays.append(values)
        return arrays
