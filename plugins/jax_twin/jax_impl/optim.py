"""The update rules: the same formulas in all twins, or the framework's own optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from common import spec
from jax_impl.models import Arrays

Slots = dict[str, Any]
"""State of an optimizer between updates: an array for each parameter, by slot."""


class PureOptimizer(Protocol):
    """Interface of an optimizer for a training step. Twin: pure functions of arrays, which the step replaces."""

    def init(self, parameters: Arrays) -> Slots:
        """Return the state before the first update."""
        ...

    def apply(self, parameters: Arrays, slots: Slots, gradients: Arrays, learning_rate: Any, step: Any) -> tuple[Arrays, Slots]:
        """Update every parameter once; `step` counts from 1. Returns the new parameters and the new state."""
        ...


def build(settings: spec.Optimizer) -> PureOptimizer:
    """Build the optimizer of a spec."""
    return (NativeOptimizer if settings.native else {"sgd": SGD, "adam": Adam}[settings.name])(settings)


class SGD:
    """Momentum as in PyTorch: b = momentum b + g; w = w - learning_rate b; weight decay is added to g.

    The buffer does not include the learning rate, so a schedule acts at once. Sutskever et al. 2013 include it.
    """

    def __init__(self, settings: spec.Optimizer) -> None:
        self._settings = settings

    def init(self, parameters: Arrays) -> Slots:
        return {"buffer": jax.tree.map(jnp.zeros_like, parameters)}

    def apply(self, parameters: Arrays, slots: Slots, gradients: Arrays, learning_rate: Any, step: Any) -> tuple[Arrays, Slots]:
        gradients, momentum = _with_weight_decay(gradients, parameters, self._settings), self._settings.momentum
        buffers = jax.tree.map(lambda buffer, gradient: momentum * buffer + gradient, slots["buffer"], gradients)
        new_parameters = jax.tree.map(
            lambda weight, buffer: weight - learning_rate.astype(weight.dtype) * buffer, parameters, buffers
        )
        return new_parameters, {"buffer": buffers}


class Adam:
    """Adam of Kingma & Ba 2015. Epsilon is added after the bias correction; weight decay is added to g.

    m = beta_1 m + (1 - beta_1) g; v = beta_2 v + (1 - beta_2) g^2;
    w = w - learning_rate / (1 - beta_1^t) m / (sqrt(v) / sqrt(1 - beta_2^t) + epsilon).
    """

    def __init__(self, settings: spec.Optimizer) -> None:
        self._settings = settings

    def init(self, parameters: Arrays) -> Slots:
        return {slot: jax.tree.map(jnp.zeros_like, parameters) for slot in ("mean", "square")}

    def apply(self, parameters: Arrays, slots: Slots, gradients: Arrays, learning_rate: Any, step: Any) -> tuple[Arrays, Slots]:
        gradients = _with_weight_decay(gradients, parameters, self._settings)
        beta_1, beta_2 = self._settings.beta_1, self._settings.beta_2
        correction_1, correction_2 = (1.0 - jnp.float64(beta) ** step for beta in (beta_1, beta_2))
        rate, root = learning_rate / correction_1, jnp.sqrt(correction_2)
        means = jax.tree.map(lambda mean, gradient: mean + (1.0 - beta_1) * (gradient - mean), slots["mean"], gradients)
        squares = jax.tree.map(
            lambda square, gradient: beta_2 * square + (1.0 - beta_2) * jnp.square(gradient), slots["square"], gradients
        )

        def updated(weight: jax.Array, mean: jax.Array, square: jax.Array) -> jax.Array:
            denominator = jnp.sqrt(square) / root.astype(weight.dtype) + self._settings.epsilon
            return weight - rate.astype(weight.dtype) * mean / denominator

        return jax.tree.map(updated, parameters, means, squares), {"mean": means, "square": squares}


class NativeOptimizer:
    """Optax's SGD or Adam with the spec's settings. Its rule differs between the twins."""

    def __init__(self, settings: spec.Optimizer) -> None:
        import optax  # here: no other rule needs it

        rule = (
            optax.trace(settings.momentum)
            if settings.name == "sgd"
            else optax.scale_by_adam(settings.beta_1, settings.beta_2, settings.epsilon)
        )
        self._transform: Any = optax.chain(optax.add_decayed_weights(settings.weight_decay), rule)

    def init(self, parameters: Arrays) -> Slots:
        return {"native": self._transform.init(parameters)}

    def apply(self, parameters: Arrays, slots: Slots, gradients: Arrays, learning_rate: Any, step: Any) -> tuple[Arrays, Slots]:
        moves, new_slots = self._transform.update(gradients, slots["native"], parameters)
        new_parameters = jax.tree.map(
            lambda weight, move: weight - learning_rate.astype(weight.dtype) * move, parameters, moves
        )
        return new_parameters, {"native": new_slots}


def state(slots: Slots) -> dict[str, np.ndarray]:
    """Return the state of an optimizer between updates, by name: `<slot>/<parameter>`."""
    return {_name(path): np.array(array) for path, array in jax.tree.leaves_with_path(slots)}


def load_state(slots: Slots, values: Mapping[str, Any]) -> Slots:
    """Return `slots` with the values that `state` returned."""
    return jax.tree.map_with_path(lambda path, array: jnp.array(values[_name(path)], array.dtype), slots)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _with_weight_decay(gradients: Arrays, parameters: Arrays, settings: spec.Optimizer) -> Arrays:
    if not settings.weight_decay:
        return gradients
    return jax.tree.map(lambda gradient, weight: gradient + settings.weight_decay * weight, gradients, parameters)
