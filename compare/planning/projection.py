"""Predictions for many replicas and other links: projections, and maps of the fastest mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.frozen import Frozen
from common.models.architectures import Architecture
from common.spec import MODES, SpecError
from compare.core.scaling_laws import LinkModel
from compare.planning import layouts, prediction, schedules
from compare.planning.accuracy import PredictionPair, error_band
from compare.planning.case import Case, PredictionError
from compare.planning.costs import Costs, Links, PlannedMachine
from compare.planning.layouts import PlannedLayout

MAP_LINKS = {
    "10 Mbit/s": (20e-3, 8e-7),
    "100 Mbit/s": (1e-3, 8e-8),
    "1 Gbit/s": (1e-4, 8e-9),
    "10 Gbit/s": (5e-5, 8e-10),
    "100 Gbit/s": (1e-5, 8e-11),
}
"""(alpha in seconds, beta in seconds per byte) of each link of the map."""
MAP_REPLICAS = (2, 4, 8, 16)
MAP_SPEEDS = (0.1, 1.0, 10.0, 100.0)
"""Speeds of devices relative to those on which the layers were timed. A faster device computes less time per byte."""


@dataclass(frozen=True)
class CostModel:
    """Costs of one model in one framework, on the devices of a machine, which are repeated as often as needed."""

    contestant: str
    values: dict[str, object]
    """Nested plain values of the spec."""
    architecture: Architecture
    costs: Costs
    machine: PlannedMachine
    one_process: frozenset[str]
    """Modes whose replicas are in one process."""
    train_examples: int
    replica_images: int
    """Images of each replica in a step."""

    def cases(self, replicas: int, modes: Sequence[str]) -> list[tuple[PlannedLayout, Case]]:
        """Return all layouts of a number of replicas. The batch grows with the replicas."""
        batch = self.replica_images * replicas
        values = {**self.values, "global_batch_size": batch}
        candidates, _ = layouts.enumerate_layouts(values, modes, replicas)
        return [
            (layout, prediction.build_case(layout, self.architecture, self.costs, self.machine, self.contestant,
                                           self.train_examples, one_process=layout.run.mode in self.one_process))
            for layout in candidates
            if layout.run.is_parallel
        ]  # fmt: skip


class ProjectedLayout(Frozen):
    """Projected, not measured: the best layout of a mode for so many replicas."""

    contestant: str
    mode: str
    words: str
    replicas: int
    step_seconds: float
    low_seconds: float | None
    """Lower end of the error band, see `accuracy.error_band`. None: nothing was measured."""
    high_seconds: float | None
    efficiency: float
    """Images per second, relative to one device, divided by the number of replicas."""


def project(
    cost_model: CostModel,
    sizes: Sequence[int],
    modes: Sequence[str],
    serial_image_seconds: float,
    measured: Sequence[PredictionPair],
) -> list[ProjectedLayout]:
    """Simulate the modes that take any number of replicas, each replica a process.

    Args:
        cost_model: the model and the machine.
        sizes: numbers of replicas.
        modes: modes of the plan. Those that do not divide the batch, and so do not take any number of replicas, are left out.
        serial_image_seconds: seconds for each image on one device, at the batch of a replica.
        measured: measured layouts, whose errors give the bands.
    """
    projections: list[ProjectedLayout] = []
    factors = error_band(measured)
    scaled_modes = [mode for mode in modes if MODES[mode].divides_batch and MODES[mode].processes != "one"]
    for replicas in sizes:
        best: dict[str, ProjectedLayout] = {}
        for layout, case in cost_model.cases(replicas, scaled_modes):
            if case.one_process or (seconds := _step_seconds(case)) is None:
                continue  # a single process does not hold that many replicas
            mode = layout.run.variant
            if mode not in best or seconds < best[mode].step_seconds:
                best[mode] = ProjectedLayout(
                    contestant=cost_model.contestant,
                    mode=mode,
                    words=layout.words,
                    replicas=replicas,
                    step_seconds=seconds,
                    low_seconds=seconds * factors[0] if factors else None,
                    high_seconds=seconds * factors[1] if factors else None,
                    efficiency=serial_image_seconds * cost_model.replica_images / seconds,
                )
        projections += best.values()
    return projections


class MapPoint(Frozen):
    """The fastest mode at one point of the map."""

    link: str
    replicas: int
    speed: float
    mode: str
    """The fastest mode. `serial` where no mode is faster than one device."""
    speedup: float
    """Images per second relative to one device."""


class MeasuredWinner(Frozen):
    """The fastest measured mode with serial's mathematics, on the measured links."""

    seconds_per_byte: float
    """Seconds per byte of a hop of an all-reduce between processes."""
    replicas: int
    mode: str
    speedup: float
    """Seconds of a serial step relative to this mode's, both of the whole batch."""


def fastest_modes(cost_model: CostModel, modes: Sequence[str], serial_image_seconds: float) -> list[MapPoint]:
    """Return the fastest mode with serial's mathematics for each combination of link, replicas and speed of devices.

    The batch grows with the replicas.
    """
    points: list[MapPoint] = []
    for replicas in MAP_REPLICAS:
        cases = [entry for entry in cost_model.cases(replicas, modes) if entry[0].run.not_serial_because is None]
        for name, (alpha, beta) in MAP_LINKS.items():
            network = LinkModel(name=name, alpha_seconds=alpha, beta_seconds_per_byte=beta)
            links = Links(all_reduce=network, send=network, server=network, memory=network)
            for speed in MAP_SPEEDS:
                best = MapPoint(link=name, replicas=replicas, speed=speed, mode="serial", speedup=1.0)
                for layout, case in cases:
                    faster = prediction.with_links(case, links, speed)
                    if (seconds := _step_seconds(faster)) is None:
                        continue
                    speedup = serial_image_seconds / speed * cost_model.replica_images * replicas / seconds
                    if speedup > best.speedup:
                        best = best.model_copy(update={"mode": layout.run.variant, "speedup": speedup})
                points.append(best)
    return points


def _step_seconds(case: Case) -> float | None:
    try:
        return schedules.step(case)[0].total
    except (PredictionError, SpecError):
        return None
