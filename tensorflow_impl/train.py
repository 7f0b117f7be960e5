"""One training step."""

from __future__ import annotations

from typing import Any, cast

import keras
import tensorflow as tf

from common.preprocessing.scaling import Scaling
from tensorflow_impl import input
from tensorflow_impl.optim import Optimizer


def share_of_loss(logits: tf.Tensor, labels: tf.Tensor, num_examples: Any, loss: str) -> tf.Tensor:
    """These examples' share of the mean cross-entropy over the global batch: their sum over num_examples.

    Over all replicas the shares add up to the mean over examples, however uneven the shards.

    Args:
        logits: [N, classes].
        labels: int64 [N].
        num_examples: size of the global batch.
        loss: `sparse_categorical_crossentropy` (from ids) or `categorical_crossentropy` (from one-hot rows).
    """
    if loss == "categorical_crossentropy":
        losses = tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(labels, logits.shape[1], dtype=logits.dtype), logits)
    else:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_sum(losses) / tf.cast(num_examples, logits.dtype)


def forward(
    model: keras.Model, images: tf.Tensor, labels: tf.Tensor, masks: Any, num_examples: Any, *, loss: str, scaling: Scaling
) -> tuple[tf.Tensor, tf.Tensor]:
    """The forward pass of a training step.

    Args:
        model: in training mode.
        images: uint8 [N, H, W, 3].
        labels: int64 [N].
        masks: one bool [N, units] for each dropout.
        num_examples: size of the global batch, of which these N are a shard.
        loss: the spec's loss.
        scaling: from bytes to the model's input.

    Returns:
        (loss, num_correct): the share of the mean loss, and how many of the N predictions are right.
    """
    logits = model([input.scale(images, model.inputs[0].dtype, scaling), *masks], training=True)
    num_correct = tf.reduce_sum(tf.cast(tf.argmax(logits, 1) == labels, tf.int64))
    return share_of_loss(logits, labels, num_examples, loss), num_correct


def train_step(
    model: keras.Model,
    optimizer: Optimizer,
    images: tf.Tensor,
    labels: tf.Tensor,
    masks: Any,
    num_examples: Any,
    learning_rate: Any,
    step: Any,
    *,
    loss: str,
    scaling: Scaling,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Update `model` once on one batch.

    Args:
        model: the replica to train.
        optimizer: over the model's trainable variables.
        images: uint8 [N, H, W, 3].
        labels: int64 [N].
        masks: one bool [N, units] for each dropout.
        num_examples: size of the global batch, of which these N are a shard.
        learning_rate: of this update.
        step: of this update, from 1.
        loss: the spec's loss.
        scaling: from bytes to the model's input.

    Returns:
        (loss, num_correct): the share of the mean loss of the batch before the update, and how many of the N
        predictions were right.
    """
    # Twin: TensorFlow records the forward pass on a tape; torch keeps the graph with the loss.
    with tf.GradientTape() as tape:
        shared_loss, num_correct = forward(model, images, labels, masks, num_examples, loss=loss, scaling=scaling)
    optimizer.apply(gradients(model, shared_loss, tape), learning_rate, step)
    return shared_loss, num_correct


def gradients(model: keras.Model, loss: tf.Tensor, tape: tf.GradientTape) -> list[tf.Tensor]:
    """The gradient of every trainable variable, in the order in which the optimizer has them."""
    return cast(list[tf.Tensor], tape.gradient(loss, [variable.value for variable in model.trainable_variables]))
