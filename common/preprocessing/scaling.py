"""From bytes to the model's input: division by 255, and where it is asked for a normalisation of each channel."""

from __future__ import annotations

from dataclasses import dataclass

from common import spec
from common.datasets import Dataset
from common.preprocessing.statistics import dataset_statistics

_Channels = tuple[float, float, float]

HALF: _Channels = (0.5, 0.5, 0.5)
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


def of(data: spec.Data, dataset: Dataset, *, cache_dir: str | None) -> Scaling:
    """The scaling that a spec asks for.

    Args:
        data: its `normalization`.
        dataset: whose training split's statistics are taken where they are asked for: of its files where it is streamed.
        cache_dir: as in `dataset_statistics`.

    Raises:
        SpecError: a channel has the same value everywhere.
    """
    if data.normalization == "none":
        return Scaling()
    if data.normalization == "half":
        return Scaling(HALF, HALF)
    if data.normalization == "imagenet":
        return Scaling(IMAGENET_MEAN, IMAGENET_STD)
    images = dataset.train.images if dataset.train.encoded is None else dataset.train.encoded
    found = dataset_statistics(images, dataset.content_hash, image_size=dataset.image_size, cache_dir=cache_dir)
    if not all(found.std):
        raise spec.SpecError(
            f"data.normalization dataset needs channels that vary. Received: standard deviations {found.std}. Use none, "
            "half or imagenet."
        )
    return Scaling(found.mean, found.std)
