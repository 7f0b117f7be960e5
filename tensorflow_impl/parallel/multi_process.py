"""Mode multi_process: one process per replica. A ring all-reduce exchanges the gradients."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.data.sources import Split
from common.processes import rendezvous
from common.training.communication import exchange_bytes, statistics_payload_bytes
from common.training.trainer import Batch, Pieces, Separated, Update
from tensorflow_impl import device
from tensorflow_impl.parallel.serial import Serial


class MultiProcess(Serial):
    """One rank of several. Its environment holds its number, see `rendezvous`."""

    def _new_strategy(self) -> tf.distribute.Strategy:
        self.shard = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.devices = [f"rank {rank}: {device.kind()}" for rank in range(self.shard[1])]
        if self._spec.communication.compression != "none":
            self.implementation += f", gradients as {self._spec.communication.compression}"
        implementation = tf.distribute.experimental.CommunicationImplementation
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=implementation.NCCL if device.gpus() else implementation.RING,
        )
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        rendezvous.keep_to_loopback()  # Twin: TensorFlow's server listens on all addresses. No setting changes that.
        return strategy

    def _compile(self) -> None:
        super()._compile()

        def total(tensor: tf.Tensor) -> Any:
            # The copy is on the worker's device. An argument has no device, and the reduction needs one.
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(tensor))

        self._total = {
            dtype: tf.function(
                lambda tensor: self._strategy.run(total, args=(tensor,)), input_signature=[tf.TensorSpec((None,), dtype)]
            )
            for dtype in ("float32", "float64", "int64")
        }

    def _each(self, one: Callable[..., Any], images: Any, labels: Any, masks: Any) -> Any:
        """Results of every replica of this process, each on its own shard."""
        return self._strategy.run(lambda: one(images, labels, masks))

    def _train_replicas(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        def one(images: Any, labels: Any, masks: Any) -> Any:
            return super(MultiProcess, self)._train_replicas(images, labels, masks, update)

        losses, num_correct = self._each(one, images, labels, masks)
        return self._strategy.experimental_local_results(losses)[0], self._strategy.experimental_local_results(num_correct)[0]

    def report(self, test: Split) -> dict[str, Any]:
        """Mode-specific result fields. Called once, after `test` is scored."""
        return {"bytes_per_step": exchange_bytes(self._spec, self._architecture)}

    def separate(self, batch: Batch, num_examples: int) -> Separated | str | None:
        """Split a step on this batch into compute and exchange, which are timed separately.

        Returns:
            The two functions; the reason why they cannot be separated; or None where the mode exchanges nothing.
        """
        if statistics_payload_bytes(self._spec, self._architecture):
            return "BatchNorm's statistics are exchanged within forward and backward"
        return self._separate_replicas(batch, num_examples)

    def pieces(self, batch: Batch, num_examples: int) -> Pieces | str:
        """Break a step on this batch into a replica's computations, without exchange.

        Returns:
            The functions to call one by one, or the reason why a step has no such breakdown.
        """
        return self._pieces_of(self._model, batch, num_examples)

    def all_reduce(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum float64 or int64 values over all shards; every process gets the sum."""
        totals = self._total[values.dtype.name](tf.constant(values.reshape(-1)))
        return self._strategy.experimental_local_results(totals)[0].numpy().reshape(values.shape)

    def share_statistics(self) -> None:
        """Copy replica 0's BatchNorm statistics to every replica. Evaluation uses them."""
        for variable in self._statistics():
            own = self._strategy.experimental_local_results(variable)[0]
            own.assign(self.all_reduce(own.numpy() if self.shard[0] == 0 else np.zeros_like(own.numpy())))
