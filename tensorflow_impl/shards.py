"""Models whose parameters are divided over replicas. A replica holds its rows of each, and gathers a layer when it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.models import sharding
from tensorflow_impl import private_api


def divide(model: keras.Model, replicas: Sequence[str]) -> keras.Model:
    """Divide every parameter of a model over all replicas, by output channels. Its gradients are divided in the same way.

    Args:
        model: its weights are not loaded yet. It loses them.
        replicas: share the parameters.

    Returns:
        The divided model. Layers keep their names.
    """

    # Twin: TensorFlow has nothing like torch's `fully_shard`, so here each layer gathers and scatters by itself.
    def divide_layer(layer: keras.layers.Layer) -> keras.layers.Layer:
        return _GatheringLayer(layer, replicas) if layer.trainable_variables else layer

    return keras.models.clone_model(model, clone_function=divide_layer)


def parts(variable: Any) -> list[tuple[Any, slice]]:
    """Return the parts of a parameter that this process holds, each with its slice of the last canonical axis."""
    return variable.parts if isinstance(variable, _DividedParameter) else [(variable, slice(None))]


def gather(variable: Any, arrays: Sequence[npt.NDArray[np.floating]]) -> npt.NDArray[np.floating]:
    """Gather a parameter's whole canonical array from the arrays of its parts. All replicas call this together."""
    # Twin: all parts are in this process. torch's are on other ranks.
    return np.concatenate(arrays, -1) if isinstance(variable, _DividedParameter) else arrays[0]


def bytes_per_pass(model: keras.Model) -> dict[str, int]:
    """Return the bytes that replicas send to gather parameters, forward and backward, and to scatter gradients."""
    layers = [layer for layer in model.layers if isinstance(layer, _GatheringLayer)]
    return {
        "all_gather": sum(layer.sent_bytes * (2 if layer.gathers_again else 1) for layer in layers),
        "reduce_scatter": sum(layer.sent_bytes for layer in layers),
    }


def most_gathered_bytes(model: keras.Model) -> int:
    """Return the bytes of the largest layer's gathered parameters and of their gradients. 0 if no parameter is divided."""
    return max((2 * layer.whole_bytes for layer in model.layers if isinstance(layer, _GatheringLayer)), default=0)


class _DividedParameter:
    """A parameter in parts, one on each replica's device."""

    def __init__(self, owner: keras.layers.Layer, variable: Any, axis: int, replicas: Sequence[str]) -> None:
        self.variable, self.axis = variable, axis
        bounds = sharding.rows(variable.shape[axis], len(replicas))
        self.sizes = [high - low for low, high in bounds]
        self.parts: list[tuple[Any, slice]] = []
        for rank, (device, (low, high)) in enumerate(zip(replicas, bounds, strict=True)):
            shape = list(variable.shape)
            shape[axis] = high - low
            with tf.device(device):
                name = f"{variable.name}_{rank}"
                part = owner.add_weight(shape=shape, initializer="zeros", dtype=variable.dtype, autocast=False, name=name)
            self.parts.append((part, slice(low, high)))


class _GatheringLayer(keras.layers.Layer):
    """A layer whose parameters are divided. A replica that runs it gathers them, and again for the backward pass.

    Backward, it cuts the gradient of each parameter into the parts that the replicas hold. The trainer sums them there.
    """

    def __init__(self, layer: Any, replicas: Sequence[str]) -> None:
        super().__init__(name=layer.name, dtype=layer.dtype_policy)
        self.is_depthwise = isinstance(layer, keras.layers.DepthwiseConv2D)
        # Its statistics tie a pass to the batch, so BatchNorm's backward pass needs the forward pass as it was.
        self.gathers_again = not layer.non_trainable_variables
        self._divided: list[_DividedParameter] = []
        for variable in layer.trainable_variables:
            # Twin: Keras stores a depthwise kernel as HWC1.
            axis = -2 if self.is_depthwise and len(variable.shape) == 4 else -1
            self._divided.append(_DividedParameter(self, variable, axis, replicas))
            setattr(self, variable.name, self._divided[-1])
            private_api.free(variable)  # the whole parameter
        for variable in layer.non_trainable_variables:
            setattr(self, variable.name, variable)
        sizes = [
            math.prod(parameter.variable.shape) * tf.as_dtype(parameter.variable.dtype).size for parameter in self._divided
        ]
        self.whole_bytes = sum(sizes)
        self.sent_bytes = (len(replicas) - 1) * self.whole_bytes

        def run(x: tf.Tensor, arrays: Sequence[tf.Tensor]) -> tf.Tensor:
            variables_and_arrays = [(parameter.variable, array) for parameter, array in zip(self._divided, arrays, strict=True)]
            with keras.StatelessScope(variables_and_arrays, initialize_variables=False) as scope:
                y = layer(x)
            for variable in layer.non_trainable_variables:
                if (updated := scope.get_current_value(variable)) is not None:
                    variable.assign(updated)
            return y

        self._run = run  # a function hides the layer from Keras, which would find the whole parameters in it

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Return the layer's output, on the device of the caller."""

        @tf.custom_gradient
        def gathering(x: tf.Tensor, *parts: tf.Tensor) -> Any:
            arrays = self._gather(parts)
            y = self._run(x, arrays)

            def backward(gradient: tf.Tensor) -> Any:
                gathered, output = arrays, y
                if self.gathers_again:
                    with tf.control_dependencies([gradient]):
                        gathered = self._gather(self._all_parts())
                    output = self._run(
                        x, gathered
                    )  # the graph leaves out what no gradient needs, as the output of a convolution
                input_gradient, *gradients = cast(list[tf.Tensor], tf.gradients(output, [x, *gathered], gradient))
                parameters_and_gradients = zip(self._divided, gradients, strict=True)
                return input_gradient, *(
                    part
                    for parameter, parameter_gradient in parameters_and_gradients
                    for part in tf.split(parameter_gradient, parameter.sizes, parameter.axis)
                )

            return y, backward

        # Without waiting, the graph would gather all layers at once. TensorFlow fuses a padding with the convolution behind it.
        # The fused operation would wait for itself if parameters waited for the padding. So they wait for what is padded.
        if tf.executing_eagerly():  # one operation after the other, as a recording of logits does
            return gathering(x, *self._all_parts())
        maker = cast(tf.Operation, x.op)
        with tf.control_dependencies([maker.inputs[0] if maker.type in ("Pad", "PadV2") else x]):
            parts = self._all_parts()
        return gathering(x, *parts)

    def _all_parts(self) -> list[tf.Tensor]:
        """Return every replica's parts, on their devices."""
        return [tf.convert_to_tensor(part.value) for parameter in self._divided for part, _ in parameter.parts]

    def _gather(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Gather the whole parameters, on the device of the caller."""
        part_iterator = iter(parts)
        return [tf.concat([next(part_iterator) for _ in parameter.parts], parameter.axis) for parameter in self._divided]
