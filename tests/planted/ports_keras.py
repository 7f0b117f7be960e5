"""Ports of `ports_torch` to Keras: right ones, and one for each mistake that `match` knows."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

CLASSES = 5


def port(
    *, activation: Any = "relu", norm: dict[str, Any] | None = None, first: Any = (), pool: Any = None, conv2: Any = None,
    rate: float = 0.3, dense: dict[str, Any] | None = None, classes: int = CLASSES, **conv1: Any,
) -> keras.Model:  # fmt: skip
    """The right port of `Net`, but for what the arguments say."""
    images = keras.Input((8, 8, 3))
    x = images
    for layer in first:
        x = layer(x)
    x = layers.Conv2D(4, 3, **{"padding": "same", **conv1})(x)
    if norm is not None:
        x = layers.BatchNormalization(**norm)(x)
    x = layers.Activation(activation)(x) if isinstance(activation, str) else activation(x)
    x = (pool or layers.MaxPooling2D())(x)
    if "padding" not in (conv2 or {}):
        x = layers.ZeroPadding2D(1)(x)
    x = layers.Conv2D(**{"filters": 6, "kernel_size": 3, "strides": 2, **(conv2 or {})})(x)
    x = layers.Activation(activation)(x) if isinstance(activation, str) else activation(x)
    x = layers.Dropout(rate)(layers.Flatten()(x))
    return keras.Model(images, layers.Dense(classes, **(dense or {}))(x))


def perceptron(*, channels_first: bool = False) -> keras.Model:
    """The right port of `Perceptron`."""
    first = [layers.Permute((3, 1, 2))] if channels_first else []
    hidden = [layers.Dropout(0.2), layers.Dense(7, activation="relu"), layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input((8, 8, 3)), *first, layers.Flatten(), *hidden])


def perceptron_channels_first() -> keras.Model:
    return perceptron(channels_first=True)


def turned(how: str, *, dropped_before: bool = False) -> keras.Model:
    """The right port of `Net` that puts the channels first before it flattens, in the words of Keras."""
    turns: dict[str, Any] = {
        "transpose": lambda x: keras.ops.transpose(x, (0, 3, 1, 2)),
        "moveaxis": lambda x: keras.ops.moveaxis(x, 3, 1),
        "swapaxes": lambda x: keras.ops.swapaxes(keras.ops.swapaxes(x, 1, 3), 2, 3),
        "tensorflow": layers.Lambda(lambda x: tf.transpose(x, (0, 3, 1, 2))),
        "permute": layers.Permute((3, 1, 2)),
        "height and width exchanged": lambda x: keras.ops.transpose(x, (0, 3, 2, 1)),
    }
    whole = port()
    images, before, flatten = whole.input, whole.layers[-4].output, layers.Flatten()
    x = turns[how](before)
    x = flatten(layers.Dropout(0.3)(x)) if dropped_before else layers.Dropout(0.3)(flatten(x))
    return keras.Model(images, layers.Dense(CLASSES)(x))


def transposed() -> keras.Model:
    return turned("transpose")


def moved() -> keras.Model:
    return turned("moveaxis")


def swapped_twice() -> keras.Model:
    return turned("swapaxes")


def transposed_by_tensorflow() -> keras.Model:
    return turned("tensorflow")


def transposed_before_dropout() -> keras.Model:
    return turned("transpose", dropped_before=True)


def transposed_wrongly() -> keras.Model:
    return turned("height and width exchanged")


RIGHT_NORM = {"momentum": 0.9, "epsilon": 1e-5}


def with_norm() -> keras.Model:
    return port(norm=RIGHT_NORM)


def relu_then_norm() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, padding="same", activation="relu"),
            layers.BatchNormalization(**RIGHT_NORM),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )


class Subclassed(keras.Model):
    """The right port of `Net` as a class, with functions of Keras and of TensorFlow."""

    def __init__(self, activation: Any = tf.nn.relu) -> None:
        super().__init__()
        self.activation = activation
        self.conv1 = layers.Conv2D(4, 3, padding="same")
        self.conv2 = layers.Conv2D(6, 3, strides=2)
        self.dropout = layers.Dropout(0.3)
        self.dense = layers.Dense(CLASSES)

    def call(self, x: Any) -> Any:
        x = tf.nn.max_pool2d(self.activation(self.conv1(x)), 2, 2, "VALID")
        x = self.activation(self.conv2(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])))
        return self.dense(self.dropout(keras.ops.reshape(x, (-1, 24))))


class Standardises(Subclassed):
    """`ports_torch.GuardsBlack` without the guard."""

    def call(self, x: Any) -> Any:
        axes: dict[str, Any] = {"axis": (1, 2, 3), "keepdims": True}
        return super().call((x - tf.reduce_mean(x, **axes)) / tf.math.reduce_std(x, **axes))


class Gamma(keras.Model):
    """The right port of `ports_torch.Gamma`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers.Dense(16, activation="relu"), layers.Dense(CLASSES)

    def call(self, x: Any) -> Any:
        return self.second(self.first(tf.reshape(tf.transpose(x**0.45, (0, 3, 1, 2)), (-1, 192))))


def subclassed_with_relu6() -> keras.Model:
    return Subclassed(keras.ops.relu6)


def with_relu6() -> keras.Model:
    return port(activation=lambda x: layers.ReLU(max_value=6)(x))


def with_hardswish() -> keras.Model:
    return port(activation="hard_silu")


def with_hardsigmoid() -> keras.Model:
    return port(activation="hard_sigmoid")


def with_hardsigmoid_of_wrong_gradient() -> keras.Model:
    """A hundred-thousandth more of the gradient, and the same values."""

    @tf.custom_gradient
    def wrong(x: Any) -> Any:
        inside = tf.cast(tf.abs(x) < 3, x.dtype)
        return tf.nn.relu6(x + 3) / 6, lambda dy: dy * inside * (1 + 1e-5) / 6

    return port(activation=layers.Activation(wrong))


def with_hardsigmoid_and_another_fault() -> keras.Model:
    """The gradient of the last layer is two millionths too large."""

    @tf.custom_gradient
    def wrong(x: Any) -> Any:
        return tf.identity(x), lambda dy: dy * (1 + 2e-6)

    return port(activation="hard_sigmoid", dense={"activation": wrong})


def with_softmax_inside() -> keras.Model:
    return port(activation="softmax")


def with_relu_behind_sigmoid() -> keras.Model:
    return port(activation=lambda x: layers.ReLU()(layers.Activation("sigmoid")(x)))


class Overflows(Subclassed):
    """The right port of `ports_torch.Overflows`."""

    def call(self, x: Any) -> Any:
        return super().call(x) * 1e154 * 1e154


def sequential() -> keras.Model:
    return keras.Sequential(
        [
            layers.Conv2D(4, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.ZeroPadding2D(1),
            layers.Conv2D(6, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(CLASSES),
        ]
    )


def bottleneck(*, between: Any = (), **norm: Any) -> keras.Model:
    first = [layers.Conv2D(4, 3, padding="same"), layers.BatchNormalization(**RIGHT_NORM), *between]
    first += [layers.Conv2D(6, 1, use_bias=False)]
    second = [layers.BatchNormalization(**{**RIGHT_NORM, **norm}), layers.ReLU(), layers.GlobalAveragePooling2D()]
    return keras.Sequential([keras.Input((8, 8, 3)), *first, *second, layers.Dense(CLASSES)])


def bottleneck_that_is_not_linear() -> keras.Model:
    return bottleneck(between=[layers.ReLU(6.0, name="relu6")])


def bottleneck_of_other_momentum() -> keras.Model:
    return bottleneck(momentum=0.1)


def residual(*, added: bool = True) -> keras.Model:
    images = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", use_bias=False, activation="silu")(images)
    y = layers.SeparableConv2D(4, 3, padding="same")(x)
    y = layers.Activation("silu")(layers.GroupNormalization(2, epsilon=1e-5)(y))
    x = layers.AveragePooling2D(2)(x + y if added else y)
    x = layers.Conv2DTranspose(3, 2, strides=2)(x)
    return keras.Model(images, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))


def without_addition() -> keras.Model:
    return residual(added=False)


def inverted_residual(*, added: bool = True, middle: Any = None, early: Any = None, end: Any = None) -> keras.Model:
    """The right port of `InvertedResidual`, but for what the arguments say."""
    images = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", name="first")(images)
    x = x if early is None else early(x)
    y = layers.Conv2D(8, 1, use_bias=False, name="expand")(x)
    y = layers.ReLU(6.0)(layers.BatchNormalization(**RIGHT_NORM, name="expand_bn")(y))
    y = y if middle is None else middle(y)
    y = layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="dw")(y)
    y = layers.ReLU(6.0)(layers.BatchNormalization(**RIGHT_NORM, name="dw_bn")(y))
    y = layers.Conv2D(4, 1, use_bias=False, name="project")(y)
    y = layers.BatchNormalization(**RIGHT_NORM, name="project_bn")(y)
    y = y if end is None else end(y)
    x = layers.Conv2D(6, 1, name="last")(x + y if added else y)
    return keras.Model(images, layers.Dense(CLASSES, name="classifier")(layers.GlobalAveragePooling2D()(x)))


def inverted_residual_without_addition() -> keras.Model:
    return inverted_residual(added=False)


def inverted_residual_upside_down() -> keras.Model:
    """With a fault that has no name, between two normalisations of the same shape."""
    return inverted_residual(middle=lambda y: keras.ops.flip(y, 1))


def inverted_residual_upside_down_early() -> keras.Model:
    """With such a fault in front of both."""
    return inverted_residual(early=lambda y: keras.ops.flip(y, 1))


def mixed(dropout: Any = layers.SpatialDropout2D) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(**RIGHT_NORM),
            layers.LeakyReLU(0.25),
            dropout(0.2),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.BatchNormalization(**RIGHT_NORM),
            layers.Dense(6),
            layers.LayerNormalization(epsilon=1e-5),
            layers.Dense(CLASSES),
        ]
    )


class Block(layers.Layer):
    """The port of `Block`. Each block gives its layers the same names."""

    def __init__(self, padded: bool = True, early: bool = False, turned: bool = False) -> None:
        super().__init__()
        self.early, self.turned = early, turned
        self.border = 1 if padded else 0
        self.down = layers.Conv2D(4, 3, strides=2, padding="valid" if padded else "same", name="down")
        self.same = layers.Conv2D(4, 3, padding="same", name="same")

    def call(self, x: Any) -> Any:
        around = (self.border, self.border)
        x = keras.ops.relu(self.down(keras.ops.pad(x, ((0, 0), around, around, (0, 0)))))
        y = self.same(keras.ops.relu(self.same(x)))
        y = keras.ops.flip(y, 1) if self.turned else y
        return x + keras.ops.relu(y) if self.early else keras.ops.relu(x + y)


def blocks(padded: bool = True, **fault: bool) -> keras.Model:
    return keras.Sequential([Block(**fault), Block(padded), layers.Flatten(), layers.Dense(CLASSES)])


def same_padding_in_a_block() -> keras.Model:
    return blocks(padded=False)


def turns_inside(
    *, inside: Any = None, turned: Any = None, epsilon: float = 1e-5, activation: str = "relu", last: float = 1e-5
) -> keras.Model:
    """The right port of `TurnsInside`, but for what the arguments say."""
    images = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", name="stem")(images)
    x = layers.LayerNormalization(epsilon=last, name="stem_norm")(x)
    y = layers.DepthwiseConv2D(3, padding="same", name="depthwise")(x)
    y = y if turned is None else keras.ops.transpose(y, (0, *turned))
    y = layers.LayerNormalization(epsilon=epsilon, name="norm")(y)
    y = layers.Dropout(0.2)(layers.Activation(activation)(layers.Dense(12, name="up")(y)))
    y = layers.Dense(8, name="down")(y)
    x = layers.Conv2D(6, 2, strides=2, name="smaller")(x + (y if turned is None else keras.ops.transpose(y, (0, 3, 1, 2))))
    x = x + layers.Activation("silu")(layers.Dense(6, name="scale")(x * 0.5))
    return keras.Model(images, layers.Dense(CLASSES, name="dense")(layers.GlobalAveragePooling2D()(x)))


def turns_inside_with_another_epsilon() -> keras.Model:
    return turns_inside(epsilon=1e-3)


def turns_inside_with_tanh() -> keras.Model:
    return turns_inside(activation="tanh")


def turns_inside_as_pytorch() -> keras.Model:
    """Takes over PyTorch's axes, though its images are channels last already."""
    return turns_inside(turned=(2, 3, 1))


def upsampled(**norm: Any) -> keras.Model:
    """The right port of `Upsampled`, but for what the arguments say."""
    images = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(images)
    y = layers.UpSampling2D(2, interpolation="bilinear")(layers.Conv2D(6, 2, strides=2, activation="relu")(x))
    x = layers.Conv2D(6, 3, padding="same", use_bias=False)(layers.Concatenate()([y, x]))
    x = layers.ReLU()(layers.BatchNormalization(**{**RIGHT_NORM, **norm})(x))
    return keras.Model(images, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))


def upsampled_with_another_epsilon() -> keras.Model:
    return upsampled(epsilon=1e-4)


class UpsampledByFunctions(keras.Model):
    """The right port of `Upsampled`. Nothing that resizes or joins is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.deep = layers.Conv2D(4, 3, padding="same"), layers.Conv2D(6, 2, strides=2)
        self.after, self.norm = layers.Conv2D(6, 3, padding="same", use_bias=False), layers.BatchNormalization(**RIGHT_NORM)
        self.dense = layers.Dense(CLASSES)

    def call(self, x: Any, training: bool = False) -> Any:
        x = keras.ops.relu(self.before(x))
        y = keras.ops.image.resize(keras.ops.relu(self.deep(x)), (8, 8), interpolation="bilinear")
        x = keras.ops.relu(self.norm(self.after(keras.ops.concatenate([y, x], -1)), training=training))
        return self.dense(keras.ops.mean(x, (1, 2)))


def gated(*, gate: str = "sigmoid", branch: Any = lambda y: y) -> keras.Model:
    """The right port of `Gated`, but for what the arguments say."""
    images = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, activation="relu", name="stem")(images)
    y = layers.Conv2D(5, 1, name="main")(x)
    share = layers.Dense(5, activation=gate, name="gate")(layers.GlobalAveragePooling2D()(y))
    y = layers.Multiply()([y, layers.Reshape((1, 1, 5))(share)])
    x = layers.Activation("silu")(layers.Add(name="sum")([y, branch(layers.Conv2D(5, 1, name="branch")(x))]))
    return keras.Model(images, layers.Dense(CLASSES, name="dense")(layers.GlobalAveragePooling2D()(x)))


def gated_by_a_hard_sigmoid() -> keras.Model:
    return gated(gate="hard_sigmoid")


def gated_beside_an_image_upside_down() -> keras.Model:
    return gated(branch=lambda y: keras.ops.flip(y, 1))


class ForRun(keras.Model):
    """The port of `ForRun`, whose layers Keras names."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = layers.Conv2D(4, 3, padding="same")
        self.block = keras.Sequential([layers.BatchNormalization(**RIGHT_NORM), layers.Activation("silu")])
        self.separable = layers.SeparableConv2D(4, 3, padding="same")
        self.norm = layers.GroupNormalization(2, epsilon=1e-5)
        self.drop = [layers.SpatialDropout2D(0.2), layers.Dropout(0.1), layers.Dropout(0.3)]
        self.pool, self.flat = layers.AveragePooling2D(2), layers.Flatten()
        self.hidden = layers.Dense(6, use_bias=False)
        self.scale = layers.LayerNormalization(epsilon=1e-5)
        self.dense = layers.Dense(num_classes)

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.stem(x)
        x = x + self.norm(self.separable(self.block(x, training=training)))
        x = self.drop[1](self.drop[0](x, training=training), training=training)
        x = self.drop[2](self.flat(self.pool(x)), training=training)
        return self.dense(keras.ops.sigmoid(self.scale(self.hidden(x))))


one_for_run = ForRun(CLASSES)


def frozen_for_run() -> keras.Model:
    net = ForRun(CLASSES)
    net.stem.trainable = False
    return net


class Twice(keras.Model):
    """The port of `Twice`, whose layers run in another order."""

    def __init__(self, names: tuple[str, str] = ("one", "two")) -> None:
        super().__init__()
        self.one = layers.Conv2D(4, 3, name=names[0])
        self.two = layers.Conv2D(4, 3, name=names[1])
        self.after = layers.Conv2D(4, 1)
        self.dense = layers.Dense(CLASSES)

    def call(self, x: Any) -> Any:
        right = keras.ops.mean(keras.ops.sigmoid(self.two(x)), (1, 2))
        left = keras.ops.mean(keras.ops.tanh(self.after(self.one(x))), (1, 2))
        return self.dense(keras.ops.concatenate([left, right], -1))


class TwoPaths(Twice):
    def call(self, x: Any) -> Any:
        right = keras.ops.mean(keras.ops.sigmoid(self.two(x)), (1, 2))
        left = keras.ops.mean(keras.ops.tanh(self.one(x)), (1, 2))
        return self.dense(keras.ops.concatenate([left, right], -1))


def twice_by_name() -> keras.Model:
    return Twice(("left", "right"))


def inception(order: str = "smlp") -> keras.Model:
    """The right port of `Inception`. Its branches are made in another order, and joined in the right one."""
    images = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(images)
    for _ in range(2):
        pooled = layers.Conv2D(4, 1)(layers.MaxPooling2D(3, 1, padding="same")(x))
        large, middle = (
            layers.Conv2D(4, size, padding="same")(
                layers.ReLU()(layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(layers.Conv2D(4, 1)(x)))
            )
            for size in (5, 3)
        )
        branches = {"s": layers.Conv2D(4, 1)(x), "m": middle, "l": large, "p": pooled}
        x = layers.ReLU()(layers.Concatenate()([branches[each] for each in order]))
    return keras.Model(images, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))


class InceptionOfFunctions(keras.Model):
    """The right port of `Inception`, whose activations and concatenations are not recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = layers.Conv2D(4, 3, padding="same")
        self.ends = [[layers.Conv2D(4, size, padding="same") for size in (1, 5, 3, 1)] for _ in range(2)]
        self.reductions = [[layers.Conv2D(4, 1) for _ in range(2)] for _ in range(2)]
        self.norms = [[layers.BatchNormalization(momentum=0.9, epsilon=1e-5) for _ in range(2)] for _ in range(2)]
        self.pool = layers.MaxPooling2D(3, 1, padding="same")
        self.dense = layers.Dense(CLASSES)

    def call(self, x: Any, training: bool = False) -> Any:
        x = tf.nn.relu(self.stem(x))
        for ends, reductions, norms in zip(self.ends, self.reductions, self.norms, strict=True):
            pooled = ends[0](self.pool(x))
            large, middle = (
                end(tf.nn.relu(norm(reduce(x), training=training)))
                for end, reduce, norm in zip(ends[1:3], reductions, norms, strict=True)
            )
            x = tf.nn.relu(tf.concat([ends[3](x), middle, large, pooled], -1))
        return self.dense(tf.reduce_mean(x, (1, 2)))


def inception_joined_in_another_order() -> keras.Model:
    return inception("mslp")


def two_sums() -> keras.Model:
    """The port of `TwoSums`, whose layers run in another order."""
    images = keras.Input((8, 8, 3))
    odd = layers.Conv2D(4, 3, 2, use_bias=False, name="odd")(images)
    ends = [
        layers.Conv2D(4, 1, name=f"{name}_end")(layers.Conv2D(4, 3, activation=activation, name=f"{name}_begin")(images))
        for name, activation in (("b", "sigmoid"), ("a", "tanh"))
    ]
    summed = layers.GlobalAveragePooling2D()(layers.Add()(ends))
    both = layers.Concatenate()([summed, layers.GlobalAveragePooling2D()(odd)])
    return keras.Model(images, layers.Dense(CLASSES)(both))


def shared(*, turned: bool = False) -> keras.Model:
    """The right port of `Shared`. Keras visits the paths in an order of its own."""
    images = keras.Input((8, 8, 3))
    b = layers.Activation("hard_silu")(layers.Conv2D(4, 1, name="b")(images))
    a = layers.Activation("elu")(layers.Conv2D(4, 3, name="a")(images))
    pad, conv, mean = layers.ZeroPadding2D(1), layers.Conv2D(4, 3, 2, name="shared"), layers.GlobalAveragePooling2D()
    b, a = (mean(conv(pad(each))) for each in (b, a))
    return keras.Model(images, layers.Dense(CLASSES)(layers.Concatenate()([b, a] if turned else [a, b])))


def in_turn(*, turned: bool = False) -> keras.Model:
    """The right port of `InTurn`."""
    images = keras.Input((8, 8, 3))
    one, two = (layers.Conv2D(3, 3, padding="same", name=name) for name in ("one", "two"))
    first, second = (two, one) if turned else (one, two)
    x = layers.Activation("tanh")(second(layers.ReLU()(first(layers.Activation("sigmoid")(images)))))
    return keras.Model(images, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))


# One mistake each.


def shared_in_another_order() -> keras.Model:
    return shared(turned=True)


def in_turn_in_another_order() -> keras.Model:
    return in_turn(turned=True)


def relu_before_the_sum() -> keras.Model:
    return blocks(early=True)


def turned_before_the_sum() -> keras.Model:
    """With a fault that has no name."""
    return blocks(turned=True)


def hard_tanh() -> keras.Model:
    return port(activation="hard_tanh")


def single_values_dropped() -> keras.Model:
    return mixed(layers.Dropout)


def norm_twice_of_other_epsilon() -> keras.Model:
    return norm_twice(epsilon=1e-3)


def other_width() -> keras.Model:
    return port(conv2={"filters": 7})


def without_bias() -> keras.Model:
    return port(conv2={"use_bias": False})


def scaled() -> keras.Model:
    return port(first=[layers.Rescaling(1 / 127.5, offset=-1)])


def reshaped() -> keras.Model:
    return port(first=[layers.Reshape((3, 8, 8)), layers.Permute((2, 3, 1))])


def wrong_axis() -> keras.Model:
    return port(norm={**RIGHT_NORM, "axis": 1})


def in_float32() -> keras.Model:
    return port(dense={"dtype": "float32"})


def same_padding() -> keras.Model:
    return port(conv2={"padding": "same"})


def gelu() -> keras.Model:
    return port(activation="gelu")


def rounded_on_the_way() -> keras.Model:
    """The user's own rounding, which no framework asks for."""
    return port(activation=lambda x: keras.ops.cast(keras.ops.cast(layers.ReLU()(x), "float32"), "float64"))


def leaky() -> keras.Model:
    return port(activation=layers.LeakyReLU())


def right_leaky() -> keras.Model:
    return port(activation=layers.LeakyReLU(negative_slope=0.01))


def right_leaky_of_other_rate() -> keras.Model:
    return port(activation=layers.LeakyReLU(negative_slope=0.01), rate=0.5)


def right_leaky_and_average_pool() -> keras.Model:
    return port(activation=layers.LeakyReLU(negative_slope=0.01), pool=layers.AveragePooling2D(2))


def large_then_layer_norm() -> keras.Model:
    kinds = (layers.LeakyReLU(negative_slope=0.01), layers.GlobalAveragePooling2D(), layers.LayerNormalization(epsilon=1e-6))
    return keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(16, 3), *kinds, layers.Dense(CLASSES)])


def pool_padded_with_zeros() -> keras.Model:
    kinds = (layers.LeakyReLU(negative_slope=0.01), layers.ZeroPadding2D(1), layers.MaxPooling2D(2), layers.Flatten())
    return keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(4, 3), *kinds, layers.Dense(CLASSES)])


class ProbabilitiesInInference(keras.Model):
    """The last operation has no layer, and stands behind an activation whose slope TensorFlow rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.net = right_leaky()

    def call(self, images: Any, training: bool = False) -> Any:
        outputs = self.net(images, training=training)
        return outputs if training else keras.ops.softmax(outputs)


def norm_twice_without_a_bias() -> keras.Model:
    """The first convolution lacks the bias, which the normalisation behind it evens out in training."""
    return norm_twice(first_bias=False)


def norm_twice(*, momentum: float = 0.9, epsilon: float = 1e-5, softmax: bool = False, first_bias: bool = True) -> keras.Model:
    images = keras.Input((8, 8, 3))
    x = images
    for bias in (first_bias, True):
        x = layers.Conv2D(8, 3, padding="same", use_bias=bias)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=momentum, epsilon=epsilon)(x))
    x = layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(images, layers.Softmax()(x) if softmax else x)


def strided_norm_twice_of_defaults(*, pads_itself: bool = True) -> keras.Model:
    """Two mistakes: BatchNorm's defaults, and the padding of a convolution with a stride."""
    second = layers.Conv2D(8, 3, strides=2, padding="same" if pads_itself else "valid")
    images = keras.Input((8, 8, 3))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(images)))
    x = second(x if pads_itself else layers.ZeroPadding2D(1)(x))
    x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(images, layers.Dense(CLASSES)(layers.Flatten()(x)))


def strided_norm_twice_padded_in_front() -> keras.Model:
    return strided_norm_twice_of_defaults(pads_itself=False)


def norm_twice_of_other_momentum_with_softmax() -> keras.Model:
    return norm_twice(momentum=0.1, softmax=True)


def no_activation() -> keras.Model:
    return port(activation="linear")


def average_pool() -> keras.Model:
    return port(pool=layers.AveragePooling2D(2))


def default_norm() -> keras.Model:
    return port(norm={"momentum": 0.9})


def norm_in_inference() -> keras.Model:
    return port(norm={**RIGHT_NORM, "trainable": False})


def other_momentum() -> keras.Model:
    return port(norm={"momentum": 0.1, "epsilon": 1e-5})


def no_dropout() -> keras.Model:
    return port(rate=0.0)


def other_rate() -> keras.Model:
    return port(rate=0.5)


def softmax() -> keras.Model:
    return port(dense={"activation": "softmax"})


def one_class_more() -> keras.Model:
    return port(classes=CLASSES + 1)


def regularized() -> keras.Model:
    return port(dense={"kernel_regularizer": keras.regularizers.L2(0.01)})


def frozen() -> keras.Model:
    model = port()
    model.layers[-1].trainable = False
    return model


def _seeded(order: tuple[int, ...] = (2, 3, 1, 0), *, rows: bool = True, seed: int = 0) -> keras.Model:
    """The weights of `ports_torch.seeded`, copied by hand."""
    model = port()
    for layer in model.layers:
        if layer.weights:
            kernel, bias = layer.kernel, layer.bias
            shape = (*kernel.shape[:1:-1], *kernel.shape[:2]) if len(kernel.shape) == 4 else tuple(kernel.shape[::-1])
            drawn = np.random.default_rng(int(np.prod(shape)) + seed).normal(0, 0.3, shape)
            if drawn.ndim == 4:
                kernel.assign(drawn.transpose(order))
            elif rows:
                kernel.assign(drawn.reshape(-1, 6, 2, 2).transpose(2, 3, 1, 0).reshape(24, -1))
            else:
                kernel.assign(drawn.T)
            bias.assign(np.random.default_rng(bias.shape[0] + seed).normal(0, 0.3, tuple(bias.shape)))
    return model


def seeded() -> keras.Model:
    return _seeded()


def drawn_again() -> keras.Model:
    return _seeded(seed=1)


def seeded_without_order() -> keras.Model:
    return _seeded(rows=False)


def seeded_transposed() -> keras.Model:
    return _seeded((3, 2, 1, 0))


class Own(layers.Layer):
    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],))

    def call(self, x: Any) -> Any:
        return x * self.scale


def unsupported() -> keras.Model:
    return port(first=[Own()])


def random() -> keras.Model:
    return port(first=[layers.GaussianNoise(0.1)])


def inverted_residual_with_relu_before_the_sum() -> keras.Model:
    return inverted_residual(end=layers.ReLU())


def inverted_residual_halved_before_the_sum() -> keras.Model:
    return inverted_residual(end=lambda y: y / 2)


# Ports of models whose places of a fault are few: right ones, wrong ones, and some with another fault at the same place.


def _classified(images: Any, x: Any, pool: Any = layers.GlobalAveragePooling2D) -> keras.Model:
    return keras.Model(images, layers.Dense(CLASSES, name="dense")(pool()(x)))


def resized(double: Any) -> keras.Model:
    """The port of `Resized`."""
    images = keras.Input((8, 8, 3))
    x = layers.Conv2D(5, 3, name="two")(double(layers.Conv2D(4, 3, activation="relu", name="one")(images)))
    return _classified(images, layers.Activation("tanh")(x))


def resized_to_the_nearest() -> keras.Model:
    return resized(layers.UpSampling2D(2))


def resized_bilinearly() -> keras.Model:
    return resized(layers.UpSampling2D(2, interpolation="bilinear"))


def resized_upside_down() -> keras.Model:
    return resized(lambda x: keras.ops.flip(layers.UpSampling2D(2)(x), 1))


def transposed_convolution(padding: str = "same", *behind: Any) -> keras.Model:
    """The port of `Transposed`, as one writes it first."""
    images = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 2, 2, activation="relu", name="down")(images)
    x = layers.Conv2DTranspose(6, 5, 2, padding=padding, name="up")(x)
    for layer in behind:
        x = layer(x)
    return _classified(images, layers.ReLU()(x), layers.GlobalMaxPooling2D)


def transposed_convolution_that_is_cut() -> keras.Model:
    """The right one."""
    return transposed_convolution("valid", layers.Cropping2D(((2, 1), (2, 1))))


def transposed_convolution_of_a_turned_image() -> keras.Model:
    return transposed_convolution("valid", layers.Cropping2D(((2, 1), (2, 1))), lambda x: keras.ops.flip(x, 1) * 1.5)


def padded_convolution(padding: str = "same", *, mode: str | None = None, dilation: int = 1) -> keras.Model:
    """The port of `reflecting`, as one writes it first."""
    images = keras.Input((8, 8, 3))
    around = ((0, 0), (2, 2), (2, 2), (0, 0))
    x = images if mode is None else keras.ops.pad(images, around, mode)
    return _classified(images, layers.Conv2D(4, 5, padding=padding, dilation_rate=dilation, activation="relu")(x))


def reflecting() -> keras.Model:
    return padded_convolution("valid", mode="reflect")


def reflecting_and_dilated() -> keras.Model:
    return padded_convolution("valid", mode="reflect", dilation=2)


class Attends(keras.Model):
    """The port of `Attends`."""

    def __init__(self, factor: float = 0.5, heads: int = 2, axis: int = -1, at_once: bool = False) -> None:
        super().__init__()
        self.factor, self.heads, self.axis = factor, heads, axis
        self.patches = layers.Conv2D(8, 2, 2, name="patches")
        named = {"three": 24} if at_once else dict.fromkeys(("query", "key", "value"), 8)
        self.three = [layers.Dense(width, name=name) for name, width in named.items()]
        self.project, self.dense = layers.Dense(8, name="project"), layers.Dense(CLASSES, name="dense")

    def call(self, x: Any) -> Any:
        x = 3 * keras.ops.reshape(self.patches(x), (-1, 16, 8))
        three = keras.ops.split(keras.ops.concatenate([each(x) for each in self.three], -1), 3, -1)
        query, key, value = (keras.ops.reshape(each, (-1, 16, self.heads, 8 // self.heads)) for each in three)
        scores = keras.ops.softmax(self.factor * keras.ops.einsum("nqhd,nkhd->nhqk", query, key), self.axis)
        x = keras.ops.einsum("nhqk,nkhd->nqhd", scores, value)
        return self.dense(keras.ops.mean(self.project(keras.ops.reshape(x, (-1, 16, 8))), 1))


def attends_without_a_factor() -> keras.Model:
    return Attends(1.0)


def attends_with_four_heads() -> keras.Model:
    return Attends(0.5, 4)


def attends_over_queries() -> keras.Model:
    return Attends(axis=-2)


def attends_in_layers(factor: float = 0.5) -> keras.Model:
    """The port of `Attends` whose softmax is recorded."""
    images = keras.Input((8, 8, 3))
    x = 3 * layers.Reshape((16, 8))(layers.Conv2D(8, 2, 2, name="patches")(images))
    three = (layers.Reshape((16, 2, 4))(layers.Dense(8, name=name)(x)) for name in ("query", "key", "value"))
    query, key, value = (layers.Permute((2, 1, 3))(each) for each in three)
    scores = layers.Softmax()(keras.ops.matmul(query, keras.ops.transpose(key, (0, 1, 3, 2))) * factor)
    x = layers.Reshape((16, 8))(layers.Permute((2, 1, 3))(keras.ops.matmul(scores, value)))
    return _classified(images, layers.Dense(8, name="project")(x), layers.GlobalAveragePooling1D)


def attends_in_layers_without_a_factor() -> keras.Model:
    return attends_in_layers(1.0)


def attends_at_once() -> keras.Model:
    return Attends(at_once=True)


def attends_at_once_by_its_width() -> keras.Model:
    return Attends(8**-0.5, at_once=True)


def norm_first(*, last: bool = False, twice: float = 1.0) -> keras.Model:
    """The port of `NormFirst`."""
    images = keras.Input((8, 8, 3))
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(6, 3, name="stem")(images))
    norm = layers.LayerNormalization(epsilon=1e-5, name="norm")
    y = layers.Dense(7, activation="relu", name="one")(x if last else norm(x) * twice)
    x = x + layers.Dense(6, name="two")(y)
    return keras.Model(images, layers.Dense(CLASSES, name="dense")(norm(x) if last else x))


def norm_last() -> keras.Model:
    return norm_first(last=True)


def norm_first_and_doubled() -> keras.Model:
    return norm_first(twice=2.0)


def norm_and_activation(first: Any = None, last: Any = None) -> keras.Model:
    """The port of `NormThenActivation`."""
    images = keras.Input((8, 8, 3))
    x = layers.Dense(6, activation=first, name="hidden")(layers.Flatten()(images))
    x = layers.LayerNormalization(epsilon=1e-5, name="norm")(x)
    return keras.Model(images, layers.Dense(CLASSES, name="dense")(layers.Activation(last)(x)))


def norm_then_activation() -> keras.Model:
    return norm_and_activation(None, "tanh")


def activation_then_norm() -> keras.Model:
    return norm_and_activation("tanh", None)


def activation_twice_around_norm() -> keras.Model:
    return norm_and_activation("tanh", "tanh")


def norm_then_relu() -> keras.Model:
    """The port of `ReluThenNorm` in the usual order."""
    kinds = (layers.BatchNormalization(**RIGHT_NORM), layers.ReLU(), layers.Flatten(), layers.Dense(CLASSES))
    return keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(4, 3, padding="same"), *kinds])


# Losses, optimizers and preparations.


def cross_entropy(labels: Any, outputs: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def of_probabilities(labels: Any, outputs: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(labels, tf.nn.softmax(outputs), from_logits=True)


def from_one(labels: Any, outputs: Any) -> Any:
    return keras.losses.categorical_crossentropy(tf.one_hot(labels - 1, CLASSES, dtype="float64"), outputs, from_logits=True)


def summed(labels: Any, outputs: Any) -> Any:
    return tf.reduce_sum(cross_entropy(labels, outputs))


def _weights_of(labels: Any) -> Any:
    return tf.gather(tf.constant([1.0, 2.0, 0.5, 4.0, 3.0], tf.float64), labels)


def cross_entropy_of_weighted_classes(labels: Any, outputs: Any) -> Any:
    """As `class_weight` of Keras's `fit`, which divides by the number of images."""
    return cross_entropy(labels, outputs) * _weights_of(labels)


def cross_entropy_over_the_weights(labels: Any, outputs: Any) -> Any:
    return tf.reduce_sum(cross_entropy_of_weighted_classes(labels, outputs)) / tf.reduce_sum(_weights_of(labels))


def focal(labels: Any, outputs: Any) -> Any:
    """Weights each image by itself."""
    each = cross_entropy(labels, outputs)
    return each * (1 - tf.exp(-each)) ** 2


def rmsprop() -> Any:
    return keras.optimizers.RMSprop(0.01, rho=0.9, epsilon=0.1, momentum=0.5)


def rmsprop_without_momentum() -> Any:
    return keras.optimizers.RMSprop(0.01, rho=0.9, epsilon=0.1)


class RMSprop(keras.optimizers.RMSprop):
    """Takes the gradient twice."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient * 2, variable, learning_rate)


def wrong_rmsprop() -> Any:
    return RMSprop(0.01, rho=0.9, epsilon=0.1, momentum=0.5)


def adam() -> Any:
    return keras.optimizers.Adam(1e-3)


def adam_with_decay() -> Any:
    return keras.optimizers.Adam(1e-3, weight_decay=0.01)


def sgd() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def sgd_with_decay() -> Any:
    """Beside the gradient."""
    return keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=5e-4)


def sgd_without_momentum() -> Any:
    return keras.optimizers.SGD(0.1)


def slower_sgd() -> Any:
    return keras.optimizers.SGD(0.01, momentum=0.9)


def sgd_that_averages_and_clips() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_overwrite_frequency=100, clipnorm=1000.0)


def sgd_that_decays() -> Any:
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.1, staircase=True), momentum=0.9)


def adagrad() -> Any:
    return keras.optimizers.Adagrad(0.01)


def prepare(images: Any) -> Any:
    return images.astype("float64") / 255


def prepare_by_channel(images: Any) -> Any:
    return prepare(images) * [0.5, 1, 2] + [0.25, 0, -0.125]


def prepare_shifted_by_channel(images: Any) -> Any:
    return prepare(images) + np.array([0.25, 0, -0.125])


def prepare_without_scale(images: Any) -> Any:
    return images.astype("float64")


class ScaledPerceptron(keras.Model):
    """The right port of `ports_torch.ScaledPerceptron`, which keeps torch's order of the flattened image."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.hidden = layers.Dropout(0.2), layers.Dense(7, activation="relu")
        self.dense = layers.Dense(CLASSES)

    def call(self, x: Any) -> Any:
        x = keras.ops.transpose(x / 2 - 0.125, (0, 3, 1, 2))
        return self.dense(self.hidden(self.dropout(keras.ops.reshape(x, (-1, 8 * 8 * 3)))))


def heads(*, channels_first: bool = False) -> keras.Model:
    """The right port of `ports_torch.Heads`."""
    images = keras.Input((8, 8, 3))
    flat = layers.Flatten()(layers.Permute((3, 1, 2))(images) if channels_first else images)
    both = [layers.Dense(7, activation="relu")(flat), layers.Dense(6, activation="tanh")(flat)]
    return keras.Model(images, layers.Dense(CLASSES)(layers.Concatenate()(both)))


def heads_channels_first() -> keras.Model:
    return heads(channels_first=True)


def two_rounded(epsilon: float = 1e-5) -> keras.Model:
    """The right port of `ports_torch.TwoRounded`, but for an epsilon."""
    images = keras.Input((8, 8, 3))
    x = layers.LeakyReLU(negative_slope=0.01)(layers.Conv2D(8, 3)(images))
    x = layers.GlobalAveragePooling2D()(layers.Activation("gelu")(layers.Conv2D(8, 3)(x)))
    x = layers.LayerNormalization(epsilon=epsilon)(layers.Dense(16)(x))
    return keras.Model(images, layers.Dense(CLASSES)(x))


def two_rounded_with_another_epsilon() -> keras.Model:
    return two_rounded(3e-4)


def rescaled(red: float = -0.485, **options: Any) -> keras.Model:
    """The right port of `ports_torch.Scaled`, but for what the arguments say."""
    return port(first=[layers.Rescaling(0.3, [red, -0.456, -0.406])], **options)


def rescaled_and_padded() -> keras.Model:
    """The right port of `ports_torch.Scaled`, with zeros around what it scales."""
    return port(first=[layers.Rescaling(0.3, [-0.485, -0.456, -0.406]), layers.ZeroPadding2D(1)], padding="valid")


def rescaled_a_little_wrongly() -> keras.Model:
    return rescaled(-0.485 + 2e-8)


def rescaled_with_padding_on_other_sides() -> keras.Model:
    return rescaled(conv2={"padding": "same"})


def rescaled_and_dilated() -> keras.Model:
    """Its first layer has a fault without a name."""
    return port(first=[layers.Rescaling(0.3, [-0.485, -0.456, -0.406])], dilation_rate=2)


def centred() -> keras.Model:
    """The right port of `ports_torch.Centred`."""
    return port(first=[lambda x: x - np.array([0.485, 0.456, 0.406])])


def standardised() -> keras.Model:
    """The right port of `ports_torch.Standardised`."""
    return port(first=[layers.Normalization(mean=[0.485], variance=[0.23**2])])


def scaled_only(images: Any) -> Any:
    return images / 255


def tiny(labels: Any, outputs: Any) -> Any:
    return keras.ops.mean(keras.ops.square(outputs / 1e154 / 1e154))
