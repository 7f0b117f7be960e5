"""A user's own model that says all in its architecture, for images of 12 px; `own_model` has builders too."""

from convtwins.models import Architecture
from tests.twins import made


def architecture(num_classes: int, image_size: int) -> Architecture:
    return made.network("a name of the user's", image_size, num_classes)
