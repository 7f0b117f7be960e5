"""Scores of the models of a stored training on the test split, by one evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.artifacts import atomic_files, results, trained
from common.artifacts.records import RecordError
from common.artifacts.schema import Metrics, RunResult
from common.artifacts.trained import Card, Trained
from common.data import sources
from common.frozen import Frozen
from common.machine import machine
from common.machine.machine import Facts
from common.models.weights import WeightsError
from common.training import inference, scores
from common.training.scores import Agreement, Confusion, SplitScores
from compare.cli import wording
from compare.cli.progress import Display
from compare.results import store
from compare.results.store import Comparison, StoredComparison
from compare.running import twin_client
from compare.running.contestants import Contestant
from compare.running.matrix import FileName, Row
from compare.statistics import statistics

SCHEMA_VERSION = 1
KIND = "evaluation"
TRAINING_FOLDER = "training"
LOGITS_FOLDER = "logits"

WORST_PAIRS = 8
"""Number of pairs of confused classes that are listed."""

_ROUNDING = {"float32": 1e-4, "float64": 1e-9}
"""Largest difference of probabilities that rounding explains between two frameworks, for networks this deep."""

Logits = npt.NDArray[np.floating]


class Crossing(Frozen):
    """Use of one framework's checkpoint in another framework."""

    contestant: FileName
    """Framework that used the checkpoint."""
    labelled_differently: int
    """Number of test images that it labels differently than the framework that trained it."""
    largest_difference: float
    """Largest difference of the probabilities."""


class ScoredModel(Frozen):
    """One training, and the scores of its best epoch on the test split."""

    contestant: FileName
    repeat: int
    seed: int
    status: str
    reason: str | None = None
    checkpoint: str | None = None
    """File of the checkpoint, relative to the evaluation's folder."""
    epochs: int = 0
    best_epoch: int | None = None
    validation: Metrics | None = None
    """Metrics on the validation split after the best epoch."""
    wall_seconds: float | None = None
    """Wall-clock seconds of the training process."""
    scores: SplitScores | None = None
    """Scores on the test split."""
    validation_scores: SplitScores | None = None
    """Scores on the validation split, see `final_training.EvaluationSettings.scores_validation`."""
    worst: list[Confusion] = []
    crossings: list[Crossing] = []


class ModelPair(Frozen):
    """Two frameworks' models of the same seed, on the same images."""

    first: str
    second: str
    repeat: int
    seed: int
    agreement: Agreement
    adjusted_p: float | None
    """Holm-corrected p over all pairs of the evaluation. None if the two models never differ."""


class EvaluationRecord(Frozen):
    """The complete result of an evaluation."""

    schema_version: int = SCHEMA_VERSION
    kind: str = KIND
    data_name: str
    data_hash: str
    data_notes: list[str]
    class_names: list[str]
    tuned_on: str | None = None
    """Hash of the data of the tuning, see `final_training.EvaluationSettings`."""
    num_examples: int
    """Number of images of the test split."""
    specs: dict[str, dict[str, Any]]
    """Every field of a framework's training by dotted name, as framework: fields."""
    machine: Facts
    versions: dict[str, dict[str, str]]
    models: list[ScoredModel]
    pairs: list[ModelPair]

    @property
    def shown_class_names(self) -> list[str]:
        """Names of the classes as a report shows them."""
        return list(map(wording.visible, self.class_names))

    @property
    def contestants(self) -> list[str]:
        return list(dict.fromkeys(model.contestant for model in self.models))

    @property
    def rounding(self) -> float:
        """Largest allowed difference of probabilities for a crossing."""
        return max(_ROUNDING[spec["precision"]] for spec in self.specs.values())

    @property
    def carries_over(self) -> bool:
        """Whether every checkpoint gives the same result in the other frameworks, except for rounding."""
        return all(crossing.largest_difference <= self.rounding for model in self.models for crossing in model.crossings)

    @property
    def exit_code(self) -> int:
        """1 if a training failed or a checkpoint does not carry over, else 0."""
        return 0 if all(model.scores for model in self.models) and self.carries_over else 1

    @property
    def scored(self) -> list[str]:
        """Frameworks that have a scored model."""
        return [contestant for contestant in self.contestants if self.models_of(contestant)]

    @property
    def supports(self) -> list[int]:
        """Number of test images of each class. Empty if nothing was scored."""
        scores = next((model.scores for model in self.models if model.scores), None)
        return [class_scores.support for class_scores in scores.classes] if scores else []

    def models_of(self, contestant: str) -> list[ScoredModel]:
        """Return the scored models of a framework, one for each repeat."""
        return [model for model in self.models if model.contestant == contestant and model.scores]


def score(stored: StoredComparison, folder: Path, progress: Display, *, with_validation: bool = False) -> EvaluationRecord:
    """Score the models of a stored training on its test split.

    Args:
        folder: holds the training, and gets the logits. Logits that are there are not computed again.
        with_validation: whether to score the validation split too.
    """
    comparison = stored.comparison
    scorer = _Scorer(stored, folder, progress)
    models: list[ScoredModel] = []
    logits_by_model: dict[tuple[str, int], Logits] = {}
    for row in comparison.rows:
        for repeat in range(comparison.settings.repeats):
            model, logits = scorer.model(row, repeat, with_validation=with_validation)
            models.append(model)
            if logits is not None:
                logits_by_model[row.contestant, repeat] = logits
    return EvaluationRecord(
        data_name=comparison.data_name,
        data_hash=comparison.data_hash,
        data_notes=comparison.data_notes,
        class_names=comparison.class_names,
        num_examples=len(scorer.labels),
        specs={row.contestant: store.flatten(row.spec.model_dump(mode="json")) for row in comparison.rows},
        machine=comparison.machine,
        versions=comparison.versions,
        models=models,
        pairs=_pairs(comparison, scorer.labels, logits_by_model),
    )


class _Scorer:
    """Computes logits and scores of one stored training."""

    def __init__(self, stored: StoredComparison, folder: Path, progress: Display) -> None:
        self._stored, self._folder, self._progress = stored, folder, progress
        self._contestants = [row.contestant for row in stored.comparison.rows]
        spec = stored.comparison.rows[0].spec
        self._dataset = sources.load(spec.data, seed=spec.split_seed, cache_dir=spec.paths.cache_dir)
        self.labels = self._dataset.test.labels

    def model(self, row: Row, repeat: int, *, with_validation: bool) -> tuple[ScoredModel, Logits | None]:
        """Score one training. Return it with its own framework's logits. None: it failed."""
        seed = self._stored.comparison.row_for_repeat(row, repeat).spec.seed
        identity: dict[str, Any] = {"contestant": row.contestant, "repeat": repeat, "seed": seed}
        result = self._stored.runs[row.id].get(repeat)
        if result is None or result.status != "ok":
            status, reason = (result.status, result.reason) if result else ("not run", None)
            return ScoredModel(status=status, reason=reason, **identity), None
        path = store.run_folder(self._folder / TRAINING_FOLDER, row.id, repeat) / results.BEST_FILE
        model = _load_best_model(path, result)
        logits = partial(self._logits, path, model, row, repeat)
        own_logits = logits(row.contestant)
        others = {name: logits(name) for name in self._contestants if name != row.contestant}
        validation = self._dataset.validation.labels
        return ScoredModel(
            **identity,
            status=result.status,
            reason=result.reason,
            checkpoint=str(path.relative_to(self._folder)),
            epochs=len(result.epochs),
            best_epoch=model.card.epoch,
            validation=model.card.validation,
            wall_seconds=result.phases.wall_seconds if result.phases else None,
            scores=scores.score(self.labels, own_logits),
            validation_scores=scores.score(validation, logits(row.contestant, "validation")) if with_validation else None,
            worst=scores.most_confused(self.labels, own_logits, WORST_PAIRS),
            crossings=[
                _crossing(name, scores.agreement(self.labels, own_logits, other_logits))
                for name, other_logits in others.items()
            ],
        ), own_logits

    def _logits(
        self, path: Path, model: Trained, row: Row, repeat: int, contestant: str, split: inference.ScoredSplit = "test"
    ) -> Logits:
        """Return a framework's logits for a split with this model: stored ones, or computed now."""
        name = f"{row.id}-r{repeat}-in-{contestant}" + ("" if split == "test" else f"-{split}")
        out = self._folder / LOGITS_FOLDER / f"{name}.safetensors"
        count = len(getattr(self._dataset, split))
        try:
            return inference.load_logits(out, model, count)
        except RecordError:
            pass  # none yet, or from another model
        self._progress.say(f"{row.id}: the {split} split, in {contestant}")
        spec_file, log = out.with_suffix(".spec.json"), out.with_suffix(".txt")
        atomic_files.write_atomically(spec_file, row.spec.to_json())
        cores = str(min(row.spec.cores, machine.available_cores()))
        options = ["--cores", cores, "--device", row.spec.device, "--out", out, *twin_client.model_arguments(model)]
        twin_client.call(Contestant.plain(contestant), ["score", path, "--data-of", spec_file, "--split", split, *options], log)
        return inference.load_logits(out, model, count)


def _load_best_model(path: Path, result: RunResult) -> Trained:
    """Load the model that a run has kept."""
    again = f"Remove the folder {path.parent}. The same command then makes this run again."
    best = next((epoch for epoch in result.epochs if epoch.epoch == result.best_epoch), None)

    def check_card(card: Card) -> None:
        facts: dict[str, tuple[object, object]] = {
            "framework": (card.framework, result.framework),
            "spec": (card.spec_hash, result.spec.digest),
            "data": (card.data_hash, result.data_hash),
            "epoch": (card.epoch, result.best_epoch),
            "validation scores": (card.validation, best.validation if best else None),
        }
        if differing := [name for name, (expected, recorded) in facts.items() if expected != recorded]:
            raise WeightsError(
                f"{path} is not the model of this run. Other than in the result: {', '.join(differing)}. {again}"
            )

    return trained.load(path, result.spec.model, remedy=again, check_card=check_card)


def _crossing(contestant: str, agreement: Agreement) -> Crossing:
    return Crossing(contestant=contestant, **agreement.model_dump(include={"labelled_differently", "largest_difference"}))


def _pairs(comparison: Comparison, labels: scores.Labels, logits: Mapping[tuple[str, int], Logits]) -> list[ModelPair]:
    """Compare every two frameworks of every repeat that has both models."""
    agreements = [
        (first, second, repeat, scores.agreement(labels, logits[first, repeat], logits[second, repeat]))
        for first, second in combinations([row.contestant for row in comparison.rows], 2)
        for repeat in range(comparison.settings.repeats)
        if (first, repeat) in logits and (second, repeat) in logits
    ]
    adjusted = iter(statistics.holm([agreement.p for *_, agreement in agreements if agreement.p is not None]))
    return [
        ModelPair(
            first=first,
            second=second,
            repeat=repeat,
            seed=comparison.row_for_repeat(comparison.rows[0], repeat).spec.seed,
            agreement=agreement,
            adjusted_p=None if agreement.p is None else next(adjusted),
        )
        for first, second, repeat, agreement in agreements
    ]
