"""Mode serial: one replica on one device. The other modes derive from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.artifacts.schema import StepParts
from common.data.batches import Plan
from common.data.sources import Dataset, Split
from common.models.architectures import Architecture, BatchNorm
from common.models.weights import Weights
from common.spec import Spec
from common.training.trainer import Batch, Pieces, Recording, Separated, Update
from tensorflow_impl import device, evaluate, input, models, optim, profiler, switches, train, weights
from tensorflow_impl.batch_norm import ReplicaGroup
from tensorflow_impl.compression import Compressor, exchanged


class Serial:
    """One replica on one device, and the base class of all modes.

    Each process calls `train_step` with its own shard of every global batch.
    """

    shard: tuple[int, int] = (0, 1)
    _exchanges = True

    def __init__(self, spec: Spec, architecture: Architecture, plan: Plan, dataset: Dataset, initial: Weights) -> None:
        self._spec = spec
        self._architecture = architecture
        self._plan = plan
        self._dataset = dataset
        self._step = 0
        self._switches = switches.of(spec, device.kind())
        self.devices = [device.kind()]
        self.threads = {
            "intra_op": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter_op": tf.config.threading.get_inter_op_parallelism_threads(),
            "input": spec.workers,
        }
        self.implementation = device.describe()["modes"][spec.mode]["implementation"]
        self._strategy = self._new_strategy()
        self._build()
        self._compile()
        self.load_weights(initial)

    def _new_strategy(self) -> tf.distribute.Strategy:
        return tf.distribute.get_strategy()

    def _build(self) -> None:
        with self._strategy.scope():
            synchronised = self._spec.batch_norm_statistics == "synchronised" and self._spec.replicas > 1
            self._model = self._new_model(_Replicas() if synchronised else None)
            self._optimizer = self._new_optimizer(self._model.trainable_variables)
            self._compressor: Compressor | None = None
            if self._strategy.num_replicas_in_sync > 1:
                self._compressor = Compressor(self._spec.communication, self._model, self._architecture)

    def _new_model(self, group: ReplicaGroup | None) -> keras.Model:
        return models.build(self._architecture, self._spec.precision, group, self._switches["arithmetic"])

    def _new_optimizer(self, variables: list[Any]) -> optim.Optimizer:
        return optim.build(self._spec.optimizer, variables, self._switches)

    def _compile(self) -> None:
        """Fix the shapes with a free batch dimension, so the last, smaller batch is not traced again."""
        size = self._architecture.image_size
        images = tf.TensorSpec((None, size, size, 3), tf.uint8)
        labels = tf.TensorSpec((None,), tf.int64)
        masks = tuple(tf.TensorSpec((None, dropout.units), tf.bool) for dropout in self._architecture.dropouts)
        whole, real = tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.float64)
        self._signature = (images, labels, masks, whole, real, whole)
        # Twin: TensorFlow makes a graph by default, one for each number of micro-batches. PyTorch runs the step eagerly.
        self._train = cache(self._step_in)
        self._compiled_for: int | None = None
        self._score = tf.function(self._score_replicas, input_signature=(images, labels))
        self._score.get_concrete_function()  # traced now, so that the first evaluation is timed like the others

    def _compiled(self, num_examples: int) -> bool:
        """Whether XLA compiles a step on this many examples. It does so only for the first batch size.

        Otherwise it would compile again for the last, smaller batch.
        """
        # Twin: TensorFlow has a compiled and an uncompiled function. torch switches its compiled model to eager.
        self._compiled_for = self._compiled_for or num_examples
        return self._switches["graph"] == "xla" and num_examples == self._compiled_for

    def _step_in(self, parts: int, compiled: bool = False, body: Any = None) -> Any:
        body = body or self._train_replicas

        def step(images: Any, labels: Any, masks: Any, num_examples: Any, learning_rate: Any, number: Any) -> Any:
            return body(images, labels, masks, Update(num_examples, learning_rate, number, parts))

        if self._switches["graph"] == "eager":
            return step
        return tf.function(step, input_signature=self._signature, jit_compile=True if compiled else None)

    def _each(self, one: Callable[..., Any], images: Any, labels: Any, masks: Any) -> Any:
        """Results of every replica of this process, each on its own shard."""
        return one(images, labels, masks)

    def _train_replicas(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        loss, num_correct, gradients = self._gradients(self._model, images, labels, masks, update)
        self._optimizer.apply(self._exchanged(gradients), update.learning_rate, update.step)
        return loss, num_correct

    def _exchanged(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """The sum of the strategy's replicas' gradients, the same in each."""
        return exchanged(gradients, self._compressor) if self._compressor and self._exchanges else gradients

    def _gradients(self, model: keras.Model, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        settings = {"loss": self._spec.loss, "scaling": self._plan.scaling, "loss_scale": self._loss_scale}
        return train.gradients(model, images, labels, masks, update, **settings)

    @property
    def _loss_scale(self) -> tf.Tensor | None:
        return cast(optim.LossScaled, self._optimizer).scale if self._switches["arithmetic"] == "float16" else None

    def _score_replicas(self, images: Any, labels: Any) -> Any:
        return evaluate.score(self._model, images, labels, loss=self._spec.loss, scaling=self._plan.scaling)

    def batches(self, first_epoch: int = 1) -> Iterator[Batch]:
        """Iterate over this process's shard of every global batch, in order, starting at an epoch."""
        index, number = self.shard
        return input.batches(self._plan, self._dataset.train, number, index, first_epoch, self._switches)

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
        self._step += 1
        step = self._train(self._spec.parts(num_examples), self._compiled(num_examples))
        return step(*self._arguments(batch, num_examples, learning_rate))

    def score(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> tuple[Any, npt.NDArray[np.int64]]:
        """Score one batch in evaluation mode.

        Args:
            images: uint8 [N, H, W, 3], on the host.
            labels: int64 [N], on the host.

        Returns:
            (loss_sum, predictions): the loss summed over the N examples, on the device, and predicted labels int64 [N], on
            the host.
        """
        loss, predictions = self._score(tf.constant(images), tf.constant(labels))
        return loss, predictions.numpy()

    def fetch(self, values: list[Any]) -> npt.NDArray[Any]:
        """Copy results of `train_step` or `score` to one host array [len(values)], the same in all processes of a shard."""
        return tf.stack(values).numpy()

    def all_reduce(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum float64 or int64 values over all shards; every process gets the sum."""
        return values

    def total(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum float64 or int64 values over all processes; every process gets the sum."""
        return self.all_reduce(values)

    def share_statistics(self) -> None:
        """Copy replica 0's BatchNorm statistics to every replica. Evaluation uses them."""

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The training state between two epochs, by name, for the modes that can resume (see `Spec.starts_over`)."""
        kept = {f"optimizer/{name}": array for name, array in self._optimizer.state().items()}
        return {f"weights/{name}": array for name, array in self.weights().items()} | kept

    def load_state(self, values: dict[str, npt.NDArray[Any]], step: int) -> None:
        """Restore what `state` returned after `step` updates."""
        self._step = step
        groups: dict[str, dict[str, npt.NDArray[Any]]] = {"weights": {}, "optimizer": {}}
        for path, array in values.items():
            group, _, name = path.partition("/")
            groups[group][name] = array
        self.load_weights(groups["weights"])
        self._optimizer.load_state(groups["optimizer"])

    def report(self, test: Split) -> dict[str, Any]:
        """Mode-specific result fields. Called once, after `test` is scored."""
        return {}

    def separate(self, batch: Batch, num_examples: int) -> Separated | StepParts | str | None:
        """Split a step on this batch into compute and exchange, which are timed separately.

        Returns:
            The two functions; the reason why they cannot be separated; or None where the mode exchanges nothing.
        """
        return None if self._spec.mode == "serial" else f"mode {self._spec.variant} computes and sends in one"

    def pieces(self, batch: Batch, num_examples: int) -> Pieces | str:
        """Break a step on this batch into a replica's computations, without exchange.

        Returns:
            The functions to call one by one, or the reason why a step has no such breakdown.
        """
        if self._spec.mode != "serial":
            return f"mode {self._spec.variant} sends within forward and backward"
        return self._pieces_of(self._model, batch, num_examples)

    def record(self, work: Callable[[], None]) -> Recording:
        """Run `work` under the framework's own profiler."""
        return profiler.record(work)

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""
        device.synchronize()

    def close(self) -> None:
        """Disconnect from the other processes at the end of the run."""
        # Twin: the strategy has no such call. Its server ends with the process.

    def load_weights(self, values: Weights) -> None:
        """Set every parameter and statistic of every replica."""
        weights.load(self._model, self._architecture, values)

    def weights(self) -> Weights:
        """Every parameter and statistic by canonical name: replica 0's, or gathered where replicas divide the model."""
        return weights.extract(self._model, self._architecture)

    def num_values(self) -> tuple[int, int]:
        """Number of values in the whole model, as (all, trainable). Every process gets the same."""
        return models.num_values(self._model)

    def gradients(self, batch: Batch, num_examples: int) -> Weights:
        """Gradients of the mean loss by canonical name. Mode serial only. This changes BatchNorm statistics."""
        update = Update(num_examples, learning_rate=0.0, step=0)
        compute = tf.function(lambda: self._gradients(self._model, batch.images, batch.labels, batch.masks, update))
        _, _, gradients = compute()
        return weights.extract_gradients(self._model, self._architecture, gradients)

    def logits(self, batch: Batch, *, training: bool) -> npt.NDArray[np.floating]:
        """Logits [N, classes] of one batch, from the first copy of the model.

        Only mode serial supports `training`, which changes BatchNorm statistics.
        """
        if not training:
            return evaluate.logits(self._model, batch.images, self._plan.scaling).numpy()
        return self._model(
            [input.scale(batch.images, device.dtype(self._spec), self._plan.scaling), *batch.masks], training=True
        ).numpy()

    def _arguments(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, ...]:
        # Twin: torch takes Python numbers. A graph takes tensors; on the device, each would need a copy at every step.
        with tf.device("CPU:0"):
            numbers = (
                tf.constant(num_examples, tf.int64),
                tf.constant(learning_rate, tf.float64),
                tf.constant(self._step, tf.int64),
            )
        return (batch.images, batch.labels, batch.masks, *numbers)

    def _step_alone(self, num_examples: int) -> Any:
        """A step without any exchange."""
        step = self._step_in(self._spec.parts(num_examples), self._compiled(num_examples))
        # Twin: tracing the graph fixes what the step does, so it is traced here.
        self._exchanges = False
        if self._switches["graph"] != "eager":
            step.get_concrete_function()
        self._exchanges = True
        return step

    def _separate_replicas(self, batch: Batch, num_examples: int) -> Separated:
        step = self._step_alone(num_examples)
        shapes = [variable.shape for variable in self._model.trainable_variables]
        draw = tf.function(lambda: [tf.random.normal(shape, dtype=device.dtype(self._spec)) for shape in shapes])
        gradients = self._strategy.run(draw)

        def one(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
            return self._exchanged([tf.identity(gradient) for gradient in gradients])

        send = tf.function(lambda gradients: self._strategy.run(one, args=(gradients,)))

        def compute() -> None:
            step(*self._arguments(batch, num_examples, 0.0))

        def exchange() -> None:
            send(gradients)

        return Separated(compute, exchange)

    def _pieces_of(self, model: keras.Model, batch: Batch, num_examples: int) -> Pieces:
        """The step breakdown of a model that every replica holds whole."""

        def forward_replicas(images: Any, labels: Any, masks: Any, update: Update) -> Any:
            def one(images: Any, labels: Any, masks: Any) -> Any:
                cut = [train.parts_of(values, update.parts) for values in (images, labels, *masks)]
                settings = {"loss": self._spec.loss, "scaling": self._plan.scaling}
                return [
                    train.forward(model, part, part_labels, part_masks, update.num_examples, **settings)
                    for part, part_labels, *part_masks in zip(*cut, strict=True)
                ]

            return self._each(one, images, labels, masks)

        def backward_replicas(images: Any, labels: Any, masks: Any, update: Update) -> Any:
            def one(images: Any, labels: Any, masks: Any) -> Any:
                return self._gradients(model, images, labels, masks, update)

            return self._each(one, images, labels, masks)

        parts = self._spec.parts(num_examples)
        # Twin: a graph runs as a whole, so each function is a graph that ends with its own computation. torch runs them in
        # turn.
        compiled = self._compiled(num_examples)
        forward_graph, backward_graph = (self._step_in(parts, compiled, body) for body in (forward_replicas, backward_replicas))
        whole_graph = cache(self._step_alone)

        def transfer() -> None:
            with tf.device("GPU:0" if device.gpus() else "CPU:0"):
                for values in (batch.images, batch.labels, *batch.masks):
                    tf.identity(values)

        def forward() -> None:
            forward_graph(*self._arguments(batch, num_examples, 0.0))

        def backward() -> None:
            backward_graph(*self._arguments(batch, num_examples, 0.0))

        def optimizer() -> None:
            whole_graph(num_examples)(*self._arguments(batch, num_examples, 0.0))

        synchronised = self._spec.batch_norm_statistics == "synchronised" and self._spec.replicas > 1
        fused = "forward and backward hold the exchange of BatchNorm's statistics" if synchronised else None
        return Pieces(transfer, forward, backward, optimizer, nested=True, fused=fused)

    def _statistics(self) -> list[Any]:
        return [
            variable.value
            for layer in self._architecture.leaves()
            if isinstance(layer, BatchNorm)
            for variable in models.find_layer(self._model, layer.name).non_trainable_variables
        ]


class _Replicas:
    """Sums over the strategy's replicas, for synchronised BatchNorm."""

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        """Sum a tensor over replicas; each gets the sum. Its gradient is the sum of the gradients."""
        if not tf.distribute.in_cross_replica_context():
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensor)
        return tensor  # Keras builds the model's graph outside any replica
