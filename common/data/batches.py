"""The order of training examples and the draws for augmentation and dropout. They are equal for both twins.

Step s of epoch e trains on the same examples in the same order, with the same flips, shifts and dropout masks. They depend on
the seed alone: not on the framework, the mode, the number of replicas or of input workers.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from common.data import partitions
from common.data.preprocessing import affine
from common.models.architectures import Architecture, Dropout
from common.models.input_scaling import InputScaling
from common.models.sharding import shard
from common.spec import Spec, SpecError

_MASK_CHUNK_VALUES = 2**20
_B = TypeVar("_B")

Feed = Callable[[int, Sequence[int]], Iterator[_B]]
"""Feeds the training: `feed(epoch, steps)` gives the batches of these steps of an epoch, from 0, in order.

One rule holds for every input of both frameworks. The queue starts empty when its first batch is asked for, which is on the
clock. It makes the batches of these steps and no others. Workers live from one call to the next. So no timed batch is free.

Batches of the first call may be kept. Those of later calls may be overwritten once the batch after the next one is asked for.
Each call is read to its end, or is the last one.
"""


class _Stream(IntEnum):
    """Purpose of a random stream. The numbers are part of every stored order and never change."""

    ORDER = 1
    FLIP = 2
    SHIFT = 3
    DROPOUT = 4
    ROTATION = 5
    SHEAR = 6
    ZOOM = 7
    BRIGHTNESS = 8
    PARTITION = 9


@dataclass(frozen=True)
class EpochDraws:
    """All draws of one epoch, by position in its order, as arrays or a framework's tensors.

    Attributes:
        ids: int64 [N], indices into the training split.
        flips: bool [N], mirror left to right. None if the run does not flip, or if affines hold the flips.
        shifts: int64 [N, 2], offsets (rows, columns) of the pixels in the source. None if the run does not
            shift, or if affines hold the shifts.
        affines: float64 [N, 2, 3], from (row, column, 1) of an output pixel to the source's (row, column). None if the run
            neither rotates nor shears nor zooms.
        brightness: float64 [N], factors on the pixels. None if the run does not change the brightness.
        masks: uint8 [N, ceil(units / 8)] for each dropout of the architecture. A bit is set if its value is kept, lowest bit of
            a byte first. Bools would take more memory than the rest of an image's draws. Batches have them as bools.
        mask_units: number of units of each mask.
    """

    ids: Any
    flips: Any | None
    shifts: Any | None
    affines: Any | None
    brightness: Any | None
    masks: tuple[Any, ...]
    mask_units: tuple[int, ...]

    def map(self, function: Callable[[Any], Any]) -> EpochDraws:
        """Return these draws with `function` applied to each array."""

        def apply(values: Any | None) -> Any | None:
            return None if values is None else function(values)

        return EpochDraws(
            ids=function(self.ids),
            flips=apply(self.flips),
            shifts=apply(self.shifts),
            affines=apply(self.affines),
            brightness=apply(self.brightness),
            masks=tuple(map(function, self.masks)),
            mask_units=self.mask_units,
        )

    def arrays(self) -> tuple[Any, ...]:
        """Return all arrays of the draws, in a fixed order. Arrays that a run does not have are left out."""
        optional = (self.flips, self.shifts, self.affines, self.brightness)
        return (self.ids, *(values for values in optional if values is not None), *self.masks)


@dataclass(frozen=True)
class BatchPlan:
    """All batches of a run, known before it starts."""

    spec: Spec
    architecture: Architecture
    num_examples: int
    reverse_batches: bool = False
    """Whether each batch is reversed: the same mathematics summed in another order, as a yardstick of rounding."""
    scaling: InputScaling = field(default_factory=InputScaling)
    """Scaling from the bytes of a batch to the model's input."""

    labels: npt.NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    """Class ids, [num_examples]. Only `dask.partition: class_skew` needs them, to draw a batch. None: they are not known."""

    def __post_init__(self) -> None:
        last = self.num_examples % self.spec.global_batch_size or self.spec.global_batch_size
        if last < self.spec.data_replicas:
            raise SpecError(
                f"global_batch_size leaves a last batch of {last} of {self.num_examples} training examples, fewer than "
                f"replicas. Received: global_batch_size {self.spec.global_batch_size}, replicas {self.spec.data_replicas}. "
                "Change global_batch_size or data.limit."
            )
        if self.owners > 1 and (self.labels is not None or self.spec.dask.partition != "class_skew"):
            step, owner = (int(indices[0]) if len(indices) else -1 for indices in np.nonzero(np.diff(self._owner_bounds) == 0))
            if owner >= 0:
                raise SpecError(
                    f"dask.partition leaves part {owner} of {self.owners} without an example in step {step + 1} of an epoch. "
                    f"Received: {self.spec.dask.partition} with seed {self.spec.seed}, {len(self.owned[owner])} of "
                    f"{self.num_examples} examples in this part, global_batch_size {self.spec.global_batch_size}. "
                    "Use larger batches, parts of more equal size (dask.skew, dask.speeds), or another data.limit."
                )

    @property
    def owners(self) -> int:
        """Number of processes that own a fixed part of the examples. 1: no fixed ownership."""
        fixed = self.spec.input == "dask" and self.spec.dask.order == "owned"
        return (self.spec.dask.owners or 1) if fixed else 1

    @cached_property
    def owned(self) -> list[npt.NDArray[np.int64]]:
        """Ids of the examples of each owner, ascending."""
        generator, labels = self._generator(_Stream.PARTITION, 0), self.labels
        if labels is None:
            if self.spec.dask.partition == "class_skew":
                raise ValueError("a plan with dask.partition class_skew needs the labels")
            labels = np.zeros(self.num_examples, np.int64)
        return partitions.partition(self.spec.dask, self.owners, labels, generator)

    @cached_property
    def _owner_at(self) -> npt.NDArray[np.int64]:
        """Owner of each position of an epoch, [num_examples]."""
        return partitions.owners_of_positions([len(ids) for ids in self.owned], self.spec.global_batch_size)

    @cached_property
    def _owner_bounds(self) -> npt.NDArray[np.int64]:
        """Bounds of each owner's positions in the batches of a whole epoch, [steps_per_epoch, owners + 1]."""
        size = self.spec.global_batch_size
        counts = np.zeros((self.steps_per_epoch, self.owners), np.int64)
        np.add.at(counts, (np.arange(self.num_examples) // size, self._owner_at), 1)
        starts = np.arange(self.steps_per_epoch)[:, None] * size
        return starts + np.pad(np.cumsum(counts, axis=1), ((0, 0), (1, 0)))

    def weight(self, world_size: int, rank: int) -> float:
        """Return the weight of one process in an average over all: its number of examples over the mean of all processes."""
        return len(self.owned[rank]) * world_size / self.num_examples if self.owners == world_size > 1 else 1.0

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.num_examples // self.spec.global_batch_size)

    @property
    def total_steps(self) -> int:
        return self.spec.steps if self.spec.steps is not None else self.steps_per_epoch * (self.spec.epochs or 0)

    @property
    def epochs(self) -> int:
        return -(-self.total_steps // self.steps_per_epoch)

    def steps_in(self, epoch: int) -> int:
        """Return the number of steps of an epoch. Epochs count from 1. `steps` may shorten the last."""
        return min(self.steps_per_epoch, self.total_steps - (epoch - 1) * self.steps_per_epoch)

    def ends_epoch(self, step: int) -> bool:
        """Return whether an update is the last of its epoch or of the run. Updates count from 1."""
        return step % self.steps_per_epoch == 0 or step == self.total_steps

    def learning_rate(self, step: int) -> float:
        return self.spec.learning_rate(step, self.steps_per_epoch, self.total_steps)

    def batch(self, step_in_epoch: int) -> tuple[int, int]:
        """Return the positions of one global batch: [start, stop)."""
        start = step_in_epoch * self.spec.global_batch_size
        return start, min(start + self.spec.global_batch_size, self.num_examples)

    def bounds(self, epoch: int, world_size: int, rank: int) -> list[tuple[int, int]]:
        """Return the positions of one process in each step of an epoch: its shard of the global batch."""
        ranges: list[tuple[int, int]] = []
        if self.owners == world_size > 1:
            owner_bounds = self._owner_bounds[: self.steps_in(epoch), rank : rank + 2]
            return [(start, stop) for start, stop in owner_bounds.tolist()]
        for step in range(self.steps_in(epoch)):
            start, stop = self.batch(step)
            low, high = shard(stop - start, world_size, rank)
            ranges.append((start + low, start + high))
        return ranges

    def local_batch_sizes(self, size: int, world_size: int) -> list[tuple[int, ...]]:
        """Return the numbers of examples of each process, by rank, in the global batches of a size.

        The tuples cover all numbers of each process, not each combination in a batch. The list is as short as that allows, and
        equal for all processes: they may run one collective for each of its items.
        """
        if self.owners == world_size > 1:
            batches = [self.batch(step) for step in range(self.steps_per_epoch)]
            local_sizes = np.diff(self._owner_bounds)[[stop - start == size for start, stop in batches]]
            numbers = [sorted(set(column.tolist()), reverse=True) for column in local_sizes.T]
            length = max(map(len, numbers))
            return [tuple(column[min(index, len(column) - 1)] for column in numbers) for index in range(length)]
        return [tuple(high - low for low, high in (shard(size, world_size, rank) for rank in range(world_size)))]

    def draw(self, epoch: int) -> EpochDraws:
        """Draw an epoch. Epochs count from 1."""
        augmentation, n = self.spec.augmentation, self.num_examples
        limit = augmentation.shift_px
        flips = self._generator(_Stream.FLIP, epoch).random(n) < 0.5 if augmentation.horizontal_flip else None
        shifts = self._generator(_Stream.SHIFT, epoch).integers(-limit, limit + 1, (n, 2)) if limit else None
        affines = None
        if augmentation.rotation_degrees or augmentation.shear_degrees or augmentation.zoom:
            affines = affine.matrices(
                self.architecture.image_size,
                rotation_degrees=self._uniform(_Stream.ROTATION, epoch, augmentation.rotation_degrees),
                shear_degrees=self._uniform(_Stream.SHEAR, epoch, augmentation.shear_degrees),
                zoom=1.0 + self._uniform(_Stream.ZOOM, epoch, augmentation.zoom),
                flips=np.zeros(n, np.bool_) if flips is None else flips,
                shifts=np.zeros((n, 2), np.int64) if shifts is None else shifts,
            )
            flips = shifts = None
        brightness = None
        if augmentation.brightness:
            brightness = 1.0 + self._uniform(_Stream.BRIGHTNESS, epoch, augmentation.brightness)
        draws = EpochDraws(
            ids=self._order(self._generator(_Stream.ORDER, epoch)),
            flips=flips,
            shifts=shifts,
            affines=affines,
            brightness=brightness,
            masks=tuple(
                _keep_mask(self._generator(_Stream.DROPOUT, epoch, index), n, dropout)
                for index, dropout in enumerate(self.architecture.dropouts)
            ),
            mask_units=tuple(dropout.units for dropout in self.architecture.dropouts),
        )
        return self._reverse_batches(draws) if self.reverse_batches else draws

    def _order(self, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        dask, n = self.spec.dask, self.num_examples
        if self.spec.input != "dask" or dask.order == "global":
            return generator.permutation(n).astype(np.int64, copy=False)
        if dask.order == "owned":
            order = np.empty(n, np.int64)
            for owner, ids in enumerate(self.owned):
                order[self._owner_at == owner] = generator.permutation(ids)
            return order
        starts = generator.permutation(np.arange(0, n, dask.chunk_images))
        chunks = [generator.permutation(np.arange(start, min(start + dask.chunk_images, n))) for start in starts]
        return np.concatenate(chunks).astype(np.int64)

    def _reverse_batches(self, epoch: EpochDraws) -> EpochDraws:
        positions = np.concatenate([np.arange(*self.batch(step))[::-1] for step in range(self.steps_per_epoch)])
        return epoch.map(lambda values: values[positions])

    def _uniform(self, stream: _Stream, epoch: int, limit: float) -> npt.NDArray[np.float64]:
        return self._generator(stream, epoch).uniform(-limit, limit, self.num_examples)

    def _generator(self, stream: _Stream, epoch: int, index: int = 0) -> np.random.Generator:
        key = np.array([self.spec.seed, (stream << 56) | (index << 40) | epoch], np.uint64)
        return np.random.Generator(np.random.Philox(key=key))


def _keep_mask(generator: np.random.Generator, n: int, dropout: Dropout) -> npt.NDArray[np.uint8]:
    """Draw a mask as in EpochDraws, in chunks. Drawing all images at once gives the same bits and takes 32 times the memory."""
    mask = np.empty((n, -(-dropout.units // 8)), np.uint8)
    rows = max(_MASK_CHUNK_VALUES // dropout.units, 1)
    for start in range(0, n, rows):
        values = generator.random((min(rows, n - start), dropout.units), np.float32)
        mask[start : start + rows] = np.packbits(values >= dropout.rate, axis=1, bitorder="little")
    return mask


def all_batches(plan: BatchPlan, feed: Feed[_B], first_epoch: int = 1) -> Iterator[_B]:
    """Yield the batches of all steps of a run, starting at an epoch, in the same way as in a timed run."""
    if plan.spec.input == "workers":
        deque(feed(first_epoch, [0] * plan.spec.workers), maxlen=0)  # of the first call, which a run does not time
    for epoch in range(first_epoch, plan.epochs + 1):
        yield from feed(epoch, range(plan.steps_in(epoch)))


def order_digest(ids: npt.NDArray[np.int64]) -> str:
    """Return the SHA-256 of example ids in training order."""
    return hashlib.sha256(np.ascontiguousarray(ids, "<i8").data).hexdigest()
