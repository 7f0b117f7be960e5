"""The CNNs, built from `common.models.architectures`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import keras
import tensorflow as tf

from common.models import architectures, user_code
from common.models.architectures import Architecture, Layer
from common.models.stages import Stage
from tensorflow_impl import batch_norm, native
from tensorflow_impl.batch_norm import ReplicaGroup

_ARITHMETIC = {"bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def build(
    architecture: Architecture, precision: str, group: ReplicaGroup | None = None, arithmetic: str = "full"
) -> keras.Model:
    """Build a model.

    The model takes images [N, H, W, 3] in 0..1, in the framework's layout, and the dropout masks. It returns logits.

    Args:
        architecture: the model's architecture; a user's own model may have its own builder for this framework.
        precision: `float32` or `float64`; the dtype of weights and logits.
        group: replicas that share BatchNorm statistics; None: statistics per replica.
        arithmetic: value of the switch; with `bfloat16` or `float16` the layers compute in that type.

    Returns:
        The model with the framework's own initial weights; `weights.load` sets the shared ones.
    """
    # Twin: Keras takes every layer's precision from here. torch converts the finished model.
    keras.config.set_dtype_policy(_ARITHMETIC.get(arithmetic, precision))
    builder = user_code.builder(architecture.name, "tensorflow")
    if builder:
        return _in_precision(builder(architecture, precision, group), precision)
    size = architecture.image_size
    images = keras.Input((size, size, 3), dtype=precision, name="images")
    masks = [keras.Input((dropout.units,), dtype="bool", name=f"{dropout.name}_mask") for dropout in architecture.dropouts]
    network = _Builder(group, iter(masks))
    model = keras.Model([images, *masks], network.through(architecture.layers, images), name=architecture.name)
    return _in_precision(model, precision)


def _in_precision(model: keras.Model, precision: str) -> keras.Model:
    """Return the model with its logits cast to the precision."""
    logits: Any = model.output
    if logits.dtype == precision:
        return model
    cast = keras.layers.Activation("linear", dtype=precision, name="logits_in_precision")
    return keras.Model(model.inputs, cast(logits), name=model.name)


def build_stage(stage: Stage, precision: str) -> keras.Model:
    """Build the model of one stage of a pipeline. It maps the previous stage's output to its own.

    It is made from the architecture, also where `build` takes torchvision's model or a user's own builder, which know no
    stages. Masks go to the stage that has their dropout.

    Args:
        stage: the layers and the input shape of one example.
        precision: `float32` or `float64`.
    """
    return build_layers(stage.architecture, stage.input_shape, precision)


def build_layers(architecture: Architecture, shape: tuple[int, ...], precision: str) -> keras.Model:
    """Build any consecutive layers of a model. They take an input and the dropout masks, and return the last layer's output.

    Args:
        shape: [H, W, C] or [features] of one example of the input.
        precision: `float32` or `float64`.
    """
    keras.config.set_dtype_policy(precision)
    values = keras.Input(shape, dtype=precision, name="values")
    masks = [keras.Input((dropout.units,), dtype="bool", name=f"{dropout.name}_mask") for dropout in architecture.dropouts]
    return keras.Model([values, *masks], _Builder(None, iter(masks)).through(architecture.layers, values))


def find_layer(model: keras.Model, name: str) -> keras.layers.Layer:
    """Return a layer of a model by its name in the architecture."""
    for layer in model.layers:
        if isinstance(layer, native.UserModel):
            return layer.find(name)
    return model.get_layer(name)


def summarize(architecture: Architecture) -> dict[str, Any]:
    """Describe a built model: each layer's name, kind, output shape (NHWC) and number of values, JSON-ready."""
    model = build(architecture, "float32")
    rows: list[dict[str, Any]] = []
    for layer in architecture.leaves():
        if not isinstance(layer, architectures.ReLU):
            built = find_layer(model, layer.name)
            rows.append(
                {
                    "name": layer.name,
                    "kind": type(layer).__name__,
                    "output_shape": list(cast(Any, built.output).shape[1:]),
                    "values": _size(built.variables),
                }
            )
    return {
        "framework": "tensorflow",
        "model": architecture.name,
        "layers": rows,
        "values": num_values(model)[0],
        "trainable_values": num_values(model)[1],
    }


def num_values(model: keras.Model) -> tuple[int, int]:
    """Count the values of a built model: (all, trainable)."""
    # Twin: Keras's dropouts have random states, which are no values of the model.
    return _size(model.weights), _size(model.trainable_variables)


def _size(variables: list[Any]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)


class _Builder:
    """Calls Keras layers one after another. Every default that differs between the frameworks is written out."""

    def __init__(self, group: ReplicaGroup | None, masks: Any) -> None:
        self._group = group
        self._masks = masks

    def through(self, layers: tuple[Layer, ...], x: Any) -> Any:
        for layer in layers:
            if isinstance(layer, architectures.Residual):
                x = keras.layers.Add(name=layer.name)([self.through(layer.body, x), self.through(layer.shortcut, x)])
                x = _ReLU(name=f"{layer.name}.out")(x) if layer.relu else x
            elif isinstance(layer, architectures.Concatenation):
                x = keras.layers.Concatenate(name=layer.name)([self.through(branch, x) for branch in layer.branches])
            elif isinstance(layer, architectures.StageFragment):
                x = self._through_cut(layer, x)
            elif isinstance(layer, architectures.Dropout):
                x = _MaskedDropout(layer.rate, name=layer.name)(x, next(self._masks))
            else:
                x = self._apply(layer, x)
        return x

    def _through_cut(self, layer: architectures.StageFragment, x: Any) -> Any:
        tensors = _Parts(layer.inputs, name=f"{layer.name}.parts")(x) if layer.inputs else [x]
        outputs = [
            self.through(branch, tensors[take]) for branch, take in zip(layer.branches, layer.input_indices, strict=True)
        ]
        match layer.join:
            case architectures.Residual():
                x = keras.layers.Add(name=layer.name)(outputs)
                return _ReLU(name=f"{layer.name}.out")(x) if layer.join.relu else x
            case architectures.Concatenation():
                return keras.layers.Concatenate(name=layer.name)(outputs)
            case None:
                flat = [keras.layers.Flatten(name=f"{layer.name}.flat{number}")(x) for number, x in enumerate(outputs)]
                return keras.layers.Concatenate(name=f"{layer.name}.handed_on")(flat)

    def _apply(self, layer: Layer, x: Any) -> Any:
        options: dict[str, Any] = {"name": layer.name}
        match layer:
            case architectures.Conv():
                x, padding = self._padded(layer, x)
                options |= {"strides": layer.stride, "padding": padding, "use_bias": layer.bias}
                # Twin: Keras has a layer of its own for depthwise convolutions.
                if layer.is_depthwise:
                    return keras.layers.DepthwiseConv2D(layer.kernel_size, **options)(x)
                kind = _GroupedConv2D if layer.groups > 1 else keras.layers.Conv2D
                return kind(layer.out_channels, layer.kernel_size, groups=layer.groups, **options)(x)
            case architectures.BatchNorm():
                return batch_norm.build(layer, self._group)(x)
            case architectures.ReLU():
                return _ReLU(**options)(x)
            case architectures.MaxPool():
                x, padding = self._padded(layer, x, float("-inf"))
                return _MaxPool(layer.kernel_size, layer.stride, padding, **options)(x)
            case architectures.AveragePool():
                if layer.padding in (architectures.no_padding, self._same(layer, x)):
                    x, padding = self._padded(layer, x)
                    return keras.layers.AveragePooling2D(layer.kernel_size, layer.stride, padding, **options)(x)
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
        # Twin: Keras' layers have only `same` and `valid`. Symmetric padding with a stride needs a separate step.
        if layer.padding == architectures.no_padding:
            return x, "valid"
        if layer.padding == self._same(layer, x):
            return x, "same"
        return _Padding(layer.padding, value, name=f"{layer.name}.padding")(x), "valid"

    @staticmethod
    def _same(layer: architectures.Window, x: Any) -> architectures.Padding:
        return architectures.same_padding(x.shape[1], layer.kernel_size, layer.stride)


class _Watched(keras.layers.Layer):
    """A layer that shows each of its calls to a watcher, if it has one."""

    # Twin: Keras calls no hooks. torch's functions can be watched from outside.
    watcher: Callable[[tf.Tensor, tf.Tensor], None] | None = None
    """Takes the input and the output of each call. See `decisions.DecisionRecorder`."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the layer's output, as if nobody watched."""
        outputs = super().call(inputs)
        if self.watcher is not None:
            self.watcher(inputs, outputs)
        return outputs


class _ReLU(_Watched, keras.layers.ReLU):
    pass


class _MaxPool(_Watched, keras.layers.MaxPooling2D):
    pass


class _GroupedConv2D(keras.layers.Conv2D):
    """A convolution for each group of channels. Their outputs are concatenated."""

    # Twin: Keras compiles its own grouped convolution with XLA. On a CPU that takes 2.5 times as long in four groups, and 18
    # times in 64. torch has a kernel for any number of groups.
    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Map [N, H, W, C] to [N, H', W', filters]."""
        group_pairs = zip(tf.split(inputs, self.groups, -1), tf.split(kernel, self.groups, -1), strict=True)
        padding: Any = self.padding.upper()
        return tf.concat([tf.nn.conv2d(x, group_kernel, self.strides, padding) for x, group_kernel in group_pairs], -1)


class _AveragePool(keras.layers.Layer):
    """Mean over windows. Padding does not count."""

    def __init__(self, layer: architectures.AveragePool, **options: Any) -> None:
        super().__init__(**options)
        self._padding = [(0, 0), *layer.padding, (0, 0)]
        self._window = layer.kernel_size, layer.stride

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Map [N, H, W, C] to [N, H', W', C]."""
        with_zeros, share = (
            tf.nn.avg_pool2d(tf.pad(values, self._padding), *self._window, "VALID")
            for values in (x, tf.ones_like(x[:1, :, :, :1]))
        )
        return with_zeros / share


class _Parts(keras.layers.Layer):
    """Splits concatenated values into tensors of several shapes."""

    def __init__(self, shapes: tuple[tuple[int, ...], ...], **options: Any) -> None:
        super().__init__(**options)
        self._shapes = shapes

    def call(self, x: tf.Tensor) -> list[tf.Tensor]:
        """Map [N, features] to [N, *shape] for each shape."""
        parts = tf.split(x, [math.prod(shape) for shape in self._shapes], -1)
        return [tf.reshape(part, (-1, *shape)) for part, shape in zip(parts, self._shapes, strict=True)]


class _Padding(keras.layers.Layer):
    """Pad height and width with a value."""

    def __init__(self, padding: architectures.Padding, value: float, **options: Any) -> None:
        super().__init__(**options)
        self._padding = [(0, 0), *padding, (0, 0)]
        self._value = value

    def compute_output_shape(self, x_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Shape of `call`'s output. Without it Keras traces a graph to learn it."""
        added = (sum(edges) for edges in self._padding)
        return tuple(None if size is None else size + more for size, more in zip(x_shape, added, strict=True))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Map [N, H, W, C] to [N, top + H + bottom, left + W + right, C]."""
        return tf.pad(x, self._padding, constant_values=self._value)


class _MaskedDropout(keras.layers.Layer):
    """Dropout with a mask from the batch, so both frameworks drop the same values."""

    def __init__(self, rate: float, **options: Any) -> None:
        super().__init__(**options)
        self.scale = 1.0 / (1.0 - rate)

    def compute_output_shape(self, x_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Shape of `call`'s output. Without it Keras traces a graph to learn it."""
        return x_shape

    def call(self, x: tf.Tensor, mask: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Apply the mask bool [N, units] to [N, units]; the identity in evaluation mode."""
        return x * tf.cast(mask, x.dtype) * tf.constant(self.scale, x.dtype) if training else x
