"""Mode model_averaging: one process per replica, each with its own model. The weights are averaged periodically."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.data.sources import Split
from common.models.weights import Weights
from common.training import ensemble
from common.training.loop import evaluate as score_split
from common.training.trainer import Batch, Pieces, Update
from tensorflow_impl import evaluate, weights
from tensorflow_impl.parallel import vectors
from tensorflow_impl.parallel.multi_process import MultiProcess


class ModelAveraging(MultiProcess):
    """One rank of several, which trains on its own shards only. Its environment holds its number, see `rendezvous`.

    Scores are of the averaged model. It is a separate copy, so scoring does not change the training.
    """

    def _build(self) -> None:
        # Twin: built outside the strategy's scope, which would keep the replicas' variables equal. The strategy only sums here.
        self._own = self._new_model(None)
        self._model = self._new_model(None)
        self._optimizer = self._new_optimizer(self._own.trainable_variables)

    def _compile(self) -> None:
        super()._compile()
        self._score_own = tf.function(
            lambda images, labels: evaluate.score(self._own, images, labels, loss=self._spec.loss, scaling=self._plan.scaling),
            input_signature=self._score.input_signature,
        )

    def _each(self, one: Callable[..., Any], images: Any, labels: Any, masks: Any) -> Any:
        """Results of every replica of this process, each on its own shard."""
        return one(images, labels, masks)  # as it was built: outside the strategy

    def _train_replicas(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        own = tf.shape(labels, tf.int64)[0]
        loss, num_correct, gradients = self._gradients(self._own, images, labels, masks, update._replace(num_examples=own))
        self._optimizer.apply(gradients, update.learning_rate, update.step)
        return loss * tf.cast(own / update.num_examples, loss.dtype), num_correct

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        """Update the model once on one batch.

        Args:
            batch: this process's shard of N examples: images uint8 [N, H, W, 3], labels int64 [N], masks bool [N, units].
            num_examples: size of the global batch.
            learning_rate: of this update.

        Returns:
            (loss, num_correct), scalars on the device: this process's share of the mean loss over num_examples, and how many
            of its predictions are right.
        """
        found = super().train_step(batch, num_examples, learning_rate)
        every_steps = self._spec.averaging.every_steps
        if every_steps is not None and self._step % every_steps == 0:
            vectors.assign(_values(self._own), self._average())
        return found

    def _average(self) -> tf.Tensor:
        own = vectors.flatten(_values(self._own))
        totals = self._total[own.dtype.name](own)
        return self._strategy.experimental_local_results(totals)[0] / self.shard[1]

    def share_statistics(self) -> None:
        """Copy replica 0's BatchNorm statistics to every replica. Evaluation uses them."""
        vectors.assign(_values(self._model), self._average())

    def report(self, test: Split) -> dict[str, Any]:
        """Mode-specific result fields. Called once, after `test` is scored."""
        (rank, ranks), size = self.shard, self._spec.global_batch_size
        predictions, losses = np.zeros((ranks, len(test)), np.int64), np.zeros(ranks)
        for start in range(0, len(test), size):
            part = slice(start, start + size)
            loss, predicted = self._score_own(tf.constant(test.images[part]), tf.constant(test.labels[part]))
            predictions[rank, part] = predicted.numpy()
            losses[rank] += float(loss)
        average, _ = score_split(self, test, size)
        # The end of the run averages the last steps too.
        averages = math.ceil(self._step / (self._spec.averaging.every_steps or self._step))
        # A ring sends all but one rank's part, once to sum and once to distribute the sum.
        sent = 2 * (ranks - 1) * sum(value.shape.num_elements() * value.dtype.size for value in _values(self._own))
        return {
            "members": ensemble.members(test.labels, self.all_reduce(predictions), self.all_reduce(losses), average),
            "bytes_per_step": sent * averages / self._step,
        }

    def separate(self, batch: Batch, num_examples: int) -> str:
        """The reason why compute and exchange of a step cannot be timed separately."""
        return "most steps send nothing: the weights are averaged now and then"

    def pieces(self, batch: Batch, num_examples: int) -> Pieces | str:
        """Break a step on this batch into a replica's computations, without exchange.

        Returns:
            The functions to call one by one, or the reason why a step has no such breakdown.
        """
        return self._pieces_of(self._own, batch, num_examples)

    def load_weights(self, values: Weights) -> None:
        """Set every parameter and statistic of every replica."""
        for model in (self._own, self._model):
            weights.load(model, self._architecture, values)


def _values(model: keras.Model) -> list[Any]:
    """What is averaged: the parameters and BatchNorm's statistics, without its count of batches."""
    return [variable.value for variable in model.weights]
