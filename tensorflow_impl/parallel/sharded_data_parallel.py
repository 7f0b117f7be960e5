"""Mode sharded_data_parallel: replicas divide the batch, the parameters, their gradients and the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from common.data.sources import DatasetSplit
from common.training.communication import ring_all_reduce_bytes, statistics_payload_bytes
from common.training.trainer import Update
from tensorflow_impl import evaluate, shards
from tensorflow_impl.parallel.data_parallel import mirrored_group, run_on_shards, sum_replicas
from tensorflow_impl.parallel.trainer import Trainer


class ShardedDataParallel(Trainer):
    """Replicas on several devices. Each trains on its shard of the batch, and holds its rows of every parameter.

    A layer's parameters are gathered for its forward pass, and again for its backward pass. Then each replica receives the
    sum of the gradients of its own rows, and updates those (Rajbhandari et al. 2020, ZeRO, stage 3).
    """

    shards_optimizer = True
    scores_together = True

    def _build(self) -> None:
        self.devices = self._devices()
        self._replicas = mirrored_group(tuple(self.devices))
        self._strategy = self._replicas.members
        with self._strategy.scope():  # for BatchNorm's statistics, of which each replica has its own
            whole_model = self._new_model(self._replicas if self._synchronises else None)
        self._model = shards.divide(whole_model, self.devices)
        self._optimizer = self._new_optimizer(self._model)

    def _run_replicas(self, replica_fn: Callable[..., Any], images: Any, labels: Any, masks: Any) -> Any:
        return run_on_shards(self._strategy, replica_fn, images, labels, masks)

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        def replica_fn(images: Any, labels: Any, masks: Any) -> Any:
            return self._objective.gradients(self._model, images, labels, masks, update)

        losses, num_correct, gradients = self._run_replicas(replica_fn, images, labels, masks)
        self._optimizer.apply(self._scatter(gradients), update.learning_rate, update.step)
        return sum_replicas(self._strategy, losses), sum_replicas(self._strategy, num_correct)

    def _scatter(self, gradients: list[Any]) -> list[tf.Tensor]:
        """Sum all replicas' gradients of each part of a parameter, on the device that holds it."""
        summed: list[tf.Tensor] = []
        for variable, parts in zip(self._model.trainable_variables, gradients, strict=True):
            with tf.device(variable.value.device):
                summed.append(tf.add_n(self._strategy.experimental_local_results(parts)))
        return summed

    def _score_batch(self, images: Any, labels: Any) -> Any:
        def replica_fn(images: Any, labels: Any, masks: Any) -> Any:
            return evaluate.score(self._model, images, labels, self._objective)

        losses, predictions = self._run_replicas(replica_fn, images, labels, ())
        return sum_replicas(self._strategy, losses), tf.concat(self._strategy.experimental_local_results(predictions), 0)

    def broadcast_statistics(self) -> None:
        self._replicas.broadcast(self._statistics())

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the bytes of the gathered parameters, of the gradients and of synchronised BatchNorm's sums."""
        kinds = {kind: float(sent) for kind, sent in shards.bytes_per_pass(self._model).items()}
        statistics = statistics_payload_bytes(self._spec, self._architecture)
        kinds["all_reduce"] = ring_all_reduce_bytes(statistics, self._spec.replicas)
        return {"bytes_per_step": sum(kinds.values()), "bytes_per_step_by_kind": kinds}
