"""Predicts and ranks layouts, and computes the changes that would let another one win."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from common.frozen import Frozen
from common.models.architectures import Architecture
from common.spec import Spec, SpecError
from compare.core.scaling_laws import LinkModel
from compare.planning import placement, schedules
from compare.planning.case import Case, PredictionError, numbered_devices
from compare.planning.costs import Costs, Links, PlannedMachine
from compare.planning.layouts import PlannedLayout

FACTORS = (1e-3, 1e3)
"""Range of the factors on links or devices that are searched."""


class PredictedLayout(Frozen):
    """The prediction of one layout in one framework."""

    contestant: str
    words: str
    run: Spec
    step_seconds: float | None = None
    """Seconds of a step. None: not predicted, for the reason in `why`."""
    epoch_seconds: float | None = None
    parts: dict[str, float] = {}
    """Parts of a step in seconds: compute, input, exposed communication, bubble. Means over the devices."""
    memory_mib: dict[str, float] = {}
    """Computed peak memory of each device in MiB. In one process, the first includes the process itself."""
    process_mib: float | None = None
    """Peak memory of the fullest rank in MiB. A rank that holds all devices has their sum. A parameter server is no rank."""
    efficiency: float | None = None
    """Speed-up over serial on one device, over the number of devices. Serial on several devices' cores counts as several."""
    why: str | None = None
    """Reason why the layout is not predicted, or does not fit the memory."""
    fits: bool = True

    @property
    def rankable(self) -> bool:
        return self.step_seconds is not None and self.fits


def build_case(
    layout: PlannedLayout,
    architecture: Architecture,
    costs: Costs,
    machine: PlannedMachine,
    name: str,
    examples: int,
    *,
    one_process: bool,
) -> Case:
    """Build the case of a layout on the devices of a machine."""
    run, timings = layout.run, machine.frameworks[name]
    return Case(
        run=run,
        architecture=architecture,
        costs=costs,
        devices=numbered_devices(machine.devices[: run.replicas], run.replicas),
        links=timings.links,
        crowding=timings.crowding,
        one_process=one_process,
        train_examples=examples,
        cores=machine.cores_of_device if run.is_parallel else run.cores,
    )


def predict(name: str, layout: PlannedLayout, case: Case, serial_case: Case, limit_mib: float | None) -> PredictedLayout:
    """Simulate a layout.

    Args:
        name: the contestant.
        layout: the layout.
        case: the layout on the devices of the machine.
        serial_case: serial on one device.
        limit_mib: the user's memory limit of each device. None: the machine's own limits count.
    """
    run = layout.run
    try:
        parts, peak_bytes = schedules.step(case)
    except (PredictionError, SpecError) as error:
        return PredictedLayout(contestant=name, words=layout.words, run=run, why=f"not predicted: {error}")
    memory = {device: size / 2**20 for device, size in peak_bytes.items()}
    if case.one_process:
        memory = _in_one_process(memory, case.costs.process_mib)
    limits = {device.name: limit_mib or device.memory_mib or math.inf for device in case.devices}
    over_limit = [
        f"{device} needs {size:.0f} MiB" for device, size in memory.items() if size > limits.get(device, limit_mib or math.inf)
    ]
    return PredictedLayout(
        contestant=name,
        words=layout.words,
        run=run,
        step_seconds=parts.total,
        epoch_seconds=parts.total * case.train_examples / run.global_batch_size,
        parts=parts._asdict(),
        memory_mib=memory,
        process_mib=(sum if case.one_process else max)(memory[device.name] for device in case.devices),
        efficiency=schedules.step(serial_case)[0].total / parts.total / (run.replicas * case.cores / serial_case.cores),
        why=f"does not fit: {'; '.join(over_limit)}" if over_limit else None,
        fits=not over_limit,
    )


def _in_one_process(memory: Mapping[str, float], process_mib: float) -> dict[str, float]:
    return {device: size - (process_mib if index else 0.0) for index, (device, size) in enumerate(memory.items())}


def rank(layouts: Sequence[PredictedLayout]) -> list[PredictedLayout]:
    """Sort layouts by framework, in the given order, then by time. Layouts that are not predicted or do not fit come last."""
    order = list(dict.fromkeys(layout.contestant for layout in layouts))
    return sorted(
        layouts, key=lambda layout: (order.index(layout.contestant), not layout.rankable, layout.step_seconds or math.inf)
    )


def scale_speeds(case: Case, *, link: float = 1.0, compute: float = 1.0) -> Case:
    """Return the case with links and devices that are faster by these factors."""

    def faster(network: LinkModel | None) -> LinkModel | None:
        if network is None:
            return None
        alpha, beta = network.alpha_seconds / link, network.beta_seconds_per_byte / link
        return network.model_copy(update={"alpha_seconds": alpha, "beta_seconds_per_byte": beta})

    links = Links(**{name: faster(getattr(case.links, name)) for name in Links.model_fields})
    devices = tuple(device.model_copy(update={"speed": device.speed * compute}) for device in case.devices)
    return replace(case, links=links, devices=devices)


def with_links(case: Case, links: Links, speed: float) -> Case:
    """Return the case over other links, each device on its own machine and faster by a factor."""
    return replace(scale_speeds(case, compute=speed), links=links, one_process=False, crowding=1.0)


def required_speedups(best: Case, other: Case) -> dict[str, float]:
    """Return the factors by which links, or devices, must be faster so that another layout is as fast as the best one.

    A factor below 1 means slower. Factors outside `FACTORS` are left out. Of two factors, the smaller change counts.
    """
    speedups: dict[str, float] = {}
    for resource in ("link", "compute"):

        def lag(exponent: float, what: str = resource) -> float:
            change = {what: 10.0**exponent}
            return (
                schedules.step(scale_speeds(other, **change))[0].total - schedules.step(scale_speeds(best, **change))[0].total
            )

        crossings = [_crossing(lag, math.log10(border)) for border in FACTORS]
        exponents = [crossing for crossing in crossings if crossing is not None]
        if exponents:
            speedups[resource] = 10.0 ** min(exponents, key=abs)
    return speedups


def _crossing(lag: Callable[[float], float], border: float) -> float | None:
    """Return the first exponent between 0 and a border at which the lag is gone. None: there is none on a grid of 12 points."""
    lower = 0.0
    for number in range(1, 13):
        upper = border * number / 12
        if lag(upper) <= 0:
            for _ in range(20):
                middle = (lower + upper) / 2
                lower, upper = (lower, middle) if lag(middle) <= 0 else (middle, upper)
            return upper
        lower = upper
    return None


def with_best_cut(case: Case) -> tuple[Case, float] | None:
    """Return a pipeline with its best cut, and the speed-up of a step over the even cut. None: it is no better."""
    if case.run.traits.divides != {"layers"}:
        return None
    try:
        even, recut = schedules.step(case)[0].total, placement.place_stages(case)
        gain = even / schedules.step(recut)[0].total if recut is not None else 1.0
    except (PredictionError, SpecError):
        return None
    return (recut, gain) if recut is not None and gain > 1.0 else None
