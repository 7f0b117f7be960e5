"""Memory that a process shares with its input workers. They write their batches into it, again and again."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from multiprocessing import reduction
from typing import Any

import torch

from common.training.trainer import Batch

MARGIN = 2
"""Slots of a worker beyond those of the batches that it makes ahead: a batch in use, and the one before it."""


class Slots:
    """So many places for the images of each worker's batches.

    A tensor that a worker sends otherwise gets fresh shared memory, which the system zeroes and maps page by page, in the
    worker and here.

    Args:
        workers: their number.
        prefetch: batches that each makes ahead.
        shape: of a whole batch's images, uint8 [N, H, W, 3].

    Raises:
        OSError: there is no room, or a limit on the size of files.
    """

    def __init__(self, workers: int, prefetch: int, shape: tuple[int, ...]) -> None:
        size = (workers, prefetch + MARGIN, *shape)
        self._open(_descriptor(torch.Size(size).numel()), size)

    def put(self, worker: int, batch: Batch) -> Batch:
        """Write a batch into this worker's next slot. What is sent then says where its images are, and holds no tensor."""
        number = len(batch.images)
        place = worker, self._next, number
        self._all[worker, self._next, :number] = batch.images
        self._next = (self._next + 1) % self._all.shape[1]
        masks = tuple(mask.numpy() for mask in batch.masks)
        return batch._replace(images=place, ids=batch.ids.numpy(), labels=batch.labels.numpy(), masks=masks)

    def taken(self, sent: Batch) -> Batch:
        """The batch that was sent. Its images are overwritten once the batch after the next one is asked for."""
        if torch.is_tensor(sent.images):
            return sent
        worker, place, number = sent.images
        masks = tuple(map(torch.from_numpy, sent.masks))
        ids, labels = torch.from_numpy(sent.ids), torch.from_numpy(sent.labels)
        return sent._replace(images=self._all[worker, place, :number], ids=ids, labels=labels, masks=masks)

    def _open(self, descriptor: int, size: tuple[int, ...]) -> None:
        self._descriptor, self._next = descriptor, 0
        weakref.finalize(self, os.close, descriptor)
        self._all = torch.frombuffer(mmap.mmap(descriptor, torch.Size(size).numel()), dtype=torch.uint8).view(size)

    def __getstate__(self) -> dict[str, Any]:
        return {"descriptor": reduction.DupFd(self._descriptor), "size": tuple(self._all.shape)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(state["descriptor"].detach(), state["size"])


def _descriptor(size: int) -> int:
    """It names memory, or a file without a name on systems that have none. /dev/shm may be too small."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("batches")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
