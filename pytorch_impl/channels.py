"""Layers with output channels split over replicas. Each replica holds its slice of the kernel and the bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed, nn

from common.models import sharding
from pytorch_impl import collectives


def split(model: nn.Module, replicas: distributed.ProcessGroup, memory_format: str) -> nn.Module:
    """Split the output channels of every convolution and dense layer over replicas.

    Other layers, such as BatchNorm and pooling, run on the gathered channels.

    Args:
        model: its weights are not loaded yet.
        replicas: share the model.
        memory_format: value of the switch: the format where activations and their gradients are sent.

    Returns:
        The split model. Layers keep their names.
    """
    # Twin: torch replaces layers in the model, here by one slice of each. Keras builds a new model with all slices.
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Conv2d | nn.Linear):
            model.set_submodule(name, _Split(name, layer, replicas, memory_format))
    return model


def holders(layer: nn.Module) -> list[tuple[nn.Module, slice]]:
    """Return the layers that hold a layer's arrays in this process, each with its slice of the last canonical axis."""
    return [(layer.local_layer, layer.channels[layer.rank])] if isinstance(layer, _Split) else [(layer, slice(None))]


def gather(layer: nn.Module, arrays: Sequence[npt.NDArray[np.floating]]) -> npt.NDArray[np.floating]:
    """Gather a layer's whole canonical array from its holders' arrays. All replicas call this together."""
    if not isinstance(layer, _Split):
        return arrays[0]
    # Twin: other ranks hold the other slices. Keras' slices are all in this process.
    flat = torch.from_numpy(np.ascontiguousarray(arrays[0]).reshape(-1, arrays[0].shape[-1]))
    whole = layer.gather(flat.to(layer.local_layer.weight.device)).cpu().numpy()
    return whole.reshape(*arrays[0].shape[:-1], whole.shape[-1])


def bytes_per_example(model: nn.Module) -> int:
    """Return the bytes that all replicas of a split model send per example in a training step, forward and backward.

    The count comes from the shapes of the gathered activations and the summed gradients.
    """
    return sum(layer.bytes_per_example for layer in model.modules() if isinstance(layer, _Split))


class _Split(nn.Module):
    """A layer split by output channels. Every rank computes its own channels from the whole input.

    Forward, the ranks gather the outputs. Backward, each rank takes its slice of the output's gradient, and the slices'
    gradients of the input are summed (Shoeybi et al. 2019: column parallel). A grouped convolution, such as a depthwise one,
    is split between its groups. Each group has its own input channels, so the input's gradient is gathered, not summed.
    """

    def __init__(self, name: str, layer: nn.Conv2d | nn.Linear, group: distributed.ProcessGroup, memory_format: str) -> None:
        super().__init__()
        self.memory_format = memory_format
        self.group, self.rank, ranks = group, distributed.get_rank(group), distributed.get_world_size(group)
        groups = layer.groups if isinstance(layer, nn.Conv2d) else 1
        grouped = groups > 1
        bounds = sharding.channels(name, groups if grouped else len(layer.weight), ranks)
        outputs = len(layer.weight) // groups if grouped else 1
        self.channels = [slice(low * outputs, high * outputs) for low, high in bounds]
        self.inputs: list[slice] | None = None
        if isinstance(layer, nn.Conv2d):
            low, high = bounds[self.rank]
            layer.out_channels = (high - low) * outputs
            if grouped:
                inputs = layer.in_channels // groups
                self.inputs = [slice(low * inputs, high * inputs) for low, high in bounds]
                layer.in_channels, layer.groups = (high - low) * inputs, high - low
        else:
            layer.out_features = bounds[self.rank][1] - bounds[self.rank][0]
        for parameter in layer.parameters(recurse=False):
            parameter.data = parameter.data[self.channels[self.rank]].clone()
        self.local_layer = layer
        self.bytes_per_example = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the whole output, the same in every rank."""
        local_input = _Scatter.apply(x, self) if self.inputs else _Copy.apply(x, self)
        whole = _Gather.apply(self.local_layer(local_input), self)
        assert isinstance(whole, torch.Tensor)
        if self.training:
            self.bytes_per_example = self._bytes(x, whole) // len(x)
        return whole

    def gather(self, local_output: torch.Tensor) -> torch.Tensor:
        """Concatenate all ranks' slices of the output on axis 1."""
        return _exchange(local_output, self.channels, self)

    def _bytes(self, x: torch.Tensor, whole: torch.Tensor) -> int:
        """Return the bytes of a step. A gather sends every slice to R - 1 ranks; an all-reduce sends it all 2 (R - 1) times."""
        num_others = len(self.channels) - 1
        backward = x.nbytes * (1 if self.inputs else 2) if x.requires_grad else 0
        return num_others * (whole.nbytes + backward)


class _Copy(torch.autograd.Function):
    """Forward, every slice gets the same input. Backward, the slices' gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: _Split) -> torch.Tensor:
        ctx.layer = layer
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        # Summed in place: the layer has just made this gradient, and nothing else reads it.
        gradient = _dense(gradients[0], ctx.layer)
        collectives.all_reduce(_flat(gradient), ctx.layer.group)
        return gradient, None


class _Scatter(torch.autograd.Function):
    """Forward, the input channels of this rank's groups. Backward, the gradients of all ranks' channels are gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: _Split) -> torch.Tensor:
        assert layer.inputs is not None
        ctx.layer = layer
        return x[:, layer.inputs[layer.rank]]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        return _exchange(gradients[0], ctx.layer.inputs, ctx.layer), None


class _Gather(torch.autograd.Function):
    """Forward, the output channels of all ranks. Backward, this rank's slice of the gradient, which all ranks have in full."""

    @staticmethod
    def forward(ctx: Any, local_output: torch.Tensor, layer: _Split) -> torch.Tensor:
        ctx.layer = layer
        return layer.gather(local_output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        return gradients[0][:, ctx.layer.channels[ctx.layer.rank]], None


def _exchange(local_slice: torch.Tensor, slices: list[slice], layer: _Split) -> torch.Tensor:
    """Gather every rank's slice of axis 1, in order.

    Each rank sends its slice to every other. gloo's own all-gather needs slices of equal size and copies them twice.
    """
    local_slice, group = _dense(local_slice, layer), layer.group
    shapes = [(len(local_slice), part.stop - part.start, *local_slice.shape[2:]) for part in slices]
    memory_format = _memory_format(layer, local_slice.dim())
    parts = [
        local_slice
        if peer == layer.rank
        else torch.empty(shape, dtype=local_slice.dtype, device=local_slice.device, memory_format=memory_format)
        for peer, shape in enumerate(shapes)
    ]
    peers = [peer for peer in range(len(slices)) if peer != layer.rank]
    sends = [distributed.P2POp(distributed.isend, _flat(local_slice), group=group, group_peer=peer) for peer in peers]
    receives = [distributed.P2POp(distributed.irecv, _flat(parts[peer]), group=group, group_peer=peer) for peer in peers]
    whole = len(local_slice), slices[-1].stop, *local_slice.shape[2:]
    collectives.swap(collectives.begin(group, "all_gather", local_slice, whole), sends + receives)
    return _dense(torch.cat(parts, 1), layer)


def _dense(tensor: torch.Tensor, layer: _Split) -> torch.Tensor:
    """Return the tensor, or a copy, without gaps in memory, in the layer's memory format.

    Its own strides do not tell the format. A tensor with one channel has both formats, and another rank may have more channels.
    """
    return tensor.contiguous(memory_format=_memory_format(layer, tensor.dim()))


def _memory_format(layer: _Split, dimensions: int) -> torch.memory_format:
    """Return the layer's memory format of tensors with so many dimensions. Only those with four have a choice."""
    return torch.channels_last if layer.memory_format == "channels_last" and dimensions == 4 else torch.contiguous_format


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a one-dimensional view of a dense tensor's memory, as it is sent."""
    return tensor.as_strided((tensor.numel(),), (1,))
