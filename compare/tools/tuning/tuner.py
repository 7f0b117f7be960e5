"""Tuning: searches of one space with one sampler, for every framework and number of jobs, one after the other."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import spec
from common.artifacts import records
from common.data import sources
from common.machine import machine
from common.models import architectures
from common.spec import Spec, SpecError
from compare.cli.errors import FolderError
from compare.cli.progress import Display, display
from compare.results import store
from compare.results.workspace import FolderKind, Workspace
from compare.running import code_digest, contestants, launch, matrix
from compare.running.interleaving import rounds
from compare.running.matrix import Row
from compare.running.twins import Twins
from compare.tools.tuning import conductor, optuna_study, search_space, servers
from compare.tools.tuning.optuna_study import SearchJob
from compare.tools.tuning.records import KIND, BestTrial, Tuning, TuningPlan, TuningRecord, TuningSearch
from compare.tools.tuning.search_space import Space
from compare.tools.tuning.servers import JobLayout, Serving

PLAN_FILE, RECORD_FILE, STORAGE_FILE = "tuning.json", "tuned.json", "tuning.db"
LOGS_FOLDER = "logs"


def open_workspace(settings: Tuning, folder: Path) -> AbstractContextManager[Workspace[TuningPlan]]:
    """Open the folder of a tuning with these settings."""
    return Workspace.open(folder, TUNING, early=_without_password(settings).identity())


def tune(
    settings: Tuning, workspace: Workspace[TuningPlan], twins: Twins | None = None, serving: Serving = servers.serving
) -> TuningRecord:
    """Run a tuning, or the rest of it in its folder.

    Finished trials are always saved. Call it again with the same settings to resume, or to get the stored result.

    Args:
        workspace: gets plan, storage, logs and record.
        twins: contestants that are known already. They may be more than those of the settings.
        serving: starts the servers of a search.
    """
    folder, twins = workspace.folder, (twins or Twins(settings.frameworks)).only(settings.frameworks)
    with display() as progress:
        if settings.storage is None and (storage_state := _missing_storage(folder)) is not None:
            raise FolderError(f"{folder / STORAGE_FILE}, which holds the trials, is {storage_state}. {optuna_study.ELSEWHERE}")
        planned, space, values = _check_and_plan(settings, twins, progress)
        shared_storage = None if settings.storage is None else optuna_study.open_storage(settings.storage)
        plan = workspace.claim(planned)
        storage = shared_storage or optuna_study.file_storage(folder / STORAGE_FILE)
        searches = _searches(settings, plan, space, values)
        results = [optuna_study.stored_result(search, storage) for search in searches]
        pairs = zip(searches, results, strict=True)
        progress.plan([search.name for search, result in pairs for _ in range(search.trials - len(result.trials))])
        try:
            for search in searches:
                logs = folder / LOGS_FOLDER / f"{search.contestant}-{search.layout.jobs}jobs-r{search.repeat}"
                conductor.conduct(search, storage, logs, progress, serving)
        finally:
            tuned = _build_record(plan, space, [optuna_study.stored_result(search, storage) for search in searches])
            records.write(folder / RECORD_FILE, tuned)
        return tuned


def _missing_storage(folder: Path) -> str | None:
    """Say what is wrong with the storage of an earlier search. None: nothing, or there was no search."""
    if not any((folder / name).exists() for name in (RECORD_FILE, LOGS_FOLDER)):
        return None
    storage = folder / STORAGE_FILE
    if not storage.exists():
        return "gone"
    return None if storage.stat().st_size else "empty"


def stored_settings(folder: Path) -> Tuning:
    """Return the settings of the tuning in a folder. A masked password must be given again by the caller."""
    return TUNING.read(folder).settings


def read(folder: Path) -> TuningRecord:
    """Read the record of a folder."""
    return store.read_record(folder / RECORD_FILE, TuningRecord, "a tuning")


def check(settings: Tuning) -> tuple[Spec, Space, dict[str, Any]]:
    """Run the checks that need neither a framework nor the data.

    Returns:
        The spec that all trials share, the space, and the nested values that they share.
    """
    contestants.builtin_twins("--frameworks", settings.frameworks, launch.FRAMEWORKS)
    if settings.scheduler is not None and settings.backend != "dask":
        raise SpecError(f"--scheduler needs --backend dask. Received: --backend {settings.backend}. Use dask, or leave it out.")
    base = _base(settings)
    values = spec.overlay(settings.values, {"data.seed": base.split_seed})
    space = search_space.check_space(settings.space, values, settings.space_name)
    for field, excluded in (("epochs", "steps"), ("steps", "epochs")):
        if field in space.fields:
            values.pop(excluded, None)
    if settings.sampler == "grid":
        search_space.grid(space, base.seed)
    return base, space, values


def _base(settings: Tuning) -> Spec:
    """Build the spec that all trials share, before anything is drawn."""
    base = spec.build(settings.values)
    for field, value, needed in (
        ("mode", base.mode, "serial"),
        ("part", base.part, "training"),
        ("profile_steps", base.profile_steps, 0),
        ("best_epoch.keep", base.best_epoch.keep, False),
        # Plain threads and memory are set when a process starts, and trials share a process.
        *([("switches", "plain", "usual or best")] if base.switches == "plain" else []),
    ):
        if value != needed:
            raise SpecError(
                f"{field} of a trial must be {needed}: trials run side by side, each as a serial training. Received: {value}."
            )
    for name, numbers in (("--trials", [settings.trials]), ("--jobs", settings.jobs), ("--repeats", [settings.repeats])):
        if not numbers or min(numbers) < 1:
            raise SpecError(f"{name} must be at least 1. Received: {', '.join(map(str, numbers))}. Use 1 or more.")
    return base


def _check_and_plan(settings: Tuning, twins: Twins, progress: Display) -> tuple[TuningPlan, Space, dict[str, dict[str, Any]]]:
    """Run all checks before the first trial.

    Returns:
        The plan, the space, and the values that all trials of a framework share, with its switches.
    """
    base, space, values = check(settings)
    progress.say("asking the frameworks what they can do here")
    descriptions = {framework: twins.describe(framework) for framework in settings.frameworks}
    rows = [Row(id=framework, contestant=framework, spec=base) for framework in settings.frameworks]
    rows = matrix.check_rows(rows, descriptions, twins.contestants)
    for row in rows:
        if row.unavailable is not None:
            raise SpecError(f"{row.contestant}: {row.unavailable}. Received: --frameworks {','.join(settings.frameworks)}.")
        spec.refuse_per_process(row.spec, descriptions[row.contestant]["options"], row.contestant)
    progress.say("reading the data")
    # Loaded, not described: the first trial is not to spend its time on decoding images for all of them.
    dataset = sources.load(base.data, seed=base.split_seed, cache_dir=base.paths.cache_dir)
    matrix.check_data(rows, dataset)
    architectures.build(base, len(dataset.class_names), dataset.image_size)
    budget = base.cores
    if settings.scheduler is not None and "cores" not in settings.values:
        budget = servers.cores_of(settings.scheduler)
    plan = TuningPlan(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        token=secrets.token_hex(4),
        settings=_without_password(settings),
        budget=budget,
        data_name=dataset.name,
        data_hash=dataset.content_hash,
        data_notes=list(dataset.notes),
        train_examples=len(dataset.train),
        validation_examples=len(dataset.validation.labels),
        code_hash=code_digest.compute(twins.contestants, base.model),
        versions={framework: description["versions"] for framework, description in descriptions.items()},
        machine=machine.describe() | {"gpus": spec.gpus(base, descriptions.values())},
    )
    return plan, space, {row.contestant: {**values, "framework_options": row.spec.framework_options} for row in rows}


def _without_password(settings: Tuning) -> Tuning:
    """Return the settings as a plan holds them, without the password of the storage."""
    return settings.model_copy(update={"storage": settings.storage and optuna_study.masked(settings.storage)})


TUNING = FolderKind(
    noun="tuning",
    file=PLAN_FILE,
    kind=KIND,
    record=TuningPlan,
    allowed=(LOGS_FOLDER,),
)


def _searches(settings: Tuning, plan: TuningPlan, space: Space, values: dict[str, dict[str, Any]]) -> list[SearchJob]:
    """Return every search in interleaved order. `settings` have the storage's password, the plan has the number of repeats."""
    seed = spec.build(settings.values).seed
    pairs = [(jobs, framework) for jobs in settings.jobs for framework in settings.frameworks]
    searches: list[SearchJob] = []
    for round_jobs in rounds(pairs, plan.settings.repeats):
        for (jobs, framework), repeat in round_jobs:
            name = f"{framework}-{settings.backend}-{jobs}jobs-r{repeat}"
            searches.append(
                SearchJob(
                    settings=settings,
                    contestant=framework,
                    layout=JobLayout(settings.backend, jobs, plan.budget, values[framework].get("device", "auto")),
                    repeat=repeat,
                    trials=settings.trials_of(space),
                    seed=optuna_study.derived_seed(seed, repeat),
                    values=values[framework],
                    space=space,
                    study=name if settings.storage is None else f"{plan.token}-{name}",
                )
            )
    return searches


def _build_record(plan: TuningPlan, space: Space, results: Sequence[TuningSearch]) -> TuningRecord:
    """Build the record: the results of the searches, and each framework's best trial."""
    settings = plan.settings
    best: dict[str, BestTrial] = {}
    for framework in settings.frameworks:
        scored = [
            (trial.score, result.study, trial)
            for result in results
            if result.contestant == framework
            for trial in result.trials
            if trial.score is not None
        ]
        if scored:
            _, study, trial = (min if settings.objective == "loss" else max)(scored, key=lambda entry: entry[0])
            best[framework] = BestTrial(study=study, trial=trial, fields={**space.fixed, **trial.fields})
    searches = sorted(results, key=lambda result: (settings.frameworks.index(result.contestant), result.jobs, result.repeat))
    return TuningRecord(plan=plan, searches=searches, best_trials=best)
