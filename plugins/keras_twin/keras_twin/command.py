"""The command line of the Keras twin on any backend."""

from __future__ import annotations

import os
import sys
from typing import cast

from common.processes import entry, one_process
from common.processes.twin import Switches

_NOT_NEEDED = ("IPython", "matplotlib", "pandas", "sklearn")
"""Packages that Keras imports where they are installed, for plots, wrappers and layers that a twin never uses."""


def main(name: str, switches: Switches) -> int:
    """Run one command of the twin on a backend. Returns the exit code.

    Args:
        name: `torch`, `tensorflow` or `jax`. Keras reads it once, when it is imported.
    """
    os.environ["KERAS_BACKEND"] = name
    return entry.main(f"keras-{name}", load_twin, one_process, switches)


def load_twin() -> entry.Twin:
    """Import Keras with its backend, and gather the twin's parts."""
    hidden = [name for name in _NOT_NEEDED if name not in sys.modules]
    modules = cast(dict[str, object], sys.modules)
    modules.update(dict.fromkeys(hidden))  # an import of None raises ImportError
    try:
        import keras  # noqa: F401
    finally:
        for name in hidden:
            del modules[name]
    from keras_twin import device, formats, inference, layers, models, private_api, trainer
    from keras_twin.backends import backend

    private_api.keep_float64()
    return entry.Twin.create(device, formats, inference, layers, models, trainer, backend.preprocess)
