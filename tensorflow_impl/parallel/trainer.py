"""Base of the trainers of all modes: construction, input, scores, weights, state, and a step's breakdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, cast

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.data.batches import BatchPlan, Feed
from common.data.sources import Dataset
from common.machine import placement
from common.models import architectures, user_code
from common.models.architectures import Architecture, BatchNorm
from common.models.weights import ReadOnlyWeights, Weights
from common.spec import Spec
from common.training import trainer
from common.training.trainer import Batch, ComputeAndExchange, ProfilerRecording, StepBreakdown, Update
from tensorflow_impl import decisions, device, evaluate, input, models, optim, private_api, profiler, shards, train, weights
from tensorflow_impl.batch_norm import ReplicaGroup
from tensorflow_impl.compression import Compressor
from tensorflow_impl.parallel.group import CommunicationGroup


class Trainer(trainer.BaseTrainer):
    """One process of a run. A mode adds how it builds replicas, how they train and score together, and what it reports.

    `common.training.trainer.BaseTrainer` documents the public methods.
    """

    _exchanges = True

    def __init__(
        self, spec: Spec, architecture: Architecture, plan: BatchPlan, dataset: Dataset, initial: ReadOnlyWeights
    ) -> None:
        super().__init__(spec, architecture, plan, dataset, device.describe())
        self._objective = train.Objective(spec.loss, plan.scaling, self._loss_scale)
        self.threads = {
            "intra_op": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter_op": tf.config.threading.get_inter_op_parallelism_threads(),
            "input": spec.workers,
        }
        # The batch dimension is free, so the last, smaller batch is not traced again.
        images = tf.TensorSpec((None, architecture.image_size, architecture.image_size, 3), tf.uint8)
        labels = tf.TensorSpec((None,), tf.int64)
        masks = tuple(tf.TensorSpec((None, dropout.units), tf.bool) for dropout in architecture.dropouts)
        whole, real = tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.float64)
        self._signature = (images, labels, masks, whole, real, whole)
        self._model: keras.Model
        self._optimizer: optim.TwinOptimizer
        self._build()
        # Twin: TensorFlow makes a graph by default, one for each number of micro-batches. PyTorch runs the step eagerly.
        self._train = cache(self._new_step_graph)
        self._record = cache(self._new_recording_graph)
        self._score = device.graph(self._score_batch, input_signature=(images, labels))
        self._score.get_concrete_function()  # traced now, so that the first evaluation is timed like the others
        self.load_weights(initial)

    def _build(self) -> None:
        """Build the replicas of this process: `_model`, and `_optimizer` if this process updates weights."""
        raise NotImplementedError

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        """Do one step on this process's shard, in a graph. Returns (loss, num_correct)."""
        raise NotImplementedError

    def _score_batch(self, images: Any, labels: Any) -> Any:
        """Score a batch, in a graph. Returns (loss_sum, predictions)."""
        return evaluate.score(self._model, images, labels, self._objective)

    def feed(self) -> Feed[Batch]:
        index, number = self.shard
        return input.feed(self._plan, self._dataset.train, number, index, self._switches, self._new_transfer_stats())

    def compilations(self) -> int:
        return len(self._shapes) + private_api.compilation_count()

    def score(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> tuple[Any, npt.NDArray[np.int64]]:
        with tf.device("CPU:0"):  # Twin: else TensorFlow sends the whole batch to the first GPU. Each replica copies its shard.
            arguments = tf.constant(images), tf.constant(labels)
        loss, predictions = self._score(*arguments)
        return loss, predictions.numpy()

    def fetch(self, values: list[Any]) -> npt.NDArray[Any]:
        return tf.stack(values).numpy()

    def record(self, work: Callable[[], None]) -> ProfilerRecording:
        return profiler.record(work)

    def synchronize(self) -> None:
        device.synchronize()

    def close(self) -> None:
        """Disconnect from the other processes at the end of the run."""
        # Twin: the strategy has no such call. Its server ends with the process.

    def load_weights(self, values: ReadOnlyWeights) -> None:
        self._load_into(self._model, values)

    def weights(self) -> Weights:
        return weights.extract(self._model, self._architecture)

    def num_values(self) -> tuple[int, int]:
        return models.num_values(self._model)

    def gradients(self, batch: Batch, num_examples: int) -> Weights:
        update = Update(num_examples, learning_rate=0.0, step=0)
        compute = device.graph(lambda: self._objective.gradients(self._model, batch.images, batch.labels, batch.masks, update))
        _, _, gradients = compute()
        return weights.extract_gradients(self._model, self._architecture, gradients)

    def logits(self, batch: Batch, *, training: bool) -> npt.NDArray[np.floating]:
        if not training:
            return evaluate.logits(self._model, batch.images, self._plan.scaling).numpy()
        return self._model(
            [input.scale(batch.images, device.dtype(self._spec), self._plan.scaling), *batch.masks], training=True
        ).numpy()

    def record_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any, list[npt.NDArray[Any]]]:
        # Compiled kernels round otherwise. On a GPU nobody has tried it. A user's own builder may name its layers as it likes.
        user_built = user_code.builder(self._architecture.name, "tensorflow")
        if self._switches["graph"] == "xla" or device.gpus() or user_built:
            return (*self.train_step(batch, num_examples, learning_rate), [])
        recorders, graph = self._record(self._spec.micro_batches(num_examples))
        observed: list[dict[str, Any]] = []

        def run(*arguments: Any) -> Any:
            outcome, values = graph(*arguments)
            observed.extend(values)
            return outcome

        train, self._train = self._train, lambda *_: run
        try:
            outcome = self.train_step(batch, num_examples, learning_rate)
        finally:
            self._train = train
        by_recorder = list(zip(recorders, observed, strict=True))
        return (
            *outcome,
            [
                np.concatenate([recorder.to_array(name, values[name]) for recorder, values in by_recorder if name in values])
                for name, _ in architectures.decision_layers(self._architecture.layers)
            ],
        )

    def error_feedback(self) -> list[npt.NDArray[Any]]:
        compressor: Compressor | None = getattr(self, "_compressor", None)
        residuals = compressor.residuals if compressor else []
        return [np.stack([copy.numpy() for copy in device.copies(values)]) for values in residuals]

    def memory_by_device(self) -> dict[str, float]:
        if len(self.devices) == 1 or placement.is_rank() or device.gpus():
            return {}
        arrays = 2 + {"sgd": 1, "adam": 2}[self._spec.optimizer.name]  # the parameter, its gradient, the optimizer's state
        bytes_by_device: Counter[str] = Counter()
        gathered = max(map(shards.most_gathered_bytes, self._trained_models()))
        for model in self._trained_models():
            for variable in model.variables:
                size = math.prod(variable.shape) * tf.as_dtype(variable.dtype).size
                for copy in device.copies(variable.value):
                    bytes_by_device[copy.device] += size * (arrays if variable.trainable else 1)
        for variable in self._pending_variables():
            bytes_by_device[variable.value.device] += math.prod(variable.shape) * tf.as_dtype(variable.dtype).size
        return {
            name.rpartition("device:")[2]: (num_bytes + gathered) / 2**20 for name, num_bytes in sorted(bytes_by_device.items())
        }

    # Methods that modes are built from.

    def _trained_models(self) -> list[keras.Model]:
        """Return all models of this process with trained variables."""
        return [self._model]

    def _pending_variables(self) -> list[keras.Variable]:
        """Return weights of other versions than the models'."""
        return []

    def _new_model(self, group: ReplicaGroup | None) -> keras.Model:
        """Build a replica on the current device; the group sums for synchronised BatchNorm."""
        return models.build(self._architecture, self._spec.precision, group, self._switches["arithmetic"])

    def _new_optimizer(self, model: keras.Model) -> optim.TwinOptimizer:
        return optim.build(self._spec.optimizer, model.trainable_variables, self._switches)

    def _replicate(self, replicas: CommunicationGroup) -> None:
        """Build one replica on every device of a strategy. They exchange gradients in buckets."""
        self._strategy, settings = replicas.members, self._spec.communication
        if settings.compression != "none":
            self.implementation += f", gradients as {settings.compression}"
        with self._strategy.scope():
            self._model = self._new_model(replicas if self._synchronises else None)
            self._optimizer = self._new_optimizer(self._model)
            self._compressor = Compressor(settings, self._model, self._architecture)

    def _devices(self) -> list[str]:
        """Return a device of this process for every replica."""
        return [f"{'GPU' if device.gpus() else 'CPU'}:{index}" for index in range(self._spec.replicas)]

    def _loss_scale(self) -> tf.Tensor | None:
        return cast(optim.LossScaled, self._optimizer).scale if self._switches["arithmetic"] == "float16" else None

    def _compiled(self, num_examples: int) -> bool:
        """Return whether XLA compiles a step on this many examples. It does so only for the first batch size.

        Otherwise it would compile again for the last, smaller batch.
        """
        # Twin: TensorFlow has a compiled and an uncompiled function. torch switches its compiled model to eager.
        self._compiled_for = self._compiled_for or num_examples
        return self._switches["graph"] == "xla" and num_examples == self._compiled_for

    def _new_step_graph(self, micro_batches: int, compiled: bool = False, body: Any = None) -> Any:
        """Build a graph of a step, or of another function that takes the same arguments."""
        body = body or self._train_step

        def step(images: Any, labels: Any, masks: Any, num_examples: Any, learning_rate: Any, number: Any) -> Any:
            return body(images, labels, masks, Update(num_examples, learning_rate, number, micro_batches))

        if self._switches["graph"] == "eager":
            return step
        return device.graph(step, input_signature=self._signature, jit_compile=True if compiled else None)

    def _run_step(self, batch: Batch, num_examples: int, learning_rate: float) -> Any:
        micro_batches = self._spec.micro_batches(num_examples)
        self._shapes.add((len(batch.labels), micro_batches))
        step = self._train(micro_batches, self._compiled(num_examples))
        return self._call(step, *self._arguments(batch, num_examples, learning_rate))

    def _call(self, graph: Callable[..., Any], *arguments: Any) -> Any:
        """Call a graph where replicas may exchange tensors."""
        return graph(*arguments)

    def _new_recording_graph(self, micro_batches: int) -> tuple[list[decisions.DecisionRecorder], Any]:
        """Build a graph of a step that also returns what recorders of all models observe."""
        recorders = [decisions.DecisionRecorder(model, self._architecture) for model in self._trained_models()]

        def step(images: Any, labels: Any, masks: Any, update: Update) -> Any:
            with ExitStack() as stack:
                for recorder in recorders:
                    stack.enter_context(recorder)
                outcome = self._train_step(images, labels, masks, update)
            return outcome, [recorder.observed(micro_batches) for recorder in recorders]

        return recorders, self._new_step_graph(micro_batches, body=step)

    def _blank(self, examples: int) -> Batch:
        images, labels, masks = tf.nest.map_structure(
            lambda values: tf.ones((examples, *values.shape[1:]), values.dtype), self._signature[:3]
        )
        return Batch(ids=labels, images=images, labels=tf.zeros_like(labels), masks=masks)

    def _blank_step(self, examples: int, num_examples: int) -> None:
        variables: list[tuple[Any, Any]] = []
        if self._switches["graph"] != "eager":
            step = self._train(self._spec.micro_batches(num_examples), self._compiled(num_examples))
            variables = [
                (handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=private_api.resource_dtype(handle)))
                for handle in step.get_concrete_function().captured_inputs
                if handle.dtype == tf.resource
            ]
        self._run_step(self._blank(examples), num_examples, 0.0)
        for handle, value in variables:
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def _blank_score(self, batch: Batch) -> None:
        self._score(batch.images, batch.labels)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Undo the changes of blank batches if no graph names its variables."""
        # Twin: a graph names its variables, and each blank step gives them their values back. torch names what changes.
        saved_state = self.state() if self._switches["graph"] == "eager" else None
        yield
        if saved_state is not None:
            self.load_state(saved_state, self._step)
        if isinstance(self._shards, CommunicationGroup):
            self._shards.sum_tensor(tf.zeros(1, device.dtype(self._spec)))  # the graph that averages weights

    def _trainable(self) -> list[npt.NDArray[Any]]:
        return [device.copies(variable.value)[0].numpy() for variable in self._model.trainable_variables]

    def _by_name(self, arrays: list[npt.NDArray[Any]]) -> Weights:
        return weights.extract_gradients(self._model, self._architecture, list(map(tf.constant, arrays)))

    def _load_into(self, model: keras.Model, values: ReadOnlyWeights) -> None:
        weights.load(model, self._architecture, values)

    def _statistics(self) -> list[Any]:
        return [
            variable.value
            for layer in self._architecture.leaves()
            if isinstance(layer, BatchNorm)
            for variable in models.find_layer(self._model, layer.name).non_trainable_variables
        ]

    def _to_host(self, tensor: tf.Tensor) -> npt.NDArray[Any]:
        return tensor.numpy()

    def _tensor(self, array: npt.NDArray[Any]) -> tf.Tensor:
        return tf.constant(array)

    def _arguments(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, ...]:
        # Twin: torch takes Python numbers. A graph takes tensors; on the device, each would need a copy at every step.
        with tf.device("CPU:0"):
            numbers = (
                tf.constant(num_examples, tf.int64),
                tf.constant(learning_rate, tf.float64),
                tf.constant(self._step, tf.int64),
            )
        return (batch.images, batch.labels, batch.masks, *numbers)

    def _run_replicas(self, replica_fn: Callable[..., Any], images: Any, labels: Any, masks: Any) -> Any:
        """Run a function in every replica of this process, each on its own shard. Returns the results."""
        return replica_fn(images, labels, masks)

    def _exchange(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sum the gradients of the strategy's replicas. Each gets the sum."""
        return self._compressor.exchange(gradients) if self._exchanges else gradients

    def _step_without_exchange(self, num_examples: int) -> Any:
        """Build a step without any exchange."""
        step = self._new_step_graph(self._spec.micro_batches(num_examples), self._compiled(num_examples))
        # Twin: tracing the graph fixes what the step does, so it is traced here.
        self._exchanges = False
        if self._switches["graph"] != "eager":
            step.get_concrete_function()
        self._exchanges = True
        return step

    def _split_step(self, batch: Batch, num_examples: int) -> ComputeAndExchange:
        """Return a step of a strategy's replicas without exchange, and the exchange of gradients alone."""
        step = self._step_without_exchange(num_examples)
        shapes = [variable.shape for variable in self._model.trainable_variables]
        draw = device.graph(lambda: [tf.random.normal(shape, dtype=device.dtype(self._spec)) for shape in shapes])
        gradients = self._strategy.run(draw)

        def replica_fn(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
            return self._exchange([tf.identity(gradient) for gradient in gradients])

        send = device.graph(lambda gradients: self._strategy.run(replica_fn, args=(gradients,)))

        def compute() -> None:
            step(*self._arguments(batch, num_examples, 0.0))

        def exchange() -> None:
            self._call(send, gradients)

        return ComputeAndExchange(compute, exchange)

    def _break_down(self, model: keras.Model, batch: Batch, num_examples: int) -> StepBreakdown:
        """Return the step breakdown of a model that every replica holds whole."""
        number, compiled = self._spec.micro_batches(num_examples), self._compiled(num_examples)

        def forward(images: Any, labels: Any, masks: Any, update: Update) -> Any:
            cut = [train.micro_batches(values, number) for values in (images, labels, *masks)]
            outcomes: list[tuple[tf.Tensor, tf.Tensor]] = []
            for own_images, own_labels, *own_masks in zip(*cut, strict=True):
                with tf.control_dependencies(outcomes[-1] if outcomes else []):  # in the order of a step
                    outcomes.append(self._objective.forward(model, own_images, own_labels, own_masks, update.num_examples))
            return outcomes

        def gradients(images: Any, labels: Any, masks: Any, update: Update) -> Any:
            return self._objective.gradients(model, images, labels, masks, update)

        # Twin: a graph runs as a whole, so each function is a graph that ends with its own computation. torch runs them in
        # turn.
        def graph_of(compute: Callable[..., Any]) -> Any:
            def replicas(images: Any, labels: Any, masks: Any, update: Update) -> Any:
                return self._run_replicas(lambda *shard: compute(*shard, update), images, labels, masks)

            return self._new_step_graph(number, compiled, replicas)

        def calling(graph: Callable[..., Any]) -> Callable[[], None]:
            def call() -> None:
                self._call(graph, *self._arguments(batch, num_examples, 0.0))

            return call

        def transfer() -> None:
            with tf.device("GPU:0" if device.gpus() else "CPU:0"):
                for values in (batch.images, batch.labels, *batch.masks):
                    tf.identity(values)

        step = cache(lambda: self._step_without_exchange(num_examples))  # traced when it is first called
        note = "forward and backward hold the exchange of BatchNorm's statistics" if self._synchronises else None
        return StepBreakdown(
            transfer,
            calling(graph_of(forward)),
            calling(graph_of(gradients)),
            calling(lambda *arguments: step()(*arguments)),
            nested=True,
            note=note,
        )
