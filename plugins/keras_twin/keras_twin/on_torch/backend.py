"""The framework under Keras: its devices, input, replicas, and the call of `train_function`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import keras
import numpy as np
import numpy.typing as npt
import torch

from common.data.batches import BatchPlan, Feed
from common.data.chunks import TransferStats
from common.data.sources import DatasetSplit
from common.models.architectures import Architecture
from common.spec import Spec
from common.spec.shared_switches import mode_description
from common.training.trainer import Batch
from keras_twin.on_torch import SUPPORTED, switches
from pytorch_impl import device, input, preprocess, private_api, profiler

__all__ = ["SUPPORTED", "device", "preprocess", "profiler", "switches"]


def compile_options(graph: str) -> dict[str, Any]:
    """Return the arguments of `keras.Model.compile` for a value of the switch `graph`."""
    return {"jit_compile": graph == "compile"}


def modes(num_gpus: int) -> dict[str, Any]:
    """Describe the modes."""
    reason = (
        "Keras has no distribution on torch, and its train_step calls the model itself. So nothing sums the gradients of "
        "replicas, as DistributedDataParallel would if it were called"
    )
    data_parallel = mode_description("one replica", num_gpus, compression=False, accumulation=False)
    return {
        "serial": mode_description("keras.Model.train_step", None, accumulation=False),
        "data_parallel": data_parallel | {"available": False, "reason": reason},
    }


def feed(plan: BatchPlan, split: DatasetSplit, switches: dict[str, Any], stats: TransferStats | None) -> Feed[Batch]:
    """Build a feed of global batches: that of the framework's own twin."""
    return input.feed(plan, split, 1, 0, switches, stats)


def tensors(arrays: Any) -> Any:
    """Return a structure of arrays as the feed gives batches."""
    return keras.tree.map_structure(torch.from_numpy, arrays)


def threads(replicas: int) -> dict[str, int]:
    """Return the numbers of threads by pool."""
    return {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()}


def compilations() -> int:
    """Return a number that grows whenever the framework compiles something."""
    return private_api.compilation_count()


class Replicas:
    """The replicas of a training step: one."""

    devices: tuple[str, ...] = ()
    weighs_examples = False
    """Whether the loss is the sum over examples, whose weights are their share of the global batch."""
    statistics_sum = None
    """Sums BatchNorm's statistics over replicas. None: no sum is needed."""

    def __init__(self, spec: Spec, architecture: Architecture) -> None:
        """Keras has no data parallelism on torch, so there is one replica."""

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context for building a model and its functions."""
        return nullcontext()

    def place(self, arrays: Any) -> Any:
        """Put a batch, a structure of arrays [N, ...], where the replicas train."""
        return arrays

    def sum(self, tensor: Any) -> Any:
        """Sum a tensor over replicas, within a step."""
        return tensor

    def broadcast(self, variables: list[Any]) -> None:
        """Copy the first replica's values of variables to every replica."""


class TrainFunction:
    """A compiled model's `train_function`, called with one batch, as `train_on_batch` calls it."""

    def __init__(self, model: keras.Model) -> None:
        self._model: Any = model  # Keras's own types name tensors of all backends
        model.make_train_function()

    def __call__(self, data: Any) -> dict[str, Any]:
        """Train on a batch (x, y, sample_weight). Returns what `compute_metrics` returned."""
        return {name: value.detach() for name, value in self._model.train_function([data]).items()}

    def sync(self) -> None:
        """Give the model's variables the values of the last step. Torch's variables have them."""


def evaluation(model: keras.Model) -> Callable[[Any], Any]:
    """Return a function from the model's inputs to its logits in evaluation mode."""

    def call(inputs: Any) -> Any:
        with torch.no_grad():
            return model(inputs, training=False)

    return call


def gradients(model: keras.Model, data: Any) -> list[Any]:
    """Compute the gradients of the loss of a batch, in the order of the trainable variables."""
    x, y, sample_weight = data
    model.zero_grad()
    cast(Any, model.compute_loss(x, y, model(x, training=True), sample_weight)).backward()
    return [variable.value.grad for variable in model.trainable_variables]


def fetch(values: list[Any]) -> npt.NDArray[Any]:
    """Copy scalars to one host array."""
    return np.stack([np.asarray(keras.ops.convert_to_numpy(value)) for value in values])
