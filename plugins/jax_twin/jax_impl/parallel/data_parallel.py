"""Mode data_parallel: several replicas in one process. Each trains on its shard of every batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from common.data.sources import DatasetSplit
from common.models.sharding import shard
from common.training.communication import exchange_bytes
from jax_impl.batch_norm import ReplicaGroup
from jax_impl.models import JaxModel
from jax_impl.parallel.trainer import Trainer
from jax_impl.train import ShardArrays, TrainingState

_AXIS = "replicas"
_SHARED, _OWN = PartitionSpec(), PartitionSpec(_AXIS)


class DataParallel(Trainer):
    """Replicas on several devices, in one process.

    Each replica computes gradients on its shard of the batch. The sum of all replicas' gradients makes the one update.
    `implementation` names what runs the replicas here.
    """

    def _build(self) -> None:
        # Twin: JAX runs one program on all devices of a mesh. Each of them holds its own shard of the arrays.
        devices = jax.devices()[: self._spec.replicas]
        if len(devices) < self._spec.replicas:
            raise RuntimeError(f"{self._spec.replicas} replicas need as many devices. JAX found {len(devices)}.")
        self._mesh = Mesh(np.array(devices), (_AXIS,))
        self.devices = [str(device) for device in devices]
        self._set_model(self._new_model(ReplicaGroup(_AXIS) if self._synchronises else None))

    def _over_replicas(self, replica_step: Callable[..., Any]) -> Callable[..., Any]:
        def step(state: TrainingState, examples: ShardArrays, numbers: Any, micro_batches: int) -> Any:
            def replica(state: TrainingState, examples: ShardArrays, numbers: Any) -> Any:
                replica_state = state._replace(statistics=_first_replica(state.statistics))
                new_state, outputs = replica_step(replica_state, examples, numbers, micro_batches)
                return new_state._replace(statistics=_add_axis(new_state.statistics)), outputs

            states = TrainingState(_SHARED, _OWN, _SHARED)
            return self._on_mesh(replica, (states, _OWN, _SHARED), (states, _SHARED))(state, examples, numbers)

        return step

    def _score_over_replicas(self) -> Callable[..., Any]:
        def replica(parameters: Any, statistics: Any, examples: ShardArrays) -> Any:
            loss, predictions = self._one_score(parameters, _first_replica(statistics), examples)
            return lax.psum(loss, _AXIS), predictions

        return self._on_mesh(replica, (_SHARED, _OWN, _OWN), (_SHARED, _OWN))

    def _on_mesh(self, replica: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
        # Without the check, JAX adds no sums of its own to the gradients of shared arrays.
        return jax.shard_map(replica, mesh=self._mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

    def _exchange(self, values: Any) -> Any:
        return lax.psum(values, _AXIS)

    def _examples(self, images: Any, labels: Any, masks: Any) -> ShardArrays:
        replicas, number = self._spec.replicas, len(labels)
        examples = ShardArrays(images, labels, tuple(masks))
        if number % replicas:
            bounds = [shard(number, replicas, rank) for rank in range(replicas)]
            most = bounds[0][1]
            places = np.concatenate([np.minimum(np.arange(low, low + most), number - 1) for low, _ in bounds])
            rows = np.concatenate([np.arange(low, low + most) < high for low, high in bounds])
            examples = jax.tree.map(lambda values: values[places], examples)._replace(rows=rows)
        return jax.device_put(examples, NamedSharding(self._mesh, _OWN))

    def _first_model(self) -> JaxModel:
        return JaxModel(self._model.network, self._model.parameters, _first_replica(self._model.statistics))

    def _set_model(self, model: JaxModel) -> None:
        # Each replica keeps the statistics of its own shards: a first axis of replicas.
        copies = jax.tree.map(lambda array: jnp.broadcast_to(array, (self._spec.replicas, *array.shape)), model.statistics)
        statistics = jax.device_put(copies, NamedSharding(self._mesh, _OWN))
        self._model = JaxModel(model.network, self._replicated(model.parameters), statistics)

    def _replicated(self, arrays: Any) -> Any:
        return jax.device_put(arrays, NamedSharding(self._mesh, _SHARED))

    def broadcast_statistics(self) -> None:
        self._set_model(self._first_model())

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        return {"bytes_per_step": exchange_bytes(self._spec, self._architecture)}


def _first_replica(arrays: Any) -> Any:
    return jax.tree.map(lambda array: array[0], arrays)


def _add_axis(arrays: Any) -> Any:
    return jax.tree.map(lambda array: array[None], arrays)
