"""Mode data_parallel: several replicas in one process. Each trains on its shard of every batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tensorflow as tf

from common.data.sources import DatasetSplit
from common.training.communication import exchange_bytes, statistics_payload_bytes
from common.training.trainer import Batch, ComputeAndExchange, StepBreakdown, Update
from tensorflow_impl import evaluate, train
from tensorflow_impl.parallel.group import CommunicationGroup
from tensorflow_impl.parallel.trainer import Trainer


class DataParallel(Trainer):
    """Replicas on several devices, in one process.

    Each replica computes gradients on its shard of the batch. The sum of all replicas' gradients makes the one update.
    `implementation` names what runs the replicas here.
    """

    def _build(self) -> None:
        self.devices = self._devices()
        self._replicas = mirrored_group(tuple(self.devices))
        self._replicate(self._replicas)

    def _run_replicas(self, replica_fn: Callable[..., Any], images: Any, labels: Any, masks: Any) -> Any:
        return run_on_shards(self._strategy, replica_fn, images, labels, masks)

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        def replica_fn(images: Any, labels: Any, masks: Any) -> Any:
            return train.train_step(
                self._objective, self._model, self._optimizer, images, labels, masks, update, self._exchange
            )

        losses, num_correct = self._run_replicas(replica_fn, images, labels, masks)
        return sum_replicas(self._strategy, losses), sum_replicas(self._strategy, num_correct)

    def _score_batch(self, images: Any, labels: Any) -> Any:
        def replica_fn(images: Any, labels: Any, masks: Any) -> Any:
            return evaluate.score(self._model, images, labels, self._objective)

        losses, predictions = self._run_replicas(replica_fn, images, labels, ())
        return sum_replicas(self._strategy, losses), tf.concat(self._strategy.experimental_local_results(predictions), 0)

    def broadcast_statistics(self) -> None:
        self._replicas.broadcast(self._statistics())

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the bytes of the gradients and of synchronised BatchNorm's sums."""
        return {"bytes_per_step": exchange_bytes(self._spec, self._architecture)}

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> ComputeAndExchange | str:
        """Return a step without the exchange of gradients, and that exchange; or why they cannot be separated."""
        if statistics_payload_bytes(self._spec, self._architecture):
            return "BatchNorm's statistics are exchanged within forward and backward"
        parts = self._split_step(batch, num_examples)
        return parts._replace(not_separable="the replicas of one graph cannot be timed one by one")

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """Return the replicas' forward pass, backward pass and update, or why they cannot be called one by one."""
        return self._break_down(self._model, batch, num_examples)


def run_on_shards(strategy: Any, replica_fn: Callable[..., Any], images: Any, labels: Any, masks: Any) -> Any:
    """Run a function in every replica of a strategy, each on its own shard of a global batch. Returns the results."""

    def run_on_own_shard() -> Any:
        with tf.device("CPU:0"):  # where the batch is: only the shard is sent, and no bound is computed on a GPU
            part = _shard_slice(images)
            shard = images[part], labels[part], [mask[part] for mask in masks]
        return replica_fn(*shard)

    return strategy.run(run_on_own_shard)


def sum_replicas(strategy: Any, values: Any) -> tf.Tensor:
    """Sum the values that every replica of a strategy returned, on the first replica's device."""
    with tf.device(strategy.extended.worker_devices[0]):  # a strategy's own `reduce` would send it to the host at every step
        return tf.add_n(strategy.experimental_local_results(values))


def _shard_slice(batch: tf.Tensor) -> slice:
    """Return the calling replica's slice of a global batch: `common.models.sharding.shard`, in the graph."""
    context = tf.distribute.get_replica_context()
    replicas = tf.constant(context.num_replicas_in_sync)
    rank = tf.cast(context.replica_id_in_sync_group, replicas.dtype)
    size = tf.shape(batch)[0]
    base, extra = tf.math.floordiv(size, replicas), tf.math.floormod(size, replicas)
    start = rank * base + tf.minimum(rank, extra)
    return slice(start, start + base + tf.cast(rank < extra, size.dtype))


@cache
def mirrored_group(devices: tuple[str, ...]) -> CommunicationGroup:
    """Return the group of replicas on these devices, in one process."""
    # Twin: one strategy a process. A second one would number its exchanges again, and TensorFlow remembers their types.
    return CommunicationGroup(tf.distribute.MirroredStrategy(devices))
