"""Many tensors as one vector, so that they travel together."""

from __future__ import annotations

import torch


def flatten(tensors: list[torch.Tensor]) -> torch.Tensor:
    """All values of at least one tensor, one tensor after the other."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def assign(tensors: list[torch.Tensor], values: torch.Tensor) -> None:
    """Set tensors to what `flatten` would give of them."""
    with torch.no_grad():
        for tensor, part in zip(tensors, values.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))
