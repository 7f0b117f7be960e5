"""Pipelines without a framework: the layers of each stage, and its schedule of micro-batches.

A stage is an `Architecture` of its own layers. Code that reads or builds a whole model therefore also takes a stage.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from common.models import architectures, work
from common.models.architectures import Architecture, Concatenation, Cut, Layer, Residual
from common.spec import SpecError

Schedule = Literal["gpipe", "1f1b", "asynchronous"]
WORTH_DIVIDING = 0.1
"""Of the largest stage. Less is not worth the tensors that a divided layer hands on beside its branch."""


@dataclass(frozen=True)
class Stage:
    """Consecutive layers of a model that one device of a pipeline holds."""

    architecture: Architecture
    """These layers alone, under the model's name."""
    index: int
    number: int
    """How many stages the pipeline has."""
    input_shape: tuple[int, ...]
    """[H, W, C] or [features] of one example. Several tensors are handed on as one, see `architectures.Cut`."""
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


@lru_cache
def cut(architecture: Architecture, number: int) -> tuple[Stage, ...]:
    """Cut a model into stages: every layer once, in order, weights in each.

    The largest stage has as few forward operations as possible. Of such cuts, the one with the fewest values handed on wins.
    A layer with branches is divided only where that makes the largest stage smaller by `WORTH_DIVIDING`, or where there are too
    few layers otherwise. Then several tensors are handed on: what its branches have so far, and its input if others need it.

    Raises:
        SpecError: there are fewer layers with weights than stages.
    """
    found = list(places(architecture))
    whole = [place for place in found if place.done is None]
    bounds = _bounds_between(whole, number)
    divided = _bounds_between(found, number) if len(found) > len(whole) else []
    if divided and (not bounds or _largest(divided) < (1 - WORTH_DIVIDING) * _largest(bounds)):
        bounds = divided
    if not bounds:
        with_weights = found[-1].learned
        raise SpecError(
            f"model {architecture.name} has {with_weights} layers with weights, and each stage of a pipeline needs one. "
            f"Received: {number} stages. Use fewer replicas."
        )
    return at(architecture, bounds)


def at(architecture: Architecture, bounds: Sequence[Place]) -> tuple[Stage, ...]:
    """The stages of a model that is cut at these of its `places`, both ends included."""
    stages: list[Stage] = []
    masks, number = 0, len(bounds) - 1
    for index, (start, stop) in enumerate(itertools.pairwise(bounds)):
        part = replace(architecture, layers=tuple(_between(architecture, start, stop)))
        stages.append(
            Stage(
                architecture=part,
                index=index,
                number=number,
                input_shape=start.handed_on,
                output_shape=stop.handed_on,
                masks=slice(masks, masks + len(part.dropouts)),
                forward_flops=stop.flops - start.flops,
            )
        )
        masks += len(part.dropouts)
    return tuple(stages)


class Place(NamedTuple):
    """Where a model can be cut."""

    layer: int
    """The cut is in front of this layer, or inside it."""
    shape: tuple[int, ...]
    """In front of this layer."""
    done: tuple[int, int] | None
    """Inside it: (branch, how many of its layers are in front of the cut). Earlier branches are, later ones are not."""
    flops: int
    """Forward operations of all layers in front."""
    learned: int
    """How many of them have weights."""
    handed_on: tuple[int, ...]
    """Shape of what passes a cut here."""


def places(architecture: Architecture) -> Iterator[Place]:
    """All places where a model can be cut, in order, both ends included."""
    size = architecture.image_size
    shape: tuple[int, ...] = (size, size, 3)
    flops = learned = 0
    yield Place(0, shape, None, 0, 0, shape)
    for index, layer in enumerate(architecture.layers):
        steps = [
            (branch, number) for branch, layers in enumerate(architectures.branches(layer)) for number in range(len(layers))
        ]
        for branch, number in steps:
            layers = architectures.branches(layer)[branch]
            before = architectures.output_shape(layers[:number], shape, architecture.name)
            flops += work.count_layers((layers[number],), before, learned_before=True).forward_flops
            learned += work.is_learned(layers[number])
            if (branch, number) != steps[-1]:
                done = branch, number + 1
                features = sum(map(math.prod, _tensors(layer, shape, done)))
                yield Place(index, shape, done, flops, learned, (features,))
        if not steps:
            flops += work.count_layers((layer,), shape, learned_before=True).forward_flops
            learned += work.is_learned(layer)
        shape = architectures.output_shape((layer,), shape, architecture.name)
        yield Place(index + 1, shape, None, flops, learned, shape)


def _tensors(layer: Layer, shape: tuple[int, ...], done: tuple[int, int]) -> list[tuple[int, ...]]:
    """Shapes of the tensors that pass a cut inside a layer: of each branch that has begun, then its input if others need it."""
    branches = architectures.branches(layer)
    begun = [branches[number] for number in range(done[0])] + [branches[done[0]][: done[1]]]
    found = [architectures.output_shape(branch, shape, layer.name) for branch in begun]
    return found if len(begun) == len(branches) else [*found, shape]


def _between(architecture: Architecture, start: Place, stop: Place) -> Iterator[Layer]:
    """The layers of a stage."""
    layers = architecture.layers
    if start.done is not None:
        yield _part(layers[start.layer], start, stop if stop.layer == start.layer else None)
        if stop.layer == start.layer:
            return
    yield from layers[start.layer + (start.done is not None) : stop.layer]
    if stop.done is not None:
        yield _part(layers[stop.layer], stop._replace(done=None), stop)


def _part(layer: Layer, start: Place, stop: Place | None) -> Cut:
    """A stage's part of a divided layer.

    Args:
        start: inside it, or in front of it.
        stop: inside it. None: the stage has the rest.
    """
    branches = architectures.branches(layer)

    def reached(branch: int, done: tuple[int, int] | None) -> int:
        if done is None or branch > done[0]:
            return 0
        return len(branches[branch]) if branch < done[0] else done[1]

    begun = 0 if start.done is None else start.done[0] + 1
    """Tensors of branches. Behind them comes the layer's input."""
    inputs = () if start.done is None else tuple(_tensors(layer, start.shape, start.done))
    last = len(branches) if stop is None or stop.done is None else stop.done[0] + 1
    own = [
        (min(branch, begun), branches[branch][reached(branch, start.done) : reached(branch, stop.done) if stop else None])
        for branch in range(last)
    ]
    if last < len(branches):
        own.append((begun, ()))
    join = None
    if stop is None:
        join = replace(layer, body=(), shortcut=()) if isinstance(layer, Residual) else Concatenation(layer.name, ())
    return Cut(layer.name, inputs, tuple(take for take, _ in own), tuple(layers for _, layers in own), join)


def _bounds_between(places: Sequence[Place], number: int) -> list[Place]:
    """The best cut at some of these places, both ends included. Empty: there is none with weights in each stage."""
    costs = [behind.flops - before.flops for before, behind in itertools.pairwise(places)]
    with_weights = [behind.learned > before.learned for before, behind in itertools.pairwise(places)]
    if sum(with_weights) < number:
        return []
    values = [math.prod(place.handed_on) for place in places]
    return [places[bound] for bound in _bounds(costs, with_weights, values, number)]


def _largest(bounds: Sequence[Place]) -> int:
    return max(stop.flops - start.flops for start, stop in itertools.pairwise(bounds))


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
