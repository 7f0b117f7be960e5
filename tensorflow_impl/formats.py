"""Trained models in the framework's own file formats. Files hold weights only; reading one runs no code from it."""

from __future__ import annotations

import warnings
from pathlib import Path

from common.artifacts.trained import Card, Trained
from common.models.architectures import Architecture
from common.models.weights import Weights, WeightsError
from tensorflow_impl import models, weights

SUFFIXES: tuple[str, ...] = (".weights.h5",)
"""Suffixes of the framework's own files."""


def write(trained: Trained, path: Path) -> None:
    """Write the weights to a file that the framework itself can read.

    Args:
        trained: the model; its card is not written.
        path: ends with one of SUFFIXES.
    """
    model = models.build(trained.architecture, trained.card.precision)
    weights.load(model, trained.architecture, trained.weights)
    model.save_weights(path)


def read(card: Card, architecture: Architecture, path: Path) -> Weights:
    """Read weights from a file that the framework wrote.

    Args:
        card: sets the precision of the weights.
        architecture: the weights must fit it.
        path: ends with one of SUFFIXES.
    """
    model = models.build(architecture, card.precision)
    # Twin: an .h5 file holds arrays and no code. A .keras archive also names classes to construct, so it is not read.
    try:
        with warnings.catch_warnings():
            # Twin: Keras only warns if the file lacks a layer, which would then keep its initial values.
            warnings.simplefilter("error", UserWarning)
            model.load_weights(path)
    except Exception as error:  # a damaged file may raise any error
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise WeightsError(f"{path} holds no weights that fit {architecture.name}: {text}") from None
    return weights.extract(model, architecture)
