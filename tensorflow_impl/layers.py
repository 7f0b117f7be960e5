"""Single layers, forward and backward, as in a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import tensorflow as tf

from common.models.architectures import Architecture
from common.spec import Spec
from common.training import layers
from tensorflow_impl import device, models, switches


def passes(
    spec: Spec, architecture: Architecture, shape: tuple[int, ...], needs_gradient: bool
) -> Callable[[], list[tf.Tensor]]:
    """Build a function that runs layers once, forward and backward, on one batch of random values.

    Args:
        spec: a run's spec; its batch size, precision and switches apply.
        shape: [H, W, C] or [features] of one example of the input.
        needs_gradient: whether to compute the gradient of the input.

    Returns:
        A function that returns gradients: of the input if needed, then of the variables. Without any gradient it returns the
            layers' output.
    """
    switch_values = switches.switches_for(spec, device.kind())
    layers.refuse_switches(switch_values, {"arithmetic": "full", "graph": "function"})
    size = spec.global_batch_size

    def random_values(shape: tuple[int, ...] = shape) -> tf.Tensor:
        return tf.random.normal((size, *shape), dtype=spec.precision)

    if layers.is_residual_sum(architecture):
        branches, gradients = ([random_values(), random_values()] for _ in range(2))

        @device.graph
        def sums(branches: Any, gradients: Any) -> tuple[tf.Tensor, tf.Tensor]:
            return tf.add(*branches), tf.add(*gradients)

        return lambda: [sums(branches, gradients)[1 if needs_gradient else 0]]
    if shapes := layers.concatenated_shapes(architecture, shape):
        branches, gradients = [random_values(branch_shape) for branch_shape in shapes], [random_values() for _ in shapes]
        widths = [branch_shape[-1] for branch_shape in shapes]

        # Twin: TensorFlow copies the branches' gradients out of the output's. torch's are views.
        @device.graph
        def concatenation(branches: Any, gradients: Any, upstream: Any) -> Any:
            return tf.concat(branches, -1), tf.add_n(gradients), tf.split(upstream, widths, -1)

        upstream_values = random_values((*shapes[0][:-1], sum(widths)))
        return lambda: [concatenation(branches, gradients, upstream_values)[1 if needs_gradient else 0]]
    # Twin: Keras needs the input shape of layers. torch takes it from the values.
    is_single_layer = architecture.name == layers.OWN_NAME
    model: Any = (
        models.build_layers(architecture, shape, spec.precision)
        if is_single_layer
        else models.build(architecture, spec.precision)
    )
    variables = [variable.value for variable in model.trainable_variables]
    values = random_values()
    masks = [tf.random.uniform((size, dropout.units)) > dropout.rate for dropout in architecture.dropouts]

    # Twin: TensorFlow's step is a graph. Values and gradient are arguments, because constants might be folded. The layers'
    # output is returned, because a graph skips an output that no gradient needs, as in a convolution.
    @device.graph
    def graph(values: Any, masks: Any, upstream: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            if needs_gradient:
                tape.watch(values)
            output = model([values, *masks], training=True)
        sources = [*([values] if needs_gradient else []), *variables]
        gradients = cast(list[tf.Tensor], tape.gradient(output, sources, output_gradients=upstream)) if sources else [output]
        return output, gradients

    upstream = tf.random.normal((size, *model.output_shape[1:]), dtype=spec.precision)
    return lambda: graph(values, masks, upstream)[1]
