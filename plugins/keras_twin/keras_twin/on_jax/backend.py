"""The framework under Keras: its devices, input, replicas, and the call of `train_function`."""

# JAX has an environment of its own, so it is missing where types are checked.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import jax
import keras
import numpy as np
import numpy.typing as npt
from jax_impl import device, input, preprocess, profiler

from common.data.batches import BatchPlan, Feed
from common.data.chunks import TransferStats
from common.data.sources import DatasetSplit
from common.machine.machine import available_cores
from common.models.architectures import Architecture
from common.spec import Spec, SpecError
from common.spec.shared_switches import mode_description
from common.training.trainer import Batch
from keras_twin.on_jax import SUPPORTED, switches

__all__ = ["SUPPORTED", "device", "preprocess", "profiler", "switches"]

_compilations = 0


def _count(event: str, seconds: float, **_: Any) -> None:
    global _compilations
    _compilations += event.startswith("/jax/core/compile/")


jax.monitoring.register_event_duration_secs_listener(_count)


def compile_options(graph: str) -> dict[str, Any]:
    """Return the arguments of `keras.Model.compile` for a value of the switch `graph`."""
    return {"run_eagerly": graph == "eager", "jit_compile": graph == "jit"}


def modes(num_gpus: int) -> dict[str, Any]:
    """Describe the modes."""
    distribution = f"keras.distribution.DataParallel over {'GPUs' if num_gpus else 'CPU devices'}"
    return {
        "serial": mode_description("keras.Model.train_step", None, accumulation=False),
        "data_parallel": mode_description(distribution, num_gpus, compression=False, accumulation=False, one_process=True),
    }


def feed(plan: BatchPlan, split: DatasetSplit, switches: dict[str, Any], stats: TransferStats | None) -> Feed[Batch]:
    """Build a feed of global batches: that of the framework's own twin."""
    return input.feed(plan, split, 1, 0)


def tensors(arrays: Any) -> Any:
    """Return a structure of arrays as the feed gives batches."""
    return arrays


def threads(replicas: int) -> dict[str, int]:
    """Return the numbers of threads by pool."""
    return {"intra_op": available_cores(), "inter_op": replicas}


def compilations() -> int:
    """Return a number that grows whenever the framework compiles something."""
    return _compilations


class Replicas:
    """The replicas of a training step: devices of a `keras.distribution.DataParallel`, or one without it."""

    weighs_examples = False
    """Whether the loss is the sum over examples, whose weights are their share of the global batch."""
    statistics_sum = None
    """Sums BatchNorm's statistics over replicas. None: no sum is needed, as one program trains the whole batch."""

    def __init__(self, spec: Spec, architecture: Architecture) -> None:
        kind = "gpu" if device.gpus() else "cpu"
        self.devices = tuple(f"{kind}:{index}" for index in range(spec.replicas)) if spec.replicas > 1 else ()
        if self.devices and architecture.has_batch_norm and spec.batch_norm_statistics == "per_replica":
            raise SpecError(
                "batch_norm_statistics must be synchronised under keras.distribution: its one program has those of the whole "
                f"batch. Received: per_replica with {architecture.name}. Use synchronised."
            )
        self._distribution = keras.distribution.DataParallel(devices=list(self.devices)) if self.devices else None

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context for building a model and its functions."""
        return self._distribution.scope() if self._distribution else nullcontext()

    def place(self, arrays: Any) -> Any:
        """Put a batch, a structure of arrays [N, ...], where the replicas train."""
        return _spread(arrays, self._distribution)

    def sum(self, tensor: Any) -> Any:
        """Sum a tensor over replicas, within a step."""
        return tensor

    def broadcast(self, variables: list[Any]) -> None:
        """Copy the first replica's values of variables to every replica."""


class TrainFunction:
    """A compiled model's `train_function`, called with one batch, as `train_on_batch` calls it."""

    def __init__(self, model: keras.Model) -> None:
        self._model: Any = model  # Keras's own types name tensors of all backends
        self._state: Any = None
        model.make_train_function()

    def __call__(self, data: Any) -> dict[str, Any]:
        """Train on a batch (x, y, sample_weight). Returns what `compute_metrics` returned."""
        if self._state is None:
            self._state = tuple([variable.value for variable in variables] for variables in self._variables())
        logs, self._state = self._model.train_function(self._state, iter([data]))
        return logs

    def sync(self) -> None:
        """Give the model's variables the values of the last step, as `fit` does at the end of an epoch."""
        if self._state is None:
            return
        for variables, values in zip(self._variables(), self._state, strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        self._state = None

    def _variables(self) -> tuple[Any, ...]:
        model = self._model
        return model.trainable_variables, model.non_trainable_variables, model.optimizer.variables, model.metrics_variables


def evaluation(model: keras.Model) -> Callable[[Any], Any]:
    """Return a function from the model's inputs to its logits in evaluation mode."""
    compiled = jax.jit(lambda trainable, others, inputs: model.stateless_call(trainable, others, inputs, training=False)[0])
    distribution = keras.distribution.distribution()

    def call(inputs: Any) -> Any:
        values = ([variable.value for variable in variables] for variables in _model_variables(model))
        return compiled(*values, _spread(inputs, distribution))

    return call


def gradients(model: keras.Model, data: Any) -> list[Any]:
    """Compute the gradients of the loss of a batch, in the order of the trainable variables."""
    x, y, sample_weight = data
    trainable, others = ([variable.value for variable in variables] for variables in _model_variables(model))
    metrics = [variable.value for variable in model.metrics_variables]

    @jax.jit
    def compute(trainable: Any, others: Any, metrics: Any) -> Any:
        def loss(trainable: Any) -> Any:
            logits, new = cast(Any, model.stateless_call(trainable, others, x, training=True))
            value, _ = model.stateless_compute_loss(
                trainable, new, metrics, x=x, y=y, y_pred=logits, sample_weight=sample_weight
            )
            return value, new

        return jax.grad(loss, has_aux=True)(trainable)

    arrays, new = compute(trainable, others, metrics)
    for variable, value in zip(model.non_trainable_variables, new, strict=True):
        variable.assign(value)
    return arrays


def _spread(arrays: Any, distribution: keras.distribution.DataParallel | None) -> Any:
    """Put arrays [N, ...] on the devices of a distribution: a shard on each, or all N on each if they don't divide evenly."""
    if distribution is None:
        return arrays

    def put(array: Any) -> Any:
        if array is None:
            return None
        layout = distribution.get_data_layout(array.shape)
        if len(array) % distribution.num_model_replicas:  # Keras's own input is refused by JAX then
            layout = keras.distribution.TensorLayout([None] * array.ndim, distribution.device_mesh)
        return keras.distribution.distribute_tensor(array, layout)

    return keras.tree.map_structure(put, arrays)


def _model_variables(model: keras.Model) -> tuple[Any, Any]:
    return model.trainable_variables, model.non_trainable_variables


def fetch(values: list[Any]) -> npt.NDArray[Any]:
    """Copy scalars to one host array."""
    return np.stack(jax.device_get(values))
