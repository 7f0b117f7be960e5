"""Many tensors as one vector, which is sent in one message."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def flatten(tensors: list[Any]) -> tf.Tensor:
    """Concatenate all values of one or more tensors, in order."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def assign(tensors: list[Any], values: tf.Tensor) -> None:
    """Set tensors from a vector in the layout of `flatten`."""
    for tensor, part in zip(tensors, tf.split(values, [tensor.shape.num_elements() for tensor in tensors]), strict=True):
        tensor.assign(tf.reshape(part, tensor.shape))
