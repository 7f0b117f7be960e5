"""Single layers, forward and backward, as in a training step."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from common.models.architectures import Architecture
from common.spec import Spec
from common.training import layers
from pytorch_impl import device, models, switches


def passes(
    spec: Spec, architecture: Architecture, shape: tuple[int, ...], needs_gradient: bool
) -> Callable[[], list[torch.Tensor]]:
    """Build a function that runs layers once, forward and backward, on one batch of random values.

    Args:
        spec: of a run; its batch size, precision and switches apply.
        shape: [H, W, C] or [features] of one example of the input.
        needs_gradient: whether to compute the gradient of the input.

    Returns:
        A function that returns gradients: of the input if needed, then of the variables. Without any gradient it returns the
            layers' output.

    Raises:
        SpecError: a switch applies to a whole step only, not to single layers.
    """
    chosen = switches.of(spec, device.kind())
    layers.refuse_switches(chosen, {"arithmetic": "full", "graph": "eager"})
    place, size = torch.device(device.kind()), spec.global_batch_size

    def drawn(shape: tuple[int, ...] = shape) -> torch.Tensor:
        # Twin: torch keeps channels first.
        values = torch.randn(size, shape[-1], *shape[:-1], dtype=device.dtype(spec), device=place)
        return models.formatted(values, chosen["memory_format"])

    if layers.is_residual_sum(architecture):
        first, second, first_upstream, second_upstream = (drawn() for _ in range(4))

        def sums() -> list[torch.Tensor]:
            made = first + second
            return [first_upstream + second_upstream] if needs_gradient else [made]

        return sums
    if shapes := layers.concatenated_shapes(architecture, shape):
        branches, gradients = [drawn(each) for each in shapes], [drawn() for _ in shapes]

        # Twin: torch's gradients of the branches are views of the output's gradient. TensorFlow copies them.
        def concatenation() -> list[torch.Tensor]:
            made = torch.cat(branches, 1)
            return [functools.reduce(torch.add, gradients)] if needs_gradient else [made]

        return concatenation
    model = models.placed(models.build(architecture, spec.precision), place, chosen["memory_format"]).train()
    parameters = list(model.parameters())
    values = drawn().requires_grad_(needs_gradient)
    masks = [torch.rand(size, dropout.units, device=place) > dropout.rate for dropout in architecture.dropouts]
    upstream = torch.randn_like(model(values, *masks))  # in the memory format of the output

    def once() -> list[torch.Tensor]:
        for leaf in (values, *parameters):
            leaf.grad = None  # Twin: torch accumulates in `grad`; a tape returns new gradients
        made = model(values, *masks)
        if made.requires_grad:
            made.backward(upstream)
        return [leaf.grad for leaf in (values, *parameters) if leaf.grad is not None] or [made]

    return once
