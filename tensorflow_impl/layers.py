"""Layers by themselves, forward and backward, as a training step goes through them."""

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
    """What goes through layers once, forward and backward, with one batch of random values.

    Args:
        spec: of a run; its batch size, precision and switches count.
        architecture: the layers.
        shape: [H, W, C] or [features] of one example in front of them.
        needs_gradient: whether the values in front of them do.

    Returns:
        What gives the gradients: of the values where asked, then of the variables; or what the layers make, if nothing has any.

    Raises:
        SpecError: a switch makes a step of what no layer is by itself.
    """
    chosen = switches.of(spec, device.kind())
    layers.refuse_other(chosen, {"arithmetic": "full", "graph": "function"})
    size = spec.global_batch_size

    def drawn() -> tf.Tensor:
        return tf.random.normal((size, *shape), dtype=spec.precision)

    if layers.is_sum(architecture):
        branches, gradients = ([drawn(), drawn()] for _ in range(2))

        @tf.function
        def sums(branches: Any, gradients: Any) -> tuple[tf.Tensor, tf.Tensor]:
            return tf.add(*branches), tf.add(*gradients)

        return lambda: [sums(branches, gradients)[1 if needs_gradient else 0]]
    # Twin: Keras has to be told the shape in front of layers, of which torch hears from the values themselves.
    alone = architecture.name == layers.OWN_NAME
    model: Any = (
        models.build_layers(architecture, shape, spec.precision) if alone else models.build(architecture, spec.precision)
    )
    variables = [variable.value for variable in model.trainable_variables]
    values = drawn()
    masks = [tf.random.uniform((size, dropout.units)) > dropout.rate for dropout in architecture.dropouts]

    # Twin: TensorFlow's step is a graph. Values and gradient are its arguments: with constants it might be computed at once.
    # What the layers make is returned: where no gradient needs it, as in a convolution, it would not be computed.
    @tf.function
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
