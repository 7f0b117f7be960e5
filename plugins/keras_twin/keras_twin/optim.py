"""The update rules: the formulas of all twins as Keras optimizers, or Keras's own."""

from __future__ import annotations

from typing import Any, cast

import keras
from keras import ops

from common import spec


def build(settings: spec.Optimizer, variables: list[keras.Variable]) -> keras.optimizers.Optimizer:
    """Build the optimizer of a spec for a model's trainable variables."""
    optimizer = _native(settings) if settings.native else {"sgd": SGD, "adam": Adam}[settings.name](settings)
    optimizer.build(variables)
    return optimizer


def slots(optimizer: keras.optimizers.Optimizer) -> dict[str, list[keras.Variable]]:
    """Return the variables of an optimizer by slot: one for each trainable variable. Keras's own have one slot of all."""
    return optimizer.slots if isinstance(optimizer, _SharedRule) else {"native": optimizer.variables}


def _native(settings: spec.Optimizer) -> keras.optimizers.Optimizer:
    # Keras decouples weight decay, and multiplies it by the learning rate. None turns it off, 0 does not.
    weight_decay = settings.weight_decay or None
    if settings.name == "sgd":
        return keras.optimizers.SGD(settings.learning_rate, settings.momentum, weight_decay=weight_decay)
    betas = settings.beta_1, settings.beta_2
    return keras.optimizers.Adam(settings.learning_rate, *betas, settings.epsilon, weight_decay=weight_decay)


class _SharedRule(keras.optimizers.Optimizer):
    """An update rule that all twins share. Keras's own have others: see `docs/a-new-twin.md`."""

    slot_names: tuple[str, ...]

    def __init__(self, settings: spec.Optimizer) -> None:
        super().__init__(learning_rate=float(settings.learning_rate))
        self._settings = settings

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the slots."""
        if self.built:
            return
        super().build(variables)
        self.slots = {slot: self.add_optimizer_variables(variables, slot) for slot in self.slot_names}

    def _slot(self, name: str, variable: Any) -> keras.Variable:
        return self.slots[name][self._get_variable_index(variable)]

    def _with_weight_decay(self, gradient: Any, variable: Any) -> Any:
        decay = self._settings.weight_decay
        return gradient + decay * cast(Any, ops.convert_to_tensor(variable)) if decay else gradient


class SGD(_SharedRule):
    """Momentum as in PyTorch: b = momentum b + g; w = w - learning_rate b; weight decay is added to g.

    Keras's own SGD keeps learning_rate b instead, so that a schedule acts late, and decouples weight decay.
    """

    slot_names = ("buffer",)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable."""
        buffer = self._slot("buffer", variable)
        gradient = self._with_weight_decay(gradient, variable)
        self.assign(buffer, ops.add(ops.multiply(buffer, self._settings.momentum), gradient))
        self.assign_sub(variable, ops.multiply(buffer, ops.cast(learning_rate, variable.dtype)))


class Adam(_SharedRule):
    """Adam of Kingma & Ba 2015. Epsilon is added after the bias correction; weight decay is added to g.

    m = beta_1 m + (1 - beta_1) g; v = beta_2 v + (1 - beta_2) g^2;
    w = w - learning_rate / (1 - beta_1^t) m / (sqrt(v) / sqrt(1 - beta_2^t) + epsilon).
    Keras's own Adam adds epsilon before the bias correction, and decouples weight decay.
    """

    slot_names = ("mean", "square")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable."""
        beta_1, beta_2 = self._settings.beta_1, self._settings.beta_2
        step = ops.cast(ops.add(self.iterations, 1), "float64")
        correction_1, correction_2 = (
            1.0 - cast(Any, ops.power(ops.convert_to_tensor(beta, "float64"), step)) for beta in (beta_1, beta_2)
        )
        rate = ops.cast(ops.cast(learning_rate, "float64") / correction_1, variable.dtype)
        root = ops.cast(ops.sqrt(correction_2), variable.dtype)
        mean, square = self._slot("mean", variable), self._slot("square", variable)
        gradient = self._with_weight_decay(gradient, variable)
        self.assign_add(mean, ops.multiply(ops.subtract(gradient, mean), 1.0 - beta_1))
        self.assign(square, ops.add(ops.multiply(square, beta_2), ops.multiply(ops.square(gradient), 1.0 - beta_2)))
        denominator = ops.add(ops.divide(ops.sqrt(square), root), self._settings.epsilon)
        self.assign_sub(variable, ops.divide(ops.multiply(mean, rate), denominator))
