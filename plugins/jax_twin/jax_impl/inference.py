"""Inference: from images to logits."""

from __future__ import annotations

import jax
import numpy as np
import numpy.typing as npt

from common.artifacts.trained import Trained
from jax_impl import evaluate, models, weights


class Predictor:
    """A trained model on its device, in evaluation mode."""

    def __init__(self, trained: Trained) -> None:
        model, card = models.build(trained.architecture, trained.card.precision), trained.card
        weights.load(model, trained.architecture, trained.weights)
        self._arrays = {**model.parameters, **model.statistics}
        # Twin: XLA compiles one program for each number of images.
        self._logits = jax.jit(
            lambda arrays, images: evaluate.logits(model.network, arrays, images, card.scaling, card.precision)
        )

    def logits(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.floating]:
        """Return logits [N, classes] of images uint8 [N, S, S, 3], both on the host, when the device has finished."""
        return np.asarray(self._logits(self._arrays, np.asarray(images)))
