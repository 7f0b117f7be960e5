"""The work of a twin in one process, after its framework is imported: train, trace, time layers, serve trials, use models."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from common import spec
from common.artifacts import array_file, atomic_files, checkpoint, event_log, results, schema
from common.data import sources
from common.data.batches import Plan
from common.data.preprocessing import job as scan_job
from common.data.preprocessing import scaling
from common.machine import heartbeat, machine, placement, ranges
from common.matching import serving as matching
from common.models import architectures, user_code, weights
from common.processes import exchanges, ranks, rendezvous, serving
from common.processes.twin import EXIT_DATA_REFUSED, EXIT_FAILED, EXIT_OK, EXIT_TERMINATED, EXIT_USAGE, Job, Twin
from common.spec import Spec
from common.training import inference, layers, timing, tracing
from common.training.loop import Diverged, Run
from common.training.trainer import Trainer

EXCHANGING_MODES = ("multi_process", "parameter_server")
"""Whose messages can be timed by themselves."""
_TEACHER_SECONDS = 0.05
"""Between two looks whether a teacher's recording is there."""


def refused(error: Exception | str) -> int:
    """Print why a command was refused, and return its exit code."""
    print(error, file=sys.stderr)
    return EXIT_USAGE


def choose_device(device: str) -> None:
    """Hide the GPUs from a run on the CPU. The framework looks for them once, when it is imported, and both ask CUDA."""
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"


def preprocess(framework: str, load_twin: Callable[[], Twin], arguments: argparse.Namespace) -> int:
    """Scan the image files of a split."""
    machine.keep_freed_memory()
    scan_job.run(load_twin().scanning, arguments.job, arguments.workers, arguments.out, timing.process_started())
    return EXIT_OK


def use_model(framework: str, load_twin: Callable[[], Twin], arguments: argparse.Namespace) -> int:
    """One of `inference.COMMANDS`."""
    try:
        settled = inference.prepare_process(arguments.cores, arguments.device)
        choose_device(settled.device)
        twin = load_twin()
        twin.configure(settled)
        inference.run(twin.inference, arguments, twin.device, twin.versions, settled.cores)
    except (spec.SpecError, weights.WeightsError) as error:
        return refused(error)
    except sources.DataRefused as error:
        print(error, file=sys.stderr)
        return EXIT_DATA_REFUSED
    return EXIT_OK


def serve(framework: str, load_twin: Callable[[], Twin], arguments: argparse.Namespace) -> int:
    """Train what lines on stdin ask for."""
    started = timing.process_started()
    cores = arguments.cores * arguments.trials
    cpus = machine.cpu_budget(arguments.budget or cores)
    first = arguments.place * cores % len(cpus)
    machine.set_affinity(cpus[first : first + cores])
    machine.keep_freed_memory()
    choose_device(arguments.device)
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
            return _prepare(twin, read)

        made = serving.Serving(
            framework, twin.versions, arguments.cores, prepare, twin.synchronize, lambda line: print(line, file=answers)
        )
        made.serve(sys.stdin, device=twin.device, start_seconds=machine.clock() - started)
    return EXIT_OK


def match(framework: str, load_twin: Callable[[], Twin], arguments: argparse.Namespace) -> int:
    """Open and measure models of users, as lines on stdin ask."""
    settled = inference.prepare_process(None, "cpu")
    choose_device(settled.device)
    serving.leave_at_once()
    with serving.answers() as answers:
        twin = load_twin()
        if twin.open_model is None:
            return refused(f"The twin {framework} opens no models of users. Use pytorch or tensorflow.")
        # Both frameworks compute at the same time. Threads that wait for a core would cost more than they do.
        twin.configure(settled.model_copy(update={"cores": max(settled.cores // 2, 1)}))
        gc.freeze()  # each model that is let go is looked for among all objects, and TensorFlow has some 400,000
        matching.serve(twin.open_model, sys.stdin, answers)
    return EXIT_OK


def run(job: Job, twin: Twin, cpus: list[int], facts: dict[str, Any]) -> int:
    """Train, and write a result whatever happens.

    Args:
        cpus: that the run is held to.
        facts: fields of the result that are known before the framework is configured.
    """
    out: Path = job.arguments.out
    out.mkdir(parents=True, exist_ok=True)
    ranges.attach()
    twin.configure(job.spec)
    stopwatch = timing.Stopwatch(twin.synchronize, job.started)
    run = Run(job.framework, job.spec, twin.versions, out, job.arguments.repeat, stopwatch, cpus)
    run.record(**facts)
    status, reason, code = _train(job, twin, run, stopwatch)
    if placement.is_first_rank():
        run.record(device=twin.device)
        try:
            results.save(run.result(status, reason), out)
        except OSError as error:
            print(results.unwritten_message(error), file=sys.stderr)
            return EXIT_FAILED
        if status == "ok":
            with contextlib.suppress(OSError):  # the result stands, and nothing resumes a run that has one
                checkpoint.remove(out)
        event_log.append_end(out, status, **run.clocks())
    return code


def _train(job: Job, twin: Twin, run: Run, stopwatch: timing.Stopwatch) -> tuple[schema.Status, str | None, int]:
    """(status, why it is not ok, exit code)."""
    try:
        with stopwatch.phase("build"):
            dataset, plan, trainer = _prepare(twin, job.spec)
            # Hash the model's weights, not the drawn ones: a twin that did not load them would show.
            run.record(pixel_mean=plan.scaling.mean, pixel_std=plan.scaling.std, weights_hash=weights.digest(trainer.weights()))
            run.record(data_hash=dataset.content_hash, class_names=list(dataset.class_names))
        run.train(trainer, plan, dataset, job.arguments.resume)
        run.record_device_memory(trainer, twin.device_peak_memory_mib())
        run.finish_spot_checks(trainer)
        run.rate(twin.device_rates)
        run.profile(trainer, plan)
        trainer.close()
    except Diverged as error:
        return "diverged", str(error), EXIT_FAILED
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == EXIT_TERMINATED:
            raise
        with contextlib.suppress(OSError):  # stderr may be a file on the very disk that is full
            if atomic_files.is_disk_full(error):
                print(f"The run ends: {error}. Free space, or raise the limit.", file=sys.stderr)
            else:
                traceback.print_exc()
        if isinstance(error, KeyboardInterrupt):
            return "killed", schema.INTERRUPTED, 128 + signal.SIGINT
        first_line = (str(error).strip().splitlines() or [""])[0][:500]
        code = EXIT_DATA_REFUSED if isinstance(error, sources.DataRefused) else EXIT_FAILED
        return "failed", f"{type(error).__name__}: {first_line}", code
    return "ok", None, EXIT_OK


def trace(twin: Twin, recordings: Sequence[tuple[Spec, argparse.Namespace]], options: dict[str, Any]) -> None:
    """Record the arrays of a few steps of each spec. The processes of a mode meet once, and part after the last.

    A recording goes on with the trainer of the one before it where it can. A framework may take seconds to build a model.

    Args:
        options: of the twin's description.
    """
    trainer, before, state = None, None, dict[str, npt.NDArray[Any]]()
    for read, asked in recordings:
        dataset, plan, initial = _planned(read, reverse_batches=asked.reverse_batches)
        scales_loss = spec.resolve_switches(read, options).get("arithmetic") == "float16"
        from_teacher = asked.teacher is not None
        if trainer and before and _goes_on(before, plan, from_teacher=from_teacher, scales_loss=scales_loss):
            trainer.start_over(plan, dataset, state)
        else:
            trainer = _built(twin, dataset, plan, initial)
            kept = trainer.state() if read.mode == "serial" else {}
            state = {name: array.copy() for name, array in kept.items()}  # arrays of a framework change with its steps
        before = plan
        if asked.drawn is not None:
            teacher = None if asked.teacher is None else array_file.ArrayFile(awaited(asked.teacher))
            recorded = tracing.trace_steps(trainer, plan, asked.drawn, teacher)
            if placement.is_first_rank():
                most = 6 * (len(asked.drawn) + 1) * (len(initial) + 2)  # weights and two slots, before a step and after it
                array_file.write(asked.out, recorded, most)
            else:
                for _ in recorded:  # it gathers together with the first rank
                    pass
            continue
        arrays = tracing.trace(trainer, plan, dataset, initial, batches_too=asked.batches)
        if placement.is_first_rank():
            weights.save(arrays, asked.out)
    if trainer is not None:
        trainer.close()


def _goes_on(before: Plan, plan: Plan, *, from_teacher: bool, scales_loss: bool) -> bool:
    """Whether a trainer can follow another plan as a new one would. Only length, order of sums, and data of serial may differ.

    A serial trainer's whole state is known. That of another mode is set before each step, where a teacher gives it. A teacher
    knows neither a scale of the loss nor what compression and late gradients keep.
    """
    free = {"steps", "epochs"}
    if before.spec.mode == "serial":
        free.add("data")
    elif not from_teacher or before.spec.not_serial_because is not None or scales_loss:
        return False
    alike = before.spec.model_dump(exclude=free) == plan.spec.model_dump(exclude=free)
    return alike and (before.architecture, before.scaling) == (plan.architecture, plan.scaling)


def awaited(path: Path) -> Path:
    """The same path, once another process has recorded the file. Whoever started both ends this one if that one fails."""
    while not path.exists():
        heartbeat.heartbeat()
        time.sleep(_TEACHER_SECONDS)
    return path


def time_layers(twin: Twin, read: Spec, arguments: argparse.Namespace) -> int:
    """Time each layer of the model alone."""
    twin.configure(read)
    try:
        measured = layers.measure(
            read,
            sources.architecture_of(read),
            twin.passes,
            twin.synchronize,
            arguments.calls,
            device=twin.device,
            versions=twin.versions,
            device_rates=lambda: twin.device_rates(read),
        )
    except spec.SpecError as error:
        return refused(error)
    layers.save(measured, arguments.out)
    return EXIT_OK


def time_exchanges(twin: Twin, read: Spec, arguments: argparse.Namespace) -> int:
    """Time what the ranks of a run send each other, and how much they slow each other down."""
    if twin.ways is None:
        return refused("This twin has no exchanges to time. Use pytorch or tensorflow.")
    twin.configure(read)
    if read.mode == "parameter_server":
        measured = exchanges.measure_server(read, rendezvous.word())
    else:
        architecture, size = sources.architecture_of(read), read.per_replica_batch_size
        ways = twin.ways()  # Twin: TensorFlow wants its strategy before any tensor
        alone = read.with_fields(mode="serial", replicas=1, hosts=(), cores=1, global_batch_size=size)
        shape = (architecture.image_size, architecture.image_size, 3)
        measured = exchanges.measure(read, ways, twin.passes(alone, architecture, shape, False), twin.synchronize)
    if placement.is_first_rank():
        exchanges.save(measured, twin.versions, arguments.out)
    return EXIT_OK


def _prepare(twin: Twin, read: Spec) -> tuple[sources.Dataset, Plan, Trainer]:
    """The data, the plan and the trainer of a spec."""
    dataset, plan, initial = _planned(read, reverse_batches=False)
    return dataset, plan, _built(twin, dataset, plan, initial)


def _planned(read: Spec, *, reverse_batches: bool) -> tuple[sources.Dataset, Plan, weights.GivenWeights]:
    """The data, the plan and the drawn weights of a spec."""
    dataset = sources.load(read.data, seed=read.split_seed, cache_dir=read.paths.cache_dir)
    heartbeat.count_sync_point()
    architecture = architectures.of(read, len(dataset.class_names), dataset.image_size)
    pixels = scaling.of(read.data, dataset, cache_dir=read.paths.cache_dir)
    labels = dataset.train.labels if read.dask.partition == "class_skew" else None  # input workers would get a copy
    plan = Plan(read, architecture, len(dataset.train), reverse_batches, pixels, labels)
    return dataset, plan, weights.initial(architecture, read.seed)


def _built(twin: Twin, dataset: sources.Dataset, plan: Plan, initial: weights.GivenWeights) -> Trainer:
    """The trainer of a plan. Ranks agree on data and code."""
    trainer = twin.build(plan.spec, plan.architecture, plan, dataset, initial)
    if "RANK" in os.environ:
        package = sys.modules[twin.describe.__module__.rpartition(".")[0]]
        folders = [machine.PROJECT_ROOT / "common", *map(Path, package.__path__)]
        code = machine.code_digest([*folders, *user_code.folders(plan.spec.model)])
        ranks.agree(trainer, {"data": dataset.content_hash, "code": code})
    return trainer
