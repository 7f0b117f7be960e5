"""Layers whose output channels are split over replicas: each holds its slice of the kernel and of the bias."""

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
    """Leave every convolution and dense layer of a model to replicas that hold a slice of its output channels each.

    All else, BatchNorm and pooling, is computed on the gathered channels.

    Args:
        model: of which the weights are still to be loaded.
        replicas: that share the model.

    Returns:
        The model with the same names of layers.

    Raises:
        SpecError: a layer has fewer channels than there are replicas.
    """

    # Twin: Keras makes a model anew with all slices; torch puts the split layers into the model, here one slice of each.
    def parted(layer: keras.layers.Layer) -> keras.layers.Layer:
        kinds = keras.layers.Conv2D, keras.layers.DepthwiseConv2D, keras.layers.Dense
        return _Split(layer, replicas) if type(layer) in kinds else layer

    return keras.models.clone_model(model, clone_function=parted)


def holders(layer: keras.layers.Layer) -> list[tuple[keras.layers.Layer, slice]]:
    """The layers that really hold a layer's arrays in this process, each with its slice of the last axis (canonically)."""
    return list(zip(layer.slices, layer.channels, strict=True)) if isinstance(layer, _Split) else [(layer, slice(None))]


def gather(layer: keras.layers.Layer, arrays: Sequence[npt.NDArray[np.floating]]) -> npt.NDArray[np.floating]:
    """The whole canonical array of a layer from those of its holders; all replicas call it together."""
    # Twin: all slices are in this process; torch's are with other ranks.
    return np.concatenate(arrays, -1) if isinstance(layer, _Split) else arrays[0]


def bytes_per_example(model: keras.Model) -> int:
    """Bytes that all replicas of a split model send for one example of a training step, forward and backward.

    Counted from the shapes of the activations that are gathered and of the gradients that are added up.
    """
    return sum(layer.bytes_per_example() for layer in model.layers if isinstance(layer, _Split))


class _Split(keras.layers.Layer):
    """A layer of which every device computes its own output channels, from the whole input.

    Forward, the outputs are gathered on the device of all other layers. Backward, each device gets its slice of the gradient
    of the output, and what the slices say of the input is added up there (Shoeybi et al. 2019: column parallel). A grouped
    convolution, above all a depthwise one, is split between its groups, which see input channels of their own: there the
    gradient is gathered, not added up.
    """

    def __init__(self, layer: Any, devices: Sequence[str]) -> None:
        super().__init__(name=layer.name, dtype=layer.dtype_policy)
        self._devices = devices
        total, depthwise = layer.output.shape[-1], type(layer) is keras.layers.DepthwiseConv2D
        groups = layer.input.shape[-1] if depthwise else getattr(layer, "groups", 1)
        bounds = sharding.channels(layer.name, groups if groups > 1 else total, len(devices))
        outputs, inputs = (total // groups, layer.input.shape[-1] // groups) if groups > 1 else (1, 0)
        self.channels = [slice(low * outputs, high * outputs) for low, high in bounds]
        self._inputs = [(high - low) * inputs for low, high in bounds] if groups > 1 else None
        # Not before the gathering: a softmax, say, is one over all channels.
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
        """Make every slice's variables on its own device."""
        for index, (device, own) in enumerate(zip(self._devices, self.slices, strict=True)):
            with tf.device(device):
                own.build((*input_shape[:-1], self._inputs[index]) if self._inputs else input_shape)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """The whole output, on the device of the caller."""
        inputs = tf.split(x, self._inputs, -1) if self._inputs else [x] * len(self.slices)
        slices = zip(self._devices, self.slices, inputs, strict=True)
        return self._activation(tf.concat([_on(device, own, part) for device, own, part in slices], -1))

    def bytes_per_example(self) -> int:
        """Of R devices, R - 1 are sent the input, and their outputs go to the first; backward, the gradients return."""
        before, after = (math.prod(cast(Any, tensor).shape[1:]) for tensor in (self.input, self.output))
        first, total = self.channels[0].stop, self.channels[-1].stop
        sent = before * (total - first) // total if self._inputs else before * (len(self.slices) - 1)
        images = keras.Model(keras.utils.get_source_inputs(self.input), self.input)
        ways = 2 if images.trainable_variables else 1  # nobody asks for the gradient of an image
        return (ways * sent + 2 * after * (total - first) // total) * tf.as_dtype(self.compute_dtype).size


def _on(device: str, layer: keras.layers.Layer, x: tf.Tensor) -> tf.Tensor:
    """layer(x), computed on a device, backward too, where a tape would take the device that it is asked on."""

    @tf.custom_gradient
    def placed(x: tf.Tensor, *arrays: tf.Tensor) -> Any:
        with tf.device(device):
            y = cast(Any, layer.stateless_call(arrays, [], x))[0]
        return y, lambda gradient: tf.gradients(y, [x, *arrays], gradient)

    return placed(x, *[tf.convert_to_tensor(variable.value) for variable in layer.trainable_variables])
