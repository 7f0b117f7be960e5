"""A framework's side of the processes of a run, and the exit codes that both share."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from common.data import sources
from common.data.batches import Plan
from common.data.preprocessing import job
from common.machine.rates import DeviceRates
from common.matching.records import OpenRequest, MatchModel
from common.models import architectures, weights
from common.processes import exchanges
from common.spec import Spec
from common.training import inference, layers
from common.training.trainer import Trainer

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_DATA_REFUSED = 0, 1, 2, 4
EXIT_TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True)
class Twin:
    """The parts of one framework. They exist once it is imported."""

    describe: Callable[[], dict[str, Any]]
    """Devices, modes that are possible here, switches: JSON-ready."""
    configure: Callable[..., None]
    """(spec, trials=1): set threads and devices. Called once, before any tensor is made."""
    build: Callable[[Spec, architectures.Architecture, Plan, sources.Dataset, weights.GivenWeights], Trainer]
    """The Trainer of the spec's mode."""
    summarize: Callable[[architectures.Architecture], dict[str, Any]]
    """Layers, output shapes and values of the model as the framework has built it: JSON-ready."""
    passes: layers.PassBuilder
    """Single layers."""
    scanning: job.Scanning
    """Sums over the pixels of image files by the framework's own input workers."""
    inference: inference.Inference
    synchronize: Callable[[], None]
    device_peak_memory_mib: Callable[[], list[float]]
    """Of each device that the process sees; empty on a CPU."""
    device_rates: Callable[[Spec], DeviceRates | None]
    """Of the process's accelerator in the spec's arithmetic. None on a CPU."""
    device: str
    versions: dict[str, str]
    open_model: Callable[[OpenRequest], MatchModel] | None = None
    """A user's own model for `match`. None: this twin opens none."""
    ways: Callable[[], exchanges.Ways] | None = None
    """How its ranks send tensors. None: this twin cannot be planned for."""

    @classmethod
    def of(
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
            open_model=None if match is None else match.Model,
            ways=None if messages is None else messages.ways,
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
        """What tells each rank of a run who it is. Empty for a mode of one process."""
        ...

    def adopt(self) -> None:
        """Learn who this rank is from an outer launcher, if one has started it."""
        ...


@dataclass(frozen=True)
class Job:
    """One command of a twin about one spec."""

    framework: str
    spec: Spec
    arguments: argparse.Namespace
    words: list[str]
    """The command line behind `python -m <twin>`."""
    started: float
    """When the process was started, in seconds since 1970."""
    package: str | None = None
    """Of the twin. `python -m` runs it. None: it is named after the framework."""
