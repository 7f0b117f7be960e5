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
    a user's own model whose layers alone are known: what they output, once in each direction. It is the least that it moves.
    concatenation: reads and writes its output, in both directions; where its branches part, their gradients are summed.
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
    """Inputs, outputs and gradients of layers, forward and backward."""
    weights: int
    """Trainable values. They are moved once a step, for any batch size."""

    @property
    def flops(self) -> int:
        return self.forward_flops + self.backward_flops

    def bytes_moved(self, run: Spec) -> float:
        """Bytes for one image of a run: its own values, and its share of the weights that every copy of the model moves."""
        passes = 6 + 2 * _STATE_VALUES[run.optimizer.name]
        weights = passes * self.weights * run.data_replicas / run.global_batch_size
        return VALUE_BYTES[run.precision] * (self.values_moved + weights)


def count(architecture: Architecture) -> Work:
    """The work of a model."""
    size = architecture.image_size
    return count_layers(architecture.layers, (size, size, 3), learned_before=False)


def count_layers(layers: tuple[Layer, ...], shape: tuple[int, ...], *, learned_before: bool) -> Work:
    """The work of consecutive layers.

    Args:
        layers: in order.
        shape: of one example's input to the first of them.
        learned_before: whether that input needs a gradient.
    """
    forward, backward, moved, _ = _count(layers, shape, learned_before=learned_before)
    weights = sum(parameter.size for parameter in architectures.parameters(layers) if parameter.trainable)
    return Work(forward_flops=forward, backward_flops=backward, values_moved=moved, weights=weights)


def is_learned(layer: Layer) -> bool:
    """Whether a layer, or a layer in its branches, has weights."""
    return any(isinstance(each, Conv | Dense | BatchNorm | Native) for each in architectures.leaves((layer,)))


def forward_flops(layer: Layer, num_outputs: int) -> int:
    """Operations of the forward pass of one layer without branches, for one example.

    Args:
        num_outputs: values that it outputs for one example.
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


def _count(layers: tuple[Layer, ...], shape: tuple[int, ...], *, learned_before: bool) -> tuple[int, int, int, bool]:
    """(forward operations, backward operations, values moved, whether the output needs a gradient) of consecutive layers."""
    forward, backward, moved = 0, 0, 0
    for layer in layers:
        after = output_shape((layer,), shape, "")
        num_inputs, num_outputs = math.prod(shape), math.prod(after)
        if isinstance(layer, Residual | Concatenation):
            counted = [_count(branch, shape, learned_before=learned_before) for branch in branches(layer)]
            forward += sum(branch[0] for branch in counted)
            backward += sum(branch[1] for branch in counted)
            moved += sum(branch[2] for branch in counted)
            learned_inside = learned_before or any(branch[3] for branch in counted)
            moved += join_values_moved(layer, shape, learned_before=learned_before, learned_inside=learned_inside)
            if isinstance(layer, Residual) and layer.relu:
                moved += _moved(num_outputs, num_outputs, needs_gradient=True)
            learned_before = learned_inside
        elif isinstance(layer, Opaque):
            by_name = {own.name: own for own in layer.layers}
            calls = [*zip(layer.layers, layer.outputs, strict=True), *((by_name[name], shape) for name, shape in layer.again)]
            sizes = [math.prod(output) for _, output in calls]
            each = [forward_flops(own, size) for (own, _), size in zip(calls, sizes, strict=True)]
            first = next(filter(None, each), 0)
            forward += sum(each)
            backward += 2 * sum(each) - (0 if learned_before else first)
            moved += 2 * sum(sizes)
            learned_before = True
        else:
            operations = forward_flops(layer, num_outputs)
            forward += operations
            backward += operations * (2 if learned_before else 1)
            learned = is_learned(layer)
            if not isinstance(layer, Flatten):
                moved += _moved(num_inputs, num_outputs, needs_gradient=learned_before, learned=learned)
            learned_before = learned_before or learned
        shape = after
    return forward, backward, moved, learned_before


def join_values_moved(
    layer: Residual | Concatenation, shape: tuple[int, ...], *, learned_before: bool, learned_inside: bool
) -> int:
    """Values moved where the branches of a layer meet, and where they part.

    Args:
        shape: of one example in front of the layer.
        learned_before: whether its input needs a gradient.
        learned_inside: whether its output does.
    """
    num_outputs = math.prod(output_shape((layer,), shape, ""))
    summed = 3 * math.prod(shape) * (len(branches(layer)) - 1) * learned_before
    if isinstance(layer, Residual):
        return 3 * num_outputs + summed
    return 2 * num_outputs * (2 if learned_inside else 1) + summed


def _moved(num_inputs: int, num_outputs: int, *, needs_gradient: bool, learned: bool = False) -> int:
    """Values moved forward and backward by one layer."""
    backward = num_outputs + num_inputs + num_inputs * needs_gradient if needs_gradient or learned else 0
    return num_inputs + num_outputs + backward
