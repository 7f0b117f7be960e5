"""`python -m <twin> describe | models | run | trace | serve-trials | preprocess | score | infer | write | read`."""

from __future__ import annotations

import sys

from common.processes import entry
from common.training.inference import Inference
from jax_impl import rendezvous, switches


def load_twin() -> entry.Twin:
    """Import the framework and gather the twin's parts."""
    from jax_impl import device, formats, inference, layers, models, parallel, preprocess

    return entry.Twin(
        describe=device.describe,
        configure=device.configure,
        build=parallel.build,
        summarize=models.summarize,
        passes=layers.passes,
        scanning=preprocess.scanning,
        inference=Inference(inference.Predictor, formats.SUFFIXES, formats.write, formats.read),
        synchronize=device.synchronize,
        device_peak_memory_mib=device.peak_memory_mib,
        device_rates=device.rates,
        device=device.kind(),
        versions=device.versions(),
    )


if __name__ == "__main__":
    sys.exit(entry.main("jax", load_twin, rendezvous, switches))
