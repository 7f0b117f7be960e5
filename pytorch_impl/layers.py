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
        spec: a run's spec; its batch size, precision and switches apply.
        shape: [H, W, C] or [features] of one example of the input.
        needs_gradient: whether to compute the gradient of the input.

    Returns:
        A function that returns gradients: of the input if needed, then of the variables. Without any gradient it returns the
            layers' output.
    """
    switch_values = switches.switches_for(spec, device.kind())
    layers.refuse_switches(switch_values, {"arithmetic": "full", "graph": "eager"})
    place, size = torch.device(device.kind()), spec.global_batch_size

    def random_values(shape: tuple[int, ...] = shape) -> torch.Tensor:
        # Twin: torch keeps channels first.
        values = torch.randn(size, shape[-1], *shape[:-1], dtype=device.dtype(spec), device=place)
        return models.to_memory_format(values, switch_values["memory_format"])

    if layers.is_residual_sum(architecture):
        first, second, first_upstream, second_upstream = (random_values() for _ in range(4))

        def sums() -> list[torch.Tensor]:
            output = first + second
            return [first_upstream + second_upstream] if needs_gradient else [output]

        return sums
    if shapes := layers.concatenated_shapes(architecture, shape):
        branches, gradients = [random_values(branch_shape) for branch_shape in shapes], [random_values() for _ in shapes]

        # Twin: torch's gradients of the branches are views of the output's gradient. TensorFlow copies them.
        def concatenation() -> list[torch.Tensor]:
            output = torch.cat(branches, 1)
            return [functools.reduce(torch.add, gradients)] if needs_gradient else [output]

        return concatenation
    model = models.to_device(models.build(architecture, spec.precision), place, switch_values["memory_format"]).train()
    parameters = list(model.parameters())
    values = random_values().requires_grad_(needs_gradient)
    masks = [torch.rand(size, dropout.units, device=place) > dropout.rate for dropout in architecture.dropouts]
    upstream = torch.randn_like(model(values, *masks))  # in the memory format of the output

    def run_once() -> list[torch.Tensor]:
        for leaf in (values, *parameters):
            leaf.grad = None  # Twin: torch accumulates in `grad`; a tape returns new gradients
        output = model(values, *masks)
        if output.requires_grad:
            output.backward(upstream)
        return [leaf.grad for leaf in (values, *parameters) if leaf.grad is not None] or [output]

    return run_once
