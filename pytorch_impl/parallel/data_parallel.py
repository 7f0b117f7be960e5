"""Mode data_parallel: several replicas in one process. Each trains on its shard of every batch."""

from __future__ import annotations

import copy
import functools
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from common.data.sources import DatasetSplit
from common.models.sharding import shard
from common.training.communication import reduce_bytes, statistics_payload_bytes, step_payload_bytes
from common.training.trainer import Batch, ComputeAndExchange, StepBreakdown, Update
from pytorch_impl import evaluate, train
from pytorch_impl.compression import Compressor
from pytorch_impl.decisions import DecisionRecorder
from pytorch_impl.parallel.trainer import Trainer


class DataParallel(Trainer):
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
            self._replicas = [self._model]
            # Twin: nn.DataParallel gives the last device the remainder. Of 10 examples on 4 devices it makes 3, 3, 3, 1, and
            # `shard` 3, 3, 2, 2. Sums over examples are the same. BatchNorm statistics are per device here, so they differ.
            self._data_parallel_model = torch.nn.DataParallel(self._model, device_ids=list(range(replicas)))
        else:
            self.devices = ["cpu"] * replicas
            self._threads = _Threads(replicas)
            self._model = self._new_model(self._threads if self._synchronises else None)
            self._replicas = [self._model, *(self._replica() for _ in range(1, replicas))]
        settings = self._spec.communication
        if settings.compression != "none":
            self._compressors = [Compressor(settings, self._model, self._architecture) for _ in range(replicas)]
            self.implementation += f", gradients as {settings.compression}"
        self._optimizer = self._new_optimizer(self._model)

    @property
    def _trained_models(self) -> list[torch.nn.Module]:
        return self._replicas

    def _replica(self) -> torch.nn.Module:
        """Copy the model with its own gradients and statistics. It shares the weights, so nothing is sent back."""
        replica = copy.deepcopy(self._model, {id(self._threads): self._threads})
        for parameter, shared in zip(replica.parameters(), self._model.parameters(), strict=True):
            parameter.data = shared.data
        return replica

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        if self._threads is None:
            return train.train_step(self._objective, self._data_parallel_model, self._optimizer, images, labels, masks, update)

        def replica_gradients(rank: int) -> Any:
            return self._gradients(rank, images, labels, masks, update)

        losses, num_correct, gradients = zip(*self._threads.run(replica_gradients), strict=True)
        self._optimizer.apply(self._exchange(gradients), update.learning_rate, update.step)
        return torch.stack(losses).sum(), torch.stack(num_correct).sum()

    def _gradients(self, rank: int, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        """Compute one replica's gradients on its own shard."""
        shard_slice = self._shard_of(rank, labels)
        masks = [mask[shard_slice] for mask in masks]
        return self._objective.gradients(self._replicas[rank], images[shard_slice], labels[shard_slice], masks, update)

    def _shard_of(self, rank: int, batch: Any) -> slice:
        return slice(*shard(len(batch), self._spec.replicas, rank))

    def _exchange(self, gradients: Sequence[list[torch.Tensor]]) -> list[torch.Tensor]:
        """Sum the replicas' gradients."""
        if not self._compressors:
            return [functools.reduce(torch.add, parts) for parts in zip(*gradients, strict=True)]
        assert self._threads is not None
        messages = self._threads.run(lambda rank: list(self._compressors[rank].compress(gradients[rank])))
        return self._compressors[0].sum_messages(list(zip(*messages, strict=True)))

    def _score_batch(self, images: Any, labels: Any) -> Any:
        if self._threads is None:
            return evaluate.score(self._data_parallel_model, images, labels, self._objective)

        def score_replica(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
            shard_slice = self._shard_of(rank, labels)
            return evaluate.score(self._replicas[rank], images[shard_slice], labels[shard_slice], self._objective)

        losses, predictions = zip(*self._threads.run(score_replica), strict=True)
        return torch.stack(losses).sum(), torch.cat(predictions)

    @contextmanager
    def _recorders(self) -> Iterator[list[DecisionRecorder]]:
        threads, recorders = self._threads, [DecisionRecorder() for _ in self._replicas]
        assert threads is not None, "nn.DataParallel needs a GPU"
        threads.recorders = recorders
        try:
            yield recorders
        finally:
            threads.recorders = None

    def broadcast_statistics(self) -> None:
        if self._threads is None:
            return  # nn.DataParallel keeps only its first replica's
        for replica in self._replicas[1:]:
            for buffer, first in zip(replica.buffers(), self._model.buffers(), strict=True):
                buffer.copy_(first)

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the bytes of the gradients and of synchronised BatchNorm's sums."""
        payload = step_payload_bytes(self._spec, self._architecture)
        statistics = statistics_payload_bytes(self._spec, self._architecture)
        sent = reduce_bytes(payload + statistics, self._spec.replicas)
        # Twin: threads share the weights; nn.DataParallel sends them out again. A strategy's replicas form a ring.
        return {"bytes_per_step": sent if self._threads else 2.0 * sent}

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> ComputeAndExchange | str:
        """Return a step without the exchange of gradients, and that exchange; or why they cannot be separated."""
        if statistics_payload_bytes(self._spec, self._architecture):
            return "BatchNorm's statistics are exchanged within forward and backward"
        if self._threads is None:
            return "nn.DataParallel computes and sends in one"
        threads, (images, labels, masks) = self._threads, self._to_device(batch)
        gradients_by_replica: list[list[torch.Tensor]] = []

        def timed_gradients(rank: int) -> tuple[float, list[torch.Tensor]]:
            start = time.perf_counter()
            _, _, gradients = self._gradients(rank, images, labels, masks, self._update(num_examples, 0.0))
            return time.perf_counter() - start, gradients

        def compute() -> list[float]:
            nonlocal gradients_by_replica
            seconds, gradients_by_replica = map(list, zip(*threads.run(timed_gradients), strict=True))
            start = time.perf_counter()
            self._optimizer.apply(gradients_by_replica[0], 0.0, self._step)
            update_seconds = time.perf_counter() - start
            return [replica_seconds + update_seconds for replica_seconds in seconds]

        def exchange() -> None:
            self._exchange(gradients_by_replica)

        return ComputeAndExchange(compute, exchange)

    def step_breakdown(self, batch: Batch, num_examples: int) -> StepBreakdown | str:
        """Return the replicas' forward pass, backward pass and update, or why they cannot be called one by one."""
        if self._threads is None:
            return "nn.DataParallel sends within forward and backward"
        breakdown, threads = self._break_down(self._model, batch, num_examples), self._threads
        if isinstance(breakdown, str):
            return breakdown
        replicas: list[Any] = []
        for rank, replica in enumerate(self._replicas):
            shard_slice = self._shard_of(rank, batch.labels)
            replica_batch = Batch(
                batch.ids[shard_slice],
                batch.images[shard_slice],
                batch.labels[shard_slice],
                tuple(mask[shard_slice] for mask in batch.masks),
            )
            replicas.append(self._break_down(replica, replica_batch, num_examples))

        def forward() -> None:
            threads.run(lambda rank: replicas[rank].forward())

        def backward() -> None:
            threads.run(lambda rank: replicas[rank].backward())

        return breakdown._replace(forward=forward, backward=backward)


class _Threads:
    """One thread for each replica. Inside a step they sum tensors, for synchronised BatchNorm."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._barrier = threading.Barrier(replicas)
        self._parts: list[torch.Tensor | None] = [None] * replicas
        self._thread_local = threading.local()
        self.recorders: Sequence[DecisionRecorder] | None = None
        self._pool = ThreadPoolExecutor(
            replicas, "replica", initializer=torch.set_num_threads, initargs=(max(torch.get_num_threads(), 1),)
        )

    def run(self, work: Any) -> list[Any]:
        """Run work(rank) in every thread at once. If one fails, no other waits for it."""

        def run_rank(rank: int) -> Any:
            self._thread_local.rank = rank
            try:
                with self.recorders[rank] if self.recorders else nullcontext():  # a recorder sees its own thread alone
                    return work(rank)
            except threading.BrokenBarrierError:
                raise
            except BaseException:
                self._barrier.abort()
                raise

        futures = [self._pool.submit(run_rank, rank) for rank in range(self._replicas)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            self._barrier.reset()
            raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
        return [future.result() for future in futures]

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        self._parts[self._thread_local.rank] = tensor
        self._barrier.wait()
        total = torch.stack([part for part in self._parts if part is not None]).sum(0)
        self._barrier.wait()  # no thread overwrites a part before all have read it
        return total
