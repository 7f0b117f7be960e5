"""Mode hybrid of data and tensor: copies of a split model. Each trains on its shard of every batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from common.data.sources import Split
from common.training.communication import ring_all_reduce_bytes, statistics_payload_bytes
from common.training.trainer import Update
from pytorch_impl.parallel import multi_process
from pytorch_impl.parallel.tensor_parallel import TensorParallel


class HybridTensor(TensorParallel):
    """Copies of a model that is split over replicas. Each slice's gradients are summed over its copies."""

    def _build(self) -> None:
        # Neighbouring devices hold one copy, because the exchange inside a copy is larger than between copies.
        shape = self._spec.data_replicas, self._spec.hybrid.inner_replicas
        mesh = init_device_mesh(self._device.type, shape, mesh_dim_names=("copies", "slices"))
        self.shard = mesh.get_local_rank("copies"), shape[0]
        self._copies = mesh.get_group("copies")
        self.devices = [f"rank {rank}: {self._device.type}" for rank in range(self._spec.replicas)]
        synchronised = self._spec.batch_norm_statistics == "synchronised"
        group = multi_process.Ranks(self._copies) if synchronised else None
        self._model = self._new_split_model(mesh.get_group("slices"), group)
        # Twin: DDP sends each bucket of gradients as soon as it is full. The other twin's graph does that by itself.
        self._wrapped = DistributedDataParallel(
            self._model,
            process_group=self._copies,
            bucket_cap_mb=self._spec.communication.bucket_mib,
            forward_sync_buffers=False,
        )
        self._optimizer = self._new_optimizer(list(self._model.parameters()))

    def _train_replicas(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        copies = self.shard[1]
        # DDP averages over copies, but the shares of the loss must be summed. So each share is multiplied by the number of
        # copies.
        counted = update._replace(num_examples=update.num_examples / copies)
        loss, num_correct, gradients = self._gradients(self._wrapped, images, labels, masks, counted)
        self._optimizer.apply(gradients, update.learning_rate, update.step)
        return loss / copies, num_correct

    def all_reduce(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum float64 or int64 values over all shards; every process gets the sum."""
        tensor = self._tensor(values)
        distributed.all_reduce(tensor, group=self._copies)
        return tensor.cpu().numpy()

    def share_statistics(self) -> None:
        """Copy replica 0's BatchNorm statistics to every replica. Evaluation uses them."""
        for buffer in self._model.buffers():
            distributed.broadcast(buffer, group=self._copies, group_src=0)

    def report(self, test: Split) -> dict[str, Any]:
        """Mode-specific result fields. Called once, after `test` is scored."""
        # Twin: the C copies of a slice form a ring; each sends 2 (C - 1) / C of the gradient. Each slice computes BatchNorm's
        # sums itself. In the other twin's graph every copy receives the others' gradients.
        own = sum(parameter.nbytes for parameter in self._model.parameters())
        own += statistics_payload_bytes(self._spec, self._architecture)
        copies = self.shard[1]
        ring = float(self.total(np.array([ring_all_reduce_bytes(own, copies) / copies]))[0])
        return {"bytes_per_step": ring + super().report(test)["bytes_per_step"]}
