"""Cases whose times are made up, so that a closed form is known."""

from typing import Any

from common import spec
from common.models import architectures, stages
from common.models.architectures import Architecture
from compare.statistics.scaling_laws import LinkModel
from compare.tools.planning.case import Case, Costs, ModelTimes, layer_names
from compare.tools.planning.planned_machine import Device, Links

FREE = LinkModel(name="free", alpha_seconds=0.0, beta_seconds_per_byte=0.0)
BATCH = 64


def link(alpha: float, beta: float) -> LinkModel:
    return LinkModel(name="made", alpha_seconds=alpha, beta_seconds_per_byte=beta)


def links(network: LinkModel) -> Links:
    return Links(all_reduce=network, send=network, server=network, memory=network)


def run(variant: str, replicas: int, **fields: Any) -> spec.Spec:
    values = spec.overlay({"model": "mini_xception", "global_batch_size": BATCH, "cores": 1}, fields)
    return spec.build(spec.with_variant(values, variant, replicas))


def architecture(model: str = "mini_xception") -> Architecture:
    return architectures.resolve(model, 10, 32)


def costs(made: Architecture, number: int = 1, **fields: Any) -> Costs:
    """Every one of so many stages takes a second for a whole batch, a third of it forward."""
    seconds: dict[str, float] = {}
    for stage in stages.cut(made, number):
        names = list(layer_names(stage.architecture.layers))
        seconds |= dict.fromkeys(names, 1.0 / len(names))
    times = [ModelTimes(cores=1, batch_size=BATCH, seconds=seconds, whole_seconds=float(number))]
    none: dict[str, Any] = {"update_seconds": 0.0, "overhead_seconds": 0.0, "input_image_seconds": 0.0, "process_mib": 0.0}
    return Costs(times=times, forward_fraction=1 / 3, **(none | fields))


def case(
    wanted: spec.Spec,
    *,
    network: LinkModel = FREE,
    speeds: tuple[float, ...] = (),
    stages_of_costs: int = 1,
    one_process: bool = False,
    crowding: float = 1.0,
    of_costs: dict[str, Any] | None = None,
) -> Case:
    made = architecture(wanted.model)
    return Case(
        run=wanted,
        architecture=made,
        costs=costs(made, stages_of_costs, **(of_costs or {})),
        devices=tuple(Device(name=str(index), speed=speed) for index, speed in enumerate(speeds or (1.0,) * wanted.replicas)),
        links=links(network),
        crowding=crowding,
        one_process=one_process,
        train_examples=100 * BATCH,
        cores=1,
    )
