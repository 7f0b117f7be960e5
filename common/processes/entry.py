"""The command line that both twins share: `python -m <twin> describe | models | run | ...`.

A twin's `__main__` gives its parts as callables, so that the CPU budget and the allocator are settled before its
framework is imported, and so that the launcher of several ranks never imports it at all.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import hashlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol, get_args

import numpy as np

from common import spec
from common.artifacts import checkpoint, event_log, results, schema
from common.data import sources
from common.data.batches import Plan
from common.data.preprocessing import job, scaling
from common.machine import heartbeat, machine, placement
from common.machine.rates import DeviceRates
from common.models import architectures, weights
from common.processes import hosts, parameter_server, serving, supervisor
from common.processes.process_spec import ProcessSpec
from common.spec import Spec
from common.training import inference, layers, timing, tracing
from common.training.loop import Diverged, Run, is_first_rank
from common.training.trainer import Trainer

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_DATA_REFUSED = 0, 1, 2, 4

OF_THE_PROCESS = ("mode", "replicas", "cores", "device", "precision", "switches", "framework_options", "hosts")
"""Fields of the spec by which a process settles its threads, devices and ranks, once."""


@dataclass(frozen=True)
class Twin:
    """What one framework brings to a run."""

    describe: Callable[[], dict[str, Any]]
    """Devices, modes possible here, switches: JSON-ready."""
    configure: Callable[..., None]
    """(spec, trials=1): settle threads and devices; called once, before any tensor is made."""
    build: Callable[[Spec, architectures.Architecture, Plan, sources.Dataset, weights.Weights], tracing.TraceableTrainer]
    """The Trainer of the spec's mode."""
    summarize: Callable[[architectures.Architecture], dict[str, Any]]
    """Layers, output shapes and values of the model as the framework has built it: JSON-ready."""
    passes: layers.Passes
    """Layers by themselves."""
    scanning: job.Scanning
    """Sums over the pixels of image files by the framework's own input workers."""
    inference: inference.Inference
    synchronize: Callable[[], None]
    device_peak_memory_mib: Callable[[], float | None]
    device_rates: Callable[[Spec], DeviceRates | None]
    """Of the process's accelerator in the spec's arithmetic; None on a CPU."""
    device: str
    versions: dict[str, str]


class Switches(Protocol):
    """A twin's module of that name: what of its switches is settled before the framework is imported."""

    def prepare(self, spec: Spec) -> str:
        """Settle what a process must know before it imports the framework; the allocator, in words."""
        ...


class Rendezvous(Protocol):
    """A twin's module of that name: what can be said of ranks without importing the framework."""

    WAITING: str
    """Matches the file names of the frames in which a rank waits for the others."""

    def environments(self, spec: Spec) -> list[dict[str, str]]:
        """What tells each rank of a run who it is; empty for a mode of one process."""
        ...

    def adopt(self) -> None:
        """Learn who this rank is from an outer launcher, where one has started it."""
        ...


def main(
    framework: str,
    load_twin: Callable[[], Twin],
    rendezvous: Rendezvous,
    switches: Switches,
    argv: Sequence[str] | None = None,
) -> int:
    """Do one command.

    Args:
        framework: its name in results.
        load_twin: imports the framework.
        rendezvous: how ranks find each other.
        switches: what a process must know before.
        argv: the words behind `python -m <twin>`; None: those of this process.

    Returns:
        The exit code.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(prog=f"python -m {framework}_impl", description=f"The {framework} twin.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("describe", help="devices, modes and switches of this framework on this machine, as JSON")
    for command, what in (
        ("models", "the model of a spec as the framework has built it (JSON)"),
        ("run", "train: DIR/events.jsonl grows, DIR/result.json seals"),
        ("trace", "record the arrays of a few steps for the parity proof (safetensors)"),
        ("layers", "time each layer of the model by itself (JSON)"),
    ):
        subparser = commands.add_parser(command, help=what)
        subparser.add_argument("spec", type=Path, metavar="SPEC.json")
        if command == "run":
            subparser.add_argument("--out", type=Path, required=True, metavar="DIR")
            subparser.add_argument("--repeat", type=int, default=0, help="which repeat this is, for the result")
            subparser.add_argument("--resume", type=Path, metavar="DIR", help="go on from the checkpoint of an earlier attempt")
        if command in ("models", "trace", "layers"):
            subparser.add_argument("--out", type=Path, required=True, metavar="FILE")
        if command == "layers":
            subparser.add_argument("--calls", type=int, required=True, help="timed, of each")
        if command == "trace":
            subparser.add_argument("--reverse-batches", action="store_true", help="sum in another order: the yardstick")
            subparser.add_argument(
                "--then",
                type=Path,
                nargs=2,
                action="append",
                default=[],
                metavar=("SPEC.json", "FILE"),
                help="another spec for the same process: one that asks for the same threads, devices and switches",
            )
    subparser = commands.add_parser("serve-trials", help="train what lines of JSON on stdin ask for, and tell it on stdout")
    subparser.add_argument("--cores", type=int, required=True, help="of each trial")
    subparser.add_argument("--trials", type=int, default=1, help="side by side, each in a thread of its own")
    subparser.add_argument("--place", type=int, default=0, help="of this process among several that share the budget, from 0")
    subparser.add_argument("--budget", type=int, help="cores of all of them; default: those of this one")
    subparser.add_argument("--device", choices=get_args(spec.Device), default="auto", help="of each trial, as in its spec")
    subparser = commands.add_parser("preprocess", help="scan the image files of a split for their sums (JSON)")
    subparser.add_argument("job", type=Path, metavar="JOB.npz")
    subparser.add_argument("--workers", type=int, required=True)
    subparser.add_argument("--out", type=Path, required=True, metavar="FILE")
    inference.add_commands(commands)
    arguments = parser.parse_args(words)
    if arguments.command == "describe":
        twin = load_twin()
        print(json.dumps({**twin.describe(), "formats": twin.inference.suffixes}, indent=1))
        return EXIT_OK

    supervisor.die_with_parent()
    heartbeat.attach()
    signal.signal(signal.SIGTERM, _leave)
    if arguments.command == "preprocess":
        machine.keep_freed_memory()
        job.run(load_twin().scanning, arguments.job, arguments.workers, arguments.out, timing.process_started())
        return EXIT_OK
    if arguments.command in inference.COMMANDS:
        return _infer(load_twin, arguments)
    if arguments.command == "serve-trials":
        return _serve(framework, load_twin, arguments)
    try:
        rendezvous.adopt()
        read = _read(arguments.spec)
        others = [(_read(path), path, out) for path, out in getattr(arguments, "then", ())]
    except spec.SpecError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    _choose_device(read.device)
    for other, path, _ in others:
        if differing := [name for name in OF_THE_PROCESS if getattr(other, name) != getattr(read, name)]:
            print(f"--then takes specs for one process. {path} has another {', '.join(differing)}.", file=sys.stderr)
            return EXIT_USAGE
    if arguments.command == "models":
        arguments.out.write_text(json.dumps(load_twin().summarize(_architecture(read)), indent=1), encoding="utf-8")
        return EXIT_OK
    started = timing.process_started()
    try:
        environments = rendezvous.environments(read)
        is_rank = _is_rank(read, environments)
    except spec.SpecError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    if arguments.command == "run" and is_first_rank() and timing.STARTED_VARIABLE not in os.environ:
        results.clear(arguments.out)
    if arguments.command == "layers" and read.mode != "serial":
        print(f"layers times one replica. Received: mode {read.mode}. Use serial.", file=sys.stderr)
        return EXIT_USAGE
    if environments and others:
        print(f"--then takes specs for one process. Mode {read.mode} has several.", file=sys.stderr)
        return EXIT_USAGE
    if environments and not is_rank:
        return _launch(framework, read, arguments, words, environments, rendezvous.WAITING, started)
    cpus = machine.cpu_budget(read.cores)
    machine.hold_to(_own_cpus(cpus, read))
    allocator = switches.prepare(read)
    twin = load_twin()
    description = twin.describe()
    try:
        refusal = spec.check_against(read, description, placement.replicas_that_share_gpus() if is_rank else None)
    except spec.SpecError as error:
        refusal = str(error)
    if refusal is not None:
        print(refusal, file=sys.stderr)
        return EXIT_USAGE
    if arguments.command == "trace":
        twin.configure(read)
        for what, out in [(read, arguments.out), *((other, out) for other, _, out in others)]:
            _trace(framework, twin, what, out, arguments.reverse_batches)
        return EXIT_OK
    if arguments.command == "layers":
        return _time_layers(twin, read, arguments)
    options = description["options"]
    facts = {"switches": spec.resolved(read, options), "reduced": spec.reduced(read, options)}
    return _run(framework, twin, read, arguments, started, cpus, allocator, facts)


def leave(code: int) -> NoReturn:
    """End the process with the exit code of `main`; for a framework whose ranks need nothing of each other any more by then.

    A rank ends without taking its interpreter apart: threads that exchanged tensors for it may still ask for that, and end the
    process by SIGABRT when all is done and written. What else wants to be tidied up at the end is.
    """
    if "RANK" not in os.environ:
        sys.exit(code)
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # as the interpreter does itself, while it is whole
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _read(path: Path) -> Spec:
    """A spec, judged again: for this machine.

    Raises:
        SpecError: the file cannot be read, or is no spec.
    """
    try:
        return spec.from_json(path.read_bytes()).with_fields()
    except (OSError, ValueError) as error:
        raise spec.SpecError(f"{path} is not a spec: {error}") from None


def _infer(load_twin: Callable[[], Twin], arguments: argparse.Namespace) -> int:
    try:
        settled = inference.settle(arguments.cores, arguments.device)
        _choose_device(settled.device)
        twin = load_twin()
        twin.configure(settled)
        inference.run(twin.inference, arguments, twin.device, twin.versions, settled.cores)
    except (spec.SpecError, weights.WeightsError) as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except sources.DataRefused as error:
        print(error, file=sys.stderr)
        return EXIT_DATA_REFUSED
    return EXIT_OK


def _run(
    framework: str,
    twin: Twin,
    read: Spec,
    arguments: argparse.Namespace,
    started: float,
    cpus: list[int],
    allocator: str,
    facts: dict[str, Any],
) -> int:
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    twin.configure(read)
    stopwatch = timing.Stopwatch(twin.synchronize, started)
    run = Run(framework, read, twin.versions, out, arguments.repeat, stopwatch, cpus)
    held = {"cpus": cpus, "physical_cores": machine.physical_cores(cpus)}
    run.record(machine={**machine.describe(), "allocator": allocator, **held}, **facts)
    status: schema.Status = "ok"
    reason = None
    code = EXIT_OK
    try:
        with stopwatch.phase("build"):
            dataset, plan, trainer = _build(framework, twin, read, run)
        run.train(trainer, plan, dataset, arguments.resume)
        if (memory := twin.device_peak_memory_mib()) is not None:
            run.record(device_peak_memory_mib=float(trainer.total(np.array([memory]))[0]))
        run.rate(twin.device_rates)
        run.profile(trainer, plan)
        trainer.close()
    except Diverged as error:
        status, reason, code = "diverged", str(error), EXIT_FAILED
    except (Exception, KeyboardInterrupt) as error:
        with contextlib.suppress(OSError):  # stderr may be a file on the very disk that is full
            traceback.print_exc()
        status, reason, code = "failed", f"{type(error).__name__}: {_first_line(error)}", EXIT_FAILED
        if isinstance(error, KeyboardInterrupt):
            status, reason, code = "killed", "interrupted", 128 + signal.SIGINT
        if isinstance(error, sources.DataRefused):
            code = EXIT_DATA_REFUSED
    if is_first_rank():
        run.record(device=twin.device)
        results.save(run.result(status, reason), out)
        event_log.append_event(out, "end", status=status)
        if status == "ok":
            checkpoint.remove(out)
    return code


def _build(framework: str, twin: Twin, read: Spec, run: Run) -> tuple[sources.Dataset, Plan, tracing.TraceableTrainer]:
    dataset, plan, _, trainer = _prepare(framework, twin, read, reverse_batches=False)
    # Of what the model holds, not of what was drawn: a twin that did not load them would show.
    weights_hash = weights.digest(trainer.weights())
    run.record(pixel_mean=plan.scaling.mean, pixel_std=plan.scaling.std)
    run.record(data_hash=dataset.content_hash, weights_hash=weights_hash, class_names=list(dataset.class_names))
    return dataset, plan, trainer


def _prepare(
    framework: str, twin: Twin, read: Spec, *, reverse_batches: bool
) -> tuple[sources.Dataset, Plan, weights.Weights, tracing.TraceableTrainer]:
    dataset = sources.load(read.data, seed=read.split_seed, cache_dir=read.paths.cache_dir)
    heartbeat.reached()
    architecture = architectures.resolve(read.model, len(dataset.class_names), dataset.image_size)
    pixels = scaling.of(read.data, dataset, cache_dir=read.paths.cache_dir)
    plan = Plan(read, architecture, len(dataset.train), reverse_batches, pixels)
    initial = weights.initial(architecture, read.seed)
    trainer = twin.build(read, architecture, plan, dataset, initial)
    if "RANK" in os.environ:
        folders = [machine.PROJECT_ROOT / folder for folder in ("common", f"{framework}_impl")]
        code = machine.code_digest([*folders, *architectures.user_folders(read.model)])
        _agree(trainer, {"data": dataset.content_hash, "code": code})
    return dataset, plan, initial, trainer


def _agree(trainer: tracing.TraceableTrainer, digests: dict[str, str]) -> None:
    """Hold all ranks to the same digests: they may be on several machines.

    Raises:
        RuntimeError: a rank has another one than rank 0.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for what, digest in digests.items():
        told = np.zeros((ranks, 32), np.int64)
        told[rank] = list(hashlib.sha256(digest.encode()).digest())
        told = trainer.total(told)
        others = [str(other) for other in range(ranks) if (told[other] != told[0]).any()]
        if others:
            raise RuntimeError(f"rank {', '.join(others)} has other {what} than rank 0. Bring every host the same.")


def _trace(framework: str, twin: Twin, read: Spec, out: Path, reverse_batches: bool) -> None:
    dataset, plan, initial, trainer = _prepare(framework, twin, read, reverse_batches=reverse_batches)
    arrays = tracing.trace(trainer, plan, dataset, initial)
    trainer.close()
    if is_first_rank():
        weights.save(arrays, out)


def _time_layers(twin: Twin, read: Spec, arguments: argparse.Namespace) -> int:
    twin.configure(read)
    try:
        measured = layers.measure(
            read,
            _architecture(read),
            twin.passes,
            twin.synchronize,
            arguments.calls,
            device=twin.device,
            versions=twin.versions,
            device_rates=lambda: twin.device_rates(read),
        )
    except spec.SpecError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    layers.save(measured, arguments.out)
    return EXIT_OK


def _serve(framework: str, load_twin: Callable[[], Twin], arguments: argparse.Namespace) -> int:
    started = timing.process_started()
    own = arguments.cores * arguments.trials
    cpus = machine.cpu_budget(arguments.budget or own)
    first = arguments.place * own % len(cpus)
    machine.hold_to(cpus[first : first + own])
    machine.keep_freed_memory()
    _choose_device(arguments.device)
    serving.leave_at_once()
    with serving.answers() as answers:
        twin = load_twin()
        twin.configure(spec.build({"cores": arguments.cores}), arguments.trials)

        def prepare(read: Spec) -> tuple[sources.Dataset, Plan, Trainer]:
            description = twin.describe()
            if (refusal := spec.check_against(read, description)) is not None:
                raise spec.SpecError(refusal)
            if read.device != arguments.device:
                raise spec.SpecError(
                    f"device is {arguments.device!r} for all trials of this process. Received: {read.device!r}."
                )
            spec.refuse_per_process(read, description["options"], framework)
            dataset, plan, _, trainer = _prepare(framework, twin, read, reverse_batches=False)
            return dataset, plan, trainer

        made = serving.Serving(
            framework, twin.versions, arguments.cores, prepare, twin.synchronize, lambda line: print(line, file=answers)
        )
        made.serve(sys.stdin, device=twin.device, start_seconds=time.time() - started)
    return EXIT_OK


def _choose_device(device: str) -> None:
    """Before the framework is imported, which looks for GPUs once: both ask CUDA, whom this tells to have none."""
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"


def _architecture(read: Spec) -> architectures.Architecture:
    dataset = sources.describe(read.data, seed=read.split_seed, cache_dir=read.paths.cache_dir)
    return architectures.resolve(read.model, len(dataset.class_names), dataset.image_size)


def _launch(
    framework: str,
    read: Spec,
    arguments: argparse.Namespace,
    words: list[str],
    rank_environments: list[dict[str, str]],
    waiting: str,
    started: float,
) -> int:
    """Run the command in several processes; where one dies or hangs, end all and say which."""
    machine.hold_to(machine.cpu_budget(read.cores))
    folder = arguments.out if arguments.command == "run" else arguments.out.with_suffix(".stacks")
    try:
        server, address = parameter_server.of_its_own(read) or (None, {})
        shared = {timing.STARTED_VARIABLE: repr(started), **address}
        members = [
            _member(framework, read, arguments, words, rank, environment | shared)
            for rank, environment in enumerate(rank_environments)
        ]
        if server is not None:
            members.append(server)
        failure = supervisor.run_members(members, supervisor.Watch(read.hang_seconds, folder, waiting))
    except supervisor.AddressError as error:
        if not read.hosts:
            raise
        print(f"hosts must begin with this machine. Received: {', '.join(read.hosts)} ({error}).", file=sys.stderr)
        return EXIT_USAGE
    if failure is None:
        return EXIT_OK
    print(failure.words, file=sys.stderr)
    if arguments.command == "run":
        _seal(framework, read, arguments.out, arguments.repeat, failure)
    return EXIT_DATA_REFUSED if failure.code == EXIT_DATA_REFUSED else EXIT_FAILED


def _member(
    framework: str, read: Spec, arguments: argparse.Namespace, words: list[str], rank: int, environment: dict[str, str]
) -> ProcessSpec:
    twin = [sys.executable, "-m", f"{framework}_impl"]
    place = placement.host_of(rank, read.replicas, len(read.hosts) or 1)
    if place == 0:
        return ProcessSpec(f"rank {rank}", [*twin, *words], environment)
    # Only rank 0's files are wanted: what another host has to write goes to a folder that is removed.
    command = [*twin, arguments.command, f"{hosts.FOLDER}/spec.json", "--out", f"{hosts.FOLDER}/out"]
    if arguments.command == "trace" and arguments.reverse_batches:
        command.append("--reverse-batches")
    files = {"spec.json": read.to_json()}
    return ProcessSpec(f"rank {rank}", command, environment, host=read.hosts[place], files=files)


def _is_rank(read: Spec, environments: list[dict[str, str]]) -> bool:
    """Whether this process is one of several, by its environment.

    Raises:
        SpecError: the environment names another number of ranks than the spec, which may be none.
    """
    if "RANK" not in os.environ:
        return False
    rank, ranks = os.environ["RANK"], os.environ.get("WORLD_SIZE")
    if not environments:
        raise spec.SpecError(f"mode {read.mode} is one process here. Received: RANK={rank} in the environment. Unset it.")
    if ranks != str(read.replicas) or rank not in map(str, range(read.replicas)):
        raise spec.SpecError(
            f"replicas must be the number of ranks that were started. Received: replicas {read.replicas}, and RANK={rank}, "
            f"WORLD_SIZE={ranks} in the environment. Set replicas to WORLD_SIZE."
        )
    if missing := {"MASTER_ADDR", "MASTER_PORT"} - os.environ.keys():
        raise spec.SpecError(f"A rank must know where all meet. Missing in the environment: {', '.join(sorted(missing))}.")
    os.environ.setdefault("LOCAL_RANK", rank)
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(read.replicas))
    return True


def _seal(framework: str, read: Spec, out: Path, repeat: int, failure: supervisor.Failure) -> None:
    """Let the result say which rank failed; where rank 0 could not write one any more, make it from the epochs so far."""
    if not (out / results.RESULT_FILE).exists():
        made = schema.RunResult(
            framework=framework,
            spec=read,
            status="failed" if failure.code is not None else "killed",
            reason=failure.words,
            repeat=repeat,
            epochs=event_log.read_epochs(out),
            machine=machine.describe(),
        )
        results.save(made, out)
        event_log.append_event(out, "end", status=made.status)
        return
    written = results.load(out / results.RESULT_FILE)
    if written.status == "failed" and failure.rank != 0 and failure.code != EXIT_DATA_REFUSED:
        # What rank 0 met may be no more than that the other was gone; only data is refused to all alike.
        results.save(written.model_copy(update={"reason": f"{failure.words}; rank 0: {written.reason}"}), out)


def _own_cpus(cpus: list[int], read: Spec) -> list[int]:
    """The CPUs of this process: the whole budget, or for a rank its own share where there is one for each."""
    share = placement.cores_of_replica(read.cores, read.replicas, read.hosts)
    if "RANK" not in os.environ or share == 0:
        return cpus
    local_rank = int(os.environ["LOCAL_RANK"])
    return cpus[local_rank * share : (local_rank + 1) * share] or cpus  # another host may have fewer


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:500]
