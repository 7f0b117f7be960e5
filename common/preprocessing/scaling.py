"""From bytes to the model's input: division by 255, and where it is asked for a normalisation of each channel."""

from __future__ import annotations

from dataclasses import dataclass

_Channels = tuple[float, float, float]

IMAGENET_MEAN: _Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: _Channels = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Scaling:
    """(pixel / 255 - mean) / std for each channel, stated as pixel * factor + offset."""

    mean: _Channels = (0.0, 0.0, 0.0)
    """In 0..1."""
    std: _Channels = (1.0, 1.0, 1.0)
    """In 0..1, above 0."""

    @property
    def factor(self) -> _Channels:
        red, green, blue = self.std
        return 1.0 / (255.0 * red), 1.0 / (255.0 * green), 1.0 / (255.0 * blue)

    @property
    def offset(self) -> _Channels | None:
        """None where nothing is added."""
        if not any(self.mean):
            return None
        (red, green, blue), (red_std, green_std, blue_std) = self.mean, self.std
        return -red / red_std, -green / green_std, -blue / blue_std
