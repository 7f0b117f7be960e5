"""The CNNs, built from `common.models.architectures`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from common.models import architectures, user_code
from common.models.architectures import Architecture, Layer
from common.models.stages import Stage
from pytorch_impl import batch_norm, native
from pytorch_impl.batch_norm import ReplicaGroup

_ARITHMETIC = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_TORCHVISIONS = ("resnet18", "resnet34", "resnet50")
_MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def build(architecture: Architecture, precision: str, group: ReplicaGroup | None = None, arithmetic: str = "full") -> nn.Module:
    """Build a model.

    The model takes images [N, H, W, 3] in 0..1, in the framework's layout, and the dropout masks. It returns logits.

    Args:
        architecture: the model's architecture; a user's own model may have its own builder for this framework.
        precision: `float32` or `float64`; the dtype of weights and logits.
        group: replicas that share BatchNorm statistics; None: statistics per replica.
        arithmetic: value of the switch; with `bfloat16` or `float16` the layers compute in that type.

    Returns:
        The model with the framework's own initial weights; `weights.load` sets the shared ones.
    """
    if architecture.name in _TORCHVISIONS and architecture == architectures.resolve(
        architecture.name, architecture.num_classes, architecture.image_size
    ):
        import torchvision  # here: importing it takes over a second, and no other model needs it

        # Twin: torchvision's own model, where it has this structure. The other twin builds it from the architecture.
        model: nn.Module = getattr(torchvision.models, architecture.name)(
            num_classes=architecture.num_classes,
            norm_layer=lambda channels: batch_norm.build(architectures.BatchNorm("", channels), group),
        )
    else:
        builder = user_code.builder(architecture.name, "pytorch")
        model = builder(architecture, precision, group) if builder else _Network(architecture, group)
    model.to({"float32": torch.float32, "float64": torch.float64}[precision])
    return _Autocast(model, _ARITHMETIC[arithmetic]) if arithmetic in _ARITHMETIC else model


def build_stage(stage: Stage, precision: str) -> nn.Module:
    """Build the model of one stage of a pipeline. It maps the previous stage's output to its own.

    It is made from the architecture, also where `build` takes torchvision's model or a user's own builder, which know no
    stages. Masks go to the stage that has their dropout.

    Args:
        stage: the layers and the input shape of one example.
        precision: `float32` or `float64`.
    """
    return _Stage(stage.architecture, None).to({"float32": torch.float32, "float64": torch.float64}[precision])


def to_device(model: nn.Module, device: torch.device, memory_format: str) -> nn.Module:
    """Move the model to its device, in a memory format. It converts its input images to that format."""

    # Twin: only torch has this switch. TensorFlow's CPU kernels are NHWC.
    def format_images(module: nn.Module, inputs: Any) -> Any:
        images, *others = inputs
        return (to_memory_format(images, memory_format), *others)

    model.register_forward_pre_hook(format_images)
    return model.to(device).to(memory_format=_MEMORY_FORMATS[memory_format])


def to_memory_format(values: torch.Tensor, memory_format: str) -> torch.Tensor:
    """Convert [N, C, H, W] to a memory format. Features [N, features] have only one format and are returned as they are."""
    return values.contiguous(memory_format=_MEMORY_FORMATS[memory_format]) if values.dim() == 4 else values


class _Autocast(nn.Module):
    """A model whose layers compute in another type. Its logits have the type of the weights."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self._dtype = dtype
        self._dtype_of_logits = next(model.parameters()).dtype  # here: nn.DataParallel's copies have no parameters to ask

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes] of images and masks."""
        with torch.autocast(inputs[0].device.type, self._dtype):
            return self.model(*inputs).to(self._dtype_of_logits)


class _Network(nn.Module):
    """An architecture, layer by layer."""

    def __init__(self, architecture: Architecture, group: ReplicaGroup | None) -> None:
        super().__init__()
        self.layers = architecture.layers
        for layer in architecture.leaves():
            self.add_module(_attribute_name(layer.name), _module(layer, group))

    def forward(self, images: torch.Tensor, *masks: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes] of images [N, 3, H, W]; masks bool [N, units], one for each dropout."""
        return self._through(self.layers, images, iter(masks))

    def _through(self, layers: tuple[Layer, ...], x: torch.Tensor, masks: Any) -> torch.Tensor:
        for layer in layers:
            if isinstance(layer, architectures.Residual):
                x = self._through(layer.body, x, masks) + self._through(layer.shortcut, x, masks)
                x = torch.relu(x) if layer.relu else x
            elif isinstance(layer, architectures.Concatenation):
                x = torch.cat([self._through(branch, x, masks) for branch in layer.branches], 1)
            elif isinstance(layer, architectures.StageFragment):
                x = self._through_cut(layer, x, masks)
            elif isinstance(layer, architectures.Dropout):
                x = getattr(self, _attribute_name(layer.name))(x, next(masks, None))
            else:
                x = getattr(self, _attribute_name(layer.name))(x)
        return x

    def _through_cut(self, layer: architectures.StageFragment, x: torch.Tensor, masks: Any) -> torch.Tensor:
        tensors = [x]
        if layer.inputs:
            parts = x.split([math.prod(shape) for shape in layer.inputs], 1)
            # Twin: channels first, also in what is handed on.
            sizes = [(*shape[-1:], *shape[:-1]) for shape in layer.inputs]
            tensors = [part.unflatten(1, size) for part, size in zip(parts, sizes, strict=True)]
        outputs = [
            self._through(branch, tensors[take], masks)
            for branch, take in zip(layer.branches, layer.input_indices, strict=True)
        ]
        match layer.join:
            case architectures.Residual():
                return torch.relu(outputs[0] + outputs[1]) if layer.join.relu else outputs[0] + outputs[1]
            case architectures.Concatenation():
                return torch.cat(outputs, 1)
            case None:
                return torch.cat([output.flatten(1) for output in outputs], 1)


class _Stage(_Network):
    """A part of a network. Its output is contiguous, so it can be sent as it is."""

    def forward(self, x: torch.Tensor, *, masks: tuple[torch.Tensor, ...] = ()) -> torch.Tensor:
        """Map [N, C, H, W] or [N, features] to the same kinds; masks bool [N, units], one for each dropout of the stage."""
        return super().forward(x, *masks).contiguous()


def find_layer(model: nn.Module, name: str) -> nn.Module:
    """Return a layer of a model by its name in the architecture."""
    if isinstance(model, _Autocast):
        return find_layer(model.model, name)
    if isinstance(model, native.UserModel):
        return model.find(name)
    return model.get_submodule(_attribute_name(name) if isinstance(model, _Network) else name)


def _attribute_name(name: str) -> str:
    """Return the attribute under which a model stores a layer."""
    # Twin: a dot separates modules in torch, so names with dots (resnet18's) need another character.
    return name.replace(".", "_")


def summarize(architecture: Architecture) -> dict[str, Any]:
    """Describe a built model: each layer's name, kind, output shape (NHWC) and number of values, JSON-ready."""
    model = build(architecture, "float32").eval()
    rows: list[dict[str, Any]] = []

    def record(name: str, kind: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            # Twin: torchvision's average pool keeps a height and a width of one.
            shape = list((output.flatten(1) if kind == "GlobalAveragePool" else output).shape[1:])
            rows.append(
                {
                    "name": name,
                    "kind": kind,
                    # Twin: torch keeps channels first.
                    "output_shape": [*shape[1:], shape[0]] if len(shape) == 3 else shape,
                    "values": sum(array.numel() for array in _arrays(module)),
                }
            )

        return hook

    for layer in architecture.leaves():
        if not isinstance(layer, architectures.ReLU):
            find_layer(model, layer.name).register_forward_hook(record(layer.name, type(layer).__name__))
    size = architecture.image_size
    masks = [torch.ones((1, dropout.units), dtype=torch.bool) for dropout in architecture.dropouts]
    with torch.no_grad():
        model(torch.zeros((1, 3, size, size)), *masks)
    return {
        "framework": "pytorch",
        "model": architecture.name,
        "layers": rows,
        "values": num_values(model)[0],
        "trainable_values": num_values(model)[1],
    }


def num_values(model: nn.Module) -> tuple[int, int]:
    """Count the values of a built model: (all, trainable)."""
    trainable = (parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return sum(array.numel() for array in _arrays(model)), sum(trainable)


def _arrays(module: nn.Module) -> list[torch.Tensor]:
    """List parameters and statistics, without BatchNorm's unused count of batches and constants of a user's model."""
    constants = {
        id(constant)
        for user_model in module.modules()
        if isinstance(user_model, native.UserModel)
        for constant in user_model.constants()
    }
    statistics = (buffer for buffer in module.buffers() if buffer.is_floating_point() and id(buffer) not in constants)
    return [*module.parameters(), *statistics]


def _module(layer: Layer, group: ReplicaGroup | None) -> nn.Module:
    match layer:
        case architectures.Conv():
            return _padded(
                layer.padding,
                lambda padding: nn.Conv2d(
                    layer.in_channels,
                    layer.out_channels,
                    layer.kernel_size,
                    layer.stride,
                    padding,
                    groups=layer.groups,
                    bias=layer.bias,
                ),
            )
        case architectures.BatchNorm():
            return batch_norm.build(layer, group)
        case architectures.ReLU():
            return nn.ReLU()
        case architectures.MaxPool():
            return _padded(layer.padding, lambda padding: nn.MaxPool2d(layer.kernel_size, layer.stride, padding), -torch.inf)
        case architectures.AveragePool():
            return _AveragePool(layer)
        case architectures.GlobalAveragePool():
            return _GlobalAveragePool()
        case architectures.Flatten():
            return _Flatten()
        case architectures.Dense():
            return nn.Linear(layer.in_features, layer.out_features)
        case architectures.Dropout():
            return _MaskedDropout(layer.rate)
        case _:
            raise TypeError(f"{type(layer).__name__} is no leaf")


def _padded(padding: architectures.Padding, build_layer: Any, value: float = 0.0) -> nn.Module:
    (top, bottom), (left, right) = padding
    # Twin: torch's layers pad both sides alike. TensorFlow's `same` may pad unevenly, which needs a separate step.
    if (top, left) == (bottom, right):
        return build_layer((top, left))
    layer = build_layer(0)
    layer.register_forward_pre_hook(
        lambda module, inputs: nn.functional.pad(inputs[0], (left, right, top, bottom), value=value)
    )
    return layer


class _AveragePool(nn.Module):
    """Mean over windows. Padding does not count."""

    def __init__(self, layer: architectures.AveragePool) -> None:
        super().__init__()
        self.kernel_size, self.stride = layer.kernel_size, layer.stride
        (top, bottom), (left, right) = layer.padding
        self.padding = (left, right, top, bottom)
        # Twin: torch's layer pads both sides alike, by half a window at most.
        self.is_native = (top, left) == (bottom, right) and 2 * max(top, left) <= layer.kernel_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [N, C, H, W] to [N, C, H', W']."""
        if self.is_native:
            padding = self.padding[2], self.padding[0]
            return nn.functional.avg_pool2d(x, self.kernel_size, self.stride, padding, count_include_pad=False)
        with_zeros, share = (
            nn.functional.avg_pool2d(nn.functional.pad(values, self.padding), self.kernel_size, self.stride)
            for values in (x, torch.ones_like(x[:1, :1]))
        )
        return with_zeros / share


class _GlobalAveragePool(nn.Module):
    """Mean over height and width."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [N, C, H, W] to [N, C]."""
        return x.mean((2, 3))


class _Flatten(nn.Module):
    """All of an example's values in NHWC order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [N, C, H, W] to [N, H * W * C]."""
        # Twin: channels last, as in TensorFlow, so the next dense kernel means the same.
        return x.permute(0, 2, 3, 1).flatten(1)


class _MaskedDropout(nn.Module):
    """Dropout with a mask from the batch, so both frameworks drop the same values."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.scale = 1.0 / (1.0 - rate)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Apply the mask bool [N, units] to [N, units]; the identity in evaluation mode."""
        return x * mask * self.scale if self.training and mask is not None else x
