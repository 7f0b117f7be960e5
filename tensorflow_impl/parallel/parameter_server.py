"""Mode parameter_server: one process per replica, and a server that holds and updates the parameters."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import tensorflow as tf

from common.processes.parameter_server import ServerConnection
from common.processes.server_trainer import ServerTrainer
from common.training.trainer import Update
from tensorflow_impl import device, weights
from tensorflow_impl.compression import Compressor
from tensorflow_impl.parallel import vectors
from tensorflow_impl.parallel.trainer import Trainer


class ParameterServer(ServerTrainer, Trainer):
    """One rank of several. Its environment holds its number, see `rendezvous`."""

    _vectors = vectors

    def _build(self) -> None:
        self._join_server()
        self._model = self._new_model(_WorkerGroup(self._server) if self._synchronises else None)
        self._compressor = Compressor(self._spec.communication, self._model, self._architecture)
        variables = [variable.value for variable in self._model.trainable_variables]
        self._parameters = {
            name: variables[place] for name, place in weights.positions(self._model, self._architecture).items()
        }
        vector, parameters = tf.TensorSpec((None,), device.dtype(self._spec)), list(self._parameters.values())
        self._assign = device.graph(lambda values: vectors.assign(parameters, values), input_signature=[vector])

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        num_counted = self._num_counted(tf.shape(labels, tf.int64)[0], update)
        worker_update = update._replace(num_examples=num_counted)
        loss, num_correct, gradients = self._objective.gradients(self._model, images, labels, masks, worker_update)
        messages = list(self._compressor.compress(gradients))
        return loss * tf.cast(num_counted / update.num_examples, loss.dtype), num_correct, messages

    def _set_parameters(self, values: npt.NDArray[Any]) -> None:
        self._assign(tf.constant(values))


class _WorkerGroup:
    """The group of all workers, which sums over processes for synchronised BatchNorm."""

    def __init__(self, server: ServerConnection) -> None:
        self._server = server

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        # Twin: a graph calls NumPy through an operation that needs a gradient. The other twin's layer has that gradient.
        @tf.custom_gradient
        def total(tensor: tf.Tensor) -> Any:
            return self._sum(tensor), self._sum

        return total(tensor)

    def _sum(self, tensor: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(self._server.sum, [tensor], tensor.dtype), tensor.shape)
