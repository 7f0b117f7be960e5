"""Mode tensor_parallel: replicas split every layer's output channels. All work on the same examples."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import distributed

from common.data.sources import Split
from pytorch_impl import channels, models
from pytorch_impl.batch_norm import ReplicaGroup
from pytorch_impl.parallel.serial import Serial


class TensorParallel(Serial):
    """Replicas on several devices. Each holds a slice of all kernels, biases, gradients and optimizer buffers."""

    def _build(self) -> None:
        self.devices = [f"rank {rank}: {self._device.type}" for rank in range(self._spec.replicas)]
        assert distributed.group.WORLD is not None
        self._model = self._new_split_model(distributed.group.WORLD, None)
        self._optimizer = self._new_optimizer(list(self._model.parameters()))

    def _new_split_model(self, replicas: distributed.ProcessGroup, group: ReplicaGroup | None) -> torch.nn.Module:
        model = self._new_model(group)
        self._num_values = models.num_values(model)
        return channels.split(model, replicas)

    def total(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum float64 or int64 values over all processes; every process gets the sum."""
        tensor = self._tensor(values)
        distributed.all_reduce(tensor)
        return tensor.cpu().numpy()

    def report(self, test: Split) -> dict[str, Any]:
        """Mode-specific result fields. Called once, after `test` is scored."""
        return {"bytes_per_step": float(channels.bytes_per_example(self._model) * self._spec.global_batch_size)}

    def num_values(self) -> tuple[int, int]:
        """Number of values in the whole model, as (all, trainable). Every process gets the same."""
        return self._num_values
