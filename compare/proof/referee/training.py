"""The referee's update rules, learning rate schedules and training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from common.models.architectures import Architecture
from compare.proof.referee.layers import Array
from compare.proof.referee.network import Gradients, RefereeBatch, Weights, gradients


@dataclass
class RefereeSGD:
    """SGD: b = momentum b + g, then w = w - learning_rate b. Weight decay adds weight_decay w to g."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    buffers: Weights = field(default_factory=dict[str, Array])

    def update(self, name: str, weight: Array, gradient: Array, learning_rate: float, step: int) -> Array:
        """Return the weight after one step; `step` counts from 1."""
        real = weight.dtype.type
        gradient = gradient + real(self.weight_decay) * weight
        self.buffers[name] = real(self.momentum) * self.buffers.get(name, np.zeros_like(weight)) + gradient
        return weight - real(learning_rate) * self.buffers[name]


@dataclass
class RefereeAdam:
    """Adam (Kingma & Ba 2015) with epsilon added after the bias correction. Weight decay adds weight_decay w to g."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    means: Weights = field(default_factory=dict[str, Array])
    squares: Weights = field(default_factory=dict[str, Array])

    def update(self, name: str, weight: Array, gradient: Array, learning_rate: float, step: int) -> Array:
        """Return the weight after one step; `step` counts from 1."""
        real, zeros = weight.dtype.type, np.zeros_like(weight)
        beta_1, beta_2 = real(self.beta_1), real(self.beta_2)
        gradient = gradient + real(self.weight_decay) * weight
        self.means[name] = beta_1 * self.means.get(name, zeros) + (1 - beta_1) * gradient
        self.squares[name] = beta_2 * self.squares.get(name, zeros) + (1 - beta_2) * gradient * gradient
        mean, square = self.means[name] / (1 - beta_1**step), self.squares[name] / (1 - beta_2**step)
        return weight - real(learning_rate) * mean / (np.sqrt(square) + real(self.epsilon))


def schedule(
    name: str, rate: float, *, step_size: int = 1, gamma: float = 1.0, warmup_steps: int = 0, steps_per_epoch: int, steps: int
) -> Callable[[int], float]:
    """Return the learning rate as a function of the step, from 1. `rate` is that of the first step, without warm-up.

    step: times gamma after each step_size epochs. exponential: after each epoch. cosine: falls at every step, to zero after
    the last one (Loshchilov & Hutter 2017, without restarts). Over `warmup_steps` a factor rises linearly to 1.
    """
    factors: dict[str, Callable[[int], float]] = {
        "constant": lambda done: 1.0,
        "step": lambda done: gamma ** (done // steps_per_epoch // step_size),
        "exponential": lambda done: gamma ** (done // steps_per_epoch),
        "cosine": lambda done: (1.0 + math.cos(math.pi * done / steps)) / 2.0,
    }
    return lambda step: rate * factors[name](step - 1) * min(step / warmup_steps if warmup_steps else 1.0, 1.0)


def train(
    architecture: Architecture,
    weights: Mapping[str, Array],
    batches: Iterable[RefereeBatch],
    optimizer: RefereeSGD | RefereeAdam,
    learning_rate: Callable[[int], float],
    dtype: Any = np.float64,
) -> Iterable[tuple[Gradients, Weights]]:
    """Train one step on each batch, in `dtype`. Yield (results of the step before its update, all arrays after it)."""
    state = {name: np.asarray(array, dtype) for name, array in weights.items()}
    for step, batch in enumerate(batches, start=1):
        result, rate = gradients(architecture, state, batch), learning_rate(step)
        updated = {name: optimizer.update(name, state[name], grad, rate, step) for name, grad in result.gradients.items()}
        state = {**state, **result.statistics, **updated}
        yield result, state
