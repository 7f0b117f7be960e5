"""Mode multi_process: one process per replica. A ring all-reduce exchanges the gradients."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import distributed

from common.data.sources import DatasetSplit
from common.training.communication import exchange_bytes, statistics_payload_bytes
from common.training.trainer import Batch, ComputeAndExchange, StepBreakdown, Update
from pytorch_impl import collectives, device, private_api, train
from pytorch_impl.compression import Compressor
from pytorch_impl.parallel import group
from pytorch_impl.parallel.trainer import Trainer


class MultiProcess(Trainer):
    """One rank of several. Its environment holds its number, see `rendezvous`."""

    def _build(self) -> None:
        self.shard = distributed.get_rank(), distributed.get_world_size()
        self.devices = self._ranks()
        self._shards = group.all_ranks()
        self._model = self._new_model(self._shards if self._synchronises else None)
        settings = self._spec.communication
        self._compressor = Compressor(settings, self._model, self._architecture)
        self._compressors = [self._compressor]
        self._wrapped: collectives.RecordedDistributedDataParallel | None = None
        if settings.compression == "none":
            self._wrapped = collectives.RecordedDistributedDataParallel(
                self._model, distributed.group.WORLD, settings.bucket_mib
            )
        else:
            # Twin: DDP cuts buckets in the order in which gradients are ready. Compressed buckets must be the same on all
            # ranks.
            collective = "all-reduce" if self._compressor.summable else "all-gather"
            self.implementation = f"{collective} of {settings.compression} gradients, {distributed.get_backend()}"
        self._optimizer = self._new_optimizer(self._model)

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        if self._wrapped is None:
            exchange = self._compressor.exchange
            return train.train_step(self._objective, self._model, self._optimizer, images, labels, masks, update, exchange)
        return self._train_wrapped(self._wrapped, images, labels, masks, update)

    def broadcast_statistics(self) -> None:
        self._shards.broadcast(self._model.buffers())

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the bytes of the gradients and of synchronised BatchNorm's sums."""
        return {"bytes_per_step": exchange_bytes(self._spec, self._architecture)}

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> ComputeAndExchange | str:
        """Return a step without the exchange of gradients, and that exchange; or why they cannot be separated."""
        if statistics_payload_bytes(self._spec, self._architecture):
            return "BatchNorm's statistics are exchanged within forward and backward"
        images, labels, masks = self._to_device(batch)
        model = self._wrapped or self._model
        gradients: list[torch.Tensor] = []

        def compute() -> None:
            nonlocal gradients
            with self._wrapped.no_sync() if self._wrapped else nullcontext():
                _, _, gradients = self._objective.gradients(model, images, labels, masks, self._update(num_examples, 0.0))
            self._optimizer.apply(gradients, 0.0, self._step)

        def exchange() -> None:
            if self._wrapped is None:
                self._compressor.exchange(gradients)
                return
            # As many bytes as DDP sends, in buckets of the same sizes.
            work = [collectives.start_all_reduce(bucket) for bucket in buckets]
            for pending in work:
                pending.wait()

        dtype = device.dtype(self._spec)
        sizes = private_api.bucket_bytes(self._wrapped) if self._wrapped else []
        buckets = [torch.zeros(size // dtype.itemsize, dtype=dtype, device=self._device) for size in sizes]
        return ComputeAndExchange(compute, exchange)

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """Return a rank's forward pass, backward pass and update, or why they cannot be called one by one."""
        return self._break_down(self._model, batch, num_examples)
