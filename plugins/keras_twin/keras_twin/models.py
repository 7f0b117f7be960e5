"""The CNNs, built from `common.models.architectures` as functional Keras models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import keras
import numpy as np
import numpy.typing as npt
from keras import ops

from common.models import architectures
from common.models.architectures import Architecture, Layer
from common.models.input_scaling import InputScaling

SumOverReplicas = Callable[[Any], Any]
"""Function that sums a tensor over the replicas of a step."""


def build(
    architecture: Architecture, precision: str, scaling: InputScaling, statistics_sum: SumOverReplicas | None = None
) -> TrainedModel:
    """Build a model.

    The model takes images uint8 [N, H, W, 3], and a dropout mask bool [N, units] for each dropout. It returns logits.

    Args:
        precision: `float32` or `float64`; the dtype of weights and logits.
        scaling: how pixels become the network's input.
        statistics_sum: sums BatchNorm's statistics over replicas, differentiably. None: each has those of its own examples.
    """
    # Optimizers, losses and metrics take their precision from here.
    keras.config.set_floatx(precision)
    keras.config.set_dtype_policy(precision)
    size = architecture.image_size
    images = keras.Input((size, size, 3), dtype="uint8", name="images")
    masks = [keras.Input((dropout.units,), dtype="bool", name=f"{dropout.name}_mask") for dropout in architecture.dropouts]
    scale_and_offset: list[Any] = [np.asarray(values, precision) for values in (scaling.factor, scaling.offset or 0.0)]
    scaled = keras.layers.Rescaling(*scale_and_offset, name="scaled")(images)
    logits = _Builder(iter(masks), statistics_sum).through(architecture.layers, scaled)
    return TrainedModel([images, *masks], logits, name=architecture.name)


def inputs(model: keras.Model, images: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
    """Return all inputs of a model for images uint8 [N, H, W, 3] in evaluation mode, which reads no masks."""
    return [images, *(np.ones((len(images), mask.shape[1]), bool) for mask in model.inputs[1:])]


def summarize(architecture: Architecture) -> dict[str, Any]:
    """Describe a built model: each layer's name, kind, output shape (NHWC) and number of values, JSON-ready."""
    model = build(architecture, "float32", InputScaling())
    layers: list[dict[str, Any]] = []
    for layer in architecture.leaves():
        if not isinstance(layer, architectures.ReLU):
            built = model.get_layer(layer.name)
            layers.append({
                "name": layer.name,
                "kind": type(layer).__name__,
                "output_shape": list(built.output.shape[1:]),
                "values": _size(built.variables),
            })  # fmt: skip
    return {
        "framework": f"keras-{keras.backend.backend()}",
        "model": architecture.name,
        "layers": layers,
        "values": num_values(model)[0],
        "trainable_values": num_values(model)[1],
    }


def num_values(model: keras.Model) -> tuple[int, int]:
    """Count the values of a built model: (all, trainable)."""
    return _size(model.weights), _size(model.trainable_variables)


def _size(variables: list[Any]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)


class TrainedModel(keras.Model):
    """A model whose `train_step`, Keras's own, logs the loss of the step and the number of right predictions.

    Keras's own logs are means over the epoch so far.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.step_loss = _Last(name="step_loss")
        self.sum_over_replicas: SumOverReplicas = lambda tensor: tensor

    def get_layer(self, name: str) -> Any:
        """Return a layer by its name in the architecture."""
        return super().get_layer(name.replace(".", "-"))

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Compute the loss as Keras does, and keep it."""
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        self.step_loss.update_state(loss)
        return loss

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Return `loss` and `num_correct` of this batch, over all replicas."""
        num_correct = ops.sum(ops.cast(ops.equal(ops.argmax(y_pred, -1), ops.cast(y, "int64")), "int64"))
        logs = {"loss": self.step_loss.result(), "num_correct": num_correct}
        return {name: self.sum_over_replicas(value) for name, value in logs.items()}


class _Last(keras.metrics.Metric):
    """The last value. Keras's metrics sum or average."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._last = self.add_variable((), "zeros", name="last")

    def update_state(self, value: Any) -> None:
        """Take a scalar."""
        self._last.assign(value)

    def result(self) -> Any:
        """Return a copy: some backends change variables in place."""
        return ops.copy(self._last)


class _Builder:
    """Calls Keras layers one after another. Every default that differs from the architecture is written out."""

    def __init__(self, masks: Iterator[Any], statistics_sum: SumOverReplicas | None) -> None:
        self._masks = masks
        self._statistics_sum = statistics_sum

    def through(self, layers: tuple[Layer, ...], x: Any) -> Any:
        for layer in layers:
            if isinstance(layer, architectures.Residual):
                x = keras.layers.Add(name=layer.name)([self.through(layer.body, x), self.through(layer.shortcut, x)])
                x = keras.layers.ReLU(name=f"{layer.name}.out")(x) if layer.relu else x
            elif isinstance(layer, architectures.Concatenation):
                x = keras.layers.Concatenate(name=layer.name)([self.through(branch, x) for branch in layer.branches])
            elif isinstance(layer, architectures.Dropout):
                x = _MaskedDropout(layer.rate, name=layer.name)(x, next(self._masks))
            else:
                x = self._apply(layer, x)
        return x

    def _apply(self, layer: Layer, x: Any) -> Any:
        options: dict[str, Any] = {"name": layer.name.replace(".", "-")}  # torch takes no dots in the names of parameters
        match layer:
            case architectures.Conv():
                x, padding = self._padded(layer, x)
                options |= {"strides": layer.stride, "padding": padding, "use_bias": layer.bias}
                if layer.is_depthwise:
                    return keras.layers.DepthwiseConv2D(layer.kernel_size, **options)(x)
                return keras.layers.Conv2D(layer.out_channels, layer.kernel_size, groups=layer.groups, **options)(x)
            case architectures.BatchNorm():
                return _BatchNorm(layer, self._statistics_sum, **options)(x)
            case architectures.ReLU():
                return keras.layers.ReLU(**options)(x)
            case architectures.MaxPool():
                x, padding = self._padded(layer, x, float("-inf"))
                return keras.layers.MaxPooling2D(layer.kernel_size, layer.stride, padding, **options)(x)
            case architectures.AveragePool():
                if layer.padding == architectures.no_padding:
                    return keras.layers.AveragePooling2D(layer.kernel_size, layer.stride, "valid", **options)(x)
                return _AveragePool(layer, **options)(x)
            case architectures.GlobalAveragePool():
                return keras.layers.GlobalAveragePooling2D(**options)(x)
            case architectures.Flatten():
                return keras.layers.Flatten(**options)(x)
            case architectures.Dense():
                return keras.layers.Dense(layer.out_features, **options)(x)
            case _:
                raise TypeError(f"{type(layer).__name__} is no leaf")

    def _padded(self, layer: Any, x: Any, value: float = 0.0) -> tuple[Any, str]:
        # Keras's layers have only `same` and `valid`. Symmetric padding with a stride needs a separate step.
        if layer.padding == architectures.no_padding:
            return x, "valid"
        if layer.padding == architectures.same_padding(x.shape[1], layer.kernel_size, layer.stride):
            return x, "same"
        return _Padding(layer.padding, value, name=f"{layer.name}.padding")(x), "valid"


class _BatchNorm(keras.layers.Layer):
    """BatchNorm in two passes; the running variance takes the unbiased variance of the batch.

    Keras's own layer takes the biased one, and computes E[x^2] - E[x]^2.
    """

    def __init__(self, layer: architectures.BatchNorm, statistics_sum: SumOverReplicas | None, **options: Any) -> None:
        super().__init__(**options)
        self._epsilon, self._momentum = layer.epsilon, layer.momentum
        self._statistics_sum = statistics_sum
        shape = (layer.channels,)
        self.gamma = self.add_weight(shape=shape, initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=shape, initializer="zeros", name="beta")
        # Each replica of a MirroredStrategy keeps its own copy. Other backends ignore both words.
        statistics: dict[str, Any] = {
            "shape": shape,
            "dtype": self.variable_dtype,
            "trainable": False,
            "synchronization": "on_read",
            "aggregation": "only_first_replica",
        }
        self.mean = keras.Variable("zeros", name="mean", **statistics)
        self.variance = keras.Variable("ones", name="variance", **statistics)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Shape of `call`'s output."""
        return input_shape

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Normalise [N, H, W, C]."""
        if not training:
            return self._normalised(inputs - self.mean, self.variance)
        axes = (0, 1, 2)
        if self._statistics_sum is None:
            count, mean = _positions(inputs), ops.mean(inputs, axes)
            centred = inputs - mean
            variance = ops.mean(ops.square(centred), axes)
        else:
            sums = ops.concatenate([ops.sum(inputs, axes), ops.reshape(_positions(inputs), (1,))])
            totals = self._statistics_sum(sums)
            count = ops.stop_gradient(totals[-1])
            mean = totals[:-1] / count
            centred = inputs - mean
            variance = self._statistics_sum(ops.sum(ops.square(centred), axes)) / count
        self._update(mean, variance, count)
        return self._normalised(centred, variance)

    def _update(self, mean: Any, variance: Any, count: Any) -> None:
        self.mean.assign(self.mean + self._momentum * (mean - self.mean))
        self.variance.assign(self.variance + self._momentum * (variance * (count / (count - 1.0)) - self.variance))

    def _normalised(self, centred: Any, variance: Any) -> Any:
        return centred * (self.gamma * ops.rsqrt(variance + self._epsilon)) + self.beta


def _positions(x: Any) -> Any:
    """Count the values of each channel in [N, H, W, C]."""
    examples, height, width, _ = cast(Any, ops.shape(x))
    return ops.cast(examples * height * width, x.dtype)


class _AveragePool(keras.layers.Layer):
    """Mean over windows. Padding does not count."""

    def __init__(self, layer: architectures.AveragePool, **options: Any) -> None:
        super().__init__(**options)
        self._padding = [(0, 0), *layer.padding, (0, 0)]
        self._window = layer.kernel_size, layer.stride

    def call(self, x: Any) -> Any:
        """Map [N, H, W, C] to [N, H', W', C]."""
        with_zeros, share = (
            ops.average_pool(ops.pad(values, self._padding), *self._window, "valid")
            for values in (x, ops.ones_like(x[:1, :, :, :1]))
        )
        return with_zeros / share


class _Padding(keras.layers.Layer):
    """Pad height and width with a value."""

    def __init__(self, padding: architectures.Padding, value: float, **options: Any) -> None:
        super().__init__(**options)
        self._padding, self._value = [(0, 0), *padding, (0, 0)], value

    def call(self, x: Any) -> Any:
        """Map [N, H, W, C] to [N, top + H + bottom, left + W + right, C]."""
        return ops.pad(x, self._padding, constant_values=self._value)


class _MaskedDropout(keras.layers.Layer):
    """Dropout with a mask from the batch, so all twins drop the same values."""

    def __init__(self, rate: float, **options: Any) -> None:
        super().__init__(**options)
        self._scale = 1.0 / (1.0 - rate)

    def compute_output_shape(self, x_shape: tuple[int | None, ...], *_: Any) -> tuple[int | None, ...]:
        """Shape of `call`'s output."""
        return x_shape

    def call(self, x: Any, mask: Any, training: bool = False) -> Any:
        """Apply the mask bool [N, units] to [N, units]; the identity in evaluation mode."""
        return x * ops.cast(mask, x.dtype) * self._scale if training else x
