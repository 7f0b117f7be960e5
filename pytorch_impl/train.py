"""Loss and gradients of one training step."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from common.models.input_scaling import Scaling
from common.training.trainer import Update
from pytorch_impl import input


def share_of_loss(logits: torch.Tensor, labels: torch.Tensor, num_examples: Any, loss: str) -> torch.Tensor:
    """These examples' share of the mean cross-entropy over the global batch: their sum divided by num_examples.

    The shares of all replicas sum to the mean over examples, even with uneven shards.

    Args:
        logits: float [N, classes].
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
    logits = model(input.scale(images, next(model.parameters()).dtype, scaling), *masks)
    with torch.no_grad():
        num_correct = (logits.argmax(1) == labels).sum()
    return share_of_loss(logits, labels, num_examples, loss), num_correct


def parts_of(values: torch.Tensor, number: int) -> list[torch.Tensor]:
    """Cut a tensor along its first axis into equal micro-batches, in order."""
    return list(values.chunk(number))


def gradients(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    masks: Any,
    update: Update,
    *,
    loss: str,
    scaling: Scaling,
    loss_scale: Any = None,
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
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
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = None
    cut = [parts_of(values, update.parts) for values in (images, labels, *masks)]
    shares: list[torch.Tensor] = []
    correct: list[torch.Tensor] = []
    for number, (part, part_labels, *part_masks) in enumerate(zip(*cut, strict=True), 1):
        # Twin: torch accumulates in `grad`. DistributedDataParallel must wait for the last micro-batch.
        more = number < update.parts
        with model.no_sync() if more and isinstance(model, DistributedDataParallel) else nullcontext():
            share, num_correct = forward(model, part, part_labels, part_masks, update.num_examples, loss=loss, scaling=scaling)
            (share if loss_scale is None else share * loss_scale).backward()
        shares.append(share.detach())
        correct.append(num_correct)
    found = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if loss_scale is not None:
        for gradient in found:
            gradient /= loss_scale
    return torch.stack(shares).sum(), torch.stack(correct).sum(), found
