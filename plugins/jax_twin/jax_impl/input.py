"""Input: the batches of a plan, augmented with draws that all twins share.

Twin: JAX has no input library. Batches are gathered and augmented by NumPy, in the training thread or in threads ahead of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from common.data import chunks
from common.data.batches import BatchPlan, EpochDraws, Feed
from common.data.sources import DatasetSplit
from common.models.input_scaling import InputScaling
from common.training.trainer import Batch


def feed(plan: BatchPlan, split: DatasetSplit, world_size: int, rank: int) -> Feed[Batch]:
    """Build a feed of this process's shard of global batches.

    Input `inline` prepares each batch when it is asked for. Input `workers` prepares batches ahead. Their order does not depend
    on the number of workers.
    """
    gathered = chunks.feed(plan, split, world_size, rank) if plan.spec.input == "dask" else None
    pool = ThreadPoolExecutor(plan.spec.workers, "input") if plan.spec.input == "workers" else None

    def start(epoch: int, steps: Sequence[int]) -> Iterator[Batch]:
        draws, bounds = plan.draw(epoch), plan.bounds(epoch, world_size, rank)
        images = None if gathered is None else gathered(epoch, steps)

        def make(step: int) -> Batch:
            begin_time, (low, high) = time.time(), bounds[step]
            # Files of a streamed split are decoded where its images are indexed.
            batch_images = split.images[draws.ids[low:high]] if images is None else next(images)
            return load(batch_images, split.labels, draws, low, high)._replace(begin_time=begin_time)

        if pool is None:
            yield from map(make, steps)
            return
        jobs = (pool.submit(make, step) for step in steps)
        waiting = deque(islice(jobs, plan.spec.batches_ahead))
        while waiting:
            batch = waiting.popleft().result()
            waiting.extend(islice(jobs, 1))
            yield batch

    return start


def load(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], draws: EpochDraws, start: int, stop: int) -> Batch:
    """Augment the examples at some positions of an epoch's order."""
    batch_draws = draws.map(lambda values: values[start:stop])
    return Batch(
        ids=batch_draws.ids, images=augment(images, batch_draws), labels=labels[batch_draws.ids], masks=unpack(batch_draws)
    )


def unpack(draws: EpochDraws) -> tuple[npt.NDArray[np.bool_], ...]:
    """Unpack the masks of some draws: one bool [N, units] for each dropout."""
    return tuple(
        np.unpackbits(bits, axis=1, count=units, bitorder="little").astype(bool)
        for bits, units in zip(draws.masks, draws.mask_units, strict=True)
    )


def augment(images: npt.NDArray[np.uint8], draws: EpochDraws) -> npt.NDArray[np.uint8]:
    """Augment each image with its own draws. Shifts move whole pixels; affine maps sample four pixels bilinearly."""
    if draws.flips is not None:
        images = np.where(draws.flips[:, None, None, None], images[:, :, ::-1], images)
    if draws.shifts is not None:
        images = shift(images, draws.shifts)
    if draws.affines is None and draws.brightness is None:
        return np.ascontiguousarray(images)
    values = images.astype(np.float64) if draws.affines is None else sample(images, draws.affines)
    if draws.brightness is not None:
        values = values * draws.brightness[:, None, None, None]
    return np.clip(np.round(values), 0.0, 255.0).astype(np.uint8)


def shift(images: npt.NDArray[np.uint8], shifts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Shift each image: out[i, j] = image[i + rows, j + columns], and 0 outside the image."""
    n, height, width, _ = images.shape
    rows, columns = np.arange(height) + shifts[:, :1], np.arange(width) + shifts[:, 1:]
    return _pixels(images, rows[:, :, None], columns[:, None, :], np.arange(n)[:, None, None])


def sample(images: npt.NDArray[np.uint8], affines: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Sample images at the points of affine maps, from the four pixels around each point. Pixels outside are 0."""
    n, height, width, _ = images.shape
    row, column = np.arange(height, dtype=np.float64)[:, None], np.arange(width, dtype=np.float64)
    entry = affines[:, :, :, None, None]
    rows = entry[:, 0, 0] * row + entry[:, 0, 1] * column + entry[:, 0, 2]
    columns = entry[:, 1, 0] * row + entry[:, 1, 1] * column + entry[:, 1, 2]
    top, left = np.floor(rows), np.floor(columns)
    v, u = (rows - top)[..., None], (columns - left)[..., None]

    def tap(down: int, right: int) -> npt.NDArray[np.uint8]:
        i, j = top.astype(np.int64) + down, left.astype(np.int64) + right
        return _pixels(images, i, j, np.arange(n)[:, None, None])

    upper = (1.0 - u) * tap(0, 0) + u * tap(0, 1)
    lower = (1.0 - u) * tap(1, 0) + u * tap(1, 1)
    return (1.0 - v) * upper + v * lower


def scale(images: Any, precision: str, scaling: InputScaling) -> jax.Array:
    """Map uint8 [N, H, W, 3] to the model's input: one multiplication, and one addition if there is an offset."""
    values = jnp.asarray(images).astype(precision) * jnp.array(scaling.factor, precision)
    return values if scaling.offset is None else values + jnp.array(scaling.offset, precision)


def _pixels(images: npt.NDArray[np.uint8], rows: Any, columns: Any, image: Any) -> npt.NDArray[np.uint8]:
    """Return the pixels at some rows and columns of each image, 0 outside."""
    height, width = images.shape[1:3]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return images[image, rows.clip(0, height - 1), columns.clip(0, width - 1)] * inside[..., None]
