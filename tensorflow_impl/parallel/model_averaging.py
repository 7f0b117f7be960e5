"""Mode model_averaging: one process per replica, each with its own model. The weights are averaged periodically."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.training.averaging_trainer import AveragingTrainer
from common.training.trainer import Update
from tensorflow_impl import device, evaluate, train
from tensorflow_impl.parallel import group, vectors
from tensorflow_impl.parallel.trainer import Trainer


class ModelAveraging(AveragingTrainer, Trainer):
    """One rank of several, which trains on its own shards only. Its environment holds its number, see `rendezvous`."""

    def _build(self) -> None:
        self._join_ranks(group.all_ranks())
        # Twin: built outside the strategy's scope, which would keep the replicas' variables equal. The strategy only sums here.
        self._local_model = self._new_model(None)
        self._model = self._new_model(None)
        self._optimizer = self._new_optimizer(self._local_model)
        # Twin: one operation after the other takes ten times as long as a graph.
        vector = [tf.TensorSpec((None,), device.dtype(self._spec))]
        self._flatten = device.graph(partial(vectors.flatten, _values(self._local_model))).get_concrete_function()
        self._assign_local, self._assign = (
            device.graph(partial(vectors.assign, _values(model)), input_signature=vector).get_concrete_function()
            for model in (self._local_model, self._model)
        )
        self._score_graph = device.graph(
            lambda images, labels: evaluate.score(self._local_model, images, labels, self._objective),
            input_signature=self._signature[:2],
        )

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        num_local = tf.shape(labels, tf.int64)[0]
        local_update = update._replace(num_examples=num_local)
        loss, num_correct = train.train_step(
            self._objective, self._local_model, self._optimizer, images, labels, masks, local_update
        )
        return loss * tf.cast(num_local / update.num_examples, loss.dtype), num_correct

    def _local_values(self) -> tf.Tensor:
        return self._flatten()

    def _set_local(self, values: tf.Tensor) -> None:
        self._assign_local(values)

    def _set_averaged(self, values: tf.Tensor) -> None:
        self._assign(values)

    def _score_local(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> tuple[tf.Tensor, tf.Tensor]:
        return self._score_graph(tf.constant(images), tf.constant(labels))

    def _trained_models(self) -> list[keras.Model]:
        return [self._local_model]


def _values(model: keras.Model) -> list[Any]:
    """Return the tensors that are averaged: parameters and BatchNorm's statistics, without its count of batches."""
    return [variable.value for variable in model.weights]
