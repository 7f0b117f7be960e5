"""The steps of every mode as tasks. A new mode is one function, and its line in `SCHEDULES`.

A function lists the tasks of one or a few steps: what each device computes, in order, and the messages it waits for. A
`LinkModel` gives the seconds of a message. docs/plan.md lists the simplifications.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping

from common.models import stages
from common.models.architectures import BatchNorm, Conv, Dense
from common.models.stages import Stage
from common.training.compression import buckets
from compare.statistics.scaling_laws import LinkModel, exchange_seconds
from compare.tools.planning import events
from compare.tools.planning.case import Case, PredictionError, TaskGraph, device_rows, item_bytes, layer_names, one_per_speed
from compare.tools.planning.events import Parts
from compare.tools.planning.planned_machine import Device

ASYNCHRONOUS_STEPS = 8
"""Simulated steps of asynchronous workers: their pace settles within a few."""
MAX_BATCHES = 32
"""Largest number of simulated batches of an asynchronous pipeline, which fills and drains once an epoch."""


def step(case: Case) -> tuple[Parts, dict[str, float]]:
    """Simulate a run: the parts of a step in seconds, and the peak bytes of each device.

    Raises:
        PredictionError: the simulator does not model the run.
    """
    if case.run.variant not in SCHEDULES:
        raise PredictionError(
            f"no schedule of mode {case.run.variant} is known: compare/tools/planning/schedules.py has none in SCHEDULES"
        )
    if case.run.communication.compression != "none" and case.run.is_parallel:
        raise PredictionError("what compression itself takes is not measured")
    graph = SCHEDULES[case.run.variant](case)
    spans = events.run(graph.tasks)
    parts = events.parts(graph.tasks, spans, graph.devices)
    return Parts(*(seconds / graph.num_steps for seconds in parts)), graph.peak_bytes


def all_reduce_seconds(link: LinkModel, replicas: int, payload: float, *, one_process: bool) -> float:
    """Return the seconds of an all-reduce: around a ring, or in memory, where all but one replica are read and added."""
    if one_process:
        return link.alpha_seconds + link.beta_seconds_per_byte * (replicas - 1) * payload if replicas > 1 else 0.0
    return exchange_seconds("ring", replicas, payload, link)


def _data_parallel_step(case: Case) -> TaskGraph:
    """Each replica computes gradients of its shard; buckets of them are summed while the backward pass goes on."""
    graph, run = TaskGraph(), case.run
    gradient_buckets, devices = _gradient_buckets(case), one_per_speed(case.devices)
    for device in devices:
        graph.begin(case, device)
        _add_passes(case, graph, device)
    statistics = _statistics_seconds(case)
    needs = [graph.send("exchange", statistics, list(graph.last_tasks.values()))] if statistics else []
    backward = [
        [graph.compute(device, case.passes(device, names, _micro_batch_size(case))[1], needs) for device in devices]
        for names, _ in gradient_buckets
    ]
    needs = []
    if run.replicas > 1:
        link = case.link("all_reduce")
        for (_, size), places in zip(gradient_buckets, backward, strict=True):
            seconds = all_reduce_seconds(link, run.replicas, size, one_process=case.one_process)
            needs.append(graph.send("exchange", seconds, places))
    for device in devices:
        graph.update(case, device, 1.0, needs)
    graph.peak_bytes = dict.fromkeys((device.name for device in case.devices), _whole_model_bytes(case))
    return graph


def _micro_batch_size(case: Case) -> float:
    """Return the number of examples of a micro-batch."""
    return case.run.per_replica_batch_size / case.run.micro_batches()


def _add_passes(case: Case, graph: TaskGraph, device: Device) -> None:
    """Add the passes of a replica over its micro-batches, without the last backward pass."""
    forward, backward = case.passes(device, case.names, _micro_batch_size(case))
    for _ in range(case.run.micro_batches() - 1):
        graph.compute(device, forward + backward)
    graph.compute(device, forward)


def _add_independent_replica(case: Case, graph: TaskGraph, device: Device) -> None:
    """Add input and passes of a replica that does not communicate."""
    graph.begin(case, device)
    _add_passes(case, graph, device)
    graph.compute(device, case.passes(device, case.names, _micro_batch_size(case))[1])


def _gradient_buckets(case: Case) -> list[tuple[list[str], float]]:
    """Return (layers, bytes) of each bucket of gradients, in the order of the backward pass. In one process there is one."""
    trainable = [parameter for parameter in case.architecture.parameters() if parameter.trainable]
    item, names = item_bytes(case.run), list(case.names)
    if case.one_process or case.run.replicas == 1:
        return [(names[::-1], case.weight_bytes())]
    groups: list[tuple[list[str], float]] = []
    stop = len(names)
    for bucket in reversed(buckets([parameter.size for parameter in trainable], item, case.run.communication.bucket_mib)):
        # Two buckets may share a layer: its kernel is in one, its bias in the other.
        first = min(names.index(trainable[bucket[0]].name.rpartition(".")[0]), stop) if bucket[0] else 0
        groups.append((names[first:stop][::-1], item * sum(trainable[place].size for place in bucket)))
        stop = first
    return groups


def _statistics_seconds(case: Case) -> float:
    """Return the seconds of synchronised BatchNorm in a step: four small all-reduces of each layer and micro-batch."""
    if case.run.batch_norm_statistics == "per_replica" or case.run.data_replicas == 1:
        return 0.0
    link = case.link("all_reduce")
    sizes = [case.num_bytes(layer.channels) for layer in case.architecture.leaves() if isinstance(layer, BatchNorm)]
    sums = (all_reduce_seconds(link, case.run.data_replicas, size, one_process=case.one_process) for size in sizes)
    return 4 * case.run.micro_batches() * sum(sums)


def _whole_model_bytes(case: Case, copies: int = 0) -> float:
    return case.peak_bytes(case.weight_bytes(), _micro_batch_size(case) * case.activation_bytes(case.names), copies)


def _sharded_step(case: Case) -> TaskGraph:
    """Each replica gathers a layer's parameters before its forward and its backward pass, and keeps its share of the sums.

    An all-gather and a reduce-scatter are each half a ring's all-reduce. Replicas wait for every exchange.
    """
    graph, devices, groups = TaskGraph(), one_per_speed(case.devices), _parameter_groups(case)
    replicas, link = case.run.replicas, case.link("all_reduce")

    def exchange(size: float) -> int:
        return graph.send("exchange", exchange_seconds("ring", replicas, size, link) / 2, list(graph.last_tasks.values()))

    for device in devices:
        graph.begin(case, device)
    if statistics := _statistics_seconds(case):
        graph.send("exchange", statistics, list(graph.last_tasks.values()))
    scattered: list[int] = []
    for backward in (False, True):
        for names, size in reversed(groups) if backward else groups:
            gathered = exchange(size)
            for device in devices:
                graph.compute(device, case.passes(device, names, _micro_batch_size(case))[1 if backward else 0], [gathered])
            if backward:
                scattered.append(exchange(size))
    for device in devices:
        graph.update(case, device, 1 / replicas, scattered)
    # The largest group is whole while it computes, and so are its gradients.
    activation_bytes = _micro_batch_size(case) * case.activation_bytes(case.names) + 2 * max(size for _, size in groups)
    peak_bytes = case.peak_bytes(case.weight_bytes() / replicas, activation_bytes)
    graph.peak_bytes = dict.fromkeys((device.name for device in case.devices), peak_bytes)
    return graph


def _parameter_groups(case: Case) -> list[tuple[list[str], float]]:
    """Return (layers, bytes) that share an exchange, in the order of the forward pass: buckets, or layers in one process."""
    sizes: Counter[str] = Counter()
    for parameter in case.architecture.parameters():
        sizes[parameter.name.rpartition(".")[0]] += parameter.size * parameter.trainable
    trainable = [place for place, name in enumerate(case.names) if sizes[name]]
    bucket_mib = 0.0 if case.one_process else case.run.communication.bucket_mib
    bucketed = buckets([sizes[case.names[place]] for place in trainable], item_bytes(case.run), bucket_mib)
    starts = [0, *(trainable[bucket[0]] for bucket in bucketed[1:]), len(case.names)]
    groups = [list(case.names[start:stop]) for start, stop in itertools.pairwise(starts)]
    return [(names, case.num_bytes(sum(sizes[name] for name in names))) for names in groups]


def _averaging_step(case: Case) -> TaskGraph:
    """Each replica trains alone; the weights are averaged every few steps. Here a step has its share of an average."""
    graph = TaskGraph()
    for device in one_per_speed(case.devices):
        _add_independent_replica(case, graph, device)
        graph.update(case, device, 1.0)
    values = case.num_bytes(sum(parameter.size for parameter in case.architecture.parameters()))
    seconds = all_reduce_seconds(case.link("all_reduce"), case.run.replicas, values, one_process=False)
    every_steps = case.run.averaging.every_steps
    averages = (1 / every_steps if every_steps else 0.0) + 1 / case.steps_per_epoch  # each epoch ends with one that is scored
    graph.send("exchange", seconds * averages, list(graph.last_tasks.values()))
    graph.peak_bytes = dict.fromkeys((device.name for device in case.devices), _whole_model_bytes(case, copies=1))
    return graph


def _parameter_server_step(case: Case) -> TaskGraph:
    """Workers push gradients to a server and pull weights, which all pass through its one link."""
    is_synchronous = case.run.parameter_server.updates == "synchronous"
    graph = TaskGraph(1 if is_synchronous else ASYNCHRONOUS_STEPS)
    weights, link = case.weight_bytes(), case.link("server")
    message = link.alpha_seconds + link.beta_seconds_per_byte * weights
    arrived: dict[str, list[int]] = {device.name: [] for device in case.devices}
    for _ in range(graph.num_steps):
        pushes: dict[str, int] = {}
        for device in case.devices:
            graph.compute(device, 0.0, arrived[device.name])
            _add_independent_replica(case, graph, device)
            pushes[device.name] = graph.send("server", message, [graph.last_tasks[device.name]])
        updated = [graph.send("server", 0.0, list(pushes.values()))] if is_synchronous else []
        for device in case.devices:
            needs = updated or [pushes[device.name]]
            arrived[device.name] = [graph.send("server", message, needs)]
    graph.peak_bytes = dict.fromkeys((device.name for device in case.devices), _whole_model_bytes(case))
    graph.peak_bytes["server"] = case.peak_bytes(weights, 0.0, copies=case.run.replicas)
    return graph


def _pipeline_step(case: Case) -> TaskGraph:
    """Micro-batches pass through the stages in the suite's own order. Copies of a stage sum their gradients at the end."""
    run, copies = case.run, case.run.data_replicas
    number = run.replicas // copies
    cut = case.stages or stages.cut(case.architecture, number)
    schedule: stages.Schedule = run.pipeline.schedule if run.traits.cuts_batches else "gpipe"
    is_synchronous = schedule != "asynchronous"
    pieces = run.micro_batches()
    # A graph ends with its batch; processes go on into the next one.
    batches = 1 if is_synchronous or case.one_process else max(min(case.steps_per_epoch, MAX_BATCHES), 1)
    graph = TaskGraph(batches)
    size = run.per_replica_batch_size / pieces
    ends: list[list[int]] = [[] for _ in cut]
    simulated = list(device_rows(case.devices, number))
    for row in simulated:
        _add_pipeline_passes(case, graph, cut, row, schedule, pieces, batches)
        for places, device in zip(ends, row, strict=True):
            places.append(graph.last_tasks[device.name])
    if is_synchronous:
        for stage, places in zip(cut, ends, strict=True):
            stage_bytes = case.weight_bytes(stage.architecture)
            needs: list[int] = []
            if copies > 1:
                seconds = all_reduce_seconds(case.link("all_reduce"), copies, stage_bytes, one_process=case.one_process)
                needs.append(graph.send(f"copies of stage {stage.index}", seconds, places))
            for row in simulated:
                graph.update(case, row[stage.index], stage_bytes / case.weight_bytes(), needs)
    peaks: list[float] = []
    for stage in cut:
        activation_bytes = case.activation_bytes(tuple(layer_names(stage.architecture.layers))) + case.num_bytes(
            math.prod(stage.input_shape)
        )
        flight = stages.in_flight(schedule, stage.index, number, pieces)
        num_copies = 0 if is_synchronous else flight - 1
        peaks.append(case.peak_bytes(case.weight_bytes(stage.architecture), flight * size * activation_bytes, num_copies))
    graph.peak_bytes = {device.name: peaks[index % number] for index, device in enumerate(case.devices)}
    return graph


def _add_pipeline_passes(
    case: Case,
    graph: TaskGraph,
    cut: tuple[Stage, ...],
    row: tuple[Device, ...],
    schedule: stages.Schedule,
    pieces: int,
    batches: int,
) -> None:
    """Add the passes of one copy of the stages."""
    number, size = len(cut), case.run.per_replica_batch_size / pieces
    link = case.link("send")
    crowded = pieces > 1 or case.run.data_replicas > 1
    seconds = [
        case.passes(device, tuple(layer_names(stage.architecture.layers)), size, crowded=crowded)
        for stage, device in zip(cut, row, strict=True)
    ]
    messages = [
        link.alpha_seconds + link.beta_seconds_per_byte * size * case.num_bytes(math.prod(stage.output_shape)) for stage in cut
    ]
    shares = [case.weight_bytes(stage.architecture) / case.weight_bytes() for stage in cut]
    arrived: dict[tuple[int, stages.PipelineOperation], int] = {}
    for index, operation in stages.sequence(schedule, number, pieces * batches):
        device, (kind, micro_batch) = row[index], operation
        if kind == "forward" and micro_batch % pieces == 0:
            graph.begin(case, device)
        needs = [arrived.pop((index, operation))] if (index, operation) in arrived else []
        place = graph.compute(device, seconds[index][0 if kind == "forward" else 1], needs)
        neighbour = index + 1 if kind == "forward" else index - 1
        if 0 <= neighbour < number:
            name = f"{device.name} to {row[neighbour].name}"
            arrived[neighbour, operation] = graph.send(name, messages[min(index, neighbour)], [place])
        if kind == "backward" and schedule == "asynchronous":
            graph.update(case, device, shares[index])


def _tensor_parallel_step(case: Case) -> TaskGraph:
    """Every device computes its slice of each convolution and dense layer, and the other layers whole."""
    run, graph, copies = case.run, TaskGraph(), case.run.data_replicas
    inner, size = run.replicas // copies, run.per_replica_batch_size
    send, total = case.link("send"), case.link("all_reduce")
    simulated = list(device_rows(case.devices, inner))
    for row in simulated:
        group = one_per_speed(row)
        for device in group:
            graph.begin(case, device)
        needs: list[int] = []
        for forward in (True, False):
            for name in case.names if forward else reversed(case.names):
                unit = case.units[name]
                is_sliced = isinstance(unit.layer, Conv | Dense)
                for device in group:
                    seconds = case.passes(device, (name,), size)[0 if forward else 1]
                    graph.compute(device, seconds / inner if is_sliced else seconds, needs)
                needs = []
                if is_sliced and (forward or unit.input_needs_gradient):
                    shape = unit.output_shape if forward else unit.input_shape
                    payload = size * case.num_bytes(math.prod(shape))
                    if forward or (isinstance(unit.layer, Conv) and unit.layer.groups > 1) or case.one_process:
                        link, exchanged_bytes = send, (inner - 1) * payload / inner
                        seconds = (inner - 1) * link.alpha_seconds + link.beta_seconds_per_byte * exchanged_bytes
                    else:
                        seconds = exchange_seconds("ring", inner, payload, total)
                    needs = [
                        graph.send(f"exchange of {row[0].name}", seconds, [graph.last_tasks[device.name] for device in group])
                    ]
        for device in group:
            graph.compute(device, 0.0, needs)
    shard_bytes = case.weight_bytes() / inner
    needs = []
    if copies > 1:
        seconds = all_reduce_seconds(total, copies, shard_bytes, one_process=case.one_process)
        needs = [graph.send("copies", seconds, list(graph.last_tasks.values()))]
    for row in simulated:
        for device in one_per_speed(row):
            graph.update(case, device, 1 / inner, needs)
    activation_bytes = size * case.activation_bytes(case.names)
    graph.peak_bytes = dict.fromkeys((device.name for device in case.devices), case.peak_bytes(shard_bytes, activation_bytes))
    return graph


SCHEDULES: Mapping[str, Callable[[Case], TaskGraph]] = {
    "serial": _data_parallel_step,
    "data_parallel": _data_parallel_step,
    "multi_process": _data_parallel_step,
    "sharded_data_parallel": _sharded_step,
    "parameter_server": _parameter_server_step,
    "parameter_server_async": _parameter_server_step,
    "model_parallel": _pipeline_step,
    "tensor_parallel": _tensor_parallel_step,
    "pipeline": _pipeline_step,
    "pipeline_1f1b": _pipeline_step,
    "pipeline_async": _pipeline_step,
    "hybrid_tensor": _tensor_parallel_step,
    "hybrid_pipeline": _pipeline_step,
    "model_averaging": _averaging_step,
}
"""Function that lists the tasks of each mode, by its name in `--modes`."""
