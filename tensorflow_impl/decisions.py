"""What ReLUs and max-poolings decide in a forward pass. Rounding may decide otherwise than exact arithmetic."""

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
class Decisions:
    """The inputs of a model's ReLUs and max-poolings, and what they decide.

    Args:
        model: as `models.build` makes it from this architecture.
    """

    def __init__(self, model: keras.Model, architecture: Architecture) -> None:
        self._points = list(architectures.deciding(architecture.layers))
        self._layers = [models.find_layer(model, name) for name, _ in self._points]
        self.inputs = keras.Model(model.inputs, [layer.input for layer in self._layers])
        """Takes what the model takes."""

    def found(self, inputs: list[tf.Tensor]) -> list[npt.NDArray[Any]]:
        """What these inputs decide, as `Trainer.decisions` returns it."""
        found: list[npt.NDArray[Any]] = []
        for (_, point), layer, x in zip(self._points, self._layers, inputs, strict=True):
            values = tf.cast(x, tf.float32).numpy()
            if isinstance(point, architectures.MaxPool):
                padding = point.padding if layer.padding == "same" else architectures.no_padding
                found.append(tracing.winners(values, (point.kernel_size,) * 2, (point.stride,) * 2, padding))
            else:
                found.append(values > 0)
        return found
