"""Pipelines without a framework: the layers of each stage, and its schedule of micro-batches.

A stage is an `Architecture` of its own layers. Code that reads or builds a whole model therefore also takes a stage.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from common.models import architectures, work
from common.models.architectures import Architecture
from common.spec import SpecError

Schedule = Literal["gpipe", "1f1b", "asynchronous"]


@dataclass(frozen=True)
class Stage:
    """Consecutive layers of a model that one device of a pipeline holds."""

    architecture: Architecture
    """These layers alone, under the model's name."""
    index: int
    number: int
    """How many stages the pipeline has."""
    input_shape: tuple[int, ...]
    """[H, W, C] or [features] of one example."""
    output_shape: tuple[int, ...]
    masks: slice
    """Which of the model's dropout masks belong to its layers."""
    forward_flops: int
    """Operations of its forward pass for one example; see `common.models.work`."""

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.number - 1


class Operation(NamedTuple):
    """One pass of one micro-batch through one stage."""

    kind: Literal["forward", "backward"]
    micro_batch: int


def cut(architecture: Architecture, number: int) -> tuple[Stage, ...]:
    """Cut a model into stages: every layer once, in order, no Residual divided, weights in each.

    The largest stage has as few forward operations as possible. Of such cuts, the one with the fewest values handed on wins.

    Raises:
        SpecError: there are fewer layers with weights than stages.
    """
    layers = architecture.layers
    with_weights = [work.is_learned(layer) for layer in layers]
    if sum(with_weights) < number:
        raise SpecError(
            f"model {architecture.name} has {sum(with_weights)} layers with weights, and each stage of a pipeline needs one. "
            f"Received: {number} stages. Use fewer replicas."
        )
    size = architecture.image_size
    shapes: list[tuple[int, ...]] = [(size, size, 3)]
    costs: list[int] = []
    for layer in layers:
        costs.append(work.count_layers((layer,), shapes[-1], learned_before=True).forward_flops)
        shapes.append(architectures.output_shape((layer,), shapes[-1], architecture.name))
    bounds = _bounds(costs, with_weights, [math.prod(shape) for shape in shapes], number)
    stages: list[Stage] = []
    masks = 0
    for index, (start, stop) in enumerate(itertools.pairwise(bounds)):
        part = replace(architecture, layers=layers[start:stop])
        stages.append(
            Stage(
                architecture=part,
                index=index,
                number=number,
                input_shape=shapes[start],
                output_shape=shapes[stop],
                masks=slice(masks, masks + len(part.dropouts)),
                forward_flops=sum(costs[start:stop]),
            )
        )
        masks += len(part.dropouts)
    return tuple(stages)


def in_flight(schedule: Schedule, stage: int, number: int, micro_batches: int) -> int:
    """The most micro-batches that a stage has sent forward and not yet received back.

    At this number a stage goes backward, then forward again. In GPipe (Huang et al. 2019) it is all micro-batches. In 1F1B and
    in the asynchronous pipeline (PipeDream, Narayanan et al. 2019) it is the number of stages from this one to the last.
    """
    return micro_batches if schedule == "gpipe" else min(number - stage, micro_batches)


def order(schedule: Schedule, stage: int, number: int, micro_batches: int) -> Iterator[Operation]:
    """The operations of one stage in order. An asynchronous pipeline has the micro-batches of a whole epoch."""
    most = in_flight(schedule, stage, number, micro_batches)
    for micro_batch in range(micro_batches):
        yield Operation("forward", micro_batch)
        if micro_batch + 1 >= most:
            yield Operation("backward", micro_batch + 1 - most)
    for micro_batch in range(micro_batches + 1 - most, micro_batches):
        yield Operation("backward", micro_batch)


def ticks(schedule: Schedule, number: int, micro_batches: int) -> list[list[Operation | None]]:
    """[tick][stage]: the operation of each stage in each tick. A forward or backward pass takes one tick.

    None where the stage waits for its neighbour.
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
    """(stage, operation) of all stages, tick by tick. An operation comes after all operations that it needs."""
    for row in ticks(schedule, number, micro_batches):
        for stage, operation in enumerate(row):
            if operation is not None:
                yield stage, operation


def updates_missing(stage: int, number: int, micro_batch: int) -> int:
    """How many updates of earlier micro-batches an asynchronous stage's weights lack when this one goes forward.

    Its backward pass uses the same weights. The count is from the start of an epoch, when all updates have been made.
    """
    return min(number - 1 - stage, micro_batch)


def idle_fraction(number: int, micro_batches: int) -> float:
    """Fraction of a step that one of S equal stages waits, in GPipe and 1F1B: (S - 1) / (M + S - 1) (Huang et al. 2019)."""
    return (number - 1) / (micro_batches + number - 1)


def values_handed_on(stages: Sequence[Stage]) -> int:
    """Values sent between stages for one example in a step: activations forward, gradients of the same shapes backward."""
    return 2 * sum(math.prod(stage.output_shape) for stage in stages[:-1])


def _needs(stage: int, number: int, operation: Operation) -> set[tuple[int, Operation]]:
    """The operations of other stages that must be done before. A stage's own order puts its forward pass first."""
    if operation.kind == "forward":
        return {(stage - 1, operation)} if stage else set()
    return {(stage + 1, operation)} if stage + 1 < number else {(stage, Operation("forward", operation.micro_batch))}


def _bounds(costs: Sequence[int], with_weights: Sequence[bool], values: Sequence[int], number: int) -> list[int]:
    """The number + 1 positions of the cuts between layers, both ends included.

    Args:
        with_weights: whether each layer has weights.
        values: before each layer, and after the last.
    """
    summed = list(itertools.accumulate(costs, initial=0))
    weighty = list(itertools.accumulate(with_weights, initial=0))

    def best(most: float) -> list[tuple[float, float, list[int]]]:
        """For each end, the best cut with no stage over `most`: (largest stage, values handed on, bounds)."""
        found: list[tuple[float, float, list[int]]] = [(0, 0, [0])] + [(math.inf, math.inf, [])] * len(costs)
        for stage in range(number):
            longer: list[tuple[float, float, list[int]]] = [(math.inf, math.inf, [])] * (len(costs) + 1)
            for start, stop in itertools.combinations(range(len(costs) + 1), 2):
                cost = summed[stop] - summed[start]
                if not found[start][2] or weighty[stop] == weighty[start] or cost > most:
                    continue
                largest, handed, bounds = found[start]
                handed += values[start] if stage else 0
                # Under a finite limit the size of the largest stage no longer matters.
                candidate = (max(largest, cost) if most == math.inf else 0, handed, [*bounds, stop])
                longer[stop] = min(longer[stop], candidate)
            found = longer
        return found

    return best(best(math.inf)[-1][0])[-1][2]
