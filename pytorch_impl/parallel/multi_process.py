"""Mode multi_process: one process per replica. A ring all-reduce exchanges the gradients."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy.typing as npt
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from common.data.sources import Split
from common.training.communication import exchange_bytes, statistics_payload_bytes
from common.training.trainer import Batch, Pieces, Separated, Update
from pytorch_impl import device
from pytorch_impl.compression import Compressor, exchanged
from pytorch_impl.parallel.serial import Serial


class MultiProcess(Serial):
    """One rank of several. Its environment holds its number, see `rendezvous`."""

    def _build(self) -> None:
        self.shard = distributed.get_rank(), distributed.get_world_size()
        self.devices = [f"rank {rank}: {self._device.type}" for rank in range(self.shard[1])]
        synchronised = self._spec.batch_norm_statistics == "synchronised"
        self._model = self._new_model(Ranks() if synchronised else None)
        settings = self._spec.communication
        self._compressor = Compressor(settings, self._model, self._architecture)
        self._wrapped: DistributedDataParallel | None = None
        if settings.compression == "none":
            self._wrapped = DistributedDataParallel(
                self._model,
                bucket_cap_mb=settings.bucket_mib,
                forward_sync_buffers=False,
            )
        else:
            # Twin: DDP cuts buckets in the order in which gradients are ready. Compressed buckets must be the same on all
            # ranks.
            way = "all-reduce" if self._compressor.summable else "all-gather"
            self.implementation = f"{way} of {settings.compression} gradients, {distributed.get_backend()}"
        self._optimizer = self._new_optimizer(list(self._model.parameters()))

    def _train_replicas(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        if self._wrapped is None:
            loss, num_correct, gradients = self._gradients(self._model, images, labels, masks, update)
            self._optimizer.apply(exchanged(gradients, self._compressor), update.learning_rate, update.step)
            return loss, num_correct
        ranks = self.shard[1]
        # DDP averages over ranks, but the shares of the loss must be summed. So each share is multiplied by the number of
        # ranks.
        counted = update._replace(num_examples=update.num_examples / ranks)
        loss, num_correct, gradients = self._gradients(self._wrapped, images, labels, masks, counted)
        self._optimizer.apply(gradients, update.learning_rate, update.step)
        return loss / ranks, num_correct

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
        images, labels, masks = self._to_device(batch)
        model = self._wrapped or self._model
        found: list[torch.Tensor] = []

        def compute() -> None:
            nonlocal found
            with self._wrapped.no_sync() if self._wrapped else nullcontext():
                _, _, found = self._gradients(model, images, labels, masks, self._update(num_examples, 0.0))
            self._optimizer.apply(found, 0.0, self._step)

        def exchange() -> None:
            if self._wrapped is None:
                exchanged(found, self._compressor)
                return
            # As DDP sends them, without the copies to its buckets and back.
            work = [distributed.all_reduce(bucket, async_op=True) for bucket in buckets]
            for each in work:
                each.wait()

        buckets = [torch.zeros(count, dtype=device.dtype(self._spec), device=self._device) for count in self._compressor.counts]
        return Separated(compute, exchange)

    def pieces(self, batch: Batch, num_examples: int) -> Pieces | str:
        """Break a step on this batch into a replica's computations, without exchange.

        Returns:
            The functions to call one by one, or the reason why a step has no such breakdown.
        """
        return self._pieces_of(self._model, batch, num_examples)

    def all_reduce(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum float64 or int64 values over all shards; every process gets the sum."""
        tensor = self._tensor(values)
        distributed.all_reduce(tensor)
        return tensor.cpu().numpy()

    def share_statistics(self) -> None:
        """Copy replica 0's BatchNorm statistics to every replica. Evaluation uses them."""
        for buffer in self._model.buffers():
            distributed.broadcast(buffer, 0)


class Ranks:
    """Sums over processes, for synchronised BatchNorm."""

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        self._group = group

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over replicas; each gets the sum. Its gradient is the sum of the gradients."""
        total = tensor.clone()
        distributed.all_reduce(total, group=self._group)
        return total
