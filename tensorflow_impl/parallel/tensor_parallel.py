"""Mode tensor_parallel: replicas split every layer's output channels. All work on the same examples."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from common.data.sources import Split
from tensorflow_impl import channels, device
from tensorflow_impl.batch_norm import ReplicaGroup
from tensorflow_impl.parallel.serial import Serial


class TensorParallel(Serial):
    """Replicas on several devices. Each holds a slice of all kernels, biases, gradients and optimizer buffers."""

    def _new_strategy(self) -> tf.distribute.Strategy:
        kind = "GPU" if device.gpus() else "CPU"
        self.devices = [f"{kind}:{index}" for index in range(self._spec.replicas)]
        return super()._new_strategy()

    def _new_model(self, group: ReplicaGroup | None) -> keras.Model:
        return self._new_split_model(self.devices, None)

    def _new_split_model(self, devices: list[str], group: ReplicaGroup | None) -> keras.Model:
        # Twin: in the one graph the first device computes all layers that are not split. In torch every rank computes them.
        with tf.device(devices[0]):
            return channels.split(super()._new_model(group), devices)

    def report(self, test: Split) -> dict[str, Any]:
        """Mode-specific result fields. Called once, after `test` is scored."""
        return {"bytes_per_step": float(channels.bytes_per_example(self._model) * self._spec.global_batch_size)}
