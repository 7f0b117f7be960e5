"""Finds the best cut of a model into stages for unequal devices, and the device of each stage.

The cuts are those that the suite's pipelines can run: between layers, and inside a layer with branches in the order of its
branches (`common.models.stages.cut_points`). A step of M micro-batches takes about

    sum of all stages and messages + (M - 1) x the largest of them

which is exact for GPipe whose forward and backward passes are in proportion: a permutation flow shop (Johnson 1954). For each
place and set of devices the search keeps every pair (sum, largest) that no other pair beats: for some M it may be the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from common.models import stages
from common.models.architectures import Architecture
from common.models.stages import CutPoint
from compare.tools.planning.case import Case, layer_names
from compare.tools.planning.planned_machine import Device

_Front = list[tuple[float, float, tuple[int, ...], tuple[int, ...]]]
"""Pareto front of (sum, largest, bounds, kinds of devices): none is as good as another in both numbers."""

MAX_STATES = 200_000
"""Largest number of combinations of places and sets of devices that are searched. Beyond it the even cut stays."""


def best_cut(
    seconds: Sequence[Sequence[float]],
    messages: Sequence[float],
    cuttable: Sequence[Sequence[bool]],
    counts: Sequence[int],
    micro_batches: int,
) -> tuple[float, tuple[int, ...], tuple[int, ...]] | None:
    """Return the best cut of a chain, by the formula above.

    Args:
        seconds: [kind of device][place], seconds of all layers in front of a place, forward and backward.
        messages: [place], seconds of the messages across a cut there, both ways.
        cuttable: [start][stop], whether a stage may consist of the layers between two places.
        counts: number of devices of each kind. All are used.
        micro_batches: number M of micro-batches.

    Returns:
        (seconds, bounds, kind of device of each stage). None: there are too few places.
    """
    last = len(messages) - 1
    fronts: dict[tuple[int, tuple[int, ...]], _Front] = {(0, tuple(counts)): [(0.0, 0.0, (0,), ())]}
    for _ in range(sum(counts)):
        extended: dict[tuple[int, tuple[int, ...]], _Front] = {}
        for (start, remaining), front in fronts.items():
            for kind, number in enumerate(remaining):
                if not number:
                    continue
                rest = (*remaining[:kind], number - 1, *remaining[kind + 1 :])
                for stop in range(start + 1, last + 1) if any(rest) else (last,):
                    if not cuttable[start][stop]:
                        continue
                    stage_seconds = seconds[kind][stop] - seconds[kind][start]
                    message_seconds = messages[stop] if stop < last else 0.0
                    extended_front = extended.setdefault((stop, rest), [])
                    for total, largest, bounds, kinds in front:
                        candidate = (
                            total + stage_seconds + message_seconds,
                            max(largest, stage_seconds, message_seconds),
                            (*bounds, stop),
                            (*kinds, kind),
                        )
                        _add_if_efficient(extended_front, candidate)
        fronts = extended
    ends = fronts.get((last, (0,) * len(counts)), [])
    cuts = [(total + (micro_batches - 1) * largest, bounds, kinds) for total, largest, bounds, kinds in ends]
    return min(cuts, default=None)


def _add_if_efficient(front: _Front, candidate: tuple[float, float, tuple[int, ...], tuple[int, ...]]) -> None:
    if any(other[0] <= candidate[0] and other[1] <= candidate[1] for other in front):
        return
    front[:] = [other for other in front if other[0] < candidate[0] or other[1] < candidate[1]]
    front.append(candidate)


def place_stages(case: Case) -> Case | None:
    """Return a pipeline with its best cut and the devices in the order of their stages. None: the search is too large."""
    run = case.run
    number = run.replicas // run.data_replicas
    kinds = list({(device.speed): device for device in case.devices[:number]}.values())
    counts = [sum(device.speed == kind.speed for device in case.devices[:number]) for kind in kinds]
    places, names = _names_before(case.architecture)
    if len(places) * math.prod(count + 1 for count in counts) > MAX_STATES or run.data_replicas > 1:
        return None
    size = run.per_replica_batch_size / run.micro_batches()
    link, crowded = case.link("send"), run.micro_batches() > 1
    seconds = [[sum(case.passes(kind, before, size, crowded=crowded)) for before in names] for kind in kinds]
    messages = [
        2 * (link.alpha_seconds + link.beta_seconds_per_byte * size * case.num_bytes(math.prod(place.boundary_shape)))
        for place in places
    ]
    cuttable = [[stop.weighted_layers > start.weighted_layers for stop in places] for start in places]
    if (chosen := best_cut(seconds, messages, cuttable, counts, run.micro_batches())) is None:
        return None
    _, bounds, order = chosen
    free_devices: dict[int, list[Device]] = {
        index: [device for device in case.devices[:number] if device.speed == kind.speed] for index, kind in enumerate(kinds)
    }
    devices = tuple(free_devices[kind].pop(0) for kind in order)
    return replace(case, devices=devices, stages=stages.cut_at(case.architecture, [places[bound] for bound in bounds]))


@lru_cache
def _names_before(architecture: Architecture) -> tuple[list[CutPoint], list[tuple[str, ...]]]:
    """Return all places, and the names of the layers in front of each."""
    places = list(stages.cut_points(architecture))
    first, *later = places
    cuts = [stages.cut_at(architecture, [first, place])[0] for place in later]
    return places, [(), *(tuple(layer_names(stage.architecture.layers)) for stage in cuts)]
