"""The work of a model: operations and values moved, counted from its layers without any framework.

This is the only count of operations in the project. Its rule:

- Convolutions and dense layers count. They are what the machine's matrix rate bounds. All other layers count nothing.
- A multiply-add counts as two. Padding counts like pixels. Biases do not count.
- The backward pass costs the same again for the gradient of the weights, and once more for the gradient of the input. Layers
  with no trainable layer before them need no gradient of their input.

Values moved follow a simple model without caches and without fused layers:

    forward: each layer reads its input and weights, and writes its output.
    backward: each layer reads its output's gradient, its input and weights, and writes the gradients of input and weights.
    sum: a residual sum reads two values and writes one, in both directions.
    a user's own model with known layers only: their outputs, once in each direction. It moves at least so many values.
    concatenation: reads and writes its output, in both directions. Where its branches begin, their gradients are summed.
    update: reads gradient and weight, writes the weight. It also reads and writes the optimizer's state of that weight.
"""

from __future__ import annotations

import math

from common.frozen import Frozen
from common.models import architectures
from common.models.architectures import (
    Architecture,
    BatchNorm,
    Concatenation,
    Conv,
    Dense,
    Flatten,
    Layer,
    Native,
    Opaque,
    Residual,
    branches,
    output_shape,
)
from common.spec import Spec

VALUE_BYTES = {"float32": 4, "float64": 8}
_STATE_VALUES = {"sgd": 1, "adam": 2}
"""Values that the optimizer keeps for each weight."""


class Work(Frozen):
    """The work of one model for one training image."""

    forward_flops: int
    backward_flops: int
    values_moved: int
    """Number of values in inputs, outputs and gradients of layers, forward and backward."""
    weights: int
    """Number of trainable values. They are moved once per step, for any batch size."""

    @property
    def flops(self) -> int:
        return self.forward_flops + self.backward_flops

    def bytes_moved(self, spec: Spec) -> float:
        """Return the bytes moved per image of a run: its values, and its share of the weights that every replica moves."""
        passes = 6 + 2 * _STATE_VALUES[spec.optimizer.name]
        weights = passes * self.weights * spec.data_replicas / spec.global_batch_size
        return VALUE_BYTES[spec.precision] * (self.values_moved + weights)


def count(architecture: Architecture) -> Work:
    """Count the work of a model."""
    size = architecture.image_size
    return count_layers(architecture.layers, (size, size, 3), input_needs_gradient=False)


def count_layers(layers: tuple[Layer, ...], shape: tuple[int, ...], *, input_needs_gradient: bool) -> Work:
    """Count the work of consecutive layers.

    Args:
        layers: the layers in order.
        shape: shape of one example in front of them.
        input_needs_gradient: whether their input needs a gradient.
    """
    forward, backward, values_moved, _ = _count(layers, shape, input_needs_gradient=input_needs_gradient)
    weights = sum(parameter.size for parameter in architectures.parameters(layers) if parameter.trainable)
    return Work(forward_flops=forward, backward_flops=backward, values_moved=values_moved, weights=weights)


def has_weights(layer: Layer) -> bool:
    """Return whether a layer, or a layer in its branches, has weights."""
    return any(isinstance(leaf, Conv | Dense | BatchNorm | Native) for leaf in architectures.leaves((layer,)))


def forward_flops(layer: Layer, num_outputs: int) -> int:
    """Return the operations of the forward pass of one layer without branches, for one example.

    Args:
        layer: the layer.
        num_outputs: number of its outputs for one example.
    """
    match layer:
        case Conv():
            return 2 * layer.kernel_size**2 * (layer.in_channels // layer.groups) * num_outputs
        case Dense():
            return 2 * layer.in_features * num_outputs
        case Native():
            return 2 * math.prod(dict(layer.parameters).get("kernel", (0, 0))[:-1]) * num_outputs
        case _:
            return 0


def _count(layers: tuple[Layer, ...], shape: tuple[int, ...], *, input_needs_gradient: bool) -> tuple[int, int, int, bool]:
    """Return (forward operations, backward operations, values moved, whether the output needs a gradient) of layers."""
    forward, backward, values_moved = 0, 0, 0
    for layer in layers:
        after = output_shape((layer,), shape, "")
        num_inputs, num_outputs = math.prod(shape), math.prod(after)
        if isinstance(layer, Residual | Concatenation):
            branch_counts = [_count(branch, shape, input_needs_gradient=input_needs_gradient) for branch in branches(layer)]
            forward += sum(branch[0] for branch in branch_counts)
            backward += sum(branch[1] for branch in branch_counts)
            values_moved += sum(branch[2] for branch in branch_counts)
            output_needs_gradient = input_needs_gradient or any(branch[3] for branch in branch_counts)
            values_moved += values_moved_by_join(
                layer, shape, input_needs_gradient=input_needs_gradient, output_needs_gradient=output_needs_gradient
            )
            if isinstance(layer, Residual) and layer.relu:
                values_moved += _values_moved(num_outputs, num_outputs, needs_gradient=True)
            input_needs_gradient = output_needs_gradient
        elif isinstance(layer, Opaque):
            by_name = {leaf.name: leaf for leaf in layer.layers}
            calls = [*zip(layer.layers, layer.outputs, strict=True), *((by_name[name], shape) for name, shape in layer.again)]
            sizes = [math.prod(output) for _, output in calls]
            flops = [forward_flops(leaf, size) for (leaf, _), size in zip(calls, sizes, strict=True)]
            first = next(filter(None, flops), 0)
            forward += sum(flops)
            backward += 2 * sum(flops) - (0 if input_needs_gradient else first)
            values_moved += 2 * sum(sizes)
            input_needs_gradient = True
        else:
            operations = forward_flops(layer, num_outputs)
            forward += operations
            backward += operations * (2 if input_needs_gradient else 1)
            weighted = has_weights(layer)
            if not isinstance(layer, Flatten):
                values_moved += _values_moved(num_inputs, num_outputs, needs_gradient=input_needs_gradient, weighted=weighted)
            input_needs_gradient = input_needs_gradient or weighted
        shape = after
    return forward, backward, values_moved, input_needs_gradient


def values_moved_by_join(
    layer: Residual | Concatenation, shape: tuple[int, ...], *, input_needs_gradient: bool, output_needs_gradient: bool
) -> int:
    """Return the values moved where the branches of a layer are joined, and where they begin.

    Args:
        layer: the layer.
        shape: shape of one example in front of it.
        input_needs_gradient: whether its input needs a gradient.
        output_needs_gradient: whether its output needs a gradient.
    """
    num_outputs = math.prod(output_shape((layer,), shape, ""))
    gradient_sums = 3 * math.prod(shape) * (len(branches(layer)) - 1) * input_needs_gradient
    if isinstance(layer, Residual):
        return 3 * num_outputs + gradient_sums
    return 2 * num_outputs * (2 if output_needs_gradient else 1) + gradient_sums


def _values_moved(num_inputs: int, num_outputs: int, *, needs_gradient: bool, weighted: bool = False) -> int:
    """Return the values moved forward and backward by one layer."""
    backward = num_outputs + num_inputs + num_inputs * needs_gradient if needs_gradient or weighted else 0
    return num_inputs + num_outputs + backward
