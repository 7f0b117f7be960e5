"""Results of a comparison: one record for each row, computed once for every table and plot."""

from __future__ import annotations

import statistics as python_statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import combinations
from typing import NamedTuple, TypeVar

import numpy as np

from common.artifacts.schema import INTERRUPTED, EpochRecord, Metrics, Noise, Phases, RunResult, StepParts
from common.models.stages import idle_fraction
from common.spec import Spec
from compare.core.differences import relative_difference
from compare.core.statistics import Judged, Ratio, Spread, chance_of, paired_ratio, spread, spread_with_later, verdicts
from compare.core.verdict_words import pays
from compare.execution import matrix, store
from compare.execution.matrix import Row
from compare.execution.store import Comparison, Stored
from compare.judgement import conditions, sameness
from compare.judgement.row_figures import DISTURBED, NOT_COMPARABLE, Epoch, Scores, Summary, Target
from compare.judgement.run_figures import (
    cores_lost,
    disturbed,
    epoch_seconds,
    images_per_second,
    limit,
    spread_median,
    steps_needed,
    switches_words,
    timed_steps,
    until_accuracy,
)

LEAST_APART_SECONDS = 60.0
"""Least distance of two runs that were not made in turn. Wall times do not include starts of processes and writes."""

_Value = TypeVar("_Value")

FAILURES = ("failed", "diverged", "killed")
UNFINISHED = ("not run", "incomplete")
"""No repeat of the row has a result, or some have none."""

_OF_THE_MODE = ("mode", "replicas", "least_replicas", "cores", "hosts", "parameter_server", "pipeline", "hybrid")
"""Fields of a spec that may differ between a row and its serial row."""


class Family(NamedTuple):
    """All ratios of a report that get a verdict, judged together."""

    contestants: list[tuple[Summary, Summary, Judged]]
    """Rows that differ by their framework alone, and seconds of the second over seconds of the first."""
    modes: dict[str, Judged]
    """Row id: speed-up of a parallel mode over serial on the same cores."""

    @property
    def judged(self) -> list[Judged]:
        return [*(judged for _, _, judged in self.contestants), *self.modes.values()]


def summarize(stored: Stored) -> list[Summary]:
    """All rows of a comparison, in its order."""
    made = [_summary(row, stored) for row in stored.comparison.rows]
    named = Counter(summary.name for summary in made)
    made = [summary.model_copy(update={"shares_name": named[summary.name] > 1}) for summary in made]
    comparable = sameness.is_comparable(stored, made)
    modes = family(stored, made).modes if comparable else {}
    unreliable = {summary.id for summary in made if summary.disturbed}
    found: list[Summary] = []
    for row, summary in zip(stored.comparison.rows, made, strict=True):
        one_core, same_cores = serial_of(stored.comparison, row, cores=1), serial_of(stored.comparison, row)
        resources = same_cores if accelerated(summary.device) else one_core
        bases = {"speedup_one_core": one_core, "speedup_same_cores": same_cores, "parallel_efficiency": resources}
        hidden = {
            name: DISTURBED if comparable else NOT_COMPARABLE
            for name, base in bases.items()
            if base and getattr(summary, name) and (not comparable or unreliable & {row.id, base.id})
        }
        said = hidden.get("speedup_same_cores") or pays(modes.get(row.id))
        found.append(summary.model_copy(update={"pays": said, "hidden_ratios": hidden}))
    return found


def family(stored: Stored, summaries: Sequence[Summary]) -> Family:
    """All comparisons that get a sentence, judged as one family: frameworks against each other, modes against serial."""
    rows = {row.id: row for row in stored.comparison.rows}
    pairs = [
        (first, second, ratio)
        for first, second in combinations(summaries, 2)
        if first.device == second.device
        and matrix.differ_by_contestant(rows[first.id], rows[second.id])
        and (ratio := ratio_of_seconds(stored, slow=rows[second.id], fast=rows[first.id])) is not None
    ]
    modes = [
        (summary.id, summary.speedup_same_cores)
        for summary in summaries
        if summary.mode != "serial" and summary.speedup_same_cores is not None
    ]
    named = [*((f"{first.id} against {second.id}", ratio) for first, second, ratio in pairs), *modes]
    until = stored.comparison.until
    judged = verdicts(named, until.smallest_effect if until else None)
    contestants = [(first, second, each) for (first, second, _), each in zip(pairs, judged, strict=False)]
    return Family(contestants, {each.name: each for each in judged[len(pairs) :]})


def rows_of(comparison: Comparison, question: Judged) -> list[str]:
    """Ids of the two rows that one of the family's comparisons compares."""
    row = next((row for row in comparison.rows if row.id == question.name), None)
    if row is None:
        return question.name.split(" against ")
    serial = serial_of(comparison, row)
    return [row.id, *([serial.id] if serial else [])]


def replaced_ratio(stored: Stored, slow: Row, fast: Row) -> tuple[int, float, float] | None:
    """How the replaced pairs of two rows, which other work disturbed, differ from the pairs that count instead.

    Returns:
        (number of replaced pairs, their ratio of epoch seconds, that of the pairs which count instead). The ratios are
        geometric means. None if there are no such pairs.
    """
    before: list[float] = []
    after: list[float] = []
    for repeat in stored.replaced:
        counting, replaced = pairs_of_runs(stored, repeat, slow, fast)
        if counting and replaced:
            before += [epoch_seconds(one) / epoch_seconds(other) for one, other in replaced]
            after.append(epoch_seconds(counting[0][0]) / epoch_seconds(counting[0][1]))
    if not before:
        return None
    return len(before), python_statistics.geometric_mean(before), python_statistics.geometric_mean(after)


def asks_anything(comparison: Comparison) -> bool:
    """Whether two rows that can be run differ by their contestant alone, or one is a parallel mode with its serial row."""
    rows = [row for row in comparison.rows if row.unavailable is None]
    if any(matrix.differ_by_contestant(one, other) for one, other in combinations(rows, 2)):
        return True
    return any(row.spec.mode != "serial" and serial_of(comparison, row) in rows for row in rows)


def measured(stored: Stored, row: Row) -> dict[int, RunResult]:
    """The repeats of a row that ended well, with all their replicas. The others are reported apart and never averaged in."""
    return {
        repeat: result
        for repeat, result in stored.runs[row.id].items()
        if result.status in store.FINISHED and not any(death.replicas for death in result.restarts)
    }


def _summary(row: Row, stored: Stored) -> Summary:
    comparison = stored.comparison
    results = [stored.runs[row.id][repeat] for repeat in sorted(stored.runs[row.id])]
    good = list(measured(stored, row).values())
    rates = [images_per_second(result) for result in good]
    cores_used = [result.cores_used for result in good if result.cores_used is not None]
    shown = good or results
    repeats = len(comparison.repeats_of(row.id))
    status, reason = _status(row, results, repeats, stored.torn.get(row.id, 0))
    bases = serial_of(comparison, row, cores=1), serial_of(comparison, row)
    one_core, same_cores = (_speedup(stored, base, row) for base in bases)
    parallel = row.spec.mode != "serial"
    return Summary(
        id=row.id,
        contestant=row.contestant,
        mode=row.spec.variant,
        implementation=_first(shown, lambda result: result.implementation),
        device=_first(shown, lambda result: result.device),
        replicas=row.spec.replicas,
        part=row.spec.part,
        input=row.spec.input,
        workers=row.spec.workers,
        cores=row.spec.cores,
        cores_used=python_statistics.median(cores_used) if cores_used else None,
        most_cores_used=max(cores_used, default=None),
        cores_lost=max((lost for result in good if (lost := cores_lost(result)) is not None), default=None),
        precision=row.spec.precision,
        switches=switches_words(row.spec),
        conditions=conditions.of_row(stored, row),
        status=status,
        reason=reason,
        repeats_done=len(good),
        repeats=repeats,
        epochs_done=max((len(result.epochs) for result in shown), default=0),
        steps=_first(good, lambda result: sum(epoch.steps for epoch in result.epochs)),
        timed_steps=min(map(timed_steps, good), default=None),
        steps_needed=steps_needed(row.spec),
        images=_first(good, lambda result: sum(epoch.images for epoch in result.epochs)),
        train=_scores(good, lambda result: result.epochs[-1].train if result.epochs else None),
        validation=_scores(good, lambda result: result.epochs[-1].validation if result.epochs else None),
        test=_scores(good, lambda result: result.test),
        epoch_seconds=spread([epoch_seconds(result) for result in good]),
        images_per_second=spread(rates),
        training_seconds=spread([result.phases.training_seconds for result in good if result.phases]),
        wall_seconds=spread([result.phases.wall_seconds for result in good if result.phases]),
        phases=_phases(good),
        bytes_per_step=_first(good, lambda result: result.bytes_per_step),
        step_parts=_step_parts(good),
        top_operations=_first(good, lambda result: result.top_operations),
        expected_idle=_expected_idle(row.spec),
        speedup_one_core=one_core,
        speedup_same_cores=same_cores if parallel else None,
        parallel_efficiency=_efficiency(row, _first(good, lambda result: result.device), one_core, same_cores),
        pays=None,
        other_data=any(each is not None and each.id in stored.other_data for each in (row, *bases)),
        peak_memory_pss_mib=_largest(good, lambda result: result.peak_memory_pss_mib),
        peak_memory_mib=_largest(good, lambda result: result.peak_memory_mib),
        device_peak_memory_mib=_largest(good, lambda result: result.device_peak_memory_mib),
        parity=_parity(comparison, row),
        first_step_loss=_first(results, lambda result: result.first_step_loss),
        first_step_difference=_first_step_difference(stored, row),
        epochs=_epochs([result.epochs for result in shown]),
        seeds=len({result.spec.seed for result in good}),
        test_accuracy_over_seeds=_over_seeds(good),
        target=_target(results, comparison.target_accuracy) if row.spec.part == "training" else None,
        noise=_noise(good),
        limit=limit(
            comparison,
            row.spec,
            _first(good, lambda result: result.device),
            spread_median(rates),
            _first(good, lambda result: result.device_rates),
        ),
        clock_caution=_first(good, lambda result: result.clock_caution),
        confusion=(confusion := _confusion(good)),
        test_examples=_first(good, lambda result: result.test.num_examples if result.test else None),
        chance_accuracy=_chance_accuracy(confusion, len(comparison.class_names)),
    )


def _status(row: Row, results: Sequence[RunResult], repeats: int, torn: int) -> tuple[str, str | None]:
    if row.unavailable:
        status, _, reason = row.unavailable.partition(": ")
        return status, reason
    # A repeat that a user interrupted is missing like one that was never started. A row without a finished one has only that.
    has_finished = any(result.status in store.FINISHED for result in results)
    interrupted = [result for result in results if has_finished and was_interrupted(result)]
    bad = [result for result in results if result.status != "ok" and result not in interrupted]
    absent = repeats - len(results)
    counts = (
        (len(interrupted), "was interrupted", "were interrupted"),
        (absent - torn, "has no result", "have no result"),
        (torn, "has a torn result", "have torn results"),
    )
    missing = [(number, one if number == 1 else many) for number, one, many in counts if number > 0]
    for status in (*FAILURES, "not available", "not parallel"):
        found = [result for result in bad if result.status == status]
        if found:
            gaps = "".join(f", {number} more {what}" for number, what in missing)
            which = f" ({len(found)} of {repeats} repeats{gaps})" if repeats > 1 else ""
            return status, f"{found[0].reason or 'no reason given'}{which}"
    if missing:
        (number, what), *others = missing
        first = f"{number} of {repeats} repeats" if repeats > 1 else "its only repeat"
        reason = ", ".join([f"{first} {what}", *(f"{number} {what}" for number, what in others)])
        return "incomplete" if results else "not run", reason
    return "ok", None


def was_interrupted(result: RunResult) -> bool:
    """Whether a user cut this run short."""
    return result.status == "killed" and (result.reason or "").startswith(INTERRUPTED)


def serial_of(comparison: Comparison, row: Row, *, cores: int | None = None, batch: int | None = None) -> Row | None:
    """The row that this one's speed-up is relative to: the same work in serial.

    Args:
        row: any row. A serial row finds itself.
        cores: of the serial row. None: as many.
        batch: its global batch. None: the same.
    """
    fields = {"cores": cores or row.spec.cores, "global_batch_size": batch or row.spec.global_batch_size}
    for other in comparison.rows:
        alike = row.spec.model_copy(update={name: getattr(other.spec, name) for name in _OF_THE_MODE} | fields)
        if (other.contestant, other.spec.mode) == (row.contestant, "serial") and other.spec == alike:
            return other
    return None


def _speedup(stored: Stored, base: Row | None, row: Row) -> Ratio | None:
    if base is None or base.id == row.id:
        return None
    return ratio_of_seconds(stored, base, row)


def ratio_of_seconds(stored: Stored, slow: Row, fast: Row) -> Ratio | None:
    """Epoch seconds of one row over another's, paired by repeat. None if there is no pair."""
    return paired_ratio(list(pairs_of_seconds(stored, slow, fast).values()))


def pairs_of_seconds(stored: Stored, slow: Row, fast: Row) -> dict[int, tuple[float, float]]:
    """Epoch seconds of two rows, by repeat. See `pairs_of_runs` for the runs that count. Rows of other data have no pairs."""
    if {slow.id, fast.id} & stored.other_data:
        return {}
    return {
        repeat: (epoch_seconds(pairs[0][0]), epoch_seconds(pairs[0][1]))
        for repeat in sorted({*stored.wall_seconds, *stored.replaced})
        if (pairs := pairs_of_runs(stored, repeat, slow, fast)[0])
    }


def pairs_of_runs(
    stored: Stored, repeat: int, slow: Row, fast: Row
) -> tuple[list[tuple[RunResult, RunResult]], list[tuple[RunResult, RunResult]]]:
    """The runs of two rows in one repeat, in pairs that were made in turn.

    `--again disturbed` makes a repeat again, with all rows. The first pair counts of which neither run was disturbed, whatever
    its times. Otherwise a command that a disturbed third row allows would judge this pair a second time. Without such a pair,
    the last one counts, if it is not replaced.

    Returns:
        (those that may count, the first one first; those that other work disturbed and that were replaced).
    """
    found: list[tuple[RunResult, RunResult]] = []
    replaced: list[tuple[RunResult, RunResult]] = []
    now = {row.id: run for row in (slow, fast) if (run := stored.runs[row.id].get(repeat)) is not None}
    for runs in [*stored.replaced.get(repeat, {}).values(), now]:
        pair = [run for row in (slow, fast) if (run := runs.get(row.id)) is not None and _is_comparable(run)]
        wall_seconds = stored.wall_seconds.get(repeat, 0.0) if runs is now else _wall_seconds(runs.values())
        if len(pair) == 2 and not seconds_apart(pair, wall_seconds):
            counts = runs is now or not any(disturbed(run) for run in pair)
            (found if counts else replaced).append((pair[0], pair[1]))
    return found, replaced


def seconds_apart(runs: Sequence[RunResult], wall_seconds: float) -> float:
    """Seconds between the first and the last start of a repeat's runs. 0 if they were made in turn.

    In turn means: within twice the time that all runs of the repeat take. That leaves room for a run that hung. A run that
    `--resume` repeated hours later was not made in turn. Runs that recorded no time count as made in turn.

    Args:
        runs: some or all runs of the repeat.
        wall_seconds: that all take.
    """
    begun = [datetime.fromisoformat(run.started_at) for run in runs if run.started_at is not None]
    seconds = (max(begun) - min(begun)).total_seconds() if begun else 0.0
    return seconds if seconds > LEAST_APART_SECONDS + 2.0 * wall_seconds else 0.0


def _wall_seconds(runs: Iterable[RunResult]) -> float:
    return sum(run.phases.wall_seconds for run in runs if run.phases)


def comparable(stored: Stored, row: Row) -> dict[int, RunResult]:
    """The repeats of a row whose seconds may stand in a ratio to those of another comparison."""
    return {repeat: result for repeat, result in first_undisturbed(stored, row).items() if _is_comparable(result)}


def first_undisturbed(stored: Stored, row: Row) -> dict[int, RunResult]:
    """As `measured`. Of a repeat that was made again, the first run that was not disturbed. See `pairs_of_runs` for why.

    In comparisons with other results, a row has no partner in its own repeat.
    """
    kept = {
        repeat: next((run for runs in numbers.values() if (run := runs.get(row.id)) and not disturbed(run)), None)
        for repeat, numbers in stored.replaced.items()
    }
    return dict(sorted({**measured(stored, row), **{repeat: run for repeat, run in kept.items() if run}}.items()))


def _is_comparable(run: RunResult) -> bool:
    """Whether its seconds may stand in a ratio: it was parallel as asked and long enough."""
    return run.status == "ok" and timed_steps(run) >= steps_needed(run.spec)


def accelerated(device: str | None) -> bool:
    """Whether each replica has a device of its own instead of a share of the cores."""
    return device is not None and not device.startswith("cpu")


def _efficiency(row: Row, device: str | None, one_core: Ratio | None, same_cores: Ratio | None) -> float | None:
    if accelerated(device):
        return same_cores.value / row.spec.replicas if same_cores else None
    return one_core.value / row.spec.cores if one_core else None


def _parity(comparison: Comparison, row: Row) -> str:
    if comparison.proof is None:
        return "not examined"
    of_mode = comparison.proof.mode_verdicts.get(row.contestant, {}).get(row.spec.variant, "not claimed")
    return comparison.proof.row_verdicts.get(row.id, of_mode)


def _first_step_difference(stored: Stored, row: Row) -> float | None:
    """Largest difference over all repeats, seed by seed, to the rows that differ from this one by their framework alone.

    None for an asynchronous pipeline: it updates the weights within the first batch, before the loss of the batch is known.
    """
    if row.spec.variant == "pipeline_async":
        return None
    twins = [other for other in stored.comparison.rows if matrix.differ_by_contestant(row, other)]
    differences = [
        relative_difference(ours, theirs)
        for seed, ours in _first_losses(stored, [row])
        for other, theirs in _first_losses(stored, twins)
        if seed == other
    ]
    return max(differences, default=None)


def _first_losses(stored: Stored, rows: Sequence[Row]) -> set[tuple[int, float]]:
    """(seed, first loss) of each run. Runs with fewer digits than their precision are left out: their loss is another."""
    runs = [result for row in rows for result in stored.runs[row.id].values()]
    return {
        (result.spec.seed, result.first_step_loss)
        for result in runs
        if result.first_step_loss is not None and not result.reduced
    }


def _scores(results: Sequence[RunResult], pick: Callable[[RunResult], Metrics | None]) -> Scores:
    picked = [metrics for result in results if (metrics := pick(result)) is not None]
    return Scores(accuracy=spread([metrics.accuracy for metrics in picked]), loss=spread([metrics.loss for metrics in picked]))


def _phases(results: Sequence[RunResult]) -> Phases | None:
    found = sorted((result.phases for result in results if result.phases), key=lambda phases: phases.wall_seconds)
    return found[(len(found) - 1) // 2] if found else None


def _over_seeds(results: Sequence[RunResult]) -> Spread | None:
    by_seed: dict[int, list[float]] = {}
    for result in results:
        if result.test is not None:
            by_seed.setdefault(result.spec.seed, []).append(result.test.accuracy)
    return spread([python_statistics.median(found) for found in by_seed.values()]) if len(by_seed) > 1 else None


def _target(results: Sequence[RunResult], accuracy: float | None) -> Target | None:
    if accuracy is None:
        return None
    reached = [found for result in results if (found := until_accuracy(result, accuracy)) is not None]
    return Target(
        accuracy=accuracy,
        reached=len(reached),
        repeats=len(results),
        seconds=spread_with_later([seconds for seconds, _ in reached], len(results) - len(reached)),
        epochs=spread_with_later([epochs for _, epochs in reached], len(results) - len(reached)),
    )


def _noise(results: Sequence[RunResult]) -> Noise | None:
    found = [result.noise for result in results if result.noise]
    if not found:
        return None
    worst: dict[str, float | None] = {}
    for name in Noise.model_fields:
        known = [value for noise in found if (value := getattr(noise, name)) is not None]
        worst[name] = (min if name.startswith("frequency") else max)(known, default=None)
    return Noise.model_validate(worst)


def _step_parts(results: Sequence[RunResult]) -> StepParts | None:
    found = [result.step_parts for result in results if result.step_parts]
    if not found:
        return None
    medians: dict[str, float] = {}
    for name in StepParts.model_fields:
        values = [value for parts in found if isinstance(value := getattr(parts, name), float)]
        if values:
            medians[name] = python_statistics.median(values)
    return found[0].model_copy(update=medians)


def _confusion(results: Sequence[RunResult]) -> list[list[int]] | None:
    """The sum over results. None also where they differ in classes, as results of different data do."""
    found = [result.confusion for result in results if result.confusion]
    return np.sum(found, axis=0).tolist() if len(set(map(len, found))) == 1 else None


def _chance_accuracy(confusion: list[list[int]] | None, num_classes: int) -> float | None:
    """See `Summary.chance_accuracy`. If the examples of each class are unknown, all classes count as equally frequent."""
    if confusion is not None:
        return chance_of(confusion)
    return 1.0 / num_classes if num_classes > 1 else None


def _expected_idle(run: Spec) -> float | None:
    if run.variant not in ("model_parallel", "pipeline", "pipeline_1f1b", "hybrid_pipeline"):
        return None
    return idle_fraction(run.replicas // run.data_replicas, run.micro_batches())


def _epochs(runs: Sequence[list[EpochRecord]]) -> list[Epoch]:
    made: list[Epoch] = []
    for index in range(max((len(epochs) for epochs in runs), default=0)):
        records = [epochs[index] for epochs in runs if len(epochs) > index]
        trained = [record.train for record in records if record.train]
        validations = [record.validation for record in records if record.validation]
        seconds = spread([record.seconds for record in records])
        made.append(
            Epoch(
                epoch=index + 1,
                train_loss=spread_median([scores.loss for scores in trained]) if trained else None,
                train_accuracy=spread_median([scores.accuracy for scores in trained]) if trained else None,
                validation_loss=spread_median([scores.loss for scores in validations]) if validations else None,
                validation_accuracy=spread_median([scores.accuracy for scores in validations]) if validations else None,
                seconds=seconds.median if seconds else None,
                n=len(records),
            )
        )
    return made


def _first(results: Sequence[RunResult], pick: Callable[[RunResult], _Value | None]) -> _Value | None:
    return next((value for result in results if (value := pick(result)) is not None), None)


def _largest(results: Sequence[RunResult], pick: Callable[[RunResult], float | None]) -> float | None:
    return max((value for result in results if (value := pick(result)) is not None), default=None)
