"""Loss, gradients and update of one training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import keras
import tensorflow as tf

from common.models.input_scaling import InputScaling
from common.training.trainer import Update
from tensorflow_impl import input, optim


def share_of_loss(logits: tf.Tensor, labels: tf.Tensor, num_examples: Any, loss: str) -> tf.Tensor:
    """Return these examples' share of the mean cross-entropy over the global batch: their sum divided by num_examples.

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


def micro_batches(values: tf.Tensor, number: int) -> list[tf.Tensor]:
    """Cut a tensor along its first axis into equal micro-batches, in order."""
    # Twin: slices, because tf.split sends bytes, bools and labels from a GPU to the host. torch's chunks are views.
    if number == 1:
        return [values]
    size = tf.shape(values)[0] // number
    return [values[part * size : (part + 1) * size] for part in range(number)]


class Objective:
    """The function that a run minimises. A trainer creates one for all its steps.

    A step has images uint8 [N, H, W, 3], labels int64 [N] and masks, one bool [N, units] for each dropout. These N examples
    are a shard of a global batch of num_examples.

    Args:
        scaling: maps bytes to the model's input.
        loss_scale: returns the current factor of the loss in the backward pass, so float16 can hold small gradients. None: no
            factor.
    """

    def __init__(self, loss: str, scaling: InputScaling, loss_scale: Callable[[], Any] = lambda: None) -> None:
        self.loss = loss
        self.scaling = scaling
        self._loss_scale = loss_scale

    def forward(
        self, model: keras.Model, images: tf.Tensor, labels: tf.Tensor, masks: Any, num_examples: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run the forward pass of a training step; sets the model to training mode.

        Returns:
            (loss, num_correct): the share of the mean loss, and how many of the N predictions are right.
        """
        logits = model([input.scale(images, model.inputs[0].dtype, self.scaling), *masks], training=True)
        num_correct = tf.reduce_sum(tf.cast(tf.argmax(logits, 1) == labels, tf.int64))
        return share_of_loss(logits, labels, num_examples, self.loss), num_correct

    def gradients(
        self, model: keras.Model, images: tf.Tensor, labels: tf.Tensor, masks: Any, update: Update
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Compute the gradients of one update: forward and backward, one micro-batch after the other.

        Returns:
            (loss, num_correct, gradients): as `forward`, and the gradient of every trainable variable. Gradients are summed
            over the micro-batches and have the optimizer's order.
        """
        variables = [variable.value for variable in model.trainable_variables]
        scale = self._loss_scale()
        shares: list[tf.Tensor] = []
        correct: list[tf.Tensor] = []
        micro_batch_gradients: list[list[tf.Tensor]] = []
        cut = [micro_batches(values, update.micro_batches) for values in (images, labels, *masks)]
        for own_images, own_labels, *own_masks in zip(*cut, strict=True):
            # Twin: a graph has no other order: without it, the activations of all micro-batches may be in memory at once.
            # TensorFlow records the forward pass on a tape. torch runs in order, and keeps the graph with the loss.
            with tf.control_dependencies(micro_batch_gradients[-1] if shares else []), tf.GradientTape() as tape:
                share, num_correct = self.forward(model, own_images, own_labels, own_masks, update.num_examples)
                scaled = share if scale is None else share * tf.cast(scale, share.dtype)
            micro_batch_gradients.append(cast(list[tf.Tensor], tape.gradient(scaled, variables)))
            shares.append(share)
            correct.append(num_correct)
        # Not a sum that grows: rounding differs, as TensorFlow orders the terms of a long sum by their names.
        summed = [tf.add_n(gradients) for gradients in zip(*micro_batch_gradients, strict=True)]
        if scale is not None:
            summed = [gradient / tf.cast(scale, gradient.dtype) for gradient in summed]
        return tf.add_n(shares), tf.add_n(correct), summed


def train_step(
    objective: Objective,
    model: keras.Model,
    optimizer: optim.TwinOptimizer,
    images: tf.Tensor,
    labels: tf.Tensor,
    masks: Any,
    update: Update,
    exchange: Callable[[list[tf.Tensor]], list[tf.Tensor]] = list,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Update `model` once on one batch of N examples.

    Args:
        objective: the run's objective; its class describes images, labels and masks.
        model: the model, which is set to training mode.
        optimizer: optimizer of the model's trainable variables.
        exchange: sums this replica's gradients with those of all others; default: there are no others.

    Returns:
        (loss, num_correct), both before the update: the share of the mean loss, and how many of the N predictions are right.
    """
    loss, num_correct, gradients = objective.gradients(model, images, labels, masks, update)
    optimizer.apply(exchange(gradients), update.learning_rate, update.step)
    return loss, num_correct
