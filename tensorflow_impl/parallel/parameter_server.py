"""Mode parameter_server: one process per replica, and a server that holds and updates the parameters."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.data.sources import DatasetSplit
from common.models.weights import ReadOnlyWeights, Weights, split
from common.processes import parameter_server, rendezvous
from common.training.communication import server_bytes, statistics_payload_bytes
from common.training.trainer import Batch, ComputeAndExchange, StepBreakdown, Update
from tensorflow_impl import device, weights
from tensorflow_impl.compression import Compressor
from tensorflow_impl.parallel import vectors
from tensorflow_impl.parallel.trainer import Trainer


class ParameterServer(Trainer):
    """One rank of several. Its environment holds its number, see `rendezvous`."""

    def _build(self) -> None:
        self.shard = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.devices = self._ranks()
        self._shards = self._server = parameter_server.join(self._spec, self.shard[0], rendezvous.rendezvous_id())
        self._model = self._new_model(_WorkerGroup(self._server) if self._synchronises else None)
        self._compressor = Compressor(self._spec.communication, self._model, self._architecture)
        variables = [variable.value for variable in self._model.trainable_variables]
        # Twin: the server's values have the canonical order and layout, which is Keras'. Uncompressed, torch's have its own.
        self._parameters = [variables[place] for place in weights.positions(self._model, self._architecture).values()]
        vector = tf.TensorSpec((None,), device.dtype(self._spec))
        self._assign = device.graph(lambda values: vectors.assign(self._parameters, values), input_signature=[vector])

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        # An asynchronous worker uses the mean loss over its own shard.
        synchronous = self._spec.parameter_server.updates == "synchronous"
        num_counted = update.num_examples if synchronous else tf.shape(labels, tf.int64)[0]
        worker_update = update._replace(num_examples=num_counted)
        loss, num_correct, gradients = self._objective.gradients(self._model, images, labels, masks, worker_update)
        messages = list(self._compressor.compress(gradients))
        return loss * tf.cast(num_counted / update.num_examples, loss.dtype), num_correct, messages

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        """Compute gradients, push them to the server and pull the weights that it has updated."""
        step: Any = super().train_step(batch, num_examples, learning_rate)
        loss, num_correct, messages = step
        self._server.push([message.numpy() for message in messages], learning_rate)
        self._pull()
        return loss, num_correct

    def _pull(self) -> None:
        self._assign(tf.constant(self._server.pull()))

    def finish_epoch(self) -> None:
        self._server.barrier()
        self._pull()  # includes what other workers have pushed since

    def broadcast_statistics(self) -> None:
        if statistics := self._statistics():
            values = vectors.flatten(statistics).numpy()
            vectors.assign(statistics, tf.constant(self._server.sum(values if self.shard[0] == 0 else np.zeros_like(values))))

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the server's measurements, and the bytes of the exchange."""
        fields = self._server.report()
        statistics = statistics_payload_bytes(self._spec, self._architecture)
        return fields | {"bytes_per_step": fields["bytes_per_step"] + server_bytes(statistics, self._spec.replicas)}

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> ComputeAndExchange | str:
        """Return a step without the server, and push and pull; or why they cannot be separated."""
        if self._synchronises:
            return "BatchNorm's statistics are exchanged within forward and backward"
        messages: list[npt.NDArray[Any]] = []
        train_alone: Any = super().train_step

        def compute() -> None:
            nonlocal messages
            messages = [message.numpy() for message in train_alone(batch, num_examples, 0.0)[2]]

        def exchange() -> None:
            self._server.push(messages, 0.0)
            self._pull()

        return ComputeAndExchange(compute, exchange)

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """Return a worker's forward and backward pass, or why they cannot be called one by one."""
        breakdown = self._break_down(self._model, batch, num_examples)
        notes = filter(None, [breakdown.note, "the server updates the weights"])
        return breakdown._replace(optimizer=None, note="; ".join(notes))

    def close(self) -> None:
        self._server.close()

    def load_weights(self, values: ReadOnlyWeights) -> None:
        weights.load(self._model, self._architecture, values)
        self._server.load(self._trainable()[0], self._compressor.counts)

    # The server holds the optimizer, of one vector of all parameters.

    def _optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        return {f"{slot}/0": values for slot, values in self._server.slots().items()}

    def _load_optimizer_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        self._server.load_slots({path.removesuffix("/0"): array for path, array in values.items()})

    def _trainable(self) -> list[npt.NDArray[Any]]:
        return [vectors.flatten(self._parameters).numpy()]

    def _by_name(self, arrays: list[npt.NDArray[Any]]) -> Weights:
        return split(arrays[0], self._architecture)


class _WorkerGroup:
    """The group of all workers, which sums over processes for synchronised BatchNorm."""

    def __init__(self, server: parameter_server.ServerConnection) -> None:
        self._server = server

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        # Twin: a graph calls NumPy through an operation that needs a gradient. The other twin's layer has that gradient.
        @tf.custom_gradient
        def total(tensor: tf.Tensor) -> Any:
            return self._sum(tensor), self._sum

        return total(tensor)

    def _sum(self, tensor: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(self._server.sum, [tensor], tensor.dtype), tensor.shape)
