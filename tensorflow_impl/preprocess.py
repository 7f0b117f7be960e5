"""Sums over a split's pixels, with the framework's own loading, decoding and adding."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import tensorflow as tf

from common.data.preprocessing.scan import parts, read_files
from common.data.preprocessing.sums import Sums, from_array
from common.data.sources import Encoded
from tensorflow_impl import decode

_BATCH = 64  # number of images whose sums leave the pipeline together


@contextmanager
def scanning(encoded: Encoded, image_size: int, workers: int) -> Generator[Callable[[], Sums]]:
    """Start workers, warm them up, and yield the function that scans the whole split.

    Args:
        encoded: the files of the split.
        image_size: height and width of their canonical pixels.
        workers: loader processes (PyTorch) or parallel map calls (TensorFlow).
    """
    # Twin: TensorFlow takes a GPU and all of its memory, even in a process that never uses it.
    tf.config.set_visible_devices([], "GPU")
    file_ranges = parts(encoded)

    def scan(count: int) -> tf.data.Dataset:
        return _pipeline(file_ranges[:count], image_size, workers)

    warm_up, whole = scan(workers), scan(len(file_ranges))
    _total(warm_up, image_size)
    yield lambda: _total(whole, image_size)


def channel_sums(image: tf.Tensor) -> tf.Tensor:
    """Exact sums over an image's pixels: of the bytes and of their squares.

    Args:
        image: uint8 [H, W, 3], H at most 33,025, so a column's sum of squares fits 32 bits.

    Returns:
        int64 [2, 3].
    """
    height, width, channels = cast(tuple[int, int, int], tuple(image.shape))
    columns = tf.cast(tf.reshape(image, (height, width * channels)), tf.int32)
    sums = tf.stack((tf.reduce_sum(columns, 0), tf.reduce_sum(columns * columns, 0)))
    return tf.reduce_sum(tf.cast(tf.reshape(sums, (2, width, channels)), tf.int64), 1)


def _pipeline(file_ranges: list[Encoded], image_size: int, workers: int) -> tf.data.Dataset:
    def read(position: Any) -> list[Any]:
        return [np.array(list(read_files(file_ranges[position])), object), file_ranges[position].decodes_identically]

    def split(position: tf.Tensor) -> tf.data.Dataset:
        files, plain = tf.numpy_function(read, [position], (tf.string, tf.bool))
        return tf.data.Dataset.from_tensor_slices((tf.ensure_shape(files, (None,)), tf.ensure_shape(plain, (None,))))

    dataset = (
        tf.data.Dataset.range(len(file_ranges))
        .flat_map(split)
        .map(
            lambda content, plain: channel_sums(decode.image(content, plain, image_size)),
            num_parallel_calls=workers,
            deterministic=False,
        )
        .batch(_BATCH)
    )
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = workers
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options)


def _total(dataset: tf.data.Dataset, image_size: int) -> Sums:
    batches = dataset.as_numpy_iterator()
    return sum((from_array(totals.sum(axis=0), len(totals) * image_size**2) for totals in batches), Sums())
