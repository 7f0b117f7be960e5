"""Input: the batches of a plan, augmented with draws that both twins share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import Dataset as TorchDataset

from common.data import chunks, mapped
from common.data.batches import BatchPlan, EpochDraws, Feed
from common.data.sources import DatasetSplit
from common.machine import worker_processes
from common.models.input_scaling import InputScaling
from common.spec import Spec
from common.training.trainer import Batch
from pytorch_impl import device, switches
from pytorch_impl.slots import Slots

_Position = tuple[int, int, int, bool]
"""(epoch, first position, position after the last, whether a worker may write the batch into a slot)."""
Take = Callable[[npt.NDArray[np.int64]], torch.Tensor]


def feed(
    plan: BatchPlan,
    split: DatasetSplit,
    world_size: int,
    rank: int,
    switch_values: dict[str, Any] | None = None,
    stats: chunks.TransferStats | None = None,
) -> Feed[Batch]:
    """Build a feed of this process's shard of global batches.

    Input `inline` prepares each batch when it is asked for. Input `workers` prepares batches ahead. Their order does not depend
    on the number of workers.

    Args:
        world_size: number of shards of every global batch.
        rank: number of this process's shard.
        switch_values: the run's resolved switches; None: batches are prepared on the host, in its usual memory.
        stats: see `common.data.chunks.feed`.
    """
    switch_values = switch_values or {}
    if switch_values.get("data_on") == "device":
        return resident(plan, split, world_size, rank, device.kind())
    source, positions = _PlanDataset(plan, split), list[_Position]()

    def positions_of(epoch: int, steps: Sequence[int], in_slots: bool = False) -> list[_Position]:
        bounds = plan.bounds(epoch, world_size, rank)
        return [(epoch, *bounds[step], in_slots) for step in steps]

    if plan.spec.input != "workers":
        gathered = chunks.feed(plan, split, world_size, rank, stats) if plan.spec.input == "dask" else None

        def inline(epoch: int, steps: Sequence[int]) -> Iterator[Batch]:
            if gathered is not None:
                images = gathered(epoch, steps)
                source.take = lambda ids: torch.from_numpy(np.require(next(images), requirements="W"))
            yield from map(source.__getitem__, positions_of(epoch, steps))

        return inline
    worker_processes.check_worker_processes()  # Twin: torch's workers are processes.
    pinned = switch_values.get("pinned_memory", False)
    if not pinned:  # a thread of torch pins tensors
        max_examples = max(stop - start for start, stop in plan.bounds(1, world_size, rank))
        shape = max_examples, plan.architecture.image_size, plan.architecture.image_size, 3
        # Twin: workers of TensorFlow are threads, which hand a batch over as it is.
        with contextlib.suppress(OSError):  # without slots, batches take torch's way too
            source.slots = Slots(plan.spec.workers, plan.spec.prefetch, shape)
    loader = DataLoader(
        source,
        sampler=positions,  # pyright: ignore[reportArgumentType]  any iterable serves
        persistent_workers=True,
        batch_size=None,
        num_workers=plan.spec.workers,
        prefetch_factor=plan.spec.prefetch,
        # Twin: torch's input workers are processes. They are spawned, because a fork would copy the framework's thread pools.
        multiprocessing_context="spawn",
        worker_init_fn=partial(_begin_worker, plan.spec),
        pin_memory=pinned,
        collate_fn=cast(Any, _identity),
    )
    has_started = False

    def start(epoch: int, steps: Sequence[int]) -> Iterator[Batch]:
        nonlocal has_started
        # Batches of the first call stay as they are, for they may be kept.
        positions[:] = positions_of(epoch, steps, has_started and source.slots is not None)
        has_started = True
        for sent in loader:
            batch = source.slots.get(sent) if source.slots else sent
            yield batch._replace(ids=torch.from_numpy(batch.ids))

    return start


def resident(plan: BatchPlan, split: DatasetSplit, world_size: int, rank: int, where: str) -> Feed[Batch]:
    """Build a feed like `feed` that gathers and augments on a device which holds all images. Ids stay on the host.

    Args:
        split: the training split, decoded.
        world_size: number of shards of every global batch.
        rank: number of this process's shard.
    """
    images, labels = (torch.from_numpy(np.array(array)).to(where) for array in (split.images, split.labels))

    def start(epoch: int, steps: Sequence[int]) -> Iterator[Batch]:
        draws, bounds = plan.draw(epoch), plan.bounds(epoch, world_size, rank)
        device_draws = draws.map(lambda values: torch.from_numpy(values).to(where))
        for step in steps:
            begin_time, part = time.time(), slice(*bounds[step])
            batch_draws = device_draws.map(lambda values, part=part: values[part])
            ids = torch.from_numpy(draws.ids[part])
            yield Batch(
                ids, augment(images[batch_draws.ids], batch_draws), labels[batch_draws.ids], unpack(batch_draws), begin_time
            )

    return start


def _identity(batch: Batch) -> Batch:
    return batch


def _begin_worker(spec: Spec, worker: int) -> None:
    switches.prepare(spec)


def reader(split: DatasetSplit, image_size: int) -> Take:
    """Return a function from int64 [N] ids to uint8 [N, image_size, image_size, 3]. It reads pixels, or decodes files."""
    encoded = split.encoded
    if encoded is None:
        return lambda ids: torch.from_numpy(split.images[ids])
    # Twin: the decoder is torchvision's, which takes as long to import as torch itself. TensorFlow's decoder is built in.
    from pytorch_impl import decode

    def take(ids: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.stack(
            [decode.image(encoded.content(index), bool(encoded.decodes_identically[index]), image_size) for index in ids]
        )

    return take


def load(take: Take, labels: npt.NDArray[np.int64], draws: EpochDraws, start: int, stop: int) -> Batch:
    """Load and augment the examples at some positions of an epoch's order.

    Args:
        take: function from ids to images, see `reader`.
        labels: int64 [N], labels of the split.
        stop: the position after the last one.

    Returns:
        ids: int64 [N]; images: uint8 [N, H, W, 3]; labels: int64 [N]; masks: one bool [N, units] for each dropout.
    """
    batch_draws = draws.map(lambda values: torch.from_numpy(values[start:stop]))
    ids = draws.ids[start:stop]
    return Batch(
        ids=batch_draws.ids,
        images=augment(take(ids), batch_draws),
        labels=torch.from_numpy(labels[ids]),
        masks=unpack(batch_draws),
    )


def unpack(draws: EpochDraws) -> tuple[torch.Tensor, ...]:
    """Unpack the masks of some draws: one bool [N, units] for each dropout."""

    def bools(bits: torch.Tensor, units: int) -> torch.Tensor:
        places = torch.arange(8, dtype=torch.uint8, device=bits.device)
        return (bits[:, :, None] >> places & 1).flatten(1)[:, :units].bool()

    return tuple(map(bools, draws.masks, draws.mask_units))


def augment(images: torch.Tensor, draws: EpochDraws) -> torch.Tensor:
    """Augment each image with its own draws. Shifts move whole pixels; affine maps sample four pixels bilinearly.

    Args:
        images: uint8 [N, H, W, 3].
        draws: flips, shifts, affine maps and brightness of these N images.

    Returns:
        uint8 [N, H, W, 3]. Sampled values are rounded half to even.
    """
    if draws.flips is not None:
        images = flip(images, draws.flips)
    if draws.shifts is not None:
        images = shift(images, draws.shifts)
    if draws.affines is None and draws.brightness is None:
        return images
    values = images.to(torch.float64) if draws.affines is None else sample(images, draws.affines)
    if draws.brightness is not None:
        values = values * draws.brightness[:, None, None, None]
    return values.round().clamp(0.0, 255.0).to(torch.uint8)


def flip(images: torch.Tensor, flips: torch.Tensor) -> torch.Tensor:
    """Mirror some images, left to right.

    Args:
        images: uint8 [N, H, W, 3].
        flips: bool [N].

    Returns:
        uint8 [N, H, W, 3].
    """
    return torch.where(flips[:, None, None, None], images.flip(2), images)


def shift(images: torch.Tensor, shifts: torch.Tensor) -> torch.Tensor:
    """Shift each image: out[i, j] = image[i + rows, j + columns], and 0 outside the image.

    Args:
        images: uint8 [N, H, W, 3].
        shifts: int64 [N, 2], (rows, columns) in pixels.

    Returns:
        uint8 [N, H, W, 3].
    """
    n, height, width, _ = images.shape
    rows = torch.arange(height, device=images.device) + shifts[:, :1]
    columns = torch.arange(width, device=images.device) + shifts[:, 1:]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    moved = images[
        torch.arange(n, device=images.device)[:, None, None],
        rows.clamp(0, height - 1)[:, :, None],
        columns.clamp(0, width - 1)[:, None, :],
    ]
    return moved * inside[..., None]


def sample(images: torch.Tensor, affines: torch.Tensor) -> torch.Tensor:
    """Sample images at the points of affine maps, from the four pixels around each point. Pixels outside are 0.

    Args:
        images: uint8 [N, H, W, 3].
        affines: float64 [N, 2, 3], see `common.data.batches.EpochDraws`.

    Returns:
        float64 [N, H, W, 3]: (1 - v) * ((1 - u) * a + u * b) + v * ((1 - u) * c + u * d). The fractions of column and row are
            u and v. The pixels a and b lie above c and d.
    """
    n, height, width, _ = images.shape
    points = {"dtype": torch.float64, "device": images.device}
    row, column = torch.arange(height, **points)[:, None], torch.arange(width, **points)
    entry = affines[:, :, :, None, None]
    rows = entry[:, 0, 0] * row + entry[:, 0, 1] * column + entry[:, 0, 2]
    columns = entry[:, 1, 0] * row + entry[:, 1, 1] * column + entry[:, 1, 2]
    top, left = rows.floor(), columns.floor()
    v, u = (rows - top)[..., None], (columns - left)[..., None]
    flat = images.reshape(n, height * width, 3)

    def tap(down: int, right: int) -> torch.Tensor:
        i, j = top.long() + down, left.long() + right
        inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
        position = (i.clamp(0, height - 1) * width + j.clamp(0, width - 1)).reshape(n, -1)
        pixels = flat[torch.arange(n, device=images.device)[:, None], position].reshape(n, height, width, 3)
        return (pixels * inside[..., None]).to(torch.float64)

    upper = (1.0 - u) * tap(0, 0) + u * tap(0, 1)
    lower = (1.0 - u) * tap(1, 0) + u * tap(1, 1)
    return (1.0 - v) * upper + v * lower


def scale(images: torch.Tensor, dtype: torch.dtype, scaling: InputScaling) -> torch.Tensor:
    """Map uint8 [N, H, W, 3] to the model's input: one multiplication, and one addition if there is an offset."""
    # Twin: torch's layers want channels first. This is a view; the model's memory format decides whether it is copied.
    values = images.permute(0, 3, 1, 2).to(dtype) * _channels(scaling.factor, dtype, images.device)
    return values if scaling.offset is None else values + _channels(scaling.offset, dtype, images.device)


@cache
def _channels(values: tuple[float, float, float], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return one value for each channel on the device. They are sent once."""
    return torch.tensor(values, dtype=dtype, device=device)[:, None, None]


class _PlanDataset(TorchDataset[Any]):
    """Dataset of the plan's batches by position, for the training thread or a loader's workers."""

    def __init__(self, plan: BatchPlan, split: DatasetSplit) -> None:
        self._plan = plan
        self._split = split
        self._epoch_draws: tuple[int, EpochDraws] | None = None
        self.slots: Slots | None = None
        self.take = reader(split, plan.architecture.image_size)

    def __getitem__(self, position: _Position) -> Batch:
        begin_time, (epoch, start, stop, in_slots) = time.time(), position
        if self._epoch_draws is None or self._epoch_draws[0] != epoch:
            self._epoch_draws = epoch, self._plan.draw(epoch)
        batch = load(self.take, self._split.labels, self._epoch_draws[1], start, stop)._replace(begin_time=begin_time)
        if (worker := get_worker_info()) is None:
            return batch
        batch = batch._replace(ids=batch.ids.numpy())  # an epoch keeps its ids: they take no shared or pinned memory
        return self.slots.put(worker.id, batch) if self.slots and in_slots else batch

    def __getstate__(self) -> dict[str, Any]:
        split = {
            "images": mapped.to_reference(self._split.images),
            "labels": self._split.labels,
            "encoded": self._split.encoded,
        }
        return {"plan": self._plan, "split": split, "slots": self.slots}

    def __setstate__(self, state: dict[str, Any]) -> None:
        split = state["split"]
        self.__init__(state["plan"], DatasetSplit(**{**split, "images": mapped.from_reference(split["images"])}))
        self.slots = state["slots"]
