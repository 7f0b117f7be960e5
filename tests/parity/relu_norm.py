"""A bias in front of ReLU and then BatchNorm, which does not take it away: its gradient is no rounding."""

from convtwins.models import Architecture, BatchNorm, Conv, Dense, Flatten, ReLU, same_padding


def architecture(num_classes: int, image_size: int) -> Architecture:
    return Architecture(
        "tests.parity.relu_norm",
        image_size,
        num_classes,
        (
            Conv("conv", 3, 4, 3, 4, same_padding(image_size, 3, 4), bias=True),
            ReLU("relu"),
            BatchNorm("norm", 4),
            Flatten("flatten"),
            Dense("logits", 4 * (image_size // 4) ** 2, num_classes),
        ),
    )
