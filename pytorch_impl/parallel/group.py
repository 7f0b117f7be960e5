"""Replicas of one run that sum tensors: synchronised BatchNorm, scores and statistics need it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy.typing as npt
import torch
from torch import distributed

from pytorch_impl import collectives, device


class CommunicationGroup:
    """Replicas that exchange tensors. All of them make the same calls in the same order."""

    def __init__(self, members: Any) -> None:
        # Twin: ranks form process groups. TensorFlow's replicas form a strategy.
        self.members = members

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over replicas; each gets the sum. Its gradient is the sum of the gradients."""
        return self.sum_tensor(tensor.clone())

    def sum_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the processes. The result may be the tensor itself."""
        collectives.all_reduce(tensor, self.members)
        return tensor

    def sum(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum float64 or int64 values over the processes; every process gets the sum."""
        return self.sum_tensor(torch.tensor(values, device=device.kind())).cpu().numpy()

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the first replica's tensors to every replica."""
        for tensor in tensors:
            collectives.broadcast(tensor, self.members, 0)


def all_ranks() -> CommunicationGroup:
    """Return the group of all processes of the run."""
    return CommunicationGroup(distributed.group.WORLD)
