"""The MiniXception of a published CIFAR-10 report in PyTorch: plain convolutions, none separable, and no residuals."""

from __future__ import annotations

from itertools import pairwise

from common.errors import Setting
from common.models.architectures import (
    Architecture,
    BatchNorm,
    Conv,
    Dense,
    GlobalAveragePool,
    Initializer,
    Layer,
    MaxPool,
    ReLU,
    same_padding,
)
from common.spec import SpecError

_WIDTHS = (3, 32, 64, 64, 64, 64, 64, 128, 128)
_INITIALIZER: Initializer = "uniform_fan_in"
"""PyTorch's default initializer of weights and biases: Kaiming uniform with a = sqrt(5)."""


def architecture(num_classes: int, image_size: int) -> Architecture:
    """Build the network: 391,050 trainable values for 10 classes.

    Eight 3x3 convolutions, each with BatchNorm and ReLU, max-pooling 3x3 by strides of 2 with a padding of 1, the mean over
    height and width, one dense layer.
    """
    if image_size != 32:
        raise SpecError(
            f"data.image_size must be 32 for this model. Received: {image_size}.",
            setting=Setting("Use", "data.image_size", 32),
        )
    layers: list[Layer] = []
    for number, (channels, width) in enumerate(pairwise(_WIDTHS), 1):
        layers += [
            Conv(
                f"conv{number}",
                channels,
                width,
                3,
                1,
                same_padding(image_size, 3, 1),
                bias=True,
                initializer=_INITIALIZER,
                bias_initializer=_INITIALIZER,
            ),
            BatchNorm(f"bn{number}", width),
            ReLU(f"relu{number}"),
        ]
    layers += [
        MaxPool("pool", 3, 2, ((1, 1), (1, 1))),
        GlobalAveragePool("global_pool"),
        Dense("logits", _WIDTHS[-1], num_classes, initializer=_INITIALIZER, bias_initializer=_INITIALIZER),
    ]
    return Architecture("pytorch_mini_xception", image_size, num_classes, tuple(layers))
