"""One training step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from common.preprocessing.scaling import Scaling
from pytorch_impl import input
from pytorch_impl.optim import Optimizer


def share_of_loss(logits: torch.Tensor, labels: torch.Tensor, num_examples: Any, loss: str) -> torch.Tensor:
    """These examples' share of the mean cross-entropy over the global batch: their sum over num_examples.

    Over all replicas the shares add up to the mean over examples, however uneven the shards.

    Args:
        logits: [N, classes].
        labels: int64 [N].
        num_examples: size of the global batch.
        loss: `sparse_categorical_crossentropy` (from ids) or `categorical_crossentropy` (from one-hot rows).
    """
    targets = labels
    if loss == "categorical_crossentropy":
        targets = functional.one_hot(labels, logits.shape[1]).to(logits.dtype)
    return functional.cross_entropy(logits, targets, reduction="sum") / num_examples


def forward(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, masks: Any, num_examples: Any, *, loss: str, scaling: Scaling
) -> tuple[torch.Tensor, torch.Tensor]:
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
    logits = model(input.scale(images, next(model.parameters()).dtype, scaling), *masks)
    with torch.no_grad():
        num_correct = (logits.argmax(1) == labels).sum()
    return share_of_loss(logits, labels, num_examples, loss), num_correct


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    masks: Any,
    num_examples: Any,
    learning_rate: Any,
    step: Any,
    *,
    loss: str,
    scaling: Scaling,
) -> tuple[torch.Tensor, torch.Tensor]:
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
    model.train()
    shared_loss, num_correct = forward(model, images, labels, masks, num_examples, loss=loss, scaling=scaling)
    optimizer.apply(gradients(model, shared_loss), learning_rate, step)
    return shared_loss.detach(), num_correct


def gradients(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    """The gradient of every trainable variable, in the order in which the optimizer has them."""
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = None
    loss.backward()
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
