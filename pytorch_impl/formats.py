"""Trained models in the framework's own files: weights alone, and nothing in such a file is run when it is read."""

from __future__ import annotations

from pathlib import Path

import torch

from common.artifacts.trained import Card, Trained
from common.models.architectures import Architecture
from common.models.weights import Weights, WeightsError
from pytorch_impl import models, weights

SUFFIXES: tuple[str, ...] = (".pt", ".pth")
"""How the names of such files end."""


def write(trained: Trained, path: Path) -> None:
    """Write the weights as a file that the framework itself reads.

    Args:
        trained: what is written but for its card.
        path: ends with one of SUFFIXES.
    """
    model = models.build(trained.architecture, trained.card.precision)
    weights.load(model, trained.architecture, trained.weights)
    torch.save(model.state_dict(), path)


def read(card: Card, architecture: Architecture, path: Path) -> Weights:
    """Weights from a file that the framework has written.

    Args:
        card: whose precision they are taken in.
        architecture: that they must fit.
        path: ends with one of SUFFIXES.

    Raises:
        WeightsError: the file holds other things than these weights.
    """
    model = models.build(architecture, card.precision)
    try:
        # Twin: a .pt file is a pickle; with `weights_only` it makes tensors and plain containers, and nothing else.
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # whatever a torn file makes the reader stumble over
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise WeightsError(f"{path} holds no weights that fit {architecture.name}: {said}") from None
    return weights.extract(model, architecture)
