"""Mode sharded_data_parallel: replicas divide the batch, the parameters, their gradients and the optimizer's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import distributed

from common.data.sources import DatasetSplit
from common.training.communication import ring_all_reduce_bytes, statistics_payload_bytes
from common.training.trainer import Update
from pytorch_impl import optim, shards, train
from pytorch_impl.parallel import group
from pytorch_impl.parallel.trainer import Trainer


class ShardedDataParallel(Trainer):
    """Replicas on several devices. Each trains on its shard of the batch, and holds its rows of every parameter.

    A layer's parameters are gathered for its forward pass, and again for its backward pass. Then each replica receives the
    sum of the gradients of its own rows, and updates those (Rajbhandari et al. 2020, ZeRO, stage 3).
    """

    shards_optimizer = True
    scores_together = True

    def _build(self) -> None:
        self.shard = distributed.get_rank(), distributed.get_world_size()
        self.devices = self._ranks()
        self._shards = group.all_ranks()
        self._model = self._new_model(self._shards if self._synchronises else None)
        self._sent_bytes = shards.divide(self._model, self._spec.communication.bucket_mib)
        self._sent_bytes_per_step: Counter[str] = Counter()
        self._optimizer = optim.build(self._spec.optimizer, _local_rows(self._model.parameters()), self._switches)

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        before = self._sent_bytes.copy()
        outcome = train.train_step(self._objective, self._model, self._optimizer, images, labels, masks, update, _local_rows)
        if not self._sent_bytes_per_step:  # the first batch is a whole one
            self._sent_bytes_per_step = self._sent_bytes - before
        return outcome

    def _score_batch(self, images: Any, labels: Any) -> Any:
        scores = super()._score_batch(images, labels)
        # `fully_shard` waits for a backward pass. The next one would otherwise gather a unit once more, for this forward pass.
        cast(Any, self._model).reset_iter_state()
        return scores

    def broadcast_statistics(self) -> None:
        self._shards.broadcast(self._model.buffers())

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the bytes of the gathered parameters, of the gradients and of synchronised BatchNorm's sums."""
        ranks, statistics = self.shard[1], statistics_payload_bytes(self._spec, self._architecture)
        # Twin: counted as they are sent. Each replica's part is as long as the longest: `fully_shard` fills it with zeros.
        kinds = {kind: float(ranks * sent) for kind, sent in self._sent_bytes_per_step.items()}
        kinds["all_reduce"] = ring_all_reduce_bytes(statistics, ranks)
        return {"bytes_per_step": sum(kinds.values()), "bytes_per_step_by_kind": kinds}


def _local_rows(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return this replica's rows of divided tensors, not copied."""
    return [part for tensor in tensors for part, _ in shards.parts(tensor)]
