"""The steps of every mode as tasks. A new mode is one function, and its line in `SCHEDULES`.

A function lays out one or a few steps: what each device computes, in order, and which messages it waits for. Messages take
`Network` seconds. What is simplified stands in docs/plan.md.
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
from compare.judgement.scaling_laws import LinkModel, exchange_seconds
from compare.planning import events
from compare.planning.case import Case, TaskGraph, PredictionError, one_per_speed, device_rows
from compare.planning.costs import Device, item_bytes, layer_names
from compare.planning.events import Parts

ASYNCHRONOUS_STEPS = 8
"""Steps of a worker that waits for nobody: its pace settles within a few."""
MOST_BATCHES = 32
"""Of an asynchronous pipeline, which fills and drains once an epoch."""


def step(case: Case) -> tuple[Parts, dict[str, float]]:
    """Simulate a run: the parts of a step in seconds, and the peak bytes of each device.

    Raises:
        Unpredicted: the simulator does not model the run.
    """
    if case.run.variant not in SCHEDULES:
        raise PredictionError(f"no schedule of mode {case.run.variant} is known")
    if case.run.communication.compression != "none" and case.run.mode != "serial":
        raise PredictionError("what compression itself takes is not measured")
    made = SCHEDULES[case.run.variant](case)
    spans = events.run(made.tasks)
    parts = events.parts(made.tasks, spans, made.devices)
    return Parts(*(seconds / made.num_steps for seconds in parts)), made.peak_bytes


def all_reduce_seconds(link: LinkModel, replicas: int, payload: float, *, one_process: bool) -> float:
    """A sum over replicas that all receive: around a ring, or in memory, where all but one are read and added."""
    if one_process:
        return link.alpha_seconds + link.beta_seconds_per_byte * (replicas - 1) * payload if replicas > 1 else 0.0
    return exchange_seconds("ring", replicas, payload, link)


def _replicated(case: Case) -> TaskGraph:
    """Each replica computes gradients of its shard; buckets of them are summed while the backward pass goes on."""
    made, run = TaskGraph(), case.run
    cut, own = _by_bucket(case), one_per_speed(case.devices)
    for device in own:
        made.begin(case, device)
        _go_forward(case, made, device)
    statistics = _statistics_seconds(case)
    needs = [made.send("exchange", statistics, list(made.last_tasks.values()))] if statistics else []
    backward = [[made.compute(each, case.passes(each, names, _size(case))[1], needs) for each in own] for names, _ in cut]
    needs = []
    if run.replicas > 1:
        link = case.link("all_reduce")
        for (_, size), places in zip(cut, backward, strict=True):
            seconds = all_reduce_seconds(link, run.replicas, size, one_process=case.one_process)
            needs.append(made.send("exchange", seconds, places))
    for device in own:
        made.update(case, device, 1.0, needs)
    made.peak_bytes = dict.fromkeys((each.name for each in case.devices), _whole_model(case))
    return made


def _size(case: Case) -> float:
    """Examples of a micro-batch."""
    return case.run.per_replica_batch_size / case.run.micro_batches()


def _go_forward(case: Case, made: TaskGraph, device: Device) -> None:
    """The passes of a replica over its micro-batches, without the last backward pass."""
    forward, backward = case.passes(device, case.names, _size(case))
    for _ in range(case.run.micro_batches() - 1):
        made.compute(device, forward + backward)
    made.compute(device, forward)


def _compute_alone(case: Case, made: TaskGraph, device: Device) -> None:
    """Input and passes of a replica that sends nothing meanwhile."""
    made.begin(case, device)
    _go_forward(case, made, device)
    made.compute(device, case.passes(device, case.names, _size(case))[1])


def _by_bucket(case: Case) -> list[tuple[list[str], float]]:
    """(layers, bytes) of each bucket of gradients, in the order of the backward pass. In one process there is one."""
    trainable = [each for each in case.architecture.parameters() if each.trainable]
    item, names = item_bytes(case.run), list(case.names)
    if case.one_process or case.run.replicas == 1:
        return [(names[::-1], case.weight_bytes())]
    found: list[tuple[list[str], float]] = []
    stop = len(names)
    for bucket in reversed(buckets([each.size for each in trainable], item, case.run.communication.bucket_mib)):
        # Two buckets may share a layer: its kernel is in one, its bias in the other.
        first = min(names.index(trainable[bucket[0]].name.rpartition(".")[0]), stop) if bucket[0] else 0
        found.append((names[first:stop][::-1], item * sum(trainable[place].size for place in bucket)))
        stop = first
    return found


def _statistics_seconds(case: Case) -> float:
    """Of synchronised BatchNorm in a step: four small sums of each layer and micro-batch, which everybody waits for."""
    if case.run.batch_norm_statistics == "per_replica" or case.run.data_replicas == 1:
        return 0.0
    link = case.link("all_reduce")
    sizes = [case.num_bytes(layer.channels) for layer in case.architecture.leaves() if isinstance(layer, BatchNorm)]
    sums = (all_reduce_seconds(link, case.run.data_replicas, size, one_process=case.one_process) for size in sizes)
    return 4 * case.run.micro_batches() * sum(sums)


def _whole_model(case: Case, copies: int = 0) -> float:
    return case.peak_bytes(case.weight_bytes(), _size(case) * case.activation_bytes(case.names), copies)


def _sharded(case: Case) -> TaskGraph:
    """Each replica gathers a layer's parameters before its forward and its backward pass, and keeps its share of the sums.

    An all-gather and a reduce-scatter are each half a ring's all-reduce. Replicas wait for every exchange.
    """
    made, own, groups = TaskGraph(), one_per_speed(case.devices), _gathered_together(case)
    replicas, link = case.run.replicas, case.link("all_reduce")

    def exchange(size: float) -> int:
        return made.send("exchange", exchange_seconds("ring", replicas, size, link) / 2, list(made.last_tasks.values()))

    for device in own:
        made.begin(case, device)
    if statistics := _statistics_seconds(case):
        made.send("exchange", statistics, list(made.last_tasks.values()))
    scattered: list[int] = []
    for backward in (False, True):
        for names, size in reversed(groups) if backward else groups:
            gathered = exchange(size)
            for device in own:
                made.compute(device, case.passes(device, names, _size(case))[1 if backward else 0], [gathered])
            if backward:
                scattered.append(exchange(size))
    for device in own:
        made.update(case, device, 1 / replicas, scattered)
    # The largest group is whole while it computes, and so are its gradients.
    kept = _size(case) * case.activation_bytes(case.names) + 2 * max(size for _, size in groups)
    held = case.peak_bytes(case.weight_bytes() / replicas, kept)
    made.peak_bytes = dict.fromkeys((each.name for each in case.devices), held)
    return made


def _gathered_together(case: Case) -> list[tuple[list[str], float]]:
    """(layers, bytes) that share an exchange, in the order of the forward pass: in processes buckets, else a layer each."""
    sizes: Counter[str] = Counter()
    for each in case.architecture.parameters():
        sizes[each.name.rpartition(".")[0]] += each.size * each.trainable
    learned = [place for place, name in enumerate(case.names) if sizes[name]]
    bucket_mib = 0.0 if case.one_process else case.run.communication.bucket_mib
    found = buckets([sizes[case.names[place]] for place in learned], item_bytes(case.run), bucket_mib)
    starts = [0, *(learned[bucket[0]] for bucket in found[1:]), len(case.names)]
    groups = [list(case.names[start:stop]) for start, stop in itertools.pairwise(starts)]
    return [(names, case.num_bytes(sum(sizes[name] for name in names))) for names in groups]


def _averaged(case: Case) -> TaskGraph:
    """Each replica trains alone; the weights are averaged every few steps. Here a step has its share of an average."""
    made = TaskGraph()
    for device in one_per_speed(case.devices):
        _compute_alone(case, made, device)
        made.update(case, device, 1.0)
    values = case.num_bytes(sum(each.size for each in case.architecture.parameters()))
    seconds = all_reduce_seconds(case.link("all_reduce"), case.run.replicas, values, one_process=False)
    every = case.run.averaging.every_steps
    averages = (1 / every if every else 0.0) + 1 / case.steps_per_epoch  # each epoch ends with one that is scored
    made.send("exchange", seconds * averages, list(made.last_tasks.values()))
    made.peak_bytes = dict.fromkeys((each.name for each in case.devices), _whole_model(case, copies=1))
    return made


def _served(case: Case) -> TaskGraph:
    """Workers push gradients to a server and pull weights, which all pass through its one link."""
    waits = case.run.parameter_server.updates == "synchronous"
    made = TaskGraph(1 if waits else ASYNCHRONOUS_STEPS)
    weights, link = case.weight_bytes(), case.link("server")
    message = link.alpha_seconds + link.beta_seconds_per_byte * weights
    arrived: dict[str, list[int]] = {device.name: [] for device in case.devices}
    for _ in range(made.num_steps):
        pushes: dict[str, int] = {}
        for device in case.devices:
            made.compute(device, 0.0, arrived[device.name])
            _compute_alone(case, made, device)
            pushes[device.name] = made.send("server", message, [made.last_tasks[device.name]])
        updated = [made.send("server", 0.0, list(pushes.values()))] if waits else []
        for device in case.devices:
            needs = updated or [pushes[device.name]]
            arrived[device.name] = [made.send("server", message, needs)]
    made.peak_bytes = dict.fromkeys((each.name for each in case.devices), _whole_model(case))
    made.peak_bytes["server"] = case.peak_bytes(weights, 0.0, copies=case.run.replicas)
    return made


def _piped(case: Case) -> TaskGraph:
    """Micro-batches pass through the stages in the suite's own order. Copies of a stage sum their gradients at the end."""
    run, copies = case.run, case.run.data_replicas
    number = run.replicas // copies
    cut = case.stages or stages.cut(case.architecture, number)
    schedule: stages.Schedule = run.pipeline.schedule if "pipeline" in run.variant else "gpipe"
    waits = schedule != "asynchronous"
    pieces = run.micro_batches()
    # A graph ends with its batch; processes go on into the next one.
    batches = 1 if waits or case.one_process else max(min(case.steps_per_epoch, MOST_BATCHES), 1)
    made = TaskGraph(batches)
    size = run.per_replica_batch_size / pieces
    ends: list[list[int]] = [[] for _ in cut]
    simulated = list(device_rows(case.devices, number))
    for row in simulated:
        _pass_through(case, made, cut, row, schedule, pieces, batches)
        for places, device in zip(ends, row, strict=True):
            places.append(made.last_tasks[device.name])
    if waits:
        for stage, places in zip(cut, ends, strict=True):
            own = case.weight_bytes(stage.architecture)
            needs: list[int] = []
            if copies > 1:
                seconds = all_reduce_seconds(case.link("all_reduce"), copies, own, one_process=case.one_process)
                needs.append(made.send(f"copies of stage {stage.index}", seconds, places))
            for row in simulated:
                made.update(case, row[stage.index], own / case.weight_bytes(), needs)
    held: list[float] = []
    for stage in cut:
        kept = case.activation_bytes(tuple(layer_names(stage.architecture.layers))) + case.num_bytes(math.prod(stage.input_shape))
        flight = stages.in_flight(schedule, stage.index, number, pieces)
        stashed = 0 if waits else flight - 1
        held.append(case.peak_bytes(case.weight_bytes(stage.architecture), flight * size * kept, stashed))
    made.peak_bytes = {device.name: held[index % number] for index, device in enumerate(case.devices)}
    return made


def _pass_through(
    case: Case,
    made: TaskGraph,
    cut: tuple[Stage, ...],
    row: tuple[Device, ...],
    schedule: stages.Schedule,
    pieces: int,
    batches: int,
) -> None:
    """The passes of one copy of the stages."""
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
    arrived: dict[tuple[int, stages.Operation], int] = {}
    for index, operation in stages.sequence(schedule, number, pieces * batches):
        device, (kind, micro_batch) = row[index], operation
        if kind == "forward" and micro_batch % pieces == 0:
            made.begin(case, device)
        needs = [arrived.pop((index, operation))] if (index, operation) in arrived else []
        place = made.compute(device, seconds[index][0 if kind == "forward" else 1], needs)
        following = index + 1 if kind == "forward" else index - 1
        if 0 <= following < number:
            name = f"{device.name} to {row[following].name}"
            arrived[following, operation] = made.send(name, messages[min(index, following)], [place])
        if kind == "backward" and schedule == "asynchronous":
            made.update(case, device, shares[index])


def _sliced(case: Case) -> TaskGraph:
    """Every device computes its slice of each convolution and dense layer, and the other layers whole."""
    run, made, copies = case.run, TaskGraph(), case.run.data_replicas
    inner, size = run.replicas // copies, run.per_replica_batch_size
    send, total = case.link("send"), case.link("all_reduce")
    simulated = list(device_rows(case.devices, inner))
    for row in simulated:
        group = one_per_speed(row)
        for device in group:
            made.begin(case, device)
        needs: list[int] = []
        for forward in (True, False):
            for name in case.names if forward else reversed(case.names):
                unit = case.units[name]
                split = isinstance(unit.layer, Conv | Dense)
                for device in group:
                    seconds = case.passes(device, (name,), size)[0 if forward else 1]
                    made.compute(device, seconds / inner if split else seconds, needs)
                needs = []
                if split and (forward or unit.input_needs_gradient):
                    shape = unit.output_shape if forward else unit.input_shape
                    payload = size * case.num_bytes(math.prod(shape))
                    if forward or (isinstance(unit.layer, Conv) and unit.layer.groups > 1) or case.one_process:
                        link, exchanged = send, (inner - 1) * payload / inner
                        seconds = (inner - 1) * link.alpha_seconds + link.beta_seconds_per_byte * exchanged
                    else:
                        seconds = exchange_seconds("ring", inner, payload, total)
                    needs = [made.send(f"exchange of {row[0].name}", seconds, [made.last_tasks[each.name] for each in group])]
        for device in group:
            made.compute(device, 0.0, needs)
    own = case.weight_bytes() / inner
    needs = []
    if copies > 1:
        seconds = all_reduce_seconds(total, copies, own, one_process=case.one_process)
        needs = [made.send("copies", seconds, list(made.last_tasks.values()))]
    for row in simulated:
        for device in one_per_speed(row):
            made.update(case, device, 1 / inner, needs)
    kept = size * case.activation_bytes(case.names)
    made.peak_bytes = dict.fromkeys((each.name for each in case.devices), case.peak_bytes(own, kept))
    return made


SCHEDULES: Mapping[str, Callable[[Case], TaskGraph]] = {
    "serial": _replicated,
    "data_parallel": _replicated,
    "multi_process": _replicated,
    "sharded_data_parallel": _sharded,
    "parameter_server": _served,
    "parameter_server_async": _served,
    "model_parallel": _piped,
    "tensor_parallel": _sliced,
    "pipeline": _piped,
    "pipeline_1f1b": _piped,
    "pipeline_async": _piped,
    "hybrid_tensor": _sliced,
    "hybrid_pipeline": _piped,
    "model_averaging": _averaged,
}
"""By the words of `--modes`."""
