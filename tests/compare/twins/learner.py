"""A twin that really trains and needs no framework: softmax regression in NumPy, through the run that both twins share."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from common import spec
from common.artifacts.trained import Card, Trained
from common.data.batches import BatchPlan, Feed
from common.data.sources import Dataset
from common.models.architectures import Architecture
from common.models.weights import ReadOnlyWeights, Weights, WeightsError
from common.processes import entry
from common.spec import Spec
from common.training.inference import Inference
from common.training.trainer import Batch
from tests.compare.twins import deadly

Array = npt.NDArray[Any]

PAUSE_SECONDS = 0.004
"""Of a step, so that there is time to be killed in."""


class Learner:
    """A Trainer of one process."""

    implementation = "softmax regression"
    images_on_host = False
    shard = (0, 1)
    scores_together = False

    def __init__(
        self, spec: Spec, architecture: Architecture, plan: BatchPlan, dataset: Dataset, initial: ReadOnlyWeights
    ) -> None:
        self.devices = ["cpu"]
        self.threads: dict[str, int] = {}
        self.updates = 0
        self._plan, self._dataset, self._momentum = plan, dataset, spec.optimizer.momentum
        self._kernel = np.zeros((dataset.train.images[0].size, len(dataset.class_names)))
        self._buffer = np.zeros_like(self._kernel)

    def feed(self) -> Feed[Batch]:
        def start(epoch: int, steps: Sequence[int]) -> Iterator[Batch]:
            split, order, bounds = self._dataset.train, self._plan.draw(epoch).ids, self._plan.bounds(epoch, 1, 0)
            for step in steps:
                ids = order[slice(*bounds[step])]
                yield Batch(ids, split.images[ids], split.labels[ids], (), time.time())

        return start

    def compile(self, step_sizes: object, score_sizes: object) -> None: ...

    def compilations(self) -> int:
        return 0

    def finish_epoch(self) -> None: ...

    def memory_by_device(self) -> dict[str, float]:
        return {}

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        self.updates += 1
        time.sleep(PAUSE_SECONDS)
        inputs, probabilities = self._forward(batch.images)
        targets = np.eye(probabilities.shape[1])[batch.labels]
        self._buffer = self._momentum * self._buffer + inputs.T @ (probabilities - targets) / num_examples
        self._kernel = self._kernel - learning_rate * self._buffer
        loss = -np.log(probabilities[targets == 1]).sum() / num_examples
        return loss, (probabilities.argmax(1) == batch.labels).sum()

    def score(self, images: Array, labels: Array) -> tuple[Any, Array]:
        _, probabilities = self._forward(images)
        return -np.log(probabilities[np.arange(len(labels)), labels]).sum(), probabilities.argmax(1)

    def fetch(self, values: list[Any]) -> Array:
        return np.array(values)

    def all_reduce_shards(self, values: Array) -> Array:
        return values

    def all_reduce_world(self, values: Array) -> Array:
        return values

    def broadcast_statistics(self) -> None: ...

    def state(self) -> dict[str, Array]:
        return {"kernel": self._kernel, "buffer": self._buffer}

    def load_state(self, values: dict[str, Array], step: int) -> None:
        self._kernel, self._buffer, self.updates = values["kernel"], values["buffer"], step

    def report(self, test: object) -> dict[str, Any]:
        return {}

    def separate(self, batch: Batch, num_examples: int) -> None: ...

    def synchronize(self) -> None: ...

    def close(self) -> None: ...

    def weights(self) -> Weights:
        return {"logits.kernel": self._kernel, "logits.bias": np.zeros(self._kernel.shape[1])}

    def _forward(self, images: Array) -> tuple[Array, Array]:
        inputs = images.reshape(len(images), -1) / 255.0
        logits = inputs @ self._kernel
        raised = np.exp(logits - logits.max(1, keepdims=True))
        return inputs, raised / raised.sum(1, keepdims=True)


class Predictor:
    """What `Learner` has trained, or a `linear` model of anybody's."""

    def __init__(self, trained: Trained) -> None:
        self._kernel, self._bias = trained.weights["logits.kernel"], trained.weights["logits.bias"]

    def logits(self, images: Array) -> Array:
        return images.reshape(len(images), -1) / 255.0 @ self._kernel + self._bias


def write(trained: Trained, path: Path) -> None:
    np.savez(path.with_suffix(".npz"), allow_pickle=False, **trained.weights)
    path.with_suffix(".npz").replace(path)


def read(card: Card, architecture: Architecture, path: Path) -> Weights:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} holds no weights: {error}") from None


def inference(framework: str) -> Inference:
    return Inference(Predictor, (f".{framework}",), write, read)


def describe(framework: str) -> dict[str, Any]:
    def mode(name: str) -> dict[str, Any]:
        serial = name == "serial"
        reason = None if serial else "it has but one process"
        return {
            "available": serial, "reason": reason, "max_replicas": None, "resource": "device",
            "implementation": Learner.implementation, "batch_norm_statistics": ["per_replica"],
        }  # fmt: skip

    return {
        "framework": framework,
        "versions": {"numpy": np.__version__},
        "devices": [{"name": "cpu", "kind": "cpu"}],
        "modes": {name: mode(name) for name in spec.MODES.names()},
        "options": {},
    }


def main(framework: str) -> int:
    description = describe(framework)

    def load() -> entry.Twin:
        return entry.Twin(
            describe=lambda: description,
            configure=lambda run, trials=1: None,
            build=cast(Any, Learner),
            summarize=lambda architecture: {},
            passes=lambda *_: lambda: None,
            scanning=cast(Any, None),
            inference=inference(framework),
            synchronize=lambda: None,
            device_peak_memory_mib=list,
            device_rates=lambda run: None,
            device="cpu",
            versions=description["versions"],
        )

    deadly.arm()
    alone = SimpleNamespace(WAITING="", environments=lambda run: [], adopt=lambda: None)
    switches = SimpleNamespace(prepare=lambda run: "the system's default")
    return entry.main(framework, load, cast(Any, alone), cast(Any, switches))
