"""Layers by themselves, forward and backward, as a training step goes through them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from common.models.architectures import Architecture
from common.spec import Spec
from common.training import layers
from pytorch_impl import device, models, switches


def passes(
    spec: Spec, architecture: Architecture, shape: tuple[int, ...], needs_gradient: bool
) -> Callable[[], list[torch.Tensor]]:
    """What goes through layers once, forward and backward, with one batch of random values.

    Args:
        spec: of a run; its batch size, precision and switches count.
        architecture: the layers.
        shape: [H, W, C] or [features] of one example in front of them.
        needs_gradient: whether the values in front of them do.

    Returns:
        What gives the gradients: of the values where asked, then of the variables; or what the layers make, if nothing has any.

    Raises:
        SpecError: a switch makes a step of what no layer is by itself.
    """
    chosen = switches.of(spec, device.kind())
    layers.refuse_other(chosen, {"arithmetic": "full", "graph": "eager"})
    place, size = torch.device(device.kind()), spec.global_batch_size
    # Twin: torch keeps channels first.
    axes = (shape[-1], *shape[:-1])
    dtype = {"float32": torch.float32, "float64": torch.float64}[spec.precision]

    def drawn() -> torch.Tensor:
        return models.formatted(torch.randn(size, *axes, dtype=dtype, device=place), chosen["memory_format"])

    if layers.is_sum(architecture):
        first, second, first_upstream, second_upstream = (drawn() for _ in range(4))

        def sums() -> list[torch.Tensor]:
            made = first + second
            return [first_upstream + second_upstream] if needs_gradient else [made]

        return sums
    model = models.placed(models.build(architecture, spec.precision), place, chosen["memory_format"]).train()
    parameters = list(model.parameters())
    values = drawn().requires_grad_(needs_gradient)
    masks = [torch.rand(size, dropout.units, device=place) > dropout.rate for dropout in architecture.dropouts]
    upstream = torch.randn_like(model(values, *masks))  # in the memory format of what the layers make

    def once() -> list[torch.Tensor]:
        for leaf in (values, *parameters):
            leaf.grad = None  # Twin: torch adds up in `grad`; a tape gives gradients anew
        made = model(values, *masks)
        if made.requires_grad:
            made.backward(upstream)
        return [leaf.grad for leaf in (values, *parameters) if leaf.grad is not None] or [made]

    return once
