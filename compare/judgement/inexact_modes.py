"""Modes whose mathematics differ from serial's by design: what differs, and the accuracy they reached."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pydantic import JsonValue

from common.artifacts.schema import RunResult, Staleness
from compare.judgement.row_figures import Summary
from compare.judgement.run_pairs import finished_runs
from compare.judgement.statement import Statement
from compare.results.store import StoredComparison
from compare.running.matrix import Row


def statements(stored: StoredComparison, summaries: Sequence[Summary]) -> list[Statement]:
    """One statement for each row of such a mode that ran, with its accuracy and that of serial."""
    rows = {row.id: row for row in stored.comparison.rows}
    return [
        statement
        for summary in summaries
        if (statement := _statement(stored, rows[summary.id], summary, summaries)) is not None
    ]


def _statement(stored: StoredComparison, row: Row, summary: Summary, summaries: Sequence[Summary]) -> Statement | None:
    difference = row.spec.not_serial_because
    results = list(finished_runs(stored, row).values())
    if difference is None or not results or summary.test.accuracy is None:
        return None
    values: dict[str, JsonValue] = {
        "difference": difference,
        "accuracy": summary.test.accuracy.median,
        "guesses": summary.guesses,
        "serial_accuracy": _serial_accuracy(summary, summaries),
    }
    if staleness := [result.staleness for result in results if result.staleness]:
        values["staleness"] = _staleness(staleness)
    if any(result.members for result in results):
        values["members"] = _members(results)
    return Statement(kind="inexact_mode", level="finding", rows=(row.id,), values=values)


def _serial_accuracy(summary: Summary, summaries: Sequence[Summary]) -> float | None:
    """Serial's accuracy on the same cores, else on others, e.g. beside a run over several hosts. Cores only change rounding."""
    for cores in (summary.cores, None):
        for other in summaries:
            is_serial = other.contestant == summary.contestant and not other.is_parallel and cores in (other.cores, None)
            has_same_input = (other.input, other.workers) == (summary.input, summary.workers)
            if is_serial and has_same_input and other.test.accuracy is not None:
                return other.test.accuracy.median
    return None


def _staleness(records: Sequence[Staleness]) -> dict[str, JsonValue]:
    counts = [0] * max(len(record.counts) for record in records)
    for record in records:
        for late, count in enumerate(record.counts):
            counts[late] += count
    pushes = sum(counts)
    return {
        "mean": sum(late * count for late, count in enumerate(counts)) / pushes if pushes else 0.0,
        "most": max((late for late, count in enumerate(counts) if count), default=0),
        "pushes": pushes,
        "waiting_seconds": statistics.median(record.waiting_seconds for record in records),
    }


def _members(results: Sequence[RunResult]) -> dict[str, JsonValue]:
    records = [result.members for result in results if result.members]
    accuracies = [member.accuracy for record in records for member in record.members]
    return {
        "average": statistics.median(record.average.accuracy for record in records),
        "vote": statistics.median(record.ensemble.accuracy for record in records),
        "least": min(accuracies),
        "most": max(accuracies),
    }
