"""`python -m <twin> describe | models | run | trace | serve-trials | match | preprocess | score | infer | write | read`."""

from __future__ import annotations

import sys
from typing import cast

from common.processes import entry
from tensorflow_impl import rendezvous, switches

_NOT_NEEDED = ("IPython", "matplotlib", "pandas", "scipy", "sklearn")
"""Packages that TensorFlow and Keras import where they are installed, for plots, wrappers and layers that a twin never uses."""


def _import_framework() -> None:
    """Import TensorFlow as if `_NOT_NEEDED` were not installed, which saves a quarter of the time."""
    # Twin: PyTorch imports nothing of the kind.
    hidden = [name for name in _NOT_NEEDED if name not in sys.modules]
    modules = cast(dict[str, object], sys.modules)
    modules.update(dict.fromkeys(hidden))  # an import of None raises ImportError
    try:
        import tensorflow  # noqa: F401
    finally:
        for name in hidden:
            del modules[name]


def load_twin() -> entry.Twin:
    """Import the framework and gather the twin's parts."""
    _import_framework()
    from tensorflow_impl import device, exchanges, formats, inference, layers, match, models, parallel, preprocess

    return entry.Twin.create(device, formats, inference, layers, models, parallel, preprocess, match, exchanges)


if __name__ == "__main__":
    # Twin: a rank that ends at once would take away what others still fetch from it; its threads can wait.
    entry.exit_without_teardown(entry.main("tensorflow", load_twin, rendezvous, switches), ranks_too=False)
