"""Mode data_parallel: several replicas in one process. Each trains on its shard of every batch."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from common.data.sources import Split
from common.models.sharding import shard
from common.training.communication import reduce_bytes, statistics_payload_bytes, step_payload_bytes
from common.training.trainer import Batch, Pieces, Separated, Update
from pytorch_impl import evaluate
from pytorch_impl.compression import Compressor
from pytorch_impl.parallel.serial import Serial


class DataParallel(Serial):
    """Replicas on several devices, in one process.

    Each replica computes gradients on its shard of the batch. The sum of all replicas' gradients makes the one update.
    `implementation` names what runs the replicas here.
    """

    def _build(self) -> None:
        replicas = self._spec.replicas
        # Twin: nn.DataParallel needs CUDA, so replicas on the CPU are threads here. MirroredStrategy uses logical CPU devices.
        self._threads: _Threads | None = None
        if self._device.type == "cuda":
            self.devices = [f"cuda:{index}" for index in range(replicas)]
            self._model = self._new_model(None)
            self._scattered = _Scattered(torch.nn.DataParallel(self._model, device_ids=list(range(replicas))))
        else:
            self.devices = ["cpu"] * replicas
            self._threads = _Threads(replicas)
            synchronised = self._spec.batch_norm_statistics == "synchronised"
            self._model = self._new_model(self._threads if synchronised else None)
            self._replicas = [self._model, *(self._replica() for _ in range(1, replicas))]
        settings = self._spec.communication
        self._compressors: list[Compressor] = []
        if settings.compression != "none":
            self._compressors = [Compressor(settings, self._model, self._architecture) for _ in range(replicas)]
            self.implementation += f", gradients as {settings.compression}"
        self._optimizer = self._new_optimizer(list(self._model.parameters()))

    def _replica(self) -> torch.nn.Module:
        """A copy with its own gradients and statistics. It shares the weights, so nothing is sent back."""
        replica = copy.deepcopy(self._model, {id(self._threads): self._threads})
        for own, shared in zip(replica.parameters(), self._model.parameters(), strict=True):
            own.data = shared.data
        return replica

    def _train_replicas(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        if self._threads is None:
            loss, num_correct, gradients = self._gradients(self._scattered, images, labels, masks, update)
            self._optimizer.apply(gradients, update.learning_rate, update.step)
            return loss, num_correct

        def one(rank: int) -> Any:
            return self._own_gradients(rank, images, labels, masks, update)

        losses, num_correct, gradients = zip(*self._threads.run(one), strict=True)
        self._optimizer.apply(self._exchanged(gradients), update.learning_rate, update.step)
        return torch.stack(losses).sum(), torch.stack(num_correct).sum()

    def _own_gradients(self, rank: int, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        part = slice(*shard(len(labels), self._spec.replicas, rank))
        own_masks = [mask[part] for mask in masks]
        return self._gradients(self._replicas[rank], images[part], labels[part], own_masks, update)

    def _exchanged(self, gradients: Sequence[list[torch.Tensor]]) -> list[torch.Tensor]:
        """The sum of the replicas' gradients."""
        if not self._compressors:
            return [torch.stack(parts).sum(0) for parts in zip(*gradients, strict=True)]
        assert self._threads is not None
        messages = self._threads.run(lambda rank: list(self._compressors[rank].compress(gradients[rank])))
        return self._compressors[0].total(list(zip(*messages, strict=True)))

    def _score_replicas(self, images: Any, labels: Any) -> Any:
        if self._threads is None:
            return evaluate.score(self._scattered, images, labels, loss=self._spec.loss, scaling=self._plan.scaling)

        def one(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
            part = slice(*shard(len(labels), self._spec.replicas, rank))
            return evaluate.score(
                self._replicas[rank], images[part], labels[part], loss=self._spec.loss, scaling=self._plan.scaling
            )

        losses, predictions = zip(*self._threads.run(one), strict=True)
        return torch.stack(losses).sum(), torch.cat(predictions)

    def share_statistics(self) -> None:
        """Copy replica 0's BatchNorm statistics to every replica. Evaluation uses them."""
        if self._threads is None:
            return  # nn.DataParallel keeps only its first replica's
        for replica in self._replicas[1:]:
            for own, first in zip(replica.buffers(), self._model.buffers(), strict=True):
                own.copy_(first)

    def report(self, test: Split) -> dict[str, Any]:
        """Mode-specific result fields. Called once, after `test` is scored."""
        payload = step_payload_bytes(self._spec, self._architecture)
        statistics = statistics_payload_bytes(self._spec, self._architecture)
        sent = reduce_bytes(payload + statistics, self._spec.replicas)
        # Twin: threads share the weights; nn.DataParallel sends them out again. A strategy's replicas form a ring.
        return {"bytes_per_step": sent if self._threads else 2.0 * sent}

    def separate(self, batch: Batch, num_examples: int) -> Separated | str | None:
        """Split a step on this batch into compute and exchange, which are timed separately.

        Returns:
            The two functions; the reason why they cannot be separated; or None where the mode exchanges nothing.
        """
        if statistics_payload_bytes(self._spec, self._architecture):
            return "BatchNorm's statistics are exchanged within forward and backward"
        if self._threads is None:
            return "nn.DataParallel computes and sends in one"
        threads, (images, labels, masks) = self._threads, self._to_device(batch)
        found: list[list[torch.Tensor]] = []

        def timed(rank: int) -> tuple[float, list[torch.Tensor]]:
            start = time.perf_counter()
            _, _, gradients = self._own_gradients(rank, images, labels, masks, self._update(num_examples, 0.0))
            return time.perf_counter() - start, gradients

        def compute() -> list[float]:
            nonlocal found
            seconds, found = map(list, zip(*threads.run(timed), strict=True))
            start = time.perf_counter()
            self._optimizer.apply(found[0], 0.0, self._step)
            update_seconds = time.perf_counter() - start
            return [own + update_seconds for own in seconds]

        def exchange() -> None:
            self._exchanged(found)

        return Separated(compute, exchange)

    def pieces(self, batch: Batch, num_examples: int) -> Pieces | str:
        """Break a step on this batch into a replica's computations, without exchange.

        Returns:
            The functions to call one by one, or the reason why a step has no such breakdown.
        """
        if self._threads is None:
            return "nn.DataParallel sends within forward and backward"
        whole, threads = self._pieces_of(self._model, batch, num_examples), self._threads
        if isinstance(whole, str):
            return whole
        own: list[Any] = []
        for rank, replica in enumerate(self._replicas):
            part = slice(*shard(len(batch.labels), self._spec.replicas, rank))
            masks = tuple(mask[part] for mask in batch.masks)
            own_batch = Batch(batch.ids[part], batch.images[part], batch.labels[part], masks)
            own.append(self._pieces_of(replica, own_batch, num_examples))

        def forward() -> None:
            threads.run(lambda rank: own[rank].forward())

        def backward() -> None:
            threads.run(lambda rank: own[rank].backward())

        return whole._replace(forward=forward, backward=backward)


class _Scattered(torch.nn.Module):
    """nn.DataParallel that exposes the parameters' dtype. Inputs are split over the devices, in order."""

    # Twin: nn.DataParallel gives the last device the remainder: 10 examples over 4 devices are 3, 3, 3, 1. `shard` gives 3, 3,
    # 2, 2. Sums over examples are the same. BatchNorm statistics are per device here, so they differ.

    def __init__(self, wrapped: torch.nn.DataParallel[Any]) -> None:
        super().__init__()
        self.wrapped = wrapped

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.wrapped(*inputs)


class _Threads:
    """One thread for each replica. Inside a step they sum tensors, for synchronised BatchNorm."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._barrier = threading.Barrier(replicas)
        self._parts: list[torch.Tensor | None] = [None] * replicas
        self._own = threading.local()
        self._pool = ThreadPoolExecutor(
            replicas, "replica", initializer=torch.set_num_threads, initargs=(max(torch.get_num_threads(), 1),)
        )

    def run(self, work: Any) -> list[Any]:
        """Run work(rank) in every thread at once. If one fails, no other waits for it."""

        def one(rank: int) -> Any:
            self._own.rank = rank
            try:
                return work(rank)
            except threading.BrokenBarrierError:
                raise
            except BaseException:
                self._barrier.abort()
                raise

        futures = [self._pool.submit(one, rank) for rank in range(self._replicas)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            self._barrier.reset()
            raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
        return [future.result() for future in futures]

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over replicas; each gets the sum. Its gradient is the sum of the gradients."""
        self._parts[self._own.rank] = tensor
        self._barrier.wait()
        total = torch.stack([part for part in self._parts if part is not None]).sum(0)
        self._barrier.wait()  # no thread overwrites a part before all have read it
        return total
