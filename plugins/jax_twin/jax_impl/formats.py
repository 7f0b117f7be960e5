"""Trained models in the framework's own file formats. Files hold weights only; reading one runs no code from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from common.artifacts.trained import Card, Trained
from common.models.architectures import Architecture
from common.models.weights import Weights, WeightsError
from jax_impl import models, weights

SUFFIXES: tuple[str, ...] = (".npz",)
"""Suffixes of the framework's own files. `jax.numpy.savez` writes them."""


def write(trained: Trained, path: Path) -> None:
    """Write the weights to a file that the framework itself can read."""
    model = models.build(trained.architecture, trained.card.precision)
    weights.load(model, trained.architecture, trained.weights)
    with path.open("wb") as file:
        np.savez(file, **weights.extract(model, trained.architecture))


def read(card: Card, architecture: Architecture, path: Path) -> Weights:
    """Read weights from a file that the framework wrote."""
    model = models.build(architecture, card.precision)
    try:
        # Twin: an .npz file may hold pickles. They are refused.
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
        if set(arrays) != {*model.parameters, *model.statistics}:
            raise ValueError(f"it has other names: {', '.join(sorted(arrays)[:3])}")
        weights.load(model, architecture, arrays)
    except Exception as error:  # a damaged file may raise any error
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise WeightsError(f"{path} holds no weights that fit {architecture.name}: {text}") from None
    return weights.extract(model, architecture)
