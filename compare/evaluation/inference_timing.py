"""Times the answers of a trained model in each framework. The frameworks alternate, and every process is fresh."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

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
from compare.core import errors, exits, statistics, wording
from compare.core.errors import FolderError
from compare.core.progress import Display
from compare.core.statistics import JudgedRatio, Ratio, Spread, paired_ratio, spread
from compare.execution import code_digest, launch, results_folder, store, twin_client
from compare.execution.interleaving import turn
from compare.execution.matrix import FileName

SCHEMA_VERSION = 1
KIND = "inference"
PLAN_FILE, RECORD_FILE = "plan.json", "inference.json"
RUNS_FOLDER = "runs"

CALLS_FOR_P99 = 100
"""Fewest calls, of all processes together, for a p99. Below it, the slowest hundredth is just the slowest call."""

_Processes = dict[tuple[str, int, int], Latencies]
"""(framework, cores, repeat): what this process measured."""


class Settings(Frozen):
    """What is timed."""

    frameworks: tuple[str, ...] = tuple(launch.FRAMEWORKS)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    cores: tuple[int, ...]
    repeats: int = Field(5, ge=1)
    """Processes of each framework and number of cores."""
    calls: int = Field(200, ge=inference.LEAST_CALLS)
    """Most timed calls of each batch size in each process."""
    seconds: float = Field(3.0, gt=0)
    """Seconds after which no further call begins."""


class Plan(Frozen):
    """plan.json: what is timed, so that an interrupted measurement resumes unchanged."""

    kind: str = KIND
    settings: Settings
    weights_hash: str
    """Of the model."""
    code_hash: str
    machine: Facts


class Measured(Frozen):
    """One framework with one number of cores and one batch size, over its processes."""

    contestant: FileName
    cores: int
    batch_size: int
    p50_seconds: Spread
    """Of a batch, from images on the host to logits on the host."""
    p99_seconds: float | None
    """Over the calls of all processes together. None if there are fewer than CALLS_FOR_P99."""
    images_per_second: Spread
    first_seconds: Spread
    """Of the first call: tracing or compiling."""
    calls: int
    """Timed, of all processes."""


class Inferred(Frozen):
    """The complete result of a measurement of inference."""

    schema_version: int = SCHEMA_VERSION
    kind: str = KIND
    settings: Settings
    card: Card
    weights_hash: str
    devices: dict[str, str]
    versions: dict[str, dict[str, str]]
    machine: Facts
    rows: list[Measured]
    verdicts: list[JudgedRatio]
    """Seconds of one framework divided by those of the other (p50), by cores and batch size: one family."""
    failures: dict[str, str]
    """Process: why it measured nothing."""
    cores_lost: dict[str, float]
    """By framework and cores: the most of these cores that other work used during one process."""

    @property
    def exit_code(self) -> int:
        """1 if a process failed, else 0."""
        return exits.RUN_FAILED if self.failures else 0


def measure(settings: Settings, checkpoint: Path, model: Trained, folder: Path, shown: Display, lock: ExitStack) -> Inferred:
    """Time every framework and number of cores alternately, each in a fresh process. Finished results in the folder are kept.

    Args:
        checkpoint: the file of the model.
        folder: gets a file for each process, and the record.
        lock: holds the folder until its owner ends.

    Raises:
        SpecError: the machine has fewer cores.
        FolderError: the folder holds something else.
        Interrupted: finished measurements are in the folder.
    """
    most = machine.available_cores()
    if max(settings.cores) > most:
        raise SpecError(f"cores exceeds what this process may use. Received: {max(settings.cores)}. Use 1 to {most}.")
    wanted = Plan(
        settings=settings,
        weights_hash=weights.digest(model.weights),
        code_hash=code_digest.compute(settings.frameworks, model.card.model),
        machine=machine.describe(),
    )
    what = "measurement of inference"
    claimed = results_folder.open_or_resume(
        folder, PLAN_FILE, wanted, what, identity=_identity, merge=lambda stored, wanted: wanted
    )
    lock.enter_context(claimed)
    found, failures = _run_all(settings, checkpoint, model, folder, shown)
    _refuse_other_versions(found, folder)
    made = _inferred(settings, model, found, failures)
    records.write(folder / RECORD_FILE, made)
    return made


def _identity(plan: Plan) -> dict[str, Any]:
    """What must be equal to resume. The number of repeats may change."""
    return {**plan.settings.model_dump(mode="json", exclude={"repeats"}), "weights": plan.weights_hash}


def _run_all(
    settings: Settings, checkpoint: Path, model: Trained, folder: Path, shown: Display
) -> tuple[_Processes, dict[str, str]]:
    """What every process measured, and why those failed that did. Complete processes in the folder are not run again."""
    cells = [(framework, cores) for cores in settings.cores for framework in settings.frameworks]
    turns = [(framework, cores, repeat) for repeat in range(settings.repeats) for framework, cores in turn(cells, repeat)]
    found: _Processes = {}
    failures: dict[str, str] = {}
    shown.plan([cell_name(framework, cores) for framework, cores, _ in turns])
    for framework, cores, repeat in turns:
        name = cell_name(framework, cores)
        shown.begin(name, f"{name} ({repeat + 1} of {settings.repeats})")
        path = folder / RUNS_FOLDER / f"{framework}-{cores}-r{repeat}.json"
        made = _stored(path)
        if made is None or len(made.batches) < len(settings.batches):
            made, failure = _timed(settings, checkpoint, model, framework, cores, path)
            if failure is not None:
                failures[f"{name}, process {repeat + 1}"] = failure
        if made is not None:
            found[framework, cores, repeat] = made
        shown.end()
    return found, failures


def _stored(path: Path) -> Latencies | None:
    try:
        return Latencies.model_validate_json(plain_file.read(path, records.MOST_BYTES))
    except (OSError, pydantic.ValidationError):
        return None


def _refuse_other_versions(found: _Processes, folder: Path) -> None:
    """Require one version for all processes of a framework, which may have run days apart."""
    by_framework: dict[str, dict[str, str]] = {}
    for (framework, _, _), made in found.items():
        if (first := by_framework.setdefault(framework, made.versions)) != made.versions:
            raise FolderError(
                f"{folder} holds times of other versions of {framework} ({store.describe_differences(first, made.versions)}). Choose "
                "another --out, or remove it."
            )


def _timed(
    settings: Settings, checkpoint: Path, model: Trained, framework: str, cores: int, path: Path
) -> tuple[Latencies | None, str | None]:
    """What a process measured, and why it stopped early, if it did."""
    words = ["--cores", str(cores), "--calls", str(settings.calls), "--seconds", str(settings.seconds)]
    words += ["--batches", ",".join(map(str, settings.batches)), *twin_client.model_arguments(model)]
    failure: str | None = None
    try:
        twin_client.call(framework, ["infer", checkpoint, "--out", path, *words], path.with_suffix(".txt"))
    except errors.LaunchError as error:
        failure = str(error)
    made = _stored(path)
    known = 0 if made is None else len(made.batches)
    if known < len(settings.batches):
        missing = ", ".join(map(str, settings.batches[known:]))
        failure = f"{failure or f'{framework} ended without a result'}. No times of batch {missing}; see {path.stem}.txt"
    return made, failure


def _inferred(settings: Settings, model: Trained, found: _Processes, failures: dict[str, str]) -> Inferred:
    places: dict[tuple[str, int, int], dict[int, BatchTimes]] = {}
    lost: dict[str, float] = {}
    known = machine.describe()
    for (framework, cores, repeat), made in found.items():
        for times in made.batches:
            places.setdefault((framework, cores, times.batch_size), {})[repeat] = times
        name = cell_name(framework, cores)
        lost[name] = max(lost.get(name, 0.0), cores_taken(made.cores_of_others, cores, known))
    return Inferred(
        settings=settings,
        card=model.card,
        weights_hash=weights.digest(model.weights),
        devices={framework: made.device for (framework, _, _), made in found.items()},
        versions={framework: made.versions for (framework, _, _), made in found.items()},
        machine=known,
        rows=[
            _measured(framework, cores, size, list(own.values()))
            for framework in settings.frameworks
            for cores in settings.cores
            for size in settings.batches
            if (own := places.get((framework, cores, size)))
        ],
        verdicts=statistics.verdicts(_ratios(settings, places)),
        failures=failures,
        cores_lost=lost,
    )


def _ratios(settings: Settings, places: Mapping[tuple[str, int, int], Mapping[int, BatchTimes]]) -> list[tuple[str, Ratio]]:
    """By name: the p50 of one framework over that of another, paired by repeat."""
    ratios: list[tuple[str, Ratio]] = []
    for cores in settings.cores:
        for size in settings.batches:
            for names in combinations(settings.frameworks, 2):
                first, second = (places.get((framework, cores, size), {}) for framework in names)
                pairs = [(_p50(second[repeat]), _p50(first[repeat])) for repeat in first if repeat in second]
                if (ratio := paired_ratio(pairs)) is not None:
                    ratios.append((f"{wording.count(cores, 'core')}, batch {size}: {' and '.join(names)}", ratio))
    return ratios


def _measured(framework: str, cores: int, size: int, own: list[BatchTimes]) -> Measured:
    def over(values: list[float]) -> Spread:
        made = spread(values)
        assert made is not None  # finished processes have times
        return made

    every = [seconds for times in own for seconds in times.seconds]
    return Measured(
        contestant=framework,
        cores=cores,
        batch_size=size,
        p50_seconds=over([_p50(times) for times in own]),
        p99_seconds=float(np.quantile(every, 0.99)) if len(every) >= CALLS_FOR_P99 else None,
        images_per_second=over([size * len(times.seconds) / sum(times.seconds) for times in own]),
        first_seconds=over([times.first_seconds for times in own]),
        calls=len(every),
    )


def _p50(times: BatchTimes) -> float:
    return float(np.median(times.seconds))


def cell_name(framework: str, cores: int) -> str:
    """`pytorch, 2 cores`."""
    return f"{framework}, {wording.count(cores, 'core')}"
