"""Batch normalisation, over each replica's own shard or over the global batch."""

from __future__ import annotations

from typing import Any, Protocol

import keras
import tensorflow as tf

from common.models import architectures


class ReplicaGroup(Protocol):
    """Replicas of one training step, which can sum tensors."""

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        """Sum a tensor over replicas; each gets the sum. Its gradient is the sum of the gradients."""
        ...


def build(layer: architectures.BatchNorm, group: ReplicaGroup | None) -> keras.layers.Layer:
    """Build the layer of an architecture's entry.

    Args:
        layer: channels, momentum and epsilon.
        group: the replicas that share statistics; None: each replica normalises over its own examples.
    """
    if group is None:
        return _BatchNorm(layer.channels, eps=layer.epsilon, momentum=layer.momentum, name=layer.name)
    return _SynchronisedBatchNorm(group, layer.channels, eps=layer.epsilon, momentum=layer.momentum, name=layer.name)


# Twin: Keras' own layer keeps the biased running variance and computes E[x^2] - E[x]^2. The other twin uses torch's layer.
class _BatchNorm(keras.layers.Layer):
    """BatchNorm over the replica's own examples; the running variance takes the unbiased variance of the batch."""

    def __init__(self, channels: int, *, eps: float, momentum: float, **options: Any) -> None:
        super().__init__(**options)
        self._eps = eps
        self._momentum = momentum
        # Each replica keeps the statistics of its own shards. Reads from outside a replica return those of the first.
        statistics: dict[str, Any] = {
            "shape": (channels,),
            "dtype": self.variable_dtype,
            "trainable": False,
            "synchronization": "on_read",
            "aggregation": "only_first_replica",
            "autocast": False,
        }
        # Keras would cast them to the layers' compute type. The kernel needs them, and the sums, in full precision.
        self.gamma = self.add_weight(shape=(channels,), initializer="ones", name="gamma", autocast=False)
        self.beta = self.add_weight(shape=(channels,), initializer="zeros", name="beta", autocast=False)
        self.mean = keras.Variable("zeros", name="mean", **statistics)
        self.variance = keras.Variable("ones", name="variance", **statistics)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Shape of `call`'s output. Without it Keras traces a graph to learn it."""
        return input_shape

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Normalise [N, H, W, C]; in training mode with the statistics of the replica's own examples."""
        if inputs.dtype == tf.float64:  # the fused kernel has no float64
            return self._two_pass(inputs) if training else self._normalised(inputs - self.mean, self.variance)
        normalised, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=self.gamma,
            offset=self.beta,
            # In training mode, with its default `exponential_avg_factor` of 1, the kernel takes no statistics. It returns the
            # batch's, with the unbiased variance.
            mean=tf.constant([], self.variable_dtype) if training else self.mean,
            variance=tf.constant([], self.variable_dtype) if training else self.variance,
            epsilon=self._eps,
            is_training=training,
        )
        if training:
            self._update(mean, variance)
        return normalised

    def _two_pass(self, inputs: tf.Tensor) -> tf.Tensor:
        axes = (0, 1, 2)
        count = tf.cast(tf.size(inputs) // inputs.shape[-1], inputs.dtype)
        mean = tf.reduce_sum(inputs, axes) / count
        centred = inputs - mean
        variance = tf.reduce_sum(tf.square(centred), axes) / count
        self._update(mean, variance * (count / (count - 1)))
        return self._normalised(centred, variance)

    def _normalised(self, centred: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
        scale = self.gamma * tf.math.rsqrt(variance + self._eps)
        return centred * scale + self.beta

    def _update(self, mean: tf.Tensor, unbiased_variance: tf.Tensor) -> None:
        momentum = tf.constant(self._momentum, mean.dtype)
        self.mean.assign(self.mean + momentum * (mean - self.mean))
        self.variance.assign(self.variance + momentum * (unbiased_variance - self.variance))


class _SynchronisedBatchNorm(_BatchNorm):
    """BatchNorm over the global batch, by differentiable all-reduces of count, sum and squared deviations.

    Two passes avoid a variance that is the difference of large numbers. The layer runs wherever replicas can sum tensors, CPU
    processes and threads included.
    """

    def __init__(self, group: ReplicaGroup, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._group = group

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Normalise [N, H, W, C]; in training mode with the statistics of all replicas' examples."""
        if not training:
            return super().call(inputs, training=False)
        inputs = tf.cast(inputs, self.variable_dtype)  # sums use the full precision, whatever the layers compute in
        axes = (0, 1, 2)
        count_here = tf.cast(tf.size(inputs) // inputs.shape[-1], inputs.dtype)
        totals = self._group.all_reduce(tf.concat([tf.reduce_sum(inputs, axes), count_here[None]], 0))
        count = tf.stop_gradient(totals[-1])
        mean = totals[:-1] / count
        centred = inputs - mean
        variance = self._group.all_reduce(tf.reduce_sum(tf.square(centred), axes)) / count
        self._update(mean, variance * (count / (count - 1)))
        return self._normalised(centred, variance)
