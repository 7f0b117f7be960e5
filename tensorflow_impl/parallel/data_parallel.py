"""Mode data_parallel: several replicas in one process. Each trains on its shard of every batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from common.data.sources import Split
from common.training.communication import exchange_bytes, statistics_payload_bytes
from common.training.trainer import Batch, Pieces, Separated, Update
from tensorflow_impl import device, evaluate
from tensorflow_impl.parallel.serial import Serial


class DataParallel(Serial):
    """Replicas on several devices, in one process.

    Each replica computes gradients on its shard of the batch. The sum of all replicas' gradients makes the one update.
    `implementation` names what runs the replicas here.
    """

    def _new_strategy(self) -> tf.distribute.Strategy:
        if self._spec.communication.compression != "none":
            self.implementation += f", gradients as {self._spec.communication.compression}"
        kind = "GPU" if device.gpus() else "CPU"
        self.devices = [f"{kind}:{index}" for index in range(self._spec.replicas)]
        return tf.distribute.MirroredStrategy(self.devices)

    def _each(self, one: Callable[..., Any], images: Any, labels: Any, masks: Any) -> Any:
        """Results of every replica of this process, each on its own shard."""

        def own() -> Any:
            part = own_part(images)
            return one(images[part], labels[part], [mask[part] for mask in masks])

        return self._strategy.run(own)

    def _train_replicas(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        def one(images: Any, labels: Any, masks: Any) -> Any:
            return super(DataParallel, self)._train_replicas(images, labels, masks, update)

        losses, num_correct = self._each(one, images, labels, masks)
        return (
            self._strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None),
            self._strategy.reduce(tf.distribute.ReduceOp.SUM, num_correct, axis=None),
        )

    def _score_replicas(self, images: Any, labels: Any) -> Any:
        def one() -> Any:
            part = own_part(images)
            return evaluate.score(self._model, images[part], labels[part], loss=self._spec.loss, scaling=self._plan.scaling)

        losses, predictions = self._strategy.run(one)
        return (
            self._strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None),
            tf.concat(self._strategy.experimental_local_results(predictions), 0),
        )

    def share_statistics(self) -> None:
        """Copy replica 0's BatchNorm statistics to every replica. Evaluation uses them."""
        for variable in self._statistics():
            first, *others = self._strategy.experimental_local_results(variable)
            for other in others:
                other.assign(first)

    def report(self, test: Split) -> dict[str, Any]:
        """Mode-specific result fields. Called once, after `test` is scored."""
        return {"bytes_per_step": exchange_bytes(self._spec, self._architecture)}

    def separate(self, batch: Batch, num_examples: int) -> Separated | str | None:
        """Split a step on this batch into compute and exchange, which are timed separately.

        Returns:
            The two functions; the reason why they cannot be separated; or None where the mode exchanges nothing.
        """
        if statistics_payload_bytes(self._spec, self._architecture):
            return "BatchNorm's statistics are exchanged within forward and backward"
        separated = self._separate_replicas(batch, num_examples)
        return separated._replace(fused="the replicas of one graph cannot be timed one by one")

    def pieces(self, batch: Batch, num_examples: int) -> Pieces | str:
        """Break a step on this batch into a replica's computations, without exchange.

        Returns:
            The functions to call one by one, or the reason why a step has no such breakdown.
        """
        return self._pieces_of(self._model, batch, num_examples)


def own_part(batch: tf.Tensor) -> slice:
    """The calling replica's shard of a global batch: `common.models.sharding.shard`, in the graph."""
    context = tf.distribute.get_replica_context()
    replicas = tf.constant(context.num_replicas_in_sync)
    rank = tf.cast(context.replica_id_in_sync_group, replicas.dtype)
    size = tf.shape(batch)[0]
    base, extra = tf.math.floordiv(size, replicas), tf.math.floormod(size, replicas)
    start = rank * base + tf.minimum(rank, extra)
    return slice(start, start + base + tf.cast(rank < extra, size.dtype))
