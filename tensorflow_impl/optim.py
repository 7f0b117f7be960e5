"""The update rules: the same formulas in both twins, or the framework's own optimizers."""

from __future__ import annotations

from typing import Any

import keras
import numpy.typing as npt
import tensorflow as tf

from common import spec
from common.training.optim import TwinOptimizer
from tensorflow_impl import device, private_api

_FIRST_LOSS_SCALE = 2.0**15
_GROWTH_STEPS = 2000


def build(settings: spec.Optimizer, variables: list[Any], switches: dict[str, Any] | None = None) -> TwinOptimizer:
    """Build the optimizer for a model's trainable variables.

    Args:
        variables: in the order of the gradients that `apply` gets.
        switches: the run's resolved switches; None: only the update rule matters.
    """
    switch_values = switches or {}
    optimizer: TwinOptimizer = (NativeOptimizer if settings.native else {"sgd": SGD, "adam": Adam}[settings.name])(
        settings, variables
    )
    return LossScaled(optimizer) if switch_values.get("arithmetic") == "float16" else optimizer


class SGD:
    """Momentum as in PyTorch: b = momentum b + g; w = w - learning_rate b; weight decay is added to g.

    The buffer does not include the learning rate, so a schedule acts at once. Sutskever et al. 2013 include it.
    """

    def __init__(self, settings: spec.Optimizer, variables: list[Any]) -> None:
        self._settings = settings
        self._variables = [variable.value for variable in variables]
        self._buffers = _zeros_like(self._variables)

    def apply(self, gradients: list[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        def update(variable: Any, gradient: tf.Tensor, buffer: Any) -> None:
            # Twin: the fused kernel computes exactly this formula, in the variable's precision.
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=buffer.handle,
                lr=tf.cast(learning_rate, variable.dtype),
                grad=_with_weight_decay(gradient, variable, self._settings),
                momentum=tf.constant(self._settings.momentum, variable.dtype),
            )

        _update_all(update, self._variables, gradients, self._buffers)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return _values(buffer=self._buffers)

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        _assign(values, buffer=self._buffers)


class Adam:
    """Adam of Kingma & Ba 2015. Epsilon is added after the bias correction; weight decay is added to g.

    m = beta_1 m + (1 - beta_1) g; v = beta_2 v + (1 - beta_2) g^2;
    w = w - learning_rate / (1 - beta_1^t) m / (sqrt(v) / sqrt(1 - beta_2^t) + epsilon).
    """

    def __init__(self, settings: spec.Optimizer, variables: list[Any]) -> None:
        self._settings = settings
        self._variables = [variable.value for variable in variables]
        self._means = _zeros_like(self._variables)
        self._squares = _zeros_like(self._variables)

    def apply(self, gradients: list[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        beta_1 = tf.constant(self._settings.beta_1, tf.float64)
        beta_2 = tf.constant(self._settings.beta_2, tf.float64)
        power_1, power_2 = beta_1 ** tf.cast(step, tf.float64), beta_2 ** tf.cast(step, tf.float64)
        # Twin: the fused kernel adds epsilon before the bias correction. This scaling makes it the formula above.
        epsilon = tf.constant(self._settings.epsilon, tf.float64) * tf.sqrt(1.0 - power_2)
        numbers = {"lr": learning_rate, "beta1_power": power_1, "beta2_power": power_2, "beta1": beta_1, "beta2": beta_2}

        def update(variable: Any, gradient: tf.Tensor, mean: Any, square: Any) -> None:
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=mean.handle,
                v=square.handle,
                grad=_with_weight_decay(gradient, variable, self._settings),
                epsilon=tf.cast(epsilon, variable.dtype),
                **{name: tf.cast(number, variable.dtype) for name, number in numbers.items()},
            )

        _update_all(update, self._variables, gradients, self._means, self._squares)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return _values(mean=self._means, square=self._squares)

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        _assign(values, mean=self._means, square=self._squares)


class NativeOptimizer:
    """The framework's own SGD or Adam with the spec's settings. Its rule differs between the twins."""

    def __init__(self, settings: spec.Optimizer, variables: list[Any]) -> None:
        self._variables = variables
        # Twin: Keras decouples weight decay (AdamW) and multiplies it by the learning rate. None turns it off, 0 does not.
        weight_decay = settings.weight_decay or None
        if settings.name == "sgd":
            self._optimizer: Any = keras.optimizers.SGD(
                settings.learning_rate, momentum=settings.momentum, weight_decay=weight_decay
            )
        else:
            self._optimizer = keras.optimizers.Adam(
                settings.learning_rate,
                beta_1=settings.beta_1,
                beta_2=settings.beta_2,
                epsilon=settings.epsilon,
                weight_decay=weight_decay,
            )
        private_api.leave_gradients_unsummed(self._optimizer)
        self._optimizer.build(variables)

    def apply(self, gradients: list[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        self._optimizer.learning_rate.assign(tf.cast(learning_rate, tf.float32))
        self._optimizer.apply(gradients, self._variables)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return _values(variable=self._optimizer.variables)

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        _assign(values, variable=self._optimizer.variables)


class LossScaled:
    """An optimizer under a scaled loss, which keeps float16 from rounding small gradients to 0 (Micikevicius et al. 2018).

    A gradient that is not finite skips the step and halves the scale. After 2,000 applied steps in a row the scale doubles.
    """

    def __init__(self, optimizer: TwinOptimizer) -> None:
        self._optimizer = optimizer
        self._scale_state = tf.Variable(tf.constant([_FIRST_LOSS_SCALE, 0.0, 0.0], tf.float64), trainable=False)

    @property
    def scale(self) -> tf.Tensor:
        return self._scale_state[0]

    def apply(self, gradients: list[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Update every variable once, or skip the step; `step` counts from 1."""
        scale, applied_in_a_row, skipped = tf.unstack(self._scale_state.value())

        def update() -> tf.Tensor:
            self._optimizer.apply(gradients, learning_rate, step - tf.cast(skipped, step.dtype))
            new_scale = tf.where((applied_in_a_row + 1.0) % _GROWTH_STEPS == 0.0, scale * 2.0, scale)
            return tf.stack([new_scale, applied_in_a_row + 1.0, skipped])

        def skip() -> tf.Tensor:
            return tf.stack([tf.maximum(scale / 2.0, 1.0), tf.zeros_like(applied_in_a_row), skipped + 1.0])

        is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
        self._scale_state.assign(tf.cond(is_finite, update, skip))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {**self._optimizer.state(), "loss_scale": self._scale_state.numpy()}

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        others = dict(values)
        self._scale_state.assign(others.pop("loss_scale"))
        self._optimizer.load_state(others)


def _values(**slots: list[Any]) -> dict[str, npt.NDArray[Any]]:
    return {
        f"{name}/{index}": device.copies(variable)[0].numpy()
        for name, variables in slots.items()
        for index, variable in enumerate(variables)
    }


def _assign(values: dict[str, npt.NDArray[Any]], **slots: list[Any]) -> None:
    for name, variables in slots.items():
        for index, variable in enumerate(variables):
            for copy in device.copies(variable):
                copy.assign(values[f"{name}/{index}"])


def _zeros_like(variables: list[Any]) -> list[tf.Variable]:
    """Create a variable of zeros for each of these, on the same device."""
    return [_zeros(variable) for variable in variables]


def _zeros(variable: Any) -> tf.Variable:
    with tf.device(variable.device):
        return tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)


def _with_weight_decay(gradient: tf.Tensor, variable: Any, settings: spec.Optimizer) -> tf.Tensor:
    if not settings.weight_decay:
        return gradient
    return gradient + tf.constant(settings.weight_decay, variable.dtype) * variable


def _update_all(update: Any, variables: list[Any], gradients: list[tf.Tensor], *slots: list[Any]) -> None:
    """Update every replica's copy of the variables with that replica's gradients."""

    # Twin: a strategy requires that its variables are updated outside the replicas.
    def update_in_strategy(strategy: tf.distribute.Strategy, gradients: list[Any]) -> None:
        for variable, *arguments in zip(variables, gradients, *slots, strict=True):
            strategy.extended.update(variable, update, args=tuple(arguments), group=False)

    tf.distribute.get_replica_context().merge_call(update_in_strategy, args=(gradients,))
