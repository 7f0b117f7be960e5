"""The time of each layer of a model alone, forward and backward: which layers a training step waits for.

Layers that differ only in their names are measured once. Each gets a whole batch of random values, in the shape that it gets in
the model, and a random gradient of its output. The layers in front of it are left out. A residual sum is two sums: of its
branches' outputs, and of the gradients that meet where the branches part. A concatenation is timed likewise, without its
branches.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
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

WARM_UP_CALLS = 3
BLOCK_SECONDS = 0.01
"""Of calls to an accelerator between two looks at the clock: one alone may take less than it takes to start it and to wait."""
OWN_NAME = "layer"
"""Of a model of one layer: neither the suite's nor a user's own, which bring builders."""


@dataclass(frozen=True)
class Unit:
    """Layers of one model that differ only in their names."""

    layer: Layer
    """The first of them; of a Residual its sum alone, without body, shortcut and ReLU. Of a Concatenation only the joining."""
    input_shape: tuple[int, ...]
    """[H, W, C] or [features] of one example."""
    output_shape: tuple[int, ...]
    input_needs_gradient: bool
    """Whether its input needs a gradient."""
    names: tuple[str, ...]
    """Of all of them."""
    flops: int
    """Of one such layer for one example, forward and backward. See `common.models.work`."""
    values_moved: int
    weights: int
    """Trainable values of one of them."""

    @property
    def kind(self) -> str:
        return type(self.layer).__name__

    @property
    def architecture(self) -> Architecture:
        """This layer alone, as a model."""
        return Architecture(OWN_NAME, self.input_shape[0], self.output_shape[-1], (self.layer,))

    def bytes_moved(self, spec: Spec) -> int:
        """Of one of them in a step, forward and backward; the weights are read twice and their gradient is written."""
        return work.VALUE_BYTES[spec.precision] * (self.values_moved * spec.global_batch_size + 3 * self.weights)


class LayerTimes(Frozen):
    """One process's medians, in seconds of wall time."""

    seconds: list[float]
    """Of each unit: one such layer, forward and backward."""
    whole_seconds: float
    """The whole model, forward and backward, with neither loss nor update."""
    device: str
    versions: dict[str, str]
    cores_of_others: float
    """That other work used meanwhile, on average."""
    device_rates: DeviceRates | None = None
    """Of an accelerator."""


PassBuilder = Callable[[Spec, Architecture, tuple[int, ...], bool], Callable[[], object]]
"""(spec, layers, an example's input shape: [H, W, C] or [features], whether the input needs a gradient) to a function. That
passes one batch of the spec through the layers, forward and backward. It may return before the device is done."""


def unique_layers(architecture: Architecture) -> list[Unit]:
    """What a model is made of, in the order of the forward pass; a Residual's sum comes behind its body and shortcut."""
    architectures.refuse_opaque(architecture, "layers")
    found: dict[Unit, list[str]] = {}
    for unit in _walk(architecture.layers, (architecture.image_size, architecture.image_size, 3), input_needs_gradient=False):
        anonymous = dataclasses.replace(unit, layer=dataclasses.replace(unit.layer, name=OWN_NAME))
        found.setdefault(anonymous, []).append(unit.layer.name)
    return [dataclasses.replace(unit, names=tuple(names)) for unit, names in found.items()]


def is_residual_sum(architecture: Architecture) -> bool:
    """Whether it is a residual sum alone, which has two inputs."""
    return architecture.name == OWN_NAME and isinstance(architecture.layers[0], Residual)


def concatenated_shapes(architecture: Architecture, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shapes of one example that a concatenation alone puts side by side. Of other models none.

    Args:
        shape: [H, W, C] or [features] in front of the branches.
    """
    first = architecture.layers[0]
    if architecture.name != OWN_NAME or not isinstance(first, Concatenation):
        return []
    return [architectures.output_shape(branch, shape, OWN_NAME) for branch in first.branches]


def refuse_switches(switches: Mapping[str, Any], required: Mapping[str, Any]) -> None:
    """Refuse switches that make a step more than its layers.

    Args:
        chosen: every switch as a run has it.
        only: of those that make a step something else, the value that does not.

    Raises:
        SpecError: names the switch.
    """
    for name, value in required.items():
        if switches[name] != value:
            raise SpecError(f"Layers are timed with framework_options.{name} {value}. Received: {switches[name]}. Leave it out.")


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
) -> LayerTimes:
    """Time every unit of a model, and the model as a whole, one after the other.

    Args:
        spec: of a run; its batch size, precision and switches count.
        calls: timed, of each.
        device_rates: of an accelerator, measured when all layers are.
    """

    def median(layers: Architecture, shape: tuple[int, ...], input_needs_gradient: bool) -> float:
        heartbeat.count_sync_point()
        run_pass = passes(spec, layers, shape, input_needs_gradient)

        def seconds(times: int) -> float:
            synchronize()
            start = time.perf_counter()
            for _ in range(times):
                run_pass()
            synchronize()
            return (time.perf_counter() - start) / times

        warm_up_seconds = [seconds(1) for _ in range(WARM_UP_CALLS)][-1]
        block = 1 if device == "cpu" else math.ceil(BLOCK_SECONDS / max(warm_up_seconds, 1e-6))
        return statistics.median(seconds(block) for _ in range(calls))

    meter = Meter()
    size = architecture.image_size
    return LayerTimes(
        seconds=[median(unit.architecture, unit.input_shape, unit.input_needs_gradient) for unit in unique_layers(architecture)],
        whole_seconds=median(architecture, (size, size, 3), False),
        device=device,
        versions=versions,
        cores_of_others=meter.cores_of_others(),
        device_rates=device_rates(),
    )


def save(times: LayerTimes, out: Path) -> None:
    atomic_files.write_atomically(out, times.model_dump_json(indent=1))


def _walk(layers: tuple[Layer, ...], shape: tuple[int, ...], *, input_needs_gradient: bool) -> Iterator[Unit]:
    for layer in layers:
        after = architectures.output_shape((layer,), shape, layer.name)
        given, alone = shape, layer
        learned_after = input_needs_gradient or work.is_learned(layer)
        if isinstance(layer, Residual | Concatenation):
            for branch in architectures.branches(layer):
                yield from _walk(branch, shape, input_needs_gradient=input_needs_gradient)
            join = layer
            if isinstance(layer, Residual):
                given, join, input_needs_gradient = after, dataclasses.replace(layer, body=(), shortcut=(), relu=False), learned_after
            alone, flops, weights = join, 0, 0
            moved = work.join_values_moved(join, given, learned_before=input_needs_gradient, learned_inside=learned_after)
        else:
            counted = work.count_layers((layer,), shape, learned_before=input_needs_gradient)
            moved, flops, weights = counted.values_moved, counted.flops, counted.weights
        yield Unit(
            layer=alone,
            input_shape=given,
            output_shape=after,
            input_needs_gradient=input_needs_gradient,
            names=(),
            flops=flops,
            values_moved=moved,
            weights=weights,
        )
        input_needs_gradient = learned_after
        if isinstance(layer, Residual) and layer.relu:
            yield from _walk((ReLU(f"{layer.name}.out"),), after, input_needs_gradient=input_needs_gradient)
        shape = after
