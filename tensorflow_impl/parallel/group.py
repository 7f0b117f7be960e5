"""Replicas of one run that sum tensors: synchronised BatchNorm, scores and statistics need it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.machine import flight, heartbeat, placement
from common.processes import rendezvous
from tensorflow_impl import collectives, device, private_api

_HEARTBEAT_TIMEOUT_MS = 30 * 60 * 1000
"""Milliseconds without a heartbeat after which a rank counts as dead: torch's default timeout of process groups."""


class CommunicationGroup:
    """Replicas that exchange tensors. All of them make the same calls in the same order."""

    def __init__(self, members: Any) -> None:
        # Twin: TensorFlow's replicas form a strategy. torch's ranks form process groups.
        self.members = members
        self._sum_graphs = cache(self._new_sum_graph)

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        """Sum a tensor over replicas; each gets the sum. Its gradient is the sum of the gradients."""
        if not tf.distribute.in_cross_replica_context():
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensor)
        return tensor  # Keras builds the model's graph outside any replica

    def sum_tensor(self, tensor: tf.Tensor) -> tf.Tensor:
        """Sum a tensor over the processes. The result may be the tensor itself."""
        sum_graph = self._sum_graphs(tensor.dtype)
        if self.members.cluster_resolver is None:  # the replicas are in this process
            return self.members.experimental_local_results(sum_graph(tensor))[0]
        number = collectives.begin(self.members, "all_reduce", tensor)
        result = self.members.experimental_local_results(sum_graph(tensor))[0]
        flight.end(number)
        return result

    def sum(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum float64 or int64 values over the processes; every process gets the sum."""
        return self.sum_tensor(tf.constant(values.reshape(-1))).numpy().reshape(values.shape)

    def broadcast(self, tensors: Iterable[tf.Variable]) -> None:
        """Copy the first replica's tensors to every replica."""
        for tensor in tensors:
            first, *others = self.members.experimental_local_results(tensor)
            if self.members.cluster_resolver is not None:  # the replicas are in several processes
                values = first.numpy()
                # Not by the resolver's task: the chief and the first worker both have task 0.
                first.assign(self.sum(values if placement.is_first_rank() else np.zeros_like(values)))
            for other in others:
                other.assign(first)

    def _new_sum_graph(self, dtype: tf.DType) -> Any:
        def replica_fn(tensor: tf.Tensor) -> Any:
            # The copy is on the worker's device. An argument has no device, and the reduction needs one.
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(tensor))

        return device.graph(
            lambda tensor: self.members.run(replica_fn, args=(tensor,)), input_signature=[tf.TensorSpec((None,), dtype)]
        )


@cache
def all_ranks() -> CommunicationGroup:
    """Return the group of all processes of the run."""
    # Twin: a strategy is created for them, and exchanges around a ring. torch's ranks have met in `rendezvous`.
    implementation = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementation.NCCL if device.gpus() else implementation.RING,
    )
    if heartbeat.is_watched():
        # Twin: TensorFlow's ranks send heartbeats, and no argument of a strategy sets their limit. torch's have a time-out.
        # The default is ten seconds, less than a short sleep. It is not raised under another launcher, which might not end
        # ranks that hang. gRPC still detects a cut network after 20 s.
        private_api.set_heartbeat_timeout(_HEARTBEAT_TIMEOUT_MS)
    number = collectives.channel(None).begin("rendezvous")
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    flight.end(number)
    rendezvous.bind_to_loopback()  # Twin: TensorFlow's server listens on all addresses. No setting changes that.
    return CommunicationGroup(strategy)
