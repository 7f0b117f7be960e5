"""Decisions of ReLUs and max-poolings in a training step. Rounding may change them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy.typing as npt
import tensorflow as tf

from common.models import architectures
from common.models.architectures import Architecture
from common.training import tracing
from tensorflow_impl import models


# Twin: a graph computes later what its layers compute. torch's functions are watched as they are called.
class DecisionRecorder:
    """A context where the ReLUs and max-poolings of a model also return what they let pass, or their input.

    A ReLU's output is above zero where its input is. The input itself is not watched: then its layer could not be computed in
    one kernel with the ReLU, as in other steps, and a value next to zero would be rounded differently.

    Args:
        model: a model or one of its stages, which `models.build` or `models.build_stage` builds from this architecture.
    """

    def __init__(self, model: keras.Model, architecture: Architecture) -> None:
        names = {layer.name for layer in model.layers}
        points = {name: point for name, point in architectures.decision_layers(architecture.layers) if name in names}
        self._layers = {name: (point, models.find_layer(model, name)) for name, point in points.items()}
        self._calls: dict[str, dict[int, list[tf.Tensor]]] = {}
        """Observed values of each layer, by replica, in order."""

    def __enter__(self) -> None:
        for name, (point, layer) in self._layers.items():
            self._calls[name] = {}
            layer.watcher = self._watcher(name, is_pool=isinstance(point, architectures.MaxPool))

    def __exit__(self, *exception: object) -> None:
        for _, layer in self._layers.values():
            layer.watcher = None

    def _watcher(self, name: str, *, is_pool: bool) -> Callable[[tf.Tensor, tf.Tensor], None]:
        def watch(x: tf.Tensor, y: tf.Tensor) -> None:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            values = tf.cast(x, tf.float32) if is_pool else y > 0
            self._calls[name].setdefault(int(tf.get_static_value(tf.convert_to_tensor(replica))), []).append(values)

        return watch

    def observed(self, micro_batches: int) -> dict[str, tf.Tensor]:
        """Return the observed values, by layer, for the examples of all replicas in order."""
        for calls in itertools.chain.from_iterable(by_replica.values() for by_replica in self._calls.values()):
            tracing.refuse_uneven_decisions(len(calls), micro_batches)
        return {
            name: tf.concat([values for _, calls in sorted(by_replica.items()) for values in calls], 0)
            for name, by_replica in self._calls.items()
        }

    def to_array(self, name: str, observed: tf.Tensor) -> npt.NDArray[Any]:
        """Return a layer's decisions, as `BaseTrainer.record_step` does."""
        point, layer = self._layers[name]
        if not isinstance(point, architectures.MaxPool):
            return observed.numpy()
        padding = point.padding if layer.padding == "same" else architectures.no_padding
        size, stride = point.kernel_size, point.stride
        return tracing.winners(observed.numpy(), (size, size), (stride, stride), padding)
