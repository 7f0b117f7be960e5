"""One search: an Optuna study that only this process asks and tells. Servers train its trials."""

from __future__ import annotations

import queue
import re
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn
from urllib.parse import unquote

import numpy as np
import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, PartialFixedSampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from common import spec
from common.frozen import Frozen
from common.machine.interference import Meter
from common.spec import SpecError
from compare.core import wording
from compare.core.errors import LaunchError
from compare.core.progress import Display
from compare.tuning import search_space
from compare.tuning.search_space import Space
from compare.tuning.servers import ENDED, Hear, Layout, Server, serving

optuna.logging.set_verbosity(optuna.logging.WARNING)  # else it logs each study and trial

Sampler = Literal["tpe", "random", "grid"]
SAMPLERS: tuple[Sampler, ...] = ("tpe", "random", "grid")
Pruner = Literal["none", "median", "halving"]
PRUNERS: tuple[Pruner, ...] = ("none", "median", "halving")
Objective = Literal["loss", "accuracy"]
OBJECTIVES: tuple[Objective, ...] = ("loss", "accuracy")

State = Literal["ok", "pruned", "diverged", "failed", "killed"]
"""After its last epoch; stopped by the pruner; without a finite loss; with an error; with the process that trained it."""

HALVING_FACTOR = 3
"""Successive halving keeps the best fraction at epochs 1, 3, 9, ... (Jamieson & Talwalkar 2016, as Optuna does it)."""
_MOST_RANDOM = 10
_RANDOM_PART = 3

# Of the study, and of its trials.
_DONE, _ATTEMPTS = "convtwins_done", "convtwins_attempts"
_SLOT, _RUN = "slot", "run"
_TOLD_AS: dict[State, TrialState] = {
    "ok": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    **dict.fromkeys(("diverged", "failed", "killed"), TrialState.FAIL),
}

_POLL_SECONDS = 0.25
_BUSY_SECONDS = 60
"""Seconds for which another reader of a SQLite file, for example a dashboard, may lock it."""
_HIDDEN = "***"
"""SQLAlchemy's replacement of a password."""
_SECRET = re.compile("pass|pwd|secret|token|key", re.IGNORECASE)
"""Marks a database driver's option, by its name, whose value is secret."""


class Trial(Frozen):
    """One setting, trained once."""

    slot: int
    """Its place among the requested trials, from 0. The same slot has the same seed in every search of a repeat."""
    number: int
    """Optuna's number, in the order of asking. A trial that is asked again after an interruption gets another number."""
    fields: dict[str, Any]
    """The drawn values, by field."""
    state: State
    reason: str | None = None
    value: float | None = None
    """Objective after the trial's last epoch. For a pruned trial: when it was pruned."""
    loss: float | None = None
    """On the validation split, after the last trained epoch."""
    accuracy: float | None = None
    epochs: int = 0
    images: int = 0
    """Images trained on."""
    began_seconds: float
    """Seconds since the search began."""
    ended_seconds: float


class Searched(Frozen):
    """One search, finished or as far as it is."""

    framework: str
    jobs: int
    repeat: int
    seed: int
    """Seed of the sampler."""
    cores_a_trial: int
    study: str
    """Its name in the storage."""
    trials: list[Trial]
    """In the order in which they ended."""
    done: bool
    start_seconds: float | None = None
    """Seconds until all servers had imported their framework. The search's clock starts after that."""
    cores_of_others: float | None = None
    """Use of the machine by other work, in the last attempt. None if the search ran on other machines."""
    attempts: int = 1
    """Above 1 if the search was interrupted. Its seconds then cover all attempts, each until its last finished trial."""
    servers_lost: int = 0
    """Processes that ended and could not be replaced, while others continued."""

    @property
    def seconds(self) -> float:
        """From the start of the first trial to the end of the last one."""
        return max((trial.ended_seconds for trial in self.trials), default=0.0)

    @property
    def timed(self) -> bool:
        """Whether its seconds are valid for a ratio: it ended, in one attempt, with all its servers."""
        return self.done and self.attempts == 1 and self.servers_lost == 0

    @property
    def images(self) -> int:
        return sum(trial.images for trial in self.trials)


@dataclass(frozen=True)
class Wanted:
    """A requested search."""

    framework: str
    layout: Layout
    repeat: int
    trials: int
    sampler: Sampler
    pruner: Pruner
    objective: Objective
    seed: int
    """Seed of the sampler."""
    values: dict[str, Any]
    """Seed of the spec, for all trials."""
    space: Space
    study: str
    scheduler: str | None = None

    @property
    def name(self) -> str:
        return f"{self.framework} {wording.count(self.layout.jobs, 'job')}"

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        return "minimize" if self.objective == "loss" else "maximize"


def random_trials(trials: int) -> int:
    """How many trials TPE draws at random before it builds its model: a third, from 1 to 10."""
    return max(min(trials // _RANDOM_PART, _MOST_RANDOM), 1)


def sampler_seed(seed: int, repeat: int) -> int:
    """Seed for a repeat's searches, the same for every framework and number of jobs."""
    return int(np.random.SeedSequence([seed, repeat]).generate_state(1)[0])


def open_storage(url: str) -> RDBStorage:
    """The storage at a URL of SQLAlchemy's.

    Raises:
        SpecError: there is none, or it cannot be reached.
    """
    try:
        sqlite = make_url(url).get_backend_name() == "sqlite"
        return RDBStorage(url, engine_kwargs={"connect_args": {"timeout": _BUSY_SECONDS}} if sqlite else None)
    except (SQLAlchemyError, optuna.exceptions.OptunaError, ImportError, RuntimeError) as error:
        raise SpecError(
            f"--storage cannot be used. Received: {masked(url)} ({_first_line(error)}). Use e.g. sqlite:///FILE."
        ) from None


def masked(url: str) -> str:
    """A URL without its password, which may also stand among the options behind a `?`."""
    try:
        made = make_url(url)
        hidden = {option: _HIDDEN for option in made.query if _SECRET.search(option)}
        return made.update_query_dict(hidden).render_as_string(hide_password=True)
    except ArgumentError:
        return "no URL of SQLAlchemy's"


def is_masked(url: str) -> bool:
    """Whether `masked` has hidden a part of a URL."""
    return _HIDDEN in unquote(url)


def conduct(wanted: Wanted, storage: RDBStorage, logs: Path, shown: Display) -> Searched:
    """Run a search, or the rest of it.

    Args:
        wanted: the requested search.
        storage: holds its study, or will hold it.
        logs: names of the servers' logs but for place and suffix.
        shown: receives every trial.

    Raises:
        LaunchError: no server starts, or the storage fails.
        SpecError: the cluster cannot be reached.
    """
    with _stored():
        study = _study(wanted, storage)
        if _DONE not in study.user_attrs:
            _release(study)
            study.set_user_attr(_ATTEMPTS, study.user_attrs.get(_ATTEMPTS, 0) + 1)
            hang_seconds = spec.build(wanted.values).hang_seconds
            with serving(wanted.framework, wanted.layout, wanted.scheduler, logs, hang_seconds) as start:
                conductor = _Conductor(wanted, study, start, shown)
                try:
                    conductor.run()
                except BaseException:
                    conductor.close()
                    _release(study)
                    raise
                conductor.close()
        return _searched(wanted, study)


def stored(wanted: Wanted, storage: RDBStorage) -> Searched:
    """A search as far as its study has it."""
    with _stored():
        return _searched(wanted, _study(wanted, storage))


@dataclass
class _Running:
    """A trial that a server trains."""

    trial: optuna.Trial
    place: int
    slot: int
    began: float
    total: int = 0
    epochs: int = 0
    images: int = 0
    scores: dict[str, float] = field(default_factory=dict[str, float])


class _Conductor:
    """Asks the study, lets the servers train, and tells the study the results, all in one thread."""

    def __init__(self, wanted: Wanted, study: optuna.Study, start: Callable[[int, Hear], Server], shown: Display) -> None:
        self._wanted, self._study, self._start_server, self._shown = wanted, study, start, shown
        self._inbox: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        self._servers: dict[int, Server] = {}
        self._ready: set[int] = set()
        self._running: dict[str, _Running] = {}
        self._pending = _pending(wanted, study)
        self._grid: list[dict[str, Any]] = []
        if wanted.sampler == "grid":
            self._grid = search_space.grid(wanted.space, wanted.seed)[: wanted.trials]
            self._pending = [(slot, given) for slot, given in self._pending if slot < len(self._grid)]
        # # The clock resumes where the attempt before had told its last trial.
        self._earlier = _searched(wanted, study).seconds
        self._zero = time.monotonic()
        self._up = False
        self._servers_lost = 0

    def run(self) -> None:
        """Run all remaining trials."""
        begun = time.monotonic()
        places = range(self._wanted.layout.servers) if self._pending else ()
        for place in places:
            self._start(place)
        while len(self._ready) < len(places):
            self._handle(*self._next())
        self._up = True
        start_seconds = time.monotonic() - begun
        self._zero = time.monotonic()
        others = Meter()
        self._show()
        while self._pending or self._running:
            for place in sorted(self._ready):
                while self._pending and self._load(place) < self._wanted.layout.trials_a_server:
                    self._ask(place, *self._pending.pop(0))
            if self._running or self._pending:
                self._handle(*self._next())
        cores_of_others = others.cores_of_others() if self._wanted.scheduler is None else None
        facts = {"start_seconds": start_seconds, "cores_of_others": cores_of_others, "servers_lost": self._servers_lost}
        self._study.set_user_attr(_DONE, facts)

    def close(self) -> None:
        """End every server."""
        for server in self._servers.values():
            server.close()

    def _start(self, place: int) -> None:
        self._servers[place] = self._start_server(place, lambda event: self._inbox.put((place, event)))

    def _next(self) -> tuple[int, dict[str, Any]]:
        while True:
            try:
                return self._inbox.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                for place, server in self._servers.items():
                    if place not in self._ready or self._load(place):
                        server.look()

    def _load(self, place: int) -> int:
        return sum(running.place == place for running in self._running.values())

    def _clock(self) -> float:
        return self._earlier + time.monotonic() - self._zero

    def _ask(self, place: int, slot: int, given: dict[str, Any] | None) -> None:
        """Let a server train what the sampler proposes for a slot, or what it proposed before an interruption."""
        wanted = self._wanted
        self._study.sampler = _sampler(wanted, slot, self._grid[slot] if self._grid else given)
        trial = self._study.ask(wanted.space.distributions)
        trial.set_user_attr(_SLOT, slot)
        running = self._running[str(trial.number)] = _Running(trial, place, slot, self._clock())
        fields = {"cores": wanted.layout.cores_a_trial, "checkpoint_seconds": None, **wanted.space.fixed, **trial.params}
        try:
            built = spec.build(spec.overlay(wanted.values, fields))
        except SpecError as error:  # each value is valid alone, but not together with the others
            self._tell(str(trial.number), "failed", str(error))
            return
        server = self._servers[place]
        if self._load(place) == 1:
            server.expect()
        message = {"trial": str(trial.number), "spec": built.model_dump(mode="json"), "judged": wanted.pruner != "none"}
        running.began = self._clock()
        server.send(message)

    def _handle(self, place: int, event: dict[str, Any]) -> None:
        name = event["event"]
        if name == "ready":
            self._ready.add(place)
        elif name == ENDED:
            self._lost(place, event["reason"])
        elif name == "start":
            self._running[event["trial"]].total = event["total_epochs"]
        elif name == "epoch":
            self._epoch(event)
        elif name == "end":
            states: dict[str, State] = {"ok": "ok", "stopped": "pruned", "diverged": "diverged", "failed": "failed"}
            self._tell(event["trial"], states[event["status"]], event["reason"])

    def _epoch(self, event: dict[str, Any]) -> None:
        running = self._running[event["trial"]]
        running.epochs, running.scores = event["epoch"], event["validation"]
        running.images += event["images"]
        running.trial.report(running.scores[self._wanted.objective], running.epochs)
        if self._wanted.pruner != "none" and running.epochs < running.total:
            go_on = not running.trial.should_prune()
            self._servers[running.place].send({"trial": event["trial"], "go_on": go_on})

    def _lost(self, place: int, reason: str) -> None:
        """Fail the trials of a server that has ended. Start another in its place if work is left."""
        lost = [name for name, running in self._running.items() if running.place == place]
        served = place in self._ready
        self._ready.discard(place)
        if not served:  # it never started
            if not self._up or not self._ready:
                raise LaunchError(f"{self._wanted.framework} cannot serve trials: {reason}.")
            self._give_up(place)
            return
        for name in lost:
            self._tell(name, "killed", reason)
        self._servers.pop(place).close()
        if not self._pending:
            return
        try:
            self._start(place)
        except LaunchError:
            if not self._ready:
                raise
            self._give_up(place)

    def _give_up(self, place: int) -> None:
        """Continue with the remaining servers."""
        if (server := self._servers.pop(place, None)) is not None:
            server.close()
        self._servers_lost += 1

    def _tell(self, name: str, state: State, reason: str | None = None) -> None:
        running = self._running.pop(name)
        facts: dict[str, Any] = {
            "state": state,
            "reason": reason,
            "loss": running.scores.get("loss"),
            "accuracy": running.scores.get("accuracy"),
            "epochs": running.epochs,
            "images": running.images,
            "began_seconds": running.began,
            "ended_seconds": self._clock(),
        }
        running.trial.set_user_attr(_RUN, facts)
        value = running.scores[self._wanted.objective] if state == "ok" else None
        self._study.tell(running.trial, value, _TOLD_AS[state])
        self._shown.end()
        self._show()

    def _show(self) -> None:
        told = self._wanted.trials - len(self._pending) - len(self._running)
        self._shown.begin(self._wanted.name, f"{self._wanted.name}: {told} of {self._wanted.trials} trials")


def _study(wanted: Wanted, storage: RDBStorage) -> optuna.Study:
    return optuna.create_study(
        storage=storage,
        study_name=wanted.study,
        direction=wanted.direction,
        pruner=_pruner(wanted),
        sampler=RandomSampler(seed=wanted.seed),  # replaced for every slot
        load_if_exists=True,
    )


def _pruner(wanted: Wanted) -> BasePruner:
    if wanted.pruner == "median":
        return MedianPruner(n_startup_trials=random_trials(wanted.trials))
    if wanted.pruner == "halving":
        return SuccessiveHalvingPruner(min_resource=1, reduction_factor=HALVING_FACTOR)
    return NopPruner()


def _sampler(wanted: Wanted, slot: int, given: dict[str, Any] | None) -> BaseSampler:
    """One sampler a slot, each with its own seed. Draws depend on finished trials, not on this process's past."""
    seed = int(np.random.SeedSequence([wanted.seed, slot]).generate_state(1)[0])
    if given is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return PartialFixedSampler(given, RandomSampler(seed=seed))
    if wanted.sampler == "random":
        return RandomSampler(seed=seed)
    return TPESampler(seed=seed, n_startup_trials=random_trials(wanted.trials), constant_liar=wanted.layout.jobs > 1)


def _release(study: optuna.Study) -> None:
    """Fail trials that a dead process left running. Without a record they do not count, and are asked again."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)


def _pending(wanted: Wanted, study: optuna.Study) -> list[tuple[int, dict[str, Any] | None]]:
    """The slots without a finished trial, in order. An interrupted slot comes with the values that it had drawn."""
    given: dict[int, dict[str, Any]] = {}
    settled: set[int] = set()
    for trial in study.get_trials(deepcopy=False):
        slot = trial.user_attrs.get(_SLOT)
        if slot is None:
            continue
        if _is_told(trial):
            settled.add(slot)
        elif trial.params.keys() == wanted.space.distributions.keys():
            given[slot] = trial.params
    return [(slot, given.get(slot)) for slot in range(wanted.trials) if slot not in settled]


def _is_told(trial: FrozenTrial) -> bool:
    """Whether it ended as its record says. A trial that was killed in between is asked again."""
    run = trial.user_attrs.get(_RUN)
    return run is not None and trial.state == _TOLD_AS[run["state"]]


def _searched(wanted: Wanted, study: optuna.Study) -> Searched:
    trials = [
        Trial(
            slot=trial.user_attrs[_SLOT],
            number=trial.number,
            fields=trial.params,
            value=trial.value,
            **trial.user_attrs[_RUN],
        )
        for trial in study.get_trials(deepcopy=False)
        if _is_told(trial)
    ]
    done = study.user_attrs.get(_DONE)
    return Searched(
        framework=wanted.framework,
        jobs=wanted.layout.jobs,
        repeat=wanted.repeat,
        seed=wanted.seed,
        cores_a_trial=wanted.layout.cores_a_trial,
        study=wanted.study,
        trials=sorted(trials, key=lambda trial: trial.ended_seconds),
        done=done is not None,
        **(done or {}),
        attempts=max(study.user_attrs.get(_ATTEMPTS, 1), 1),
    )


@contextmanager
def _stored() -> Generator[None]:
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        _fail(error)


def _fail(error: Exception) -> NoReturn:
    cause = error.__cause__ or error
    raise LaunchError(
        f"the storage of the trials fails ({_first_line(cause)}). Free space, or mend it; the same command goes on from there."
    ) from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
