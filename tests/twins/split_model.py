"""`python -m tests.twins.split_model FRAMEWORK DIR [ENVIRONMENT ...]`: the made network divided over three replicas.

It says what each of them holds. A program of its own, since the replicas are ranks in one framework and devices of a process in
the other. Each rank has an environment, as JSON.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.models.sharding import shard
from common.spec import Spec
from convtwins.models import Architecture, BatchNorm, Conv, Dense, Flatten, ReLU
from tests.twins import made
from tests.twins.adapters import Twin

REPLICAS = 3
COUNT = 7
COUNTS = (9, 7, 3)
"""Examples of the steps of sharded replicas: as many for each, unevenly many, and one for each."""
ARCHITECTURE = made.network()
"""Of 6, 5 and 4 channels: only some of its layers divide evenly."""
PADDED = Architecture(
    "padded",
    made.SIZE_PX,
    made.CLASSES,
    (
        Conv("conv", 3, 6, 3, 2, ((1, 1), (1, 1)), bias=False),
        BatchNorm("bn", 6),
        ReLU("relu"),
        Flatten("flatten"),
        Dense("logits", 6 * (made.SIZE_PX // 2) ** 2, made.CLASSES),
    ),
)
"""TensorFlow has kernels in float32 that pad and convolve at once."""
SHARDED: dict[str, Any] = {
    "mode": "sharded_data_parallel",
    "batch_norm_statistics": "synchronised",
    "communication": {"bucket_mib": 0.001},
}
"""Of several units in PyTorch: each gathers its own layers."""


def settings() -> Spec:
    return made.settings(mode="tensor_parallel", replicas=REPLICAS)


def main(framework: str, folder: Path) -> None:
    """Train the network in both modes; write a JSON file for each process."""
    twin = Twin(framework)
    twin.device.configure(settings())
    trainer = made.trainer(twin, ARCHITECTURE, mode="tensor_parallel", replicas=REPLICAS)
    report = {"tensor_parallel": split(twin, trainer), "sharded_data_parallel": sharded(twin)}
    report["padded"] = scored(made.trainer(twin, PADDED, replicas=REPLICAS, **SHARDED | {"precision": "float32"}))
    if framework == "pytorch":  # only torch has this switch
        options = {"memory_format": "channels_last"}
        other = made.trainer(twin, ARCHITECTURE, mode="tensor_parallel", replicas=REPLICAS, framework_options=options)
        laid_out: list[bool] = []
        for module in other._model.modules():
            if isinstance(module, twin.channels._Split):
                module.register_forward_hook(
                    lambda _, given, whole: laid_out.append(twin.models.to_memory_format(whole, "channels_last") is whole)
                )
        report["channels_last"] = split(twin, other)
        report["channels_last"]["laid_out"] = laid_out
    trainer.close()
    (folder / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(report), encoding="utf-8")


def split(twin: Twin, trainer: Any) -> dict[str, Any]:
    """Load weights, train one step, load other weights."""
    data = made.dataset(ARCHITECTURE).train
    first = trainer.weights()
    batch = twin.batch(data.images[:COUNT], data.labels[:COUNT], made.masks(ARCHITECTURE, COUNT))
    loss, _ = trainer.train_step(batch, COUNT, 0.05)
    trained, other = trainer.weights(), made.values(ARCHITECTURE, key=6)
    trainer.load_weights(other)
    return {
        "came_back": equal(first, made.values(ARCHITECTURE)) and equal(trainer.weights(), other),
        "num_values": trainer.num_values(),
        "held": held(twin.framework, trainer),
        "loss": float(trainer.fetch([loss])[0]),
        "trained": {name: array.tolist() for name, array in trained.items()},
        "memory": trainer.memory_by_device(),
        "bytes_per_example": twin.channels.bytes_per_example(trainer._model),
    }


def sharded(twin: Twin) -> dict[str, Any]:
    """Score first, then train, and go on from a state that was lost before the last step."""
    trainer = made.trainer(twin, ARCHITECTURE, replicas=REPLICAS, **SHARDED)
    data, (index, number) = made.dataset(ARCHITECTURE).train, trainer.shard
    first, losses = trainer.weights(), []
    trainer.score(data.images[:2], data.labels[:2])
    for step, count in enumerate(COUNTS):
        if step == len(COUNTS) - 1:
            kept = {name: array.copy() for name, array in trainer.state().items()}
            lost = {name: np.zeros_like(array) for name, array in kept.items()}
            trainer.load_state(lost, 0)
            trainer.load_state(kept, step)
        own = slice(*shard(count, number, index))
        masks = tuple(mask[own] for mask in made.masks(ARCHITECTURE, count))
        loss, _ = trainer.train_step(twin.batch(data.images[:count][own], data.labels[:count][own], masks), count, 0.05)
        losses.append(float(trainer.all_reduce_shards(trainer.fetch([loss]).astype(np.float64))[0]))
    trained, slots, other = trainer.weights(), trainer.slots(), made.values(ARCHITECTURE, key=6)
    trainer.load_weights(other)
    report = trainer.report(data)
    two = twin.batch(data.images[:2], data.labels[:2], made.masks(ARCHITECTURE, 2))
    found = {
        "came_back": equal(first, made.values(ARCHITECTURE)) and equal(trainer.weights(), other),
        "num_values": trainer.num_values(),
        "held": held(twin.framework, trainer),
        "memory": trainer.memory_by_device(),
        "losses": losses,
        "logits": trainer.logits(two, training=False).shape,
        "trained": {name: array.tolist() for name, array in trained.items()},
        "buffer": {name: array.tolist() for name, array in slots["buffer"].items()},
        "bytes": report["bytes_per_step_by_kind"],
        "bytes_in_all": report["bytes_per_step"],
    }
    if twin.framework == "pytorch":
        from tests.planted.defects_pytorch import padding_is_counted

        with pytest.MonkeyPatch.context() as patch:
            padding_is_counted(patch)
            found["num_values_with_padding"] = trainer.num_values()
    return found


def scored(trainer: Any) -> float:
    """The loss of a few examples of the padded network."""
    data = made.dataset(PADDED).train
    return float(trainer.fetch([trainer.score(data.images[:COUNT], data.labels[:COUNT])[0]])[0])


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


def fork(framework: str, folder: Path, environments: list[dict[str, str]]) -> None:
    """Start the ranks as forks of one process: what takes them longest is to import the framework, of which nothing runs yet.

    Raises:
        SystemExit: one of them has failed. The others end with it.
    """
    Twin(framework)
    ranks: list[int] = []
    for environment in environments:
        if not (rank := os.fork()):
            os.environ |= environment
            failed = True
            try:
                main(framework, folder)
                failed = False
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(failed)  # no exit handlers of the process that it is a copy of
        ranks.append(rank)
    while ranks:
        ended, status = os.wait()
        ranks.remove(ended)
        if status:
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
            raise SystemExit(f"a rank ended with {status}")


if __name__ == "__main__":
    environments = [json.loads(each) for each in sys.argv[3:]]
    if environments:
        fork(sys.argv[1], Path(sys.argv[2]), environments)
    else:
        main(sys.argv[1], Path(sys.argv[2]))
