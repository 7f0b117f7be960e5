"""Times of a model's layers, each alone, forward and backward. They show which layers a training step spends its time in.

Layers that differ only in their names are measured once. Each gets a whole batch of random values, in the shape that it gets in
the model, and a random gradient of its output. The layers in front of it are left out. A residual sum is two sums: of its
branches' outputs, and of the branches' gradients. A concatenation is timed likewise, without its
branches.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.artifacts import atomic_files
from common.frozen import Frozen
from common.machine import heartbeat
from common.machine.interference import Meter
from common.machine.rates import DeviceRates
from common.models import architectures, work
from common.models.architectures import Architecture, Concatenation, Layer, ReLU, Residual
from common.spec import Spec, SpecError
from common.training.turns import Turns

WARM_UP_CALLS = 3
BLOCK_SECONDS = 0.01
"""Seconds of calls to an accelerator between two readings of the clock: a single call may take less than its launch."""
OWN_NAME = "layer"
"""Name of a model of a single layer. No builder belongs to it."""


@dataclass(frozen=True)
class UniqueLayer:
    """Layers of one model that differ only in their names."""

    layer: Layer
    """First of these layers. A Residual is its sum only, without body, shortcut and ReLU. A Concatenation has no branches."""
    input_shape: tuple[int, ...]
    """Input shape [H, W, C] or [features] of one example."""
    output_shape: tuple[int, ...]
    input_needs_gradient: bool
    """Whether the input needs a gradient."""
    names: tuple[str, ...]
    """Names of all these layers."""
    flops: int
    """Operations of one such layer for one example, forward and backward. See `common.models.work`."""
    values_moved: int
    weights: int
    """Number of trainable values of one such layer."""

    @property
    def kind(self) -> str:
        return type(self.layer).__name__

    @property
    def architecture(self) -> Architecture:
        """A model of this layer only."""
        return Architecture(OWN_NAME, self.input_shape[0], self.output_shape[-1], (self.layer,))

    def bytes_moved(self, spec: Spec) -> int:
        """Return the bytes that one such layer moves in a step, forward and backward.

        Weights are read twice, and their gradient is written.
        """
        return work.VALUE_BYTES[spec.precision] * (self.values_moved * spec.global_batch_size + 3 * self.weights)


class LayerTimes(Frozen):
    """Median wall times of one process, in seconds."""

    seconds: list[float]
    """Seconds of each unique layer, forward and backward."""
    whole_seconds: float
    """Seconds of the whole model, forward and backward, without loss and update."""
    device: str
    versions: dict[str, str]
    cores_of_others: float
    """Mean number of cores that other work used during the measurement."""
    device_rates: DeviceRates | None = None
    """Rates of an accelerator. None on a CPU."""


PassBuilder = Callable[[Spec, Architecture, tuple[int, ...], bool], Callable[[], object]]
"""Builder of a function that passes one batch through layers, forward and backward. It may return before the device is done.

Arguments: spec, layers, input shape of one example ([H, W, C] or [features]), whether the input needs a gradient."""


def unique_layers(architecture: Architecture) -> list[UniqueLayer]:
    """Return the unique layers of a model in the order of the forward pass. A Residual's sum follows its body and shortcut."""
    architectures.refuse_opaque(architecture, "layers")
    names_by_layer: dict[UniqueLayer, list[str]] = {}
    for unit in _walk(architecture.layers, (architecture.image_size, architecture.image_size, 3), input_needs_gradient=False):
        anonymous = dataclasses.replace(unit, layer=dataclasses.replace(unit.layer, name=OWN_NAME))
        names_by_layer.setdefault(anonymous, []).append(unit.layer.name)
    return [dataclasses.replace(unit, names=tuple(names)) for unit, names in names_by_layer.items()]


def is_residual_sum(architecture: Architecture) -> bool:
    """Return whether the model is a single residual sum, which has two inputs."""
    return architecture.name == OWN_NAME and isinstance(architecture.layers[0], Residual)


def concatenated_shapes(architecture: Architecture, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shapes of one example that a single concatenation joins. Empty for other models.

    Args:
        shape: [H, W, C] or [features] of the branches' input.
    """
    first = architecture.layers[0]
    if architecture.name != OWN_NAME or not isinstance(first, Concatenation):
        return []
    return [architectures.output_shape(branch, shape, OWN_NAME) for branch in first.branches]


def refuse_switches(switches: Mapping[str, Any], required: Mapping[str, Any]) -> None:
    """Refuse switches that make a step more than its layers.

    Args:
        switches: values of all switches in a run.
        required: values that such switches must have.
    """
    for name, value in required.items():
        if switches[name] != value:
            raise SpecError(f"Layers are timed with the switch {name} at {value}. Received: {switches[name]}. Leave it out.")


def measure(
    spec: Spec,
    architecture: Architecture,
    passes: PassBuilder,
    synchronize: Callable[[], None],
    calls: int,
    *,
    device: str,
    versions: dict[str, str],
    device_rates: Callable[[], DeviceRates | None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> LayerTimes:
    """Time every unique layer of a model, then the whole model. Each has a turn, if the process takes turns.

    Args:
        spec: its batch size, precision and switches count.
        calls: number of timed calls of each.
        device_rates: measures the rates of an accelerator. Called after all layers.
        clock: returns the time in seconds.
    """
    turns = Turns.of_parts(device)
    turns.wait_to_build()
    meter = Meter()

    def median(layers: Architecture, shape: tuple[int, ...], input_needs_gradient: bool) -> float:
        turns.wait_for_part(meter)
        heartbeat.count_sync_point()
        run_pass = passes(spec, layers, shape, input_needs_gradient)

        def seconds(times: int) -> float:
            synchronize()
            start = clock()
            for _ in range(times):
                run_pass()
            synchronize()
            return (clock() - start) / times

        warm_up_seconds = [seconds(1) for _ in range(WARM_UP_CALLS)][-1]
        block = 1 if device == "cpu" else math.ceil(BLOCK_SECONDS / max(warm_up_seconds, 1e-6))
        return statistics.median(seconds(block) for _ in range(calls))

    size = architecture.image_size
    with closing(turns):
        return LayerTimes(
            seconds=[
                median(unit.architecture, unit.input_shape, unit.input_needs_gradient) for unit in unique_layers(architecture)
            ],
            whole_seconds=median(architecture, (size, size, 3), False),
            device=device,
            versions=versions,
            cores_of_others=meter.cores_of_others(),
            device_rates=device_rates(),
        )


def save(times: LayerTimes, out: Path) -> None:
    atomic_files.write_atomically(out, times.model_dump_json(indent=1))


def _walk(layers: tuple[Layer, ...], shape: tuple[int, ...], *, input_needs_gradient: bool) -> Iterator[UniqueLayer]:
    for layer in layers:
        output_shape = architectures.output_shape((layer,), shape, layer.name)
        unit_shape, unit_layer = shape, layer
        output_needs_gradient = input_needs_gradient or work.has_weights(layer)
        if isinstance(layer, Residual | Concatenation):
            for branch in architectures.branches(layer):
                yield from _walk(branch, shape, input_needs_gradient=input_needs_gradient)
            join = layer
            if isinstance(layer, Residual):
                unit_shape, join, input_needs_gradient = (
                    output_shape,
                    dataclasses.replace(layer, body=(), shortcut=(), relu=False),
                    output_needs_gradient,
                )
            unit_layer, flops, weights = join, 0, 0
            values_moved = work.values_moved_by_join(
                join, unit_shape, input_needs_gradient=input_needs_gradient, output_needs_gradient=output_needs_gradient
            )
        else:
            cost = work.count_layers((layer,), shape, input_needs_gradient=input_needs_gradient)
            values_moved, flops, weights = cost.values_moved, cost.flops, cost.weights
        yield UniqueLayer(
            layer=unit_layer,
            input_shape=unit_shape,
            output_shape=output_shape,
            input_needs_gradient=input_needs_gradient,
            names=(),
            flops=flops,
            values_moved=values_moved,
            weights=weights,
        )
        input_needs_gradient = output_needs_gradient
        if isinstance(layer, Residual) and layer.relu:
            yield from _walk((ReLU(f"{layer.name}.out"),), output_shape, input_needs_gradient=input_needs_gradient)
        shape = output_shape
