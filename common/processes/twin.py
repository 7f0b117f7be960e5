"""A framework's side of the processes of a run, and the exit codes that both share."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from common.artifacts.trained import Card, Trained
from common.data import sources
from common.data.batches import BatchPlan
from common.data.decoding.encoded import Encoded
from common.data.preprocessing import job
from common.data.preprocessing.sums import Sums
from common.machine.rates import DeviceRates
from common.matching.records import MatchModel, OpenRequest
from common.models import architectures, weights
from common.processes import exchanges
from common.spec import Spec
from common.training import inference, layers
from common.training.trainer import BaseTrainer

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_DATA_REFUSED = 0, 1, 2, 4
EXIT_TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True)
class Twin:
    """The parts of one framework. They exist once it is imported."""

    describe: Callable[[], dict[str, Any]]
    """Returns devices, possible modes and switches, ready for JSON."""
    configure: Callable[..., None]
    """Sets threads and devices, as `configure(spec, trials=1)`. Called once, before any tensor is created."""
    build: Callable[[Spec, architectures.Architecture, BatchPlan, sources.Dataset, weights.ReadOnlyWeights], BaseTrainer]
    """Builds the Trainer of the spec's mode."""
    summarize: Callable[[architectures.Architecture], dict[str, Any]]
    """Returns layers, output shapes and values of the model as the framework has built it, ready for JSON."""
    passes: layers.PassBuilder
    """Forward and backward passes of single layers."""
    scanning: job.Scanning
    """Starts the framework's own input workers, which sum the pixels of image files."""
    inference: inference.Inference
    synchronize: Callable[[], None]
    device_peak_memory_mib: Callable[[], list[float]]
    """Returns the peak memory of each visible device, in MiB. Empty on a CPU."""
    device_rates: Callable[[Spec], DeviceRates | None]
    """Returns the rates of the process's accelerator in the spec's arithmetic. None on a CPU."""
    device: str
    versions: dict[str, str]
    open_model: Callable[[OpenRequest], MatchModel] | None = None
    """Opens a user's own model for `match`. None: this twin opens none."""
    collectives: Callable[[], exchanges.Collectives] | None = None
    """Returns the collectives of its ranks. None: this twin cannot be planned for."""

    @classmethod
    def create(
        cls,
        device: DeviceModule,
        formats: FormatsModule,
        predicting: InferenceModule,
        layers: LayersModule,
        models: ModelsModule,
        parallel: ParallelModule,
        preprocess: PreprocessModule,
        match: MatchModule | None = None,
        messages: ExchangesModule | None = None,
    ) -> Twin:
        """Gather the parts from a twin's modules of these names. A twin without `match` opens no models of users.

        Args:
            messages: its module `exchanges`.
        """
        return cls(
            describe=device.describe,
            configure=device.configure,
            build=parallel.build,
            summarize=models.summarize,
            passes=layers.passes,
            scanning=preprocess.scanning,
            inference=inference.Inference(predicting.Predictor, formats.SUFFIXES, formats.write, formats.read),
            synchronize=device.synchronize,
            device_peak_memory_mib=device.peak_memory_mib,
            device_rates=device.rates,
            device=device.kind(),
            versions=device.versions(),
            open_model=None if match is None else match.RecordedModel,
            collectives=None if messages is None else messages.rank_collectives,
        )


# What each module of a twin must have. Pyright checks the twins' modules against it, where their `__main__` calls `create`.


class DeviceModule(Protocol):
    """A twin's module `device`: what this process computes on."""

    def kind(self) -> str:
        """Return `cpu`, `cuda` or `rocm`."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return devices, possible modes and switches, ready for JSON."""
        ...

    def versions(self) -> dict[str, str]:
        """Return the versions of the framework's packages."""
        ...

    def configure(self, spec: Spec, trials: int = 1) -> None:
        """Set threads and devices. Called once, before any tensor is created."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has no work left."""
        ...

    def peak_memory_mib(self) -> list[float]:
        """Return the peak memory of each visible device, in MiB. Empty on a CPU."""
        ...

    def rates(self, spec: Spec) -> DeviceRates | None:
        """Measure the rates of the process's accelerator in the spec's arithmetic. None on a CPU."""
        ...


class FormatsModule(Protocol):
    """A twin's module `formats`: files of weights in the framework's own format."""

    @property
    def SUFFIXES(self) -> tuple[str, ...]:  # noqa: N802  # a constant of the module
        """Suffixes of the framework's own files of weights."""
        ...

    def write(self, trained: Trained, path: Path) -> None:
        """Write the weights to such a file."""
        ...

    def read(self, card: Card, architecture: architectures.Architecture, path: Path) -> weights.Weights:
        """Read weights from such a file. Raises WeightsError if it does not fit."""
        ...


class InferenceModule(Protocol):
    """A twin's module `inference`: logits of a trained model."""

    @property
    def Predictor(self) -> Callable[[Trained], inference.SupportsLogits]:  # noqa: N802  # a class of the module
        """Class that loads a trained model."""
        ...


class LayersModule(Protocol):
    """A twin's module `layers`: passes of single layers."""

    def passes(
        self, spec: Spec, architecture: architectures.Architecture, shape: tuple[int, ...], needs_gradient: bool
    ) -> Callable[[], object]:
        """Build a function that passes one batch through layers, see `common.training.layers.PassBuilder`."""
        ...


class ModelsModule(Protocol):
    """A twin's module `models`: the CNNs in this framework."""

    def summarize(self, architecture: architectures.Architecture) -> dict[str, Any]:
        """Describe a built model: each layer's name, kind, output shape (NHWC) and number of values, ready for JSON."""
        ...


class ParallelModule(Protocol):
    """A twin's package `parallel`: the trainers of all modes."""

    def build(
        self,
        spec: Spec,
        architecture: architectures.Architecture,
        plan: BatchPlan,
        dataset: sources.Dataset,
        weights: weights.ReadOnlyWeights,
    ) -> BaseTrainer:
        """Build the trainer of the spec's mode."""
        ...


class PreprocessModule(Protocol):
    """A twin's module `preprocess`: input workers that sum the pixels of image files."""

    def scanning(self, encoded: Encoded, image_size: int, workers: int) -> AbstractContextManager[Callable[[], Sums]]:
        """Start the workers, and yield the function that scans. See `common.data.preprocessing.job.Scanning`."""
        ...


class MatchModule(Protocol):
    """A twin's module `match`: users' own models."""

    @property
    def RecordedModel(self) -> Callable[[OpenRequest], MatchModel]:  # noqa: N802  # a class of the module
        """Class that opens a user's own model."""
        ...


class ExchangesModule(Protocol):
    """A twin's module `exchanges`: messages between ranks, to be timed."""

    def rank_collectives(self) -> exchanges.Collectives:
        """Return the collectives of the ranks of a run."""
        ...


class Switches(Protocol):
    """A twin's module of that name: the switches that must be set before the framework is imported."""

    def prepare(self, spec: Spec) -> str:
        """Set what a process needs before it imports the framework. Returns the allocator in words."""
        ...


class Rendezvous(Protocol):
    """A twin's module of that name: what is known of ranks without importing the framework."""

    WAITING: str
    """Regular expression. If a stack frame's file name matches, the rank waits for the others."""

    def environments(self, spec: Spec) -> list[dict[str, str]]:
        """Return the variables that identify each rank of a run. Empty for a mode of one process."""
        ...

    def adopt(self) -> None:
        """Take this rank's identity from an outer launcher, if one has started it."""
        ...


@dataclass(frozen=True)
class TwinJob:
    """One command of a twin about one spec."""

    framework: str
    spec: Spec
    arguments: argparse.Namespace
    argv: list[str]
    """Arguments of `python -m <twin>`."""
    started: float
    """Start of the process, in seconds since 1970."""
    package: str | None = None
    """Package of the twin, which `python -m` runs. None: it is named after the framework."""
