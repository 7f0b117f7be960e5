"""The twins' update rules in NumPy, for parameters that no framework holds, and the interface of the twins' optimizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from common import spec

Array = npt.NDArray[np.floating[Any]]


class TwinOptimizer(Protocol):
    """Interface of a twin's optimizer for a training step."""

    def apply(self, gradients: list[Any], learning_rate: Any, step: Any) -> None:
        """Update every variable once; `step` counts from 1."""
        ...

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the optimizer's state between updates, by name."""
        ...

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        """Restore what `state` returned. The optimizer must have the same settings."""
        ...


def build(settings: spec.Optimizer, variables: list[Array]) -> NumpySGD | NumpyAdam:
    """Build the optimizer of a spec. It changes these arrays in place and computes in their dtype."""
    return {"sgd": NumpySGD, "adam": NumpyAdam}[settings.name](settings, variables)


class NumpySGD:
    """Momentum as in PyTorch: b = momentum b + g; w = w - learning_rate b; weight decay is added to g.

    The learning rate stands outside the buffer, so that a schedule acts at once (Sutskever et al. 2013 fold it in).
    """

    def __init__(self, settings: spec.Optimizer, variables: list[Array]) -> None:
        self._settings = settings
        self._variables = variables
        self._buffers = [np.zeros_like(variable) for variable in variables]

    def apply(self, gradients: Iterable[Array], learning_rate: float, step: int) -> None:
        """Update every variable once; `step` counts from 1."""
        for variable, gradient, buffer in zip(self._variables, gradients, self._buffers, strict=True):
            buffer *= self._settings.momentum
            buffer += _with_weight_decay(gradient, variable, self._settings)
            variable -= learning_rate * buffer

    def slots(self) -> dict[str, list[Array]]:
        """Return the state between updates: for each slot an array of each variable."""
        return {"buffer": self._buffers}


class NumpyAdam:
    """Kingma & Ba 2015, epsilon added after the bias correction; weight decay is added to g.

    m = beta_1 m + (1 - beta_1) g; v = beta_2 v + (1 - beta_2) g^2;
    w = w - learning_rate / (1 - beta_1^t) m / (sqrt(v) / sqrt(1 - beta_2^t) + epsilon).
    """

    def __init__(self, settings: spec.Optimizer, variables: list[Array]) -> None:
        self._settings = settings
        self._variables = variables
        self._means = [np.zeros_like(variable) for variable in variables]
        self._squares = [np.zeros_like(variable) for variable in variables]

    def apply(self, gradients: Iterable[Array], learning_rate: float, step: int) -> None:
        """Update every variable once; `step` counts from 1."""
        beta_1, beta_2 = self._settings.beta_1, self._settings.beta_2
        correction_1, correction_2 = 1.0 - beta_1**step, 1.0 - beta_2**step
        for variable, gradient, mean, square in zip(self._variables, gradients, self._means, self._squares, strict=True):
            gradient = _with_weight_decay(gradient, variable, self._settings)
            mean += (1.0 - beta_1) * (gradient - mean)
            square *= beta_2
            square += (1.0 - beta_2) * np.square(gradient)
            denominator = np.sqrt(square)
            denominator /= correction_2**0.5
            denominator += self._settings.epsilon
            variable -= learning_rate / correction_1 * mean / denominator

    def slots(self) -> dict[str, list[Array]]:
        """Return the state between updates: for each slot an array of each variable."""
        return {"mean": self._means, "square": self._squares}


def _with_weight_decay(gradient: Array, variable: Array, settings: spec.Optimizer) -> Array:
    return gradient + settings.weight_decay * variable if settings.weight_decay else gradient
