"""The settings of a tuning and its results, as they are stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

from common.frozen import Frozen
from compare.results.workspace import PlannedWork
from compare.running import launch
from compare.running.matrix import FileName
from compare.tools.tuning import search_space
from compare.tools.tuning.search_space import Space

SCHEMA_VERSION = 1
KIND = "tuning"

Sampler = Literal["tpe", "random", "grid"]
Pruner = Literal["none", "median", "halving"]
Objective = Literal["loss", "accuracy"]
Backend = Literal["threads", "processes", "dask"]
State = Literal["ok", "pruned", "diverged", "failed", "killed"]
"""Trained to its last epoch; stopped by the pruner; loss not finite; ended with an error; its process ended."""
SAMPLERS: tuple[str, ...] = get_args(Sampler)
PRUNERS: tuple[str, ...] = get_args(Pruner)
OBJECTIVES: tuple[str, ...] = get_args(Objective)
BACKENDS: tuple[str, ...] = get_args(Backend)
STATES: tuple[State, ...] = get_args(State)


class Tuning(Frozen):
    """The settings of a tuning."""

    values: dict[str, Any] = {}
    """Nested values of the spec that all trials share. The space overrides them. `cores` is the budget of all jobs together."""
    space: dict[str, Any] = search_space.DEFAULT
    """Ranges by field, see `search_space`."""
    space_name: str = search_space.DEFAULT_NAME
    """The space's file, for errors and the report."""
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
    """URL of a database. None: a SQLite file in the folder."""
    frameworks: tuple[str, ...] = tuple(launch.FRAMEWORKS)

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        return "minimize" if self.objective == "loss" else "maximize"

    @property
    def model(self) -> str:
        return str(self.values.get("model", "simple_cnn"))

    def checked_space(self) -> Space:
        """Check the space and return it."""
        return search_space.check_space(self.space, self.values, self.space_name)

    def identity(self) -> dict[str, Any]:
        """Return the fields that must be equal to resume. The number of repeats may grow."""
        return self.model_dump(mode="json", exclude={"repeats"})

    def trials_of(self, space: Space) -> int:
        """Return the number of trials of each search. A grid has at most as many as it has points."""
        return min(self.trials, search_space.grid_size(space)) if self.sampler == "grid" else self.trials


class TuningPlan(PlannedWork):
    """Contents of tuning.json: what is tuned, and on what."""

    schema_version: int = SCHEMA_VERSION
    kind: str = KIND
    created_at: str
    """UTC, ISO 8601."""
    token: str
    """Prefix of the studies' names in a shared database."""
    settings: Tuning
    """The storage's password is masked."""
    budget: int
    """CPU cores of all jobs together."""
    data_name: str
    data_hash: str
    data_notes: list[str] = []
    train_examples: int
    validation_examples: int
    versions: dict[str, dict[str, str]]

    def identity(self) -> dict[str, Any]:
        return self.settings.identity() | {"budget": self.budget, "data": self.data_hash, "versions": self.versions}

    def continued_by(self, new: Any) -> Self:
        repeats = max(self.settings.repeats, new.settings.repeats)
        return self.model_copy(update={"settings": new.settings.model_copy(update={"repeats": repeats})})


class TunedTrial(Frozen):
    """One setting, trained once."""

    slot: int
    """Place of the trial among the requested ones, from 0. The same slot has the same seed in every search of a repeat."""
    number: int
    """Optuna's number, in the order of proposals. A trial that is repeated after an interruption gets another number."""
    fields: dict[str, Any]
    """The drawn values, by field."""
    state: State
    reason: str | None = None
    value: float | None = None
    """Objective after the trial's last epoch. For a pruned trial: at the time of the pruning."""
    loss: float | None = None
    """Loss on the validation split, after the last trained epoch."""
    accuracy: float | None = None
    epochs: int = 0
    images: int = 0
    """Number of images trained on."""
    began_seconds: float
    """Seconds since the search began."""
    ended_seconds: float

    @property
    def score(self) -> float | None:
        """The objective of a trial that was trained to its end."""
        return self.value if self.state == "ok" else None


class TuningSearch(Frozen):
    """One search so far."""

    contestant: FileName
    jobs: int
    repeat: int
    seed: int
    """Seed of the sampler."""
    cores_a_trial: int
    study: str
    """Name of the search's study in the storage."""
    trials: list[TunedTrial]
    """Trials in the order that they ended."""
    done: bool
    start_seconds: float | None = None
    """Seconds until all servers had imported their framework. The search's clock starts after that."""
    cores_of_others: float | None = None
    """CPU cores that other work used, in the last attempt. None if the search ran on other machines."""
    attempts: int = 1
    """Above 1 if the search was interrupted. Its seconds then cover all attempts, each until its last finished trial."""
    servers_lost: int = 0
    """Processes that ended and could not be replaced, while others continued."""

    @property
    def seconds(self) -> float:
        """Seconds from the start of the first trial to the end of the last one."""
        return max((trial.ended_seconds for trial in self.trials), default=0.0)

    @property
    def timed(self) -> bool:
        """Whether the seconds are valid for a ratio: the search was done in one attempt, with all its servers."""
        return self.done and self.attempts == 1 and self.servers_lost == 0

    @property
    def images(self) -> int:
        return sum(trial.images for trial in self.trials)

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds if self.seconds else 0.0

    def best(self, objective: Objective, *, trials: int | None = None, until: float = math.inf) -> float | None:
        """Return the best score.

        Args:
            objective: decides whether the smallest or the largest score is the best.
            trials: counts only the first trials that ended. None: all.
            until: counts only trials that ended within these seconds of the search's start.
        """
        scores = [trial.score for trial in self.trials[:trials] if trial.score is not None and trial.ended_seconds <= until]
        return (min if objective == "loss" else max)(scores, default=None)


class BestTrial(Frozen):
    """Best trial of a framework, over all its searches."""

    study: str
    trial: TunedTrial
    fields: dict[str, Any]
    """Fields of the spec: drawn and fixed."""


class TuningRecord(Frozen):
    """Contents of tuned.json: the results so far."""

    plan: TuningPlan
    searches: list[TuningSearch]
    best_trials: dict[str, BestTrial]
    """Best trial by framework. A framework without a trial that was trained to its end is missing."""

    @property
    def best(self) -> dict[str, dict[str, Any]]:
        """Spec fields of each framework's best trial, by dotted name."""
        return {framework: best.fields for framework, best in self.best_trials.items()}

    @property
    def done(self) -> bool:
        return all(search.done for search in self.searches)

    @property
    def num_failed(self) -> int:
        """Trials that failed or were killed. A diverged trial is a result, not a failure."""
        return sum(trial.state in ("failed", "killed") for search in self.searches for trial in search.trials)

    @property
    def exit_code(self) -> int:
        """1 if a trial failed, a search is not done or a framework has no best trial, else 0."""
        return int(bool(self.num_failed) or not self.done or set(self.best_trials) != set(self.plan.settings.frameworks))

    def searches_of(self, framework: str) -> list[TuningSearch]:
        return [search for search in self.searches if search.contestant == framework]

    def by_jobs(self, framework: str) -> dict[int, Sequence[TuningSearch]]:
        """Return a framework's searches by number of jobs, in ascending order."""
        searches = self.searches_of(framework)
        return {
            jobs: [search for search in searches if search.jobs == jobs]
            for jobs in sorted({search.jobs for search in searches})
        }

    def scored(self, framework: str) -> list[TunedTrial]:
        """Return a framework's trials that were trained to their end."""
        return [trial for search in self.searches_of(framework) for trial in search.trials if trial.score is not None]
