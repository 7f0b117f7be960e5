"""The update rules: the same formula in both twins, and the framework's own optimizers by choice."""

from __future__ import annotations

from typing import Any, Protocol

import keras
import numpy.typing as npt
import tensorflow as tf

from common import spec

_FIRST_LOSS_SCALE = 2.0**15
_GROWTH_STEPS = 2000


class Optimizer(Protocol):
    """What a training step asks of an optimizer."""

    def apply(self, gradients: list[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Update every variable once; `step` counts from 1."""
        ...

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What it keeps from one update to the next, by name."""
        ...

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` gave of an optimizer of the same settings."""
        ...


def build(settings: spec.Optimizer, variables: list[Any], switches: dict[str, Any] | None = None) -> Optimizer:
    """The optimizer of a spec for a model's trainable variables.

    Args:
        settings: of the spec.
        variables: in the order in which it will be given their gradients.
        switches: the framework's, as the run has them; None: as nothing but the rule needs them.
    """
    chosen = switches or {}
    built: Optimizer = (Native if settings.native else {"sgd": SGD, "adam": Adam}[settings.name])(settings, variables)
    return LossScaled(built) if chosen.get("arithmetic") == "float16" else built


class SGD:
    """Momentum as in PyTorch: b = momentum b + g; w = w - learning_rate b; weight decay is added to g.

    The learning rate stands outside the buffer, so that a schedule acts at once (Sutskever et al. 2013 fold it in).
    """

    def __init__(self, settings: spec.Optimizer, variables: list[Any]) -> None:
        self._settings = settings
        self._variables = [variable.value for variable in variables]
        self._buffers = _zeros_like(self._variables)

    def apply(self, gradients: list[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Update every variable once; `step` counts from 1."""

        def update(variable: Any, gradient: tf.Tensor, buffer: Any) -> None:
            # Twin: the fused kernel states this very formula, in the variable's own precision.
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=buffer.handle,
                lr=tf.cast(learning_rate, variable.dtype),
                grad=_decayed(gradient, variable, self._settings),
                momentum=tf.constant(self._settings.momentum, variable.dtype),
            )

        _update_all(update, self._variables, gradients, self._buffers)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What it keeps from one update to the next, by name."""
        return _values(buffer=self._buffers)

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` gave of an optimizer of the same settings."""
        _assign(values, buffer=self._buffers)


class Adam:
    """Kingma & Ba 2015, epsilon added after the bias correction; weight decay is added to g.

    m = beta_1 m + (1 - beta_1) g; v = beta_2 v + (1 - beta_2) g^2;
    w = w - learning_rate / (1 - beta_1^t) m / (sqrt(v) / sqrt(1 - beta_2^t) + epsilon).
    """

    def __init__(self, settings: spec.Optimizer, variables: list[Any]) -> None:
        self._settings = settings
        self._variables = [variable.value for variable in variables]
        self._means = _zeros_like(self._variables)
        self._squares = _zeros_like(self._variables)

    def apply(self, gradients: list[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Update every variable once; `step` counts from 1."""
        beta_1 = tf.constant(self._settings.beta_1, tf.float64)
        beta_2 = tf.constant(self._settings.beta_2, tf.float64)
        power_1, power_2 = beta_1 ** tf.cast(step, tf.float64), beta_2 ** tf.cast(step, tf.float64)
        # Twin: the fused kernel adds its epsilon before the bias correction; scaled like this it is the formula above.
        epsilon = tf.constant(self._settings.epsilon, tf.float64) * tf.sqrt(1.0 - power_2)
        numbers = {"lr": learning_rate, "beta1_power": power_1, "beta2_power": power_2, "beta1": beta_1, "beta2": beta_2}

        def update(variable: Any, gradient: tf.Tensor, mean: Any, square: Any) -> None:
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=mean.handle,
                v=square.handle,
                grad=_decayed(gradient, variable, self._settings),
                epsilon=tf.cast(epsilon, variable.dtype),
                **{name: tf.cast(number, variable.dtype) for name, number in numbers.items()},
            )

        _update_all(update, self._variables, gradients, self._means, self._squares)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What it keeps from one update to the next, by name."""
        return _values(mean=self._means, square=self._squares)

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` gave of an optimizer of the same settings."""
        _assign(values, mean=self._means, square=self._squares)


class Native:
    """The framework's own SGD or Adam with the spec's numbers; its rule differs between the twins."""

    def __init__(self, settings: spec.Optimizer, variables: list[Any]) -> None:
        self._variables = variables
        # Twin: Keras decouples weight decay (AdamW) and multiplies it with the learning rate; None, not 0, turns it off.
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
        # Keras would add the replicas' gradients up once more.
        self._optimizer._all_reduce_sum_gradients = list
        self._optimizer.build(variables)

    def apply(self, gradients: list[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Update every variable once; `step` counts from 1."""
        self._optimizer.learning_rate.assign(tf.cast(learning_rate, tf.float32))
        self._optimizer.apply(gradients, self._variables)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What it keeps from one update to the next, by name."""
        return _values(variable=self._optimizer.variables)

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` gave of an optimizer of the same settings."""
        _assign(values, variable=self._optimizer.variables)


class LossScaled:
    """Another optimizer under a scaled loss, so that float16 does not round small gradients to 0 (Micikevicius et al. 2018).

    Where a gradient is not finite the step is skipped and the scale halved; after 2,000 steps without that it is doubled.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._kept = tf.Variable(tf.constant([_FIRST_LOSS_SCALE, 0.0, 0.0], tf.float64), trainable=False)

    @property
    def scale(self) -> tf.Tensor:
        return self._kept[0]

    def apply(self, gradients: list[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Update every variable once, or skip the step; `step` counts from 1."""
        scale, good, skipped = tf.unstack(self._kept.value())

        def update() -> tf.Tensor:
            self._optimizer.apply(gradients, learning_rate, step - tf.cast(skipped, step.dtype))
            grown = tf.where((good + 1.0) % _GROWTH_STEPS == 0.0, scale * 2.0, scale)
            return tf.stack([grown, good + 1.0, skipped])

        def skip() -> tf.Tensor:
            return tf.stack([tf.maximum(scale / 2.0, 1.0), tf.zeros_like(good), skipped + 1.0])

        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
        self._kept.assign(tf.cond(finite, update, skip))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What it keeps from one update to the next, by name."""
        return {**self._optimizer.state(), "loss_scale": self._kept.numpy()}

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` gave of an optimizer of the same settings."""
        others = dict(values)
        self._kept.assign(others.pop("loss_scale"))
        self._optimizer.load_state(others)


def _values(**kept: list[Any]) -> dict[str, npt.NDArray[Any]]:
    return {f"{name}/{index}": one.numpy() for name, each in kept.items() for index, one in enumerate(each)}


def _assign(values: dict[str, npt.NDArray[Any]], **kept: list[Any]) -> None:
    for name, each in kept.items():
        for index, one in enumerate(each):
            one.assign(values[f"{name}/{index}"])


def _zeros_like(variables: list[Any]) -> list[tf.Variable]:
    """A variable beside each of these, on the same device."""
    return [_zeros(variable) for variable in variables]


def _zeros(variable: Any) -> tf.Variable:
    with tf.device(variable.device):
        return tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)


def _decayed(gradient: tf.Tensor, variable: Any, settings: spec.Optimizer) -> tf.Tensor:
    if not settings.weight_decay:
        return gradient
    return gradient + tf.constant(settings.weight_decay, variable.dtype) * variable


def _update_all(update: Any, variables: list[Any], gradients: list[tf.Tensor], *slots: list[Any]) -> None:
    """Update every replica's copy of the variables with that replica's gradients."""

    # Twin: a strategy wants its variables updated outside of the replicas.
    def merged(strategy: tf.distribute.Strategy, gradients: list[Any]) -> None:
        for variable, *arguments in zip(variables, gradients, *slots, strict=True):
            strategy.extended.update(variable, update, args=tuple(arguments), group=False)

    tf.distribute.get_replica_context().merge_call(merged, args=(gradients,))
