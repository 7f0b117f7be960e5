"""Trained models in Keras's own file format. Files hold weights only; reading one runs no code from it."""

from __future__ import annotations

import warnings
from pathlib import Path

from common.artifacts.trained import Card, Trained
from common.models.architectures import Architecture
from common.models.weights import Weights, WeightsError
from keras_twin import models, weights

SUFFIXES: tuple[str, ...] = (".weights.h5",)
"""Suffixes of Keras's own files. All backends read them."""


def write(trained: Trained, path: Path) -> None:
    """Write the weights to a file that Keras itself can read."""
    model = models.build(trained.architecture, trained.card.precision, trained.card.scaling)
    weights.load(model, trained.architecture, trained.weights)
    model.save_weights(path)


def read(card: Card, architecture: Architecture, path: Path) -> Weights:
    """Read weights from a file that Keras wrote."""
    model = models.build(architecture, card.precision, card.scaling)
    try:
        with warnings.catch_warnings():
            # Keras only warns if the file lacks a layer, which would then keep its initial values.
            warnings.simplefilter("error", UserWarning)
            model.load_weights(path)
    except Exception as error:  # a damaged file may raise any error
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise WeightsError(f"{path} holds no weights that fit {architecture.name}: {text}") from None
    return weights.extract(model, architecture)
