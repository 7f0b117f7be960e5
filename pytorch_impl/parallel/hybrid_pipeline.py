"""Mode hybrid of data and pipeline: copies of a pipeline, each on its shard of every batch."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import distributed

from pytorch_impl.parallel.pipeline import Pipeline


class HybridPipeline(Pipeline):
    """Copies of a pipeline; the gradients of each stage are added up over its copies before the update."""

    def _join(self, rank: int, number: int) -> None:
        copies = self._spec.data_replicas
        self.shard = rank // number, copies
        self._group = _own_group(rank, [list(range(copy * number, (copy + 1) * number)) for copy in range(copies)])
        # The ranks that have the same stage.
        self._peers = _own_group(rank, [list(range(stage, copies * number, number)) for stage in range(number)])

    def _summed(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """Added up over the copies of the stage, in one message."""
        joined = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(joined, group=self._peers)
        copies = self.shard[1]
        self._meter.sent_bytes += 2 * (copies - 1) * joined.nbytes // copies  # as a ring does it
        parts = joined.split([gradient.numel() for gradient in gradients])
        return [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]

    def all_reduce(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sum over shards, in every process; float64 or int64."""
        tensor = self._tensor(values)
        distributed.all_reduce(tensor, group=self._peers)
        return tensor.cpu().numpy()

    def share_statistics(self) -> None:
        """Give every replica the BatchNorm statistics of replica 0, from which evaluation is done."""
        for buffer in self._model.buffers():
            distributed.broadcast(buffer, group=self._peers, group_src=0)


def _own_group(rank: int, groups: list[list[int]]) -> distributed.ProcessGroup:
    """The one of these groups to which a rank belongs; every rank has to form them all."""
    formed = [distributed.new_group(group) for group in groups]
    (own,) = (group for group, ranks in zip(formed, groups, strict=True) if rank in ranks)
    assert isinstance(own, distributed.ProcessGroup)
    return own
