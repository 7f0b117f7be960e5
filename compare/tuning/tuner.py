"""Tuning: searches of one space with one sampler, for every framework and number of jobs, one after the other."""

from __future__ import annotations

import secrets
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from common import spec
from common.artifacts import records
from common.data import sources
from common.frozen import Frozen
from common.machine import machine
from common.models import architectures
from common.spec import Spec, SpecError
from compare.core import errors
from compare.core.errors import FolderError
from compare.core.interrupt import Interrupted
from compare.core.option_parsing import chosen
from compare.core.progress import Display, display
from compare.execution import code_digest, launch, matrix, store
from compare.execution.interleaving import turn
from compare.execution.matrix import Row
from compare.tuning import optuna_study, search_space, servers
from compare.tuning.optuna_study import OBJECTIVES, PRUNERS, SAMPLERS, Objective, Pruner, Sampler, Searched, Trial, Wanted
from compare.tuning.search_space import Space
from compare.tuning.servers import BACKENDS, Backend, Layout

SCHEMA_VERSION = 1
KIND = "tuning"
PLAN_FILE, RECORD_FILE, STORAGE_FILE = "tuning.json", "tuned.json", "tuning.db"
LOGS_FOLDER = "logs"


class Tuning(Frozen):
    """The settings of a tuning."""

    values: dict[str, Any] = {}
    """Nested plain values of the spec that all trials share, where the space does not name them; `cores` is the budget of all
    jobs together."""
    space: dict[str, Any] = search_space.DEFAULT
    """Ranges by field, see `search_space`."""
    space_name: str = search_space.DEFAULT_NAME
    """Its file, for errors and the report."""
    sampler: Sampler = "tpe"
    pruner: Pruner = "none"
    objective: Objective = "loss"
    """On the validation split, after a trial's last epoch."""
    trials: int = 20
    """Trials of each search. A grid may have fewer."""
    jobs: tuple[int, ...] = (1,)
    """Numbers of parallel trials. Each number is a search of its own."""
    repeats: int = 1
    """Repeats of each search, each with another seed of the sampler."""
    backend: Backend = "threads"
    scheduler: str | None = None
    """Address of a Dask cluster for the backend `dask`. None: a local cluster of processes."""
    storage: str | None = None
    """URL of a database; None: a SQLite file in the folder."""
    frameworks: tuple[str, ...] = tuple(launch.FRAMEWORKS)

    def trials_of(self, space: Space) -> int:
        """Trials of each search in this tuning's judged space: at most the points of a grid."""
        return min(self.trials, search_space.grid_size(space)) if self.sampler == "grid" else self.trials


class Plan(Frozen):
    """tuning.json: what is tuned, and on what."""

    schema_version: int = SCHEMA_VERSION
    kind: str = KIND
    created_at: str
    """UTC, ISO 8601."""
    token: str
    """Part of the names of studies, which share a database with others."""
    settings: Tuning
    """The storage, with its password masked."""
    budget: int
    """CPU cores of all jobs together."""
    data_name: str
    data_hash: str
    train_examples: int
    validation_examples: int
    code_hash: str
    versions: dict[str, dict[str, str]]
    machine: dict[str, Any]


class Best(Frozen):
    """The best trial of a framework, over all its searches."""

    study: str
    trial: Trial
    fields: dict[str, Any]
    """Fields of the spec: the drawn and the fixed ones."""


class Tuned(Frozen):
    """tuned.json: the results so far."""

    plan: Plan
    searches: list[Searched]
    best_trials: dict[str, Best]
    """By framework. Missing if no trial was trained to its end."""

    @property
    def best(self) -> dict[str, dict[str, Any]]:
        """Spec fields of each framework's best trial, by dotted name."""
        return {framework: found.fields for framework, found in self.best_trials.items()}

    @property
    def done(self) -> bool:
        return all(search.done for search in self.searches)

    @property
    def exit_code(self) -> int:
        """1 if a trial failed or was killed, or a framework has no trial that was trained to its end; else 0.

        A trial that diverged is a result, not a failure.
        """
        settings = self.plan.settings
        bad = any(trial.state in ("failed", "killed") for search in self.searches for trial in search.trials)
        return int(bad or not self.done or set(self.best_trials) != set(settings.frameworks))


@dataclass(frozen=True)
class _Judged:
    """Settings that can be run."""

    settings: Tuning
    space: Space
    plan: Plan
    values: dict[str, dict[str, Any]]
    """Specs of each framework's trials, with the framework's switches."""


def tune(settings: Tuning, folder: Path, shown: Display | None = None) -> Tuned:
    """Run a tuning, or the rest of it in its folder.

    Finished trials are always saved. Call it again with the same settings to resume, or to get the stored result.

    Args:
        settings: the requested tuning.
        folder: gets plan, storage, logs and record.
        shown: receives every trial; None: its own display, on stderr.

    Raises:
        SpecError, DataRefused, LaunchError, FolderError: it cannot be done.
        Interrupted: finished trials are recorded.
    """
    with display(Console(stderr=True)) if shown is None else nullcontext(shown) as shown:
        wanted = _judge(settings, shown)
        elsewhere = None if settings.storage is None else optuna_study.open_storage(settings.storage)
        with store.locked(folder):
            plan = _claim(folder, wanted.plan)
            records.write(folder / PLAN_FILE, plan)
            storage = elsewhere or optuna_study.open_storage(f"sqlite:///{(folder / STORAGE_FILE).resolve()}")
            searches = _searches(wanted, plan)
            told = {search.study: len(optuna_study.stored(search, storage).trials) for search in searches}
            shown.plan([search.name for search in searches for _ in range(search.trials - told[search.study])])
            try:
                for search in searches:
                    logs = folder / LOGS_FOLDER / f"{search.framework}-{search.layout.jobs}jobs-r{search.repeat}"
                    optuna_study.conduct(search, storage, logs, shown)
            except (Interrupted, errors.LaunchError, SpecError):
                _record(folder, plan, wanted, [optuna_study.stored(search, storage) for search in searches])
                raise
            return _record(folder, plan, wanted, [optuna_study.stored(search, storage) for search in searches])


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
        The spec that all trials share, the space, and the values that they share, nested.

    Raises:
        SpecError: names the option or the field.
    """
    for option, value, known in (
        ("--sampler", settings.sampler, SAMPLERS),
        ("--pruner", settings.pruner, PRUNERS),
        ("--objective", settings.objective, OBJECTIVES),
        ("--backend", settings.backend, BACKENDS),
    ):
        chosen(option, [value], known)
    chosen("--frameworks", settings.frameworks, tuple(launch.FRAMEWORKS))
    if settings.scheduler is not None and settings.backend != "dask":
        raise SpecError(f"--scheduler is for --backend dask. Received: {settings.backend}. Use dask, or leave it out.")
    base = _base(settings)
    values = spec.overlay(settings.values, {"data.seed": base.split_seed})
    space = search_space.judged(settings.space, values, settings.space_name)
    for drawn, other in (("epochs", "steps"), ("steps", "epochs")):
        if drawn in space.fields:
            values.pop(other, None)
    if settings.sampler == "grid":
        search_space.grid(space, base.seed)
    return base, space, values


def _judge(settings: Tuning, shown: Display) -> _Judged:
    """All checks before the first trial."""
    base, space, values = check(settings)
    shown.say("asking the frameworks what they can do here")
    descriptions = {framework: launch.describe(framework) for framework in settings.frameworks}
    rows = [Row(id=framework, framework=framework, spec=base) for framework in settings.frameworks]
    rows = matrix.judge(rows, descriptions)
    for row in rows:
        if row.unavailable is not None:
            raise SpecError(f"{row.framework}: {row.unavailable}. Received: --frameworks {','.join(settings.frameworks)}.")
        spec.refuse_per_process(row.spec, descriptions[row.framework]["options"], row.framework)
    shown.say("reading the data")
    dataset = sources.load(base.data, seed=base.split_seed, cache_dir=base.paths.cache_dir)
    matrix.check_data(rows, dataset)
    architectures.resolve(base.model, len(dataset.class_names), dataset.image_size)
    budget = base.cores
    if settings.scheduler is not None and "cores" not in settings.values:
        budget = servers.cores_of(settings.scheduler)
    hidden = settings.storage and optuna_study.masked(settings.storage)
    plan = Plan(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        token=secrets.token_hex(4),
        settings=settings.model_copy(update={"storage": hidden}),
        budget=budget,
        data_name=dataset.name,
        data_hash=dataset.content_hash,
        train_examples=len(dataset.train),
        validation_examples=len(dataset.validation.labels),
        code_hash=code_digest.of(settings.frameworks, base.model),
        versions={framework: description["versions"] for framework, description in descriptions.items()},
        machine=machine.describe(),
    )
    switches = {row.framework: {**values, "framework_options": row.spec.framework_options} for row in rows}
    return _Judged(settings, space, plan, switches)


def _base(settings: Tuning) -> Spec:
    """The spec that all trials share, before anything is drawn.

    Raises:
        SpecError: it is refused, or is not usable for trials.
    """
    base = spec.build(settings.values)
    for field, value, needed in (
        ("mode", base.mode, "serial"),
        ("part", base.part, "training"),
        ("profile_steps", base.profile_steps, 0),
        ("best_epoch.keep", base.best_epoch.keep, False),
        # # Plain threads and memory are set when a process starts, and trials share a process.
        *([("switches", "plain", "fair or best")] if base.switches == "plain" else []),
    ):
        if value != needed:
            raise SpecError(
                f"{field} of a trial must be {needed}: trials run side by side, each as a serial training. Received: {value}."
            )
    for name, numbers in (("--trials", [settings.trials]), ("--jobs", settings.jobs), ("--repeats", [settings.repeats])):
        if not numbers or min(numbers) < 1:
            raise SpecError(f"{name} must be at least 1. Received: {', '.join(map(str, numbers))}. Use 1 or more.")
    return base


def _claim(folder: Path, wanted: Plan) -> Plan:
    """Claim and lock the folder: a new one, or one with the same tuning. Repeats may grow.

    Raises:
        FolderError: it holds another tuning, or files of another kind.
    """
    store.refuse_others(folder, PLAN_FILE, KIND, "tuning", own=(LOGS_FOLDER,))
    if not (folder / PLAN_FILE).exists():
        return wanted
    found = store.read_record(folder / PLAN_FILE, Plan, "a tuning")
    ground = store.other_ground((found.code_hash, wanted.code_hash), (found.machine, wanted.machine))
    if differing := store.differing(_identity(found), _identity(wanted)) or ground:
        raise FolderError(
            f"{folder} holds another tuning ({differing}). Choose another --out, or take its settings with --resume."
        )
    repeats = max(found.settings.repeats, wanted.settings.repeats)
    return found.model_copy(update={"settings": wanted.settings.model_copy(update={"repeats": repeats})})


def _identity(plan: Plan) -> dict[str, Any]:
    """What must be the same to resume a tuning, besides code and machine."""
    settings = plan.settings.model_dump(mode="json", exclude={"repeats"})
    return settings | {"budget": plan.budget, "data": plan.data_hash, "versions": plan.versions}


def _searches(wanted: _Judged, plan: Plan) -> list[Wanted]:
    """Every search, in order: A B, then B A, so that a machine that drifts favours none."""
    settings, trials = wanted.settings, plan.settings.trials_of(wanted.space)
    pairs = [(jobs, framework) for jobs in settings.jobs for framework in settings.frameworks]
    made: list[Wanted] = []
    for repeat in range(plan.settings.repeats):
        for jobs, framework in turn(pairs, repeat):
            name = f"{framework}-{settings.backend}-{jobs}jobs-r{repeat}"
            made.append(
                Wanted(
                    framework=framework,
                    layout=Layout(settings.backend, jobs, plan.budget, wanted.values[framework].get("device", "auto")),
                    repeat=repeat,
                    trials=trials,
                    sampler=settings.sampler,
                    pruner=settings.pruner,
                    objective=settings.objective,
                    seed=optuna_study.sampler_seed(spec.build(settings.values).seed, repeat),
                    values=wanted.values[framework],
                    space=wanted.space,
                    study=name if settings.storage is None else f"{plan.token}-{name}",
                    scheduler=settings.scheduler,
                )
            )
    return made


def _record(folder: Path, plan: Plan, wanted: _Judged, searches: list[Searched]) -> Tuned:
    better = min if plan.settings.objective == "loss" else max
    best: dict[str, Best] = {}
    for framework in plan.settings.frameworks:
        own = [search for search in searches if search.framework == framework]
        whole = [
            (trial.value, search, trial)
            for search in own
            for trial in search.trials
            if trial.state == "ok" and trial.value is not None
        ]
        if whole:
            _, search, trial = better(whole, key=lambda each: each[0])
            best[framework] = Best(study=search.study, trial=trial, fields={**wanted.space.fixed, **trial.fields})
    order = {framework: place for place, framework in enumerate(plan.settings.frameworks)}
    ordered = sorted(searches, key=lambda search: (order[search.framework], search.jobs, search.repeat))
    tuned = Tuned(plan=plan, searches=ordered, best_trials=best)
    records.write(folder / RECORD_FILE, tuned)
    return tuned
