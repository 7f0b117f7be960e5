"""The MiniXception of a published CIFAR-10 report, as its Keras notebook built it: with Keras' constants of BatchNorm."""

from __future__ import annotations

from dataclasses import replace

from common.models import architectures
from common.models.architectures import Architecture, BatchNorm, Layer, Residual

_MOMENTUM = 0.01
"""Weight of the new statistics. Keras names the weight of the old ones, 0.99."""
_EPSILON = 1e-3


def architecture(num_classes: int, image_size: int) -> Architecture:
    """Build the network: 96,202 values for 10 classes.

    Keras' running variance takes the biased variance of a batch. This one takes the unbiased variance. Over 32 images of 32x32
    they differ by one part in 32,767.
    """
    base = architectures.mini_xception(num_classes, image_size)
    return replace(base, layers=tuple(map(_with_keras_constants, base.layers)))


def _with_keras_constants(layer: Layer) -> Layer:
    match layer:
        case BatchNorm():
            return replace(layer, momentum=_MOMENTUM, epsilon=_EPSILON)
        case Residual():
            body, shortcut = (tuple(map(_with_keras_constants, part)) for part in (layer.body, layer.shortcut))
            return replace(layer, body=body, shortcut=shortcut)
        case _:
            return layer
