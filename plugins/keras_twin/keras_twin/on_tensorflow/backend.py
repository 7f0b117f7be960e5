"""The framework under Keras: its devices, input, replicas, and the call of `train_function`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.data.batches import BatchPlan, Feed
from common.data.chunks import TransferStats
from common.data.sources import DatasetSplit
from common.models.architectures import Architecture
from common.models.sharding import shard
from common.spec import Spec
from common.spec.shared_switches import mode_description
from common.training.trainer import Batch
from keras_twin.on_tensorflow import SUPPORTED, switches
from tensorflow_impl import device, input, preprocess, private_api, profiler
from tensorflow_impl.parallel.data_parallel import mirrored_group

__all__ = ["SUPPORTED", "device", "preprocess", "profiler", "switches"]


def compile_options(graph: str) -> dict[str, Any]:
    """Return the arguments of `keras.Model.compile` for a value of the switch `graph`."""
    return {"run_eagerly": graph == "eager", "jit_compile": graph == "xla"}


def modes(num_gpus: int) -> dict[str, Any]:
    """Describe the modes."""
    strategy = f"train_step under MirroredStrategy over {'GPUs' if num_gpus else 'logical CPU devices'}"
    return {
        "serial": mode_description("keras.Model.train_step", None, accumulation=False),
        "data_parallel": mode_description(strategy, num_gpus, compression=False, accumulation=False, one_process=True),
    }


def feed(plan: BatchPlan, split: DatasetSplit, switches: dict[str, Any], stats: TransferStats | None) -> Feed[Batch]:
    """Build a feed of global batches: that of the framework's own twin."""
    return input.feed(plan, split, 1, 0, switches, stats)


def tensors(arrays: Any) -> Any:
    """Return a structure of arrays as the feed gives batches."""
    return keras.tree.map_structure(tf.constant, arrays)


def threads(replicas: int) -> dict[str, int]:
    """Return the numbers of threads by pool."""
    threading = tf.config.threading
    return {
        "intra_op": threading.get_intra_op_parallelism_threads(),
        "inter_op": threading.get_inter_op_parallelism_threads(),
    }


def compilations() -> int:
    """Return a number that grows whenever the framework compiles something."""
    return private_api.compilation_count()


class Replicas:
    """The replicas of a training step: devices of a MirroredStrategy, or one without a strategy."""

    def __init__(self, spec: Spec, architecture: Architecture) -> None:
        kind = "GPU" if device.gpus() else "CPU"
        self.devices = tuple(f"{kind}:{index}" for index in range(spec.replicas)) if spec.replicas > 1 else ()
        self.weighs_examples = bool(self.devices)
        group = mirrored_group(self.devices) if self.devices else None
        self._strategy = group.members if group else None
        self.statistics_sum = group.all_reduce if group and spec.batch_norm_statistics == "synchronised" else None

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context for building a model and its functions."""
        return self._strategy.scope() if self._strategy else nullcontext()

    def place(self, arrays: Any) -> Any:
        """Put a batch, a structure of arrays [N, ...], where the replicas train."""
        if self._strategy is None:
            return arrays

        def own_shard(context: Any) -> Any:
            rank, number = context.replica_id_in_sync_group, context.num_replicas_in_sync
            return tf.nest.map_structure(
                lambda array: tf.convert_to_tensor(array[slice(*shard(len(array), number, rank))]), arrays
            )

        with tf.device("CPU:0"):  # where the batch is: else the first GPU gets all of it
            return self._strategy.experimental_distribute_values_from_function(own_shard)

    def sum(self, tensor: Any) -> Any:
        """Sum a tensor over replicas, within a step."""
        if self._strategy is None:
            return tensor
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensor)

    def broadcast(self, variables: list[Any]) -> None:
        """Copy the first replica's values of variables to every replica."""
        for variable in variables:
            first, *others = device.copies(variable.value)
            for copy in others:
                copy.assign(first)


class TrainFunction:
    """A compiled model's `train_function`, called with one batch, as `train_on_batch` calls it."""

    def __init__(self, model: keras.Model) -> None:
        self._model: Any = model  # Keras's own types name tensors of all backends
        model.make_train_function()

    def __call__(self, data: Any) -> dict[str, Any]:
        """Train on a batch (x, y, sample_weight). Returns what `compute_metrics` returned."""
        return self._model.train_function(iter([data]))

    def sync(self) -> None:
        """Give the model's variables the values of the last step. TensorFlow's variables have them."""


def evaluation(model: keras.Model) -> Callable[[Any], Any]:
    """Return a function from the model's inputs to its logits in evaluation mode."""
    return device.graph(lambda inputs: model(inputs, training=False), reduce_retracing=True)


def gradients(model: keras.Model, data: Any) -> list[Any]:
    """Compute the gradients of the loss of a batch, in the order of the trainable variables."""
    x, y, sample_weight = data

    @device.graph
    def compute() -> Any:
        with tf.GradientTape() as tape:
            loss = cast(Any, model.compute_loss(x, y, model(x, training=True), sample_weight))
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    return compute()


def fetch(values: list[Any]) -> npt.NDArray[Any]:
    """Copy scalars to one host array."""
    return np.stack([np.asarray(value) for value in values])
