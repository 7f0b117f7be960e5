"""`python -m tests.twins.split_model FRAMEWORK DIR`: the made network split over three replicas, and what each of them holds.

A program of its own, since the replicas are ranks in one framework and devices of a process in the other.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from common.spec import Spec
from tests.twins import made
from tests.twins.adapters import Twin

REPLICAS = 3
COUNT = 7
ARCHITECTURE = made.network()
"""Of 6, 5 and 4 channels: only some of its layers divide evenly."""


def settings() -> Spec:
    return made.settings(mode="tensor_parallel", replicas=REPLICAS)


def main(framework: str, folder: Path) -> None:
    """Load weights, train one step, load other weights; write a JSON file for each process."""
    twin = Twin(framework)
    twin.device.configure(settings())
    trainer = made.trainer(twin, ARCHITECTURE, mode="tensor_parallel", replicas=REPLICAS)
    data = made.dataset(ARCHITECTURE).train
    first = trainer.weights()
    batch = twin.batch(data.images[:COUNT], data.labels[:COUNT], made.masks(ARCHITECTURE, COUNT))
    loss, _ = trainer.train_step(batch, COUNT, 0.05)
    trained, other = trainer.weights(), made.values(ARCHITECTURE, key=6)
    trainer.load_weights(other)
    report = {
        "came_back": equal(first, made.values(ARCHITECTURE)) and equal(trainer.weights(), other),
        "num_values": trainer.num_values(),
        "held": held(framework, trainer),
        "loss": float(trainer.fetch([loss])[0]),
        "trained": {name: array.tolist() for name, array in trained.items()},
        "bytes_per_example": twin.channels.bytes_per_example(trainer._model),
    }
    trainer.close()
    (folder / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(report), encoding="utf-8")


def equal(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


def held(framework: str, trainer: Any) -> dict[str, tuple[int, int]]:
    """Where: (trainable values, values of the optimizer's buffers)."""
    found: dict[str, tuple[int, int]] = {}
    optimizer = trainer._optimizer
    for variable, buffer in zip(optimizer._variables, optimizer._buffers, strict=True):
        places = [f"rank {os.environ['RANK']}"] * 2 if framework == "pytorch" else [variable.device, buffer.device]
        for position, (place, array) in enumerate(zip(places, (variable, buffer), strict=True)):
            counts = list(found.get(place, (0, 0)))
            counts[position] += int(np.prod(array.shape))
            found[place] = (counts[0], counts[1])
    return found


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
