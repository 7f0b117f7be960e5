"""Inference: from images to logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.artifacts.trained import Trained
from tensorflow_impl import device, evaluate, models, weights


class Predictor:
    """A trained model on its device, in evaluation mode."""

    def __init__(self, trained: Trained) -> None:
        self._scaling = trained.card.scaling
        self._model = models.build(trained.architecture, trained.card.precision)
        weights.load(self._model, trained.architecture, trained.weights)
        # Twin: TensorFlow makes one graph, for any number of images. PyTorch runs the model eagerly.
        size = trained.architecture.image_size
        self._graph = device.graph(lambda images: evaluate.logits(self._model, images, self._scaling)).get_concrete_function(
            tf.TensorSpec((None, size, size, 3), tf.uint8)
        )

    def logits(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.floating]:
        """Return logits [N, classes] of images uint8 [N, S, S, 3], both on the host, when the device has finished."""
        return self._graph(tf.constant(images)).numpy()
