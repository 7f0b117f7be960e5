"""Mode tensor_parallel: replicas split every layer's output channels. All work on the same examples."""

from __future__ import annotations

from typing import Any

from torch import distributed

from common.data.sources import DatasetSplit
from common.training.trainer import Update
from pytorch_impl import channels, models, train
from pytorch_impl.batch_norm import ReplicaGroup
from pytorch_impl.parallel import group
from pytorch_impl.parallel.trainer import Trainer


class TensorParallel(Trainer):
    """Replicas on several devices. Each holds a slice of all kernels, biases, gradients and optimizer buffers."""

    def _build(self) -> None:
        self._build_split(distributed.group.WORLD, None)
        self._optimizer = self._new_optimizer(self._model)

    def _build_split(self, replicas: Any, copies: ReplicaGroup | None) -> None:
        """Split a model over replicas. Its copies share synchronised BatchNorm."""
        self.devices = self._ranks()
        self._processes = group.all_ranks()
        model = self._new_model(copies)
        self._num_values = models.num_values(model)
        self._model = channels.split(model, replicas, self._switches["memory_format"])

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        return train.train_step(self._objective, self._model, self._optimizer, images, labels, masks, update)

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the bytes of the activations and of their gradients."""
        return {"bytes_per_step": float(channels.bytes_per_example(self._model) * self._spec.global_batch_size)}

    def num_values(self) -> tuple[int, int]:
        return self._num_values
