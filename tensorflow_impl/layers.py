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
        spec: of a run; its batch size, precision and switches apply.
        shape: [H, W, C] or [features] of one example of the input.
        needs_gradient: whether to compute the gradient of the input.

    Returns:
        A function that returns gradients: of the input if needed, then of the variables. Without any gradient it returns the
            layers' output.

    Raises:
        SpecError: a switch applies to a whole step only, not to single layers.
    """
    chosen = switches.of(spec, device.kind())
    layers.refuse_switches(chosen, {"arithmetic": "full", "graph": "function"})
    size = spec.global_batch_size

    def drawn(shape: tuple[int, ...] = shape) -> tf.Tensor:
        return tf.random.normal((size, *shape), dtype=spec.precision)

    if layers.is_residual_sum(architecture):
        branches, gradients = ([drawn(), drawn()] for _ in range(2))

        @device.graph
        def sums(branches: Any, gradients: Any) -> tuple[tf.Tensor, tf.Tensor]:
            return tf.add(*branches), tf.add(*gradients)

        return lambda: [sums(branches, gradients)[1 if needs_gradient else 0]]
    if shapes := layers.concatenated_shapes(architecture, shape):
        branches, gradients = [drawn(each) for each in shapes], [drawn() for _ in shapes]
        widths = [each[-1] for each in shapes]

        # Twin: TensorFlow copies the branches' gradients out of the output's. torch's are views.
        @device.graph
        def concatenation(branches: Any, gradients: Any, upstream: Any) -> Any:
            return tf.concat(branches, -1), tf.add_n(gradients), tf.split(upstream, widths, -1)

        joined = drawn((*shapes[0][:-1], sum(widths)))
        return lambda: [concatenation(branches, gradients, joined)[1 if needs_gradient else 0]]
    # Twin: Keras needs the input shape of layers. torch takes it from the values.
    alone = architecture.name == layers.OWN_NAME
    model: Any = (
        models.build_layers(architecture, shape, spec.precision) if alone else models.build(architecture, spec.precision)
    )
    variables = [variable.value for variable in model.trainable_variables]
    values = drawn()
    masks = [tf.random.uniform((size, dropout.units)) > dropout.rate for dropout in architecture.dropouts]

    # Twin: TensorFlow's step is a graph. Values and gradient are arguments, because constants might be folded. The layers'
    # output is returned, because a graph skips an output that no gradient needs, as in a convolution.
    @device.graph
    def graph(values: Any, masks: Any, upstream: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            if needs_gradient:
                tape.watch(values)
            made = model([values, *masks], training=True)
        sources = [*([values] if needs_gradient else []), *variables]
        gradients = cast(list[tf.Tensor], tape.gradient(made, sources, output_gradients=upstream)) if sources else [made]
        return made, gradients

    upstream = tf.random.normal((size, *model.output_shape[1:]), dtype=spec.precision)
    return lambda: graph(values, masks, upstream)[1]
