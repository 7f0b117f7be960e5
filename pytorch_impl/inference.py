"""Inference: from images to logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from common.artifacts.trained import Trained
from pytorch_impl import device, evaluate, models, weights


class Predictor:
    """A trained model on its device, in evaluation mode."""

    def __init__(self, trained: Trained) -> None:
        self._scaling = trained.card.scaling
        self._device = torch.device(device.kind())
        model = models.build(trained.architecture, trained.card.precision)
        weights.load(model, trained.architecture, trained.weights)
        # Twin: images come as NHWC. TensorFlow's kernels take them so, torch's too where the weights lie alike.
        self._model = models.to_device(model, self._device, "channels_last")

    def logits(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.floating]:
        """Return logits [N, classes] of images uint8 [N, S, S, 3], both on the host, when the device has finished."""
        device_images = torch.from_numpy(np.require(images, requirements=["C", "W"])).to(self._device)
        return evaluate.logits(self._model, device_images, self._scaling).cpu().numpy()
