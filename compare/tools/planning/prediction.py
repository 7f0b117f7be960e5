"""Lists the layouts of every mode, predicts and ranks them, and computes the changes that would let another one win."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common import spec
from common.frozen import Frozen
from common.models.architectures import Architecture
from common.spec import MODES, Mode, Spec, SpecError
from compare.statistics.scaling_laws import LinkModel
from compare.tools.planning import placement, schedules
from compare.tools.planning.case import Case, Costs, PredictionError, numbered_devices
from compare.tools.planning.planned_machine import Links, PlannedMachine

MAX_INNER_REPLICAS = 16
"""Largest number of replicas that share one copy of a hybrid's model. More would cut layers too small."""
MICRO_BATCHES = (2, 4, 8, 16)
SERIAL_WORDS = "serial"
"""Words of the layout that all others are compared with: serial on the cores of one device."""
EVERY_STEPS = (1, 10, 100, None)
"""Steps between two averages. None: one average an epoch."""
FACTORS = (1e-3, 1e3)
"""Range of the factors on links or devices that are searched."""


def enumerate_layouts(values: dict[str, Any], modes: Sequence[str], replicas: int) -> tuple[dict[str, Spec], dict[str, str]]:
    """Return (runs by the words of their layout, reasons why a mode has none) of some modes on a total number of replicas.

    Args:
        values: nested plain values of the spec.
        modes: words of `spec.MODES`. Serial always comes first.
    """
    serial = spec.build(spec.with_variant(values, "serial", 1))
    layouts, refusals = {SERIAL_WORDS: serial}, dict[str, str]()
    for mode in modes:
        traits = MODES[mode]
        for words, fields, copies in _choices(traits, replicas) if traits.is_parallel else ():
            try:
                run = spec.build(spec.with_variant(spec.overlay(values, fields), mode, copies))
            except SpecError as error:
                refusals.setdefault(mode, str(error))
                continue
            # A run that would be cut into fewer micro-batches is a layout of its own.
            is_cut = not traits.cuts_batches or run.micro_batches() == run.pipeline.micro_batches
            if run.replicas == replicas and is_cut:
                layouts[f"{mode} x{replicas}{words}"] = run
        if traits.is_parallel and not any(run.variant == mode for run in layouts.values()):
            refusals.setdefault(mode, f"no layout of it has {replicas} replicas at batch {serial.global_batch_size}")
    return layouts, refusals


def _choices(mode: Mode, replicas: int) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Yield (words, fields, replicas as `with_variant` takes them) of each layout of a mode."""
    inner = (
        [number for number in range(2, min(replicas // 2, MAX_INNER_REPLICAS) + 1) if replicas % number == 0]
        if mode.is_nested
        else [1]
    )
    for degree in inner:
        degrees = {"hybrid.inner_replicas": degree} if mode.is_nested else {}
        words, copies = (f" ({replicas // degree} copies)" if degrees else ""), replicas // degree
        if mode.cuts_batches:
            for number in MICRO_BATCHES:
                yield f"{words}, {number} micro-batches", degrees | {"pipeline.micro_batches": number}, copies
        elif mode.trains_apart:
            for every in EVERY_STEPS:
                interval = "every epoch" if every is None else "every step" if every == 1 else f"every {every} steps"
                yield f"{words}, {interval}", degrees | {"averaging.every_steps": every}, copies
        else:
            yield words, degrees, copies


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


@dataclass(frozen=True)
class CostModel:
    """Costs of one model in one framework, on the devices of a machine, which are repeated as often as needed."""

    contestant: str
    values: dict[str, Any]
    """Nested plain values of the spec."""
    serial: Spec
    """Serial on one device."""
    architecture: Architecture
    costs: Costs
    machine: PlannedMachine
    one_process: frozenset[str]
    """Modes whose replicas are in one process."""
    train_examples: int

    def case(self, run: Spec) -> Case:
        """Build the case of a run."""
        timings = self.machine.frameworks[self.contestant]
        return Case(
            run=run,
            architecture=self.architecture,
            costs=self.costs,
            devices=numbered_devices(self.machine.devices[: run.replicas], run.replicas),
            links=timings.links,
            crowding=timings.crowding,
            one_process=run.mode in self.one_process,
            train_examples=self.train_examples,
            cores=self.machine.cores_of_device if run.is_parallel else run.cores,
        )

    def parallel_cases(self, modes: Sequence[str], replicas: int, batch_size: int) -> list[tuple[str, Case]]:
        """Return (words, case) of all layouts of a number of replicas, with a global batch size."""
        layouts, _ = enumerate_layouts({**self.values, "global_batch_size": batch_size}, modes, replicas)
        return [(words, self.case(run)) for words, run in layouts.items() if run.is_parallel]

    def serial_seconds(self, batch_size: int) -> float:
        """Return the seconds of a serial step on one device."""
        return schedules.step(self.case(self.serial.with_fields(global_batch_size=batch_size)))[0].total


def predict(name: str, words: str, case: Case, serial: Case, limit_mib: float | None) -> PredictedLayout:
    """Simulate a layout.

    Args:
        name: the contestant.
        words: description of the layout.
        case: the layout on the devices of the machine.
        serial: serial on one device, with the same batch.
        limit_mib: the user's memory limit of each device. None: the machine's own limits count.
    """
    run = case.run
    try:
        parts, peak_bytes = schedules.step(case)
    except (PredictionError, SpecError) as error:
        return PredictedLayout(contestant=name, words=words, run=run, why=f"not predicted: {error}")
    memory = {device: size / 2**20 for device, size in peak_bytes.items()}
    if case.one_process:
        first, shared_mib = next(iter(memory)), case.costs.process_mib
        memory = {device: size if device == first else size - shared_mib for device, size in memory.items()}
    limits = {device.name: limit_mib or device.memory_mib or math.inf for device in case.devices}
    over_limit = [
        f"{device} needs {size:.0f} MiB" for device, size in memory.items() if size > limits.get(device, limit_mib or math.inf)
    ]
    return PredictedLayout(
        contestant=name,
        words=words,
        run=run,
        step_seconds=parts.total,
        epoch_seconds=parts.total * case.train_examples / run.global_batch_size,
        parts=parts._asdict(),
        memory_mib=memory,
        process_mib=(sum if case.one_process else max)(memory[device.name] for device in case.devices),
        efficiency=schedules.step(serial)[0].total / parts.total / (run.replicas * case.cores / serial.cores),
        why=f"does not fit: {'; '.join(over_limit)}" if over_limit else None,
        fits=not over_limit,
    )


def step_seconds(case: Case) -> float | None:
    """Return the seconds of a step. None: it cannot be predicted."""
    try:
        return schedules.step(case)[0].total
    except (PredictionError, SpecError):
        return None


def rank(layouts: Sequence[PredictedLayout]) -> list[PredictedLayout]:
    """Sort layouts by framework, in the given order, then by time. Layouts that are not predicted or do not fit come last."""
    order = list(dict.fromkeys(layout.contestant for layout in layouts))
    return sorted(
        layouts, key=lambda layout: (order.index(layout.contestant), not layout.rankable, layout.step_seconds or math.inf)
    )


def best_of_each_mode(layouts: Sequence[PredictedLayout]) -> list[PredictedLayout]:
    """Return the best layout of each mode in one framework, and of serial on each number of cores, in ranked order."""
    best: dict[str, PredictedLayout] = {}
    for layout in layouts:
        if layout.rankable:
            best.setdefault(layout.run.variant if layout.run.is_parallel else layout.words, layout)
    return list(best.values())


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


def with_network(case: Case, network: LinkModel, speed: float = 1.0) -> Case:
    """Return the case over another network, each device on its own machine and faster by a factor."""
    links = Links(**dict.fromkeys(Links.model_fields, network))
    return replace(scale_speeds(case, compute=speed), links=links, one_process=False, crowding=1.0)


def required_speedups(best: Case, other: Case) -> dict[str, float]:
    """Return how many times as fast links, or devices, must be so that another layout is as fast as the best one.

    A factor below 1 means slower. Factors outside `FACTORS` are left out. Of two factors, the smaller change counts.
    """
    speedups: dict[str, float] = {}
    for resource in ("link", "compute"):

        def lag(exponent: float, resource: str = resource) -> float:
            slower, faster = (schedules.step(scale_speeds(case, **{resource: 10.0**exponent}))[0] for case in (other, best))
            return slower.total - faster.total

        crossings = [_crossing(lag, math.log10(border)) for border in FACTORS]
        exponents = [crossing for crossing in crossings if crossing is not None]
        if exponents:
            speedups[resource] = 10.0 ** min(exponents, key=abs)
    return speedups


def _crossing(lag: Callable[[float], float], border: float) -> float | None:
    """Return the first exponent between 0 and a border where the lag is gone. None: there is none on a grid of 12 points."""
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
        recut = placement.place_stages(case)
    except (PredictionError, SpecError):
        return None
    even, best = step_seconds(case), recut and step_seconds(recut)
    return (recut, even / best) if recut and even and best and best < even else None
