"""How much work a model is: operations and values moved, counted from its layers as plain data, without any framework.

Operations are those of convolutions and dense layers, the ones that a machine's matrix rate bounds; a multiply-add counts
as two, padding like pixels, biases not at all. The backward pass costs the same again for the gradient of the weights and
once more for that of the input, which the first layers, in front of which nothing is learned, do not need.

Values moved follow one simple model, without caches and without layers that are fused: forward, every layer reads its
input and writes its output; backward, it reads its output's gradient and its input and writes its input's gradient; a
residual sum reads two and writes one, both ways. Weights are read forward and backward, their gradient is written, and
the update reads gradient and weight and writes the weight, and reads and writes what the optimizer remembers of it.
"""

from __future__ import annotations

import math

from common.frozen import Frozen
from common.models import architectures
from common.models.architectures import (
    Architecture,
    BatchNorm,
    Conv,
    Dense,
    DepthwiseConv,
    Flatten,
    Layer,
    Residual,
    output_shape,
)
from common.spec import Spec

VALUE_BYTES = {"float32": 4, "float64": 8}
_REMEMBERED = {"sgd": 1, "adam": 2}
"""Values that the update rule keeps for each weight."""


class Work(Frozen):
    """Of one model, for one training image."""

    forward_flops: int
    backward_flops: int
    values_moved: int
    """Inputs, outputs and gradients of layers, forward and backward."""
    weights: int
    """Trainable values, which are moved once a step, whatever its batch."""

    @property
    def flops(self) -> int:
        return self.forward_flops + self.backward_flops

    def bytes_moved(self, run: Spec) -> float:
        """For one image of a run: its own values, and its part of what every copy of the model moves in a step."""
        passes = 6 + 2 * _REMEMBERED[run.optimizer.name]
        weights = passes * self.weights * run.data_replicas / run.global_batch_size
        return VALUE_BYTES[run.precision] * (self.values_moved + weights)


def count(architecture: Architecture) -> Work:
    """The work of a model; see the module for what is counted."""
    size = architecture.image_size
    return count_layers(architecture.layers, (size, size, 3), learned_before=False)


def count_layers(layers: tuple[Layer, ...], shape: tuple[int, ...], *, learned_before: bool) -> Work:
    """The work of layers in a row.

    Args:
        layers: one after the other.
        shape: of one example in front of them.
        learned_before: whether their input needs a gradient.
    """
    forward, backward, moved, _ = _count(layers, shape, learned_before=learned_before)
    weights = sum(parameter.size for parameter in architectures.parameters(layers) if parameter.trainable)
    return Work(forward_flops=forward, backward_flops=backward, values_moved=moved, weights=weights)


def is_learned(layer: Layer) -> bool:
    """Whether a layer, or one in a Residual, has weights."""
    return any(isinstance(each, Conv | DepthwiseConv | Dense | BatchNorm) for each in architectures.leaves((layer,)))


def _count(layers: tuple[Layer, ...], shape: tuple[int, ...], *, learned_before: bool) -> tuple[int, int, int, bool]:
    """(forward and backward operations, values moved, whether anything is learned up to here) of layers in a row.

    Args:
        layers: one after the other.
        shape: of one example in front of them.
        learned_before: whether their input needs a gradient.
    """
    forward, backward, moved = 0, 0, 0
    for layer in layers:
        after = output_shape((layer,), shape, "")
        given, made = math.prod(shape), math.prod(after)
        if isinstance(layer, Residual):
            branches = [_count(part, shape, learned_before=learned_before) for part in (layer.body, layer.shortcut)]
            forward += sum(branch[0] for branch in branches)
            backward += sum(branch[1] for branch in branches)
            sums = 3 * made + 3 * given * learned_before
            moved += sum(branch[2] for branch in branches) + sums + layer.relu * _moved(made, made, needs_gradient=True)
            learned_before = learned_before or any(branch[3] for branch in branches)
        else:
            operations = _operations(layer, made)
            forward += operations
            backward += operations * (2 if learned_before else 1)
            learned = is_learned(layer)
            if not isinstance(layer, Flatten):
                moved += _moved(given, made, needs_gradient=learned_before, learned=learned)
            learned_before = learned_before or learned
        shape = after
    return forward, backward, moved, learned_before


def _operations(layer: Layer, made: int) -> int:
    """Forward, of a layer that makes so many values."""
    match layer:
        case Conv():
            return 2 * layer.kernel_size**2 * layer.in_channels * made
        case DepthwiseConv():
            return 2 * layer.kernel_size**2 * made
        case Dense():
            return 2 * layer.in_features * made
        case _:
            return 0


def _moved(given: int, made: int, *, needs_gradient: bool, learned: bool = False) -> int:
    """Both ways, of a layer with so many values in and out."""
    backward = made + given + given * needs_gradient if needs_gradient or learned else 0
    return given + made + backward
