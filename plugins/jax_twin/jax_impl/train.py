"""Loss, gradients and update of one training step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from common.models.input_scaling import InputScaling
from common.training.trainer import Update
from jax_impl import input, optim
from jax_impl.models import Arrays, Network


class TrainingState(NamedTuple):
    """The arrays that a training step replaces."""

    parameters: Arrays
    statistics: Arrays
    slots: optim.Slots


class ShardArrays(NamedTuple):
    """One replica's shard of a batch, see `Batch`. `rows`: bool [N], mask of the examples that count. None: all."""

    images: Any
    labels: Any
    masks: Any
    rows: Any = None


def share_of_loss(logits: jax.Array, labels: jax.Array, num_examples: Any, loss: str, rows: Any = None) -> jax.Array:
    """Return these examples' share of the mean cross-entropy over the global batch: their sum divided by num_examples.

    The shares of all replicas sum to the mean over examples, even with uneven shards.
    """
    logs = jax.nn.log_softmax(logits)
    if loss == "categorical_crossentropy":
        losses = -(jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype) * logs).sum(1)
    else:
        losses = -jnp.take_along_axis(logs, labels[:, None], 1)[:, 0]
    losses = losses if rows is None else jnp.where(rows, losses, 0.0)
    return losses.sum() / jnp.asarray(num_examples).astype(logits.dtype)


class Objective:
    """The function that a run minimises. A trainer creates one for all its steps."""

    def __init__(self, loss: str, scaling: InputScaling, precision: str) -> None:
        self.loss, self.scaling, self.precision = loss, scaling, precision

    def forward(
        self, network: Network, parameters: Arrays, statistics: Arrays, examples: ShardArrays, num_examples: Any
    ) -> tuple[jax.Array, tuple[jax.Array, Arrays]]:
        """Run the forward pass of a training step."""
        images = input.scale(examples.images, self.precision, self.scaling)
        logits, new = network({**parameters, **statistics}, images, examples.masks, True, examples.rows)
        right = logits.argmax(1) == examples.labels
        right = right if examples.rows is None else right & examples.rows
        share = share_of_loss(logits, examples.labels, num_examples, self.loss, examples.rows)
        return share, (right.sum(), {**statistics, **new})

    def gradients(
        self, network: Network, parameters: Arrays, statistics: Arrays, examples: ShardArrays, update: Update
    ) -> tuple[jax.Array, jax.Array, Arrays, Arrays]:
        """Compute the gradients of one update: forward and backward, one micro-batch after the other."""
        # Twin: JAX makes a function of gradients from the function of the loss.
        differentiated = jax.value_and_grad(partial(self.forward, network), has_aux=True)
        size = len(examples.labels) // update.micro_batches
        total: Any = None
        for first in range(0, size * update.micro_batches, size):
            micro_batch = jax.tree.map(lambda values, first=first: values[first : first + size], examples)
            (share, (right, statistics)), gradients = differentiated(parameters, statistics, micro_batch, update.num_examples)
            sums = share, right, gradients
            total = sums if total is None else jax.tree.map(jnp.add, total, sums)
        return *total, statistics


def train_step(
    objective: Objective,
    network: Network,
    optimizer: optim.PureOptimizer,
    state: TrainingState,
    examples: ShardArrays,
    update: Update,
    exchange: Callable[[Any], Any] = lambda values: values,
) -> tuple[TrainingState, tuple[jax.Array, jax.Array]]:
    """Update the state once on one batch of N examples."""
    loss, num_correct, gradients, statistics = objective.gradients(
        network, state.parameters, state.statistics, examples, update
    )
    gradients, loss, num_correct = exchange((gradients, loss, num_correct))
    parameters, slots = optimizer.apply(state.parameters, state.slots, gradients, update.learning_rate, update.step)
    return TrainingState(parameters, statistics, slots), (loss, num_correct)
