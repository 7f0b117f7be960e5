"""Tables on one step: where its time goes, its longest operations, and how near it is to the machine's rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from common.artifacts.results import TRACE_FILE
from compare.judgement.row_figures import Summary
from compare.reporting.figure_tables import figure_table
from compare.reporting.tables import Column, Table, scaled

_MAX_SUM_RATIO = 1.02
"""Largest ratio of parts to their whole without a note. Less is rounding of the medians."""


def step_table(summaries: Sequence[Summary]) -> list[Table]:
    """Parts of the time of a step: one table, or none if no run was profiled."""
    profiled = [(summary, summary.step_parts) for summary in summaries if summary.step_parts]
    if not profiled:
        return []
    piped = any(summary.expected_idle is not None for summary, _ in profiled)
    inseparable = any(parts.not_separable for _, parts in profiled)

    note = (
        f"Medians of {max(parts.steps for _, parts in profiled)} steps each, timed in turn after the training. Step: a whole "
        "one. Compute: a step without exchange, of the slowest replica. Exposed: what a step takes beyond compute. Hidden: "
        "what the exchange alone takes beyond that. Idle: how long a replica waits for the slowest one, in the mean. To "
        "device, forward, backward, optimizer: parts of compute, of the slowest process, timed afterwards. MiB sent: by all "
        "replicas in a step, counted or by formula."
        + " Not separable: why a part that is missing (-) cannot be timed by itself." * inseparable
        + " Idle by formula: of S equal stages and M micro-batches, (S - 1) / (M + S - 1) of the step." * piped
        + "".join(f" {remark}" for remark in _inconsistent_part_remarks(summaries))
    )
    return [figure_table("step_parts", "Where a step's time goes, in milliseconds", summaries, note)]


def _inconsistent_part_remarks(summaries: Sequence[Summary]) -> list[str]:
    """Remarks on rows whose separately timed parts of a step add up to more than the whole."""
    computing: dict[str, float] = {}
    pieces: dict[str, float] = {}
    for summary in summaries:
        if (parts := summary.step_parts) is not None:
            whole = parts.step_seconds if parts.compute_seconds is None else parts.compute_seconds
            part_seconds = (parts.transfer_seconds, parts.forward_seconds, parts.backward_seconds, parts.optimizer_seconds)
            computing[summary.name] = whole / parts.step_seconds
            pieces[summary.name] = sum(seconds for seconds in part_seconds if seconds is not None) / whole
    remarks = (
        ("Compute is longer than the step in", computing, "that is noise, and exposed is told as 0."),
        (
            "Pieces add up to more than compute in",
            pieces,
            "each is waited for by itself, outside the step and at another moment. Read them as shares.",
        ),
    )
    return [f"{what} {rows}: {why}" for what, times, why in remarks if (rows := _rows_above(times, _MAX_SUM_RATIO))]


def operation_tables(summaries: Sequence[Summary]) -> list[Table]:
    """The longest operations of a step: for each mode a table with its frameworks side by side."""
    modes: dict[str, list[Summary]] = {}
    for summary in summaries:
        if summary.top_operations is not None:
            modes.setdefault(summary.configuration, []).append(summary)
    return [_operation_table(mode, mode_summaries) for mode, mode_summaries in modes.items()]


def _operation_table(mode: str, summaries: Sequence[Summary]) -> Table:
    operations = [(summary.contestant, summary.top_operations) for summary in summaries if summary.top_operations]
    columns = [Column("place", "#", pick="0")]
    for side, (contestant, _) in enumerate(operations):
        columns += [
            Column(f"{contestant}_operation", contestant, pick=f"1.{side}.name"),
            Column(f"{contestant}_calls", "calls", 1, pick=f"1.{side}.calls"),
            Column(f"{contestant}_milliseconds", "ms", 2, pick=scaled(1e3, f"1.{side}.self_seconds")),
            Column(f"{contestant}_percent", "%", 1, pick=scaled(100.0, f"1.{side}.share")),
        ]
    notes = [
        "Calls of a step, their self time, and its share of the self time of all operations. Mean of "
        f"{max(top.steps for _, top in operations)} steps after the training under the framework's own profiler, in the first "
        f"process of the first repeat. {TRACE_FILE} of the run has everything that the profiler saw.",
        "Names are each framework's own, and kernels are fused differently: do not compare row with row.",
        *(f"{contestant}: {top.failure}." for contestant, top in operations if top.failure is not None),
    ]
    name = f"operations_{summaries[0].id.removeprefix(f'{summaries[0].contestant}-')}"
    places = enumerate(zip_longest(*(top.operations for _, top in operations)), 1)
    return Table.from_items(name, f"The longest operations of a step: {mode}", columns, places, " ".join(notes))


def limit_table(summaries: Sequence[Summary]) -> list[Table]:
    """Rates of each row beside those of the machine: one table, or none if they were not counted."""
    if not any(summary.limit for summary in summaries):
        return []

    return [figure_table("limit", "Where is the limit?", summaries, _limit_note(summaries))]


def _limit_note(summaries: Sequence[Summary]) -> str:
    limits = {summary.name: summary.limit for summary in summaries if summary.limit and not summary.disturbed}
    rated = [summary for summary in summaries if summary.limit and summary.limit.matrix_fraction is not None]
    if not rated:
        return "Operations and bytes by formula. What these devices can do was not measured."
    note = (
        "Operations (of convolutions and dense layers) and bytes by formula, forward and backward. Rates: NumPy's matrix "
        "product and copy on as many cores of this machine, before the runs."
    )
    if not all((summary.device or "").startswith("cpu") for summary in rated):
        note += " Of a GPU: the framework's own in the run's arithmetic, after its training, times the replicas."
    if above := _rows_above({name: limit.matrix_fraction for name, limit in limits.items()}, 1.0):
        note += (
            f" Above the matrix rate: {above}: the framework's own library is faster than NumPy's or needs fewer "
            "operations than the formula counts, or the machine was busier when its rate was measured."
        )
    if above := _rows_above({name: limit.copy_fraction for name, limit in limits.items()}, 1.0):
        note += f" Above the copy rate: {above}: bytes came from caches, or layers are fused and moved fewer."
    if unrated := [name for name, limit in limits.items() if limit.matrix_fraction is None]:
        note += f" Not measured: {', '.join(unrated)}."
    return note


def _rows_above(times: Mapping[str, float | None], most: float) -> str:
    """The rows above a limit, by name and factor: `pytorch serial, 2 cores (1.25 times)`."""
    return "; ".join(f"{name} ({factor:.2f} times)" for name, factor in times.items() if round(factor or 0.0, 2) > most)
