"""From bytes to the model's input: division by 255 and, if the spec asks for it, normalisation of each channel."""

from __future__ import annotations

from common import spec
from common.data.preprocessing.statistics import dataset_statistics
from common.data.sources import Dataset
from common.models.input_scaling import Channels, InputScaling

HALF: Channels = (0.5, 0.5, 0.5)
IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)


def scaling_for(data: spec.Data, dataset: Dataset, *, cache_dir: str | None) -> InputScaling:
    """Return the input scaling of a spec.

    Args:
        data: the spec's data, for its `normalization`.
        dataset: the data set. `normalization` dataset takes the statistics of its training split, of the files if streamed.
        cache_dir: as in `dataset_statistics`.
    """
    if data.normalization == "none":
        return InputScaling()
    if data.normalization == "half":
        return InputScaling(HALF, HALF)
    if data.normalization == "imagenet":
        return InputScaling(IMAGENET_MEAN, IMAGENET_STD)
    statistics = dataset_statistics(dataset.train, dataset.content_hash, cache_dir=cache_dir)
    if not all(statistics.std):
        raise spec.SpecError(
            f"data.normalization dataset needs channels that vary. Received: standard deviations {statistics.std}. Use none, "
            "half or imagenet."
        )
    return InputScaling(statistics.mean, statistics.std)
