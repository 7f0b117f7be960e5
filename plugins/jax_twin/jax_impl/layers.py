"""Single layers, forward and backward, as in a training step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.models.architectures import Architecture
from common.spec import Spec
from common.training import layers
from jax_impl import device, models, switches


def passes(
    spec: Spec, architecture: Architecture, shape: tuple[int, ...], needs_gradient: bool
) -> Callable[[], list[jax.Array]]:
    """Build a function that runs layers once, forward and backward, on one batch of random values."""
    switch_values = switches.switches_for(spec, device.kind())
    layers.refuse_switches(switch_values, {"arithmetic": "full"})
    size, keys = spec.global_batch_size, iter(jax.random.split(jax.random.key(0), 100))
    last: list[jax.Array] = []

    def random_values(shape: tuple[int, ...]) -> jax.Array:
        return jax.random.normal(next(keys), (size, *shape), spec.precision)

    def keep_result(graph: Callable[[], list[jax.Array]]) -> Callable[[], list[jax.Array]]:
        def call() -> list[jax.Array]:
            last[:] = graph()  # Twin: `synchronize` waits for what is held
            return last

        return call

    if layers.is_residual_sum(architecture):
        sums = jax.jit(lambda pair, upstream: [upstream[0] + upstream[1] if needs_gradient else pair[0] + pair[1]])
        pair, upstream = ((random_values(shape), random_values(shape)) for _ in range(2))
        return keep_result(lambda: sums(pair, upstream))
    if shapes := layers.concatenated_shapes(architecture, shape):
        # XLA leaves out what nothing needs, so all of it is returned.
        graph = jax.jit(lambda parts, gradients, upstream: [
            jnp.concatenate(parts, -1),
            functools.reduce(jnp.add, gradients),
            *jnp.split(upstream, np.cumsum([branch.shape[-1] for branch in parts])[:-1], -1),
        ])  # fmt: skip
        parts, gradients = [random_values(branch_shape) for branch_shape in shapes], [random_values(shape) for _ in shapes]
        upstream_values = random_values((*shapes[0][:-1], sum(branch_shape[-1] for branch_shape in shapes)))
        return keep_result(lambda: [graph(parts, gradients, upstream_values)[1 if needs_gradient else 0]])
    model = models.build(architecture, spec.precision, depthwise=switch_values["depthwise"])
    values = random_values(shape)
    masks = [random_values((dropout.units,)) > 0 for dropout in architecture.dropouts]

    def forward(parameters: Any, values: Any, masks: Any) -> jax.Array:
        return model.network({**parameters, **model.statistics}, values, masks, True)[0]

    upstream = random_values(jax.eval_shape(forward, model.parameters, values, masks).shape[1:])

    @jax.jit
    def graph(parameters: Any, values: Any, masks: Any, upstream: Any) -> list[jax.Array]:
        # The output is returned too, because XLA leaves out what nothing needs.
        if needs_gradient:
            output, pullback = jax.vjp(lambda *arguments: forward(*arguments, masks), parameters, values)
        else:
            output, pullback = jax.vjp(lambda parameters: forward(parameters, values, masks), parameters)
        return [*jax.tree.leaves(pullback(upstream)[::-1]), output]

    def run_once() -> list[jax.Array]:
        *gradients, output = graph(model.parameters, values, masks, upstream)
        return gradients or [output]

    return keep_result(run_once)
