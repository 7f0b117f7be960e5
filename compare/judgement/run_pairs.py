"""The runs of rows that count, alone and in pairs, and the serial row that a row's speed-up is relative to."""

from __future__ import annotations

import statistics as python_statistics
from collections.abc import Iterable, Sequence
from datetime import datetime

from common.artifacts.schema import INTERRUPTED, RunResult
from compare.judgement import slices
from compare.judgement.run_figures import disturbing_cores, epoch_seconds, steps_needed, timed_steps
from compare.results import store
from compare.results.store import Comparison, StoredComparison
from compare.running.matrix import Row
from compare.statistics.statistics import Ratio, paired_ratio

MIN_GAP_SECONDS = 60.0
"""Most seconds between the starts of two runs that count as interleaved whatever their wall times. Wall times do not
include starts of processes and writes."""


def finished_runs(stored: StoredComparison, row: Row) -> dict[int, RunResult]:
    """Runs of a row that finished with all their replicas, by repeat. Others are reported separately and never averaged in."""
    return {
        repeat: result
        for repeat, result in stored.runs[row.id].items()
        if result.status in store.FINISHED and not any(death.replicas for death in result.restarts)
    }


def undisturbed_runs(stored: StoredComparison, row: Row) -> dict[int, RunResult]:
    """Finished runs of a row, by repeat. A rerun repeat gives its first undisturbed run, see `pairs_of_runs` for the reason.

    In comparisons with other results, a row has no partner in its own repeat.
    """
    reruns = {
        repeat: next((run for runs in numbers.values() if (run := runs.get(row.id)) and not disturbing_cores(run)), None)
        for repeat, numbers in stored.replaced.items()
    }
    return dict(sorted({**finished_runs(stored, row), **{repeat: run for repeat, run in reruns.items() if run}}.items()))


def comparable_runs(stored: StoredComparison, row: Row) -> dict[int, RunResult]:
    """Runs of a row, by repeat, whose times may be compared with those of another comparison."""
    return {repeat: result for repeat, result in undisturbed_runs(stored, row).items() if _is_comparable(result)}


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
    size = cores or row.spec.cores, batch or row.spec.global_batch_size
    for other in comparison.rows:
        if (
            other.contestant == row.contestant
            and not other.spec.is_parallel
            and (other.spec.cores, other.spec.global_batch_size) == size
            and not other.spec.differs(row.spec, in_="serial_run", excluded=("global_batch_size",))
        ):
            return other
    return None


def uses_accelerator(device: str | None) -> bool:
    """Whether each replica has a device of its own instead of a share of the cores."""
    return device is not None and not device.startswith("cpu")


def ratio_of_seconds(stored: StoredComparison, slow: Row, fast: Row) -> Ratio | None:
    """Epoch seconds of one row over another's, paired by repeat. None if there is no pair."""
    return paired_ratio(list(pairs_of_seconds(stored, slow, fast).values()))


def pairs_of_seconds(stored: StoredComparison, slow: Row, fast: Row) -> dict[int, tuple[float, float]]:
    """Epoch seconds of two rows, by repeat. See `pairs_of_runs` for the runs that count. Rows of other data have no pairs.

    If the runs took turns, the first value is the second one times the ratio of their slices, see `judgement.slices`.
    """
    if {slow.id, fast.id} & stored.other_data:
        return {}
    return {
        repeat: _seconds_of_pair(*pairs[0])
        for repeat in sorted({*stored.wall_seconds, *stored.replaced})
        if (pairs := pairs_of_runs(stored, repeat, slow, fast)[0])
    }


def _seconds_of_pair(slow: RunResult, fast: RunResult) -> tuple[float, float]:
    """Epoch seconds of two runs. If they took turns, their ratio is that of their slices."""
    ratio = slices.ratio(slow, fast)
    seconds = epoch_seconds(fast)
    return (epoch_seconds(slow) if ratio is None else ratio * seconds), seconds


def pairs_of_runs(
    stored: StoredComparison, repeat: int, slow: Row, fast: Row
) -> tuple[list[tuple[RunResult, RunResult]], list[tuple[RunResult, RunResult]]]:
    """The runs of two rows in one repeat, in pairs that were made in turn.

    `--again disturbed` makes a repeat again, with all rows. The first pair counts that has no disturbed run, whatever its
    times. Otherwise a command that a disturbed third row allows would judge this pair a second time. Without such a pair,
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


def _is_comparable(run: RunResult) -> bool:
    """Whether a run's seconds may be part of a ratio: it was parallel as its spec says, and long enough."""
    return run.status == "ok" and timed_steps(run) >= steps_needed(run.spec)
