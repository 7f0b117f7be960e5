"""Compressed gradient exchange: gradients are cut into buckets and compressed. The error is kept for the next step.

`common.training.compression` defines the rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import keras
import tensorflow as tf

from common.models.architectures import Architecture
from common.spec import Communication
from common.training.compression import FLOAT16_MAX, INT8_STEPS, SUMMABLE, WORD_BYTES, buckets, top_k_count
from tensorflow_impl import weights


def encode(values: tf.Tensor, settings: Communication) -> tf.Tensor:
    """Compress one bucket into the message that a replica sends.

    Args:
        values: float32 or float64 [count].

    Returns:
        The one-dimensional message of `common.training.compression.payload_bytes` bytes.
    """
    if settings.compression == "float16":
        return tf.cast(tf.cast(tf.clip_by_value(values, -FLOAT16_MAX, FLOAT16_MAX), tf.float32), tf.float16)
    count = cast(int, values.shape[0])
    if settings.compression == "int8":
        scale = tf.reduce_max(tf.abs(values)) / INT8_STEPS
        steps = tf.cast(tf.round(tf.math.divide_no_nan(values, scale)), tf.int8)
        # Twin: 32-bit words are the smallest type that TensorFlow's collectives send. torch's send bytes.
        return tf.concat([_words(scale[None]), _words(tf.pad(steps, [[0, -count % WORD_BYTES]]))], 0)
    if settings.compression == "top_k":
        indices = _largest(tf.abs(values), top_k_count(count, settings.top_k))
        return tf.concat([_words(tf.gather(values, indices)), indices], 0)
    return values


def decode(message: tf.Tensor, count: int, dtype: tf.DType, settings: Communication) -> tf.Tensor:
    """Decompress the message of one bucket.

    Args:
        message: from `encode`; with `float16` it may be the sum of several messages.
        count: number of values in the bucket.
        dtype: dtype of the values.

    Returns:
        [count]; a value that was not sent is 0.
    """
    if settings.compression == "int8":
        cut = dtype.size // WORD_BYTES
        scale, steps = _values(message[:cut], dtype), _values(message[cut:], tf.int8)
        return tf.cast(steps[:count], dtype) * scale
    if settings.compression == "top_k":
        cut = top_k_count(count, settings.top_k) * dtype.size // WORD_BYTES
        values, indices = _values(message[:cut], dtype), message[cut:]
        return tf.scatter_nd(indices[:, None], values, [count])
    return tf.cast(message, dtype)


class Compressor:
    """Turns one replica's gradients into messages, and all replicas' messages into the sum of the gradients."""

    summable: bool
    """Whether an all-reduce can sum the messages. Otherwise every replica needs all messages."""
    sizes: list[int]
    """Number of values of each trainable parameter, in canonical order."""
    counts: list[int]
    """Number of values of each bucket."""

    def __init__(self, settings: Communication, model: keras.Model, architecture: Architecture) -> None:
        self.summable = settings.compression in SUMMABLE
        self._settings = settings
        self._variables = model.trainable_variables
        self._positions = weights.positions(model, architecture)
        self._names = list(self._positions)
        # Twin: Keras' layout is the canonical one. torch turns what it compresses.
        self.sizes = [math.prod(self._variables[position].shape) for position in self._positions.values()]
        self._dtype = tf.as_dtype(self._variables[0].dtype)
        self._buckets = buckets(self.sizes, self._dtype.size, settings.bucket_mib)
        self.counts = [sum(self.sizes[index] for index in bucket) for bucket in self._buckets]
        self._residuals: list[tf.Variable] | None = None
        if settings.compression != "none" and settings.error_feedback:
            self._residuals = [self._new_residual(count) for count in self.counts]

    def compress(self, gradients: list[tf.Tensor]) -> Iterator[tf.Tensor]:
        """Yield the message of each bucket. Gradients are in the order of the model's own parameters."""
        for number, bucket in enumerate(self._buckets):
            names = [self._names[index] for index in bucket]
            values = tf.concat([self.flatten(name, gradients[self._positions[name]]) for name in names], 0)
            if self._residuals is not None:
                values = values + self._residuals[number]
            message = encode(values, self._settings)
            if self._residuals is not None:
                self._residuals[number].assign(values - decode(message, self.counts[number], self._dtype, self._settings))
            yield message

    @property
    def residuals(self) -> list[tf.Variable]:
        """Residuals [count] of each bucket, which are added to the next gradients. Empty: there is no error feedback."""
        return self._residuals or []

    def sum_messages(self, messages: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Decode messages into the sum of the replicas' gradients, in the order of the model's own parameters.

        Args:
            messages: for each bucket the messages of every replica, in order; or only their sum, if summable.
        """
        gradients: list[Any] = [None] * len(self._variables)
        for bucket, count, parts in zip(self._buckets, self.counts, messages, strict=True):
            summed = tf.split(self._sum(parts, count), [self.sizes[index] for index in bucket])
            for index, values in zip(bucket, summed, strict=True):
                gradients[self._positions[self._names[index]]] = self.restore(self._names[index], values)
        return gradients

    def flatten(self, name: str, tensor: tf.Tensor) -> tf.Tensor:
        """Return all values of a parameter or of its gradient [count], in the order of messages."""
        return weights.flatten(name, tensor)

    def restore(self, name: str, values: tf.Tensor) -> tf.Tensor:
        """Reshape values from `flatten` to the shape of the model's own variable."""
        return weights.restore(name, values, self._variables[self._positions[name]])

    def to_canonical(self, name: str, values: tf.Tensor) -> tf.Tensor:
        """Return values from `flatten` in the canonical layout [count]."""
        # Twin: messages have Keras' layout, which is the canonical one. Uncompressed, torch's have another.
        return values

    def exchange(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sum the gradients of all replicas. Each replica passes its own, in the order of the model's parameters."""
        context = tf.distribute.get_replica_context()
        total = tf.distribute.ReduceOp.SUM
        if self._settings.compression == "none":
            # Twin: the strategy cuts its own buckets. DistributedDataParallel does so without a call.
            options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=int(self._settings.bucket_mib * 2**20))
            return context.all_reduce(total, gradients, options)
        messages: list[Any] = []
        for message in self.compress(gradients):
            if self.summable:
                messages.append([context.all_reduce(total, message)])
            else:
                messages.append(tf.unstack(context.all_gather(message[None], 0), context.num_replicas_in_sync))
        return self.sum_messages(messages)

    def _sum(self, parts: Sequence[tf.Tensor], count: int) -> tf.Tensor:
        if not self.summable:
            parts = [decode(part, count, self._dtype, self._settings) for part in parts]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return decode(total, count, self._dtype, self._settings) if self.summable else total

    def _new_residual(self, count: int) -> tf.Variable:
        # Twin: replicas of one graph share this object, so it holds one value for each of them.
        return tf.Variable(
            tf.zeros([count], self._dtype),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )


def _words(values: tf.Tensor) -> tf.Tensor:
    if values.dtype == tf.int8:
        values = tf.reshape(values, [-1, WORD_BYTES])
    return tf.reshape(tf.bitcast(values, tf.int32), [-1])


def _values(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype.size > WORD_BYTES:
        words = tf.reshape(words, [-1, dtype.size // WORD_BYTES])
    return tf.reshape(tf.bitcast(words, dtype), [-1])


def _largest(magnitudes: tf.Tensor, number: int) -> tf.Tensor:
    """Return indices of the largest values. Among equal values the first ones win. NaN counts as the largest."""
    magnitudes = tf.where(tf.math.is_nan(magnitudes), tf.constant(math.inf, magnitudes.dtype), magnitudes)
    return tf.math.top_k(magnitudes, number).indices
