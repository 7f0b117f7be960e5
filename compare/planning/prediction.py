"""Predictions of all layouts, ranked, and what would have to change for another one to win."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from common.frozen import Frozen
from common.models.architectures import Architecture
from common.spec import Spec, SpecError
from compare.judgement.scaling_laws import LinkModel
from compare.planning import placement, schedules
from compare.planning.case import Case, PredictionError, numbered_devices
from compare.planning.costs import Costs, Links, PlannedMachine
from compare.planning.layouts import PlannedLayout

FACTORS = (1e-3, 1e3)
"""Between which a change of a link or of the computing is looked for."""


class Predicted(Frozen):
    """One layout in one framework."""

    contestant: str
    words: str
    run: Spec
    step_seconds: float | None = None
    """None: not predicted. `why` says why."""
    epoch_seconds: float | None = None
    parts: dict[str, float] = {}
    """Of a step: compute, input, exposed communication, bubble. Means over the devices, in seconds."""
    memory_mib: dict[str, float] = {}
    """Peak of each device, computed. In one process, the first has the process itself."""
    process_mib: float | None = None
    """Peak of the fullest rank. A rank that holds all devices has their sum. A parameter server is no rank."""
    efficiency: float | None = None
    """How many times as fast as serial on one device, over the devices. Serial on the cores of several counts as several."""
    why: str | None = None
    """Why it is not predicted, or does not fit the memory."""
    fits: bool = True

    @property
    def rankable(self) -> bool:
        return self.step_seconds is not None and self.fits


def case_of(
    layout: PlannedLayout, architecture: Architecture, costs: Costs, machine: PlannedMachine, name: str, examples: int, *, one_process: bool
) -> Case:
    """A layout on the devices of a machine."""
    run, own = layout.run, machine.frameworks[name]
    return Case(
        run=run,
        architecture=architecture,
        costs=costs,
        devices=numbered_devices(machine.devices[: run.replicas], run.replicas),
        links=own.links,
        crowding=own.crowding,
        one_process=one_process,
        train_examples=examples,
        cores=run.cores if run.mode == "serial" else machine.cores_of_device,
    )


def predict(name: str, layout: PlannedLayout, case: Case, alone: Case, limit_mib: float | None) -> Predicted:
    """Simulate a layout.

    Args:
        alone: serial on one device.
        limit_mib: memory of each device, if the user has limited it. None: the machine's own limits count.
    """
    run = layout.run
    try:
        parts, held = schedules.step(case)
    except (PredictionError, SpecError) as error:
        return Predicted(contestant=name, words=layout.words, run=run, why=f"not predicted: {error}")
    memory = {device: size / 2**20 for device, size in held.items()}
    if case.one_process:
        memory = _in_one_process(memory, case.costs.process_mib)
    limits = {device.name: limit_mib or device.memory_mib or math.inf for device in case.devices}
    beyond = [
        f"{device} needs {size:.0f} MiB" for device, size in memory.items() if size > limits.get(device, limit_mib or math.inf)
    ]
    return Predicted(
        contestant=name,
        words=layout.words,
        run=run,
        step_seconds=parts.total,
        epoch_seconds=parts.total * case.train_examples / run.global_batch_size,
        parts=parts._asdict(),
        memory_mib=memory,
        process_mib=(sum if case.one_process else max)(memory[device.name] for device in case.devices),
        efficiency=schedules.step(alone)[0].total / parts.total / (run.replicas * case.cores / alone.cores),
        why=f"does not fit: {'; '.join(beyond)}" if beyond else None,
        fits=not beyond,
    )


def _in_one_process(memory: Mapping[str, float], process_mib: float) -> dict[str, float]:
    return {device: size - (process_mib if index else 0.0) for index, (device, size) in enumerate(memory.items())}


def ranked(found: Sequence[Predicted]) -> list[Predicted]:
    """By framework in the order given, the fastest first. What is not predicted or does not fit comes last."""
    order = list(dict.fromkeys(each.contestant for each in found))
    return sorted(found, key=lambda each: (order.index(each.contestant), not each.rankable, each.step_seconds or math.inf))


def scaled(case: Case, *, link: float = 1.0, compute: float = 1.0) -> Case:
    """The same with links and devices so many times as fast."""

    def faster(network: LinkModel | None) -> LinkModel | None:
        if network is None:
            return None
        alpha, beta = network.alpha_seconds / link, network.beta_seconds_per_byte / link
        return network.model_copy(update={"alpha_seconds": alpha, "beta_seconds_per_byte": beta})

    links = Links(**{name: faster(getattr(case.links, name)) for name in Links.model_fields})
    devices = tuple(each.model_copy(update={"speed": each.speed * compute}) for each in case.devices)
    return replace(case, links=links, devices=devices)


def on_links(case: Case, links: Links, speed: float) -> Case:
    """The same over other links, on machines of their own, with devices so many times as fast."""
    return replace(scaled(case, compute=speed), links=links, one_process=False, crowding=1.0)


def what_it_takes(best: Case, other: Case) -> dict[str, float]:
    """By how much links, or devices, must be faster (below 1: slower) so that another layout is as fast as the best one.

    Only changes that make it so within `FACTORS` are there. Of two such changes the smaller one counts.
    """
    found: dict[str, float] = {}
    for what in ("link", "compute"):

        def behind(exponent: float, what: str = what) -> float:
            change = {what: 10.0**exponent}
            return schedules.step(scaled(other, **change))[0].total - schedules.step(scaled(best, **change))[0].total

        crossings = [_crossing(behind, math.log10(border)) for border in FACTORS]
        exponents = [each for each in crossings if each is not None]
        if exponents:
            found[what] = 10.0 ** min(exponents, key=abs)
    return found


def _crossing(behind: Callable[[float], float], border: float) -> float | None:
    """The first exponent between 0 and a border at which nothing is behind. None: there is none on a grid of 12 points."""
    before = 0.0
    for number in range(1, 13):
        now = border * number / 12
        if behind(now) <= 0:
            for _ in range(20):
                middle = (before + now) / 2
                before, now = (before, middle) if behind(middle) <= 0 else (middle, now)
            return now
        before = now
    return None


def with_best_cut(case: Case) -> tuple[Case, float] | None:
    """A pipeline with its best cut, and how many times as fast a step is as with the even cut. None: it is no better."""
    if case.run.mode not in ("pipeline", "model_parallel"):
        return None
    try:
        even, placed = schedules.step(case)[0].total, placement.placed(case)
        gain = even / schedules.step(placed)[0].total if placed is not None else 1.0
    except (PredictionError, SpecError):
        return None
    return (placed, gain) if placed is not None and gain > 1.0 else None
