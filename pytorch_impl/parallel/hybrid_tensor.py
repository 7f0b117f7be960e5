"""Mode hybrid of data and tensor: copies of a split model. Each trains on its shard of every batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.distributed.device_mesh import init_device_mesh

from common.data.sources import DatasetSplit
from common.training.communication import ring_all_reduce_bytes, statistics_payload_bytes
from common.training.trainer import Update
from pytorch_impl import collectives
from pytorch_impl.parallel.group import CommunicationGroup
from pytorch_impl.parallel.tensor_parallel import TensorParallel


class HybridTensor(TensorParallel):
    """Copies of a model that is split over replicas. Each slice's gradients are summed over its copies."""

    def _build(self) -> None:
        # Neighbouring devices hold one copy, because the exchange inside a copy is larger than between copies.
        shape = self._spec.data_replicas, self._spec.hybrid.inner_replicas
        mesh = init_device_mesh(self._device.type, shape, mesh_dim_names=("copies", "slices"))
        self.shard = mesh.get_local_rank("copies"), shape[0]
        self._shards = CommunicationGroup(mesh.get_group("copies"))
        self._build_split(mesh.get_group("slices"), self._shards if self._synchronises else None)
        # Twin: DDP sends each bucket of gradients as soon as it is full. The other twin's graph does that by itself.
        self._wrapped = collectives.RecordedDistributedDataParallel(
            self._model, self._shards.members, self._spec.communication.bucket_mib
        )
        self._optimizer = self._new_optimizer(self._model)

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        return self._train_wrapped(self._wrapped, images, labels, masks, update)

    def broadcast_statistics(self) -> None:
        self._shards.broadcast(self._model.buffers())

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the bytes inside the copies and between them."""
        # Twin: the C copies of a slice form a ring; each sends 2 (C - 1) / C of the gradient. Each slice computes BatchNorm's
        # sums itself. In the other twin's graph every copy receives the others' gradients.
        num_bytes = sum(parameter.nbytes for parameter in self._model.parameters())
        num_bytes += statistics_payload_bytes(self._spec, self._architecture)
        copies = self.shard[1]
        ring = float(self.all_reduce_world(np.array([ring_all_reduce_bytes(num_bytes, copies) / copies]))[0])
        return {"bytes_per_step": ring + super().report(test)["bytes_per_step"]}
