"""Records that a simulation reads: costs of a model in one framework, devices and links of a machine."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Annotated

from pydantic import Field

from common.frozen import Finite, Moment
from common.machine.machine import Facts
from common.models import architectures
from common.models.architectures import Concatenation, Layer, Residual, StageFragment
from common.spec import Spec, SpecError
from compare.core.scaling_laws import LinkModel

Positive = Annotated[float, Field(gt=0)]


class Device(Finite):
    """Hardware of one replica: a share of the cores, or an accelerator."""

    name: str
    speed: Positive = 1.0
    """Speed relative to the device on which the layers were timed."""
    memory_mib: Positive | None = None
    """Memory in MiB. None: unknown."""


class Links(Finite):
    """Links by kind: a message of n bytes takes alpha + beta n seconds. None: not measured, or the framework has none."""

    all_reduce: LinkModel | None = None
    """A hop of a ring of processes."""
    send: LinkModel | None = None
    """A message from one process to another."""
    server: LinkModel | None = None
    """A push or a pull of one worker, with the server's part of the update."""
    memory: LinkModel | None = None
    """A message between replicas of one process."""


class FrameworkTimings(Finite):
    """Timings of a machine in one framework."""

    versions: dict[str, str]
    disturbed: bool = False
    """Whether other work took cores while it was measured."""
    crowding: Annotated[float, Field(ge=1)] = 1.0
    """Ratio of the time of a pass while every device computes to its time alone."""
    links: Links = Links()


class PlannedMachine(Finite):
    """The machine that is planned for. Users can edit its file."""

    schema_version: int = 1
    name: str
    facts: Facts = {}
    measured_at: Moment | None = None
    """Time of the measurement. None: the machine was not measured as it is now."""
    devices: Annotated[list[Device], Field(min_length=1, max_length=4096)]
    """Devices in the order of replicas. A plan has at most as many replicas."""
    cores_of_device: Annotated[int, Field(ge=1)] = 1
    frameworks: dict[str, FrameworkTimings]


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
