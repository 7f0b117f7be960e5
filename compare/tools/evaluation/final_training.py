"""Final training and evaluation: each framework is trained to its best epoch, which is scored on the test split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic

from common import spec
from common.artifacts import records
from common.data import sources
from common.data.sources import Dataset
from common.frozen import Frozen
from common.spec import SpecError
from common.spec.errors import format_value
from compare.cli import errors
from compare.cli.errors import FolderError
from compare.cli.progress import Display
from compare.comparison import comparison_plan, run
from compare.comparison.comparison_plan import ComparisonRequest
from compare.reporting import comparison_report
from compare.results import store
from compare.results.store import Comparison, StoredComparison
from compare.results.workspace import COMPARISON, FolderKind, Workspace
from compare.running import contestants, launch
from compare.running.comparison_settings import ComparisonSettings
from compare.running.matrix import Row
from compare.running.twins import Twins
from compare.tools.evaluation import scoring
from compare.tools.evaluation.scoring import KIND, LOGITS_FOLDER, TRAINING_FOLDER, EvaluationRecord

RECORD_FILE = "evaluation.json"
TUNED_FILE = "tuned.json"
"""File of a tuning's record in its folder: `tuner.RECORD_FILE`. Importing it would import Optuna."""
SHARED = ("model", "data", "seed")
"""Spec fields that must be equal, because all frameworks are scored on the same images."""


class EvaluationSettings(Frozen):
    """Settings of the trainings and of their scoring."""

    values: dict[str, Any]
    """Nested plain values of the spec, the same for all frameworks."""
    frameworks: tuple[str, ...] = tuple(launch.FRAMEWORKS)
    tuned: dict[str, dict[str, Any]] = {}
    """Fields that override `values`, as framework: {dotted field of the spec: value}."""
    tuned_on: str | None = None
    """Hash of the data, with its splits, that chose these fields. None if unknown."""
    repeats: int = pydantic.Field(1, ge=1)
    """Number of trainings of each framework, with consecutive seeds from the values' seed on. The splits stay."""
    scores_validation: bool = False
    """Whether to score the validation split too. It chose the epoch, so its scores are optimistic."""


EVALUATION = FolderKind[None](noun=KIND, file=RECORD_FILE, kind=KIND, allowed=(TRAINING_FOLDER, LOGITS_FOLDER))


def evaluate(
    settings: EvaluationSettings, workspace: Workspace[None], progress: Display, twins: Twins | None = None
) -> EvaluationRecord:
    """Train each framework to its best epoch, and score it on the test split. Finished work in the folder is kept.

    Args:
        workspace: gets `training` (a comparison), `logits` and the record.
        twins: contestants that are known already. They may be more than those of the settings.
    """
    folder, twins = workspace.folder, (twins or Twins(settings.frameworks)).only(settings.frameworks)
    request = _request(settings, twins, folder / TRAINING_FOLDER)
    with Workspace.open(request.out, COMPARISON, early=comparison_plan.early_identity(request)) as training:
        workspace.lock()
        stored = _run_training(request, training, progress)
    scored = scoring.score(stored, folder, progress, with_validation=settings.scores_validation)
    record = scored.model_copy(update={"tuned_on": settings.tuned_on})
    records.write(folder / RECORD_FILE, record)
    return record


def read(folder: Path) -> EvaluationRecord:
    """Read the record of an evaluation."""
    return store.read_record(folder / RECORD_FILE, EvaluationRecord, "an evaluation")


def data_of(evaluation: EvaluationRecord) -> Dataset:
    """Load the data of an evaluation, with its test images."""
    first = next(iter(evaluation.specs.values()))
    values: dict[str, Any] = {}
    for field, value in first.items():
        if field.startswith("data.") or field in ("seed", "paths.cache_dir"):
            values = spec.overlay(values, {field: value})
    data_spec = spec.build(values)
    dataset = sources.load(data_spec.data, seed=data_spec.split_seed, cache_dir=data_spec.paths.cache_dir)
    if dataset.content_hash != evaluation.data_hash:
        raise FolderError("The data has other content than it had when the models were scored. Evaluate in another folder.")
    return dataset


def rows(settings: EvaluationSettings) -> list[Row]:
    """Return one training for each framework, with its tuned fields, that keeps its best epoch."""
    contestants.builtin_twins("--frameworks", settings.frameworks, launch.FRAMEWORKS)
    if others := sorted(settings.tuned.keys() - set(settings.frameworks)):
        raise SpecError(f"There are tuned fields for frameworks that are not evaluated: {', '.join(others)}. Leave them out.")
    all_rows: list[Row] = []
    for framework in settings.frameworks:
        # A final training sets its own length, even if the trials' length was searched.
        tuned = {field: value for field, value in settings.tuned.get(framework, {}).items() if field not in ("epochs", "steps")}
        values = spec.overlay(settings.values, {**tuned, "best_epoch.keep": True})
        row_spec = spec.build(values)
        if settings.repeats > 1 and row_spec.data.seed is None:
            row_spec = spec.build(spec.overlay(values, {"data.seed": row_spec.seed}))
        all_rows.append(Row(id=f"{framework}-{row_spec.variant}", contestant=framework, spec=row_spec))
    for field in SHARED:
        if len({json.dumps(row.spec.model_dump(mode="json")[field], sort_keys=True) for row in all_rows}) > 1:
            raise SpecError(f"{field} must be the same in all frameworks: all are scored on the same images. Leave it out.")
    return all_rows


def _request(settings: EvaluationSettings, twins: Twins, folder: Path) -> ComparisonRequest:
    training_rows = rows(settings)
    first = training_rows[0].spec.seed
    seeds = tuple(range(first, first + settings.repeats)) if settings.repeats > 1 else ()
    training_settings = ComparisonSettings(repeats=settings.repeats, seeds=seeds, prove=False)
    return ComparisonRequest(training_settings, training_rows, twins, folder)


def _run_training(request: ComparisonRequest, workspace: Workspace[Comparison], progress: Display) -> StoredComparison:
    folder = workspace.folder
    plan = comparison_plan.build_plan(request, progress)
    if unavailable := [f"{row.id}: {row.unavailable}" for row in plan.rows if row.unavailable]:
        raise SpecError(f"{unavailable[0]}. Choose a mode that this machine can do.")
    run.run_all(workspace.claim(plan), request.twins, folder, progress)
    progress.say("report of the training")
    compared = comparison_report.read(folder)
    if unwritten := comparison_report.report(compared, folder).write(folder):
        raise errors.LaunchError(unwritten)
    return compared.stored


def read_tuned(path: Path, frameworks: Sequence[str]) -> tuple[dict[str, dict[str, Any]], str | None]:
    """Return the best fields of a tuning by framework and dotted name, and the hash of its data.

    Args:
        path: a tuning's folder or its record. Or a YAML or JSON file of {framework: {field: value}}, or of {field: value}
            for all. The data of such a file are unknown.
        frameworks: the frameworks to evaluate. Fields of others are left out.
    """
    values: dict[str, Any]
    if path.is_dir() or path.name == TUNED_FILE:
        from compare.tools.tuning import tuner  # which imports Optuna

        tuning = tuner.read(path if path.is_dir() else path.parent)
        values, data_hash = tuning.best, tuning.plan.data_hash
    else:
        values, data_hash = spec.read_values(path, "file of tuned fields"), None
        if not set(values) & set(launch.FRAMEWORKS):
            values = {framework: dict(values) for framework in frameworks}
    fields = {framework: values[framework] for framework in frameworks if framework in values}
    for framework in frameworks:
        if not isinstance(fields.get(framework), dict) or not fields[framework]:
            raise SpecError(
                f"{path} has no tuned fields of {framework}. Received: {format_value(fields.get(framework), framework)}. Use "
                "the folder of a tuning of it, or a file of `field: value` lines."
            )
    return fields, data_hash
