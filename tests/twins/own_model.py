"""A user's own model with a builder for each framework."""

from typing import Any

from convtwins import models
from convtwins.models import Architecture, BatchNorm, Conv, Dense, GlobalAveragePool, ReLU, same_padding


def architecture(num_classes: int, image_size: int) -> Architecture:
    layers = (
        Conv("conv", 3, 5, 3, 2, same_padding(image_size, 3, 2), bias=True),
        BatchNorm("bn", 5),
        ReLU("relu"),
        GlobalAveragePool("pool"),
        Dense("logits", 5, num_classes),
    )
    return Architecture("a name of the user's", image_size, num_classes, layers)


def build_pytorch(architecture: Architecture, precision: str, group: Any) -> Any:
    import torch
    from torch import nn

    class Net(nn.Module):
        built_by_hand = True

        def __init__(self) -> None:
            super().__init__()
            conv, norm, *_, logits = architecture.layers
            self.conv = nn.Conv2d(conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride)
            self.bn = models.batch_norm_pytorch(norm, group)
            self.relu = nn.ReLU()
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.logits = nn.Linear(logits.in_features, logits.out_features)

        def forward(self, x: Any) -> Any:
            x = self.conv(torch.nn.functional.pad(x, (0, 1, 0, 1)))
            return self.logits(self.pool(self.relu(self.bn(x))).flatten(1))

    return Net()


def build_tensorflow(architecture: Architecture, precision: str, group: Any) -> Any:
    import keras

    conv, norm, *_, logits = architecture.layers
    images = keras.Input((architecture.image_size, architecture.image_size, 3), dtype=precision)
    x = keras.layers.Conv2D(conv.out_channels, conv.kernel_size, conv.stride, "same", name="conv")(images)
    x = keras.layers.ReLU(name="relu")(models.batch_norm_tensorflow(norm, group)(x))
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    model = keras.Model([images], keras.layers.Dense(logits.out_features, name="logits")(x))
    model.built_by_hand = True
    return model
