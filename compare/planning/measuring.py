"""The cost model, fitted from short real runs on this machine: what devices and links do, and what a model costs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime

import numpy as np

from common import spec
from common.artifacts import atomic_files, records
from common.artifacts.schema import RunResult
from common.data import cache, sources
from common.machine import machine, rates
from common.machine.interference import DISTURBED_FROM, Meter, cores_lost
from common.machine.private_folder import PrivateFolder
from common.processes.exchanges import Exchanged, Timed
from common.spec import Spec, SpecError
from common.training import layers
from common.training.layers import Measured
from compare.core import wording
from compare.core.errors import LaunchError
from compare.core.progress import Display
from compare.execution import executor, launch, matrix, twin_client
from compare.judgement.scaling_laws import Network, exchange_terms
from compare.planning import machine_file
from compare.planning.case import SLOTS
from compare.planning.costs import Costs, Device, Links, Machine, OfFramework, Times, item_bytes
from compare.planning.machine_file import FOLDER

CALIBRATION = {"model": "mini_xception", "data": {"source": "digits", "image_size": 32}}
"""What devices compute together while their crowding is measured. The images of a replica are 16."""
CALIBRATION_IMAGES = 16
CALLS = 3
"""Timed, of each layer and batch size."""
STEPS, PROFILED_STEPS = 12, 5
"""Of the short serial run."""


def this_machine(
    names: Sequence[str], wanted: Spec, replicas: int, hosts: Sequence[str], shown: Display, *, server: bool = True
) -> Machine:
    """This machine, measured now or read from the cache folder.

    Args:
        wanted: of the run that is planned; its cores, device and cache folder count.
        replicas: that its cores or accelerators are divided among.
        hosts: machines of its kind that the replicas are spread over. The first is this one. Empty: all are here.
        server: whether messages of a parameter server are timed, too.

    Raises:
        SpecError: there are fewer cores than replicas, or a twin refuses.
        LaunchError: a twin fails.
    """
    described = {name: spec.of_device(wanted, launch.describe(name)) for name in names}
    found = next(iter(described.values()))["devices"]
    on_cpu = all(each["kind"] == "cpu" for each in found)
    cores = wanted.cores // -(-replicas // max(len(hosts), 1)) if on_cpu else max(wanted.cores // max(len(found), 1), 1)
    if not cores:
        raise SpecError(
            f"plan gives each replica a core. Received: {replicas} replicas for {wanted.cores} cores. Use fewer replicas, or "
            "plan for a --machine FILE."
        )
    if not on_cpu and len(found) * max(len(hosts), 1) < replicas:
        raise SpecError(
            f"plan gives each replica a GPU. Received: {replicas} replicas for {wording.count(len(found), 'GPU')}. Use fewer "
            "replicas, plan for the CPU with --set device=cpu, or plan for a --machine FILE."
        )
    devices = (
        [Device(name=f"cpu {index}") for index in range(replicas)] if on_cpu else [Device(name=each["name"]) for each in found]
    )
    path = machine_file.cached(wanted.paths.cache_dir, [each.name for each in devices], wanted.cores, replicas, hosts)
    known = machine_file.read(path) if path.exists() else None
    here = known.frameworks if known is not None else {}
    fresh = {
        name: own
        for name, own in here.items()
        if name in names and own.versions == described[name]["versions"] and (own.links.server or not server or replicas < 2)
    }
    for name in names:
        if name not in fresh:
            fresh[name] = _of_framework(name, described[name]["versions"], wanted, replicas, hosts, cores, shown, server=server)
    facts = machine.describe() | {"gpus": None if on_cpu else [each.name for each in devices]}
    made = Machine(
        name=f"{machine.processors(facts)}, {wanted.cores} cores" + (f" on each of {len(hosts)} hosts" if hosts else ""),
        facts=facts,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        devices=devices,
        cores_of_device=cores,
        frameworks=here | fresh,
    )
    kept = all(not each.disturbed for each in made.frameworks.values())
    if kept and (known is None or known.frameworks != made.frameworks):
        atomic_files.write_atomically(path, machine_file.text(made))
    return made


def _of_framework(
    name: str,
    versions: dict[str, str],
    wanted: Spec,
    replicas: int,
    hosts: Sequence[str],
    cores: int,
    shown: Display,
    *,
    server: bool,
) -> OfFramework:
    others = Meter()
    copied = rates.measured(cores)
    # A copied byte is read and written.
    memory = (
        None
        if copied is None
        else Network(name="memory", alpha_seconds=0.0, beta_seconds_per_byte=2e-9 / copied.copy_gb_per_second)
    )
    if replicas < 2:
        return OfFramework(versions=versions, links=Links(memory=memory))
    values = {
        **CALIBRATION, "replicas": replicas, "hosts": list(hosts), "cores": cores * replicas, "steps": 1,
        "device": wanted.device, "global_batch_size": CALIBRATION_IMAGES * replicas,
        "paths": {"cache_dir": wanted.paths.cache_dir},
    }  # fmt: skip
    found: list[Exchanged] = []
    for mode in ("multi_process", "parameter_server")[: 1 + server]:
        shown.stage(f"{name}: what {replicas} processes send each other, {mode}")
        answer = twin_client.answer(name, "exchanges", spec.build({**values, "mode": mode}))
        found.append(Exchanged.model_validate_json(answer))
    ranks = found[0]
    crowding = ranks.together_seconds / ranks.alone_seconds if ranks.alone_seconds and ranks.together_seconds else 1.0
    links = Links(
        all_reduce=fitted("all_reduce", ranks.all_reduce, lambda size: exchange_terms("ring", replicas, size)),
        send=fitted("send", ranks.send, lambda size: (1.0, size)),
        server=fitted("server", found[-1].server, lambda size: exchange_terms("server", replicas, size)),
        memory=memory,
    )
    disturbed = _disturbed(others, wanted)
    return OfFramework(versions=versions, crowding=max(crowding, 1.0), links=links, disturbed=disturbed)


def _disturbed(others: Meter, wanted: Spec) -> bool:
    """Whether other work has taken cores of the budget since the meter began."""
    return cores_lost(others.cores_of_others(), wanted.cores, machine.describe()) > DISTURBED_FROM


def fitted(name: str, timed: Sequence[Timed], terms: Callable[[float], tuple[float, float]]) -> Network | None:
    """Alpha and beta of the messages, both at least 0, by least relative squares. None: nothing was timed.

    Args:
        terms: (factor of alpha, factor of beta) of an exchange of so many bytes.
    """
    if not timed:
        return None
    from scipy import optimize  # here: see scaling_laws

    seconds = np.array([each.seconds for each in timed])
    matrix_ = np.array([terms(each.num_bytes) for each in timed])
    scale = matrix_.max(axis=0)
    alpha, beta = (optimize.nnls(matrix_ / scale / seconds[:, None], np.ones_like(seconds))[0] / scale).tolist()
    return Network(name=name, alpha_seconds=alpha, beta_seconds_per_byte=beta)


def model_costs(name: str, wanted: Spec, batches: Collection[tuple[int, int]], cores: int, shown: Display) -> Costs:
    """What a model costs in a framework: timed now, or read from the cache folder.

    Args:
        wanted: a serial run of it.
        batches: (cores, batch size) at which its layers are timed.
        cores: of the device whose serial run is timed.

    Raises:
        SpecError, LaunchError: the twin refuses or fails.
    """
    fields = wanted.model_dump(mode="json", exclude={"steps", "epochs", "mode", "replicas", "paths", "hang_seconds", "cores"})
    versions = launch.describe(name)["versions"]
    key = {"spec": fields, "versions": versions, "batches": sorted(batches), "cores": cores, "machine": machine.describe()}
    path = cache.folder(wanted.paths.cache_dir) / FOLDER / f"{atomic_files.digest({**key, 'framework': name})[:16]}.json"
    if path.exists():
        try:
            return records.read(path, Costs, what="measurement of a model", again="It is measured again.")
        except records.RecordError:
            pass
    architecture = sources.architecture_of(wanted)
    units, others = layers.units(architecture), Meter()
    times: list[Times] = []
    for own_cores, size in sorted(batches):
        shown.stage(f"{name}: layers at batch {size} on {wording.count(own_cores, 'core')}")
        alone = wanted.with_fields(global_batch_size=size, cores=own_cores)
        found = Measured.model_validate_json(twin_client.answer(name, "layers", alone, "--calls", str(CALLS)))
        seconds = {layer: found.seconds[index] for index, unit in enumerate(units) for layer in unit.names}
        times.append(Times(cores=own_cores, batch_size=size, seconds=seconds, whole_seconds=found.whole_seconds))
    size = max(batch for own, batch in batches if own == cores)
    shown.stage(f"{name}: a short serial run")
    result = _short_run(name, wanted.with_fields(global_batch_size=size, cores=cores))
    weights = item_bytes(wanted) * sum(each.size for each in architecture.parameters() if each.trainable)
    kept = sum(len(unit.names) * float(np.prod(unit.output_shape)) for unit in units) * item_bytes(wanted) * size
    made = _with_run(times, result, cores, size, kept + (2 + SLOTS[wanted.optimizer.name]) * weights)
    made = made.model_copy(update={"disturbed": _disturbed(others, wanted.with_fields(cores=max(own for own, _ in batches)))})
    if not made.disturbed:
        records.write(path, made)
    return made


def _short_run(name: str, wanted: Spec) -> RunResult:
    short = wanted.with_fields(epochs=None, steps=STEPS, profile_steps=PROFILED_STEPS, checkpoint_seconds=None)
    with PrivateFolder() as temporary:
        result = executor.execute(matrix.row("serial", name, short), 0, temporary.path, lambda events: None)
    if result.status != "ok":
        raise LaunchError(f"{name}: the short serial run ended as {result.status}: {result.reason}")
    return result


def _with_run(times: list[Times], result: RunResult, cores: int, size: int, held_bytes: float) -> Costs:
    steps = sum(each.timed_steps for each in result.epochs)
    if not steps:
        raise LaunchError("The short serial run has no timed step. Use data with more images.")
    step = sum(each.timed_seconds for each in result.epochs) / steps
    waited = sum(each.input_wait_seconds for each in result.epochs) / steps
    images = sum(each.timed_images for each in result.epochs) / steps
    parts = result.step_parts
    forward, backward = (parts.forward_seconds, parts.backward_seconds) if parts else (None, None)
    known = forward is not None and backward is not None and forward + backward > 0
    fraction = forward / (forward + backward) if known and forward is not None and backward is not None else 1 / 3
    update = (parts.optimizer_seconds if parts else None) or 0.0
    (whole,) = (each.whole_seconds for each in times if (each.cores, each.batch_size) == (cores, size))
    resident = max(result.peak_memory_by_process_mib, default=0.0)
    return Costs(
        times=times,
        forward_fraction=fraction,
        update_seconds=update,
        overhead_seconds=max(step - waited - update - whole * images / size, 0.0),
        input_image_seconds=waited / images,
        process_mib=max(resident - held_bytes / 2**20, 0.0),
    )
