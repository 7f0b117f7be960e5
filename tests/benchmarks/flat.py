"""Whether time and memory for an image stay the same as data grow: whole trainings, the input alone, and what is done before.

Part of `python -m tests.benchmarks.bars` (`--parts flat`). Made-up leaves of 32 px: simple_cnn on a thousand and on a hundred
thousand training images, cached and streaming, as many steps of each; the input alone, and reading in, opening, order and
shards on ten thousand and on a million files. `python -m tests.benchmarks.flat SOURCE CACHE` does the last for one of them,
in a process of its own.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import spec
from common.artifacts.schema import RunResult
from common.data import sources
from common.data.batches import BatchPlan
from common.machine import machine
from common.models import architectures
from compare.running.interleaving import turn
from tests.benchmarks.sealed import Runs

TRAINED = (1_000, 100_000)
"""Images of the training split."""
ENTRIES = (10_000, 1_000_000)
"""Files of all splits."""
MOST = 1.1
"""Times as long, or as much memory, for an image of the larger."""
BATCH_SIZE, STEPS, INPUT_STEPS = 64, 300, 3_000
SHARDS = 8
_TRAINING_PART = 0.7
_SETTINGS: dict[str, Any] = {"model": "simple_cnn", "global_batch_size": BATCH_SIZE, "epochs": None, "checkpoint_seconds": None}

Pairs = dict[str, list[tuple[float, float]]]
"""What: of each round, what an image of the smaller and of the larger takes."""


def source(images: int) -> str:
    return f"leaves:classes=10,images={images},size=32,seed=1"


def of_framework(framework: str, rounds: int, runs: Runs, cache: Path) -> Pairs:
    """Seconds for an image and peak memory of trainings and of the input alone, the sizes in turns."""
    found: Pairs = {}
    fields_of_all = {"paths": {"cache_dir": str(cache)}}
    trained = tuple(round(images / _TRAINING_PART) for images in TRAINED)
    for images in trained:
        _prepared(images, cache)  # or the first training would read them in, which takes memory of its own
    for what, sizes, loading, fields in (
        ("training, cached", trained, "cached", {"steps": STEPS}),
        ("training, streaming", trained, "streaming", {"steps": STEPS}),
        ("input alone, cached", ENTRIES, "cached", {"part": "input", "steps": INPUT_STEPS}),
    ):
        for number in range(rounds):
            turns = turn(sizes, number)
            told = {images: _run(runs, framework, images, loading, fields | fields_of_all) for images in turns}
            seconds, memory = ([measure(told[images]) for images in sizes] for measure in (_seconds_for_an_image, _memory))
            found.setdefault(f"{what}: seconds", []).append((seconds[0], seconds[1]))
            found.setdefault(f"{what}: memory", []).append((memory[0], memory[1]))
    return found


def of_the_suite(rounds: int, cache: Path) -> Pairs:
    """Seconds for an image of what is done before a training, and the memory that it takes, the sizes in turns.

    Args:
        rounds: of what is done each time; images are read in once, before.
        cache: folder, new.
    """
    few, many = ENTRIES
    found: Pairs = {}
    for number in range(1 + rounds):
        told = {images: _prepared(images, cache) for images in turn(ENTRIES, number + 1)}
        for what in told[few]:
            if (what == "reading in") == (number == 0):
                found.setdefault(what, []).append((told[few][what], told[many][what]))
    return found


def _run(runs: Runs, framework: str, images: int, loading: str, fields: dict[str, Any]) -> RunResult:
    data = {"source": source(images), "loading": loading, "duplicates": "allow"}
    return runs.ran(framework, _SETTINGS | fields | {"data": data})


def _seconds_for_an_image(result: RunResult) -> float:
    timed = [(epoch.timed_seconds, epoch.timed_images) for epoch in result.epochs]
    return sum(seconds for seconds, _ in timed) / sum(images for _, images in timed)


def _memory(result: RunResult) -> float:
    assert result.peak_memory_mib is not None
    return result.peak_memory_mib


def _prepared(images: int, cache: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.flat", source(images), str(cache)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main(wanted: str, cache: str) -> dict[str, float]:
    """Seconds for an image: of reading in (where that was not done before), opening, an epoch's order, its shards; memory."""
    data = {"source": wanted, "duplicates": "allow"}
    run = spec.build(_SETTINGS | {"steps": 1, "data": data, "paths": {"cache_dir": cache}})

    def load() -> sources.Dataset:
        return sources.load(run.data, seed=run.split_seed, cache_dir=run.paths.cache_dir)

    start = time.perf_counter()
    load()
    marks = [time.perf_counter()]
    dataset = load()
    marks.append(time.perf_counter())
    architecture = architectures.resolve(run.model, len(dataset.class_names), dataset.image_size)
    plan = BatchPlan(run.with_fields(epochs=1, steps=None), architecture, len(dataset.train))
    plan.draw(1)
    marks.append(time.perf_counter())
    for rank in range(SHARDS):
        plan.bounds(1, SHARDS, rank)
    marks.append(time.perf_counter())
    number = len(dataset.train) + len(dataset.validation) + len(dataset.test)
    names = ("reading in", "opening", "order", "shards")
    spent = [later - earlier for earlier, later in zip([start, *marks], marks, strict=False)]
    return {name: seconds / number for name, seconds in zip(names, spent, strict=True)} | {"memory": machine.peak_memory_mib()}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
