"""Final training and evaluation: the best epoch of each framework's training, scored on the test split by one evaluator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pydantic

from common import spec
from common.artifacts import atomic_files, results, trained
from common.artifacts.checked_arrays import SealError
from common.artifacts.schema import Metrics, RunResult
from common.artifacts.trained import Trained
from common.data import sources
from common.data.sources import Dataset
from common.frozen import Frozen
from common.machine import machine
from common.spec import SpecError
from common.training import inference, scores
from common.training.scores import Agreement, Confusion, Scores
from compare.comparison import comparison_plan, run
from compare.core import errors, option_parsing, statistics
from compare.core.errors import FolderError
from compare.core.presets import Preset
from compare.core.progress import Display, Watchers
from compare.execution import launch, store, twin_client
from compare.execution.matrix import Row
from compare.execution.store import Comparison, Stored
from compare.reporting import comparison_report

SCHEMA_VERSION = 1
KIND = "evaluation"
RECORD_FILE = "evaluation.json"
TRAINING_FOLDER = "training"
LOGITS_FOLDER = "logits"
TUNED_FILE = "tuned.json"
"""In the folder of a tuning: `tuning.RECORD_FILE`, which imports Optuna."""

WORST_PAIRS = 8
"""Number of pairs of confused classes that are listed."""
SHARED = ("model", "data", "seed")
"""Spec fields that must be equal, because all frameworks are scored on the same images."""

_ROUNDING = {"float32": 1e-4, "float64": 1e-9}
"""Largest difference of probabilities that rounding explains between two frameworks, for networks this deep."""

Logits = npt.NDArray[np.floating]


class Evaluation(Frozen):
    """The trainings and their scoring."""

    values: dict[str, Any]
    """The spec's nested plain values, the same for all frameworks."""
    frameworks: tuple[str, ...] = tuple(launch.FRAMEWORKS)
    tuned: dict[str, dict[str, Any]] = {}
    """framework: {dotted field of the spec: value}, over `values`."""
    tuned_on: str | None = None
    """Hash of the data, with its splits, on which these fields were chosen. None if unknown."""
    repeats: int = pydantic.Field(1, ge=1)
    """Trainings of each framework, with consecutive seeds from the values' seed on. The splits stay."""
    scores_validation: bool = False
    """Whether to score the validation split too. It chose the epoch, so its scores are optimistic."""


class Crossing(Frozen):
    """One framework's checkpoint, used by another."""

    framework: str
    """The framework that used it."""
    labelled_differently: int
    """Test images that it labels differently than the framework that trained it."""
    largest_difference: float
    """Largest difference of the probabilities."""


class Model(Frozen):
    """One training, and its best epoch on the test split."""

    framework: str
    repeat: int
    seed: int
    status: str
    reason: str | None = None
    checkpoint: str | None = None
    """Its file, relative to the evaluation's folder."""
    epochs: int = 0
    best_epoch: int | None = None
    validation: Metrics | None = None
    """After the best epoch."""
    wall_seconds: float | None = None
    """Of the training process."""
    scores: Scores | None = None
    """On the test split."""
    validation_scores: Scores | None = None
    """See `Evaluation.scores_validation`."""
    worst: list[Confusion] = []
    crossings: list[Crossing] = []


class Pair(Frozen):
    """Two frameworks' models of the same seed, on the same images."""

    first: str
    second: str
    repeat: int
    seed: int
    agreement: Agreement
    adjusted_p: float | None
    """Holm-corrected over all pairs of the evaluation. None if they never differ."""


class Evaluated(Frozen):
    """The complete result of an evaluation."""

    schema_version: int = SCHEMA_VERSION
    kind: str = KIND
    data_name: str
    data_hash: str
    data_notes: list[str]
    class_names: list[str]
    tuned_on: str | None = None
    """See `Evaluation`."""
    num_examples: int
    """Of the test split."""
    specs: dict[str, dict[str, Any]]
    """framework: every field of its training by dotted name."""
    machine: dict[str, Any]
    versions: dict[str, dict[str, str]]
    models: list[Model]
    pairs: list[Pair]

    @property
    def frameworks(self) -> list[str]:
        return list(dict.fromkeys(model.framework for model in self.models))

    @property
    def rounding(self) -> float:
        """Largest allowed difference of probabilities for a crossing."""
        return max(_ROUNDING[spec["precision"]] for spec in self.specs.values())

    @property
    def carries_over(self) -> bool:
        """Whether every checkpoint gives the same result in the other frameworks, except for rounding."""
        return all(each.largest_difference <= self.rounding for model in self.models for each in model.crossings)

    @property
    def exit_code(self) -> int:
        """1 if a training failed or a checkpoint does not carry over, else 0."""
        return 0 if all(model.scores for model in self.models) and self.carries_over else 1

    def of(self, framework: str) -> list[Model]:
        """The scored models of a framework, one for each repeat."""
        return [model for model in self.models if model.framework == framework and model.scores]


def evaluate(settings: Evaluation, folder: Path, shown: Display) -> Evaluated:
    """Train each framework to its best epoch, and score it on the test split. Finished work in the folder is kept.

    Args:
        settings: what is trained.
        folder: gets `training` (a comparison), `logits` and the record.
        shown: where progress is shown.

    Raises:
        SpecError, DataRefused, LaunchError, FolderError: nothing was trained, or the result cannot be used.
        Interrupted: finished work is in the folder.
    """
    store.refuse_others(folder, RECORD_FILE, KIND, KIND, own=(TRAINING_FOLDER, LOGITS_FOLDER))
    with store.locked(folder):
        stored = _trained(settings, folder / TRAINING_FOLDER, shown)
        made = _Scoring(settings, stored, folder, shown).evaluated().model_copy(update={"tuned_on": settings.tuned_on})
        atomic_files.write_atomically(folder / RECORD_FILE, atomic_files.with_checksum(made.model_dump_json()))
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
    option_parsing.chosen("--frameworks", settings.frameworks, tuple(launch.FRAMEWORKS))
    if others := sorted(settings.tuned.keys() - set(settings.frameworks)):
        raise SpecError(f"There are tuned fields for frameworks that are not evaluated: {', '.join(others)}. Leave them out.")
    made: list[Row] = []
    for framework in settings.frameworks:
        # # A final training sets its own length, even if the trials' length was searched.
        tuned = {field: value for field, value in settings.tuned.get(framework, {}).items() if field not in ("epochs", "steps")}
        own = spec.overlay(settings.values, {**tuned, "best_epoch.keep": True})
        built = spec.build(own)
        if settings.repeats > 1 and built.data.seed is None:
            built = spec.build(spec.overlay(own, {"data.seed": built.seed}))
        made.append(Row(id=f"{framework}-{built.variant}", framework=framework, spec=built))
    for field in SHARED:
        if len({json.dumps(row.spec.model_dump(mode="json")[field], sort_keys=True) for row in made}) > 1:
            raise SpecError(f"{field} must be the same in all frameworks, for all are scored on the same images. Leave it out.")
    return made


def _trained(settings: Evaluation, folder: Path, shown: Display) -> Stored:
    made = rows(settings)
    first = made[0].spec.seed
    seeds = tuple(range(first, first + settings.repeats)) if settings.repeats > 1 else ()
    request = run.Request(
        Preset(repeats=settings.repeats, seeds=seeds),
        list(settings.frameworks),
        folder,
        prove=False,
        lay_out=lambda preset, frameworks: made,
    )
    wanted = comparison_plan.judged(request, shown)
    if unavailable := [f"{row.id}: {row.unavailable}" for row in wanted.rows if row.unavailable]:
        raise SpecError(f"{unavailable[0]}. Choose a mode that this machine can do.")
    with store.locked(folder):
        comparison = store.claim(folder, wanted)
        store.write_plan(folder, comparison)
        run.run_all(comparison, folder, Watchers(shown))
        shown.say("report of the training")
        compared = comparison_report.read(folder)
        if unwritten := comparison_report.report(compared, folder).write(folder):
            raise errors.LaunchError(unwritten)
    return compared.stored


class _Scoring:
    """The models of a stored training on its test split."""

    def __init__(self, settings: Evaluation, stored: Stored, folder: Path, shown: Display) -> None:
        self._settings, self._stored, self._folder, self._shown = settings, stored, folder, shown
        self._comparison: Comparison = stored.comparison
        self._rows = self._comparison.rows
        self._frameworks = [row.framework for row in self._rows]
        run_spec = self._rows[0].spec
        self._dataset = sources.load(run_spec.data, seed=run_spec.split_seed, cache_dir=run_spec.paths.cache_dir)
        self._labels = self._dataset.test.labels

    def evaluated(self) -> Evaluated:
        models: list[Model] = []
        own: dict[tuple[str, int], Logits] = {}
        for row in self._rows:
            for repeat in range(self._comparison.repeats):
                model, made = self._model(row, repeat)
                models.append(model)
                if made is not None:
                    own[row.framework, repeat] = made
        comparison = self._comparison
        return Evaluated(
            data_name=comparison.data_name,
            data_hash=comparison.data_hash,
            data_notes=comparison.data_notes,
            class_names=comparison.class_names,
            num_examples=len(self._labels),
            specs={row.framework: store.flat(row.spec.model_dump(mode="json")) for row in self._rows},
            machine=comparison.machine,
            versions=comparison.versions,
            models=models,
            pairs=self._pairs(own),
        )

    def _model(self, row: Row, repeat: int) -> tuple[Model, Logits | None]:
        seed = self._comparison.of_repeat(row, repeat).spec.seed
        known: dict[str, Any] = {"framework": row.framework, "repeat": repeat, "seed": seed}
        result = self._stored.runs[row.id].get(repeat)
        if result is None or result.status != "ok":
            status, reason = (result.status, result.reason) if result else ("not run", None)
            return Model(status=status, reason=reason, **known), None
        path = store.run_folder(self._folder / TRAINING_FOLDER, row.id, repeat) / results.BEST_FILE
        model = trained.load(path, row.spec.model)
        by = {name: self._logits(name, path, model, row, repeat) for name in self._in_order(row.framework)}
        made = by[row.framework]
        on_validation: Scores | None = None
        if self._settings.scores_validation:
            logits = self._logits(row.framework, path, model, row, repeat, "validation")
            on_validation = scores.score(self._dataset.validation.labels, logits)
        return Model(
            **known,
            **_of_training(result, model),
            checkpoint=str(path.relative_to(self._folder)),
            scores=scores.score(self._labels, made),
            validation_scores=on_validation,
            worst=scores.worst_confused(self._labels, made, WORST_PAIRS),
            crossings=[self._crossing(name, made, other) for name, other in by.items() if name != row.framework],
        ), made

    def _in_order(self, framework: str) -> list[str]:
        return [framework, *(name for name in self._frameworks if name != framework)]

    def _logits(
        self, framework: str, path: Path, model: Trained, row: Row, repeat: int, split: inference.Scored = "test"
    ) -> Logits:
        """A framework's logits for a split with this model: stored ones, or computed now."""
        name = f"{row.id}-r{repeat}-in-{framework}" + ("" if split == "test" else f"-{split}")
        out = self._folder / LOGITS_FOLDER / f"{name}.safetensors"
        count = len(getattr(self._dataset, split))
        try:
            return inference.logits(out, model, count)
        except SealError:
            pass  # none yet, or from another model
        self._shown.say(f"{row.id}: the {split} split, in {framework}")
        spec_file, log = out.with_suffix(".spec.json"), out.with_suffix(".txt")
        atomic_files.write_atomically(spec_file, row.spec.to_json())
        cores = str(min(row.spec.cores, machine.available_cores()))
        options = ["--cores", cores, "--device", row.spec.device, "--out", out, *twin_client.own_model(model)]
        twin_client.ask(framework, ["score", path, "--data-of", spec_file, "--split", split, *options], log)
        return inference.logits(out, model, count)

    def _crossing(self, framework: str, own: Logits, other: Logits) -> Crossing:
        found = scores.agreement(self._labels, own, other)
        return Crossing(
            framework=framework,
            labelled_differently=found.labelled_differently,
            largest_difference=found.largest_difference,
        )

    def _pairs(self, own: Mapping[tuple[str, int], Logits]) -> list[Pair]:
        found = [
            (first, second, repeat, scores.agreement(self._labels, own[first, repeat], own[second, repeat]))
            for first, second in combinations(self._frameworks, 2)
            for repeat in range(self._comparison.repeats)
            if (first, repeat) in own and (second, repeat) in own
        ]
        tested = [each.p for *_, each in found if each.p is not None]
        adjusted = iter(statistics.holm(tested))
        return [
            Pair(
                first=first,
                second=second,
                repeat=repeat,
                seed=self._comparison.of_repeat(self._rows[0], repeat).spec.seed,
                agreement=each,
                adjusted_p=None if each.p is None else next(adjusted),
            )
            for first, second, repeat, each in found
        ]


def _of_training(result: RunResult, model: Trained) -> dict[str, Any]:
    return {
        "status": result.status,
        "reason": result.reason,
        "epochs": len(result.epochs),
        "best_epoch": model.card.epoch,
        "validation": model.card.validation,
        "wall_seconds": result.phases.wall_seconds if result.phases else None,
    }


def read_tuned(path: Path, frameworks: Sequence[str]) -> tuple[dict[str, dict[str, Any]], str | None]:
    """The best fields of a tuning, by framework and dotted name, and the hash of the data on which they were chosen.

    Args:
        path: a tuning's folder or its record, or a YAML or JSON file of {framework: {field: value}}, or of {field: value} for
            all alike, of which the data are not known.
        frameworks: to evaluate; fields of others are left out.

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
