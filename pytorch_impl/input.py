"""From the data set to the model: the batches of a plan, augmented by shared draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from common import machine
from common.batches import Epoch, Plan
from common.datasets import Split
from common.training import Batch

_Position = tuple[int, int, int]


def batches(plan: Plan, split: Split, world_size: int, rank: int) -> Iterator[Batch]:
    """This process's shard of every global batch of a run, in order.

    `inline` makes each batch when it is asked for, in the training thread; `workers` makes them ahead, in the order
    asked for, whatever the number of workers.
    """
    positions = [
        (epoch, start, stop) for epoch in range(1, plan.epochs + 1) for start, stop in plan.bounds(epoch, world_size, rank)
    ]
    source = _Source(plan, split)
    if plan.spec.input == "inline":
        return (source[position] for position in positions)
    loader = DataLoader(
        source,
        sampler=positions,  # pyright: ignore[reportArgumentType]  any iterable serves
        batch_size=None,
        num_workers=plan.spec.workers,
        # Twin: torch's input workers are processes; spawned, since a fork would copy the framework's thread pools.
        multiprocessing_context="spawn",
        worker_init_fn=_begin_worker,
        pin_memory=torch.cuda.is_available(),
    )
    return iter(loader)


def _begin_worker(worker: int) -> None:
    machine.keep_freed_memory()


def load(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], drawn: Epoch, start: int, stop: int) -> Batch:
    """The examples at these positions of an epoch's order, augmented.

    Returns:
        ids: int64 [N]; images: uint8 [N, H, W, 3]; labels: int64 [N]; masks: one bool [N, units] a dropout.
    """
    ids = drawn.ids[start:stop]
    return Batch(
        ids=torch.from_numpy(ids),
        images=augment(
            torch.from_numpy(images[ids]),
            None if drawn.flips is None else torch.from_numpy(drawn.flips[start:stop]),
            None if drawn.shifts is None else torch.from_numpy(drawn.shifts[start:stop]),
        ),
        labels=torch.from_numpy(labels[ids]),
        masks=tuple(torch.from_numpy(mask[start:stop]) for mask in drawn.masks),
    )


def augment(images: torch.Tensor, flips: torch.Tensor | None, shifts: torch.Tensor | None) -> torch.Tensor:
    """Mirror and shift each image by its own draws; out[i, j] = mirrored[i + rows, j + columns], zero outside.

    Args:
        images: uint8 [N, H, W, 3].
        flips: bool [N], or None.
        shifts: int64 [N, 2], (rows, columns) in pixels, or None.

    Returns:
        uint8 [N, H, W, 3].
    """
    if flips is not None:
        images = torch.where(flips[:, None, None, None], images.flip(2), images)
    if shifts is None:
        return images
    n, height, width, _ = images.shape
    rows = torch.arange(height) + shifts[:, :1]
    columns = torch.arange(width) + shifts[:, 1:]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    moved = images[
        torch.arange(n)[:, None, None], rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None, :]
    ]
    return moved * inside[..., None]


def scale(images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """uint8 [N, H, W, 3] in 0..255 to the model's input in 0..1, by one multiplication in its precision."""
    # Twin: torch's layers want channels first; this is a view, the model's memory format decides about copying.
    return images.permute(0, 3, 1, 2).to(dtype) * (1.0 / 255.0)


class _Source(TorchDataset[Any]):
    """The plan's batches by position, for the training thread or for a loader's workers."""

    def __init__(self, plan: Plan, split: Split) -> None:
        self._plan = plan
        self._split = split
        self._drawn: tuple[int, Epoch] | None = None

    def __getitem__(self, position: _Position) -> Batch:
        epoch, start, stop = position
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, self._plan.draw(epoch)
        return load(self._split.images, self._split.labels, self._drawn[1], start, stop)

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self._plan, "images": _by_reference(self._split.images), "labels": self._split.labels}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._plan = state["plan"]
        self._split = Split(images=_opened(state["images"]), labels=state["labels"])
        self._drawn = None


def _by_reference(images: npt.NDArray[np.uint8]) -> Any:
    """A memory-mapped array travels to a worker as its file's name, not as its bytes."""
    if isinstance(images, np.memmap) and images.base is not None and not isinstance(images.base, np.memmap):
        return {"filename": str(images.filename), "dtype": images.dtype.str, "offset": images.offset, "shape": images.shape}
    return images


def _opened(images: Any) -> npt.NDArray[np.uint8]:
    return np.memmap(mode="r", **images) if isinstance(images, dict) else images
