"""Inference: from images to logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common.artifacts.trained import Trained
from keras_twin import models, weights
from keras_twin.backends import backend


class Predictor:
    """A trained model on its device, in evaluation mode."""

    def __init__(self, trained: Trained) -> None:
        self._model = models.build(trained.architecture, trained.card.precision, trained.card.scaling)
        weights.load(self._model, trained.architecture, trained.weights)
        self._evaluate = backend.evaluation(self._model)

    def logits(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.floating]:
        """Return logits [N, classes] of images uint8 [N, S, S, 3], both on the host, when the device has finished."""
        return weights.host_array(self._evaluate(models.inputs(self._model, images)))
