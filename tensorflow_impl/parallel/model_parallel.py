"""Mode model_parallel: the model's layers over several devices, one working at a time."""

from __future__ import annotations

from tensorflow_impl.parallel.pipeline import Pipeline


class ModelParallel(Pipeline):
    """A pipeline through which every batch goes whole."""

    def _parts(self, num_examples: int) -> int:
        return 1
