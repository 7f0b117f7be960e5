"""The best cut of a model into stages for unequal devices, and the device of each stage.

The cuts are those that the suite's pipelines can run: between layers, and inside a layer with branches in the order of its
branches (`common.models.stages.places`). A step of M micro-batches takes about

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
from common.models.stages import Place
from compare.planning.case import Case
from compare.planning.costs import Device, names_of

_Front = list[tuple[float, float, tuple[int, ...], tuple[int, ...]]]
"""(sum, largest, bounds, kinds of devices): none is as good as another in both numbers."""

MOST_STATES = 200_000
"""Of places and sets of devices. More are not searched: the even cut stays."""


def best(
    seconds: Sequence[Sequence[float]],
    messages: Sequence[float],
    cuttable: Sequence[Sequence[bool]],
    counts: Sequence[int],
    micro_batches: int,
) -> tuple[float, tuple[int, ...], tuple[int, ...]] | None:
    """The best cut of a chain, by the formula above.

    Args:
        seconds: [kind of device][place]: of all that is in front of a place, forward and backward.
        messages: [place]: of what passes a cut there, both ways.
        cuttable: [start][stop]: whether a stage may have what is between two places.
        counts: devices of each kind. All are used.
        micro_batches: M.

    Returns:
        (seconds, bounds, kind of device of each stage). None: there are too few places.
    """
    last = len(messages) - 1
    fronts: dict[tuple[int, tuple[int, ...]], _Front] = {(0, tuple(counts)): [(0.0, 0.0, (0,), ())]}
    for _ in range(sum(counts)):
        following: dict[tuple[int, tuple[int, ...]], _Front] = {}
        for (start, left), front in fronts.items():
            for kind, number in enumerate(left):
                if not number:
                    continue
                rest = (*left[:kind], number - 1, *left[kind + 1 :])
                for stop in range(start + 1, last + 1) if any(rest) else (last,):
                    if not cuttable[start][stop]:
                        continue
                    own = seconds[kind][stop] - seconds[kind][start]
                    sent = messages[stop] if stop < last else 0.0
                    longer = following.setdefault((stop, rest), [])
                    for total, largest, bounds, kinds in front:
                        made = total + own + sent, max(largest, own, sent), (*bounds, stop), (*kinds, kind)
                        _keep(longer, made)
        fronts = following
    ends = fronts.get((last, (0,) * len(counts)), [])
    found = [(total + (micro_batches - 1) * largest, bounds, kinds) for total, largest, bounds, kinds in ends]
    return min(found, default=None)


def _keep(front: _Front, made: tuple[float, float, tuple[int, ...], tuple[int, ...]]) -> None:
    if any(other[0] <= made[0] and other[1] <= made[1] for other in front):
        return
    front[:] = [other for other in front if other[0] < made[0] or other[1] < made[1]]
    front.append(made)


def placed(case: Case) -> Case | None:
    """The same pipeline with its best cut, and with devices in the order of their stages. None: the search is too large."""
    run = case.run
    number = run.replicas // run.data_replicas
    kinds = list({(each.speed): each for each in case.devices[:number]}.values())
    counts = [sum(each.speed == kind.speed for each in case.devices[:number]) for kind in kinds]
    found, names = _names_before(case.architecture)
    if len(found) * math.prod(count + 1 for count in counts) > MOST_STATES or run.data_replicas > 1:
        return None
    size = run.per_replica_batch_size / run.micro_batches()
    link, crowded = case.link("send"), run.micro_batches() > 1
    seconds = [[sum(case.passes(kind, before, size, crowded=crowded)) for before in names] for kind in kinds]
    messages = [
        2 * (link.alpha_seconds + link.beta_seconds_per_byte * size * case.bytes_of(math.prod(place.handed_on)))
        for place in found
    ]
    cuttable = [[stop.learned > start.learned for stop in found] for start in found]
    if (chosen := best(seconds, messages, cuttable, counts, run.micro_batches())) is None:
        return None
    _, bounds, order = chosen
    left: dict[int, list[Device]] = {
        index: [each for each in case.devices[:number] if each.speed == kind.speed] for index, kind in enumerate(kinds)
    }
    devices = tuple(left[kind].pop(0) for kind in order)
    return replace(case, devices=devices, stages=stages.at(case.architecture, [found[bound] for bound in bounds]))


@lru_cache
def _names_before(architecture: Architecture) -> tuple[list[Place], list[tuple[str, ...]]]:
    """All places, and the layers in front of each."""
    found = list(stages.places(architecture))
    first, *others = found
    cuts = [stages.at(architecture, [first, place])[0] for place in others]
    return found, [(), *(tuple(names_of(each.architecture.layers)) for each in cuts)]
