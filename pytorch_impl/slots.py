"""Memory that a process shares with its input workers. They write their batches into it and reuse it."""

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
"""Number of slots of a worker beyond those of prefetched batches: for a batch in use, and the one before it."""


class Slots:
    """Slots in shared memory for the images of each worker's batches.

    A tensor that a worker sends otherwise gets fresh shared memory, which the system zeroes and maps page by page, in the
    worker and here.

    Args:
        workers: number of workers.
        prefetch: number of batches that each worker prepares ahead.
        shape: shape of a whole batch's images, uint8 [N, H, W, 3].

    Raises:
        OSError: there is no room, or a limit on the size of files.
    """

    def __init__(self, workers: int, prefetch: int, shape: tuple[int, ...]) -> None:
        shape_of_slots = (workers, prefetch + MARGIN, *shape)
        self._open(_descriptor(torch.Size(shape_of_slots).numel()), shape_of_slots)

    def put(self, worker: int, batch: Batch) -> Batch:
        """Write a batch into this worker's next slot. Returns a batch to send, with the slot's position and without tensors."""
        number = len(batch.images)
        place = worker, self._next_slot, number
        self._images[worker, self._next_slot, :number] = batch.images
        self._next_slot = (self._next_slot + 1) % self._images.shape[1]
        masks = tuple(mask.numpy() for mask in batch.masks)
        return batch._replace(images=place, labels=batch.labels.numpy(), masks=masks)

    def get(self, sent: Batch) -> Batch:
        """Return the batch of a sent one. Its images are overwritten when the batch after the next one is requested."""
        if torch.is_tensor(sent.images):
            return sent
        worker, place, number = sent.images
        masks = tuple(map(torch.from_numpy, sent.masks))
        labels = torch.from_numpy(sent.labels)
        return sent._replace(images=self._images[worker, place, :number], labels=labels, masks=masks)

    def _open(self, descriptor: int, size: tuple[int, ...]) -> None:
        self._descriptor, self._next_slot = descriptor, 0
        weakref.finalize(self, os.close, descriptor)
        self._images = torch.frombuffer(mmap.mmap(descriptor, torch.Size(size).numel()), dtype=torch.uint8).view(size)

    def __getstate__(self) -> dict[str, Any]:
        return {"descriptor": reduction.DupFd(self._descriptor), "size": tuple(self._images.shape)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(state["descriptor"].detach(), state["size"])


def _descriptor(size: int) -> int:
    """Create anonymous memory, or an unnamed file on systems without it. /dev/shm may be too small."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("batches")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
