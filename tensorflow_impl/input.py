"""Input: the batches of a plan, augmented with draws that both twins share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.data import chunks
from common.data.batches import BatchPlan, EpochDraws, Feed
from common.data.decoding.images import MAX_MAPPED_BYTES
from common.data.sources import DatasetSplit
from common.models.input_scaling import InputScaling
from common.training.trainer import Batch
from tensorflow_impl import decode, device

Take = Callable[[tf.Tensor], tf.Tensor]

_WORD = np.dtype(np.int64)


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
        return resident(plan, split, world_size, rank, f"{'GPU' if device.gpus() else 'CPU'}:0")
    take = reader(split, plan.architecture.image_size)
    gathered: Feed[Any] | None = None
    images: Iterator[Any] = iter(())
    if plan.spec.input == "dask":
        gathered = chunks.feed(plan, split, world_size, rank, stats)
        take = _from_python(lambda ids: next(images), plan.architecture.image_size)
    with tf.device("CPU:0"):
        labels = tf.constant(split.labels)
        # Twin: variables hold the epoch's draws and steps, so that one pipeline, traced once, serves every epoch.
        draws = plan.draw(1).map(tf.Variable)
        batch_bounds = tf.Variable(tf.constant(plan.bounds(1, world_size, rank), tf.int64), shape=(None, 2))
        workers = plan.spec.workers if plan.spec.input == "workers" else 0
        source = tf.data.Dataset.from_tensors(0).flat_map(lambda _: tf.data.Dataset.from_tensor_slices(batch_bounds.value()))

        def make(bound: tf.Tensor) -> Batch:
            begin_time = tf.timestamp()
            with tf.control_dependencies([begin_time]):  # Twin: a graph has no other order.
                low, high = tf.unstack(tf.identity(bound))
            return load(take, labels, draws.map(tf.convert_to_tensor), low, high)._replace(begin_time=begin_time)

        # Twin: TensorFlow's pipelines are graphs too, so AutoGraph is off here as in `device.graph`.
        dataset = source.map(
            tf.autograph.experimental.do_not_convert(make),
            num_parallel_calls=workers or None,
            deterministic=True if workers else None,
        )
        if workers:
            # Twin: the parallel calls themselves hold one batch for each worker. torch's prefetch includes these.
            dataset = dataset.prefetch((plan.spec.prefetch - 1) * workers)
        options = tf.data.Options()
        options.autotune.enabled = False
        options.threading.private_threadpool_size = max(workers, 1)
        dataset = dataset.with_options(options)
    current_epoch = 1

    def start(epoch: int, steps: Sequence[int]) -> Iterator[Batch]:
        nonlocal images, current_epoch
        if gathered is not None:
            images = gathered(epoch, steps)
        bounds = plan.bounds(epoch, world_size, rank)
        with tf.device("CPU:0"):
            if epoch != current_epoch:
                for variable, values in zip(draws.arrays(), plan.draw(epoch).arrays(), strict=True):
                    variable.assign(values)
            current_epoch = epoch
            batch_bounds.assign([bounds[step] for step in steps])
            batches = iter(dataset)
        # Outside the scope. Otherwise the caller would train inside it, on the CPU.
        yield from batches

    return start


def resident(plan: BatchPlan, split: DatasetSplit, world_size: int, rank: int, where: str) -> Feed[Batch]:
    """Build a feed like `feed` that gathers and augments on a device which holds all images. Ids stay on the host.

    Args:
        split: the training split, decoded.
        world_size: number of shards of every global batch.
        rank: number of this process's shard.
    """
    rows = _as_words(np.asarray(split.images))
    image, row_bytes = split.images.shape[1:], rows.strides[0]
    with tf.device(where):
        words, labels = tf.constant(rows), tf.constant(split.labels)

    template = plan.draw(1)

    def take(ids: tf.Tensor) -> tf.Tensor:
        # Twin: TensorFlow cannot gather bytes on a GPU and would send all images to the host. torch can. So images are stored
        # as words. For the gathers of augmentation they become float16, which holds 0..255 exactly.
        gathered = tf.reshape(tf.bitcast(tf.gather(words, ids), tf.uint8), (-1, row_bytes))
        return tf.cast(tf.reshape(gathered[:, : math.prod(image)], (-1, *image)), tf.float16)

    @device.graph
    def make(draws: list[tf.Tensor], start: tf.Tensor, stop: tf.Tensor) -> Batch:
        arrays = iter(draws)
        batch = load(take, labels, template.map(lambda _: next(arrays)), start, stop)
        return batch._replace(images=tf.cast(batch.images, tf.uint8))

    def start(epoch: int, steps: Sequence[int]) -> Iterator[Batch]:
        draws, bounds = plan.draw(epoch), plan.bounds(epoch, world_size, rank)
        with tf.device(where):
            device_draws = [tf.constant(values) for values in draws.arrays()]
        for step in steps:
            begin_time, (low, high) = time.time(), bounds[step]
            with tf.device(where):
                batch: Any = make(device_draws, tf.constant(low), tf.constant(high))
            with tf.device("CPU:0"):  # Twin: without this, TensorFlow would put the constant on the device
                ids = tf.constant(draws.ids[low:high])
            yield batch._replace(ids=ids, begin_time=begin_time)

    return start


def _as_words(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return each image as a row of words, padded with zeros."""
    rows = images.reshape(len(images), -1)
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % _WORD.itemsize))).view(_WORD)


def reader(split: DatasetSplit, image_size: int) -> Take:
    """Return a function from int64 [N] ids to uint8 [N, image_size, image_size, 3]. It reads pixels, or decodes files."""
    encoded = split.encoded
    if encoded is None:
        # Twin: TensorFlow reads from a tensor, which is a copy in memory. Larger data is read by calls to Python.
        if split.images.nbytes > MAX_MAPPED_BYTES:
            return _from_python(lambda ids: split.images[ids], image_size)
        with tf.device("CPU:0"):
            images = tf.constant(np.asarray(split.images))
        return lambda ids: tf.gather(images, ids)

    def read(ids: npt.NDArray[np.int64]) -> list[Any]:
        return [np.array([encoded.content(index) for index in ids], object), encoded.decodes_identically[ids]]

    def take(ids: tf.Tensor) -> tf.Tensor:
        contents, plain = tf.numpy_function(read, [ids], (tf.string, tf.bool))
        specification = tf.TensorSpec((image_size, image_size, 3), tf.uint8)
        return tf.map_fn(
            lambda file: decode.image(file[0], file[1], image_size),
            (tf.ensure_shape(contents, (None,)), tf.ensure_shape(plain, (None,))),
            fn_output_signature=specification,
        )

    return take


def load(take: Take, labels: tf.Tensor, draws: EpochDraws, start: tf.Tensor, stop: tf.Tensor) -> Batch:
    """Load and augment the examples at some positions of an epoch's order.

    Args:
        take: function from ids to images, see `reader`.
        labels: int64 [N], labels of the split.
        stop: the position after the last one.

    Returns:
        ids: int64 [N]; images: uint8 [N, H, W, 3]; labels: int64 [N]; masks: one bool [N, units] for each dropout.
    """
    batch_draws = draws.map(lambda values: values[start:stop])
    return Batch(
        ids=batch_draws.ids,
        images=augment(take(batch_draws.ids), batch_draws),
        labels=tf.gather(labels, batch_draws.ids),
        masks=unpack(batch_draws),
    )


def unpack(draws: EpochDraws) -> tuple[tf.Tensor, ...]:
    """Unpack the masks of some draws: one bool [N, units] for each dropout."""

    def bools(bits: Any, units: int) -> tf.Tensor:
        places = tf.cast(tf.range(8), tf.uint8)
        bit_values = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits[:, :, None], places), tf.constant(1, tf.uint8))
        return tf.cast(tf.reshape(bit_values, (-1, 8 * bits.shape[1]))[:, :units], tf.bool)

    return tuple(map(bools, draws.masks, draws.mask_units))


def augment(images: tf.Tensor, draws: EpochDraws) -> tf.Tensor:
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
    values = tf.cast(images, tf.float64) if draws.affines is None else sample(images, draws.affines)
    if draws.brightness is not None:
        values = values * draws.brightness[:, None, None, None]
    return tf.cast(tf.clip_by_value(tf.round(values), 0.0, 255.0), tf.uint8)


def flip(images: tf.Tensor, flips: tf.Tensor) -> tf.Tensor:
    """Mirror some images, left to right.

    Args:
        images: uint8 [N, H, W, 3].
        flips: bool [N].

    Returns:
        uint8 [N, H, W, 3].
    """
    # Twin: TensorFlow's slice with a negative step and its broadcast over four axes take several times as long as these.
    flat = -1, images.shape[1:].num_elements()
    flipped = tf.where(flips[:, None], tf.reshape(tf.reverse(images, [2]), flat), tf.reshape(images, flat))
    return tf.reshape(flipped, (-1, *images.shape[1:]))


def shift(images: tf.Tensor, shifts: tf.Tensor) -> tf.Tensor:
    """Shift each image: out[i, j] = image[i + rows, j + columns], and 0 outside the image.

    Args:
        images: uint8 [N, H, W, 3].
        shifts: int64 [N, 2], (rows, columns) in pixels.

    Returns:
        uint8 [N, H, W, 3].
    """
    height, width = cast(tuple[int, int], tuple(images.shape[1:3]))
    rows = tf.range(height, dtype=tf.int64) + shifts[:, :1]
    columns = tf.range(width, dtype=tf.int64) + shifts[:, 1:]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    moved = tf.gather(images, tf.clip_by_value(rows, 0, height - 1), axis=1, batch_dims=1)
    # Twin: TensorFlow gathers along one axis at a time. torch indexes both at once.
    moved = tf.gather(tf.transpose(moved, (0, 2, 1, 3)), tf.clip_by_value(columns, 0, width - 1), axis=1, batch_dims=1)
    return tf.transpose(moved, (0, 2, 1, 3)) * tf.cast(inside, images.dtype)[..., None]


def sample(images: tf.Tensor, affines: tf.Tensor) -> tf.Tensor:
    """Sample images at the points of affine maps, from the four pixels around each point. Pixels outside are 0.

    Args:
        images: uint8 [N, H, W, 3].
        affines: float64 [N, 2, 3], see `common.data.batches.EpochDraws`.

    Returns:
        float64 [N, H, W, 3]: (1 - v) * ((1 - u) * a + u * b) + v * ((1 - u) * c + u * d). The fractions of column and row are
            u and v. The pixels a and b lie above c and d.
    """
    height, width = cast(tuple[int, int], tuple(images.shape[1:3]))
    row, column = tf.range(height, dtype=tf.float64)[:, None], tf.range(width, dtype=tf.float64)
    entry = affines[:, :, :, None, None]
    rows = entry[:, 0, 0] * row + entry[:, 0, 1] * column + entry[:, 0, 2]
    columns = entry[:, 1, 0] * row + entry[:, 1, 1] * column + entry[:, 1, 2]
    top, left = tf.floor(rows), tf.floor(columns)
    v, u = (rows - top)[..., None], (columns - left)[..., None]
    flat = tf.reshape(images, (-1, height * width, 3))

    def tap(down: int, right: int) -> tf.Tensor:
        i, j = tf.cast(top, tf.int64) + down, tf.cast(left, tf.int64) + right
        inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
        position = tf.clip_by_value(i, 0, height - 1) * width + tf.clip_by_value(j, 0, width - 1)
        pixels = tf.gather(flat, position, axis=1, batch_dims=1)
        return tf.cast(pixels * tf.cast(inside, images.dtype)[..., None], tf.float64)

    upper = (1.0 - u) * tap(0, 0) + u * tap(0, 1)
    lower = (1.0 - u) * tap(1, 0) + u * tap(1, 1)
    return (1.0 - v) * upper + v * lower


def scale(images: tf.Tensor, dtype: tf.DType, scaling: InputScaling) -> tf.Tensor:
    """Map uint8 [N, H, W, 3] to the model's input: one multiplication, and one addition if there is an offset."""
    values = tf.cast(images, dtype) * tf.constant(scaling.factor, dtype)
    return values if scaling.offset is None else values + tf.constant(scaling.offset, dtype)


def _from_python(take: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.uint8]], image_size: int) -> Take:
    def call_python(ids: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(take, [ids], tf.uint8), (None, image_size, image_size, 3))

    return call_python
