"""Mistakes that a TensorFlow twin could make, each planted where it would be made."""

from __future__ import annotations

import math
from typing import Any

import keras
import pytest
import tensorflow as tf

from common.models.architectures import Layer, MaxPool
from common.training.trainer import Update
from tensorflow_impl import batch_norm, compression, evaluate, models, optim, shards, train
from tensorflow_impl.parallel.sharded_data_parallel import ShardedDataParallel


def nothing(patch: pytest.MonkeyPatch) -> None:
    """The clean twin: what fails with a defect must pass with this."""


def fused_batch_norm_epsilon_of_keras(patch: pytest.MonkeyPatch) -> None:
    """In the kernel that float32 runs, and float64 does not."""
    _fused_with(patch, epsilon=1e-3)


def fused_running_variance_is_biased(patch: pytest.MonkeyPatch) -> None:
    """As if the kernel gave the biased variance out; float64, which has no fused kernel, is right."""
    call = batch_norm._BatchNorm.call

    def biased(self: Any, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        if not training or inputs.dtype == tf.float64:
            return call(self, inputs, training=training)
        before = tf.identity(self.variance)
        normalised = call(self, inputs, training=training)
        count = tf.cast(tf.size(inputs) // inputs.shape[-1], inputs.dtype)
        newest = self.variance - (1.0 - self._momentum) * before
        self.variance.assign(self.variance - newest / count)
        return normalised

    patch.setattr(batch_norm._BatchNorm, "call", biased)


def batch_norm_momentum_means_old(patch: pytest.MonkeyPatch) -> None:
    """PyTorch's number in Keras' meaning."""
    update = batch_norm._BatchNorm._update

    def keeps_a_tenth(self: Any, *statistics: tf.Tensor) -> None:
        momentum, self._momentum = self._momentum, 1.0 - self._momentum
        update(self, *statistics)
        self._momentum = momentum

    patch.setattr(batch_norm._BatchNorm, "_update", keeps_a_tenth)


def predictions_are_rolled(patch: pytest.MonkeyPatch) -> None:
    """Each image gets its neighbour's, in float32 alone. No loss tells."""
    score = evaluate.score

    def rolled(model: keras.Model, *given: Any) -> tuple[tf.Tensor, tf.Tensor]:
        loss, predictions = score(model, *given)
        return loss, predictions if model.inputs[0].dtype == "float64" else tf.roll(predictions, 1, 0)

    patch.setattr(evaluate, "score", rolled)


def evaluation_takes_the_statistics_of_the_batch(patch: pytest.MonkeyPatch) -> None:
    """In the kernel that float32 runs, and float64 does not."""
    _fused_with(patch, is_training=True, mean=tf.zeros([0]), variance=tf.zeros([0]), exponential_avg_factor=1.0)


def batch_norm_is_per_replica(patch: pytest.MonkeyPatch) -> None:
    """Where synchronised statistics are claimed."""
    build = batch_norm.build
    patch.setattr(batch_norm, "build", lambda layer, group: build(layer, None))


def last_shard_is_unscaled(patch: pytest.MonkeyPatch) -> None:
    """The mean of the replicas' means: an example of a short shard counts too much."""
    share_of_loss = train.share_of_loss

    def mean_of_means(logits: tf.Tensor, labels: tf.Tensor, num_examples: Any, loss: str) -> tf.Tensor:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return share_of_loss(logits, labels, replicas * tf.size(labels), loss)

    patch.setattr(train, "share_of_loss", mean_of_means)


def scatter_averages_over_ranks(patch: pytest.MonkeyPatch) -> None:
    """As a strategy does unless it is told otherwise, though the shares of the loss are already divided."""
    scattered = ShardedDataParallel._scatter

    def averaged(self: Any, gradients: list[Any]) -> list[tf.Tensor]:
        return [gradient / len(self.devices) for gradient in scattered(self, gradients)]

    patch.setattr(ShardedDataParallel, "_scatter", averaged)


def gathered_parameters_are_stale(patch: pytest.MonkeyPatch) -> None:
    """Kept from the first step on, instead of being gathered anew."""
    own = shards._GatheringLayer._all_parts

    def kept(self: Any) -> list[tf.Tensor]:
        now = own(self)
        with tf.init_scope():
            first = [tf.identity(values) for values in own(self)]
        return [old + (new - tf.stop_gradient(new)) for old, new in zip(first, now, strict=True)]  # the gradient stays

    patch.setattr(shards._GatheringLayer, "_all_parts", kept)


def optimizer_state_is_shifted_by_one_rank(patch: pytest.MonkeyPatch) -> None:
    """Every replica updates its rows with the momentum of its neighbour's."""
    apply = optim.SGD.apply

    def shifted(self: optim.SGD, gradients: list[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        ranks = len({variable.device for variable in self._variables})
        for first in range(0, len(self._buffers), ranks):
            buffers = self._buffers[first : first + ranks]
            values = [tf.identity(buffer) for buffer in buffers]
            for buffer, value in zip(buffers, [*values[1:], values[0]], strict=True):
                if buffer.shape == value.shape:
                    buffer.assign(value)
        apply(self, gradients, learning_rate, step)

    patch.setattr(optim.SGD, "apply", shifted)


def loss_is_wrong_after_the_first_step(patch: pytest.MonkeyPatch) -> None:
    """By 17 %, in what is reported; the gradients are right."""
    step = train.train_step

    def reported(*arguments: Any) -> Any:
        update = next(argument for argument in arguments if isinstance(argument, Update))
        loss, num_correct = step(*arguments)
        return loss * tf.where(update.step > 1, tf.constant(1.17, loss.dtype), tf.constant(1.0, loss.dtype)), num_correct

    patch.setattr(train, "train_step", reported)


def a_byte_has_126_steps(patch: pytest.MonkeyPatch) -> None:
    """Of compressed gradients."""
    patch.setattr(compression, "INT8_STEPS", 126)


def one_value_less_is_sent(patch: pytest.MonkeyPatch) -> None:
    top_k_count = compression.top_k_count
    patch.setattr(compression, "top_k_count", lambda *given: top_k_count(*given) - 1)


def what_was_not_sent_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Where error feedback is claimed."""
    compress = compression.Compressor.compress

    def forgetful(self: compression.Compressor, gradients: list[Any]) -> Any:
        if self._residuals is not None:
            for each in self._residuals:
                each.assign(tf.zeros_like(each))
        return compress(self, gradients)

    patch.setattr(compression.Compressor, "compress", forgetful)


def adam_epsilon_before_correction(patch: pytest.MonkeyPatch) -> None:
    """The kernel's own meaning of epsilon: one line of the twin left out."""
    kernel = tf.raw_ops.ResourceApplyAdam

    def unscaled(**arguments: Any) -> Any:
        epsilon = arguments.pop("epsilon") / tf.sqrt(1.0 - arguments["beta2_power"])
        return kernel(epsilon=epsilon, **arguments)

    patch.setattr(tf.raw_ops, "ResourceApplyAdam", unscaled)


def gradients_are_a_billionth_too_long(patch: pytest.MonkeyPatch) -> None:
    apply = optim.SGD.apply

    def longer(self: optim.SGD, gradients: list[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        apply(self, [gradient * (1 + 1e-9) for gradient in gradients], learning_rate, step)

    patch.setattr(optim.SGD, "apply", longer)


def optimizer_of_keras(patch: pytest.MonkeyPatch) -> None:
    """Momentum through float32, the learning rate in the buffer, decoupled weight decay: three defects in one."""
    build = optim.build
    patch.setattr(optim, "build", lambda given, *rest: build(given.model_copy(update={"native": True}), *rest))


def max_pool_padding_is_symmetric(patch: pytest.MonkeyPatch) -> None:
    """torch's padding where `same` pads the bottom and the right alone; the shapes are equal."""
    padded = models._Builder._padded

    def symmetric(self: Any, layer: Layer, x: Any, value: float = 0.0) -> tuple[Any, str]:
        if isinstance(layer, MaxPool):
            return models._Padding(((1, 1), (1, 1)), value, name=f"{layer.name}.padding")(x), "valid"
        return padded(self, layer, x, value)

    patch.setattr(models._Builder, "_padded", symmetric)


def flatten_is_channels_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        keras.layers.Flatten, "call", lambda self, x: tf.reshape(tf.transpose(x, (0, 3, 1, 2)), (-1, math.prod(x.shape[1:])))
    )


def groups_are_in_another_order(patch: pytest.MonkeyPatch) -> None:
    def mixed(self: models._GroupedConv2D, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        kernels = tf.split(kernel, self.groups, -1)[::-1]
        parts = zip(tf.split(inputs, self.groups, -1), kernels, strict=True)
        return tf.concat([tf.nn.conv2d(x, own, self.strides, self.padding.upper()) for x, own in parts], -1)

    patch.setattr(models._GroupedConv2D, "convolution_op", mixed)


def average_pool_counts_padding(patch: pytest.MonkeyPatch) -> None:
    """As torch's layer does unless it is told otherwise."""

    class Counting(keras.layers.AveragePooling2D):
        def call(self, x: Any) -> Any:
            return tf.nn.avg_pool2d(tf.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)]), self.pool_size, self.strides, "VALID")

    patch.setattr(keras.layers, "AveragePooling2D", Counting)


def branches_are_in_another_order(patch: pytest.MonkeyPatch) -> None:
    call = keras.layers.Concatenate.call
    patch.setattr(keras.layers.Concatenate, "call", lambda self, parts: call(self, parts[::-1]))


def depthwise_has_a_bias(patch: pytest.MonkeyPatch) -> None:
    """A parameter that the architecture does not have; it starts at zero, and BatchNorm takes away what it adds."""

    class WithBias(keras.layers.DepthwiseConv2D):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "use_bias": True})

    patch.setattr(keras.layers, "DepthwiseConv2D", WithBias)


def _fused_with(patch: pytest.MonkeyPatch, **changed: Any) -> None:
    kernel = tf.raw_ops.FusedBatchNormV3
    patch.setattr(tf.raw_ops, "FusedBatchNormV3", lambda **arguments: kernel(**{**arguments, **changed}))


DEFECTS = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", None) == __name__ and not name.startswith("_")
}
