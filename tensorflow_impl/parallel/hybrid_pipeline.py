"""Mode hybrid of data and pipeline: copies of a pipeline. Each trains on its shard of every batch."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_impl.parallel.pipeline import Pipeline


class HybridPipeline(Pipeline):
    """Copies of a pipeline. Before the update, each stage's gradients are summed over its copies."""

    def _by_copy(self, images: Any, labels: Any, masks: Any) -> list[tuple[Any, Any, Any]]:
        """Return the batch of each copy: `common.models.sharding.shard`, in the graph."""
        copies = len(self._copies)
        size = tf.shape(images)[0]
        sizes = tf.fill([copies], size // copies) + tf.cast(tf.range(copies) < tf.math.floormod(size, copies), size.dtype)
        cut = [tf.split(values, sizes, num=copies) for values in (images, labels, *masks)]
        return [(own_images, own_labels, own_masks) for own_images, own_labels, *own_masks in zip(*cut, strict=True)]

    def _sum_copies(self, gradients: list[list[tf.Tensor]], where: str) -> list[tf.Tensor]:
        with tf.device(where):
            return [tf.add_n(parts) for parts in zip(*gradients, strict=True)]

    def broadcast_statistics(self) -> None:
        first, *others = self._copies
        for copy in others:
            for part, copied_part in zip(first, copy, strict=True):
                for statistic, other in zip(part.statistics, copied_part.statistics, strict=True):
                    other.assign(statistic)
