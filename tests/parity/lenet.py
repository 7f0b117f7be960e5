"""A LeNet with BatchNorm, as a user would bring it. Over images with a black border, plain float32 sums are far off in it."""

from convtwins.models import Architecture, BatchNorm, Conv, Dense, Flatten, MaxPool, ReLU, no_padding, same_padding


def architecture(num_classes: int, image_size: int) -> Architecture:
    """For images of a multiple of 4 pixels."""
    half, quarter = image_size // 2, image_size // 4
    return Architecture(
        "tests.parity.lenet",
        image_size,
        num_classes,
        (
            Conv("conv1", 3, 6, 5, 1, same_padding(image_size, 5, 1), bias=True),
            BatchNorm("conv1_bn", 6),
            ReLU("conv1_relu"),
            MaxPool("pool1", 2, 2, no_padding),
            Conv("conv2", 6, 16, 5, 1, same_padding(half, 5, 1), bias=True),
            BatchNorm("conv2_bn", 16),
            ReLU("conv2_relu"),
            MaxPool("pool2", 2, 2, no_padding),
            Flatten("flatten"),
            Dense("dense1", quarter * quarter * 16, 120),
            ReLU("dense1_relu"),
            Dense("dense2", 120, 84),
            ReLU("dense2_relu"),
            Dense("logits", 84, num_classes),
        ),
    )
