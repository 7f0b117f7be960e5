"""From the data set to the model: the batches of a plan, augmented by shared draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import tensorflow as tf

from common.batches import Epoch, Plan
from common.datasets import Split
from common.training import Batch


def batches(plan: Plan, split: Split, world_size: int, rank: int) -> Iterator[Batch]:
    """This process's shard of every global batch of a run, in order.

    `inline` makes each batch when it is asked for, in the training thread; `workers` makes them ahead, in the order
    asked for, whatever the number of workers.
    """
    with tf.device("CPU:0"):
        images, labels = tf.constant(split.images), tf.constant(split.labels)
        # Twin: variables hold the epoch's draws, so that one pipeline, traced once, serves every epoch.
        drawn = _map(tf.Variable, plan.draw(1))
        bounds = tf.constant(plan.bounds(1, world_size, rank), tf.int64)
        workers = plan.spec.workers
        dataset = tf.data.Dataset.from_tensor_slices(bounds).map(
            lambda bound: load(images, labels, _map(tf.convert_to_tensor, drawn), bound[0], bound[1]),
            num_parallel_calls=workers or None,
            deterministic=True if workers else None,
        )
        if workers:
            dataset = dataset.prefetch(2 * workers)
        options = tf.data.Options()
        options.autotune.enabled = False
        options.threading.private_threadpool_size = max(workers, 1)
        dataset = dataset.with_options(options)
    return _epochs(plan, drawn, dataset)


def load(images: tf.Tensor, labels: tf.Tensor, drawn: Epoch, start: tf.Tensor, stop: tf.Tensor) -> Batch:
    """The examples at these positions of an epoch's order, augmented.

    Returns:
        ids: int64 [N]; images: uint8 [N, H, W, 3]; labels: int64 [N]; masks: one bool [N, units] a dropout.
    """
    ids = drawn.ids[start:stop]
    return Batch(
        ids=ids,
        images=augment(
            tf.gather(images, ids),
            None if drawn.flips is None else drawn.flips[start:stop],
            None if drawn.shifts is None else drawn.shifts[start:stop],
        ),
        labels=tf.gather(labels, ids),
        masks=tuple(mask[start:stop] for mask in drawn.masks),
    )


def augment(images: tf.Tensor, flips: tf.Tensor | None, shifts: tf.Tensor | None) -> tf.Tensor:
    """Mirror and shift each image by its own draws; out[i, j] = mirrored[i + rows, j + columns], zero outside.

    Args:
        images: uint8 [N, H, W, 3].
        flips: bool [N], or None.
        shifts: int64 [N, 2], (rows, columns) in pixels, or None.

    Returns:
        uint8 [N, H, W, 3].
    """
    if flips is not None:
        images = tf.where(flips[:, None, None, None], images[:, :, ::-1], images)
    if shifts is None:
        return images
    height, width = cast(tuple[int, int], tuple(images.shape[1:3]))
    rows = tf.range(height, dtype=tf.int64) + shifts[:, :1]
    columns = tf.range(width, dtype=tf.int64) + shifts[:, 1:]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    moved = tf.gather(images, tf.clip_by_value(rows, 0, height - 1), axis=1, batch_dims=1)
    # Twin: gathers along one axis at a time; torch indexes both at once.
    moved = tf.gather(tf.transpose(moved, (0, 2, 1, 3)), tf.clip_by_value(columns, 0, width - 1), axis=1, batch_dims=1)
    return tf.transpose(moved, (0, 2, 1, 3)) * tf.cast(inside, images.dtype)[..., None]


def scale(images: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """uint8 [N, H, W, 3] in 0..255 to the model's input in 0..1, by one multiplication in its precision."""
    return tf.cast(images, dtype) * tf.constant(1.0 / 255.0, dtype)


def _epochs(plan: Plan, drawn: Epoch, dataset: tf.data.Dataset) -> Iterator[Batch]:
    for epoch in range(1, plan.epochs + 1):
        with tf.device("CPU:0"):
            if epoch > 1:
                _assign(drawn, plan.draw(epoch))
            batches = iter(dataset.take(plan.steps_in(epoch)))
        # Outside of the scope: what is yielded inside of it is trained on inside of it, on the CPU.
        yield from batches


def _map(function: Callable[[Any], Any], drawn: Epoch) -> Epoch:
    return Epoch(
        ids=function(drawn.ids),
        flips=None if drawn.flips is None else function(drawn.flips),
        shifts=None if drawn.shifts is None else function(drawn.shifts),
        masks=tuple(function(mask) for mask in drawn.masks),
    )


def _assign(drawn: Epoch, values: Epoch) -> None:
    pairs = [(drawn.ids, values.ids), (drawn.flips, values.flips), (drawn.shifts, values.shifts)]
    for variable, value in (*pairs, *zip(drawn.masks, values.masks, strict=True)):
        if variable is not None:
            variable.assign(value)
