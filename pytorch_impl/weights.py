"""Conversion between the canonical weights of `common.models.weights` and the model's own arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from common.matching import recording
from common.models.architectures import Architecture
from common.models.weights import ReadOnlyWeights, Weights
from pytorch_impl import channels, models, shards

# Twin: torch has its own names and layouts of arrays. Role -> attribute.
_ATTRIBUTES = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "mean": "running_mean",
    "variance": "running_var",
}


def load(model: nn.Module, architecture: Architecture, weights: ReadOnlyWeights) -> None:
    """Set every parameter and statistic of a model from canonical arrays, rounded to the model's precision."""
    with torch.no_grad():
        for parameter in architecture.parameters():
            canonical = weights[parameter.name]
            for holder, part in channels.holders(_layer(model, parameter.name)):
                whole = _to_input_order(holder, parameter.name, canonical)[..., part]
                for tensor, rows in shards.parts(_tensor(holder, parameter.name)):
                    array = _to_framework(parameter.name, whole[..., rows])
                    tensor.copy_(torch.from_numpy(np.ascontiguousarray(array)))


def extract(model: nn.Module, architecture: Architecture) -> Weights:
    """Return every parameter and statistic by canonical name, in the canonical layout and the model's precision."""
    return {parameter.name: _gather(model, parameter.name, _local_parts) for parameter in architecture.parameters()}


def extract_gradients(model: nn.Module, architecture: Architecture, gradients: list[torch.Tensor]) -> Weights:
    """Return the gradient of every trainable parameter by canonical name. The list has the order of the model's parameters."""
    by_variable = {id(variable): gradient for variable, gradient in zip(model.parameters(), gradients, strict=True)}
    return {
        parameter.name: _gather(model, parameter.name, lambda variable: [by_variable[id(variable)]])
        for parameter in architecture.parameters()
        if parameter.trainable
    }


def positions(model: nn.Module, architecture: Architecture) -> dict[str, int]:
    """Return the index of each trainable parameter in the model's own list, by canonical name and in canonical order."""
    position_by_id = {id(variable): position for position, variable in enumerate(model.parameters())}
    names = [parameter.name for parameter in architecture.parameters() if parameter.trainable]
    return {name: position_by_id[id(_tensor(_layer(model, name), name))] for name in names}


def flatten(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return all values of a parameter's gradient, in the canonical layout."""
    if name.endswith(".kernel"):
        tensor = tensor.t() if tensor.ndim == 2 else tensor.permute(2, 3, 1, 0)
    return tensor.reshape(-1)


def restore(name: str, values: torch.Tensor, variable: torch.Tensor) -> torch.Tensor:
    """Reshape values from `flatten` into the gradient of a model's own variable."""
    if not name.endswith(".kernel"):
        return values.view(variable.shape)
    if variable.ndim == 2:
        return values.view(variable.shape[::-1]).t()
    outputs, inputs, height, width = variable.shape
    return values.view(height, width, inputs, outputs).permute(3, 2, 0, 1)


def _gather(model: nn.Module, name: str, local_parts: Callable[[torch.Tensor], list[torch.Tensor]]) -> npt.NDArray[np.floating]:
    layer = _layer(model, name)
    arrays: list[npt.NDArray[np.floating]] = []
    for holder, _ in channels.holders(layer):
        variable = _tensor(holder, name)
        arrays.append(shards.gather(variable, [_to_canonical(name, part) for part in local_parts(variable)]))
    whole = channels.gather(layer, arrays)
    return recording.to_canonical(whole, name.rpartition(".")[2], getattr(layer, "input_order", None))


def _to_input_order(holder: Any, name: str, array: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Return a canonical array with its inputs in the order that a user's own model flattens an image."""
    return recording.to_native(array, name.rpartition(".")[2], getattr(holder, "input_order", None))


def _local_parts(variable: torch.Tensor) -> list[torch.Tensor]:
    """Return the values of a variable's parts in this process."""
    return [part for part, _ in shards.parts(variable)]


def _layer(model: nn.Module, name: str) -> nn.Module:
    return models.find_layer(model, name.rpartition(".")[0])


def _tensor(layer: nn.Module, name: str) -> torch.Tensor:
    return getattr(layer, _ATTRIBUTES[name.rpartition(".")[2]])


def _to_framework(name: str, array: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    if not name.endswith(".kernel"):
        return array
    if array.ndim == 2:  # dense: IO to OI
        return array.T
    return array.transpose(3, 2, 0, 1)  # HWIO to OIHW


def _to_canonical(name: str, tensor: torch.Tensor) -> npt.NDArray[np.floating]:
    array = tensor.detach().cpu().numpy().copy()
    if not name.endswith(".kernel"):
        return array
    return array.T if array.ndim == 2 else array.transpose(2, 3, 1, 0)
