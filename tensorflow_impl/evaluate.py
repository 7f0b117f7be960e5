"""Scoring: the model in evaluation mode, one batch at a time."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from common.models.input_scaling import InputScaling
from tensorflow_impl import input, train


def score(model: keras.Model, images: tf.Tensor, labels: tf.Tensor, objective: train.Objective) -> tuple[tf.Tensor, tf.Tensor]:
    """Score one batch in evaluation mode.

    Args:
        model: BatchNorm uses the running statistics.
        images: uint8 [N, H, W, 3], values 0 to 255.
        labels: int64 [N].

    Returns:
        (loss_sum, predictions): cross-entropy summed over the N examples, and predicted labels int64 [N].
    """
    # Twin: torch leaves out a replica without examples of a small batch. The graph of all replicas gives it one image of zeros,
    # since not every kernel accepts an empty batch.
    size = tf.shape(images)[0]
    one_if_none = tf.cast(tf.equal(size, 0), size.dtype)
    paddings: Any = [[0, one_if_none], [0, 0], [0, 0], [0, 0]]
    predicted = logits(model, tf.pad(images, paddings), objective.scaling)[:size]
    return train.share_of_loss(predicted, labels, 1, objective.loss), tf.argmax(predicted, 1)


def logits(model: keras.Model, images: tf.Tensor, scaling: InputScaling) -> tf.Tensor:
    """Return logits [N, classes] of images uint8 [N, H, W, 3] in evaluation mode."""
    # Twin: a functional Keras model needs all its inputs. Evaluation mode does not read the masks.
    masks = [tf.ones((tf.shape(images)[0], mask.shape[1]), tf.bool) for mask in model.inputs[1:]]
    return model([input.scale(images, model.inputs[0].dtype, scaling), *masks], training=False)
