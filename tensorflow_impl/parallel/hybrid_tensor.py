"""Mode hybrid of data and tensor: copies of a split model. Each trains on its shard of every batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy.typing as npt
import tensorflow as tf

from common.data.sources import DatasetSplit
from common.models.weights import ReadOnlyWeights
from common.training.communication import ring_all_reduce_bytes, statistics_payload_bytes
from common.training.trainer import Update
from tensorflow_impl import evaluate, weights
from tensorflow_impl.parallel.data_parallel import mirrored_group, run_on_shards, sum_replicas
from tensorflow_impl.parallel.group import CommunicationGroup
from tensorflow_impl.parallel.tensor_parallel import TensorParallel


class HybridTensor(TensorParallel):
    """Copies of a model that is split over replicas. Each slice's gradients are summed over its copies."""

    def _build(self) -> None:
        self.devices, inner = self._devices(), self._spec.hybrid.inner_replicas
        rows = [self.devices[start : start + inner] for start in range(0, len(self.devices), inner)]
        # The strategy runs the copies in parallel. It knows one device per copy, so their variables are not mirrored.
        self._copies = mirrored_group(tuple(row[0] for row in rows)).members
        group = CommunicationGroup(self._copies) if self._synchronises else None
        self._models = [self._new_split_model(row, group) for row in rows]
        self._optimizers = [self._new_optimizer(model) for model in self._models]
        self._model, self._optimizer = self._models[0], self._optimizers[0]

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        def replica_fn(images: Any, labels: Any, masks: Any) -> Any:
            return self._objective.gradients(self._model_of_copy(), images, labels, masks, update)

        losses, num_correct, gradients = run_on_shards(self._copies, replica_fn, images, labels, masks)
        gradient_parts = [self._copies.experimental_local_results(gradient) for gradient in gradients]
        for model, optimizer in zip(self._models, self._optimizers, strict=True):
            summed: list[tf.Tensor] = []
            for variable, parts in zip(model.trainable_variables, gradient_parts, strict=True):
                with tf.device(variable.value.device):
                    summed.append(tf.add_n(parts))
            optimizer.apply(summed, update.learning_rate, update.step)
        return sum_replicas(self._copies, losses), sum_replicas(self._copies, num_correct)

    def _score_batch(self, images: Any, labels: Any) -> Any:
        def replica_fn(images: Any, labels: Any, masks: Any) -> Any:
            return evaluate.score(self._model_of_copy(), images, labels, self._objective)

        losses, predictions = run_on_shards(self._copies, replica_fn, images, labels, ())
        return sum_replicas(self._copies, losses), tf.concat(self._copies.experimental_local_results(predictions), 0)

    def _model_of_copy(self) -> keras.Model:
        """Return the calling copy's model."""
        context = tf.distribute.get_replica_context()
        return self._models[int(tf.get_static_value(tf.convert_to_tensor(context.replica_id_in_sync_group)))]

    def broadcast_statistics(self) -> None:
        for model in self._models[1:]:
            for statistic, first in zip(model.non_trainable_variables, self._model.non_trainable_variables, strict=True):
                statistic.assign(first)

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the bytes inside the copies and between them."""
        # Twin: each of C copies receives the gradients of the C - 1 others. Its first device computes BatchNorm's sums. The
        # other twin's copies of a slice form a ring.
        num_bytes = sum(
            variable.value.dtype.size * variable.shape.num_elements() for variable in self._model.trainable_variables
        )
        copies = len(self._models)
        gradients = copies * (copies - 1) * num_bytes
        statistics = ring_all_reduce_bytes(statistics_payload_bytes(self._spec, self._architecture), copies)
        return {"bytes_per_step": gradients + statistics + super().report(test)["bytes_per_step"]}

    def _trained_models(self) -> list[keras.Model]:
        return self._models

    def load_weights(self, values: ReadOnlyWeights) -> None:
        values = dict(values)  # each is drawn once for all copies
        for model in self._models:
            weights.load(model, self._architecture, values)

    def _load_optimizer_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        for optimizer in self._optimizers:
            optimizer.load_state(values)
