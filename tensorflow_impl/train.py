"""Loss and gradients of one training step."""

from __future__ import annotations

from typing import Any, cast

import keras
import tensorflow as tf

from common.models.input_scaling import Scaling
from common.training.trainer import Update
from tensorflow_impl import input


def share_of_loss(logits: tf.Tensor, labels: tf.Tensor, num_examples: Any, loss: str) -> tf.Tensor:
    """These examples' share of the mean cross-entropy over the global batch: their sum divided by num_examples.

    The shares of all replicas sum to the mean over examples, even with uneven shards.

    Args:
        logits: float [N, classes].
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
    """Run the forward pass of a training step.

    Args:
        model: in training mode.
        images: uint8 [N, H, W, 3], values 0 to 255.
        labels: int64 [N].
        masks: one bool [N, units] for each dropout.
        num_examples: size of the global batch. These N examples are a shard of it.
        loss: the spec's loss.
        scaling: maps bytes to the model's input.

    Returns:
        (loss, num_correct): the share of the mean loss, and how many of the N predictions are right.
    """
    logits = model([input.scale(images, model.inputs[0].dtype, scaling), *masks], training=True)
    num_correct = tf.reduce_sum(tf.cast(tf.argmax(logits, 1) == labels, tf.int64))
    return share_of_loss(logits, labels, num_examples, loss), num_correct


def parts_of(values: tf.Tensor, number: int) -> list[tf.Tensor]:
    """Cut a tensor along its first axis into equal micro-batches, in order."""
    # Twin: slices, because tf.split sends bytes, bools and labels from a GPU to the host. torch's chunks are views.
    if number == 1:
        return [values]
    size = tf.shape(values)[0] // number
    return [values[part * size : (part + 1) * size] for part in range(number)]


def gradients(
    model: keras.Model,
    images: tf.Tensor,
    labels: tf.Tensor,
    masks: Any,
    update: Update,
    *,
    loss: str,
    scaling: Scaling,
    loss_scale: Any = None,
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """Compute the gradients of one update: forward and backward, one micro-batch after the other.

    Args:
        model: in training mode.
        images: uint8 [N, H, W, 3], values 0 to 255.
        labels: int64 [N].
        masks: one bool [N, units] for each dropout.
        update: of the global batch. These N examples are a shard of it; `update.parts` divides N.
        loss: the spec's loss.
        scaling: maps bytes to the model's input.
        loss_scale: multiplies the loss for the backward pass, so float16 can hold small gradients; None: no factor.

    Returns:
        (loss, num_correct, gradients): the share of the mean loss, how many of the N predictions are right, and the gradient
        of every trainable variable. Gradients are summed over the micro-batches and have the optimizer's order.
    """
    variables = [variable.value for variable in model.trainable_variables]
    cut = [parts_of(values, update.parts) for values in (images, labels, *masks)]
    shares: list[tf.Tensor] = []
    correct: list[tf.Tensor] = []
    found: list[list[tf.Tensor]] = []
    for part, part_labels, *part_masks in zip(*cut, strict=True):
        # Twin: TensorFlow records the forward pass on a tape. torch keeps the graph with the loss.
        with tf.GradientTape() as tape:
            share, num_correct = forward(model, part, part_labels, part_masks, update.num_examples, loss=loss, scaling=scaling)
            scaled = share if loss_scale is None else share * tf.cast(loss_scale, share.dtype)
        found.append(cast(list[tf.Tensor], tape.gradient(scaled, variables)))
        shares.append(share)
        correct.append(num_correct)
    summed = [tf.add_n(parts) for parts in zip(*found, strict=True)]
    if loss_scale is not None:
        summed = [gradient / tf.cast(loss_scale, gradient.dtype) for gradient in summed]
    return tf.add_n(shares), tf.add_n(correct), summed
