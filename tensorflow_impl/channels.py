"""Layers with output channels split over replicas. Each replica holds its slice of the kernel and the bias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.models import sharding


def split(model: keras.Model, replicas: Sequence[str]) -> keras.Model:
    """Split the output channels of every convolution and dense layer over replicas.

    Other layers, such as BatchNorm and pooling, run on the gathered channels.

    Args:
        model: its weights are not loaded yet.
        replicas: share the model.

    Returns:
        The split model. Layers keep their names.
    """

    # Twin: Keras builds a new model with all slices. torch replaces layers in the model by one slice of each.
    def split_layer(layer: keras.layers.Layer) -> keras.layers.Layer:
        kinds = keras.layers.Conv2D, keras.layers.DepthwiseConv2D, keras.layers.Dense
        return _Split(layer, replicas) if isinstance(layer, kinds) else layer

    return keras.models.clone_model(model, clone_function=split_layer)


def holders(layer: keras.layers.Layer) -> list[tuple[keras.layers.Layer, slice]]:
    """Return the layers that hold a layer's arrays in this process, each with its slice of the last canonical axis."""
    return list(zip(layer.slices, layer.channels, strict=True)) if isinstance(layer, _Split) else [(layer, slice(None))]


def gather(layer: keras.layers.Layer, arrays: Sequence[npt.NDArray[np.floating]]) -> npt.NDArray[np.floating]:
    """Gather a layer's whole canonical array from its holders' arrays. All replicas call this together."""
    # Twin: all slices are in this process. torch's are on other ranks.
    return np.concatenate(arrays, -1) if isinstance(layer, _Split) else arrays[0]


def bytes_per_example(model: keras.Model) -> int:
    """Return the bytes that all replicas of a split model send per example in a training step, forward and backward.

    The count comes from the shapes of the gathered activations and the summed gradients.
    """
    return sum(layer.bytes_per_example() for layer in model.layers if isinstance(layer, _Split))


class _Split(keras.layers.Layer):
    """A layer split by output channels. Every device computes its own channels from the whole input.

    Forward, the outputs are gathered on the device of all other layers. Backward, each device gets its slice of the output's
    gradient, and the slices' gradients of the input are summed there (Shoeybi et al. 2019: column parallel). A grouped
    convolution, such as a depthwise one, is split between its groups. Each group has its own input channels, so the input's
    gradient is gathered, not summed.
    """

    def __init__(self, layer: Any, devices: Sequence[str]) -> None:
        super().__init__(name=layer.name, dtype=layer.dtype_policy)
        self._devices = devices
        total, depthwise = layer.output.shape[-1], isinstance(layer, keras.layers.DepthwiseConv2D)
        groups = layer.input.shape[-1] if depthwise else getattr(layer, "groups", 1)
        bounds = sharding.channels(layer.name, groups if groups > 1 else total, len(devices))
        outputs, inputs = (total // groups, layer.input.shape[-1] // groups) if groups > 1 else (1, 0)
        self.channels = [slice(low * outputs, high * outputs) for low, high in bounds]
        self._inputs = [(high - low) * inputs for low, high in bounds] if groups > 1 else None
        # Applied after the gathering: a softmax, for example, runs over all channels.
        self._activation = layer.activation
        self.slices: list[Any] = []
        for index, (low, high) in enumerate(bounds):
            fields = {"name": f"{layer.name}_{index}", "activation": None}
            if type(layer) is keras.layers.Dense:
                fields["units"] = high - low
            elif not depthwise:
                fields |= {"filters": (high - low) * outputs, "groups": high - low if groups > 1 else 1}
            self.slices.append(type(layer).from_config({**layer.get_config(), **fields}))

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create every slice's variables on its own device."""
        for index, (device, slice_layer) in enumerate(zip(self._devices, self.slices, strict=True)):
            with tf.device(device):
                slice_layer.build((*input_shape[:-1], self._inputs[index]) if self._inputs else input_shape)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Return the whole output, on the device of the caller."""
        inputs = tf.split(x, self._inputs, -1) if self._inputs else [x] * len(self.slices)
        slices = zip(self._devices, self.slices, inputs, strict=True)
        return self._activation(tf.concat([_on(device, slice_layer, part) for device, slice_layer, part in slices], -1))

    def bytes_per_example(self) -> int:
        """Return the bytes per example. R - 1 of R devices receive the input and send outputs to one. Gradients return."""
        input_values, output_values = (math.prod(cast(Any, tensor).shape[1:]) for tensor in (self.input, self.output))
        first, total = self.channels[0].stop, self.channels[-1].stop
        sent = input_values * (total - first) // total if self._inputs else input_values * (len(self.slices) - 1)
        images = keras.Model(keras.utils.get_source_inputs(self.input), self.input)
        directions = 2 if images.trainable_variables else 1  # no gradient of an image is needed
        return (directions * sent + 2 * output_values * (total - first) // total) * tf.as_dtype(self.compute_dtype).size


def _on(device: str, layer: keras.layers.Layer, x: tf.Tensor) -> tf.Tensor:
    """Apply layer(x) on a device, forward and backward. A tape alone would run backward on the caller's device."""

    @tf.custom_gradient
    def forward(x: tf.Tensor, *arrays: tf.Tensor) -> Any:
        with tf.device(device):
            y = cast(Any, layer.stateless_call(arrays, [], x))[0]
        return y, lambda gradient: tf.gradients(y, [x, *arrays], gradient)

    return forward(x, *[tf.convert_to_tensor(variable.value) for variable in layer.trainable_variables])
