"""Tuning: searches of one space with one sampler, for every framework and number of jobs, one after the other."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import spec
from common.artifacts import records
from common.data import sources
from common.machine import machine
from common.models import architectures
from common.spec import Spec, SpecError
from compare.core.errors import FolderError
from compare.core.progress import Display, display
from compare.execution import code_digest, contestants, launch, matrix, results_folder, store
from compare.execution.interleaving import turn
from compare.execution.matrix import Row
from compare.tuning import conductor, optuna_study, search_space, servers
from compare.tuning.optuna_study import Search
from compare.tuning.records import KIND, Best, Plan, SearchResult, Tuned, Tuning
from compare.tuning.search_space import Space
from compare.tuning.servers import Layout

PLAN_FILE, RECORD_FILE, STORAGE_FILE = "tuning.json", "tuned.json", "tuning.db"
LOGS_FOLDER = "logs"


def tune(settings: Tuning, folder: Path, lock: ExitStack | None = None) -> Tuned:
    """Run a tuning, or the rest of it in its folder.

    Finished trials are always saved. Call it again with the same settings to resume, or to get the stored result.

    Args:
        folder: gets plan, storage, logs and record.
        lock: holds the folder until its owner ends. None: the folder is free when the tuning ends.

    Raises:
        SpecError, DataRefused, LaunchError, FolderError: it cannot be done.
        Interrupted: finished trials are recorded.
    """
    with ExitStack() as own_lock, display() as shown:
        results_folder.refuse_other_request(
            folder, PLAN_FILE, Plan, "tuning", _of_settings(settings), identity=_identity, kind=KIND, own=(LOGS_FOLDER,)
        )
        if settings.storage is None and (lost := _lost_storage(folder)) is not None:
            raise FolderError(f"{folder / STORAGE_FILE}, which holds the trials, is {lost}. {optuna_study.ELSEWHERE}")
        wanted, space, values = _judge(settings, shown)
        shared_storage = None if settings.storage is None else optuna_study.open_storage(settings.storage)
        claimed = results_folder.claimed(
            folder, PLAN_FILE, wanted, "tuning", identity=_identity, merge=_with_more_repeats, own=(LOGS_FOLDER,)
        )
        plan = (lock or own_lock).enter_context(claimed)
        storage = shared_storage or optuna_study.own_storage(folder / STORAGE_FILE)
        searches = _searches(settings, plan, space, values)
        found = [optuna_study.stored(each, storage) for each in searches]
        pairs = zip(searches, found, strict=True)
        shown.plan([each.name for each, so_far in pairs for _ in range(each.trials - len(so_far.trials))])
        try:
            for each in searches:
                logs = folder / LOGS_FOLDER / f"{each.contestant}-{each.layout.jobs}jobs-r{each.repeat}"
                conductor.conduct(each, storage, logs, shown)
        finally:
            tuned = _tuned(plan, space, [optuna_study.stored(each, storage) for each in searches])
            records.write(folder / RECORD_FILE, tuned)
        return tuned


def _lost_storage(folder: Path) -> str | None:
    """What has become of the trials of an earlier search. None: nothing, or there was none."""
    if not any((folder / each).exists() for each in (RECORD_FILE, LOGS_FOLDER)):
        return None
    storage = folder / STORAGE_FILE
    if not storage.exists():
        return "gone"
    return None if storage.stat().st_size else "empty"


def stored_settings(folder: Path) -> Tuning:
    """The settings of the tuning in a folder. A masked password must be given again by the caller.

    Raises:
        FolderError: it holds none.
    """
    return store.read_record(folder / PLAN_FILE, Plan, "a tuning").settings


def read(folder: Path) -> Tuned:
    """The record of a folder.

    Raises:
        FolderError: it holds none.
    """
    return store.read_record(folder / RECORD_FILE, Tuned, "a tuning")


def check(settings: Tuning) -> tuple[Spec, Space, dict[str, Any]]:
    """Checks that need neither a framework nor the data.

    Returns:
        The spec that all trials share, the space, and the nested values that they share.

    Raises:
        SpecError: names the option or the field.
    """
    contestants.own_twins("--frameworks", settings.frameworks, launch.FRAMEWORKS)
    if settings.scheduler is not None and settings.backend != "dask":
        raise SpecError(f"--scheduler needs --backend dask. Received: --backend {settings.backend}. Use dask, or leave it out.")
    base = _base(settings)
    values = spec.overlay(settings.values, {"data.seed": base.split_seed})
    space = search_space.judged(settings.space, values, settings.space_name)
    for drawn, other in (("epochs", "steps"), ("steps", "epochs")):
        if drawn in space.fields:
            values.pop(other, None)
    if settings.sampler == "grid":
        search_space.grid(space, base.seed)
    return base, space, values


def _base(settings: Tuning) -> Spec:
    """The spec that all trials share, before anything is drawn.

    Raises:
        SpecError: it is refused, or cannot be that of trials.
    """
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


def _judge(settings: Tuning, shown: Display) -> tuple[Plan, Space, dict[str, dict[str, Any]]]:
    """All checks before the first trial.

    Returns:
        The plan, the space, and the values that all trials of a framework share, with its switches.
    """
    base, space, values = check(settings)
    shown.say("asking the frameworks what they can do here")
    descriptions = {framework: launch.describe(framework) for framework in settings.frameworks}
    rows = [Row(id=framework, contestant=framework, spec=base) for framework in settings.frameworks]
    rows = matrix.judge(rows, descriptions)
    for row in rows:
        if row.unavailable is not None:
            raise SpecError(f"{row.contestant}: {row.unavailable}. Received: --frameworks {','.join(settings.frameworks)}.")
        spec.refuse_per_process(row.spec, descriptions[row.contestant]["options"], row.contestant)
    shown.say("reading the data")
    # Loaded, not described: the first trial is not to spend its time on decoding images for all of them.
    dataset = sources.load(base.data, seed=base.split_seed, cache_dir=base.paths.cache_dir)
    matrix.check_data(rows, dataset)
    architectures.of(base, len(dataset.class_names), dataset.image_size)
    budget = base.cores
    if settings.scheduler is not None and "cores" not in settings.values:
        budget = servers.cores_of(settings.scheduler)
    plan = Plan(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        token=secrets.token_hex(4),
        settings=_stored(settings),
        budget=budget,
        data_name=dataset.name,
        data_hash=dataset.content_hash,
        data_notes=list(dataset.notes),
        train_examples=len(dataset.train),
        validation_examples=len(dataset.validation.labels),
        code_hash=code_digest.of(settings.frameworks, base.model),
        versions={framework: description["versions"] for framework, description in descriptions.items()},
        machine=machine.describe() | {"gpus": spec.gpus(base, descriptions.values())},
    )
    return plan, space, {row.contestant: {**values, "framework_options": row.spec.framework_options} for row in rows}


def _identity(plan: Plan) -> dict[str, Any]:
    """A tuning is resumed only if these are the same, besides code and machine."""
    return _of_settings(plan.settings) | {"budget": plan.budget, "data": plan.data_hash, "versions": plan.versions}


def _of_settings(settings: Tuning) -> dict[str, Any]:
    return _stored(settings).model_dump(mode="json", exclude={"repeats"})


def _stored(settings: Tuning) -> Tuning:
    """The settings as a plan holds them, without the password of the storage."""
    return settings.model_copy(update={"storage": settings.storage and optuna_study.masked(settings.storage)})


def _with_more_repeats(stored: Plan, wanted: Plan) -> Plan:
    repeats = max(stored.settings.repeats, wanted.settings.repeats)
    return stored.model_copy(update={"settings": wanted.settings.model_copy(update={"repeats": repeats})})


def _searches(settings: Tuning, plan: Plan, space: Space, values: dict[str, dict[str, Any]]) -> list[Search]:
    """Every search in interleaved order. `settings` have the storage's password, the plan has the number of repeats."""
    seed = spec.build(settings.values).seed
    pairs = [(jobs, framework) for jobs in settings.jobs for framework in settings.frameworks]
    made: list[Search] = []
    for repeat in range(plan.settings.repeats):
        for jobs, framework in turn(pairs, repeat):
            name = f"{framework}-{settings.backend}-{jobs}jobs-r{repeat}"
            made.append(
                Search(
                    settings=settings,
                    contestant=framework,
                    layout=Layout(settings.backend, jobs, plan.budget, values[framework].get("device", "auto")),
                    repeat=repeat,
                    trials=settings.trials_of(space),
                    seed=optuna_study.derived_seed(seed, repeat),
                    values=values[framework],
                    space=space,
                    study=name if settings.storage is None else f"{plan.token}-{name}",
                )
            )
    return made


def _tuned(plan: Plan, space: Space, found: Sequence[SearchResult]) -> Tuned:
    """The results of the searches, and each framework's best trial."""
    settings = plan.settings
    best: dict[str, Best] = {}
    for framework in settings.frameworks:
        scored = [
            (trial.score, each.study, trial)
            for each in found
            if each.contestant == framework
            for trial in each.trials
            if trial.score is not None
        ]
        if scored:
            _, study, trial = (min if settings.objective == "loss" else max)(scored, key=lambda each: each[0])
            best[framework] = Best(study=study, trial=trial, fields={**space.fixed, **trial.fields})
    searches = sorted(found, key=lambda each: (settings.frameworks.index(each.contestant), each.jobs, each.repeat))
    return Tuned(plan=plan, searches=searches, best_trials=best)
