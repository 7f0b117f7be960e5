"""Each CNN as plain data, which both twins build and neither owns.

An architecture is a tree of layers with every number written out: widths, strides, explicit padding, BatchNorm
constants, initialisers. The frameworks' defaults differ, so every choice is made here,
once. Sizes are height and width in pixels, images are NHWC, kernels HWIO.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from common.models import user_code
from common.spec import MODELS, SpecError

Padding = tuple[tuple[int, int], tuple[int, int]]
"""((top, bottom), (left, right)) in pixels."""

Initializer = Literal["zeros", "ones", "glorot_uniform", "kaiming_normal_fan_in", "kaiming_normal_fan_out", "uniform_fan_in"]


@dataclass(frozen=True)
class Conv:
    """2-D convolution.

    The input channels are cut into `groups`, in order, and the output channels likewise. An output channel sees the input
    channels of its own group. With one group it sees all of them; with as many groups as channels it sees one (depthwise).
    """

    name: str
    in_channels: int
    out_channels: int
    kernel_size: int
    stride: int
    padding: Padding
    bias: bool
    initializer: Initializer = "glorot_uniform"
    bias_initializer: Initializer = "zeros"
    groups: int = 1

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is filtered by itself, once."""
        return self.groups == self.in_channels == self.out_channels > 1


@dataclass(frozen=True)
class BatchNorm:
    """Batch normalisation over N, H, W (Ioffe & Szegedy 2015).

    `momentum` is the weight of the new batch in the running statistics (PyTorch's meaning; Keras says 1 - momentum);
    the running variance takes the unbiased batch variance, the normalisation the biased one, as in PyTorch.
    """

    name: str
    channels: int
    momentum: float = 0.1
    epsilon: float = 1e-5


@dataclass(frozen=True)
class ReLU:
    name: str


@dataclass(frozen=True)
class MaxPool:
    """Maximum over windows; padding never wins (minus infinity)."""

    name: str
    kernel_size: int
    stride: int
    padding: Padding


@dataclass(frozen=True)
class AveragePool:
    """Mean over the pixels of each window. Padding is no pixel: it does not count."""

    name: str
    kernel_size: int
    stride: int
    padding: Padding


@dataclass(frozen=True)
class GlobalAveragePool:
    """Mean over height and width: [N, H, W, C] to [N, C]."""

    name: str


@dataclass(frozen=True)
class Flatten:
    """[N, H, W, C] to [N, H * W * C], channels fastest (the NHWC order)."""

    name: str


@dataclass(frozen=True)
class Dense:
    name: str
    in_features: int
    out_features: int
    initializer: Initializer = "glorot_uniform"
    bias_initializer: Initializer = "zeros"


@dataclass(frozen=True)
class Dropout:
    """Keep each of `units` values with probability 1 - rate, scaled by 1 / (1 - rate), by a mask given with the batch."""

    name: str
    rate: float
    units: int


@dataclass(frozen=True)
class Residual:
    """body(x) + shortcut(x), an empty shortcut being the identity, then ReLU where asked."""

    name: str
    body: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()
    relu: bool = False


@dataclass(frozen=True)
class Concatenation:
    """The channels, or features, of all branches side by side, in order. An empty branch is the identity."""

    name: str
    branches: tuple[tuple[Layer, ...], ...]


Window = Conv | MaxPool | AveragePool
Layer = Window | BatchNorm | ReLU | GlobalAveragePool | Flatten | Dense | Dropout | Residual | Concatenation


@dataclass(frozen=True)
class Parameter:
    """One named array of a model, in the canonical layout.

    name: `<layer>.<role>`; role: kernel (conv HWIO, I of one group; dense IO), bias, gamma, beta, mean, variance.
    """

    name: str
    shape: tuple[int, ...]
    initializer: Initializer
    fan_in: int
    """Inputs that one output of the layer sums over; 0 where no initialiser asks for it."""
    trainable: bool

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Architecture:
    name: str
    image_size: int
    """Height and width in pixels of the images that it takes; they have 3 channels."""
    num_classes: int
    layers: tuple[Layer, ...]

    def leaves(self) -> Iterator[Layer]:
        """Every layer that has no branches, in the order of the forward pass, bodies before shortcuts."""
        yield from leaves(self.layers)

    @property
    def dropouts(self) -> tuple[Dropout, ...]:
        return tuple(layer for layer in self.leaves() if isinstance(layer, Dropout))

    @property
    def has_batch_norm(self) -> bool:
        return any(isinstance(layer, BatchNorm) for layer in self.leaves())

    def parameters(self) -> tuple[Parameter, ...]:
        return parameters(self.layers)


def resolve(model: str, num_classes: int, image_size: int) -> Architecture:
    """The architecture of a model name for this many classes and this image size.

    Raises:
        SpecError: the model does not take this image size, or a user's module does not hold to the contract.
    """
    if model in MODELS:
        return _BUILDERS[model](num_classes, image_size)
    module = user_code.module(model)
    if not callable(getattr(module, "architecture", None)):
        raise SpecError(f"model {model} must define architecture(num_classes, image_size). Received: a module without it.")
    with user_code.kept_running(model):
        try:
            architecture = module.architecture(num_classes, image_size)
        except Exception as error:
            raise SpecError(
                f"model {model} failed in architecture(): {user_code.described(error)}. Mend the module."
            ) from error
    if not isinstance(architecture, Architecture):
        raise SpecError(
            f"model {model}: architecture() must return a common.models.architectures.Architecture. "
            f"Received: {type(architecture).__name__}."
        )
    # A framework may not allow a dot in a name, and puts an underscore there.
    names = [layer.name.replace(".", "_") for layer in architecture.leaves()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(
            f"model {model}: layer names must be unique, dots read as underscores. Received twice: {', '.join(twice)}. Rename "
            "them."
        )
    output_shape(architecture.layers, (image_size, image_size, 3), model)
    return dataclasses.replace(architecture, name=model)  # by it the twins find the module's own builders


def output_shape(layers: tuple[Layer, ...], shape: tuple[int, ...], model: str) -> tuple[int, ...]:
    """[H, W, C] or [features] behind these layers.

    Args:
        layers: one after the other.
        shape: of one example in front of them.
        model: its name, for the error.

    Raises:
        SpecError: a layer takes another number of channels or features than it receives.
    """
    for layer in layers:
        match layer:
            case Conv() | MaxPool() | AveragePool():
                _refuse_other(model, layer.name, "channels", layer.in_channels if isinstance(layer, Conv) else None, shape, 3)
                _refuse_window(model, layer)
                sizes = list(shape)
                channels = sizes.pop()
                sizes = [
                    (size + before + after - layer.kernel_size) // layer.stride + 1
                    for size, (before, after) in zip(sizes, layer.padding, strict=True)
                ]
                shape = (*sizes, layer.out_channels if isinstance(layer, Conv) else channels)
            case BatchNorm():
                _refuse_other(model, layer.name, "channels", layer.channels, shape, len(shape))
            case GlobalAveragePool():
                _refuse_other(model, layer.name, "channels", None, shape, 3)
                shape = shape[2:]
            case Flatten():
                shape = (math.prod(shape),)
            case Dense():
                _refuse_other(model, layer.name, "features", layer.in_features, shape, 1)
                shape = (layer.out_features,)
            case Dropout():
                _refuse_other(model, layer.name, "features", layer.units, shape, 1)
            case Residual():
                body, shortcut = (output_shape(part, shape, model) for part in (layer.body, layer.shortcut))
                if body != shortcut:
                    raise SpecError(f"model {model}: {layer.name} adds what differs in shape. Received: {body} and {shortcut}.")
                shape = body
            case Concatenation():
                parts = [output_shape(branch, shape, model) for branch in layer.branches]
                if len({part[:-1] for part in parts}) != 1:
                    raise SpecError(
                        f"model {model}: {layer.name} puts side by side what differs in height or width. Received: "
                        f"{' and '.join(map(str, parts)) or 'no branch'}."
                    )
                shape = (*parts[0][:-1], sum(part[-1] for part in parts))
            case ReLU():
                pass
    return shape


def _refuse_other(model: str, name: str, what: str, taken: int | None, shape: tuple[int, ...], axes: int) -> None:
    if len(shape) != axes or (taken is not None and taken != shape[-1]):
        wanted = f"{taken} {what}" if taken is not None else f"{what} after height and width"
        raise SpecError(f"model {model}: {name} takes {wanted}. Received: values of shape {list(shape)}. Mend architecture().")


def _refuse_window(model: str, layer: Window) -> None:
    if isinstance(layer, Conv) and (layer.in_channels % layer.groups or layer.out_channels % layer.groups):
        raise SpecError(
            f"model {model}: groups of {layer.name} must divide its channels. Received: {layer.groups} groups of "
            f"{layer.in_channels} and {layer.out_channels} channels. Mend architecture()."
        )
    if isinstance(layer, AveragePool) and max(map(max, layer.padding)) >= layer.kernel_size:
        raise SpecError(
            f"model {model}: padding of {layer.name} must be smaller than its window, which needs a pixel. Received: "
            f"{layer.padding} around windows of {layer.kernel_size}. Mend architecture()."
        )


def simple_cnn(num_classes: int, image_size: int) -> Architecture:
    """A plain CNN: four Conv3x3-ReLU-MaxPool2x2 blocks (32, 64, 128, 128), dense 128 with dropout, dense classes.

    The report that it stands for (tomato leaves, two frameworks) does not list its layers; these are this suite's choice.
    """
    if image_size < 32:
        raise SpecError(f"data.image_size is too small for simple_cnn. Received: {image_size}. Use 32 or more.")
    layers: list[Layer] = []
    # Convolutions that keep the scale (He et al. 2015): a smaller start without BatchNorm begins on a plateau, where a
    # comparison says little.
    he: Initializer = "kaiming_normal_fan_in"
    channels, size = 3, image_size
    for block, width in enumerate((32, 64, 128, 128), start=1):
        layers += [
            Conv(f"conv{block}", channels, width, 3, 1, same_padding(size, 3, 1), bias=True, initializer=he),
            ReLU(f"relu{block}"),
            MaxPool(f"pool{block}", 2, 2, no_padding),
        ]
        channels, size = width, size // 2
    layers += [
        Flatten("flatten"),
        Dense("dense", channels * size * size, 128),
        ReLU("dense_relu"),
        Dropout("dropout", 0.5, 128),
        Dense("logits", 128, num_classes),
    ]
    return Architecture("simple_cnn", image_size, num_classes, tuple(layers))


def mini_xception(num_classes: int, image_size: int) -> Architecture:
    """MiniXception for 32x32 images: separable convolutions in residual blocks (after Chollet 2017, Xception).

    96,202 values for 10 classes, 94,474 of them trainable.
    """
    if image_size != 32:
        raise SpecError(f"data.image_size must be 32 for mini_xception. Received: {image_size}. Use --set data.image_size=32.")
    same = same_padding(32, 3, 1)

    def separable(name: str, channels: int, width: int) -> tuple[Layer, ...]:
        return (
            depthwise_conv(f"{name}_depthwise", channels, 3, 1, same),
            Conv(f"{name}_pointwise", channels, width, 1, 1, no_padding, bias=True),
            BatchNorm(f"{name}_bn", width),
        )

    layers: list[Layer] = []
    for name, channels, width in (("conv1", 3, 32), ("conv2", 32, 64)):
        layers += [Conv(name, channels, width, 3, 1, same, bias=True), BatchNorm(f"{name}_bn", width), ReLU(f"{name}_relu")]
    for block in ("block1", "block2", "block3", "block4"):
        body = (*separable(f"{block}_separable1", 64, 64), ReLU(f"{block}_relu"), *separable(f"{block}_separable2", 64, 64))
        layers.append(Residual(block, body))
    for name, channels, width in (("separable1", 64, 128), ("separable2", 128, 128)):
        layers += [*separable(name, channels, width), ReLU(f"{name}_relu")]
    layers += [
        MaxPool("pool", 3, 2, same_padding(32, 3, 2)),
        GlobalAveragePool("global_pool"),
        Dense("dense", 128, 64),
        ReLU("dense_relu"),
        Dense("logits", 64, num_classes),
    ]
    return Architecture("mini_xception", image_size, num_classes, tuple(layers))


def resnet18(num_classes: int, image_size: int) -> Architecture:
    """ResNet-18 (He et al. 2016) with torchvision's padding, names, constants and initialisers."""
    if image_size < 32:
        raise SpecError(f"data.image_size is too small for resnet18. Received: {image_size}. Use 32 or more.")

    def conv(name: str, channels: int, width: int, kernel_size: int, stride: int) -> Conv:
        pad = kernel_size // 2
        return Conv(
            name,
            channels,
            width,
            kernel_size,
            stride,
            ((pad, pad), (pad, pad)),
            bias=False,
            initializer="kaiming_normal_fan_out",
        )

    layers: list[Layer] = [
        conv("conv1", 3, 64, 7, 2),
        BatchNorm("bn1", 64),
        ReLU("relu"),
        MaxPool("maxpool", 3, 2, ((1, 1), (1, 1))),
    ]
    channels = 64
    for stage, width in enumerate((64, 128, 256, 512), start=1):
        for block in (0, 1):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            body = (
                conv(f"{name}.conv1", channels, width, 3, stride),
                BatchNorm(f"{name}.bn1", width),
                ReLU(f"{name}.relu"),
                conv(f"{name}.conv2", width, width, 3, 1),
                BatchNorm(f"{name}.bn2", width),
            )
            shortcut = ()
            if stride != 1:
                shortcut = (conv(f"{name}.downsample.0", channels, width, 1, stride), BatchNorm(f"{name}.downsample.1", width))
            layers.append(Residual(name, body, shortcut, relu=True))
            channels = width
    layers += [
        GlobalAveragePool("avgpool"),
        Dense("fc", 512, num_classes, initializer="uniform_fan_in", bias_initializer="uniform_fan_in"),
    ]
    return Architecture("resnet18", image_size, num_classes, tuple(layers))


def two_path_cnn(num_classes: int, image_size: int) -> Architecture:
    """Two paths through each of three blocks, joined by concatenation (after Szegedy et al. 2015, two of its four paths).

    One path is a 3x3 convolution in four groups (Xie et al. 2017), the other the mean of 3x3 pixels and a 1x1 convolution.
    """
    if image_size < 8:
        raise SpecError(f"data.image_size is too small for two_path_cnn. Received: {image_size}. Use 8 or more.")

    def unit(name: str, channels: int, width: int, kernel_size: int, size: int, groups: int = 1) -> tuple[Layer, ...]:
        padding = same_padding(size, kernel_size, 1)
        he: Initializer = "kaiming_normal_fan_in"
        return (
            Conv(f"{name}_conv", channels, width, kernel_size, 1, padding, bias=False, initializer=he, groups=groups),
            BatchNorm(f"{name}_bn", width),
            ReLU(f"{name}_relu"),
        )

    layers: list[Layer] = [*unit("stem", 3, 32, 3, image_size)]
    channels, size = 32, image_size
    for block, width in enumerate((32, 64, 128), start=1):
        name = f"block{block}"
        layers += [
            Concatenation(
                name,
                (
                    unit(f"{name}_grouped", channels, width // 2, 3, size, groups=4),
                    (
                        AveragePool(f"{name}_average", 3, 1, same_padding(size, 3, 1)),
                        *unit(f"{name}_pointwise", channels, width // 2, 1, size),
                    ),
                ),
            ),
            MaxPool(f"{name}_pool", 2, 2, no_padding),
        ]
        channels, size = width, size // 2
    layers += [GlobalAveragePool("global_pool"), Dense("logits", channels, num_classes)]
    return Architecture("two_path_cnn", image_size, num_classes, tuple(layers))


_BUILDERS = {"simple_cnn": simple_cnn, "mini_xception": mini_xception, "resnet18": resnet18, "two_path_cnn": two_path_cnn}


def depthwise_conv(
    name: str, channels: int, kernel_size: int, stride: int, padding: Padding, initializer: Initializer = "glorot_uniform"
) -> Conv:
    """A convolution of each channel alone, without bias."""
    return Conv(name, channels, channels, kernel_size, stride, padding, False, initializer, groups=channels)


DepthwiseConv = depthwise_conv
"""The former name, for users' own models. It works until version 0.3."""

no_padding: Padding = ((0, 0), (0, 0))


def same_padding(size: int, kernel_size: int, stride: int) -> Padding:
    """TensorFlow's `same`: as little as gives ceil(size / stride) outputs, the odd pixel at the bottom and right."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel_size - size, 0)
    side = (total // 2, total - total // 2)
    return (side, side)


def branches(layer: Layer) -> tuple[tuple[Layer, ...], ...]:
    """The layers that a layer runs side by side on its input, before it joins their outputs; of most layers none."""
    match layer:
        case Residual():
            return layer.body, layer.shortcut
        case Concatenation():
            return layer.branches
        case _:
            return ()


def leaves(layers: tuple[Layer, ...]) -> Iterator[Layer]:
    """Every layer that has no branches, in the order of the forward pass, bodies before shortcuts."""
    for layer in layers:
        if isinstance(layer, Residual | Concatenation):
            for branch in branches(layer):
                yield from leaves(branch)
        else:
            yield layer


def parameters(layers: tuple[Layer, ...]) -> tuple[Parameter, ...]:
    """The named arrays of layers, BatchNorm's statistics included, in the order of the forward pass."""
    return tuple(parameter for layer in leaves(layers) for parameter in _parameters(layer))


def _parameters(layer: Layer) -> Iterator[Parameter]:
    if isinstance(layer, Conv):
        inputs = layer.in_channels // layer.groups
        fan_in = layer.kernel_size**2 * inputs
        shape = (layer.kernel_size, layer.kernel_size, inputs, layer.out_channels)
        yield Parameter(f"{layer.name}.kernel", shape, layer.initializer, fan_in, True)
        if layer.bias:
            yield Parameter(f"{layer.name}.bias", (layer.out_channels,), layer.bias_initializer, fan_in, True)
    elif isinstance(layer, BatchNorm):
        roles: tuple[tuple[str, Initializer, bool], ...] = (
            ("gamma", "ones", True),
            ("beta", "zeros", True),
            ("mean", "zeros", False),
            ("variance", "ones", False),
        )
        for role, initializer, trainable in roles:
            yield Parameter(f"{layer.name}.{role}", (layer.channels,), initializer, 0, trainable)
    elif isinstance(layer, Dense):
        yield Parameter(
            f"{layer.name}.kernel", (layer.in_features, layer.out_features), layer.initializer, layer.in_features, True
        )
        yield Parameter(f"{layer.name}.bias", (layer.out_features,), layer.bias_initializer, layer.in_features, True)
