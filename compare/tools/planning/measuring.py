"""Fits the cost model from short runs on this machine: timings of devices and links, and costs of a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime

import numpy as np

from common import spec
from common.artifacts import atomic_files, records
from common.artifacts.schema import RunResult
from common.data import cache, sources
from common.machine import machine, rates
from common.machine.interference import DISTURBED_FROM, Meter, cores_taken
from common.machine.private_folder import PrivateFolder
from common.processes.exchanges import ExchangeTimings, MessageTiming
from common.spec import Spec, SpecError
from common.training import layers
from common.training.layers import LayerTimes
from compare.cli import wording
from compare.cli.errors import LaunchError
from compare.cli.progress import Display
from compare.comparison import executor
from compare.running import matrix, twin_client
from compare.running.contestants import Contestant
from compare.running.twins import Twins
from compare.statistics.scaling_laws import LinkModel, exchange_terms
from compare.tools.planning import planned_machine
from compare.tools.planning.case import SLOTS, Costs, ModelTimes, item_bytes
from compare.tools.planning.planned_machine import FOLDER, Device, FrameworkTimings, Links, PlannedMachine

CALIBRATION = {"model": "mini_xception", "data": {"source": "digits", "image_size": 32}}
"""Spec of the runs that measure links, and how much devices slow each other down."""
CALIBRATION_IMAGES = 16
CALLS = 3
"""Number of timed calls of each layer and batch size."""
STEPS, PROFILED_STEPS = 12, 5
"""Number of steps, and of profiled steps, of the short serial run."""


def measure_framework(
    contestant: Contestant,
    versions: dict[str, str],
    run_spec: Spec,
    replicas: int,
    hosts: Sequence[str],
    cores: int,
    progress: Display,
    *,
    server: bool,
) -> FrameworkTimings:
    """Time the messages of a framework's processes, and how much these slow each other down. See `this_machine`."""
    meter = Meter()
    copy_rates = rates.measure_in_subprocess(cores)
    # A copied byte is read and written.
    memory = (
        None
        if copy_rates is None
        else LinkModel(name="memory", alpha_seconds=0.0, beta_seconds_per_byte=2e-9 / copy_rates.copy_gb_per_second)
    )
    if replicas < 2:
        return FrameworkTimings(versions=versions, links=Links(memory=memory))
    values = {
        **CALIBRATION, "replicas": replicas, "hosts": list(hosts), "cores": cores * replicas, "steps": 1,
        "device": run_spec.device, "global_batch_size": CALIBRATION_IMAGES * replicas,
        "paths": {"cache_dir": run_spec.paths.cache_dir},
    }  # fmt: skip
    exchanges: list[ExchangeTimings] = []
    for mode in ("multi_process", "parameter_server")[: 1 + server]:
        progress.stage(f"{contestant.name}: what {replicas} processes send each other, {mode}")
        answer = twin_client.query(contestant, "exchanges", spec.build({**values, "mode": mode}))
        exchanges.append(ExchangeTimings.model_validate_json(answer))
    ranks = exchanges[0]
    crowding = ranks.together_seconds / ranks.alone_seconds if ranks.alone_seconds and ranks.together_seconds else 1.0
    links = Links(
        all_reduce=fit_link("all_reduce", ranks.all_reduce, lambda size: exchange_terms("ring", replicas, size)),
        send=fit_link("send", ranks.send, lambda size: (1.0, size)),
        server=fit_link("server", exchanges[-1].server, lambda size: exchange_terms("server", replicas, size)),
        memory=memory,
    )
    disturbed = _is_disturbed(meter, run_spec)
    return FrameworkTimings(versions=versions, crowding=max(crowding, 1.0), links=links, disturbed=disturbed)


def _is_disturbed(meter: Meter, run_spec: Spec) -> bool:
    """Return whether other work has taken cores of the budget since the meter began."""
    return cores_taken(meter.cores_of_others(), run_spec.cores, machine.describe()) > DISTURBED_FROM


def this_machine(
    twins: Twins,
    run_spec: Spec,
    replicas: int,
    hosts: Sequence[str],
    progress: Display,
    *,
    server: bool = True,
    measure: Callable[..., FrameworkTimings] = measure_framework,
) -> PlannedMachine:
    """Return this machine, measured now or read from the cache folder.

    Args:
        twins: contestants to measure.
        run_spec: spec of the planned run. Only its cores, device and cache folder matter.
        replicas: number of replicas that share its cores or accelerators.
        hosts: equal machines that the replicas are spread over. The first is this one. Empty: all replicas are here.
        server: whether messages of a parameter server are timed, too.
        measure: times a framework that the cache folder does not hold.
    """
    described = {name: spec.description_for_device(run_spec, twins.describe(name)) for name in twins.names}
    entries = next(iter(described.values()))["devices"]
    on_cpu = all(entry["kind"] == "cpu" for entry in entries)
    cores = _cores_of_replica(run_spec.cores, len(entries), replicas, max(len(hosts), 1), on_cpu=on_cpu)
    device_names = [f"cpu {index}" for index in range(replicas)] if on_cpu else [entry["name"] for entry in entries]
    path = planned_machine.cache_path(run_spec.paths.cache_dir, device_names, run_spec.cores, replicas, hosts)
    known = planned_machine.read(path) if path.exists() else None
    known_timings = known.frameworks if known is not None else {}
    fresh: dict[str, FrameworkTimings] = {}
    for name in twins.names:
        timings, versions = known_timings.get(name), described[name]["versions"]
        has_links = timings is not None and (timings.links.server or not server or replicas < 2)
        if timings is None or timings.versions != versions or not has_links:
            timings = measure(twins[name], versions, run_spec, replicas, hosts, cores, progress, server=server)
        fresh[name] = timings
    facts = machine.describe() | {"gpus": None if on_cpu else device_names}
    own_machine = PlannedMachine(
        name=f"{machine.processors(facts)}, {run_spec.cores} cores" + (f" on each of {len(hosts)} hosts" if hosts else ""),
        facts=facts,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        devices=[Device(name=name) for name in device_names],
        cores_of_device=cores,
        frameworks=known_timings | fresh,
    )
    undisturbed = all(not timings.disturbed for timings in own_machine.frameworks.values())
    if undisturbed and known_timings != own_machine.frameworks:
        atomic_files.write_atomically(path, planned_machine.text(own_machine))
    return own_machine


def _cores_of_replica(cores: int, devices: int, replicas: int, hosts: int, *, on_cpu: bool) -> int:
    """Return the cores of each replica. Refuse more replicas than there are cores or GPUs."""
    cores_of_replica = cores // -(-replicas // hosts) if on_cpu else max(cores // max(devices, 1), 1)
    if not cores_of_replica:
        raise SpecError(
            f"plan gives each replica a core. Received: {replicas} replicas for {cores} cores. Use fewer replicas, or plan for "
            "a --machine FILE."
        )
    if not on_cpu and devices * hosts < replicas:
        raise SpecError(
            f"plan gives each replica a GPU. Received: {replicas} replicas for {wording.count(devices, 'GPU')}. Use fewer "
            "replicas, plan for the CPU with --set device=cpu, or plan for a --machine FILE."
        )
    return cores_of_replica


def fit_link(name: str, samples: Sequence[MessageTiming], terms: Callable[[float], tuple[float, float]]) -> LinkModel | None:
    """Fit alpha and beta of messages, both at least 0, by least relative squares. None: nothing was timed.

    Args:
        name: name of the link.
        samples: timed messages.
        terms: function from bytes to (factor of alpha, factor of beta) of an exchange.
    """
    if not samples:
        return None
    from scipy import optimize  # here: see scaling_laws

    seconds = np.array([sample.seconds for sample in samples])
    term_matrix = np.array([terms(sample.num_bytes) for sample in samples])
    scale = term_matrix.max(axis=0)
    alpha, beta = (optimize.nnls(term_matrix / scale / seconds[:, None], np.ones_like(seconds))[0] / scale).tolist()
    return LinkModel(name=name, alpha_seconds=alpha, beta_seconds_per_byte=beta)


def model_costs(
    twins: Twins, name: str, run_spec: Spec, batches: Collection[tuple[int, int]], cores: int, progress: Display
) -> Costs:
    """Return the costs of a model in a framework, measured now or read from the cache folder.

    Args:
        name: the contestant's name.
        run_spec: spec of a serial run of the model.
        batches: (cores, batch size) where its layers are timed.
        cores: number of cores of the serial run that is timed.
    """
    fields = run_spec.model_dump(mode="json", exclude={"steps", "epochs", "mode", "replicas", "paths", "hang_seconds", "cores"})
    versions = twins.describe(name)["versions"]
    key = {"spec": fields, "versions": versions, "batches": sorted(batches), "cores": cores, "machine": machine.describe()}
    path = cache.folder(run_spec.paths.cache_dir) / FOLDER / f"{atomic_files.digest({**key, 'framework': name})[:16]}.json"
    if path.exists():
        try:
            return records.read(path, Costs, kind="measurement of a model", remedy="It is measured again.")
        except records.RecordError:
            pass
    architecture = sources.architecture_of(run_spec)
    units, meter = layers.unique_layers(architecture), Meter()
    times: list[ModelTimes] = []
    for own_cores, size in sorted(batches):
        progress.stage(f"{name}: layers at batch {size} on {wording.count(own_cores, 'core')}")
        serial_spec = run_spec.with_fields(global_batch_size=size, cores=own_cores)
        measured = LayerTimes.model_validate_json(twin_client.query(twins[name], "layers", serial_spec, "--calls", str(CALLS)))
        seconds = {layer: measured.seconds[index] for index, unit in enumerate(units) for layer in unit.names}
        times.append(ModelTimes(cores=own_cores, batch_size=size, seconds=seconds, whole_seconds=measured.whole_seconds))
    size = max(batch for device_cores, batch in batches if device_cores == cores)
    progress.stage(f"{name}: a short serial run")
    result = _short_run(twins[name], run_spec.with_fields(global_batch_size=size, cores=cores))
    weights = item_bytes(run_spec) * sum(parameter.size for parameter in architecture.parameters() if parameter.trainable)
    activation_bytes = sum(len(unit.names) * float(np.prod(unit.output_shape)) for unit in units) * item_bytes(run_spec) * size
    costs = _costs_from_run(times, result, cores, size, activation_bytes + (2 + SLOTS[run_spec.optimizer.name]) * weights)
    costs = costs.model_copy(
        update={"disturbed": _is_disturbed(meter, run_spec.with_fields(cores=max(device_cores for device_cores, _ in batches)))}
    )
    if not costs.disturbed:
        records.write(path, costs)
    return costs


def _short_run(contestant: Contestant, run_spec: Spec) -> RunResult:
    short_spec = run_spec.with_fields(epochs=None, steps=STEPS, profile_steps=PROFILED_STEPS, checkpoint_seconds=None)
    row = matrix.build_row("serial", contestant, short_spec)
    with PrivateFolder() as temporary:
        result = executor.execute(contestant, row, 0, temporary.path, lambda events: None)
    if result.status != "ok":
        raise LaunchError(f"{contestant.name}: the short serial run ended as {result.status}: {result.reason}")
    return result


def _costs_from_run(times: list[ModelTimes], result: RunResult, cores: int, size: int, model_bytes: float) -> Costs:
    steps = sum(epoch.timed_steps for epoch in result.epochs)
    if not steps:
        raise LaunchError("The short serial run has no timed step. Use data with more images.")
    step = sum(epoch.timed_seconds for epoch in result.epochs) / steps
    input_wait = sum(epoch.input_wait_seconds for epoch in result.epochs) / steps
    images = sum(epoch.timed_images for epoch in result.epochs) / steps
    parts = result.step_parts
    forward, backward = (parts.forward_seconds, parts.backward_seconds) if parts else (None, None)
    known = forward is not None and backward is not None and forward + backward > 0
    fraction = forward / (forward + backward) if known and forward is not None and backward is not None else 1 / 3
    update = (parts.optimizer_seconds if parts else None) or 0.0
    (whole,) = (entry.whole_seconds for entry in times if (entry.cores, entry.batch_size) == (cores, size))
    resident = max(result.peak_memory_by_process_mib, default=0.0)
    return Costs(
        times=times,
        forward_fraction=fraction,
        update_seconds=update,
        overhead_seconds=max(step - input_wait - update - whole * images / size, 0.0),
        input_image_seconds=input_wait / images,
        process_mib=max(resident - model_bytes / 2**20, 0.0),
    )
