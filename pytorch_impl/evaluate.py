"""Scoring: the model in evaluation mode, one batch at a time."""

from __future__ import annotations

import torch
from torch import nn

from common.models.input_scaling import InputScaling
from pytorch_impl import input, train


def score(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, objective: train.Objective
) -> tuple[torch.Tensor, torch.Tensor]:
    """Score one batch in evaluation mode.

    Args:
        model: BatchNorm uses the running statistics.
        images: uint8 [N, H, W, 3], values 0 to 255.
        labels: int64 [N].

    Returns:
        (loss_sum, predictions): cross-entropy summed over the N examples, and predicted labels int64 [N].
    """
    predicted = logits(model, images, objective.scaling)
    return train.share_of_loss(predicted, labels, 1, objective.loss), predicted.argmax(1)


def logits(model: nn.Module, images: torch.Tensor, scaling: InputScaling) -> torch.Tensor:
    """Return logits [N, classes] of images uint8 [N, H, W, 3] in evaluation mode."""
    model.eval()
    with torch.inference_mode():
        return model(input.scale(images, next(model.parameters()).dtype, scaling))
