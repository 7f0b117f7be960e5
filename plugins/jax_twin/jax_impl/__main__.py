"""`python -m <twin> describe | models | run | trace | serve-trials | preprocess | score | infer | write | read`."""

from __future__ import annotations

import sys

from common.processes import entry, one_process
from jax_impl import switches


def load_twin() -> entry.Twin:
    """Import the framework and gather the twin's parts."""
    from jax_impl import device, formats, inference, layers, models, parallel, preprocess

    return entry.Twin.create(device, formats, inference, layers, models, parallel, preprocess)


if __name__ == "__main__":
    sys.exit(entry.main("jax", load_twin, one_process, switches))
