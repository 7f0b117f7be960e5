"""Single layers, forward and backward: refused."""

from __future__ import annotations

from collections.abc import Callable

import keras

from common.models.architectures import Architecture
from common.spec import Spec, SpecError


def passes(spec: Spec, architecture: Architecture, shape: tuple[int, ...], needs_gradient: bool) -> Callable[[], object]:
    """Refuse. Keras differentiates a model within `train_step`, and has no call for the gradients of one layer."""
    name = keras.backend.backend()
    raise SpecError(
        f"layers times calls of a framework, and Keras has none for the gradients of one layer. Received: keras-{name}. "
        "Time the framework's own twin."
    )
