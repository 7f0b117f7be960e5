"""A network of a few thousand weights with one of every layer, so that a planted defect is tried in a second."""

from convtwins.models import (
    Architecture,
    AveragePool,
    BatchNorm,
    Concatenation,
    Conv,
    Dense,
    Dropout,
    Flatten,
    MaxPool,
    ReLU,
    Residual,
    depthwise_conv,
    no_padding,
    same_padding,
)


def architecture(num_classes: int, image_size: int) -> Architecture:
    """For images of 32 pixels; both the convolution and the pooling with a stride are padded on one side only."""
    return Architecture(
        "tests.parity.probe",
        image_size,
        num_classes,
        (
            Conv("conv", 3, 8, 3, 2, same_padding(32, 3, 2), bias=True),
            BatchNorm("conv_bn", 8),
            ReLU("conv_relu"),
            MaxPool("pool", 3, 2, same_padding(16, 3, 2)),
            Residual(
                "block",
                (
                    depthwise_conv("depthwise", 8, 3, 1, same_padding(8, 3, 1)),
                    Conv("pointwise", 8, 8, 1, 1, no_padding, bias=True),
                    BatchNorm("pointwise_bn", 8),
                ),
                relu=True,
            ),
            Concatenation(
                "paths",
                (
                    (Conv("paths_grouped", 8, 8, 3, 1, same_padding(8, 3, 1), bias=False, groups=4),),
                    (AveragePool("paths_average", 3, 1, same_padding(8, 3, 1)),),
                ),
            ),
            Flatten("flatten"),
            Dense("dense", 8 * 8 * 16, 16),
            ReLU("dense_relu"),
            Dropout("dropout", 0.5, 16),
            Dense("logits", 16, num_classes),
        ),
    )
