"""A framework's side of the processes of a run, and the exit codes that both share."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from common.data import sources
from common.data.batches import BatchPlan
from common.data.preprocessing import job
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
        device: Any,
        formats: Any,
        predicting: Any,
        layers: Any,
        models: Any,
        parallel: Any,
        preprocess: Any,
        match: Any = None,
        messages: Any = None,
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
