"""A user's own model that `learner` trains: one dense layer over all pixels."""

from convtwins.models import Architecture, Dense, Flatten


def architecture(num_classes: int, image_size: int) -> Architecture:
    layers = (Flatten("flatten"), Dense("logits", 3 * image_size**2, num_classes))
    return Architecture("linear", image_size, num_classes, layers)
