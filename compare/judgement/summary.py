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
from compare.core.statistics import (
    JudgedRatio,
    Ratio,
    Spread,
    majority_accuracy,
    paired_ratio,
    spread,
    spread_with_later,
    verdicts,
)
from compare.core.verdict_words import speedup_verdict
from compare.execution import matrix, store
from compare.execution.matrix import Row
from compare.execution.store import Comparison, StoredComparison
from compare.judgement import conditions, sameness
from compare.judgement.row_figures import DISTURBED, NOT_COMPARABLE, EpochMedians, ScoreSpreads, Summary, Target
from compare.judgement.run_figures import (
    cores_lost,
    disturbing_cores,
    epoch_seconds,
    finite_median,
    images_per_second,
    limit,
    steps_needed,
    switches_words,
    time_to_accuracy,
    timed_steps,
)

MIN_GAP_SECONDS = 60.0
"""Seconds between the starts of two runs, up to which they count as interleaved whatever their wall times. Wall times do not
include starts of processes and writes."""

_Value = TypeVar("_Value")

FAILURES = ("failed", "diverged", "killed")
UNFINISHED = ("not run", "incomplete")
"""Statuses of a row: no repeat has a result, or some have none."""

_MODE_FIELDS = ("mode", "replicas", "least_replicas", "cores", "hosts", "parameter_server", "pipeline", "hybrid")
"""Fields of a spec that may differ between a row and its serial row."""


class Family(NamedTuple):
    """All ratios of a report that get a verdict, judged together."""

    contestants: list[tuple[Summary, Summary, JudgedRatio]]
    """Rows that differ by their framework alone, and seconds of the second over seconds of the first."""
    modes: dict[str, JudgedRatio]
    """Row id: speed-up of a parallel mode over serial on the same cores."""

    @property
    def judged(self) -> list[JudgedRatio]:
        return [*(judged for _, _, judged in self.contestants), *self.modes.values()]


def summarize(stored: StoredComparison) -> list[Summary]:
    """Summarize all rows of a comparison, in its order."""
    first_summaries = [_summary(row, stored) for row in stored.comparison.rows]
    name_counts = Counter(summary.name for summary in first_summaries)
    first_summaries = [summary.model_copy(update={"shares_name": name_counts[summary.name] > 1}) for summary in first_summaries]
    comparable = sameness.is_comparable(stored, first_summaries)
    modes = family(stored, first_summaries).modes if comparable else {}
    unreliable = {summary.id for summary in first_summaries if summary.disturbed}
    summaries: list[Summary] = []
    for row, summary in zip(stored.comparison.rows, first_summaries, strict=True):
        one_core, same_cores = serial_row_of(stored.comparison, row, cores=1), serial_row_of(stored.comparison, row)
        resources = same_cores if uses_accelerator(summary.device) else one_core
        bases = {"speedup_one_core": one_core, "speedup_same_cores": same_cores, "parallel_efficiency": resources}
        hidden = {
            name: DISTURBED if comparable else NOT_COMPARABLE
            for name, base in bases.items()
            if base and getattr(summary, name) and (not comparable or unreliable & {row.id, base.id})
        }
        pays_word = hidden.get("speedup_same_cores") or speedup_verdict(modes.get(row.id))
        summaries.append(summary.model_copy(update={"pays": pays_word, "hidden_ratios": hidden}))
    return summaries


def family(stored: StoredComparison, summaries: Sequence[Summary]) -> Family:
    """All comparisons that get a sentence, judged as one family: frameworks against each other, modes against serial."""
    rows = {row.id: row for row in stored.comparison.rows}
    pairs = [
        (first, second, ratio)
        for first, second in combinations(summaries, 2)
        if first.device == second.device
        and matrix.same_except_contestant(rows[first.id], rows[second.id])
        and (ratio := ratio_of_seconds(stored, slow=rows[second.id], fast=rows[first.id])) is not None
    ]
    modes = [
        (summary.id, summary.speedup_same_cores)
        for summary in summaries
        if summary.mode != "serial" and summary.speedup_same_cores is not None
    ]
    named_ratios = [*((_pair_name(first, second), ratio) for first, second, ratio in pairs), *modes]
    until = stored.comparison.until
    judged = verdicts(named_ratios, until.smallest_effect if until else None)
    contestants = [(first, second, judged_pair) for (first, second, _), judged_pair in zip(pairs, judged, strict=False)]
    return Family(contestants, {judged_mode.name: judged_mode for judged_mode in judged[len(pairs) :]})


def compared_row_ids(comparison: Comparison, judged: JudgedRatio) -> list[str]:
    """Ids of the two rows of a judged comparison."""
    row = next((row for row in comparison.rows if row.id == judged.name), None)
    if row is None:
        return next(
            [one.id, other.id] for one, other in combinations(comparison.rows, 2) if _pair_name(one, other) == judged.name
        )
    serial = serial_row_of(comparison, row)
    return [row.id, *([serial.id] if serial else [])]


def _pair_name(one: Row | Summary, other: Row | Summary) -> str:
    return f"{one.id} against {other.id}"


def replaced_ratio(stored: StoredComparison, slow: Row, fast: Row) -> tuple[int, float, float] | None:
    """Compare the replaced pairs of two rows, which other work disturbed, with the pairs that count instead.

    Returns:
        (number of replaced pairs, their ratio of epoch seconds, ratio of the pairs that count instead). The ratios are
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


def has_comparisons(comparison: Comparison) -> bool:
    """Whether two rows that can be run differ by their contestant alone, or one is a parallel mode with its serial row."""
    rows = [row for row in comparison.rows if row.unavailable is None]
    if any(matrix.same_except_contestant(one, other) for one, other in combinations(rows, 2)):
        return True
    return any(row.spec.mode != "serial" and serial_row_of(comparison, row) in rows for row in rows)


def finished_runs(stored: StoredComparison, row: Row) -> dict[int, RunResult]:
    """Runs of a row that finished with all their replicas, by repeat. Others are reported separately and never averaged in."""
    return {
        repeat: result
        for repeat, result in stored.runs[row.id].items()
        if result.status in store.FINISHED and not any(death.replicas for death in result.restarts)
    }


def _summary(row: Row, stored: StoredComparison) -> Summary:
    comparison = stored.comparison
    results = [stored.runs[row.id][repeat] for repeat in sorted(stored.runs[row.id])]
    good = list(finished_runs(stored, row).values())
    rates = [images_per_second(result) for result in good]
    cores_used = [result.cores_used for result in good if result.cores_used is not None]
    reported = good or results
    repeats = len(comparison.repeats_of(row.id))
    status, reason = _status(row, results, repeats, stored.torn.get(row.id, 0))
    bases = serial_row_of(comparison, row, cores=1), serial_row_of(comparison, row)
    one_core, same_cores = (_speedup(stored, base, row) for base in bases)
    parallel = row.spec.mode != "serial"
    return Summary(
        id=row.id,
        contestant=row.contestant,
        mode=row.spec.variant,
        implementation=_first(reported, lambda result: result.implementation),
        device=_first(reported, lambda result: result.device),
        replicas=row.spec.replicas,
        part=row.spec.part,
        input=row.spec.input,
        workers=row.spec.workers,
        cores=row.spec.cores,
        cores_used=python_statistics.median(cores_used) if cores_used else None,
        most_cores_used=max(cores_used, default=None),
        cores_lost=max((cores for result in good if (cores := cores_lost(result)) is not None), default=None),
        precision=row.spec.precision,
        switches=switches_words(row.spec),
        conditions=conditions.row_conditions(stored, row),
        status=status,
        reason=reason,
        repeats_done=len(good),
        repeats=repeats,
        epochs_done=max((len(result.epochs) for result in reported), default=0),
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
        other_data=any(other is not None and other.id in stored.other_data for other in (row, *bases)),
        peak_memory_pss_mib=_largest(good, lambda result: result.peak_memory_pss_mib),
        peak_memory_mib=_largest(good, lambda result: result.peak_memory_mib),
        device_peak_memory_mib=_largest(good, lambda result: result.device_peak_memory_mib),
        parity=_parity(comparison, row),
        first_step_loss=_first(results, lambda result: result.first_step_loss),
        first_step_difference=_first_step_difference(stored, row),
        epochs=_epochs([result.epochs for result in reported]),
        seeds=len({result.spec.seed for result in good}),
        test_accuracy_over_seeds=_over_seeds(good),
        target=_target(results, comparison.target_accuracy) if row.spec.part == "training" else None,
        noise=_noise(good),
        limit=limit(
            comparison,
            row.spec,
            _first(good, lambda result: result.device),
            finite_median(rates),
            _first(good, lambda result: result.device_rates),
        ),
        clock_caution=_first(good, lambda result: result.clock_caution),
        confusion=(confusion := _confusion(good)),
        test_examples=_first(good, lambda result: result.test.num_examples if result.test else None),
        chance_accuracy=_chance_accuracy(confusion, len(comparison.class_names)),
    )


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


def was_interrupted(result: RunResult) -> bool:
    """Whether a user cut this run short."""
    return result.status == "killed" and (result.reason or "").startswith(INTERRUPTED)


def serial_row_of(comparison: Comparison, row: Row, *, cores: int | None = None, batch: int | None = None) -> Row | None:
    """The serial row that this row's speed-up is relative to. None if there is none.

    Args:
        row: any row. A serial row finds itself.
        cores: number of cores of the serial row. None: as many.
        batch: global batch of the serial row. None: the same.
    """
    fields = {"cores": cores or row.spec.cores, "global_batch_size": batch or row.spec.global_batch_size}
    for other in comparison.rows:
        serial_spec = row.spec.model_copy(update={name: getattr(other.spec, name) for name in _MODE_FIELDS} | fields)
        if (other.contestant, other.spec.mode) == (row.contestant, "serial") and other.spec == serial_spec:
            return other
    return None


def _speedup(stored: StoredComparison, base: Row | None, row: Row) -> Ratio | None:
    if base is None or base.id == row.id:
        return None
    return ratio_of_seconds(stored, base, row)


def ratio_of_seconds(stored: StoredComparison, slow: Row, fast: Row) -> Ratio | None:
    """Epoch seconds of one row over another's, paired by repeat. None if there is no pair."""
    return paired_ratio(list(pairs_of_seconds(stored, slow, fast).values()))


def pairs_of_seconds(stored: StoredComparison, slow: Row, fast: Row) -> dict[int, tuple[float, float]]:
    """Epoch seconds of two rows, by repeat. See `pairs_of_runs` for the runs that count. Rows of other data have no pairs."""
    if {slow.id, fast.id} & stored.other_data:
        return {}
    return {
        repeat: (epoch_seconds(pairs[0][0]), epoch_seconds(pairs[0][1]))
        for repeat in sorted({*stored.wall_seconds, *stored.replaced})
        if (pairs := pairs_of_runs(stored, repeat, slow, fast)[0])
    }


def pairs_of_runs(
    stored: StoredComparison, repeat: int, slow: Row, fast: Row
) -> tuple[list[tuple[RunResult, RunResult]], list[tuple[RunResult, RunResult]]]:
    """The runs of two rows in one repeat, in pairs that were made in turn.

    `--again disturbed` makes a repeat again, with all rows. The first pair counts of which neither run was disturbed, whatever
    its times. Otherwise a command that a disturbed third row allows would judge this pair a second time. Without such a pair,
    the last one counts, if it is not replaced.

    Returns:
        (pairs that may count, the first one first; replaced pairs that other work disturbed).
    """
    counting: list[tuple[RunResult, RunResult]] = []
    replaced: list[tuple[RunResult, RunResult]] = []
    latest = {row.id: run for row in (slow, fast) if (run := stored.runs[row.id].get(repeat)) is not None}
    for runs in [*stored.replaced.get(repeat, {}).values(), latest]:
        pair = [run for row in (slow, fast) if (run := runs.get(row.id)) is not None and _is_comparable(run)]
        wall_seconds = stored.wall_seconds.get(repeat, 0.0) if runs is latest else _wall_seconds(runs.values())
        if len(pair) == 2 and not interleaving_gap_seconds(pair, wall_seconds):
            counts = runs is latest or not any(disturbing_cores(run) for run in pair)
            (counting if counts else replaced).append((pair[0], pair[1]))
    return counting, replaced


def interleaving_gap_seconds(runs: Sequence[RunResult], wall_seconds: float) -> float:
    """Seconds between the first and the last start of a repeat's runs. 0 if they were made in turn.

    In turn means: within twice the time that all runs of the repeat take. That leaves room for a run that hung. A run that
    `--resume` repeated hours later was not made in turn. Runs that recorded no time count as made in turn.

    Args:
        runs: some or all runs of the repeat.
        wall_seconds: seconds that all runs take.
    """
    start_times = [datetime.fromisoformat(run.started_at) for run in runs if run.started_at is not None]
    seconds = (max(start_times) - min(start_times)).total_seconds() if start_times else 0.0
    return seconds if seconds > MIN_GAP_SECONDS + 2.0 * wall_seconds else 0.0


def _wall_seconds(runs: Iterable[RunResult]) -> float:
    return sum(run.phases.wall_seconds for run in runs if run.phases)


def comparable_runs(stored: StoredComparison, row: Row) -> dict[int, RunResult]:
    """Runs of a row, by repeat, whose times may be compared with those of another comparison."""
    return {repeat: result for repeat, result in undisturbed_runs(stored, row).items() if _is_comparable(result)}


def undisturbed_runs(stored: StoredComparison, row: Row) -> dict[int, RunResult]:
    """Finished runs of a row, by repeat. A rerun repeat gives its first undisturbed run, see `pairs_of_runs` for the reason.

    In comparisons with other results, a row has no partner in its own repeat.
    """
    reruns = {
        repeat: next((run for runs in numbers.values() if (run := runs.get(row.id)) and not disturbing_cores(run)), None)
        for repeat, numbers in stored.replaced.items()
    }
    return dict(sorted({**finished_runs(stored, row), **{repeat: run for repeat, run in reruns.items() if run}}.items()))


def _is_comparable(run: RunResult) -> bool:
    """Whether a run's seconds may be part of a ratio: it was parallel as its spec says, and long enough."""
    return run.status == "ok" and timed_steps(run) >= steps_needed(run.spec)


def uses_accelerator(device: str | None) -> bool:
    """Whether each replica has a device of its own instead of a share of the cores."""
    return device is not None and not device.startswith("cpu")


def _efficiency(row: Row, device: str | None, one_core: Ratio | None, same_cores: Ratio | None) -> float | None:
    if uses_accelerator(device):
        return same_cores.value / row.spec.replicas if same_cores else None
    return one_core.value / row.spec.cores if one_core else None


def _parity(comparison: Comparison, row: Row) -> str:
    if comparison.proof is None:
        return "not examined"
    of_mode = comparison.proof.mode_verdicts.get(row.contestant, {}).get(row.spec.variant, "not claimed")
    return comparison.proof.row_verdicts.get(row.id, of_mode)


def _first_step_difference(stored: StoredComparison, row: Row) -> float | None:
    """Largest difference over all repeats, seed by seed, to the rows that differ from this one by their framework alone.

    None for an asynchronous pipeline: it updates the weights within the first batch, before the loss of the batch is known.
    """
    if row.spec.variant == "pipeline_async":
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


def _scores(results: Sequence[RunResult], pick: Callable[[RunResult], Metrics | None]) -> ScoreSpreads:
    picked_metrics = [metrics for result in results if (metrics := pick(result)) is not None]
    return ScoreSpreads(
        accuracy=spread([metrics.accuracy for metrics in picked_metrics]),
        loss=spread([metrics.loss for metrics in picked_metrics]),
    )


def _phases(results: Sequence[RunResult]) -> Phases | None:
    phases_by_time = sorted((result.phases for result in results if result.phases), key=lambda phases: phases.wall_seconds)
    return phases_by_time[(len(phases_by_time) - 1) // 2] if phases_by_time else None


def _over_seeds(results: Sequence[RunResult]) -> Spread | None:
    by_seed: dict[int, list[float]] = {}
    for result in results:
        if result.test is not None:
            by_seed.setdefault(result.spec.seed, []).append(result.test.accuracy)
    return spread([python_statistics.median(accuracies) for accuracies in by_seed.values()]) if len(by_seed) > 1 else None


def _target(results: Sequence[RunResult], accuracy: float | None) -> Target | None:
    if accuracy is None:
        return None
    reached = [time_and_epochs for result in results if (time_and_epochs := time_to_accuracy(result, accuracy)) is not None]
    return Target(
        accuracy=accuracy,
        reached=len(reached),
        repeats=len(results),
        seconds=spread_with_later([seconds for seconds, _ in reached], len(results) - len(reached)),
        epochs=spread_with_later([epochs for _, epochs in reached], len(results) - len(reached)),
    )


def _noise(results: Sequence[RunResult]) -> Noise | None:
    records = [result.noise for result in results if result.noise]
    if not records:
        return None
    worst: dict[str, float | None] = {}
    for name in Noise.model_fields:
        values = [value for noise in records if (value := getattr(noise, name)) is not None]
        worst[name] = (min if name.startswith("frequency") else max)(values, default=None)
    return Noise.model_validate(worst)


def _step_parts(results: Sequence[RunResult]) -> StepParts | None:
    records = [result.step_parts for result in results if result.step_parts]
    if not records:
        return None
    medians: dict[str, float] = {}
    for name in StepParts.model_fields:
        values = [value for parts in records if isinstance(value := getattr(parts, name), float)]
        if values:
            medians[name] = python_statistics.median(values)
    return records[0].model_copy(update=medians)


def _confusion(results: Sequence[RunResult]) -> list[list[int]] | None:
    """Sum of the confusion matrices. None if there are none, or if they differ in classes, as results of different data do."""
    confusions = [result.confusion for result in results if result.confusion]
    return np.sum(confusions, axis=0).tolist() if len(set(map(len, confusions))) == 1 else None


def _chance_accuracy(confusion: list[list[int]] | None, num_classes: int) -> float | None:
    """Compute `Summary.chance_accuracy`. If the examples of each class are unknown, all classes count as equally frequent."""
    if confusion is not None:
        return majority_accuracy(confusion)
    return 1.0 / num_classes if num_classes > 1 else None


def _expected_idle(spec: Spec) -> float | None:
    if spec.variant not in ("model_parallel", "pipeline", "pipeline_1f1b", "hybrid_pipeline"):
        return None
    return idle_fraction(spec.replicas // spec.data_replicas, spec.micro_batches())


def _epochs(runs: Sequence[list[EpochRecord]]) -> list[EpochMedians]:
    medians: list[EpochMedians] = []
    for index in range(max((len(epochs) for epochs in runs), default=0)):
        records = [epochs[index] for epochs in runs if len(epochs) > index]
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


def _first(results: Sequence[RunResult], pick: Callable[[RunResult], _Value | None]) -> _Value | None:
    return next((value for result in results if (value := pick(result)) is not None), None)


def _largest(results: Sequence[RunResult], pick: Callable[[RunResult], float | None]) -> float | None:
    return max((value for result in results if (value := pick(result)) is not None), default=None)
