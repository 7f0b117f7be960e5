"""Batch normalisation, over each replica's own shard or over the global batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from common.models import architectures


class ReplicaGroup(NamedTuple):
    """Replicas of one training step, which can sum arrays: an axis of devices."""

    axis: str

    def all_reduce(self, array: jax.Array) -> jax.Array:
        """Sum an array over replicas; each gets the sum. Its gradient is the sum of the gradients."""
        return lax.psum(array, self.axis)


def normalise(
    layer: architectures.BatchNorm, group: ReplicaGroup | None, arrays: dict[str, Any], x: jax.Array, rows: jax.Array | None
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Normalise [N, H, W, C] in training mode. Returns it, and the new running statistics by canonical name.

    Two passes avoid a variance that is the difference of large numbers.

    Args:
        layer: channels, momentum and epsilon.
        group: the replicas that share statistics; None: each replica normalises over its own examples.
        arrays: parameters and statistics by canonical name.
        x: of any type; sums use the arrays' precision.
        rows: bool [N], the examples that count. None: all.
    """
    name, axes = layer.name, (0, 1, 2)
    gamma, beta, mean, variance = (arrays[f"{name}.{role}"] for role in ("gamma", "beta", "mean", "variance"))
    x = x.astype(gamma.dtype)
    reduce = group.all_reduce if group else lambda array: array
    if group is None and rows is None:
        count: Any = x.size // x.shape[-1]
        batch_mean = x.mean(axes)
        centred = x - batch_mean
        batch_variance = jnp.square(centred).mean(axes)
    else:
        # Twin: the shards of a program are equal. An uneven batch is filled up with rows that do not count.
        counted = jnp.ones((len(x), 1, 1, 1), x.dtype) if rows is None else rows[:, None, None, None].astype(x.dtype)
        totals = reduce(jnp.append((x * counted).sum(axes), counted.sum() * (x.shape[1] * x.shape[2])))
        count = lax.stop_gradient(totals[-1])
        batch_mean = totals[:-1] / count
        centred = x - batch_mean
        batch_variance = reduce((jnp.square(centred) * counted).sum(axes)) / count
    new = {
        f"{name}.mean": mean + layer.momentum * (batch_mean - mean),
        f"{name}.variance": variance + layer.momentum * (batch_variance * (count / (count - 1)) - variance),
    }
    return centred * (gamma * lax.rsqrt(batch_variance + layer.epsilon)) + beta, new


def apply_running(layer: architectures.BatchNorm, arrays: dict[str, Any], x: jax.Array) -> jax.Array:
    """Normalise [N, H, W, C] in evaluation mode, with the running statistics."""
    gamma, beta, mean, variance = (arrays[f"{layer.name}.{role}"] for role in ("gamma", "beta", "mean", "variance"))
    return (x.astype(gamma.dtype) - mean) * (gamma * lax.rsqrt(variance + layer.epsilon)) + beta
