"""A model of 257 MiB in float64, in 32 layers of the same size: what is gathered of one is small beside the whole."""

import itertools

from common.models.architectures import Architecture, Dense, Flatten, ReLU

_WIDTH, _LAYERS = 1024, 32


def architecture(num_classes: int, image_size: int) -> Architecture:
    """For small images: nearly all values are in the layers behind the first."""
    sizes = [3 * image_size * image_size, *[_WIDTH] * (_LAYERS + 1)]
    layers = [
        layer
        for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes))
        for layer in (Dense(f"dense{number}", inputs, outputs), ReLU(f"relu{number}"))
    ]
    layers = (Flatten("flatten"), *layers, Dense("logits", _WIDTH, num_classes))
    return Architecture("tests.twins.large_model", image_size, num_classes, layers)
