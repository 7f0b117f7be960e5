"""A network that is mostly BatchNorm, so that what its statistics cost to exchange is seen beside the gradients."""

from convtwins.models import (
    Architecture,
    BatchNorm,
    Conv,
    Dense,
    GlobalAveragePool,
    ReLU,
    depthwise_conv,
    no_padding,
)

_CHANNELS = 16384


def architecture(num_classes: int, image_size: int) -> Architecture:
    """For images of a multiple of 4 pixels."""
    return Architecture(
        "tests.parity.wide",
        image_size,
        num_classes,
        (
            Conv("conv", 3, _CHANNELS, 1, 4, no_padding, bias=False),
            BatchNorm("conv_bn", _CHANNELS),
            ReLU("conv_relu"),
            depthwise_conv("depthwise", _CHANNELS, 1, 1, no_padding),
            BatchNorm("depthwise_bn", _CHANNELS),
            GlobalAveragePool("pool"),
            Dense("logits", _CHANNELS, num_classes),
        ),
    )
