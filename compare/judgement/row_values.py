"""Values of a row: from its stored runs, and over its repeats. `figures` says which figure has which."""

from __future__ import annotations

import statistics as python_statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from common.artifacts.schema import Metrics, Noise, Phases, RunResult, StepParts
from common.models.stages import idle_fraction
from common.spec import Spec
from compare.cli.differences import relative_difference
from compare.judgement import run_figures
from compare.judgement.row_figures import FAILURES, EpochMedians, Limit, ScoreSpreads, Target
from compare.judgement.run_figures import finite_median, images_per_second, time_to_accuracy
from compare.judgement.run_pairs import finished_runs, ratio_of_seconds, serial_row_of, uses_accelerator, was_interrupted
from compare.results import store
from compare.results.store import Comparison, StoredComparison
from compare.running import matrix
from compare.running.matrix import Row
from compare.statistics.statistics import Ratio, Spread, majority_accuracy, spread, spread_with_later

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class RowRuns:
    """A row of a comparison with its stored runs."""

    stored: StoredComparison
    row: Row

    @property
    def comparison(self) -> Comparison:
        return self.stored.comparison

    @property
    def spec(self) -> Spec:
        return self.row.spec

    @cached_property
    def results(self) -> list[RunResult]:
        """All results, by repeat."""
        results = self.stored.runs[self.row.id]
        return [results[repeat] for repeat in sorted(results)]

    @cached_property
    def finished(self) -> list[RunResult]:
        return list(finished_runs(self.stored, self.row).values())

    @property
    def reported(self) -> list[RunResult]:
        """The finished runs. All of them if none finished."""
        return self.finished or self.results

    @property
    def repeats(self) -> int:
        return len(self.comparison.repeats_of(self.row.id))

    @property
    def device(self) -> str | None:
        return first([run.device for run in self.finished])

    @cached_property
    def serial_on_one_core(self) -> Row | None:
        return serial_row_of(self.comparison, self.row, cores=1)

    @cached_property
    def serial_on_same_cores(self) -> Row | None:
        return serial_row_of(self.comparison, self.row)

    @cached_property
    def speedup_one_core(self) -> Ratio | None:
        base = self.serial_on_one_core
        return None if base is None or base.id == self.row.id else ratio_of_seconds(self.stored, base, self.row)

    @cached_property
    def speedup_same_cores(self) -> Ratio | None:
        base = self.serial_on_same_cores
        return None if base is None or not self.spec.is_parallel else ratio_of_seconds(self.stored, base, self.row)

    @cached_property
    def status_and_reason(self) -> tuple[str, str | None]:
        """Worst status of the repeats, and why it is not ok."""
        return _status(self.row, self.results, self.repeats, self.stored.torn.get(self.row.id, 0))


def first(values: Sequence[_Value | None]) -> _Value | None:
    return next((value for value in values if value is not None), None)


def largest(values: Sequence[float]) -> float | None:
    return max(values, default=None)


def smallest(values: Sequence[float]) -> float | None:
    return min(values, default=None)


def median(values: Sequence[float]) -> float | None:
    return python_statistics.median(values) if values else None


def _status(row: Row, results: Sequence[RunResult], repeats: int, torn: int) -> tuple[str, str | None]:
    if row.unavailable:
        return row.unavailable.status, row.unavailable.reason
    # A repeat that a user interrupted is missing like one that was never started. A row without a finished one has only that.
    has_finished = any(result.status in store.FINISHED for result in results)
    interrupted = [result for result in results if has_finished and was_interrupted(result)]
    unsuccessful = [result for result in results if result.status != "ok" and result not in interrupted]
    absent = repeats - len(results)
    counts = (
        (len(interrupted), "was interrupted", "were interrupted"),
        (absent - torn, "has no result", "have no result"),
        (torn, "has a torn result", "have torn results"),
    )
    missing = [(number, one if number == 1 else many) for number, one, many in counts if number > 0]
    for status in (*FAILURES, "not available", "not parallel"):
        matching = [result for result in unsuccessful if result.status == status]
        if matching:
            gaps = "".join(f", {number} more {what}" for number, what in missing)
            which = f" ({len(matching)} of {repeats} repeats{gaps})" if repeats > 1 else ""
            return status, f"{matching[0].reason or 'no reason given'}{which}"
    if missing:
        (number, what), *others = missing
        first = f"{number} of {repeats} repeats" if repeats > 1 else "its only repeat"
        reason = ", ".join([f"{first} {what}", *(f"{number} {what}" for number, what in others)])
        return "incomplete" if results else "not run", reason
    return "ok", None


def parallel_efficiency(runs: RowRuns) -> float | None:
    if uses_accelerator(runs.device):
        return runs.speedup_same_cores.value / runs.spec.replicas if runs.speedup_same_cores else None
    return runs.speedup_one_core.value / runs.spec.cores if runs.speedup_one_core else None


def has_other_data(runs: RowRuns) -> bool:
    rows = (runs.row, runs.serial_on_one_core, runs.serial_on_same_cores)
    return any(row is not None and row.id in runs.stored.other_data for row in rows)


def parity(runs: RowRuns) -> str:
    proof, row = runs.comparison.proof, runs.row
    if proof is None:
        return "not examined"
    of_mode = proof.mode_verdicts.get(row.contestant, {}).get(row.spec.variant, "not claimed")
    return proof.row_verdicts.get(row.id, of_mode)


def first_step_difference(runs: RowRuns) -> float | None:
    """Largest difference over all repeats, seed by seed, to the rows that differ from this one by their framework alone.

    None for an asynchronous pipeline: it updates the weights within the first batch, before the loss of the batch is known.
    """
    stored, row = runs.stored, runs.row
    if row.spec.traits.updates_each_micro_batch:
        return None
    twins = [other for other in stored.comparison.rows if matrix.same_except_contestant(row, other)]
    differences = [
        relative_difference(ours, theirs)
        for seed, ours in _first_losses(stored, [row])
        for other, theirs in _first_losses(stored, twins)
        if seed == other
    ]
    return max(differences, default=None)


def _first_losses(stored: StoredComparison, rows: Sequence[Row]) -> set[tuple[int, float]]:
    """(seed, first loss) of each run. Runs in reduced precision are left out, because their loss differs."""
    runs = [result for row in rows for result in stored.runs[row.id].values()]
    return {
        (result.spec.seed, result.first_step_loss)
        for result in runs
        if result.first_step_loss is not None and not result.reduced
    }


def score_spreads(scores: Sequence[Metrics]) -> ScoreSpreads:
    return ScoreSpreads(accuracy=spread([score.accuracy for score in scores]), loss=spread([score.loss for score in scores]))


def phases_of_median_run(phases: Sequence[Phases]) -> Phases | None:
    by_time = sorted(phases, key=lambda phases: phases.wall_seconds)
    return by_time[(len(by_time) - 1) // 2] if by_time else None


def accuracy_over_seeds(runs: RowRuns) -> Spread | None:
    by_seed: dict[int, list[float]] = {}
    for result in runs.finished:
        if result.test is not None:
            by_seed.setdefault(result.spec.seed, []).append(result.test.accuracy)
    return spread([python_statistics.median(accuracies) for accuracies in by_seed.values()]) if len(by_seed) > 1 else None


def target(runs: RowRuns) -> Target | None:
    results, accuracy = runs.results, runs.comparison.settings.target_accuracy
    if accuracy is None or runs.spec.part != "training":
        return None
    reached = [time_and_epochs for result in results if (time_and_epochs := time_to_accuracy(result, accuracy)) is not None]
    return Target(
        accuracy=accuracy,
        reached=len(reached),
        repeats=len(results),
        seconds=spread_with_later([seconds for seconds, _ in reached], len(results) - len(reached)),
        epochs=spread_with_later([epochs for _, epochs in reached], len(results) - len(reached)),
    )


def worst_noise(records: Sequence[Noise]) -> Noise | None:
    if not records:
        return None
    worst: dict[str, float | None] = {}
    for name in Noise.model_fields:
        values = [value for noise in records if (value := getattr(noise, name)) is not None]
        worst[name] = (min if name.startswith("frequency") else max)(values, default=None)
    return Noise.model_validate(worst)


def median_step_parts(records: Sequence[StepParts]) -> StepParts | None:
    if not records:
        return None
    medians: dict[str, float] = {}
    for name in StepParts.model_fields:
        values = [value for parts in records if isinstance(value := getattr(parts, name), float)]
        if values:
            medians[name] = python_statistics.median(values)
    return records[0].model_copy(update=medians)


def total_confusion(confusions: Sequence[list[list[int]]]) -> list[list[int]] | None:
    """Sum of the confusion matrices. None if there are none, or if they differ in classes, as results of different data do."""
    confusions = list(filter(None, confusions))
    return np.sum(confusions, axis=0).tolist() if len(set(map(len, confusions))) == 1 else None


def chance_accuracy(runs: RowRuns) -> float | None:
    """Accuracy of the most frequent class. If the examples of each class are unknown, all classes count as equally frequent."""
    confusion = total_confusion([run.confusion for run in runs.finished if run.confusion])
    if confusion is not None:
        return majority_accuracy(confusion)
    num_classes = len(runs.comparison.class_names)
    return 1.0 / num_classes if num_classes > 1 else None


def expected_idle(runs: RowRuns) -> float | None:
    spec = runs.spec
    if "layers" not in spec.traits.divides or spec.traits.has_late_gradients:
        return None
    return idle_fraction(spec.replicas // spec.data_replicas, spec.micro_batches())


def epochs_done(runs: RowRuns) -> int:
    return max((len(run.epochs) for run in runs.reported), default=0)


def epoch_medians(runs: RowRuns) -> list[EpochMedians]:
    medians: list[EpochMedians] = []
    for index in range(epochs_done(runs)):
        records = [run.epochs[index] for run in runs.reported if len(run.epochs) > index]
        training = [record.train for record in records if record.train]
        validations = [record.validation for record in records if record.validation]
        seconds = spread([record.seconds for record in records])
        medians.append(
            EpochMedians(
                epoch=index + 1,
                train_loss=finite_median([scores.loss for scores in training]) if training else None,
                train_accuracy=finite_median([scores.accuracy for scores in training]) if training else None,
                validation_loss=finite_median([scores.loss for scores in validations]) if validations else None,
                validation_accuracy=finite_median([scores.accuracy for scores in validations]) if validations else None,
                seconds=seconds.median if seconds else None,
                n=len(records),
            )
        )
    return medians


def limit(runs: RowRuns) -> Limit | None:
    rates = finite_median([images_per_second(run) for run in runs.finished])
    device_rates = first([run.device_rates for run in runs.finished])
    return run_figures.limit(runs.comparison, runs.spec, runs.device, rates, device_rates)
