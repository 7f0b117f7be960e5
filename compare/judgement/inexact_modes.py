"""Modes whose mathematics differ from serial's by design: what differs, and the accuracy they reached."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from common.artifacts.schema import RunResult, Staleness
from compare.execution.matrix import Row
from compare.execution.store import StoredComparison
from compare.judgement.row_figures import GUESSING, Summary
from compare.judgement.run_pairs import finished_runs


def sentences(stored: StoredComparison, summaries: Sequence[Summary]) -> list[str]:
    """One sentence for each row of such a mode that ran, with its accuracy and that of serial."""
    rows = {row.id: row for row in stored.comparison.rows}
    return [
        sentence for summary in summaries if (sentence := _sentence(stored, rows[summary.id], summary, summaries)) is not None
    ]


def _sentence(stored: StoredComparison, row: Row, summary: Summary, summaries: Sequence[Summary]) -> str | None:
    difference = row.spec.not_serial_because
    results = list(finished_runs(stored, row).values())
    if difference is None or not results or summary.test.accuracy is None:
        return None
    reached = f"{summary.test.accuracy.median:.4f}{f' ({GUESSING})' if summary.guesses else ''}"
    parts = [f"{difference}: test accuracy {reached}{_beside_serial(summary, summaries)}"]
    if staleness := [result.staleness for result in results if result.staleness]:
        parts.append(_staleness(staleness))
    if any(result.members for result in results):
        parts.append(_members(results))
    return f"{summary.name}: {'; '.join(parts)}."


def _beside_serial(summary: Summary, summaries: Sequence[Summary]) -> str:
    """Serial's accuracy on the same cores, else on others, e.g. beside a run over several hosts. Cores only change rounding."""
    for cores in (summary.cores, None):
        for other in summaries:
            is_serial = other.contestant == summary.contestant and not other.is_parallel and cores in (other.cores, None)
            has_same_input = (other.input, other.workers) == (summary.input, summary.workers)
            if is_serial and has_same_input and other.test.accuracy is not None:
                return f", serial's {other.test.accuracy.median:.4f}"
    return ""


def _staleness(records: Sequence[Staleness]) -> str:
    counts = [0] * max(len(record.counts) for record in records)
    for record in records:
        for late, count in enumerate(record.counts):
            counts[late] += count
    pushes = sum(counts)
    mean = sum(late * count for late, count in enumerate(counts)) / pushes if pushes else 0.0
    most = max((late for late, count in enumerate(counts) if count), default=0)
    waiting = statistics.median(record.waiting_seconds for record in records)
    return (
        f"gradients late by {mean:.2f} updates in the mean and {most} at most, over {pushes} pushes; {waiting:.2f} s of waiting"
    )


def _members(results: Sequence[RunResult]) -> str:
    records = [result.members for result in results if result.members]
    average = statistics.median(record.average.accuracy for record in records)
    vote = statistics.median(record.ensemble.accuracy for record in records)
    accuracies = [member.accuracy for record in records for member in record.members]
    alone = f"{min(accuracies):.4f} to {max(accuracies):.4f}"
    return f"the average of the members {average:.4f}, their vote {vote:.4f}, each alone {alone}"
