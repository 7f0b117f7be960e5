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
from keras.src.backend.common import global_state

from common.matching import pair, recording
from common.matching.pair import PairedModel
from common.models import architectures, user_code
from common.models.architectures import Architecture, Opaque
from common.spec import SpecError
from tensorflow_impl import batch_norm
from tensorflow_impl.batch_norm import ReplicaGroup


def build(side: PairedModel, architecture: Architecture, precision: str, group: ReplicaGroup | None) -> keras.Model:
    """Build a user's own model, as `build_<framework>` of a user's module does.

    Args:
        side: where it is, and the names of its layers.
        architecture: of the pair.
        precision: `float32` or `float64`.
        group: replicas that share BatchNorm statistics; None: statistics per replica.

    Raises:
        SpecError: the model cannot be built twice, or trains other values than the architecture says.
    """
    model = cast(Opaque, architecture.layers[0])
    if isinstance(user_code.find(side.model), keras.Model):
        raise SpecError(f"{side.model} is one model, and a run needs several. Name its class, or a function that makes it.")
    height, width, channels = model.shape
    with _as_matched(precision), user_code.running(side.model):
        net = user_code.build(side.model, keras.Model, classes=model.num_outputs, image=(height, width, channels))
        # Twin: Keras makes variables in the first call.
        net(tf.zeros((1, *model.shape), precision), training=False)
    images = keras.Input((height, width, 3), dtype=precision, name="images")
    masks = [
        keras.Input((dropout.units,), dtype="bool", name=f"mask_{index}") for index, dropout in enumerate(architecture.dropouts)
    ]
    own = keras.Model([images, *masks], UserModel(side, model, net, group)([images, *masks]), name="matched")
    trained = sum(math.prod(variable.shape) for variable in own.trainable_variables)
    pair.check_trained(side, architecture, trained)
    return own


@contextmanager
def _as_matched(precision: str) -> Generator[None]:
    """Make layers as `match` did: their names counted from zero, their input of the whole precision."""
    # Twin: Keras names layers by a count in the process, and takes the type of inputs from a setting. torch does neither.
    key, floats = "object_name_uids", keras.config.floatx()
    counted = global_state.get_global_attribute(key)
    global_state.set_global_attribute(key, None)
    keras.config.set_floatx(precision)
    try:
        yield
    finally:
        keras.config.set_floatx(floats)
        global_state.set_global_attribute(key, counted)


class UserModel(keras.layers.Layer):
    """Takes the suite's images and masks, and gives them to a user's model."""

    def __init__(self, side: PairedModel, model: Opaque, net: Any, group: ReplicaGroup | None) -> None:
        super().__init__()
        self.net = net
        self._channels = model.shape[-1]
        self._masks = threading.local()  # replicas of a strategy run in threads that take turns
        self._dropouts: list[str] = []
        self._holders: dict[str, Any] = {}
        names = recording.unique_names(net, lambda layer: layer._layers)
        leaves = {names[id(leaf)]: leaf for leaf in net._flatten_layers(include_self=False)}
        for layer, shape in zip(model.layers, model.outputs, strict=True):
            own = side.layers[layer.name]  # a layer's own name may have dots, and a part of it stands behind the last one
            name, _, part = (own, "", "") if own in leaves else own.rpartition(".")
            leaf = leaves[name]
            if isinstance(layer, architectures.Dropout):
                self._dropouts.append(layer.name)
                leaf.call = _masked(layer, self._masks)
            elif isinstance(layer, architectures.BatchNorm):
                leaf.call = _normalised(layer, leaf, group)
            self._holders[layer.name] = _holder(leaf, part, shape)

    def find(self, name: str) -> Any:
        """What holds the arrays of a layer of the architecture."""
        return self._holders[name]

    def call(self, inputs: Any, training: Any = None) -> tf.Tensor:
        """Logits [N, classes] of images, and of a mask bool [N, units] for each dropout."""
        images, *masks = inputs
        self._masks.now = dict(zip(self._dropouts, masks, strict=True))
        return self.net(images[..., : self._channels], training=training)


def _holder(leaf: Any, part: str, shape: tuple[int, ...]) -> Any:
    """The arrays of a layer by role, and what else is asked of a layer of the suite's own models."""
    roles: dict[str, Any] = {role: getattr(leaf, role, None) for role in ("kernel", "bias", "gamma", "beta")}
    if isinstance(leaf, keras.layers.BatchNormalization):
        # Twin: Keras's own names of the running statistics.
        roles |= {"mean": leaf.moving_mean, "variance": leaf.moving_variance}
    if part:
        roles = {"kernel": getattr(leaf, f"{part}_kernel"), "bias": leaf.bias if part == "pointwise" else None}
    arrays = [variable for variable in roles.values() if variable is not None]
    return SimpleNamespace(
        **roles, variables=arrays, non_trainable_variables=[each for each in arrays if not each.trainable],
        output=SimpleNamespace(shape=(None, *shape)),
        is_depthwise=part == "depthwise" or isinstance(leaf, keras.layers.DepthwiseConv2D),
    )  # fmt: skip


def _masked(layer: architectures.Dropout, masks: threading.local) -> Any:
    """A dropout with the mask of the batch, instead of a draw of its own."""

    def call(x: Any, training: bool = False) -> Any:
        if not training:
            return x
        mask = masks.now[layer.name]
        if len(x.shape) == 4:
            size = (1, 1) if layer.units == x.shape[-1] else x.shape[1:3]
            mask = tf.reshape(mask, (-1, *size, x.shape[-1]))
        return x * tf.cast(mask, x.dtype) * tf.constant(1.0 / (1.0 - layer.rate), x.dtype)

    return call


def _normalised(layer: architectures.BatchNorm, leaf: Any, group: ReplicaGroup | None) -> Any:
    """The call of Keras's own BatchNormalization, with the running variance of torch's; or, in a group, the suite's layer."""
    native = leaf.call
    if group is not None:
        synchronised: Any = batch_norm.build(layer, group)
        synchronised.gamma, synchronised.beta = leaf.gamma, leaf.beta
        synchronised.mean, synchronised.variance = leaf.moving_mean, leaf.moving_variance
        return lambda inputs, training=False, mask=None: synchronised.call(inputs, training=training)

    def call(inputs: Any, training: bool = False, mask: Any = None) -> Any:
        kept = leaf.moving_variance * leaf.momentum
        made = native(inputs, training=training)
        if training:
            # Twin: Keras's layer keeps the biased running variance. torch's keeps the unbiased one.
            count = tf.cast(tf.size(inputs) // inputs.shape[-1], leaf.moving_variance.dtype)
            leaf.moving_variance.assign(kept + (leaf.moving_variance - kept) * (count / (count - 1)))
        return made

    return call
