"""Loss, gradients and update of one training step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from common.models.input_scaling import InputScaling
from common.training.trainer import Update
from pytorch_impl import input, optim


def share_of_loss(logits: torch.Tensor, labels: torch.Tensor, num_examples: Any, loss: str) -> torch.Tensor:
    """Return these examples' share of the mean cross-entropy over the global batch: their sum divided by num_examples.

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


def micro_batches(values: torch.Tensor, number: int) -> list[torch.Tensor]:
    """Cut a tensor along its first axis into equal micro-batches, in order."""
    return list(values.chunk(number))


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
        self._parameters: WeakKeyDictionary[nn.Module, list[nn.Parameter]] = WeakKeyDictionary()

    def forward(
        self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, masks: Any, num_examples: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the forward pass of a training step; sets the model to training mode.

        Returns:
            (loss, num_correct): the share of the mean loss, and how many of the N predictions are right.
        """
        _set_training(model)
        logits = model(input.scale(images, next(model.parameters()).dtype, self.scaling), *masks)
        with torch.no_grad():
            num_correct = (logits.argmax(1) == labels).sum()
        return share_of_loss(logits, labels, num_examples, self.loss), num_correct

    def gradients(
        self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, masks: Any, update: Update
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Compute the gradients of one update: forward and backward, one micro-batch after the other.

        Returns:
            (loss, num_correct, gradients): as `forward`, and the gradient of every trainable variable. Gradients are summed
            over the micro-batches and have the optimizer's order.
        """
        parameters = self._parameters_of(model)
        for parameter in parameters:
            parameter.grad = None
        scale = self._loss_scale()
        shares: list[torch.Tensor] = []
        correct: list[torch.Tensor] = []
        cut = [micro_batches(values, update.micro_batches) for values in (images, labels, *masks)]
        for number, (own_images, own_labels, *own_masks) in enumerate(zip(*cut, strict=True), 1):
            # Twin: torch accumulates in `grad`. DistributedDataParallel must wait for the last micro-batch.
            is_not_last = number < update.micro_batches
            with model.no_sync() if is_not_last and isinstance(model, DistributedDataParallel) else nullcontext():
                share, num_correct = self.forward(model, own_images, own_labels, own_masks, update.num_examples)
                (share if scale is None else share * scale).backward()
            shares.append(share.detach())
            correct.append(num_correct)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if scale is not None:
            for gradient in gradients:
                gradient /= scale
        return _sum(shares), _sum(correct), gradients

    def _parameters_of(self, model: nn.Module) -> list[nn.Parameter]:
        """Return the model's parameters. Its layers are visited at its first step alone."""
        if model not in self._parameters:
            self._parameters[model] = list(model.parameters())
        return self._parameters[model]


def train_step(
    objective: Objective,
    model: nn.Module,
    optimizer: optim.TwinOptimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    masks: Any,
    update: Update,
    exchange: Callable[[list[torch.Tensor]], list[torch.Tensor]] = list,
) -> tuple[torch.Tensor, torch.Tensor]:
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


def _set_training(model: nn.Module) -> None:
    """Set the model to training mode. Its layers are visited only if it has scored since its last step."""
    # Twin: torch keeps the mode in each layer, and a wrapper does not hear of its model's. Keras is told in each call.
    inner = model.module if isinstance(model, (DistributedDataParallel, nn.DataParallel)) else model
    if not inner.training:
        model.train()


def _sum(values: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(values).sum() if len(values) > 1 else values[0]
