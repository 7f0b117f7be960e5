"""Many tensors as one vector, so that they travel together."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def flatten(tensors: list[Any]) -> tf.Tensor:
    """All values of at least one tensor, one tensor after the other."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def assign(tensors: list[Any], values: tf.Tensor) -> None:
    """Set tensors to what `flatten` would give of them."""
    for tensor, part in zip(tensors, tf.split(values, [tensor.shape.num_elements() for tensor in tensors]), strict=True):
        tensor.assign(tf.reshape(part, tensor.shape))
