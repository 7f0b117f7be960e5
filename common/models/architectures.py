"""Each CNN as plain data, which both twins build and neither owns.

An architecture is a tree of layers with every number written out: widths, strides, explicit padding, BatchNorm
constants, initialisers. The frameworks' defaults differ, so every choice is made here,
once. Sizes are height and width in pixels, images are NHWC, kernels HWIO.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from common.errors import Setting
from common.models import user_code
from common.spec import MODELS, Spec, SpecError

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
        """Return whether each channel is filtered alone, once."""
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
    """body(x) + shortcut(x), then ReLU if `relu`. An empty shortcut is the identity."""

    name: str
    body: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()
    relu: bool = False


@dataclass(frozen=True)
class Concatenation:
    """Concatenation of the channels, or features, of all branches in order. An empty branch is the identity."""

    name: str
    branches: tuple[tuple[Layer, ...], ...]


@dataclass(frozen=True)
class StageFragment:
    """One stage's part of a layer with branches that a pipeline cuts. `common.models.stages` creates it.

    A stage sends one array per example to the next: the values of several tensors, flattened and concatenated.
    """

    name: str
    inputs: tuple[tuple[int, ...], ...]
    """Shapes of the tensors that the stage receives. None: it begins with the layer, and has the layer's own input."""
    input_indices: tuple[int, ...]
    """Index of the input tensor that each branch starts from."""
    branches: tuple[tuple[Layer, ...], ...]
    join: Residual | Concatenation | None
    """Layer that joins the branches, without their layers. None: a later stage joins them, and their outputs are sent to it."""


@dataclass(frozen=True)
class Native:
    """A layer of a user's own model, as its framework has it. Only its arrays and its number of operations are known."""

    name: str
    kind: str
    """Kind of the layer as in `common.matching.records`: conv, dense, layer_norm, ..."""
    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    """(role, canonical shape) of each array. All are trained."""
    initializer: Initializer = "kaiming_normal_fan_in"
    """Initializer of the kernel. A scale starts at one, a bias or shift at zero."""


@dataclass(frozen=True)
class Opaque:
    """A user's whole model. Only the user's code knows its layers without arrays, and how its layers are connected.

    It has its own builders, see `common.matching.pair`. It cannot be cut.
    """

    name: str
    shape: tuple[int, ...]
    """[H, W, C] of its input image. With one channel it takes the first one."""
    num_outputs: int
    layers: tuple[Native | BatchNorm | Dropout, ...]
    """Layers with arrays, in the order that they run."""
    outputs: tuple[tuple[int, ...], ...]
    """Shapes of the outputs of `layers` for one example."""
    again: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """(layer, output shape) of each call of a layer after its first."""
    rounded: str = ""
    """Finding of `match` on constants that one framework rounds to float32. A proof in float64 fails by that much."""


Window = Conv | MaxPool | AveragePool
Leaf = Window | BatchNorm | ReLU | GlobalAveragePool | Flatten | Dense | Dropout | Native
Layer = Leaf | Residual | Concatenation | StageFragment | Opaque


@dataclass(frozen=True)
class Parameter:
    """One named array of a model, in the canonical layout.

    name: `<layer>.<role>`; role: kernel (conv HWIO, I of one group; dense IO), bias, gamma, beta, mean, variance.
    """

    name: str
    shape: tuple[int, ...]
    initializer: Initializer
    fan_in: int
    """Number of inputs that one output of the layer sums over. 0: no initialiser needs it."""
    trainable: bool

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Architecture:
    name: str
    image_size: int
    """Height and width of the input images in pixels. They have 3 channels."""
    num_classes: int
    layers: tuple[Layer, ...]

    def leaves(self) -> Iterator[Layer]:
        """Yield every layer that has no branches, in the order of the forward pass, bodies before shortcuts."""
        yield from leaves(self.layers)

    @property
    def dropouts(self) -> tuple[Dropout, ...]:
        return tuple(layer for layer in self.leaves() if isinstance(layer, Dropout))

    @property
    def has_batch_norm(self) -> bool:
        return any(isinstance(layer, BatchNorm) for layer in self.leaves())

    def parameters(self) -> tuple[Parameter, ...]:
        return parameters(self.layers)


class Structure(NamedTuple):
    """The options of a built-in model."""

    width: float = 1.0
    """Factor on the channels of all layers, and on the features of hidden dense layers."""
    depth: float = 1.0
    """Factor on the number of blocks, or of convolutions, in each part of the model. At least one is left."""
    dropout: float | None = None
    """Rate of dropout in front of the classifier. 0: no dropout. None: the model's default."""

    def scale_channels(self, channels: int, multiple: int = 1) -> int:
        """Scale a number of channels by the width, to a multiple of `multiple`, at least once."""
        return multiple * max(1, round(self.width * channels / multiple))

    def scale_blocks(self, blocks: int) -> int:
        return max(1, round(self.depth * blocks))

    def dropout_layers(self, name: str, units: int, default_rate: float) -> tuple[Dropout, ...]:
        """Return a dropout layer at this rate, or at the model's default. Empty for rate 0."""
        rate = default_rate if self.dropout is None else self.dropout
        return (Dropout(name, rate, units),) if rate else ()


_DEFAULT_STRUCTURE = Structure()


def build(spec: Spec, num_classes: int, image_size: int) -> Architecture:
    """Return the model of a spec for a number of classes and an image size. See `resolve`."""
    return resolve(spec.model, num_classes, image_size, width=spec.width, depth=spec.depth, dropout=spec.dropout)


def resolve(
    model: str,
    num_classes: int,
    image_size: int,
    *,
    width: float = 1.0,
    depth: float = 1.0,
    dropout: float | None = None,
) -> Architecture:
    """Return the architecture of a model name for a number of classes and an image size.

    Args:
        width, depth, dropout: options of a built-in model, see `Structure`. A user's module has its own.
    """
    if model in MODELS:
        return _BUILDERS[model](num_classes, image_size, Structure(width, depth, dropout))
    module = user_code.module(model)
    if not callable(getattr(module, "architecture", None)):
        raise SpecError(f"model {model} must define architecture(num_classes, image_size). Received: a module without it.")
    with user_code.forbid_exit(model):
        try:
            architecture = module.architecture(num_classes, image_size)
        except SpecError:
            raise
        except Exception as error:
            raise SpecError(
                f"model {model} failed in architecture(): {user_code.describe_error(error)}. Mend the module."
            ) from error
    if not isinstance(architecture, Architecture):
        raise SpecError(
            f"model {model}: architecture() must return a convtwins.models.Architecture. "
            f"Received: {type(architecture).__name__}."
        )
    for layer in architecture.layers:
        if isinstance(layer, Opaque) and layer.num_outputs != num_classes:
            raise SpecError(
                f"model {model} was matched with {layer.num_outputs} classes. Received: data with {num_classes}. "
                f"Run match again with --classes {num_classes}."
            )
    # A framework may not allow a dot in a name, and puts an underscore there.
    names = [layer.name.replace(".", "_") for layer in architecture.leaves()]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise SpecError(
            f"model {model}: layer names must be unique, dots read as underscores. Received twice: {', '.join(duplicates)}. "
            "Rename them."
        )
    output_shape(architecture.layers, (image_size, image_size, 3), model)
    return dataclasses.replace(architecture, name=model)  # by it the twins find the module's own builders


def is_opaque(model: str) -> bool:
    """Return whether a model is a matched pair, whose layers only the user's own code connects."""
    return model not in MODELS and isinstance(getattr(user_code.module(model), "MODEL", None), Opaque)


def why_not_divisible(spec: Spec) -> str | None:
    """Return why a mode that divides models cannot use the model of a spec. None: it can, or the mode divides none."""
    if not spec.traits.divides_model or not is_opaque(spec.model):
        return None
    return f"not available: {spec.mode} divides a model, and only the user's own code joins the layers of {spec.model}"


def refuse_opaque(architecture: Architecture, feature: str) -> None:
    """Refuse a matched pair where layers must be known one by one."""
    if isinstance(architecture.layers[0], Opaque):
        raise SpecError(
            f"{feature} needs to know how layers are joined. Received: {architecture.name}, which only the user's own code "
            "joins. Use `run`, `parity` or `scaling`, or say the model as an architecture."
        )


def output_shape(layers: tuple[Layer, ...], shape: tuple[int, ...], model: str) -> tuple[int, ...]:
    """Return [H, W, C] or [features] behind these layers.

    Args:
        layers: consecutive layers.
        shape: shape of one example in front of them.
        model: name of the model, for the error.
    """
    for layer in layers:
        match layer:
            case Conv() | MaxPool() | AveragePool():
                _check_input_shape(
                    model, layer.name, "channels", layer.in_channels if isinstance(layer, Conv) else None, shape, 3
                )
                _check_window(model, layer)
                sizes = list(shape)
                channels = sizes.pop()
                sizes = [
                    (size + before + after - layer.kernel_size) // layer.stride + 1
                    for size, (before, after) in zip(sizes, layer.padding, strict=True)
                ]
                shape = (*sizes, layer.out_channels if isinstance(layer, Conv) else channels)
            case BatchNorm():
                _check_input_shape(model, layer.name, "channels", layer.channels, shape, len(shape))
            case GlobalAveragePool():
                _check_input_shape(model, layer.name, "channels", None, shape, 3)
                shape = shape[2:]
            case Flatten():
                shape = (math.prod(shape),)
            case Dense():
                _check_input_shape(model, layer.name, "features", layer.in_features, shape, 1)
                shape = (layer.out_features,)
            case Dropout():
                _check_input_shape(model, layer.name, "features", layer.units, shape, 1)
            case StageFragment():
                inputs = layer.inputs or (shape,)
                parts = [
                    output_shape(branch, inputs[index], model)
                    for branch, index in zip(layer.branches, layer.input_indices, strict=True)
                ]
                if isinstance(layer.join, Concatenation):
                    shape = (*parts[0][:-1], sum(part[-1] for part in parts))
                else:
                    shape = parts[0] if layer.join else (sum(map(math.prod, parts)),)
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
            case Opaque():
                if shape[:2] != layer.shape[:2]:
                    expected, received = ("x".join(map(str, dimensions[:2])) for dimensions in (layer.shape, shape))
                    raise SpecError(
                        f"model {model} was matched with images of {expected} pixels. Received: {received}. Run match again "
                        f"with --input {received}x{layer.shape[2]}.",
                        setting=Setting("Or use", "data.image_size", layer.shape[0]),
                    )
                shape = (layer.num_outputs,)
            case ReLU() | Native():
                pass
    return shape


def _check_input_shape(model: str, name: str, axis: str, expected: int | None, shape: tuple[int, ...], axes: int) -> None:
    if len(shape) != axes or (expected is not None and expected != shape[-1]):
        description = f"{expected} {axis}" if expected is not None else f"{axis} after height and width"
        raise SpecError(
            f"model {model}: {name} takes {description}. Received: values of shape {list(shape)}. Mend architecture()."
        )


def _check_window(model: str, layer: Window) -> None:
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


def simple_cnn(num_classes: int, image_size: int, structure: Structure = _DEFAULT_STRUCTURE) -> Architecture:
    """A plain CNN: four Conv3x3-ReLU-MaxPool2x2 blocks (32, 64, 128, 128), dense 128 with dropout, dense classes.

    The report that it stands for (tomato leaves, two frameworks) does not list its layers; these are this suite's choice.
    `depth` is a factor on the convolutions of each block.
    """
    _check_min_size("simple_cnn", image_size, 32)
    layers: list[Layer] = []
    # Convolutions that keep the scale (He et al. 2015): a smaller start without BatchNorm begins on a plateau, where a
    # comparison says little.
    he: Initializer = "kaiming_normal_fan_in"
    channels, size = 3, image_size
    for block, width in enumerate(map(structure.scale_channels, (32, 64, 128, 128)), start=1):
        for number in range(1, structure.scale_blocks(1) + 1):
            name = f"{block}" if number == 1 else f"{block}_{number}"
            layers += [
                Conv(f"conv{name}", channels, width, 3, 1, same_padding(size, 3, 1), bias=True, initializer=he),
                ReLU(f"relu{name}"),
            ]
            channels = width
        layers.append(MaxPool(f"pool{block}", 2, 2, no_padding))
        size //= 2
    features = structure.scale_channels(128)
    layers += [
        Flatten("flatten"),
        Dense("dense", channels * size * size, features),
        ReLU("dense_relu"),
        *structure.dropout_layers("dropout", features, 0.5),
        Dense("logits", features, num_classes),
    ]
    return Architecture("simple_cnn", image_size, num_classes, tuple(layers))


def mini_xception(num_classes: int, image_size: int, structure: Structure = _DEFAULT_STRUCTURE) -> Architecture:
    """MiniXception for 32x32 images: separable convolutions in residual blocks (after Chollet 2017, Xception).

    96,202 values for 10 classes, 94,474 of them trainable. `depth` is a factor on its four blocks.
    """
    if image_size != 32:
        raise SpecError(
            f"data.image_size must be 32 for mini_xception. Received: {image_size}.",
            setting=Setting("Use", "data.image_size", 32),
        )
    same = same_padding(32, 3, 1)
    stem, middle, top, features = map(structure.scale_channels, (32, 64, 128, 64))

    def separable(name: str, channels: int, width: int) -> tuple[Layer, ...]:
        return (
            depthwise_conv(f"{name}_depthwise", channels, 3, 1, same),
            Conv(f"{name}_pointwise", channels, width, 1, 1, no_padding, bias=True),
            BatchNorm(f"{name}_bn", width),
        )

    layers: list[Layer] = []
    for name, channels, width in (("conv1", 3, stem), ("conv2", stem, middle)):
        layers += [Conv(name, channels, width, 3, 1, same, bias=True), BatchNorm(f"{name}_bn", width), ReLU(f"{name}_relu")]
    for number in range(1, structure.scale_blocks(4) + 1):
        block = f"block{number}"
        first, second = (separable(f"{block}_separable{index}", middle, middle) for index in (1, 2))
        layers.append(Residual(block, (*first, ReLU(f"{block}_relu"), *second)))
    for name, channels, width in (("separable1", middle, top), ("separable2", top, top)):
        layers += [*separable(name, channels, width), ReLU(f"{name}_relu")]
    layers += [
        MaxPool("pool", 3, 2, same_padding(32, 3, 2)),
        GlobalAveragePool("global_pool"),
        Dense("dense", top, features),
        ReLU("dense_relu"),
        *structure.dropout_layers("dropout", features, 0.0),
        Dense("logits", features, num_classes),
    ]
    return Architecture("mini_xception", image_size, num_classes, tuple(layers))


def _resnet(
    name: str, blocks: tuple[int, ...], num_classes: int, image_size: int, structure: Structure, *, bottleneck: bool
) -> Architecture:
    """A ResNet (He et al. 2016) with torchvision's padding, names, constants and initialisers.

    Args:
        blocks: in each of the four stages; `depth` is a factor on them.
        bottleneck: blocks of 1x1, 3x3 and 1x1 convolutions. The last has four times the channels. The 3x3 one has the stride,
            as in torchvision. Otherwise blocks of two 3x3 ones.
    """
    _check_min_size(name, image_size, 32)

    def unit(number: str, prefix: str, channels: int, width: int, kernel_size: int, stride: int) -> tuple[Layer, ...]:
        side = (kernel_size // 2, kernel_size // 2)
        he: Initializer = "kaiming_normal_fan_out"
        conv = Conv(f"{prefix}conv{number}", channels, width, kernel_size, stride, (side, side), bias=False, initializer=he)
        return conv, BatchNorm(f"{prefix}bn{number}", width)

    channels = structure.scale_channels(64)
    layers: list[Layer] = [*unit("1", "", 3, channels, 7, 2), ReLU("relu"), MaxPool("maxpool", 3, 2, ((1, 1), (1, 1)))]
    for stage, (base, number) in enumerate(zip((64, 128, 256, 512), blocks, strict=True), start=1):
        width = structure.scale_channels(base)
        outputs = 4 * width if bottleneck else width
        for block in range(structure.scale_blocks(number)):
            block_name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            prefix = f"{block_name}."
            if bottleneck:
                body = (
                    *unit("1", prefix, channels, width, 1, 1),
                    ReLU(f"{prefix}relu"),
                    *unit("2", prefix, width, width, 3, stride),
                    ReLU(f"{prefix}relu2"),
                    *unit("3", prefix, width, outputs, 1, 1),
                )
            else:
                body = (
                    *unit("1", prefix, channels, width, 3, stride),
                    ReLU(f"{prefix}relu"),
                    *unit("2", prefix, width, width, 3, 1),
                )
            shortcut = ()
            if (channels, stride) != (outputs, 1):
                conv, norm = unit("", prefix, channels, outputs, 1, stride)
                shortcut = (
                    dataclasses.replace(conv, name=f"{prefix}downsample.0"),
                    dataclasses.replace(norm, name=f"{prefix}downsample.1"),
                )
            layers.append(Residual(block_name, body, shortcut, relu=True))
            channels = outputs
    layers += [
        GlobalAveragePool("avgpool"),
        *structure.dropout_layers("dropout", channels, 0.0),
        Dense("fc", channels, num_classes, initializer="uniform_fan_in", bias_initializer="uniform_fan_in"),
    ]
    return Architecture(name, image_size, num_classes, tuple(layers))


def _vgg16(name: str, num_classes: int, image_size: int, structure: Structure, *, batch_norm: bool) -> Architecture:
    """VGG-16 (Simonyan & Zisserman 2015, configuration D) with torchvision's layer names.

    Its classifier takes the pixels that five poolings leave, 7x7 of 224x224; torchvision resamples any others to 7x7. All
    kernels start by He et al. 2015. `depth` is a factor on the convolutions between two poolings.
    """
    _check_min_size(name, image_size, 32)
    he: Initializer = "kaiming_normal_fan_in"
    layers: list[Layer] = []
    channels, size = 3, image_size
    for base, number in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        width = structure.scale_channels(base)
        for _ in range(structure.scale_blocks(number)):
            pad = same_padding(size, 3, 1)
            layers.append(Conv(f"features.{len(layers)}", channels, width, 3, 1, pad, bias=True, initializer=he))
            if batch_norm:
                layers.append(BatchNorm(f"features.{len(layers)}", width))
            layers.append(ReLU(f"features.{len(layers)}"))
            channels = width
        layers.append(MaxPool(f"features.{len(layers)}", 2, 2, no_padding))
        size //= 2
    inputs, features = channels * size * size, structure.scale_channels(4096)
    layers.append(Flatten("flatten"))
    for number in (0, 3):
        layers += [
            Dense(f"classifier.{number}", inputs, features, initializer=he),
            ReLU(f"classifier.{number + 1}"),
            *structure.dropout_layers(f"classifier.{number + 2}", features, 0.5),
        ]
        inputs = features
    layers.append(Dense("classifier.6", inputs, num_classes, initializer=he))
    return Architecture(name, image_size, num_classes, tuple(layers))


def two_path_cnn(num_classes: int, image_size: int, structure: Structure = _DEFAULT_STRUCTURE) -> Architecture:
    """Two paths through each of three blocks, joined by concatenation (after Szegedy et al. 2015, two of its four paths).

    One path is a 3x3 convolution in four groups (Xie et al. 2017), the other the mean of 3x3 pixels and a 1x1 convolution.
    `depth` is a factor on the blocks between two poolings. Channels are multiples of 8, half of them in each path.
    """
    _check_min_size("two_path_cnn", image_size, 8)

    def unit(name: str, channels: int, width: int, kernel_size: int, size: int, groups: int = 1) -> tuple[Layer, ...]:
        padding = same_padding(size, kernel_size, 1)
        he: Initializer = "kaiming_normal_fan_in"
        return (
            Conv(f"{name}_conv", channels, width, kernel_size, 1, padding, bias=False, initializer=he, groups=groups),
            BatchNorm(f"{name}_bn", width),
            ReLU(f"{name}_relu"),
        )

    channels, size = structure.scale_channels(32, 8), image_size
    layers: list[Layer] = [*unit("stem", 3, channels, 3, size)]
    for stage, base in enumerate((32, 64, 128), start=1):
        width = structure.scale_channels(base, 8)
        for number in range(1, structure.scale_blocks(1) + 1):
            name = f"block{stage}" if number == 1 else f"block{stage}_{number}"
            average = AveragePool(f"{name}_average", 3, 1, same_padding(size, 3, 1))
            paths = (
                unit(f"{name}_grouped", channels, width // 2, 3, size, groups=4),
                (average, *unit(f"{name}_pointwise", channels, width // 2, 1, size)),
            )
            layers.append(Concatenation(name, paths))
            channels = width
        layers.append(MaxPool(f"block{stage}_pool", 2, 2, no_padding))
        size //= 2
    layers += [
        GlobalAveragePool("global_pool"),
        *structure.dropout_layers("dropout", channels, 0.0),
        Dense("logits", channels, num_classes),
    ]
    return Architecture("two_path_cnn", image_size, num_classes, tuple(layers))


def _check_min_size(model: str, image_size: int, minimum: int) -> None:
    if image_size < minimum:
        raise SpecError(f"data.image_size is too small for {model}. Received: {image_size}. Use {minimum} or more.")


_BUILDERS: dict[str, Callable[[int, int, Structure], Architecture]] = {
    "simple_cnn": simple_cnn,
    "mini_xception": mini_xception,
    "resnet18": partial(_resnet, "resnet18", (2, 2, 2, 2), bottleneck=False),
    "resnet34": partial(_resnet, "resnet34", (3, 4, 6, 3), bottleneck=False),
    "resnet50": partial(_resnet, "resnet50", (3, 4, 6, 3), bottleneck=True),
    "vgg16": partial(_vgg16, "vgg16", batch_norm=False),
    "vgg16_bn": partial(_vgg16, "vgg16_bn", batch_norm=True),
    "two_path_cnn": two_path_cnn,
}


def depthwise_conv(
    name: str, channels: int, kernel_size: int, stride: int, padding: Padding, initializer: Initializer = "glorot_uniform"
) -> Conv:
    """Return a convolution of each channel alone, without bias."""
    return Conv(name, channels, channels, kernel_size, stride, padding, False, initializer, groups=channels)


no_padding: Padding = ((0, 0), (0, 0))


def same_padding(size: int, kernel_size: int, stride: int) -> Padding:
    """Return TensorFlow's `same` padding: the least for ceil(size / stride) outputs. An odd pixel is bottom and right."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel_size - size, 0)
    side = (total // 2, total - total // 2)
    return (side, side)


def branches(layer: Layer) -> tuple[tuple[Layer, ...], ...]:
    """Return the branches of a layer, which it runs on its input before it joins their outputs. Most layers have none."""
    match layer:
        case Residual():
            return layer.body, layer.shortcut
        case Concatenation() | StageFragment():
            return layer.branches
        case _:
            return ()


def leaves(layers: tuple[Layer, ...]) -> Iterator[Layer]:
    """Yield every layer that has no branches, in the order of the forward pass, bodies before shortcuts."""
    for layer in layers:
        if isinstance(layer, Residual | Concatenation | StageFragment):
            for branch in branches(layer):
                yield from leaves(branch)
        elif isinstance(layer, Opaque):
            yield from layer.layers
        else:
            yield layer


def decision_layers(layers: tuple[Layer, ...]) -> Iterator[tuple[str, Layer]]:
    """Yield (name, layer) of every ReLU and max-pooling in the order of `leaves`. A residual sum's ReLU is `<sum>.out`."""
    for layer in layers:
        for branch in branches(layer):
            yield from decision_layers(branch)
        if isinstance(layer, ReLU | MaxPool):
            yield layer.name, layer
        joined = layer.join if isinstance(layer, StageFragment) else layer
        if isinstance(joined, Residual) and joined.relu:
            yield f"{layer.name}.out", layer


def parameters(layers: tuple[Layer, ...]) -> tuple[Parameter, ...]:
    """Return the named arrays of layers, with BatchNorm's statistics, in the order of the forward pass."""
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
    elif isinstance(layer, Native):
        for role, shape in layer.parameters:
            initializer: Initializer = layer.initializer if role == "kernel" else "ones" if role == "gamma" else "zeros"
            yield Parameter(f"{layer.name}.{role}", shape, initializer, math.prod(shape[:-1]), True)
