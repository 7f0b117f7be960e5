"""`python -m <twin> describe | models | run | trace | serve-trials | match | preprocess | score | infer | write | read`."""

from __future__ import annotations

from common.processes import entry
from pytorch_impl import rendezvous, switches


def load_twin() -> entry.Twin:
    """Import the framework and gather the twin's parts."""
    from pytorch_impl import device, exchanges, formats, inference, layers, match, models, parallel, preprocess

    return entry.Twin.create(device, formats, inference, layers, models, parallel, preprocess, match, exchanges)


if __name__ == "__main__":
    # Twin: what a rank has sent is on its way when its group is taken apart; gloo's threads may outlive the interpreter.
    entry.exit_without_teardown(entry.main("pytorch", load_twin, rendezvous, switches))
