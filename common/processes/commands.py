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
from common.data.batches import BatchPlan
from common.data.preprocessing import job as scan_job
from common.data.preprocessing import scaling
from common.machine import heartbeat, machine, placement, ranges
from common.matching import serving as matching
from common.models import architectures, user_code, weights
from common.processes import exchanges, ranks, rendezvous, serving
from common.processes.twin import EXIT_DATA_REFUSED, EXIT_FAILED, EXIT_OK, EXIT_TERMINATED, EXIT_USAGE, Twin, TwinJob
from common.spec import Spec
from common.training import inference, layers, timing, tracing
from common.training.loop import Diverged, TrainingRun
from common.training.trainer import BaseTrainer

_POLL_SECONDS = 0.05
"""Seconds between two checks for a teacher's recording."""


def print_refusal(error: Exception | str) -> int:
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
    """Run one of `inference.COMMANDS`."""
    try:
        run_spec = inference.prepare_process(arguments.cores, arguments.device)
        choose_device(run_spec.device)
        twin = load_twin()
        twin.configure(run_spec)
        inference.run(twin.inference, arguments, twin.device, twin.versions, run_spec.cores)
    except (spec.SpecError, weights.WeightsError) as error:
        return print_refusal(error)
    except sources.DataRefused as error:
        print(error, file=sys.stderr)
        return EXIT_DATA_REFUSED
    return EXIT_OK


def serve(framework: str, load_twin: Callable[[], Twin], arguments: argparse.Namespace) -> int:
    """Train the trials that lines on stdin request."""
    started = timing.process_started()
    cores = arguments.cores * arguments.trials
    cpus = machine.cpu_budget(arguments.budget or cores)
    first = arguments.place * cores % len(cpus)
    machine.set_affinity(cpus[first : first + cores])
    machine.keep_freed_memory()
    choose_device(arguments.device)
    serving.exit_on_signals()
    with serving.json_stdout() as answers:
        twin = load_twin()
        twin.configure(spec.build({"cores": arguments.cores}), arguments.trials)

        def prepare(run_spec: Spec) -> tuple[sources.Dataset, BatchPlan, BaseTrainer]:
            description = twin.describe()
            if (refusal := spec.check_against(run_spec, description)) is not None:
                raise spec.SpecError(refusal)
            if run_spec.device != arguments.device:
                raise spec.SpecError(
                    f"device is {arguments.device!r} for all trials of this process. Received: {run_spec.device!r}."
                )
            spec.refuse_per_process(run_spec, description["options"], framework)
            return _prepare(twin, run_spec)

        server = serving.TrialServer(
            framework, twin.versions, arguments.cores, prepare, twin.synchronize, lambda line: print(line, file=answers)
        )
        server.serve(sys.stdin, device=twin.device, start_seconds=machine.clock() - started)
    return EXIT_OK


def match(framework: str, load_twin: Callable[[], Twin], arguments: argparse.Namespace) -> int:
    """Open and measure the users' models that lines on stdin request."""
    run_spec = inference.prepare_process(None, "cpu")
    choose_device(run_spec.device)
    serving.exit_on_signals()
    with serving.json_stdout() as answers:
        twin = load_twin()
        if twin.open_model is None:
            return print_refusal(f"The twin {framework} opens no models of users. Use pytorch or tensorflow.")
        twin.configure(with_half_of_the_cores(run_spec))
        gc.freeze()  # each model that is let go is looked for among all objects, and TensorFlow has some 400,000
        matching.serve(twin.open_model, sys.stdin, answers)
    return EXIT_OK


def with_half_of_the_cores(run_spec: Spec) -> Spec:
    """Return the same spec with half of its cores, at least one, for each of two frameworks that compute at the same time.

    Threads that wait for a core would cost more than they do.
    """
    return run_spec.model_copy(update={"cores": max(run_spec.cores // 2, 1)})


def run(job: TwinJob, twin: Twin, cpus: list[int], facts: dict[str, Any]) -> int:
    """Train, and write a result whatever happens.

    Args:
        cpus: CPUs of the run.
        facts: fields of the result that are known before the framework is configured.
    """
    out: Path = job.arguments.out
    out.mkdir(parents=True, exist_ok=True)
    ranges.attach()
    twin.configure(job.spec)
    stopwatch = timing.Stopwatch(twin.synchronize, job.started)
    run = TrainingRun(job.framework, job.spec, twin.versions, out, job.arguments.repeat, stopwatch, cpus)
    run.record.update(**facts)
    status, reason, code = _train(job, twin, run, stopwatch)
    if placement.is_first_rank():
        run.record.update(device=twin.device)
        try:
            results.save(run.result(status, reason), out)
        except OSError as error:
            print(results.unwritten_message(error), file=sys.stderr)
            return EXIT_FAILED
        if status == "ok":
            with contextlib.suppress(OSError):  # the result stands, and nothing resumes a run that has one
                checkpoint.remove(out)
        event_log.append_end(out, status, **run.record.clocks())
    return code


def _train(job: TwinJob, twin: Twin, run: TrainingRun, stopwatch: timing.Stopwatch) -> tuple[schema.Status, str | None, int]:
    """Train. Returns (status, why it is not ok, exit code)."""
    try:
        run.wait_to_build()
        with stopwatch.phase("build"):
            dataset, plan, trainer = _prepare(twin, job.spec)
            # Hash the model's weights, not the drawn ones: a twin that did not load them would show.
            run.record.update(
                pixel_mean=plan.scaling.mean, pixel_std=plan.scaling.std, weights_hash=weights.digest(trainer.weights())
            )
            run.record.update(data_hash=dataset.content_hash, class_names=list(dataset.class_names))
        run.train(trainer, plan, dataset, job.arguments.resume)
        run.memory.measure_devices(trainer, twin.device_peak_memory_mib())
        run.finish_spot_checks(trainer)
        run.measure_device_rates(twin.device_rates)
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
    """Record the arrays of a few steps of each spec. The processes of a mode connect once, and disconnect after the last.

    A recording reuses the trainer of the previous one where it can. A framework may take seconds to build a model.

    Args:
        options: options in the twin's description.
    """
    trainer, previous, state = None, None, dict[str, npt.NDArray[Any]]()
    for run_spec, arguments in recordings:
        dataset, plan, initial = _make_plan(run_spec, reverse_batches=arguments.reverse_batches)
        scales_loss = spec.resolve_switches(run_spec, options).get("arithmetic") == "float16"
        from_teacher = arguments.teacher is not None
        if trainer and previous and _can_continue(previous, plan, from_teacher=from_teacher, scales_loss=scales_loss):
            trainer.reset(plan, dataset, state)
        else:
            trainer = _build_trainer(twin, dataset, plan, initial)
            initial_state = {} if run_spec.is_parallel else trainer.state()
            state = {name: array.copy() for name, array in initial_state.items()}  # arrays of a framework change with its steps
        previous = plan
        if arguments.drawn is not None:
            teacher = None if arguments.teacher is None else array_file.ArrayFile(wait_for_file(arguments.teacher))
            steps = tracing.trace_steps(trainer, plan, arguments.drawn, teacher)
            if placement.is_first_rank():
                max_arrays = (
                    6 * (len(arguments.drawn) + 1) * (len(initial) + 2)
                )  # weights and two slots, before a step and after it
                array_file.write(arguments.out, steps, max_arrays)
            else:
                for _ in steps:  # it gathers together with the first rank
                    pass
            continue
        arrays = tracing.trace(trainer, plan, dataset, initial, batches_too=arguments.batches)
        if placement.is_first_rank():
            weights.save(arrays, arguments.out)
    if trainer is not None:
        trainer.close()


def _can_continue(previous: BatchPlan, plan: BatchPlan, *, from_teacher: bool, scales_loss: bool) -> bool:
    """Return whether a trainer can follow another plan as a new one would.

    Only length, order of sums, and in serial mode the data may differ. A serial trainer's whole state is known. The state of
    another mode is set before each step, if a teacher gives it. A teacher knows neither the loss scale nor the state of
    compression and late gradients.
    """
    ignored_fields = {"steps", "epochs"}
    if not previous.spec.is_parallel:
        ignored_fields.add("data")
    elif not from_teacher or previous.spec.not_serial_because is not None or scales_loss:
        return False
    same_fields = previous.spec.model_dump(exclude=ignored_fields) == plan.spec.model_dump(exclude=ignored_fields)
    return same_fields and (previous.architecture, previous.scaling) == (plan.architecture, plan.scaling)


def wait_for_file(path: Path) -> Path:
    """Wait until another process has written a file. Returns its path. The launcher ends this process if the other fails."""
    while not path.exists():
        heartbeat.heartbeat()
        time.sleep(_POLL_SECONDS)
    return path


def time_layers(twin: Twin, run_spec: Spec, arguments: argparse.Namespace) -> int:
    """Time each layer of the model alone."""
    twin.configure(run_spec)
    try:
        timings = layers.measure(
            run_spec,
            sources.architecture_of(run_spec),
            twin.passes,
            twin.synchronize,
            arguments.calls,
            device=twin.device,
            versions=twin.versions,
            device_rates=lambda: twin.device_rates(run_spec),
        )
    except spec.SpecError as error:
        return print_refusal(error)
    layers.save(timings, arguments.out)
    return EXIT_OK


def time_exchanges(twin: Twin, run_spec: Spec, arguments: argparse.Namespace) -> int:
    """Time the messages between the ranks of a run, and how much the ranks slow each other down."""
    if twin.collectives is None:
        return print_refusal("This twin has no exchanges to time. Use pytorch or tensorflow.")
    twin.configure(run_spec)
    if run_spec.traits.has_server:
        timings = exchanges.measure_server(run_spec, rendezvous.rendezvous_id())
    else:
        architecture, size = sources.architecture_of(run_spec), run_spec.per_replica_batch_size
        collectives = twin.collectives()  # Twin: TensorFlow wants its strategy before any tensor
        serial_spec = run_spec.with_fields(mode="serial", replicas=1, hosts=(), cores=1, global_batch_size=size)
        shape = (architecture.image_size, architecture.image_size, 3)
        timings = exchanges.measure(
            run_spec, collectives, twin.passes(serial_spec, architecture, shape, False), twin.synchronize
        )
    if placement.is_first_rank():
        exchanges.save(timings, twin.versions, arguments.out)
    return EXIT_OK


def _prepare(twin: Twin, run_spec: Spec) -> tuple[sources.Dataset, BatchPlan, BaseTrainer]:
    """Build the data, the plan and the trainer of a spec."""
    dataset, plan, initial = _make_plan(run_spec, reverse_batches=False)
    return dataset, plan, _build_trainer(twin, dataset, plan, initial)


def _make_plan(run_spec: Spec, *, reverse_batches: bool) -> tuple[sources.Dataset, BatchPlan, weights.ReadOnlyWeights]:
    """Build the data, the plan and the initial weights of a spec."""
    dataset = sources.load(run_spec.data, seed=run_spec.split_seed, cache_dir=run_spec.paths.cache_dir)
    heartbeat.count_sync_point()
    architecture = architectures.build(run_spec, len(dataset.class_names), dataset.image_size)
    pixel_scaling = scaling.scaling_for(run_spec.data, dataset, cache_dir=run_spec.paths.cache_dir)
    labels = dataset.train.labels if run_spec.dask.partition == "class_skew" else None  # input workers would get a copy
    plan = BatchPlan(run_spec, architecture, len(dataset.train), reverse_batches, pixel_scaling, labels)
    return dataset, plan, weights.initial(architecture, run_spec.seed)


def _build_trainer(twin: Twin, dataset: sources.Dataset, plan: BatchPlan, initial: weights.ReadOnlyWeights) -> BaseTrainer:
    """Build the trainer of a plan. Ranks check that their data and code are equal."""
    trainer = twin.build(plan.spec, plan.architecture, plan, dataset, initial)
    if placement.is_rank():
        package = sys.modules[twin.describe.__module__.rpartition(".")[0]]
        folders = [machine.PROJECT_ROOT / "common", *map(Path, package.__path__)]
        code = machine.code_digest([*folders, *user_code.folders(plan.spec.model)])
        ranks.require_equal_digests(trainer, {"data": dataset.content_hash, "code": code})
    return trainer
