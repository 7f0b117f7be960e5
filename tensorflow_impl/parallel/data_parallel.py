"""Mode data_parallel: several replicas in one process. Each trains on its shard of every batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tensorflow as tf

from common.data.sources import Split
from common.training.communication import exchange_bytes, statistics_payload_bytes
from common.training.trainer import Batch, ComputeAndExchange, StepBreakdown, Update
from tensorflow_impl import evaluate, train
from tensorflow_impl.parallel.group import Group
from tensorflow_impl.parallel.trainer import Trainer


class DataParallel(Trainer):
    """Replicas on several devices, in one process.

    Each replica computes gradients on its shard of the batch. The sum of all replicas' gradients makes the one update.
    `implementation` names what runs the replicas here.
    """

    def _build(self) -> None:
        self.devices = self._devices()
        self._replicas = together(tuple(self.devices))
        self._replicate(self._replicas)

    def _each(self, one: Callable[..., Any], images: Any, labels: Any, masks: Any) -> Any:
        return on_shards(self._strategy, one, images, labels, masks)

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        def one(images: Any, labels: Any, masks: Any) -> Any:
            return train.train_step(
                self._objective, self._model, self._optimizer, images, labels, masks, update, self._exchange
            )

        losses, num_correct = self._each(one, images, labels, masks)
        return sum_over(self._strategy, losses), sum_over(self._strategy, num_correct)

    def _score_batch(self, images: Any, labels: Any) -> Any:
        def one(images: Any, labels: Any, masks: Any) -> Any:
            return evaluate.score(self._model, images, labels, self._objective)

        losses, predictions = self._each(one, images, labels, ())
        return sum_over(self._strategy, losses), tf.concat(self._strategy.experimental_local_results(predictions), 0)

    def broadcast_statistics(self) -> None:
        self._replicas.share(self._statistics())

    def report(self, test: Split) -> dict[str, Any]:
        """Bytes of the gradients and of synchronised BatchNorm's sums."""
        return {"bytes_per_step": exchange_bytes(self._spec, self._architecture)}

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> ComputeAndExchange | str:
        """A step without the exchange of gradients, and that exchange; or why they cannot be separated."""
        if statistics_payload_bytes(self._spec, self._architecture):
            return "BatchNorm's statistics are exchanged within forward and backward"
        parts = self._separated(batch, num_examples)
        return parts._replace(not_separable="the replicas of one graph cannot be timed one by one")

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """The replicas' forward pass, backward pass and update, or why they cannot be called one by one."""
        return self._breakdown_of(self._model, batch, num_examples)


def on_shards(strategy: Any, one: Callable[..., Any], images: Any, labels: Any, masks: Any) -> Any:
    """Results of every replica of a strategy, each on its own shard of a global batch."""

    def own() -> Any:
        with tf.device("CPU:0"):  # where the batch is: only the shard is sent, and no bound is computed on a GPU
            part = own_part(images)
            shard = images[part], labels[part], [mask[part] for mask in masks]
        return one(*shard)

    return strategy.run(own)


def sum_over(strategy: Any, values: Any) -> tf.Tensor:
    """The sum of what every replica of a strategy returned, on the first replica's device."""
    with tf.device(strategy.extended.worker_devices[0]):  # a strategy's own `reduce` would send it to the host at every step
        return tf.add_n(strategy.experimental_local_results(values))


def own_part(batch: tf.Tensor) -> slice:
    """The calling replica's shard of a global batch: `common.models.sharding.shard`, in the graph."""
    context = tf.distribute.get_replica_context()
    replicas = tf.constant(context.num_replicas_in_sync)
    rank = tf.cast(context.replica_id_in_sync_group, replicas.dtype)
    size = tf.shape(batch)[0]
    base, extra = tf.math.floordiv(size, replicas), tf.math.floormod(size, replicas)
    start = rank * base + tf.minimum(rank, extra)
    return slice(start, start + base + tf.cast(rank < extra, size.dtype))


@cache
def together(devices: tuple[str, ...]) -> Group:
    """Replicas on these devices, in one process."""
    # Twin: one strategy a process. A second one would number its exchanges again, and TensorFlow remembers their types.
    return Group(tf.distribute.MirroredStrategy(devices))
