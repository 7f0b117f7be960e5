"""Mode hybrid of data and pipeline: copies of a pipeline. Each trains on its shard of every batch."""

from __future__ import annotations

import torch
from torch import distributed

from pytorch_impl import collectives
from pytorch_impl.parallel import vectors
from pytorch_impl.parallel.group import CommunicationGroup
from pytorch_impl.parallel.pipeline import Pipeline


class HybridPipeline(Pipeline):
    """Copies of a pipeline. Before the update, each stage's gradients are summed over its copies."""

    def _join(self, rank: int, number: int) -> None:
        copies = self._spec.data_replicas
        self.shard = rank // number, copies
        self._group = _group_of(rank, [list(range(copy * number, (copy + 1) * number)) for copy in range(copies)])
        # The ranks that hold the same stage.
        self._shards = CommunicationGroup(
            _group_of(rank, [list(range(stage, copies * number, number)) for stage in range(number)])
        )

    def _sum_copies(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """Sum gradients over the stage's copies, in one message."""
        joined = self._shards.sum_tensor(vectors.flatten(gradients))
        copies = self.shard[1]
        self._meter.sent_bytes += 2 * (copies - 1) * joined.nbytes // copies  # as in a ring all-reduce
        parts = joined.split([gradient.numel() for gradient in gradients])
        return [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]

    def broadcast_statistics(self) -> None:
        self._shards.broadcast(self._model.buffers())


def _group_of(rank: int, groups: list[list[int]]) -> distributed.ProcessGroup:
    """Return the group that a rank belongs to. Every rank must create all groups."""
    process_groups = [collectives.new_group(group) for group in groups]
    (process_group,) = (group for group, ranks in zip(process_groups, groups, strict=True) if rank in ranks)
    assert isinstance(process_group, distributed.ProcessGroup)
    return process_group
