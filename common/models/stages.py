"""Pipelines without a framework: which layers a stage has, and which micro-batch it works on when.

A stage is an `Architecture` of its own layers, so that whatever reads or builds a whole model does the same for a part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from common.models import architectures
from common.models.architectures import Architecture, Layer
from common.spec import SpecError

Schedule = Literal["gpipe", "1f1b", "asynchronous"]


@dataclass(frozen=True)
class Stage:
    """A run of a model's layers, as one device of a pipeline has it."""

    architecture: Architecture
    """These layers alone, under the model's name."""
    index: int
    number: int
    """Of the pipeline's stages."""
    input_shape: tuple[int, ...]
    """[H, W, C] or [features] of one example."""
    output_shape: tuple[int, ...]
    masks: slice
    """Which of the model's dropout masks belong to its layers."""
    multiply_adds: int
    """Of the forward pass, for one example."""

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.number - 1


class Operation(NamedTuple):
    """What a stage does without a pause."""

    kind: Literal["forward", "backward"]
    micro_batch: int


def cut(architecture: Architecture, number: int) -> tuple[Stage, ...]:
    """Cut a model into stages: every layer once, in order, no Residual divided, weights in each.

    The largest stage has as few multiply-adds as can be; of such cuts, the one that hands on the fewest values.

    Raises:
        SpecError: there are fewer layers with weights than stages.
    """
    layers = architecture.layers
    with_weights = [any(_part(architecture, (layer,)).parameters()) for layer in layers]
    if sum(with_weights) < number:
        raise SpecError(
            f"model {architecture.name} has {sum(with_weights)} layers with weights, and each stage of a pipeline needs one. "
            f"Received: {number} stages. Use fewer replicas."
        )
    size = architecture.image_size
    shapes: list[tuple[int, ...]] = [(size, size, 3)]
    costs: list[int] = []
    for layer in layers:
        costs.append(multiply_adds((layer,), shapes[-1]))
        shapes.append(architectures.output_shape((layer,), shapes[-1], architecture.name))
    bounds = _bounds(costs, with_weights, [math.prod(shape) for shape in shapes], number)
    stages: list[Stage] = []
    masks = 0
    for index, (start, stop) in enumerate(itertools.pairwise(bounds)):
        part = _part(architecture, layers[start:stop])
        stages.append(
            Stage(
                architecture=part,
                index=index,
                number=number,
                input_shape=shapes[start],
                output_shape=shapes[stop],
                masks=slice(masks, masks + len(part.dropouts)),
                multiply_adds=sum(costs[start:stop]),
            )
        )
        masks += len(part.dropouts)
    return tuple(stages)


def multiply_adds(layers: Sequence[Layer], shape: tuple[int, ...]) -> int:
    """Multiply-adds of the forward pass through layers, for one example; comparisons count nothing.

    Args:
        layers: one after the other.
        shape: [H, W, C] or [features] of one example in front of them.
    """
    total = 0
    for layer in layers:
        before, shape = shape, architectures.output_shape((layer,), shape, layer.name)
        given = math.prod(shape)
        match layer:
            case architectures.Conv():
                total += given * layer.kernel_size**2 * layer.in_channels
            case architectures.DepthwiseConv():
                total += given * layer.kernel_size**2
            case architectures.Dense():
                total += given * layer.in_features
            case architectures.BatchNorm() | architectures.Dropout():
                total += given
            case architectures.GlobalAveragePool():
                total += math.prod(before)
            case architectures.Residual():
                total += multiply_adds(layer.body, before) + multiply_adds(layer.shortcut, before) + given
            case _:
                pass
    return total


def in_flight(schedule: Schedule, stage: int, number: int, micro_batches: int) -> int:
    """How many micro-batches a stage has sent forward and not yet had back, at the most.

    A stage goes backward as soon as it has so many, then forward again: all of them in GPipe (Huang et al. 2019); one for
    each stage from it to the end in 1F1B and in the asynchronous pipeline (PipeDream, Narayanan et al. 2019).
    """
    return micro_batches if schedule == "gpipe" else min(number - stage, micro_batches)


def order(schedule: Schedule, stage: int, number: int, micro_batches: int) -> Iterator[Operation]:
    """What one stage does, one after the other; of an asynchronous pipeline, over the micro-batches of a whole epoch."""
    most = in_flight(schedule, stage, number, micro_batches)
    for micro_batch in range(micro_batches):
        yield Operation("forward", micro_batch)
        if micro_batch + 1 >= most:
            yield Operation("backward", micro_batch + 1 - most)
    for micro_batch in range(micro_batches + 1 - most, micro_batches):
        yield Operation("backward", micro_batch)


def ticks(schedule: Schedule, number: int, micro_batches: int) -> list[list[Operation | None]]:
    """[tick][stage]: what each stage does in each tick, where a forward and a backward pass take one tick each.

    None where the stage has to wait for its neighbour.
    """
    orders = [list(order(schedule, stage, number, micro_batches)) for stage in range(number)]
    done: set[tuple[int, Operation]] = set()
    table: list[list[Operation | None]] = []
    while any(orders):
        row: list[Operation | None] = []
        for stage, waiting in enumerate(orders):
            ready = bool(waiting) and _needs(stage, number, waiting[0]) <= done
            row.append(waiting.pop(0) if ready else None)
        done |= {(stage, operation) for stage, operation in enumerate(row) if operation}
        table.append(row)
    return table


def sequence(schedule: Schedule, number: int, micro_batches: int) -> Iterator[tuple[int, Operation]]:
    """(stage, operation) of all stages, tick by tick: no operation stands before what it needs."""
    for row in ticks(schedule, number, micro_batches):
        for stage, operation in enumerate(row):
            if operation is not None:
                yield stage, operation


def updates_missing(stage: int, number: int, micro_batch: int) -> int:
    """How many updates of earlier micro-batches an asynchronous stage's weights lack when this one goes forward.

    The same weights serve its way back. Counted from the start of an epoch, before which all updates have been made.
    """
    return min(number - 1 - stage, micro_batch)


def idle_fraction(number: int, micro_batches: int) -> float:
    """The part of a step in which a stage of equals waits, GPipe or 1F1B: (S - 1) / (M + S - 1) (Huang et al. 2019)."""
    return (number - 1) / (micro_batches + number - 1)


def values_handed_on(stages: Sequence[Stage]) -> int:
    """Values that the stages hand on for one example in a step: activations, and gradients of the same shapes back."""
    return 2 * sum(math.prod(stage.output_shape) for stage in stages[:-1])


def _part(architecture: Architecture, layers: tuple[Layer, ...]) -> Architecture:
    return replace(architecture, layers=layers)


def _needs(stage: int, number: int, operation: Operation) -> set[tuple[int, Operation]]:
    """What must be done before; a stage's own forward pass stands before its backward pass in its order."""
    if operation.kind == "forward":
        return {(stage - 1, operation)} if stage else set()
    return {(stage + 1, operation)} if stage + 1 < number else {(stage, Operation("forward", operation.micro_batch))}


def _bounds(costs: Sequence[int], with_weights: Sequence[bool], values: Sequence[int], number: int) -> list[int]:
    """The number + 1 positions between layers at which to cut, the ends included.

    Args:
        costs: of each layer.
        with_weights: whether each layer has any.
        values: in front of each layer, and behind the last.
        number: of stages.
    """
    summed = list(itertools.accumulate(costs, initial=0))
    weighty = list(itertools.accumulate(with_weights, initial=0))

    def best(most: float) -> list[tuple[float, float, list[int]]]:
        """For each end, of the cuts with no stage over `most`: (largest stage, values handed on, bounds)."""
        found: list[tuple[float, float, list[int]]] = [(0, 0, [0])] + [(math.inf, math.inf, [])] * len(costs)
        for stage in range(number):
            longer: list[tuple[float, float, list[int]]] = [(math.inf, math.inf, [])] * (len(costs) + 1)
            for start, stop in itertools.combinations(range(len(costs) + 1), 2):
                cost = summed[stop] - summed[start]
                if not found[start][2] or weighty[stop] == weighty[start] or cost > most:
                    continue
                largest, handed, bounds = found[start]
                handed += values[start] if stage else 0
                # Under a limit the largest stage does not matter any more.
                candidate = (max(largest, cost) if most == math.inf else 0, handed, [*bounds, stop])
                longer[stop] = min(longer[stop], candidate)
            found = longer
        return found

    return best(best(math.inf)[-1][0])[-1][2]
