"""One run on some devices: what the schedules of all modes ask of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from common.models.architectures import Architecture
from common.models.stages import Stage
from common.spec import Spec
from common.training import layers
from common.training.layers import Unit
from compare.judgement.scaling_laws import LinkModel
from compare.planning.costs import Costs, Device, Links, item_bytes, layer_names
from compare.planning.events import Kind, Task

SLOTS = {"sgd": 1, "adam": 2}
"""Values that an optimizer keeps for each weight."""


class PredictionError(ValueError):
    """The simulator cannot predict a run. The message says why."""


@dataclass(frozen=True)
class Case:
    """One run on some devices."""

    run: Spec
    architecture: Architecture
    costs: Costs
    devices: tuple[Device, ...]
    """One for each replica."""
    links: Links
    crowding: float
    """See `OfFramework`."""
    one_process: bool
    """Whether all replicas are in one process, so that they hand tensors on in memory."""
    train_examples: int
    cores: int
    """Of each device, as its layers were timed."""
    stages: tuple[Stage, ...] | None = None
    """Of a pipeline that is cut elsewhere than evenly."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of all layers, in the order of the forward pass."""
        return tuple(layer_names(self.architecture.layers))

    @cached_property
    def units(self) -> Mapping[str, Unit]:
        """By the name of a layer."""
        return _units(self.architecture)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.train_examples / self.run.global_batch_size)

    def link(self, kind: str) -> LinkModel:
        """What sends messages of this kind: of `Links`.

        Raises:
            Unpredicted: it was not measured.
        """
        model: LinkModel | None = getattr(self.links, "memory" if self.one_process else kind)
        if model is None:
            raise PredictionError(f"no link of kind {kind} is known")
        return model

    def passes(self, device: Device, names: Collection[str], batch_size: float, *, crowded: bool = True) -> tuple[float, float]:
        """(forward, backward) seconds on a device.

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
        """Outputs of layers that the backward pass of one example needs."""
        return self.num_bytes(sum(math.prod(self.units[name].output_shape) for name in names))

    def peak_bytes(self, weights: float, activations: float, copies: int = 0) -> float:
        """Peak of a process: itself, weights with their gradient and the optimizer's values, and kept outputs.

        Args:
            copies: of the weights, besides.
        """
        return self.costs.process_mib * 2**20 + (2 + copies + SLOTS[self.run.optimizer.name]) * weights + activations


@lru_cache
def _units(architecture: Architecture) -> Mapping[str, Unit]:
    return {name: unit for unit in layers.units(architecture) for name in unit.names}


@lru_cache
def _trainable_values(architecture: Architecture) -> int:
    return sum(parameter.size for parameter in architecture.parameters() if parameter.trainable)


@dataclass
class TaskGraph:
    """The tasks of a few steps of a run, as a schedule lays them out."""

    num_steps: int = 1
    """Of steps."""
    tasks: list[Task] = field(default_factory=list[Task])
    devices: list[str] = field(default_factory=list[str])
    """Those that are simulated. Others do the same at the same time."""
    held: dict[str, float] = field(default_factory=dict[str, float])
    """Peak bytes by device, for all devices."""
    last: dict[str, int] = field(default_factory=dict[str, int])
    """Of each device: the place of its last task. A device does its tasks in the order in which they are added."""

    def compute(self, device: Device, seconds: float, needs: Sequence[int] = (), kind: Kind = "compute") -> int:
        """Add a task of a device, behind its last one. Returns its place."""
        predecessors = [self.last[device.name]] if device.name in self.last else []
        if not predecessors:
            self.devices.append(device.name)
        self.tasks.append(Task(device.name, seconds, (*predecessors, *needs), kind))
        self.last[device.name] = len(self.tasks) - 1
        return self.last[device.name]

    def send(self, link: str, seconds: float, needs: Sequence[int]) -> int:
        """Add a message on a link. Returns its place."""
        self.tasks.append(Task(link, seconds, tuple(needs), "communication"))
        return len(self.tasks) - 1

    def begin(self, case: Case, device: Device) -> None:
        """Add what a device does before its passes: input, and what a step takes beside them."""
        images = case.run.global_batch_size if case.one_process else case.run.per_replica_batch_size
        self.compute(device, case.costs.input_image_seconds * images / device.speed, kind="input")
        self.compute(device, case.costs.overhead_seconds / device.speed)

    def update(self, case: Case, device: Device, fraction: float, needs: Sequence[int] = ()) -> int:
        """Add the optimizer's update of a fraction of the weights."""
        return self.compute(device, case.costs.update_seconds * fraction / device.speed, needs)


def one_per_speed(devices: Sequence[Device]) -> list[Device]:
    """One device of each speed: equal ones do the same at the same time."""
    return list({device.speed: device for device in reversed(devices)}.values())[::-1]


def numbered_devices(devices: Sequence[Device], number: int) -> tuple[Device, ...]:
    """So many devices, the first ones again where there are fewer, each with a name of its own."""
    repeated = (devices[index % len(devices)] for index in range(number))
    return tuple(device.model_copy(update={"name": f"{index}: {device.name}"}) for index, device in enumerate(repeated))


def device_rows(devices: Sequence[Device], length: int) -> Iterator[tuple[Device, ...]]:
    """The devices of each copy of a model that is divided over `length` of them; of equal copies the first."""
    known_speeds: set[tuple[float, ...]] = set()
    for start in range(0, len(devices), length):
        row = tuple(devices[start : start + length])
        if (speeds := tuple(device.speed for device in row)) not in known_speeds:
            known_speeds.add(speeds)
            yield row
