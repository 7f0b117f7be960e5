"""Modes whose mathematics differ from serial's by design: what differs, and the accuracy they reached."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from common.artifacts.schema import RunResult, Staleness
from compare.execution.matrix import Row
from compare.execution.store import Stored
from compare.judgement.row_figures import GUESSING, Summary
from compare.judgement.summary import measured


def sentences(stored: Stored, summaries: Sequence[Summary]) -> list[str]:
    """One sentence for each such row that ran, with its accuracy and that of serial."""
    rows = {row.id: row for row in stored.comparison.rows}
    return [
        sentence for summary in summaries if (sentence := _sentence(stored, rows[summary.id], summary, summaries)) is not None
    ]


def _sentence(stored: Stored, row: Row, summary: Summary, summaries: Sequence[Summary]) -> str | None:
    departs = row.spec.departs
    results = list(measured(stored, row).values())
    if departs is None or not results or summary.test.accuracy is None:
        return None
    reached = f"{summary.test.accuracy.median:.4f}{f' ({GUESSING})' if summary.guesses else ''}"
    parts = [f"{departs}: test accuracy {reached}{_beside_serial(summary, summaries)}"]
    if found := [result.staleness for result in results if result.staleness]:
        parts.append(_staleness(found))
    if any(result.members for result in results):
        parts.append(_members(results))
    return f"{summary.name}: {'; '.join(parts)}."


def _beside_serial(summary: Summary, summaries: Sequence[Summary]) -> str:
    """Serial's accuracy on the same cores, else on others, e.g. beside a run over several hosts. Cores only change rounding."""
    for cores in (summary.cores, None):
        for other in summaries:
            alike = (other.contestant, other.mode) == (summary.contestant, "serial") and cores in (other.cores, None)
            fed = (other.input, other.workers) == (summary.input, summary.workers)
            if alike and fed and other.test.accuracy is not None:
                return f", serial's {other.test.accuracy.median:.4f}"
    return ""


def _staleness(found: Sequence[Staleness]) -> str:
    counts = [0] * max(len(each.counts) for each in found)
    for each in found:
        for late, count in enumerate(each.counts):
            counts[late] += count
    pushes = sum(counts)
    mean = sum(late * count for late, count in enumerate(counts)) / pushes if pushes else 0.0
    most = max((late for late, count in enumerate(counts) if count), default=0)
    waiting = statistics.median(each.waiting_seconds for each in found)
    return (
        f"gradients late by {mean:.2f} updates in the mean and {most} at most, over {pushes} pushes; {waiting:.2f} s of waiting"
    )


def _members(results: Sequence[RunResult]) -> str:
    found = [result.members for result in results if result.members]
    average = statistics.median(each.average.accuracy for each in found)
    vote = statistics.median(each.ensemble.accuracy for each in found)
    alone = [member.accuracy for each in found for member in each.members]
    return f"the average of the members {average:.4f}, their vote {vote:.4f}, each alone {min(alone):.4f} to {max(alone):.4f}"
