"""The twin under test: its commands, its recordings, sentences on its faults, and the referee's answers to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common import spec
from common.data import sources
from common.data.sources import Dataset
from common.machine import machine
from common.models import architectures
from common.models.architectures import Architecture, BatchNorm, Dropout, Layer
from common.spec import Spec
from compare.cli import wording
from compare.proof import ladder
from compare.proof.certificate import Rung
from compare.proof.differences import Arrays
from compare.proof.recordings import Recorder, TraceRequest
from compare.proof.referee import network
from compare.proof.referee.layers import Array, Backward
from compare.proof.referee.network import Network, RefereeBatch
from compare.running import launch, options
from compare.running.contestants import Contestant
from compare.running.twins import Twins

MODEL_STEPS = {"simple_cnn": 10, "mini_xception": 4, "resnet18": 2, "two_path_cnn": 4}
"""Model: number of training steps that the referee repeats. Other built-in models have the same kinds of layers."""
TOLERANCE = 1e-12
"""Largest difference of float64 arrays that rounding explains, relative to the largest value."""
_MOST_SHOWN = 3

Faults = Iterator[str]


@dataclass
class TwinUnderTest:
    """An installed twin that is checked against the contract.

    Args:
        out: folder of specs, recordings, results and logs.
        progress: called with what is being done.
        model_steps: models of the checks `models` and `training`, and the number of training steps of each.
        optimizers: names of the optimizers that train.
        precisions: precisions of single steps.
    """

    twins: Twins
    """The twin alone."""
    out: Path
    progress: Callable[[str], None] = lambda text: None
    model_steps: Mapping[str, int] = field(default_factory=MODEL_STEPS.copy)
    optimizers: Sequence[str] = tuple(options.OPTIMIZERS)
    precisions: Sequence[str] = ("float32", "float64")
    _count: int = field(default=0)

    @property
    def name(self) -> str:
        return self.contestant.name

    @property
    def contestant(self) -> Contestant:
        return self.twins.contestants[0]

    @cached_property
    def description(self) -> dict[str, Any]:
        return self.twins.describe(self.name)

    def call(self, words: Sequence[str | Path]) -> tuple[int, str]:
        """Run one command of the twin. Return (exit code, output)."""
        return self.call_all([words])[0]

    def call_all(self, commands: Sequence[Sequence[str | Path]]) -> list[tuple[int, str]]:
        """Run commands of the twin, as many at once as there are cores. Return (exit code, output) of each."""
        calls: list[launch.Call] = []
        for words in commands:
            self._count += 1
            log = self.out / f"{self._count}.log"
            log.unlink(missing_ok=True)
            calls.append(launch.Call(self.contestant, [str(word) for word in words], log))
        waiting, codes = iter(calls), dict[Path, int]()
        launch.call_all(
            lambda: next(waiting, None), lambda ended, code: codes.update({ended.log: code}), machine.available_cores()
        )
        return [(codes[call.log], call.log.read_text(encoding="utf-8", errors="replace")) for call in calls]

    def start(self, words: Sequence[str], log: Path) -> launch.StartedProcess:
        """Start one command of the twin."""
        return launch.start(self.contestant, words, log=log)

    def write_spec(self, run_spec: Spec | str, name: str) -> Path:
        """Write a spec to a file of this name. Return its path."""
        path = self.out / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(run_spec if isinstance(run_spec, str) else run_spec.to_json(), encoding="utf-8")
        return path

    @cached_property
    def recorder(self) -> Recorder:
        return Recorder(self.twins, self.out, self.progress)

    def record(self, run_spec: Spec, label: str, *options: str, teacher: TraceRequest | None = None) -> Arrays:
        """Return the arrays of a recording of the twin."""
        return self.recorder.arrays(TraceRequest(label, self.name, run_spec, options, teacher))

    def run(self, run_spec: Spec, name: str, *options: str | Path) -> tuple[int, str, Path]:
        """Run a training. Return (exit code, output, folder)."""
        folder = self.out / name
        return *self.call(["run", self.write_spec(run_spec, f"{name}-spec"), "--out", folder, *options]), folder


def load_data_and_model(run_spec: Spec) -> tuple[Dataset, Architecture]:
    """Load the data of a spec, and build its model's architecture."""
    dataset = sources.load(run_spec.data, seed=run_spec.split_seed, cache_dir=run_spec.paths.cache_dir)
    return dataset, architectures.build(run_spec, len(dataset.class_names), dataset.image_size)


def spec_of(model: str = "simple_cnn", optimizer: str = "sgd", **fields: Any) -> Spec:
    values = {
        "model": model,
        "data": {"source": "digits", "limit": 100},
        "optimizer": options.OPTIMIZERS[optimizer],
        "augmentation": {"horizontal_flip": True, "shift_px": 2},
        "precision": "float64",
        "global_batch_size": ladder.BATCH_SIZE,
        "steps": 3,
    }
    return spec.build({**values, **fields})


def rung_faults(rungs: Sequence[Rung]) -> Faults:
    for rung in rungs:
        if rung.status == "failed":
            difference, where = f"{rung.max_relative_difference:.1e}", f" ({rung.where})" if rung.where else ""
            yield f"{rung.name} differ by {difference}, tolerance {rung.tolerance:.0e}{where}"


def last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return wording.one_line(lines[-1]) if lines else "it printed nothing"


def ending(code: int, output: str) -> str:
    """Describe how a command ended, with the last line of its output."""
    return f"{launch.describe_exit(code)}: {last_line(output)}"


def list_some(names: Sequence[str]) -> str:
    return wording.listed(names, _MOST_SHOWN)


class _Evaluation(Network):
    """The referee's network in evaluation mode."""

    def _layer(self, layer: Layer, x: Array) -> tuple[Array, Backward]:
        back: Backward = lambda dy: (dy, {})  # noqa: E731  nobody goes back
        if isinstance(layer, Dropout):
            return x, back
        if isinstance(layer, BatchNorm):
            mean, variance, gamma, beta = (self._array(layer, role) for role in ("mean", "variance", "gamma", "beta"))
            return (x - mean) / np.sqrt(variance + layer.epsilon) * gamma + beta, back
        return super()._layer(layer, x)


def expected_logits(architecture: Architecture, arrays: Arrays, images: npt.NDArray[Any]) -> Array:
    """Return the referee's logits in evaluation mode for pixels without normalisation."""
    pixels = network.scaled(images, [0.0] * 3, [1.0] * 3, np.float64)
    evaluation = _Evaluation(arrays, RefereeBatch(pixels, np.zeros(len(images), np.int64)))
    return evaluation.through(architecture.layers, pixels)[0]
