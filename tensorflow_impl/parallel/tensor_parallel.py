"""Mode tensor_parallel: replicas split every layer's output channels. All work on the same examples."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from common.data.sources import DatasetSplit
from common.training.trainer import Update
from tensorflow_impl import channels, train
from tensorflow_impl.batch_norm import ReplicaGroup
from tensorflow_impl.parallel.trainer import Trainer


class TensorParallel(Trainer):
    """Replicas on several devices. Each holds a slice of all kernels, biases, gradients and optimizer buffers."""

    def _build(self) -> None:
        self.devices = self._devices()
        self._model = self._new_split_model(self.devices, None)
        self._optimizer = self._new_optimizer(self._model)

    def _new_split_model(self, devices: list[str], group: ReplicaGroup | None) -> keras.Model:
        """Build a model split over devices; the group sums for synchronised BatchNorm."""
        # Twin: in the one graph the first device computes all layers that are not split. In torch every rank computes them.
        with tf.device(devices[0]):
            return channels.split(self._new_model(group), devices)

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        return train.train_step(self._objective, self._model, self._optimizer, images, labels, masks, update)

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the bytes of the activations and of their gradients."""
        return {"bytes_per_step": float(channels.bytes_per_example(self._model) * self._spec.global_batch_size)}
