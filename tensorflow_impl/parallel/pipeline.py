"""Mode pipeline: each device holds a stage of the model, and micro-batches pass through the stages one after another."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.artifacts.schema import StepParts
from common.data.sources import DatasetSplit
from common.models import stages
from common.models.architectures import BatchNorm
from common.models.stages import Stage
from common.models.weights import ReadOnlyWeights, Weights
from common.training.trainer import Batch, Update
from tensorflow_impl import device, input, models, optim, train, weights
from tensorflow_impl.optim import TwinOptimizer
from tensorflow_impl.parallel.trainer import Trainer


class Pipeline(Trainer):
    """Stages of one model on a device each, in the order of GPipe or of 1F1B.

    The one update uses gradients summed over the micro-batches, so the mathematics is that of serial accumulation over the
    same micro-batches. BatchNorm normalises each micro-batch separately.
    """

    def _build(self) -> None:
        copies = self._spec.data_replicas
        number = self._spec.replicas // copies
        devices = self._devices()
        self.devices = [f"{where}, stage {index % number}" for index, where in enumerate(devices)]
        self._stages = stages.cut(self._architecture, number)
        # Twin: this process holds all stages, each on its device. torch has a rank for each.
        self._copies = [
            [self._place(stage, devices[copy * number + stage.index]) for stage in self._stages] for copy in range(copies)
        ]
        self._whole_batch_size: int | None = None
        """Number of examples in a whole batch."""

    def _place(self, stage: Stage, where: str) -> _PlacedStage:
        with tf.device(where):
            model = models.build_stage(stage, self._spec.precision)
            variables = model.trainable_variables
            return _PlacedStage(stage, where, model, variables, optim.build(self._spec.optimizer, variables))

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        loss, num_correct, _ = self._train_copies(images, labels, masks, update, _Clock(is_enabled=False))
        return loss, num_correct

    def _train_copies(self, images: Any, labels: Any, masks: Any, update: Update, clock: _Clock) -> Any:
        """Do one update. Returns (loss, num_correct, busy seconds of each device)."""
        passes = [
            self._passes(copy, *shard, update, clock)
            for copy, shard in zip(self._copies, self._by_copy(images, labels, masks), strict=True)
        ]
        # Twin: control dependencies enforce the order of GPipe or 1F1B. torch's schedule runs it.
        for index, operation in stages.sequence(self._spec.pipeline.schedule, len(self._stages), update.micro_batches):
            for copy_passes in passes:
                copy_passes.run(index, operation)
        for index in range(len(self._stages)):
            summed = self._sum_copies(
                [copy_passes.sum_gradients(index) for copy_passes in passes], self._copies[0][index].device
            )
            for copy_passes in passes:
                copy_passes.update(index, summed, update.step)
        losses, correct = zip(*(copy_passes.outcome() for copy_passes in passes), strict=True)
        return tf.add_n(losses), tf.add_n(correct), clock.busy_seconds(self._copies)

    def _passes(self, copy: list[_PlacedStage], images: Any, labels: Any, masks: Any, update: Update, clock: _Clock) -> _Passes:
        return _Passes(self, copy, images, labels, masks, update, clock)

    def _by_copy(self, images: Any, labels: Any, masks: Any) -> list[tuple[Any, Any, Any]]:
        """Return the shard of each copy. There is one copy."""
        return [(images, labels, masks)]

    def _sum_copies(self, gradients: list[list[tf.Tensor]], where: str) -> list[tf.Tensor]:
        """Sum gradients over the copies of the stage. There is one copy."""
        return gradients[0]

    def _scale(self, images: Any) -> tf.Tensor:
        return input.scale(images, device.dtype(self._spec), self._plan.scaling)

    def _loss(self, logits: tf.Tensor, labels: tf.Tensor, num_examples: Any) -> tf.Tensor:
        return train.share_of_loss(logits, labels, num_examples, self._objective.loss)

    def _score_batch(self, images: Any, labels: Any) -> Any:
        # Twin: the first copy scores every example. In torch each copy scores its own shard.
        logits = self._logits(images)
        return self._loss(logits, labels, 1), tf.argmax(logits, 1)

    def _logits(self, images: tf.Tensor) -> tf.Tensor:
        """Return logits [N, classes] in evaluation mode, from the first copy."""
        with tf.device(self._copies[0][0].device):
            values = self._scale(images)
        for part in self._copies[0]:
            with tf.device(part.device):
                masks = [tf.ones((tf.shape(values)[0], mask.shape[1]), tf.bool) for mask in part.model.inputs[1:]]
                values = part.model([values, *masks], training=False)
        return values

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        """Pass a batch forward and backward through the stages. Then every stage updates its weights."""
        if self._whole_batch_size is None:
            self._whole_batch_size = num_examples
        return super().train_step(batch, num_examples, learning_rate)

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the bytes that the stages send."""
        assert self._whole_batch_size is not None, "a run has at least one step"
        values = stages.boundary_values(self._stages) * self._whole_batch_size
        # Twin: TensorFlow sends what the graph hands from device to device. torch's sends are counted as they are made.
        return {"bytes_per_step": float((values + self._values_summed()) * device.dtype(self._spec).size)}

    def _values_summed(self) -> int:
        """Return the number of values that are sent to sum gradients over the copies, and to return the sum."""
        trainable = sum(math.prod(variable.shape) for part in self._copies[0] for variable in part.updated)
        return 2 * (len(self._copies) - 1) * trainable

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> StepParts:
        """Time whole steps at learning rate 0, and the computations of each stage within them."""
        steps, micro_batches = self._spec.profile_steps, self._spec.micro_batches(num_examples)

        @device.graph
        def timed(images: Any, labels: Any, masks: Any) -> Any:
            # The clock is in a separate graph, so that no training step waits for it.
            update = Update(num_examples, tf.constant(0.0, tf.float64), tf.constant(self._step, tf.int64), micro_batches)
            return self._train_copies(images, labels, masks, update, _Clock(is_enabled=True))[2]

        timed(batch.images, batch.labels, batch.masks)
        seconds, busy = np.zeros(steps), np.zeros((steps, self._spec.replicas))
        for step in range(steps):
            start = time.perf_counter()
            busy[step] = timed(batch.images, batch.labels, batch.masks).numpy()
            self.synchronize()
            seconds[step] = time.perf_counter() - start
        if device.gpus():
            why = "the graph knows when a GPU is asked to compute, and not when it has"
            return StepParts(steps=steps, step_seconds=float(np.median(seconds)), not_separable=why)
        return StepParts(
            steps=steps,
            step_seconds=float(np.median(seconds)),
            compute_seconds=float(np.median(busy.max(1))),
            idle_seconds=float(np.median((seconds[:, None] - busy).mean(1))),
            not_separable="a stage that waits for its neighbour cannot tell idling from receiving: both are idle seconds",
        )

    def _trained_models(self) -> list[Any]:
        return [part.model for copy in self._copies for part in copy]

    def load_weights(self, values: ReadOnlyWeights) -> None:
        for copy in self._copies:
            for part in copy:
                weights.load(part.model, part.stage.architecture, values)

    def weights(self) -> Weights:
        weights_by_name: Weights = {}
        for part in self._copies[0]:
            weights_by_name |= weights.extract(part.model, part.stage.architecture)
        return {parameter.name: weights_by_name[parameter.name] for parameter in self._architecture.parameters()}

    # Twin: the arrays of all stages, one stage after another. torch has a rank for each stage.

    def _optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        arrays: dict[str, npt.NDArray[Any]] = {}
        for part, indices in self._variable_indices(self._copies[0]):
            stage_state = part.optimizer.state()
            slots = {path.rpartition("/")[0] for path in stage_state}
            arrays |= {
                f"{slot}/{place}": stage_state[f"{slot}/{index}"] for slot in slots for index, place in enumerate(indices)
            }
        return arrays

    def _load_optimizer_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        slots = {path.rpartition("/")[0] for path in values}
        for copy in self._copies:
            for part, indices in self._variable_indices(copy):
                part.optimizer.load_state(
                    {f"{slot}/{index}": values[f"{slot}/{place}"] for slot in slots for index, place in enumerate(indices)}
                )

    def _trainable(self) -> list[npt.NDArray[Any]]:
        return [variable.numpy() for part in self._copies[0] for variable in part.model.trainable_variables]

    def _by_name(self, arrays: list[npt.NDArray[Any]]) -> Weights:
        weights_by_name: Weights = {}
        for part, indices in self._variable_indices(self._copies[0]):
            values = [tf.constant(arrays[place]) for place in indices]
            weights_by_name |= weights.extract_gradients(part.model, part.stage.architecture, values)
        return weights_by_name

    def _variable_indices(self, copy: list[_PlacedStage]) -> Iterator[tuple[_PlacedStage, range]]:
        """Yield (stage, indices of its trainable variables in the list of all stages' variables)."""
        start = 0
        for part in copy:
            stop = start + len(part.model.trainable_variables)
            yield part, range(start, stop)
            start = stop

    def num_values(self) -> tuple[int, int]:
        counts = np.sum([models.num_values(part.model) for part in self._copies[0]], axis=0)
        return int(counts[0]), int(counts[1])

    def logits(self, batch: Batch, *, training: bool) -> npt.NDArray[np.floating]:
        """Return logits [N, classes] of one batch in evaluation mode, from the first copy of the model."""
        return self._logits(batch.images).numpy()


class _PlacedStage(NamedTuple):
    """A stage on its device."""

    stage: Stage
    device: str
    model: keras.Model
    updated: list[keras.Variable]
    """Variables that the optimizer updates: the model's trainable ones, or newer versions of them."""
    optimizer: TwinOptimizer

    @property
    def statistics(self) -> list[Any]:
        return [
            variable.value
            for layer in self.stage.architecture.leaves()
            if isinstance(layer, BatchNorm)
            for variable in models.find_layer(self.model, layer.name).non_trainable_variables
        ]


class _Passes:
    """The forward and backward passes of a batch's micro-batches through the stages of one copy, in a graph."""

    def __init__(
        self, trainer: Pipeline, copy: list[_PlacedStage], images: Any, labels: Any, masks: Any, update: Update, clock: _Clock
    ) -> None:
        self._trainer = trainer
        self._copy = copy
        self._update = update
        self._clock = clock
        self._images, self._labels = (train.micro_batches(values, update.micro_batches) for values in (images, labels))
        self._masks = [train.micro_batches(mask, update.micro_batches) for mask in masks]
        self._last_results: list[list[tf.Tensor]] = [[] for _ in copy]
        """Results of each stage's last operation."""
        self._forward: dict[tuple[int, int], Any] = {}
        """(tape, input, output) by stage and micro-batch. The last stage's output is its loss."""
        self._output_gradients: dict[tuple[int, int], tf.Tensor] = {}
        """Gradient of the loss by the output, by stage and micro-batch. The next stage computes it."""
        self.gradients: list[list[list[tf.Tensor]]] = [[] for _ in copy]
        """Gradients [stage][micro-batch][variable]."""
        self._losses: list[tf.Tensor] = []
        self._correct: list[tf.Tensor] = []

    def run(self, index: int, operation: stages.PipelineOperation) -> None:
        """Add one operation to the graph. It starts when its stage's last operation has ended and its input has arrived."""
        part = self._copy[index]
        run_operation = self._forward_pass if operation.kind == "forward" else self._backward_pass
        inputs = self._input(index, operation)
        with tf.device(part.device), tf.control_dependencies(self._last_results[index]):
            start = self._clock.stamp([*self._last_results[index], *inputs])
            with tf.control_dependencies(start):
                self._last_results[index] = run_operation(index, operation.micro_batch, *inputs)
            self._last_results[index] += self._clock.count(part, start, self._last_results[index])

    def sum_gradients(self, index: int) -> list[tf.Tensor]:
        """Sum the gradients of a stage over the micro-batches."""
        with tf.device(self._copy[index].device):
            return [tf.add_n(gradients) for gradients in zip(*self.gradients[index], strict=True)]

    def update(self, index: int, gradients: list[tf.Tensor], step: Any) -> list[tf.Tensor]:
        """Update a stage's variables once, and return their new values."""
        part = self._copy[index]
        with tf.device(part.device), tf.control_dependencies(self._last_results[index]):
            start = self._clock.stamp([*self._last_results[index], *gradients])
            with tf.control_dependencies(start):
                part.optimizer.apply(gradients, self._update.learning_rate, step)
            values = [tf.identity(variable.value) for variable in part.updated]
            self._last_results[index] = [*values, *self._clock.count(part, start, values)]
        return values

    def outcome(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (loss, num_correct), summed over the micro-batches."""
        with tf.device(self._copy[-1].device):
            return tf.add_n(self._losses), tf.add_n(self._correct)

    def _input(self, index: int, operation: stages.PipelineOperation) -> list[tf.Tensor]:
        """Return the neighbour's output. The first stage takes images, and the last one starts backward from its loss."""
        if operation.kind == "backward":
            return [self._output_gradients[index, operation.micro_batch]] if index + 1 < len(self._copy) else []
        return [self._forward[index - 1, operation.micro_batch][2] if index else self._images[operation.micro_batch]]

    def _forward_pass(self, index: int, micro_batch: int, values: tf.Tensor) -> list[tf.Tensor]:
        stage, model = self._copy[index].stage, self._copy[index].model
        masks = [mask[micro_batch] for mask in self._masks[stage.masks]]
        stage_input = tf.identity(values) if index else self._trainer._scale(values)
        with tf.GradientTape() as tape:
            tape.watch(stage_input)
            output = model([stage_input, *masks], training=True)
            if stage.is_last:
                logits, labels = output, self._labels[micro_batch]
                output = self._trainer._loss(logits, labels, self._update.num_examples)
        if stage.is_last:
            self._losses.append(output)
            self._correct.append(tf.reduce_sum(tf.cast(tf.argmax(logits, 1) == labels, tf.int64)))
        self._forward[index, micro_batch] = tape, stage_input, output
        return [output]

    def _backward_pass(self, index: int, micro_batch: int, *output_gradients: tf.Tensor) -> list[tf.Tensor]:
        tape, stage_input, output = self._forward.pop((index, micro_batch))
        variables = [variable.value for variable in self._copy[index].model.trainable_variables]
        sources = [*variables, *([stage_input] if index else [])]
        gradients = tape.gradient(
            output, sources, output_gradients=tf.identity(output_gradients[0]) if output_gradients else None
        )
        all_gradients = list(gradients)
        if index:
            self._output_gradients[index - 1, micro_batch] = gradients.pop()
        self.gradients[index].append(gradients)
        return all_gradients


class _Clock:
    """Measures time inside a graph, if enabled."""

    def __init__(self, *, is_enabled: bool) -> None:
        self._is_enabled = is_enabled
        self._busy_intervals: dict[str, list[tf.Tensor]] = {}

    def stamp(self, after: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return [the time when all of these have been computed], or nothing if disabled."""
        if not self._is_enabled:
            return []
        with tf.control_dependencies(after):
            # A value that the graph optimizer cannot know. Otherwise it would read the time only once.
            value = tf.reshape(after[0], (-1,))[0]
            return [tf.numpy_function(lambda _: time.perf_counter(), [value], tf.float64, stateful=False)]

    def count(self, part: _PlacedStage, start: list[tf.Tensor], results: list[tf.Tensor]) -> list[tf.Tensor]:
        """Count the time from a stamp to these results as busy. Returns the stamp of its end."""
        end = self.stamp(results)
        if end:
            self._busy_intervals.setdefault(part.device, []).append(end[0] - start[0])
        return end

    def busy_seconds(self, copies: list[list[_PlacedStage]]) -> Any:
        """Return the busy seconds so far [devices]; None if no time was measured."""
        return (
            tf.stack([tf.add_n(self._busy_intervals[part.device]) for copy in copies for part in copy])
            if self._is_enabled
            else None
        )
