"""Mode model_averaging: one process per replica, each with its own model. The weights are averaged periodically."""

from __future__ import annotations

import math
import os
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.data.sources import DatasetSplit
from common.models.weights import ReadOnlyWeights
from common.training import ensemble
from common.training.evaluation import evaluate as score_split
from common.training.trainer import Batch, StepBreakdown, Update
from tensorflow_impl import device, evaluate, train, weights
from tensorflow_impl.parallel import group, vectors
from tensorflow_impl.parallel.trainer import Trainer


class ModelAveraging(Trainer):
    """One rank of several, which trains on its own shards only. Its environment holds its number, see `rendezvous`.

    Scores are of the averaged model. It is a separate copy, so scoring does not change the training.
    """

    def _build(self) -> None:
        self.shard = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.devices = self._ranks()
        self._shards = group.all_ranks()
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
        self._score_local = device.graph(
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

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        """Update this rank's model once. Then average all ranks' weights, if an average is due."""
        outcome = super().train_step(batch, num_examples, learning_rate)
        every_steps = self._spec.averaging.every_steps
        if every_steps is not None and self._step % every_steps == 0:
            self._assign_local(self._average())
        return outcome

    def _average(self) -> tf.Tensor:
        rank, ranks = self.shard
        # Ranks that own parts of unequal size count as much as they have examples (McMahan et al. 2017).
        weight = self._plan.weight(ranks, rank)
        return self._shards.sum_tensor(self._flatten() * weight) / ranks

    def finish_epoch(self) -> None:
        self._assign(self._average())

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the scores of the ranks' own models, and the bytes of the averages."""
        (rank, ranks), size = self.shard, self._spec.global_batch_size
        predictions, losses = np.zeros((ranks, len(test)), np.int64), np.zeros(ranks)
        for start in range(0, len(test), size):
            part = slice(start, start + size)
            loss, predicted = self._score_local(tf.constant(test.images[part]), tf.constant(test.labels[part]))
            predictions[rank, part] = predicted.numpy()
            losses[rank] += float(loss)
        average, _ = score_split(self, test, size)
        every_steps = self._spec.averaging.every_steps
        # Each epoch ends with an average that is scored.
        averages = math.ceil(self._step / self._plan.steps_per_epoch) + (self._step // every_steps if every_steps else 0)
        # A ring sends all but one rank's part, once to sum and once to distribute the sum.
        sent = 2 * (ranks - 1) * sum(value.shape.num_elements() * value.dtype.size for value in _values(self._local_model))
        return {
            "members": ensemble.members(
                test.labels, self.all_reduce_shards(predictions), self.all_reduce_shards(losses), average
            ),
            "bytes_per_step": sent * averages / self._step,
        }

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> str:
        """Return why compute and exchange of a step cannot be timed separately."""
        return "most steps send nothing: the weights are averaged now and then"

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """Return a rank's forward pass, backward pass and update, or why they cannot be called one by one."""
        return self._break_down(self._local_model, batch, num_examples)

    def _trained_models(self) -> list[keras.Model]:
        return [self._local_model]

    def load_weights(self, values: ReadOnlyWeights) -> None:
        values = dict(values)  # each is drawn once for both models
        for model in (self._local_model, self._model):
            weights.load(model, self._architecture, values)


def _values(model: keras.Model) -> list[Any]:
    """Return the tensors that are averaged: parameters and BatchNorm's statistics, without its count of batches."""
    return [variable.value for variable in model.weights]
