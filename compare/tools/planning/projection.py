"""Predictions for many replicas and other links: projections, and maps of the fastest mode."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from common.frozen import Frozen
from common.spec import MODES
from compare.statistics.scaling_laws import Kind, LinkModel
from compare.tools.planning import prediction
from compare.tools.planning.accuracy import PredictionPair, error_band
from compare.tools.planning.prediction import CostModel

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
"""Speeds of devices relative to those that timed the layers. A faster device computes less time per byte."""


class ProjectedLayout(Frozen):
    """Projected, not measured: the best layout of a mode for so many replicas."""

    contestant: str
    mode: str
    words: str
    replicas: int
    kind: Kind
    """`strong`: the global batch is fixed; `weak`: it grows with the replicas."""
    network: str | None
    """Name of the network. None: the links of the planned machine."""
    step_seconds: float
    low_seconds: float | None
    """Lower end of the error band, see `accuracy.error_band`. None: nothing was measured."""
    high_seconds: float | None
    efficiency: float
    """Images per second, relative to one device, divided by the number of replicas."""


def project(
    cost_model: CostModel,
    modes: Sequence[str],
    share: int,
    measured: Sequence[PredictionPair],
    *,
    sizes: Sequence[int],
    kinds: Sequence[Kind],
    network: LinkModel | None,
) -> list[ProjectedLayout]:
    """Simulate the modes that take any number of replicas, each replica a process.

    Args:
        cost_model: the model and the machine.
        modes: modes of the plan. Those that do not divide the batch, and so do not take any number of replicas, are left out.
        share: images of each replica in a step of weak scaling.
        measured: measured layouts, whose errors give the bands.
        sizes: numbers of replicas.
        kinds: kinds of scaling.
        network: links between the devices. None: those of the machine.
    """
    factors = error_band(measured) or (None, None)
    scaled_modes = [mode for mode in modes if MODES[mode].divides_batch and MODES[mode].processes != "one"]
    best: dict[tuple[Kind, int, str], ProjectedLayout] = {}
    for kind, replicas in itertools.product(kinds, sizes):
        batch, base = (share * replicas, share) if kind == "weak" else (cost_model.serial.global_batch_size,) * 2
        image_seconds = cost_model.serial_seconds(base) / base
        for words, case in cost_model.parallel_cases(scaled_modes, replicas, batch):
            if case.one_process:
                continue  # a single process does not hold that many replicas
            seconds = prediction.step_seconds(prediction.with_network(case, network) if network else case)
            key = kind, replicas, case.run.variant
            if seconds is not None and (key not in best or seconds < best[key].step_seconds):
                low, high = (factor and seconds * factor for factor in factors)
                best[key] = ProjectedLayout(
                    contestant=cost_model.contestant,
                    mode=case.run.variant,
                    words=words,
                    replicas=replicas,
                    kind=kind,
                    network=network and network.name,
                    step_seconds=seconds,
                    low_seconds=low,
                    high_seconds=high,
                    efficiency=image_seconds * batch / replicas / seconds,
                )
    return list(best.values())


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


def fastest_modes(cost_model: CostModel, modes: Sequence[str], share: int) -> list[MapPoint]:
    """Return the fastest mode with serial's mathematics for each combination of link, replicas and speed of devices.

    Args:
        cost_model: the model and the machine.
        modes: modes of the plan.
        share: images of each replica in a step. The batch grows with the replicas.
    """
    points: list[MapPoint] = []
    image_seconds = cost_model.serial_seconds(share) / share
    for replicas in MAP_REPLICAS:
        batch = share * replicas
        cases = [case for _, case in cost_model.parallel_cases(modes, replicas, batch) if case.run.not_serial_because is None]
        for (name, (alpha, beta)), speed in itertools.product(MAP_LINKS.items(), MAP_SPEEDS):
            network = LinkModel(name=name, alpha_seconds=alpha, beta_seconds_per_byte=beta)
            fastest = ("serial", 1.0)
            for case in cases:
                seconds = prediction.step_seconds(prediction.with_network(case, network, speed))
                if seconds is not None and (speedup := image_seconds / speed * batch / seconds) > fastest[1]:
                    fastest = case.run.variant, speedup
            points.append(MapPoint(link=name, replicas=replicas, speed=speed, mode=fastest[0], speedup=fastest[1]))
    return points
