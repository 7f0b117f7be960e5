"""The Optuna study of a search: its storage, sampler and pruner, and its trials as stored."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, PartialFixedSampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError, SQLAlchemyError

from common.artifacts import records
from common.spec import SpecError
from compare.cli import wording
from compare.cli.errors import FolderError, LaunchError
from compare.tools.tuning.records import State, TunedTrial, Tuning, TuningSearch
from compare.tools.tuning.search_space import Space
from compare.tools.tuning.servers import JobLayout

optuna.logging.set_verbosity(optuna.logging.WARNING)  # else it logs each study and trial

HALVING_FACTOR = 3
"""Successive halving keeps the best third at epochs 1, 3, 9, ... (Jamieson & Talwalkar 2016, as Optuna does it)."""
_MAX_RANDOM = 10
_RANDOM_PART = 3
ELSEWHERE = "Restore it, or tune in another folder."
_OPENING_ERRORS = (SQLAlchemyError, optuna.exceptions.OptunaError, ImportError, RuntimeError)
"""Errors of a storage that cannot be opened."""

# Attributes of a study, and of its trials.
DONE, ATTEMPTS = "convtwins_done", "convtwins_attempts"
SLOT, RUN = "slot", "run"
OPTUNA_STATES: dict[State, TrialState] = {
    "ok": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    **dict.fromkeys(("diverged", "failed", "killed"), TrialState.FAIL),
}

_BUSY_SECONDS = 60
"""Seconds to wait for a SQLite file that another reader, for example a dashboard, has locked."""
_HIDDEN = "***"
"""SQLAlchemy's replacement of a password."""
_SECRET = re.compile("pass|pwd|secret|token|key", re.IGNORECASE)
"""Matches the names of a database driver's options with a secret value."""


@dataclass(frozen=True)
class SearchJob:
    """One search to run."""

    settings: Tuning
    contestant: str
    layout: JobLayout
    repeat: int
    trials: int
    seed: int
    """Seed of the sampler."""
    values: dict[str, Any]
    """Spec values that all trials share."""
    space: Space
    study: str

    @property
    def name(self) -> str:
        return f"{self.contestant} {wording.count(self.layout.jobs, 'job')}"


def random_trials(trials: int) -> int:
    """Return how many trials TPE draws at random before it builds its model: a third, from 1 to 10."""
    return max(min(trials // _RANDOM_PART, _MAX_RANDOM), 1)


def derived_seed(seed: int, place: int) -> int:
    """Return the seed of a repeat's sampler, or of a slot. It is the same for every framework and number of jobs."""
    return int(np.random.SeedSequence([seed, place]).generate_state(1)[0])


def file_storage(file: Path, busy_seconds: float = _BUSY_SECONDS) -> RDBStorage:
    """Open the storage in a tuning's own file. Create the file if it is missing.

    Args:
        busy_seconds: time to wait for a file that another reader has locked.
    """
    try:
        return _open(f"sqlite:///{file.resolve()}", busy_seconds)
    except _OPENING_ERRORS as error:
        is_damaged = isinstance(error, DatabaseError) and not isinstance(error, OperationalError)  # another one has it open
        advice = ELSEWHERE if is_damaged else "Run the same command again when it can be."
        raise FolderError(f"{file} cannot be used ({_first_line(error)}). {advice}") from None


def open_storage(url: str) -> RDBStorage:
    """Open the storage at a SQLAlchemy URL."""
    try:
        return _open(url)
    except _OPENING_ERRORS as error:
        raise SpecError(
            f"--storage cannot be used. Received: {masked(url)} ({_first_line(error)}). Use e.g. sqlite:///FILE."
        ) from None


def _open(url: str, busy_seconds: float = _BUSY_SECONDS) -> RDBStorage:
    sqlite = make_url(url).get_backend_name() == "sqlite"
    return RDBStorage(url, engine_kwargs={"connect_args": {"timeout": busy_seconds}} if sqlite else None)


def masked(url: str) -> str:
    """Return a URL without its password, which may also be one of the options after `?`."""
    try:
        parsed = make_url(url)
        hidden = {option: _HIDDEN for option in parsed.query if _SECRET.search(option)}
        return parsed.update_query_dict(hidden).render_as_string(hide_password=True)
    except ArgumentError:
        return "no URL of SQLAlchemy's"


def is_masked(url: str) -> bool:
    """Whether `masked` has hidden a part of a URL."""
    return _HIDDEN in unquote(url)


@contextmanager
def storage_errors() -> Generator[None]:
    """Turn errors of the storage into LaunchError."""
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        reason = _first_line(error.__cause__ or error)
        advice = "Free space" if re.search("is full|No space", reason) else "Repair it"
        raise LaunchError(f"The storage of the trials failed ({reason}). {advice}. Then the same command resumes.") from None


def open_study(search: SearchJob, storage: RDBStorage) -> optuna.Study:
    """Open the study of a search. Create it if it is missing."""
    return optuna.create_study(
        storage=storage,
        study_name=search.study,
        direction=search.settings.direction,
        pruner=_pruner(search),
        sampler=RandomSampler(seed=search.seed),  # replaced for every slot
        load_if_exists=True,
    )


def _pruner(search: SearchJob) -> BasePruner:
    if search.settings.pruner == "median":
        return MedianPruner(n_startup_trials=random_trials(search.trials))
    if search.settings.pruner == "halving":
        return SuccessiveHalvingPruner(min_resource=1, reduction_factor=HALVING_FACTOR)
    return NopPruner()


def sampler(search: SearchJob, slot: int, fixed: dict[str, Any] | None) -> BaseSampler:
    """Build the sampler of one slot, with its own seed. So draws depend on finished trials, not on this process's past.

    Args:
        fixed: values that are already known, from a grid or from before an interruption.
    """
    seed = derived_seed(search.seed, slot)
    if fixed is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return PartialFixedSampler(fixed, RandomSampler(seed=seed))
    if search.settings.sampler == "random":
        return RandomSampler(seed=seed)
    return TPESampler(seed=seed, n_startup_trials=random_trials(search.trials), constant_liar=search.layout.jobs > 1)


def release(study: optuna.Study) -> None:
    """Fail running trials that no process trains any more. They have no record, do not count, and are trained again."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)


def pending(search: SearchJob, study: optuna.Study) -> list[tuple[int, dict[str, Any] | None]]:
    """Return the slots without a finished trial, in order. An interrupted slot comes with the values that it had drawn."""
    drawn: dict[int, dict[str, Any]] = {}
    finished: set[int] = set()
    for trial in _frozen_trials(search, study):
        slot = trial.user_attrs.get(SLOT)
        if slot is None:
            continue
        if _finished_trial(search, trial) is not None:
            finished.add(slot)
        elif trial.params.keys() == search.space.distributions.keys():
            drawn[slot] = trial.params
    return [(slot, drawn.get(slot)) for slot in range(search.trials) if slot not in finished]


def _finished_trial(search: SearchJob, trial: FrozenTrial) -> TunedTrial | None:
    """Return a trial that ended as its record states. None: it was killed in between, and is trained again."""
    run, objective = trial.user_attrs.get(RUN), search.settings.objective
    if run is None:
        return None
    try:
        result = TunedTrial(slot=trial.user_attrs[SLOT], number=trial.number, fields=trial.params, value=trial.value, **run)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:  # RuntimeError: it has several values
        raise _changed_trial_error(search, trial, f"its record cannot be read: {records.describe_error(error)}") from None
    if trial.state != OPTUNA_STATES[result.state]:
        return None
    recorded = getattr(result, objective)
    if result.state == "ok" and (
        result.value is None or recorded is None or not math.isclose(result.value, recorded, rel_tol=1e-9)
    ):
        raise _changed_trial_error(search, trial, f"its value is {result.value}, and the {objective} of its record {recorded}")
    return result


def _frozen_trials(search: SearchJob, study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials of a study."""
    try:
        return study.get_trials(deepcopy=False)
    except (ValueError, TypeError, LookupError) as error:
        raise FolderError(f"{search.study} cannot be read ({records.describe_error(error)}). {ELSEWHERE}") from None


def _changed_trial_error(search: SearchJob, trial: FrozenTrial, fault: str) -> FolderError:
    return FolderError(f"Trial {trial.number} of {search.study} is not as it was stored ({fault}). {ELSEWHERE}")


def read_result(search: SearchJob, study: optuna.Study) -> TuningSearch:
    """Return a search as far as its study has it."""
    trials = [result for trial in _frozen_trials(search, study) if (result := _finished_trial(search, trial)) is not None]
    done = study.user_attrs.get(DONE)
    return TuningSearch(
        contestant=search.contestant,
        jobs=search.layout.jobs,
        repeat=search.repeat,
        seed=search.seed,
        cores_a_trial=search.layout.cores_a_trial,
        study=search.study,
        trials=sorted(trials, key=lambda trial: trial.ended_seconds),
        done=done is not None,
        attempts=max(study.user_attrs.get(ATTEMPTS, 1), 1),
        **(done or {}),
    )


def stored_result(search: SearchJob, storage: RDBStorage) -> TuningSearch:
    """Read a search from the storage, as far as its study has it."""
    with storage_errors():
        return read_result(search, open_study(search, storage))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
