"""A user's own model of a matched pair, built unchanged, with the suite's names of layers and masks of dropouts."""

from __future__ import annotations

import math
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import keras
import tensorflow as tf

from common.matching import pair, recording
from common.matching.pair import PairedModel
from common.models import architectures, user_code
from common.models.architectures import Architecture, Opaque
from common.spec import SpecError
from tensorflow_impl import batch_norm, private_api
from tensorflow_impl.batch_norm import ReplicaGroup


def build(paired_model: PairedModel, architecture: Architecture, precision: str, group: ReplicaGroup | None) -> keras.Model:
    """Build a user's own model, as `build_<framework>` of a user's module does.

    Args:
        paired_model: the name of the model, and the names of its layers.
        architecture: the pair's architecture.
        precision: `float32` or `float64`.
        group: replicas that share BatchNorm statistics; None: statistics per replica.
    """
    model = cast(Opaque, architecture.layers[0])
    if isinstance(user_code.find(paired_model.model), keras.Model):
        raise SpecError(
            f"{paired_model.model} is one model, and a run needs several. Name its class, or a function that makes it."
        )
    height, width, channels = model.shape
    with _match_conventions(precision), user_code.report_errors(paired_model.model):
        net = user_code.build(paired_model.model, keras.Model, classes=model.num_outputs, image_shape=(height, width, channels))
        # Twin: Keras makes variables in the first call.
        net(tf.zeros((1, *model.shape), precision), training=False)
    images = keras.Input((height, width, 3), dtype=precision, name="images")
    masks = [
        keras.Input((dropout.units,), dtype="bool", name=f"mask_{index}") for index, dropout in enumerate(architecture.dropouts)
    ]
    user_model = keras.Model([images, *masks], UserModel(paired_model, model, net, group)([images, *masks]), name="matched")
    num_trained = sum(math.prod(variable.shape) for variable in user_model.trainable_variables)
    pair.check_trained(paired_model, architecture, num_trained)
    return user_model


@contextmanager
def _match_conventions(precision: str) -> Generator[None]:
    """Create layers under the conditions of `match`: names counted from zero, inputs in full precision."""
    # Twin: Keras names layers by a count in the process, and takes the type of inputs from a setting. torch does neither.
    floats = keras.config.floatx()
    keras.config.set_floatx(precision)
    try:
        with private_api.new_name_counts():
            yield
    finally:
        keras.config.set_floatx(floats)


class UserModel(keras.layers.Layer):
    """Passes the suite's images and masks to a user's model."""

    def __init__(self, paired_model: PairedModel, model: Opaque, net: Any, group: ReplicaGroup | None) -> None:
        super().__init__()
        self.net = net
        self._channels = model.shape[-1]
        self._masks = threading.local()  # replicas of a strategy run in threads that take turns
        self._dropouts: list[str] = []
        self._holders: dict[str, Any] = {}
        names = recording.unique_names(net, private_api.sublayers)
        leaves = {names[id(leaf)]: leaf for leaf in private_api.all_layers(net, include_self=False)}
        for layer, shape in zip(model.layers, model.outputs, strict=True):
            path = paired_model.layers[
                layer.name
            ]  # a layer's own name may have dots, and a part of it stands behind the last one
            name, _, part = (path, "", "") if path in leaves else path.rpartition(".")
            leaf = leaves[name]
            if isinstance(layer, architectures.Dropout):
                self._dropouts.append(layer.name)
                leaf.call = _masked_dropout_call(layer, self._masks)
            elif isinstance(layer, architectures.BatchNorm):
                leaf.call = _batch_norm_call(layer, leaf, group)
            self._holders[layer.name] = _holder(leaf, part, shape)

    def find(self, name: str) -> Any:
        """Return the object that holds the arrays of a layer of the architecture."""
        return self._holders[name]

    def call(self, inputs: Any, training: Any = None) -> tf.Tensor:
        """Return logits [N, classes] of images, with a mask bool [N, units] for each dropout."""
        images, *masks = inputs
        self._masks.now = dict(zip(self._dropouts, masks, strict=True))
        return self.net(images[..., : self._channels], training=training)


def _holder(leaf: Any, part: str, shape: tuple[int, ...]) -> Any:
    """Return the arrays of a layer by role, and the other attributes that layers of the suite's own models have."""
    roles: dict[str, Any] = {role: getattr(leaf, role, None) for role in ("kernel", "bias", "gamma", "beta")}
    if isinstance(leaf, keras.layers.BatchNormalization):
        # Twin: Keras's own names of the running statistics.
        roles |= {"mean": leaf.moving_mean, "variance": leaf.moving_variance}
    if part:
        roles = {"kernel": getattr(leaf, f"{part}_kernel"), "bias": leaf.bias if part == "pointwise" else None}
    arrays = [variable for variable in roles.values() if variable is not None]
    return SimpleNamespace(
        **roles, variables=arrays, non_trainable_variables=[array for array in arrays if not array.trainable],
        output=SimpleNamespace(shape=(None, *shape)),
        is_depthwise=part == "depthwise" or isinstance(leaf, keras.layers.DepthwiseConv2D),
    )  # fmt: skip


def _masked_dropout_call(layer: architectures.Dropout, masks: threading.local) -> Any:
    """Return a dropout's call that applies the batch's mask, instead of its own random draw."""

    def call(x: Any, training: bool = False) -> Any:
        if not training:
            return x
        mask = masks.now[layer.name]
        if len(x.shape) == 4:
            size = (1, 1) if layer.units == x.shape[-1] else x.shape[1:3]
            mask = tf.reshape(mask, (-1, *size, x.shape[-1]))
        return x * tf.cast(mask, x.dtype) * tf.constant(1.0 / (1.0 - layer.rate), x.dtype)

    return call


def _batch_norm_call(layer: architectures.BatchNorm, leaf: Any, group: ReplicaGroup | None) -> Any:
    """Return the call of Keras's BatchNormalization with torch's running variance; or, in a group, the suite's layer."""
    keras_call = leaf.call
    if group is not None:
        synchronised: Any = batch_norm.build(layer, group)
        synchronised.gamma, synchronised.beta = leaf.gamma, leaf.beta
        synchronised.mean, synchronised.variance = leaf.moving_mean, leaf.moving_variance
        return lambda inputs, training=False, mask=None: synchronised.call(inputs, training=training)

    def call(inputs: Any, training: bool = False, mask: Any = None) -> Any:
        decayed_variance = leaf.moving_variance * leaf.momentum
        outputs = keras_call(inputs, training=training)
        if training:
            # Twin: Keras's layer keeps the biased running variance. torch's keeps the unbiased one.
            count = tf.cast(tf.size(inputs) // inputs.shape[-1], leaf.moving_variance.dtype)
            leaf.moving_variance.assign(decayed_variance + (leaf.moving_variance - decayed_variance) * (count / (count - 1)))
        return outputs

    return call
