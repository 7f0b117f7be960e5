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
    """Watches what a model's ReLUs return and its max-poolings take, and what they decide.

    A ReLU's output is above zero where its input is. The input itself is not asked for: then its layer could not be computed in
    one kernel with the ReLU, as a training step does, and a value next to zero would be rounded otherwise.

    Args:
        model: as `models.build` makes it from this architecture.
    """

    def __init__(self, model: keras.Model, architecture: Architecture) -> None:
        self._points = list(architectures.deciding(architecture.layers))
        self._layers = [models.find_layer(model, name) for name, _ in self._points]
        seen = [
            layer.input if isinstance(point, architectures.MaxPool) else layer.output
            for (_, point), layer in zip(self._points, self._layers, strict=True)
        ]
        self._seen = keras.Model(model.inputs, seen)

    def seen(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        """The images of each max-pooling, and which values pass each ReLU, in training mode on what the model takes."""
        images = self._seen(inputs, training=True)
        images = images if isinstance(images, list) else [images]
        pools = [isinstance(point, architectures.MaxPool) for _, point in self._points]
        return [tf.cast(x, tf.float32) if is_pool else x > 0 for x, is_pool in zip(images, pools, strict=True)]

    def found(self, seen: list[tf.Tensor]) -> list[npt.NDArray[Any]]:
        """What was seen, as `Trainer.decisions` returns it."""
        found: list[npt.NDArray[Any]] = []
        for (_, point), layer, x in zip(self._points, self._layers, seen, strict=True):
            values = x.numpy()
            if isinstance(point, architectures.MaxPool):
                padding = point.padding if layer.padding == "same" else architectures.no_padding
                size, stride = point.kernel_size, point.stride
                found.append(tracing.winners(values, (size, size), (stride, stride), padding))
            else:
                found.append(values)
        return found
