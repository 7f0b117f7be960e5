"""The costs of a model in one framework, and one run of it on some devices, as the schedules of all modes read it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from pydantic import Field

from common.frozen import Finite
from common.models import architectures
from common.models.architectures import Architecture, Concatenation, Layer, Residual, StageFragment
from common.models.stages import Stage
from common.spec import Spec, SpecError
from common.training import layers
from common.training.layers import UniqueLayer
from compare.statistics.scaling_laws import LinkModel
from compare.tools.planning.events import Kind, Task
from compare.tools.planning.planned_machine import Device, Links

SLOTS = {"sgd": 1, "adam": 2}
"""Number of values that an optimizer keeps for each weight."""


class PredictionError(ValueError):
    """The simulator cannot predict a run. The message says why."""


class ModelTimes(Finite):
    """Seconds of the layers of a model, forward and backward, at one batch size."""

    cores: int
    batch_size: int
    seconds: dict[str, float]
    """Seconds by layer, see `layer_names`."""
    whole_seconds: float
    """Seconds of the model as a whole."""

    @cached_property
    def scale(self) -> float:
        """Ratio of the seconds of the whole model to the sum over its layers."""
        return self.whole_seconds / sum(self.seconds.values())


class Costs(Finite):
    """One model in one framework, on the device of speed 1."""

    times: list[ModelTimes]
    forward_fraction: float = Field(ge=0, le=1)
    """Share of the forward pass in a forward and backward pass."""
    update_seconds: float
    """Seconds of the optimizer, for all weights."""
    overhead_seconds: float
    """Seconds of a serial step beyond passes, update and input."""
    input_image_seconds: float
    process_mib: float
    """Memory of a process before it holds the model, in MiB."""
    disturbed: bool = False
    """Whether other work took cores during the measurement."""

    def seconds(self, names: Collection[str], batch_size: float, cores: int) -> tuple[float, float]:
        """Return (forward, backward) seconds of some layers.

        They are linear between the measured batch sizes, and beyond the outer two.
        """
        known = sorted((entry for entry in self.times if entry.cores == cores), key=lambda entry: entry.batch_size)
        if not known:
            raise SpecError(f"Layers were timed with {sorted({entry.cores for entry in self.times})} cores. Received: {cores}.")
        points = [(entry.batch_size, sum(entry.seconds[name] for name in names) * entry.scale) for entry in known]
        total = _interpolate(points, batch_size)
        return self.forward_fraction * total, (1.0 - self.forward_fraction) * total


def _interpolate(points: Sequence[tuple[float, float]], batch_size: float) -> float:
    if len(points) == 1:
        return points[0][1] * batch_size / points[0][0]
    pairs = list(itertools.pairwise(points))
    (x0, y0), (x1, y1) = next((pair for pair in pairs if batch_size <= pair[1][0]), pairs[-1])
    if batch_size < x0 and y0 > y1:
        return y0  # noise: a smaller batch does not take longer
    return max(y0 + (y1 - y0) * (batch_size - x0) / (x1 - x0), 0.0)


def layer_names(layers: Sequence[Layer]) -> Iterator[str]:
    """Yield the names of layers without branches, residual sums and concatenations, in the order of the forward pass.

    They are those of `common.training.layers.units`: each time belongs to one name.
    """
    for layer in layers:
        if not isinstance(layer, Residual | Concatenation | StageFragment):
            yield layer.name
            continue
        for branch in architectures.branches(layer):
            yield from layer_names(branch)
        join = layer.join if isinstance(layer, StageFragment) else layer
        if join is not None:
            yield join.name
            if isinstance(join, Residual) and join.relu:
                yield f"{join.name}.out"


def item_bytes(run: Spec) -> int:
    """Return the bytes of one value."""
    return {"float32": 4, "float64": 8}[run.precision]


@dataclass(frozen=True)
class Case:
    """One run on some devices."""

    run: Spec
    architecture: Architecture
    costs: Costs
    devices: tuple[Device, ...]
    """The device of each replica."""
    links: Links
    crowding: float
    """Slowdown while all devices compute, see `FrameworkTimings`."""
    one_process: bool
    """Whether all replicas are in one process, so that they hand tensors on in memory."""
    train_examples: int
    cores: int
    """Number of cores of each device that timed its layers."""
    stages: tuple[Stage, ...] | None = None
    """Stages of a pipeline. None: it is cut evenly."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all layers, in the order of the forward pass."""
        return tuple(layer_names(self.architecture.layers))

    @cached_property
    def units(self) -> Mapping[str, UniqueLayer]:
        """Units by the name of a layer."""
        return _units(self.architecture)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.train_examples / self.run.global_batch_size)

    def link(self, kind: str) -> LinkModel:
        """Return the link for messages of a kind, a field of `Links`.

        Raises:
            PredictionError: the link was not measured.
        """
        model: LinkModel | None = getattr(self.links, "memory" if self.one_process else kind)
        if model is None:
            raise PredictionError(f"no link of kind {kind} is known")
        return model

    def passes(self, device: Device, names: Collection[str], batch_size: float, *, crowded: bool = True) -> tuple[float, float]:
        """Return (forward, backward) seconds on a device.

        Args:
            crowded: whether all other devices compute at the same time.
        """
        factor = (self.crowding if crowded and len(self.devices) > 1 else 1.0) / device.speed
        forward, backward = self.costs.seconds(names, batch_size, self.cores)
        return factor * forward, factor * backward

    def num_bytes(self, values: float) -> float:
        return item_bytes(self.run) * values

    def weight_bytes(self, architecture: Architecture | None = None) -> float:
        return self.num_bytes(_trainable_values(architecture or self.architecture))

    def activation_bytes(self, names: Collection[str]) -> float:
        """Return the bytes of the layers' outputs that the backward pass of one example needs."""
        return self.num_bytes(sum(math.prod(self.units[name].output_shape) for name in names))

    def peak_bytes(self, weights: float, activations: float, copies: int = 0) -> float:
        """Return the peak bytes of a process: itself, weights with gradients and optimizer values, and activations.

        Args:
            weights: bytes of the weights.
            activations: bytes of the outputs that are kept for the backward pass.
            copies: number of further copies of the weights.
        """
        return self.costs.process_mib * 2**20 + (2 + copies + SLOTS[self.run.optimizer.name]) * weights + activations


@lru_cache
def _units(architecture: Architecture) -> Mapping[str, UniqueLayer]:
    return {name: unit for unit in layers.unique_layers(architecture) for name in unit.names}


@lru_cache
def _trainable_values(architecture: Architecture) -> int:
    return sum(parameter.size for parameter in architecture.parameters() if parameter.trainable)


@dataclass
class TaskGraph:
    """The tasks of a few steps of a run, in the order of a schedule."""

    num_steps: int = 1
    """Number of steps."""
    tasks: list[Task] = field(default_factory=list[Task])
    devices: list[str] = field(default_factory=list[str])
    """Names of the simulated devices. Others do the same at the same time."""
    peak_bytes: dict[str, float] = field(default_factory=dict[str, float])
    """Peak bytes of every device."""
    last_tasks: dict[str, int] = field(default_factory=dict[str, int])
    """Index of the last task of each device. A device does its tasks in the order that they are added."""

    def compute(self, device: Device, seconds: float, needs: Sequence[int] = (), kind: Kind = "compute") -> int:
        """Add a task of a device, behind its last one. Returns its index."""
        predecessors = [self.last_tasks[device.name]] if device.name in self.last_tasks else []
        if not predecessors:
            self.devices.append(device.name)
        self.tasks.append(Task(device.name, seconds, (*predecessors, *needs), kind))
        self.last_tasks[device.name] = len(self.tasks) - 1
        return self.last_tasks[device.name]

    def send(self, link: str, seconds: float, needs: Sequence[int]) -> int:
        """Add a message on a link. Returns its index."""
        self.tasks.append(Task(link, seconds, tuple(needs), "communication"))
        return len(self.tasks) - 1

    def begin(self, case: Case, device: Device) -> None:
        """Add the tasks of a device before its passes: input and overhead."""
        images = case.run.global_batch_size if case.one_process else case.run.per_replica_batch_size
        self.compute(device, case.costs.input_image_seconds * images / device.speed, kind="input")
        self.compute(device, case.costs.overhead_seconds / device.speed)

    def update(self, case: Case, device: Device, fraction: float, needs: Sequence[int] = ()) -> int:
        """Add the optimizer's update of a fraction of the weights."""
        return self.compute(device, case.costs.update_seconds * fraction / device.speed, needs)


def one_per_speed(devices: Sequence[Device]) -> list[Device]:
    """Return one device of each speed: equal ones do the same at the same time."""
    return list({device.speed: device for device in reversed(devices)}.values())[::-1]


def numbered_devices(devices: Sequence[Device], number: int) -> tuple[Device, ...]:
    """Return a number of devices with unique names. They repeat where there are fewer."""
    repeated = (devices[index % len(devices)] for index in range(number))
    return tuple(device.model_copy(update={"name": f"{index}: {device.name}"}) for index, device in enumerate(repeated))


def device_rows(devices: Sequence[Device], length: int) -> Iterator[tuple[Device, ...]]:
    """Yield the devices of each copy of a model that is divided over `length` devices; of equal copies the first."""
    known_speeds: set[tuple[float, ...]] = set()
    for start in range(0, len(devices), length):
        row = tuple(devices[start : start + length])
        if (speeds := tuple(device.speed for device in row)) not in known_speeds:
            known_speeds.add(speeds)
            yield row
