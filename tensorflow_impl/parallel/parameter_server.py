"""Mode parameter_server: one process a replica, and a server that has the parameters and updates them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.data.sources import Split
from common.models.weights import Weights
from common.processes import parameter_server, rendezvous
from common.training.communication import server_bytes, statistics_payload_bytes
from common.training.trainer import Batch, Pieces, Separated, Update
from tensorflow_impl import device, weights
from tensorflow_impl.compression import Compressor
from tensorflow_impl.parallel import vectors
from tensorflow_impl.parallel.serial import Serial


class ParameterServer(Serial):
    """One rank of several; who it is stands in its environment, see `rendezvous`."""

    def _build(self) -> None:
        self.shard = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.devices = [f"rank {rank}: {device.kind()}" for rank in range(self.shard[1])]
        self._server = parameter_server.join(self._spec, self.shard[0], rendezvous.word())
        synchronised = self._spec.batch_norm_statistics == "synchronised"
        self._model = self._new_model(_Workers(self._server) if synchronised else None)
        self._outgoing = Compressor(self._spec.communication, self._model, self._architecture)
        own = [variable.value for variable in self._model.trainable_variables]
        # Twin: the server's values are in the canonical order, and Keras' layout is the canonical one; torch's is not.
        self._parameters = [own[place] for place in weights.positions(self._model, self._architecture).values()]

    def _compile(self) -> None:
        super()._compile()
        vector = tf.TensorSpec((None,), device.dtype(self._spec))
        self._assign = tf.function(lambda values: vectors.assign(self._parameters, values), input_signature=[vector])

    def _train_replicas(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        # A worker that waits for no other learns from the mean over its own shard.
        synchronous = self._spec.parameter_server.updates == "synchronous"
        counted = update.num_examples if synchronous else tf.shape(labels, tf.int64)[0]
        loss, num_correct, gradients = self._gradients(
            self._model, images, labels, masks, update._replace(num_examples=counted)
        )
        messages = list(self._outgoing.compress(gradients))
        return loss * tf.cast(counted / update.num_examples, loss.dtype), num_correct, messages

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        """Update the model once; (this process's share of the mean loss over num_examples, num_correct), on the device."""
        step: Any = super().train_step(batch, num_examples, learning_rate)
        loss, num_correct, messages = step
        self._server.push([message.numpy() for message in messages], learning_rate)
        self._pull()
        return loss, num_correct

    def _pull(self) -> None:
        self._assign(tf.constant(self._server.pull()))

    def all_reduce(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sum over shards, in every process; float64 or int64."""
        return self._server.sum(values)

    def share_statistics(self) -> None:
        """Give every replica the BatchNorm statistics of replica 0, from which evaluation is done."""
        self._server.barrier()
        self._pull()  # what the others have pushed meanwhile
        if statistics := self._statistics():
            own = vectors.flatten(statistics).numpy()
            vectors.assign(statistics, tf.constant(self._server.sum(own if self.shard[0] == 0 else np.zeros_like(own))))

    def report(self, test: Split) -> dict[str, Any]:
        """What else the mode has to say of the run, as fields of its result; asked once, after `test` was scored."""
        found = self._server.report()
        statistics = statistics_payload_bytes(self._spec, self._architecture)
        return found | {"bytes_per_step": found["bytes_per_step"] + server_bytes(statistics, self._spec.replicas)}

    def separate(self, batch: Batch, num_examples: int) -> Separated | str | None:
        """The parts of a step on this batch, to be timed apart; or why that cannot be done; None: nothing is exchanged."""
        if self._spec.batch_norm_statistics == "synchronised":
            return "BatchNorm's statistics are exchanged within forward and backward"
        messages: list[npt.NDArray[Any]] = []
        train_alone: Any = super().train_step

        def compute() -> None:
            nonlocal messages
            messages = [message.numpy() for message in train_alone(batch, num_examples, 0.0)[2]]

        def exchange() -> None:
            self._server.push(messages, 0.0)
            self._pull()

        return Separated(compute, exchange)

    def pieces(self, batch: Batch, num_examples: int) -> Pieces | str:
        """What a replica computes in a step on this batch, piece by piece and without exchange; or why there are no pieces."""
        pieces = self._pieces_of(self._model, batch, num_examples)
        said = [pieces.fused] if pieces.fused else []
        return pieces._replace(optimizer=None, fused="; ".join([*said, "the server updates the weights"]))

    def close(self) -> None:
        """Part from the other processes, when all is done."""
        self._server.close()

    def load_weights(self, values: Weights) -> None:
        """Set every parameter and statistic of every replica."""
        weights.load(self._model, self._architecture, values)
        self._server.load(vectors.flatten(self._parameters).numpy(), self._outgoing.counts)


class _Workers:
    """Adding tensors up over processes, for synchronised BatchNorm."""

    def __init__(self, server: parameter_server.Connection) -> None:
        self._server = server

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum over replicas, the same in each; its gradient is the sum of the gradients."""

        # Twin: in a graph NumPy needs an operation of its own, and that one a gradient; the other twin's layer brings it.
        @tf.custom_gradient
        def total(tensor: tf.Tensor) -> Any:
            return self._sum(tensor), self._sum

        return total(tensor)

    def _sum(self, tensor: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(self._server.sum, [tensor], tensor.dtype), tensor.shape)
