"""Batch normalisation, over each replica's own shard or over the global batch."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from common.models import architectures


class ReplicaGroup(Protocol):
    """Replicas of one training step, which can sum tensors."""

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over replicas; each gets the sum. Its gradient is the sum of the gradients."""
        ...


def build(layer: architectures.BatchNorm, group: ReplicaGroup | None) -> nn.Module:
    """Build the layer of an architecture's entry.

    Args:
        layer: channels, momentum and epsilon.
        group: the replicas that share statistics; None: each replica normalises over its own examples.
    """
    if group is None:
        # Twin: torch's own layer. Keras' layer keeps the biased running variance, so the other twin writes its own.
        return nn.BatchNorm2d(layer.channels, eps=layer.epsilon, momentum=layer.momentum)
    return _SynchronisedBatchNorm(group, layer.channels, eps=layer.epsilon, momentum=layer.momentum)


class _SynchronisedBatchNorm(nn.BatchNorm2d):
    """BatchNorm over the global batch, by differentiable all-reduces of count, sum and squared deviations.

    Two passes avoid a variance that is the difference of large numbers. The layer runs wherever replicas can sum tensors, CPU
    processes and threads included.
    """

    def __init__(self, group: ReplicaGroup, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._group = group

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise [N, C, H, W]; in training mode with the statistics of all replicas' examples."""
        if not self.training:
            return super().forward(inputs)
        inputs = inputs.to(self.weight.dtype)  # sums use the full precision, whatever the layers compute in
        axes = (0, 2, 3)
        count_here = inputs.new_full((1,), inputs.numel() // inputs.shape[1])
        totals = _AllReduce.apply(torch.cat([inputs.sum(axes), count_here]), self._group)
        count = totals[-1].detach()
        mean = totals[:-1] / count
        centred = inputs - mean[:, None, None]
        variance = _AllReduce.apply(centred.square().sum(axes), self._group) / count
        with torch.no_grad():
            assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), self.momentum)
            assert self.num_batches_tracked is not None
            self.num_batches_tracked += 1
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return centred * scale[:, None, None] + self.bias[:, None, None]


class _AllReduce(torch.autograd.Function):
    """Differentiable sum over the group. The gradients of all replicas' losses by the sum are added up too."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: ReplicaGroup) -> torch.Tensor:
        ctx.group = group
        return group.all_reduce(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        return ctx.group.all_reduce(gradients[0]), None
