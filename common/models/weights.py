"""Initial weights that both frameworks start from: seeded NumPy, canonical names, one layout (see `Parameter`)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from common.errors import UserError
from common.models.architectures import Architecture, Parameter

Weights = dict[str, npt.NDArray[np.floating]]
ReadOnlyWeights = Mapping[str, npt.NDArray[np.floating]]
"""Weights that are only read."""


class WeightsError(UserError, ValueError):
    """A file of weights cannot be read, or does not fit the architecture."""


def initial(architecture: Architecture, seed: int) -> ReadOnlyWeights:
    """Return every parameter of a model, each drawn on access. So all float64 draws are never in memory together.

    Each parameter has its own stream, keyed by seed and name, so that adding a layer changes no other layer's draw.

    Returns:
        Canonical name to float64 array; a float32 run takes these values rounded.
    """
    return _LazyInitialWeights({parameter.name: parameter for parameter in architecture.parameters()}, seed)


def split(values: npt.NDArray[Any], architecture: Architecture) -> Weights:
    """Split one vector of the trainable parameters, in canonical order, into arrays by name."""
    trainable = [parameter for parameter in architecture.parameters() if parameter.trainable]
    parts = np.split(values, np.cumsum([parameter.size for parameter in trainable])[:-1])
    return {parameter.name: part.reshape(parameter.shape) for parameter, part in zip(trainable, parts, strict=True)}


def digest(weights: ReadOnlyWeights) -> str:
    """Return the SHA-256 over names, shapes and float64 values, in order of name."""
    sha256 = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name], dtype="<f8")
        sha256.update(f"{name}{array.shape}".encode())
        sha256.update(array.data)
    return sha256.hexdigest()


def save(weights: Mapping[str, npt.NDArray[Any]], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file. It appears when it is complete."""
    partial = path.with_suffix(".partial")
    safetensors.numpy.save_file({name: np.ascontiguousarray(array) for name, array in weights.items()}, partial, metadata)
    partial.replace(path)


def check(weights: Mapping[str, npt.NDArray[Any]], architecture: Architecture, path: Path) -> None:
    """Compare the contents of a file with an architecture."""
    expected = {parameter.name: parameter.shape for parameter in architecture.parameters()}
    received = {name: array.shape for name, array in weights.items()}
    for name in sorted(expected.keys() | received.keys()):
        if expected.get(name) != received.get(name):
            raise WeightsError(
                f"{path} does not fit {architecture.name}: {name} has shape {received.get(name)}, expected "
                f"{expected.get(name)}. Use weights of the same model, number of classes and image size."
            )
    mismatched = sorted(name for name, array in weights.items() if array.dtype.name not in ("float32", "float64"))
    if mismatched:
        raise WeightsError(f"{path} must hold float32 or float64. Received: {mismatched[0]} of {weights[mismatched[0]].dtype}.")


class _LazyInitialWeights(Mapping[str, npt.NDArray[np.float64]]):
    def __init__(self, parameters: Mapping[str, Parameter], seed: int) -> None:
        self._parameters = parameters
        self._seed = seed

    def __getitem__(self, name: str) -> npt.NDArray[np.float64]:
        return _draw(self._parameters[name], self._seed)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


def _draw(parameter: Parameter, seed: int) -> npt.NDArray[np.float64]:
    shape, fan_in = parameter.shape, parameter.fan_in
    if parameter.initializer == "zeros":
        return np.zeros(shape)
    if parameter.initializer == "ones":
        return np.ones(shape)
    name_key = int.from_bytes(hashlib.sha256(parameter.name.encode()).digest()[:8], "little")
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, name_key], np.uint64)))
    fan_out = fan_in // shape[-2] * shape[-1] if len(shape) > 1 else parameter.size  # kernels are [..., in, out]
    if parameter.initializer == "glorot_uniform":  # Glorot & Bengio 2010
        limit = math.sqrt(6.0 / (fan_in + fan_out))
        return generator.uniform(-limit, limit, shape)
    if parameter.initializer == "kaiming_normal_fan_in":  # He et al. 2015
        return generator.normal(0.0, math.sqrt(2.0 / fan_in), shape)
    if parameter.initializer == "kaiming_normal_fan_out":  # He et al. 2015, as torchvision's ResNet
        return generator.normal(0.0, math.sqrt(2.0 / fan_out), shape)
    limit = 1.0 / math.sqrt(fan_in)  # torch.nn.Linear's default
    return generator.uniform(-limit, limit, shape)
