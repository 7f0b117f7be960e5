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
from common.models.architectures import Architecture, Concatenation, Layer, Residual, StageFragment
from common.spec import SpecError

Schedule = Literal["gpipe", "1f1b", "asynchronous"]
MIN_DIVISION_GAIN = 0.1
"""Smallest reduction of the largest stage that is worth the additional tensors of a divided layer, as a fraction."""


@dataclass(frozen=True)
class Stage:
    """Consecutive layers of a model that one device of a pipeline holds."""

    architecture: Architecture
    """Architecture of these layers alone, under the model's name."""
    index: int
    num_stages: int
    """Number of stages of the pipeline."""
    input_shape: tuple[int, ...]
    """[H, W, C] or [features] of one example. Several tensors are sent as one, see `architectures.StageFragment`."""
    output_shape: tuple[int, ...]
    masks: slice
    """Slice of the model's dropout masks that belongs to its layers."""
    forward_flops: int
    """Operations of its forward pass for one example, see `common.models.work`."""

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.num_stages - 1


class PipelineOperation(NamedTuple):
    """One pass of one micro-batch through one stage."""

    kind: Literal["forward", "backward"]
    micro_batch: int


@lru_cache
def cut(architecture: Architecture, num_stages: int) -> tuple[Stage, ...]:
    """Cut a model into stages: every layer once, in order, weights in each.

    The largest stage has as few forward operations as possible. The cut that sends the fewest values wins.
    A layer with branches is divided only if that makes the largest stage smaller by `MIN_DIVISION_GAIN`, or if there are too
    few layers otherwise. Then several tensors are sent: outputs of its branches, and its input if later branches need it.
    """
    points = list(cut_points(architecture))
    between_layers = [point for point in points if point.progress is None]
    bounds = _best_bounds(between_layers, num_stages)
    divided_bounds = _best_bounds(points, num_stages) if len(points) > len(between_layers) else []
    if divided_bounds and (not bounds or _largest(divided_bounds) < (1 - MIN_DIVISION_GAIN) * _largest(bounds)):
        bounds = divided_bounds
    if not bounds:
        with_weights = points[-1].weighted_layers
        raise SpecError(
            f"model {architecture.name} has {with_weights} layers with weights, and each stage of a pipeline needs one. "
            f"Received: {num_stages} stages. Use fewer replicas."
        )
    return cut_at(architecture, bounds)


def cut_at(architecture: Architecture, bounds: Sequence[CutPoint]) -> tuple[Stage, ...]:
    """Return the stages of a model that is cut at these `cut_points`, both ends included."""
    stages: list[Stage] = []
    masks, num_stages = 0, len(bounds) - 1
    for index, (start, stop) in enumerate(itertools.pairwise(bounds)):
        part = replace(architecture, layers=tuple(_between(architecture, start, stop)))
        stages.append(
            Stage(
                architecture=part,
                index=index,
                num_stages=num_stages,
                input_shape=start.boundary_shape,
                output_shape=stop.boundary_shape,
                masks=slice(masks, masks + len(part.dropouts)),
                forward_flops=stop.flops - start.flops,
            )
        )
        masks += len(part.dropouts)
    return tuple(stages)


class CutPoint(NamedTuple):
    """A point where a model can be cut."""

    layer: int
    """Index of the layer that the cut is in front of or inside."""
    shape: tuple[int, ...]
    """Shape of one example in front of this layer."""
    progress: tuple[int, int] | None
    """(branch, number of its layers in front of the cut) inside the layer. Earlier branches are complete. None: not inside."""
    flops: int
    """Forward operations of all layers in front of the cut."""
    weighted_layers: int
    """Number of layers in front of the cut that have weights."""
    boundary_shape: tuple[int, ...]
    """Shape of the values that a stage sends to the next at this cut."""


def cut_points(architecture: Architecture) -> Iterator[CutPoint]:
    """Yield all points where a model can be cut, in order, both ends included."""
    size = architecture.image_size
    shape: tuple[int, ...] = (size, size, 3)
    flops = weighted_layers = 0
    yield CutPoint(0, shape, None, 0, 0, shape)
    for index, layer in enumerate(architecture.layers):
        steps = [
            (branch, number) for branch, layers in enumerate(architectures.branches(layer)) for number in range(len(layers))
        ]
        for branch, number in steps:
            layers = architectures.branches(layer)[branch]
            input_shape = architectures.output_shape(layers[:number], shape, architecture.name)
            flops += work.count_layers((layers[number],), input_shape, input_needs_gradient=True).forward_flops
            weighted_layers += work.has_weights(layers[number])
            if (branch, number) != steps[-1]:
                progress = branch, number + 1
                features = sum(map(math.prod, _boundary_shapes(layer, shape, progress)))
                yield CutPoint(index, shape, progress, flops, weighted_layers, (features,))
        if not steps:
            flops += work.count_layers((layer,), shape, input_needs_gradient=True).forward_flops
            weighted_layers += work.has_weights(layer)
        shape = architectures.output_shape((layer,), shape, architecture.name)
        yield CutPoint(index + 1, shape, None, flops, weighted_layers, shape)


def _boundary_shapes(layer: Layer, shape: tuple[int, ...], progress: tuple[int, int]) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors at a cut inside a layer: one per begun branch, then the input if others need it."""
    branches = architectures.branches(layer)
    prefixes = [branches[number] for number in range(progress[0])] + [branches[progress[0]][: progress[1]]]
    shapes = [architectures.output_shape(branch, shape, layer.name) for branch in prefixes]
    return shapes if len(prefixes) == len(branches) else [*shapes, shape]


def _between(architecture: Architecture, start: CutPoint, stop: CutPoint) -> Iterator[Layer]:
    """Yield the layers of a stage."""
    layers = architecture.layers
    if start.progress is not None:
        yield _fragment(layers[start.layer], start, stop if stop.layer == start.layer else None)
        if stop.layer == start.layer:
            return
    yield from layers[start.layer + (start.progress is not None) : stop.layer]
    if stop.progress is not None:
        yield _fragment(layers[stop.layer], stop._replace(progress=None), stop)


def _fragment(layer: Layer, start: CutPoint, stop: CutPoint | None) -> StageFragment:
    """Return a stage's part of a divided layer.

    Args:
        layer: the divided layer.
        start: cut point inside the layer or in front of it.
        stop: cut point inside the layer. None: the stage has the rest.
    """
    branches = architectures.branches(layer)

    def num_before(branch: int, progress: tuple[int, int] | None) -> int:
        if progress is None or branch > progress[0]:
            return 0
        return len(branches[branch]) if branch < progress[0] else progress[1]

    num_branch_tensors = 0 if start.progress is None else start.progress[0] + 1
    """Number of tensors of branches. Behind them comes the layer's input."""
    inputs = () if start.progress is None else tuple(_boundary_shapes(layer, start.shape, start.progress))
    last = len(branches) if stop is None or stop.progress is None else stop.progress[0] + 1
    fragments = [
        (
            min(branch, num_branch_tensors),
            branches[branch][num_before(branch, start.progress) : num_before(branch, stop.progress) if stop else None],
        )
        for branch in range(last)
    ]
    if last < len(branches):
        fragments.append((num_branch_tensors, ()))
    join = None
    if stop is None:
        join = replace(layer, body=(), shortcut=()) if isinstance(layer, Residual) else Concatenation(layer.name, ())
    return StageFragment(
        layer.name, inputs, tuple(index for index, _ in fragments), tuple(layers for _, layers in fragments), join
    )


def _best_bounds(points: Sequence[CutPoint], num_stages: int) -> list[CutPoint]:
    """Return the best cut at some of these points, both ends included. Empty: there is none with weights in each stage."""
    costs = [following.flops - previous.flops for previous, following in itertools.pairwise(points)]
    with_weights = [following.weighted_layers > previous.weighted_layers for previous, following in itertools.pairwise(points)]
    if sum(with_weights) < num_stages:
        return []
    values = [math.prod(point.boundary_shape) for point in points]
    return [points[bound] for bound in _bounds(costs, with_weights, values, num_stages)]


def _largest(bounds: Sequence[CutPoint]) -> int:
    return max(stop.flops - start.flops for start, stop in itertools.pairwise(bounds))


def in_flight(schedule: Schedule, stage: int, num_stages: int, micro_batches: int) -> int:
    """Return the largest number of micro-batches that a stage has sent forward and not yet received back.

    At this number a stage goes backward, then forward again. In GPipe (Huang et al. 2019) it is all micro-batches. In 1F1B and
    in the asynchronous pipeline (PipeDream, Narayanan et al. 2019) it is the number of stages from this one to the last.
    """
    return micro_batches if schedule == "gpipe" else min(num_stages - stage, micro_batches)


def order(schedule: Schedule, stage: int, num_stages: int, micro_batches: int) -> Iterator[PipelineOperation]:
    """Yield the operations of one stage in order. An asynchronous pipeline has the micro-batches of a whole epoch."""
    depth = in_flight(schedule, stage, num_stages, micro_batches)
    for micro_batch in range(micro_batches):
        yield PipelineOperation("forward", micro_batch)
        if micro_batch + 1 >= depth:
            yield PipelineOperation("backward", micro_batch + 1 - depth)
    for micro_batch in range(micro_batches + 1 - depth, micro_batches):
        yield PipelineOperation("backward", micro_batch)


def ticks(schedule: Schedule, num_stages: int, micro_batches: int) -> list[list[PipelineOperation | None]]:
    """Return the operation of each stage in each tick, as [tick][stage]. A forward or backward pass takes one tick.

    None where the stage waits for its neighbour.
    """
    orders = [list(order(schedule, stage, num_stages, micro_batches)) for stage in range(num_stages)]
    completed: set[tuple[int, PipelineOperation]] = set()
    table: list[list[PipelineOperation | None]] = []
    while any(orders):
        row: list[PipelineOperation | None] = []
        for stage, operations in enumerate(orders):
            ready = bool(operations) and _needs(stage, num_stages, operations[0]) <= completed
            row.append(operations.pop(0) if ready else None)
        completed |= {(stage, operation) for stage, operation in enumerate(row) if operation}
        table.append(row)
    return table


def sequence(schedule: Schedule, num_stages: int, micro_batches: int) -> Iterator[tuple[int, PipelineOperation]]:
    """Yield (stage, operation) of all stages, tick by tick. An operation comes after all operations that it needs."""
    for row in ticks(schedule, num_stages, micro_batches):
        for stage, operation in enumerate(row):
            if operation is not None:
                yield stage, operation


def updates_missing(stage: int, num_stages: int, micro_batch: int) -> int:
    """Return the number of updates of earlier micro-batches that a stage's weights lack when this one goes forward.

    Its backward pass uses the same weights. The count is from the start of an epoch, when all updates have been made.
    """
    return min(num_stages - 1 - stage, micro_batch)


def idle_fraction(num_stages: int, micro_batches: int) -> float:
    """Return the fraction of a step that one of S equal stages waits: (S - 1) / (M + S - 1) (Huang et al. 2019)."""
    return (num_stages - 1) / (micro_batches + num_stages - 1)


def boundary_values(stages: Sequence[Stage]) -> int:
    """Return the number of values sent between stages per example and step: activations forward, gradients backward."""
    return 2 * sum(math.prod(stage.output_shape) for stage in stages[:-1])


def _needs(stage: int, num_stages: int, operation: PipelineOperation) -> set[tuple[int, PipelineOperation]]:
    """Return the operations of other stages that must be done before. A stage's own order puts its forward pass first."""
    if operation.kind == "forward":
        return {(stage - 1, operation)} if stage else set()
    return (
        {(stage + 1, operation)} if stage + 1 < num_stages else {(stage, PipelineOperation("forward", operation.micro_batch))}
    )


def _bounds(costs: Sequence[int], with_weights: Sequence[bool], values: Sequence[int], num_stages: int) -> list[int]:
    """Return the num_stages + 1 positions of the cuts between layers, both ends included.

    Args:
        costs: forward operations of each layer.
        with_weights: whether each layer has weights.
        values: number of values before each layer and after the last.
        num_stages: number of stages.
    """
    cumulative_costs = list(itertools.accumulate(costs, initial=0))
    cumulative_weights = list(itertools.accumulate(with_weights, initial=0))

    def best(limit: float) -> list[tuple[float, float, list[int]]]:
        """Return for each end the best cut with no stage over `limit`: (largest stage, values sent, bounds)."""
        best_cuts: list[tuple[float, float, list[int]]] = [(0, 0, [0])] + [(math.inf, math.inf, [])] * len(costs)
        for stage in range(num_stages):
            extended: list[tuple[float, float, list[int]]] = [(math.inf, math.inf, [])] * (len(costs) + 1)
            for start, stop in itertools.combinations(range(len(costs) + 1), 2):
                cost = cumulative_costs[stop] - cumulative_costs[start]
                if not best_cuts[start][2] or cumulative_weights[stop] == cumulative_weights[start] or cost > limit:
                    continue
                largest, num_values, bounds = best_cuts[start]
                num_values += values[start] if stage else 0
                # Under a finite limit the size of the largest stage no longer matters.
                candidate = (max(largest, cost) if limit == math.inf else 0, num_values, [*bounds, stop])
                extended[stop] = min(extended[stop], candidate)
            best_cuts = extended
        return best_cuts

    return best(best(math.inf)[-1][0])[-1][2]
