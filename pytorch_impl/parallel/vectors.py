"""Many tensors as one vector, which is sent in one message."""

from __future__ import annotations

import torch


def flatten(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Concatenate all values of one or more tensors, in order."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def assign(tensors: list[torch.Tensor], values: torch.Tensor) -> None:
    """Set tensors from a vector in the layout of `flatten`."""
    with torch.no_grad():
        for tensor, part in zip(tensors, values.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))
