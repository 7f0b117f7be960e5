"""Mode pipeline, asynchronous: each stage updates its weights as soon as a micro-batch has come back to it."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from common.models import stages
from common.models.stages import Stage
from common.models.weights import ReadOnlyWeights
from common.training.trainer import Batch, Update
from tensorflow_impl import optim
from tensorflow_impl.parallel.pipeline import Pipeline


class PipelineAsync(Pipeline):
    """PipeDream (Narayanan et al. 2019): new micro-batches start before the updates of earlier ones are made.

    Every micro-batch makes its own update, from the mean over its own examples: a batch has as many updates as micro-batches.
    Stage s of S goes forward with weights that lack the last S - 1 - s updates, also across the border of two batches (see
    `common.models.stages.updates_missing`). The backward pass uses the same weights. Its gradient then moves weights that
    have moved on since. All updates of an epoch are made before anything is scored. Losses are those of the moving weights.
    """

    # Twin: a graph runs to its end, so the devices are idle between two batches. torch's ranks work on. The mathematics is the
    # same: updates that a stage must not use yet when the next batch comes are held back from its model in `_pending_versions`.

    def _build(self) -> None:
        self._pending_versions: list[list[list[keras.Variable]]] = []
        """Variables [stage][number of updates that the model lacks, less one][variable]."""
        super()._build()
        self._updates = tf.Variable(tf.constant(0, tf.int64), trainable=False)

    def _place(self, stage: Stage, where: str) -> Any:
        placed_stage = super()._place(stage, where)
        num_missing = stages.updates_missing(stage.index, stage.num_stages, stage.num_stages)
        with tf.device(where):
            pending = [
                [keras.Variable(variable, dtype=variable.dtype) for variable in placed_stage.model.trainable_variables]
                for _ in range(num_missing)
            ]
            self._pending_versions.append(pending)
            if not pending:
                return placed_stage
            return placed_stage._replace(updated=pending[-1], optimizer=optim.build(self._spec.optimizer, pending[-1]))

    def _train_copies(self, images: Any, labels: Any, masks: Any, update: Update, clock: Any) -> Any:
        (copy,) = self._copies
        # The gradient of a micro-batch is that of the mean over its own examples.
        number = update.micro_batches
        size = tf.shape(labels)[0] // number
        passes = self._passes(copy, images, labels, masks, update._replace(num_examples=size), clock)
        versions = [
            [[tf.identity(variable.value) for variable in version] for version in (part.model.trainable_variables, *pending)]
            for part, pending in zip(copy, self._pending_versions, strict=True)
        ]
        before = self._updates.read_value()
        for index, (kind, micro_batch) in stages.sequence("asynchronous", len(copy), number):
            if kind == "forward" and self._pending_versions[index]:
                _assign(copy[index].model.trainable_variables, versions[index][micro_batch])
            passes.run(index, stages.PipelineOperation(kind, micro_batch))
            if kind == "backward":
                step = before + (micro_batch + 1)
                versions[index].append(passes.update(index, passes.gradients[index][-1], step))
        for part, pending, stage_versions in zip(copy, self._pending_versions, versions, strict=True):
            for variables, values in zip(
                [part.model.trainable_variables, *pending][:-1], stage_versions[number:], strict=False
            ):
                _assign(variables, values)
        self._updates.assign_add(number)
        loss, num_correct = passes.outcome()
        return loss / number, num_correct, clock.busy_seconds(self._copies)

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        """Start every micro-batch of a batch. At the end of an epoch, also make all updates that are still due."""
        outcome = super().train_step(batch, num_examples, learning_rate)
        if self._plan.ends_epoch(self._step):
            for part, pending in zip(self._copies[0], self._pending_versions, strict=True):
                for variables in (part.model.trainable_variables, *pending[:-1]):
                    _assign(variables, part.updated)
        return outcome

    def _pending_variables(self) -> list[keras.Variable]:
        return [variable for stage in self._pending_versions for version in stage for variable in version]

    def load_weights(self, values: ReadOnlyWeights) -> None:
        super().load_weights(values)
        for part, pending in zip(self._copies[0], self._pending_versions, strict=True):
            for variables in pending:
                _assign(variables, part.model.trainable_variables)


def _assign(variables: list[keras.Variable], values: list[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
