"""Final training and evaluation: each framework is trained to its best epoch, which is scored on the test split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pydantic

from common import spec
from common.artifacts import records
from common.data import sources
from common.data.sources import Dataset
from common.frozen import Frozen
from common.spec import SpecError
from compare.comparison import comparison_plan, run
from compare.core import errors
from compare.core.errors import FolderError
from compare.core.presets import Preset
from compare.core.progress import Display
from compare.evaluation import scoring
from compare.evaluation.scoring import KIND, LOGITS_FOLDER, TRAINING_FOLDER, Evaluated
from compare.execution import contestants, launch, store
from compare.execution.matrix import Row
from compare.execution.store import Stored
from compare.reporting import comparison_report

RECORD_FILE = "evaluation.json"
TUNED_FILE = "tuned.json"
"""In the folder of a tuning: `tuner.RECORD_FILE`. Importing it would import Optuna."""
SHARED = ("model", "data", "seed")
"""Spec fields that must be equal, because all frameworks are scored on the same images."""


class Evaluation(Frozen):
    """The trainings and their scoring."""

    values: dict[str, Any]
    """The spec's nested plain values, the same for all frameworks."""
    frameworks: tuple[str, ...] = tuple(launch.FRAMEWORKS)
    tuned: dict[str, dict[str, Any]] = {}
    """framework: {dotted field of the spec: value}, over `values`."""
    tuned_on: str | None = None
    """Hash of the data, with its splits, that chose these fields. None if unknown."""
    repeats: int = pydantic.Field(1, ge=1)
    """Trainings of each framework, with consecutive seeds from the values' seed on. The splits stay."""
    scores_validation: bool = False
    """Whether to score the validation split too. It chose the epoch, so its scores are optimistic."""


def evaluate(settings: Evaluation, folder: Path, shown: Display, lock: ExitStack) -> Evaluated:
    """Train each framework to its best epoch, and score it on the test split. Finished work in the folder is kept.

    Args:
        folder: gets `training` (a comparison), `logits` and the record.
        lock: holds the folder until its owner ends.

    Raises:
        SpecError, DataRefused, LaunchError, FolderError: nothing was trained, or the result cannot be used.
        Interrupted: finished work is in the folder.
    """
    request = _request(settings, folder / TRAINING_FOLDER)
    store.refuse_others(folder, RECORD_FILE, KIND, KIND, own=(TRAINING_FOLDER, LOGITS_FOLDER))
    comparison_plan.refuse_used(request)
    lock.enter_context(store.locked(folder))
    stored = _trained(request, folder / TRAINING_FOLDER, shown)
    scored = scoring.score(stored, folder, shown, with_validation=settings.scores_validation)
    made = scored.model_copy(update={"tuned_on": settings.tuned_on})
    records.write(folder / RECORD_FILE, made)
    return made


def read(folder: Path) -> Evaluated:
    """The record of an evaluation.

    Raises:
        FolderError: there is none, or it cannot be read.
    """
    return store.read_record(folder / RECORD_FILE, Evaluated, "an evaluation")


def data_of(made: Evaluated) -> Dataset:
    """The data of an evaluation, with its test images.

    Raises:
        DataRefused, FolderError: the data are missing or have changed.
    """
    first = next(iter(made.specs.values()))
    values: dict[str, Any] = {}
    for field, value in first.items():
        if field.startswith("data.") or field in ("seed", "paths.cache_dir"):
            values = spec.overlay(values, {field: value})
    wanted = spec.build(values)
    dataset = sources.load(wanted.data, seed=wanted.split_seed, cache_dir=wanted.paths.cache_dir)
    if dataset.content_hash != made.data_hash:
        raise FolderError("The data has other content than it had when the models were scored. Evaluate in another folder.")
    return dataset


def rows(settings: Evaluation) -> list[Row]:
    """One training for each framework, with its tuned fields, that keeps its best epoch.

    Raises:
        SpecError: a field is refused, or the frameworks would be scored on other images.
    """
    contestants.own_twins("--frameworks", settings.frameworks, launch.FRAMEWORKS)
    if others := sorted(settings.tuned.keys() - set(settings.frameworks)):
        raise SpecError(f"There are tuned fields for frameworks that are not evaluated: {', '.join(others)}. Leave them out.")
    made: list[Row] = []
    for framework in settings.frameworks:
        # A final training sets its own length, even if the trials' length was searched.
        tuned = {field: value for field, value in settings.tuned.get(framework, {}).items() if field not in ("epochs", "steps")}
        own = spec.overlay(settings.values, {**tuned, "best_epoch.keep": True})
        built = spec.build(own)
        if settings.repeats > 1 and built.data.seed is None:
            built = spec.build(spec.overlay(own, {"data.seed": built.seed}))
        made.append(Row(id=f"{framework}-{built.variant}", contestant=framework, spec=built))
    for field in SHARED:
        if len({json.dumps(row.spec.model_dump(mode="json")[field], sort_keys=True) for row in made}) > 1:
            raise SpecError(f"{field} must be the same in all frameworks: all are scored on the same images. Leave it out.")
    return made


def _request(settings: Evaluation, folder: Path) -> run.Request:
    made = rows(settings)
    first = made[0].spec.seed
    seeds = tuple(range(first, first + settings.repeats)) if settings.repeats > 1 else ()
    return run.Request(
        Preset(repeats=settings.repeats, seeds=seeds),
        list(settings.frameworks),
        folder,
        prove=False,
        lay_out=lambda preset, frameworks: made,
    )


def _trained(request: run.Request, folder: Path, shown: Display) -> Stored:
    wanted = comparison_plan.judged(request, shown)
    if unavailable := [f"{row.id}: {row.unavailable}" for row in wanted.rows if row.unavailable]:
        raise SpecError(f"{unavailable[0]}. Choose a mode that this machine can do.")
    with store.locked(folder):
        comparison = store.claim(folder, wanted)
        store.write_plan(folder, comparison)
        run.run_all(comparison, folder, shown)
        shown.say("report of the training")
        compared = comparison_report.read(folder)
        if unwritten := comparison_report.report(compared, folder).write(folder):
            raise errors.LaunchError(unwritten)
    return compared.stored


def read_tuned(path: Path, frameworks: Sequence[str]) -> tuple[dict[str, dict[str, Any]], str | None]:
    """The best fields of a tuning by framework and dotted name, and the hash of its data.

    Args:
        path: a tuning's folder or its record. Or a YAML or JSON file of {framework: {field: value}}, or of {field: value}
            for all. The data of such a file are unknown.
        frameworks: to evaluate. Fields of others are left out.

    Raises:
        SpecError: there are no such fields.
        FolderError: the folder holds no finished tuning.
    """
    values: dict[str, Any]
    if path.is_dir() or path.name == TUNED_FILE:
        from compare.tuning import tuner  # which imports Optuna

        made = tuner.read(path if path.is_dir() else path.parent)
        values, data_hash = made.best, made.plan.data_hash
    else:
        values, data_hash = spec.read_values(path, "file of tuned fields"), None
        if not set(values) & set(launch.FRAMEWORKS):
            values = {framework: dict(values) for framework in frameworks}
    found = {framework: values[framework] for framework in frameworks if framework in values}
    for framework in frameworks:
        if not isinstance(found.get(framework), dict) or not found[framework]:
            raise SpecError(
                f"{path} has no tuned fields of {framework}. Received: {found.get(framework)!r}. Use the folder of a tuning of "
                "it, or a file of `field: value` lines."
            )
    return found, data_hash
