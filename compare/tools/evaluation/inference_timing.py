"""Timing of a trained model's answers in each framework. Processes are fresh, and take turns; on a GPU they alternate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, Self

import numpy as np
import pydantic
from pydantic import Field

from common.artifacts import records
from common.artifacts.trained import Card, Trained
from common.frozen import Frozen
from common.machine import machine, plain_file
from common.machine.interference import cores_taken
from common.machine.machine import Facts
from common.models import weights
from common.spec import SpecError
from common.training import inference
from common.training.inference import BatchTimes, Latencies
from compare.cli import errors, exits, wording
from compare.cli.errors import FolderError
from compare.cli.progress import Display
from compare.judgement.slices import LEAST_SLICES, hodges_lehmann
from compare.results import store
from compare.results.workspace import FolderKind, PlannedWork, Workspace
from compare.running import code_digest, contestants, launch, twin_client
from compare.running.contestants import Contestant
from compare.running.interleaving import Job, rounds, run_in_turns
from compare.running.launch import StartedProcess, waited_for
from compare.running.matrix import FileName
from compare.running.taking_turns import Seat, run_round
from compare.statistics import statistics
from compare.statistics.statistics import JudgedRatio, Ratio, Spread, paired_ratio, spread

SCHEMA_VERSION = 1
KIND = "inference"
PLAN_FILE, RECORD_FILE = "plan.json", "inference.json"
RUNS_FOLDER = "runs"

CALLS_FOR_P99 = 100
"""Fewest calls, of all processes together, for a p99. Below it, the slowest hundredth is just the slowest call."""

_Processes = dict[tuple[str, int, int], Latencies]
"""Latencies that a process measured, by (framework, cores, repeat)."""


class InferenceSettings(Frozen):
    """Settings of a measurement of inference."""

    frameworks: tuple[str, ...] = tuple(launch.FRAMEWORKS)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    cores: tuple[int, ...]
    repeats: int = Field(5, ge=1)
    """Number of processes of each framework and number of cores."""
    calls: int = Field(200, ge=inference.LEAST_CALLS)
    """Largest number of timed calls of each batch size in each process."""
    seconds: float = Field(3.0, gt=0)
    """Seconds after which no further call begins."""


class InferencePlan(PlannedWork):
    """Contents of plan.json: what is timed, so that an interrupted measurement resumes unchanged."""

    kind: str = KIND
    settings: InferenceSettings
    weights_hash: str
    """Hash of the model's weights."""

    def identity(self) -> dict[str, Any]:
        """The number of repeats may change."""
        return {**self.settings.model_dump(mode="json", exclude={"repeats"}), "weights": self.weights_hash}

    def continued_by(self, new: Any) -> Self:
        return new


class InferenceRow(Frozen):
    """Times of one framework with one number of cores and one batch size, over its processes."""

    contestant: FileName
    cores: int
    batch_size: int
    p50_seconds: Spread
    """Median seconds of a batch, from images on the host to logits on the host."""
    p99_seconds: float | None
    """99th percentile over the calls of all processes together. None if there are fewer than CALLS_FOR_P99."""
    images_per_second: Spread
    first_seconds: Spread
    """Seconds of the first call, with tracing or compiling."""
    calls: int
    """Number of timed calls of all processes."""


class InferenceRecord(Frozen):
    """The complete result of a measurement of inference."""

    schema_version: int = SCHEMA_VERSION
    kind: str = KIND
    settings: InferenceSettings
    card: Card
    weights_hash: str
    devices: dict[str, str]
    versions: dict[str, dict[str, str]]
    machine: Facts
    rows: list[InferenceRow]
    verdicts: list[JudgedRatio]
    """Seconds of one framework divided by those of the other (p50, or over turns), by cores and batch size: one family."""
    failures: dict[str, str]
    """Reason by process that measured nothing."""
    cores_lost: dict[str, float]
    """Largest number of cores that other work used during one process, by framework and cores."""

    @property
    def exit_code(self) -> int:
        """1 if a process failed, else 0."""
        return exits.RUN_FAILED if self.failures else 0


INFERENCE = FolderKind(
    noun="measurement of inference",
    file=PLAN_FILE,
    kind=KIND,
    record=InferencePlan,
)


def measure(
    settings: InferenceSettings, checkpoint: Path, model: Trained, workspace: Workspace[InferencePlan], progress: Display
) -> InferenceRecord:
    """Time every framework and number of cores alternately, each in a fresh process. Finished results in the folder are kept.

    Args:
        checkpoint: the file of the model.
        workspace: gets a file for each process, and the record.
    """
    num_cores = machine.available_cores()
    if max(settings.cores) > num_cores:
        raise SpecError(f"cores exceeds what this process may use. Received: {max(settings.cores)}. Use 1 to {num_cores}.")
    plan = InferencePlan(
        settings=settings,
        weights_hash=weights.digest(model.weights),
        code_hash=code_digest.compute(contestants.resolve(settings.frameworks), model.card.model),
        machine=machine.describe(),
    )
    workspace.claim(plan)
    folder = workspace.folder
    processes, failures = _run_all(settings, checkpoint, model, folder, progress)
    _refuse_other_versions(processes, folder)
    record = _build_record(settings, model, processes, failures)
    records.write(folder / RECORD_FILE, record)
    return record


def _run_all(
    settings: InferenceSettings, checkpoint: Path, model: Trained, folder: Path, progress: Display
) -> tuple[_Processes, dict[str, str]]:
    """Return the times of every process, and why those failed that did. Complete processes in the folder are not run again."""
    cells = [(framework, cores) for cores in settings.cores for framework in settings.frameworks]
    failures: dict[str, str] = {}

    def path_of(job: Job[tuple[str, int]]) -> Path:
        (framework, cores), repeat = job
        return folder / RUNS_FOLDER / f"{framework}-{cores}-r{repeat}.json"

    def stored(job: Job[tuple[str, int]]) -> Latencies | None:
        latencies = _load_latencies(path_of(job))
        return latencies if latencies is not None and len(latencies.batches) >= len(settings.batches) else None

    def timing(job: Job[tuple[str, int]], seat: Seat | None = None) -> Generator[StartedProcess, None, Latencies | None]:
        latencies, failure = yield from _timing_process(settings, checkpoint, model, *job.item, path_of(job), seat)
        if failure is not None:
            failures[f"{cell_name(*job.item)}, process {job.repeat + 1}"] = failure
        return latencies

    turns = run_in_turns(
        rounds(cells, settings.repeats),
        lambda job: waited_for(timing(job)),
        progress,
        name=lambda cell: cell_name(*cell),
        label=lambda job: f"{cell_name(*job.item)} ({job.repeat + 1} of {settings.repeats})",
        stored=stored,
        # One at a time imports: a process on a GPU takes no turns, and works on then.
        execute_together=lambda jobs: run_round(jobs, timing),
    )
    ended = [pair for pairs in turns for pair in pairs]
    return {(*job.item, job.repeat): latencies for job, latencies in ended if latencies is not None}, failures


def _load_latencies(path: Path) -> Latencies | None:
    try:
        return Latencies.model_validate_json(plain_file.read(path, records.MOST_BYTES))
    except (OSError, pydantic.ValidationError):
        return None


def _refuse_other_versions(processes: _Processes, folder: Path) -> None:
    """Require one version for all processes of a framework, which may have run days apart."""
    by_framework: dict[str, dict[str, str]] = {}
    for (framework, _, _), latencies in processes.items():
        if (first := by_framework.setdefault(framework, latencies.versions)) != latencies.versions:
            raise FolderError(
                f"{folder} holds times of other versions of {framework} "
                f"({store.describe_differences(first, latencies.versions)}). Choose another --out, or remove it."
            )


def _timing_process(
    settings: InferenceSettings, checkpoint: Path, model: Trained, framework: str, cores: int, path: Path, seat: Seat | None
) -> Generator[StartedProcess, None, tuple[Latencies | None, str | None]]:
    """Run a process, one look at it for each step of the generator. Return its times, and why it stopped early, if it did."""
    words = ["--cores", str(cores), "--calls", str(settings.calls), "--seconds", str(settings.seconds)]
    words += ["--batches", ",".join(map(str, settings.batches)), *twin_client.model_arguments(model)]
    failure: str | None = None
    try:
        arguments = ["infer", checkpoint, "--out", path, *words]
        yield from twin_client.calling(Contestant.plain(framework), arguments, path.with_suffix(".txt"), seat)
    except errors.LaunchError as error:
        failure = str(error)
    latencies = _load_latencies(path)
    num_batches = 0 if latencies is None else len(latencies.batches)
    if num_batches < len(settings.batches):
        missing = ", ".join(map(str, settings.batches[num_batches:]))
        failure = f"{failure or f'{framework} ended without a result'}. No times of batch {missing}; see {path.stem}.txt"
    return latencies, failure


def _build_record(
    settings: InferenceSettings, model: Trained, processes: _Processes, failures: dict[str, str]
) -> InferenceRecord:
    times_by_cell: dict[tuple[str, int, int], dict[int, BatchTimes]] = {}
    max_cores_taken: dict[str, float] = {}
    machine_facts = machine.describe()
    for (framework, cores, repeat), latencies in processes.items():
        for batch_times in latencies.batches:
            times_by_cell.setdefault((framework, cores, batch_times.batch_size), {})[repeat] = batch_times
        name = cell_name(framework, cores)
        max_cores_taken[name] = max(
            max_cores_taken.get(name, 0.0), cores_taken(latencies.cores_of_others, cores, machine_facts)
        )
    return InferenceRecord(
        settings=settings,
        card=model.card,
        weights_hash=weights.digest(model.weights),
        devices={framework: latencies.device for (framework, _, _), latencies in processes.items()},
        versions={framework: latencies.versions for (framework, _, _), latencies in processes.items()},
        machine=machine_facts,
        rows=[
            _build_row(framework, cores, size, list(cell_times.values()))
            for framework in settings.frameworks
            for cores in settings.cores
            for size in settings.batches
            if (cell_times := times_by_cell.get((framework, cores, size)))
        ],
        verdicts=statistics.verdicts(_ratios(settings, times_by_cell)),
        failures=failures,
        cores_lost=max_cores_taken,
    )


def _ratios(
    settings: InferenceSettings, times_by_cell: Mapping[tuple[str, int, int], Mapping[int, BatchTimes]]
) -> list[tuple[str, Ratio]]:
    """Return by name the p50 of one framework over that of another, paired by repeat."""
    ratios: list[tuple[str, Ratio]] = []
    for name, (frameworks, cores, size) in compared_cells(settings).items():
        first, second = (times_by_cell.get((framework, cores, size), {}) for framework in frameworks)
        pairs = [_seconds_of_pair(second[repeat], first[repeat]) for repeat in first if repeat in second]
        if (ratio := paired_ratio(pairs)) is not None:
            ratios.append((name, ratio))
    return ratios


def _seconds_of_pair(slow: BatchTimes, fast: BatchTimes) -> tuple[float, float]:
    """Return the p50 of two processes. If they took turns, their ratio is a robust mean over these, see `judgement.slices`."""
    medians = [list(map(_median_of_turn, _calls_by_turn(times))) for times in (slow, fast)]
    logs = [math.log(one / other) for one, other in zip(*medians, strict=False) if one and other]
    fast_seconds = _p50(fast)
    if len(slow.turns) != len(fast.turns) or len(logs) < LEAST_SLICES:
        return _p50(slow), fast_seconds
    return math.exp(hodges_lehmann(logs)) * fast_seconds, fast_seconds


def _calls_by_turn(times: BatchTimes) -> list[list[float]]:
    """Return the seconds of the calls of each turn. Some turns of a slow process may have none."""
    ends = [*itertools.accumulate(times.turns)]
    return [times.seconds[end - number : end] for number, end in zip(times.turns, ends, strict=True)]


def _median_of_turn(seconds: list[float]) -> float | None:
    return float(np.median(seconds)) if seconds else None


def compared_cells(settings: InferenceSettings) -> dict[str, tuple[tuple[str, str], int, int]]:
    """Return (the two frameworks, cores, batch size) by the name of their ratio."""
    return {
        f"{place_name(cores, size)}: {' and '.join(frameworks)}": (frameworks, cores, size)
        for cores in settings.cores
        for size in settings.batches
        for frameworks in combinations(settings.frameworks, 2)
    }


def place_name(cores: int, size: int) -> str:
    """Return the name of what two frameworks share, as in `2 cores, batch 8`."""
    return f"{wording.count(cores, 'core')}, batch {size}"


def _build_row(framework: str, cores: int, size: int, cell_times: list[BatchTimes]) -> InferenceRow:
    def spread_of(values: list[float]) -> Spread:
        result = spread(values)
        assert result is not None  # finished processes have times
        return result

    all_seconds = [seconds for times in cell_times for seconds in times.seconds]
    return InferenceRow(
        contestant=framework,
        cores=cores,
        batch_size=size,
        p50_seconds=spread_of([_p50(times) for times in cell_times]),
        p99_seconds=float(np.quantile(all_seconds, 0.99)) if len(all_seconds) >= CALLS_FOR_P99 else None,
        images_per_second=spread_of([size * len(times.seconds) / sum(times.seconds) for times in cell_times]),
        first_seconds=spread_of([times.first_seconds for times in cell_times]),
        calls=len(all_seconds),
    )


def _p50(times: BatchTimes) -> float:
    return float(np.median(times.seconds))


def cell_name(framework: str, cores: int) -> str:
    """Return a cell's name, as in `pytorch, 2 cores`."""
    return f"{framework}, {wording.count(cores, 'core')}"
