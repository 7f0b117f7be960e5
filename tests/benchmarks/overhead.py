"""What the suite's own loop takes for each step, while the framework computes nothing.

`python -m tests.benchmarks.overhead --framework pytorch` prints it, in microseconds, and with `--step-seconds` how much of the
pace of many cores it leaves. The run is the suite's own. Only the framework's step and the input are replaced: by results and a
batch that are there already. So what is left is Python between two steps of the framework, in the training thread, which no
core beside it can take over. Processor time of that thread counts, so other work on the machine hardly disturbs it. Input and
the ends of epochs are not in it.
"""

import argparse
import contextlib
import importlib
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import spec
from common.data import sources
from common.data.batches import BatchPlan
from common.models import architectures, weights
from common.training.epoch import Epoch
from common.training.loop import TrainingRun
from common.training.timing import Stopwatch
from tests.benchmarks import flat

MOST_MICROSECONDS = 50.0
CORES = (64, 256)
STEPS, TIMED = 1_000, 900


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", required=True)
    parser.add_argument("--images", type=int, default=flat.TRAINED[0], help="of the training split")
    parser.add_argument("--step-seconds", type=float, help="of a training step on one core; shows what the loop costs on many")
    arguments = parser.parse_args()
    alone = microseconds(arguments.framework, arguments.images)
    found = {"microseconds": alone}
    if arguments.step_seconds:
        found |= {f"efficiency on {cores} cores": efficiency(alone / 1e6, arguments.step_seconds, cores) for cores in CORES}
    print(json.dumps(found))


def efficiency(alone: float, divided: float, cores: int) -> float:
    """Part of `cores` times the pace of one core, after Amdahl: what runs alone lasts, the rest is divided without loss.

    Args:
        alone, divided: seconds on one core.
    """
    return (alone + divided) / (alone + divided / cores) / cores


class _Enough(Exception):
    """All steps that are timed are done."""


def microseconds(framework: str, images: int) -> float:
    """The mean over the last steps. What goes before them compiles.

    Args:
        images: of the training split.
    """
    data = {"source": flat.source(round(images / 0.7)), "duplicates": "allow"}
    what = spec.build({"model": "simple_cnn", "global_batch_size": 1, "data": data, "steps": STEPS})
    dataset = sources.load(what.data, seed=what.seed)
    architecture = architectures.build(what, len(dataset.class_names), dataset.image_size)
    plan = BatchPlan(what, architecture, len(dataset.train))
    parallel = importlib.import_module(f"{framework}_impl.parallel")
    device = importlib.import_module(f"{framework}_impl.device")
    device.configure(what)
    trainer = parallel.build(what, architecture, plan, dataset, weights.initial(architecture, what.seed))
    (batch,) = itertools.islice(trainer.feed()(1, [0]), 1)
    result = trainer.train_step(batch, 1, 0.0)
    stamps: list[float] = []

    def step(*arguments: Any) -> Any:
        stamps.append(time.thread_time())
        if len(stamps) == STEPS:
            raise _Enough
        return result

    setattr(trainer, {"pytorch": "_train_step", "tensorflow": "_call"}[framework], step)

    def feed(epoch: int, steps: Sequence[int]) -> Iterator[Any]:
        return itertools.repeat(batch, len(steps))

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(_Enough):
        run = TrainingRun(framework, what, {}, Path(folder), 0, Stopwatch(device.synchronize))
        run.train_epoch(Epoch(1, trainer, plan, dataset, feed, is_first=True))
    return 1e6 * (stamps[-1] - stamps[-1 - TIMED]) / TIMED


if __name__ == "__main__":
    main()
