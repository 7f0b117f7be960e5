"""The scaling of a model's input: (pixel / 255 - mean) / standard deviation."""

from __future__ import annotations

from dataclasses import dataclass

Channels = tuple[float, float, float]


@dataclass(frozen=True)
class InputScaling:
    """(pixel / 255 - mean) / std for each channel, stated as pixel * factor + offset."""

    mean: Channels = (0.0, 0.0, 0.0)
    """Mean of each channel, in 0..1."""
    std: Channels = (1.0, 1.0, 1.0)
    """Standard deviation of each channel, above 0 and at most 1."""

    @property
    def factor(self) -> Channels:
        red, green, blue = self.std
        return 1.0 / (255.0 * red), 1.0 / (255.0 * green), 1.0 / (255.0 * blue)

    @property
    def offset(self) -> Channels | None:
        """Offset of each channel. None: nothing is added."""
        if not any(self.mean):
            return None
        (red, green, blue), (red_std, green_std, blue_std) = self.mean, self.std
        return -red / red_std, -green / green_std, -blue / blue_std
