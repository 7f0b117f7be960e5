"""`python -m <twin> describe | models | run | trace | serve-trials | match | preprocess | score | infer | write | read`."""

from __future__ import annotations

from common.processes import entry
from common.training.inference import Inference
from pytorch_impl import rendezvous, switches


def load_twin() -> entry.Twin:
    """Import the framework and gather the twin's parts."""
    from pytorch_impl import device, formats, inference, layers, match, models, parallel, preprocess

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
        open_model=match.Model,
    )


if __name__ == "__main__":
    # Twin: what a rank has sent is on its way when its group is taken apart; gloo's threads may outlive the interpreter.
    entry.leave(entry.main("pytorch", load_twin, rendezvous, switches))
