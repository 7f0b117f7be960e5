"""Results of a comparison: one record for each row, computed once for every table and plot."""

from __future__ import annotations

import math
import statistics as python_statistics
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import combinations
from typing import NamedTuple, TypeVar

import numpy as np

from common.artifacts.schema import EpochRecord, Metrics, Noise, Phases, RunResult, StepParts, TopOperations
from common.frozen import Frozen
from common.machine.interference import DISTURBED_FROM, cores_lost
from common.machine.rates import DeviceRates
from common.models.stages import idle_fraction
from common.spec import Spec
from common.training.loop import relative_difference
from compare.core import wording
from compare.core.statistics import Judged, Ratio, Spread, paired_ratio, pays, spread, spread_with_later, verdicts
from compare.execution import matrix
from compare.execution.matrix import Row
from compare.execution.store import Comparison, Stored

BUDGET_TOLERANCE = 1.05
"""Measured cores over budgeted cores above which a row exceeds its budget. Clocks and start-up blur smaller excesses."""

LEAST_APART_SECONDS = 60.0
"""Least distance of two runs that were not made in turn. Wall times do not include starts of processes and writes."""

_Value = TypeVar("_Value")

FAILURES = ("failed", "diverged", "killed")
UNFINISHED = ("not run", "incomplete")
"""No repeat of the row has a result, or some have none."""

_OF_THE_MODE = ("mode", "replicas", "cores", "hosts", "parameter_server", "pipeline", "hybrid")
"""Fields of a spec that may differ between a row and its serial row."""


class Scores(Frozen):
    """Final scores of one split over the repeats."""

    accuracy: Spread | None
    loss: Spread | None


class Epoch(Frozen):
    """Medians of one epoch over the repeats; `n` repeats reached it."""

    epoch: int
    train_loss: float | None
    train_accuracy: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    seconds: float | None
    n: int


class Target(Frozen):
    """How soon a validation accuracy was reached."""

    accuracy: float
    reached: int
    """Repeats that reached it."""
    repeats: int
    """Repeats that were made, including those that diverged or failed. Without these, the luckier ones would pass for all."""
    seconds: Spread | None
    """Training time until then, with the first step, without evaluation, over all repeats. Repeats that did not reach it count
    as later than all others. None if that leaves a quantile open. Else a few quick repeats would pass for all."""
    epochs: Spread | None


class Limit(Frozen):
    """How near a row came to the limits of the machine. Fractions are None if its rates are unknown."""

    gflop_per_image: float
    mb_per_image: float
    """Read and written, by formula, in units of 1e6 bytes."""
    gflops: float
    """Done per second."""
    matrix_fraction: float | None
    """Fraction of the rate that the row's cores reach in matrix products of its precision."""
    gb_per_second: float
    """Moved per second, if nothing came from a cache."""
    copy_fraction: float | None
    """Fraction of the rate that its cores reach in copies of memory. Above 1 if caches serve."""


class Summary(Frozen):
    """One row: its configuration, its results, and how it compares."""

    id: str
    contestant: str
    mode: str
    implementation: str | None
    device: str | None
    replicas: int
    part: str
    input: str
    workers: int
    cores: int
    cores_used: float | None
    """CPU seconds over wall seconds in training. The largest of the repeats, because each must keep the budget."""
    cores_lost: float | None
    """Cores of its budget that other work took during training. The largest of the repeats."""
    precision: str
    switches: str
    """Their level, and those that the spec names: `fair`, or `best: arithmetic=bfloat16`."""
    status: str
    """The worst status of the repeats: one of RunResult's, `not run` or `incomplete`."""
    reason: str | None
    repeats_done: int
    repeats: int
    epochs_done: int
    steps: int | None
    timed_steps: int | None
    """The fewest of the repeats."""
    steps_needed: int
    images: int | None
    """Trained on, over all epochs of one run."""
    train: Scores
    validation: Scores
    test: Scores
    epoch_seconds: Spread | None
    """Over repeats, of `epoch_seconds`: steps without the run's first, evaluation apart."""
    images_per_second: Spread | None
    wall_seconds: Spread | None
    phases: Phases | None
    """Of the repeat with the median wall time, so that they add up."""
    bytes_per_step: float | None
    """Sent by all replicas together, by formula."""
    step_parts: StepParts | None
    """Median of each part over the repeats. None if the run was not profiled."""
    top_operations: TopOperations | None
    """Of the first repeat. None if the run was not profiled."""
    expected_idle: float | None
    """Of synchronous pipelines: the part of a step, 0..1, that one of several equal stages waits, by formula."""
    speedup_one_core: Ratio | None
    """Epoch seconds of serial on one core over this row's."""
    speedup_same_cores: Ratio | None
    """Epoch seconds of serial on the same cores over this row's."""
    parallel_efficiency: float | None
    """Speed-up over the ratio of resources: cores against one core; on accelerators, replicas against one device."""
    pays: str | None
    """For parallel modes: whether it beats serial on the same cores. Judged with all other comparisons, see `family`."""
    peak_memory_pss_mib: float | None
    peak_memory_mib: float | None
    device_peak_memory_mib: float | None
    parity: str
    first_step_loss: float | None
    first_step_difference: float | None
    """Largest relative difference of the first loss to the other frameworks' rows of the same configuration and seed."""
    epochs: list[Epoch]
    seeds: int
    """Number of different seeds of the repeats."""
    test_accuracy_over_seeds: Spread | None
    """Of the medians of the seeds: each seed is one sample. None for a single seed."""
    target: Target | None
    noise: Noise | None
    """The worst of the repeats: highest loads and stolen time, lowest clocks."""
    limit: Limit | None
    confusion: list[list[int]] | None = None
    """Of the test split, summed over the repeats: rows are the true class, columns the predicted one."""
    shares_name: bool = False
    """Whether another row would have the same name, e.g. a row with another batch. Then the id is its name."""

    @property
    def name(self) -> str:
        """The row for a reader: `pytorch serial, 1 core` or `tensorflow data_parallel x2`."""
        if self.shares_name:
            return self.id
        kind = f"{'Dask ' if self.input == 'dask' else ''}worker{'s' if self.workers > 1 else ''}"
        return self.fed_name if self.input == "inline" else f"{self.fed_name}, {self.workers} {kind}"

    @property
    def configuration(self) -> str:
        """The part of the name that the same rows of other frameworks share: `serial, 1 core`."""
        return self.name.removeprefix(self.contestant).lstrip(" -")

    @property
    def fed_name(self) -> str:
        """The part of the name that its rows with other numbers of input workers share."""
        if self.mode == "serial":
            return f"{self.contestant} serial, {wording.count(self.cores, 'core')}"
        return f"{self.contestant} {self.mode} x{self.replicas}"

    @property
    def input_wait(self) -> float | None:
        """The part of its training time, 0..1, that the loop waited for its next batch."""
        if self.phases is None or not self.phases.training_seconds:
            return None
        return self.phases.input_wait_seconds / self.phases.training_seconds

    @property
    def exceeds_budget(self) -> bool:
        return self.cores_used is not None and self.cores_used > self.cores * BUDGET_TOLERANCE

    @property
    def oversubscribed(self) -> bool:
        return oversubscribed(self.replicas, self.cores, self.device)

    @property
    def too_short(self) -> bool:
        return self.timed_steps is not None and self.timed_steps < self.steps_needed

    @property
    def stolen(self) -> bool:
        """Whether a hypervisor took so much of the machine that no time of the row is reliable."""
        return self.noise is not None and (self.noise.cores_stolen or 0.0) > DISTURBED_FROM

    @property
    def disturbed(self) -> bool:
        return self.stolen or (self.cores_lost is not None and self.cores_lost > DISTURBED_FROM)

    @property
    def unwatched(self) -> bool:
        """Whether it was too short to tell whether other work disturbed it."""
        return bool(self.repeats_done) and self.part == "training" and self.cores_used is None

    @property
    def in_doubt(self) -> bool:
        """Whether no time of it is reliable, for any of these reasons."""
        return self.disturbed or self.too_short or self.unwatched


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
    found = [_summary(row, stored) for row in stored.comparison.rows]
    named = Counter(summary.name for summary in found)
    made = [summary.model_copy(update={"shares_name": named[summary.name] > 1}) for summary in found]
    modes = family(stored, made).modes
    return [summary.model_copy(update={"pays": pays(modes.get(summary.id))}) for summary in made]


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
    judged = verdicts([*((f"{first.id} against {second.id}", ratio) for first, second, ratio in pairs), *modes])
    contestants = [(first, second, each) for (first, second, _), each in zip(pairs, judged, strict=False)]
    return Family(contestants, {each.name: each for each in judged[len(pairs) :]})


def measured(stored: Stored, row: Row) -> dict[int, RunResult]:
    """The repeats of a row that ended well. The others are reported apart and never averaged in."""
    return {repeat: result for repeat, result in stored.runs[row.id].items() if result.status in ("ok", "not parallel")}


def epoch_seconds(result: RunResult) -> float:
    """Median over the run's epochs, each at the pace of its timed steps.

    A run of the input alone may have epochs of few batches. It is taken at the pace of all its steps together.
    """
    if result.spec.part != "input":
        return spread_median([epoch.seconds for epoch in result.epochs])
    images = sum(epoch.timed_images for epoch in result.epochs)
    seconds = sum(epoch.timed_seconds for epoch in result.epochs)
    return result.epochs[0].epoch_images * seconds / images if images else float("nan")


def images_per_second(result: RunResult) -> float:
    """The images of an epoch over its `epoch_seconds`, so that ratios of the one are those of the other."""
    return result.epochs[0].epoch_images / epoch_seconds(result)


def switches_words(run: Spec) -> str:
    """The level of a run's switches, and those that its spec names."""
    named = ", ".join(f"{name}={value}" for name, value in run.framework_options.items())
    return f"{run.switches}: {named}" if named else run.switches


def steps_needed(run: Spec) -> int:
    """Timed steps below which the pace of the input alone is not reliable: several times the batches made ahead."""
    return 4 * max(run.batches_ahead, 1) if run.part == "input" else 0


def _timed_steps(result: RunResult) -> int:
    return sum(epoch.timed_steps for epoch in result.epochs)


def spread_median(values: Sequence[float]) -> float:
    """Median of the finite values. NaN if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return python_statistics.median(finite) if finite else float("nan")


def _summary(row: Row, stored: Stored) -> Summary:
    comparison = stored.comparison
    results = [stored.runs[row.id][repeat] for repeat in sorted(stored.runs[row.id])]
    good = list(measured(stored, row).values())
    rates = [images_per_second(result) for result in good]
    shown = good or results
    status, reason = _status(row, results, comparison.repeats, stored.torn.get(row.id, 0))
    one_core = _speedup(stored, serial_of(comparison, row, cores=1), row)
    same_cores = _speedup(stored, serial_of(comparison, row), row)
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
        cores_used=max((result.cores_used for result in good if result.cores_used is not None), default=None),
        cores_lost=max((lost for result in good if (lost := _cores_lost(result)) is not None), default=None),
        precision=row.spec.precision,
        switches=switches_words(row.spec),
        status=status,
        reason=reason,
        repeats_done=len(good),
        repeats=comparison.repeats,
        epochs_done=max((len(result.epochs) for result in shown), default=0),
        steps=_first(good, lambda result: sum(epoch.steps for epoch in result.epochs)),
        timed_steps=min(map(_timed_steps, good), default=None),
        steps_needed=steps_needed(row.spec),
        images=_first(good, lambda result: sum(epoch.images for epoch in result.epochs)),
        train=_scores(good, lambda result: result.epochs[-1].train if result.epochs else None),
        validation=_scores(good, lambda result: result.epochs[-1].validation if result.epochs else None),
        test=_scores(good, lambda result: result.test),
        epoch_seconds=spread([epoch_seconds(result) for result in good]),
        images_per_second=spread(rates),
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
        confusion=_confusion(good),
    )


def _cores_lost(result: RunResult) -> float | None:
    """Cores of the run's CPUs that others took. For earlier results: those used beyond the cores left to others."""
    if result.noise and result.noise.cores_taken is not None:
        return result.noise.cores_taken
    if result.cores_of_others is None or not result.machine.get("logical_cores"):
        return None
    return cores_lost(result.cores_of_others, result.spec.cores, result.machine)


def times_in_doubt(result: RunResult) -> bool:
    """Whether other work took cores of a run's budget while it trained, or the run was too short to tell."""
    unwatched = result.spec.part == "training" and result.cores_used is None
    taken = (_cores_lost(result), result.noise.cores_stolen if result.noise else None)
    return unwatched or any((cores or 0.0) > DISTURBED_FROM for cores in taken)


def _status(row: Row, results: Sequence[RunResult], repeats: int, torn: int) -> tuple[str, str | None]:
    if row.unavailable:
        status, _, reason = row.unavailable.partition(": ")
        return status, reason
    bad = [result for result in results if result.status != "ok"]
    for status in (*FAILURES, "not available", "not parallel"):
        found = [result for result in bad if result.status == status]
        if found:
            which = f"{len(found)} of {repeats} repeats: " if repeats > 1 else ""
            return status, f"{which}{found[0].reason or 'no reason given'}"
    if (absent := repeats - len(results)) > 0:
        found = (("without a result", absent - torn), ("with a torn result", torn))
        reason = ", ".join(f"{number} of {repeats} repeats {what}" for what, number in found if number)
        return "incomplete" if results else "not run", reason
    return "ok", None


def serial_of(comparison: Comparison, row: Row, *, cores: int | None = None, batch: int | None = None) -> Row | None:
    """The row that this one's speed-up is relative to: the same work in serial.

    Args:
        comparison: of the row.
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
    return paired_ratio(pairs_of_seconds(stored, slow, fast))


def pairs_of_seconds(stored: Stored, slow: Row, fast: Row) -> list[tuple[float, float]]:
    """Epoch seconds of two rows, repeat by repeat. See `comparable` for the runs that count.

    Two runs that were not made in turn are no pair, see `seconds_apart`: they did not meet the same machine.
    """
    ours, theirs = comparable(stored, fast), comparable(stored, slow)
    both = [
        repeat
        for repeat in sorted(ours.keys() & theirs.keys())
        if not seconds_apart(stored, repeat, (ours[repeat], theirs[repeat]))
    ]
    return [(epoch_seconds(theirs[repeat]), epoch_seconds(ours[repeat])) for repeat in both]


def seconds_apart(stored: Stored, repeat: int, runs: Sequence[RunResult]) -> float:
    """Seconds between the first and the last start of a repeat's runs. 0 if they were made in turn.

    In turn means: within twice the time that all runs of the repeat take. That leaves room for a run that hung. A run that
    `--resume` repeated hours later was not made in turn. Runs that recorded no time count as made in turn.
    """
    begun = [datetime.fromisoformat(run.started_at) for run in runs if run.started_at is not None]
    seconds = (max(begun) - min(begun)).total_seconds() if begun else 0.0
    return seconds if seconds > LEAST_APART_SECONDS + 2.0 * stored.wall_seconds.get(repeat, 0.0) else 0.0


def comparable(stored: Stored, row: Row) -> dict[int, RunResult]:
    """The repeats of a row whose seconds may stand in a ratio: they were parallel as asked and long enough."""
    return {
        repeat: result
        for repeat, result in measured(stored, row).items()
        if result.status == "ok" and _timed_steps(result) >= steps_needed(row.spec)
    }


def oversubscribed(replicas: int, cores: int, device: str | None) -> bool:
    """More replicas than cores, on a machine whose only devices are its cores."""
    return replicas > cores and (device or "").startswith("cpu")


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
    return comparison.proof.mode_verdicts.get(row.contestant, {}).get(row.spec.variant, "not claimed")


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


def until_accuracy(result: RunResult, accuracy: float) -> tuple[float, int] | None:
    """Training seconds and epochs until the validation accuracy first reached `accuracy`. None if it never did.

    The first step of each process until then counts. Evaluation does not.
    """
    recorded = any(epoch.first_step_seconds is not None for epoch in result.epochs)  # not in results of earlier versions
    seconds = result.phases.first_step_seconds if result.phases and not recorded else 0.0
    for epoch in result.epochs:
        seconds += epoch.timed_seconds + (epoch.first_step_seconds or 0.0)
        if epoch.validation is not None and epoch.validation.accuracy >= accuracy:
            return seconds, epoch.epoch
    return None


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


def limit(
    comparison: Comparison, run: Spec, device: str | None, rate: float, device_rates: DeviceRates | None = None
) -> Limit | None:
    """How near a run came to the limits of the machine.

    Args:
        comparison: with the model's work and the machine's rates.
        run: what was run.
        device: it ran on. The comparison's rates are those of the CPU.
        rate: images per second that it trained on. NaN if unknown.
        device_rates: of one of its accelerators. Each replica has one.
    """
    work = comparison.work
    if work is None or run.part == "input" or not math.isfinite(rate):
        return None
    on_cpu = (device or "").startswith("cpu") and not run.hosts
    machine = comparison.rates.get(run.cores) if on_cpu else None
    gflop, gb = 1e-9 * work.flops, 1e-9 * work.bytes_moved(run)
    matrix = copy = None
    if machine:
        matrix, copy = machine.gflops(run.precision), machine.copy_gb_per_second
    elif device_rates:
        matrix, copy = (run.replicas * rate for rate in (device_rates.matrix_gflops, device_rates.copy_gb_per_second))
    return Limit(
        gflop_per_image=gflop,
        mb_per_image=1e3 * gb,
        gflops=gflop * rate,
        matrix_fraction=gflop * rate / matrix if matrix else None,
        gb_per_second=gb * rate,
        copy_fraction=gb * rate / copy if copy else None,
    )


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
    found = [result.confusion for result in results if result.confusion]
    return np.sum(found, axis=0).tolist() if found else None


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
