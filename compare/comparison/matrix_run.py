"""`convtwins run` with several models, data or the like: one comparison after the other, in one folder and one report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from common.artifacts import records
from common.errors import UserError
from common.machine import machine
from common.processes import signals
from compare.cli import wording
from compare.cli.commands import Invocation
from compare.cli.interrupt import SIGNAL_EXIT_BASE, Interrupted, interruptible
from compare.comparison import comparison_plan, estimate
from compare.comparison.comparison_plan import ComparisonRequest
from compare.comparison.finished import FinishedWork
from compare.comparison.other_machines import other_machines
from compare.reporting import matrix_report
from compare.reporting.document import Report
from compare.reporting.tables import Column, Table
from compare.results import cells, store
from compare.results.cells import Cell, MatrixPlan
from compare.results.workspace import FolderKind, Workspace
from compare.running import axes, code_digest
from compare.running.twins import Twins

RunCell = Callable[[ComparisonRequest, Path], object]


def build_plan(requests: Sequence[tuple[dict[str, str], ComparisonRequest]], on: str | None = None) -> MatrixPlan:
    """Build the plan of a matrix from (labels of a cell, its request).

    Args:
        on: see `MatrixPlan.on`. Then a single comparison makes a matrix too, of one cell.
    """
    if on is not None:
        other_machines().check_rows([request for _, request in requests])
    first = requests[0][1]
    first.settings.check_repeats()
    cell_rows = [list(request.rows) for _, request in requests]
    cell_labels = [
        labels or {axes.AXES["model"]: rows[0].spec.model} for (labels, _), rows in zip(requests, cell_rows, strict=True)
    ]
    names = axes.names(cell_labels)
    return MatrixPlan(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=list(first.argv),
        code_hash=code_digest.compute(first.twins.contestants, cell_rows[0][0].spec.model),
        # Whichever machine waits for the jobs makes no run.
        machine=machine.describe() if on is None else {},
        cells=[
            Cell(name=name, labels=labels, rows=rows) for name, labels, rows in zip(names, cell_labels, cell_rows, strict=True)
        ],
        settings=first.settings.updated(contestants=tuple(first.twins.definitions)),
        on=on,
    )


def run_all(
    new_plan: MatrixPlan,
    folder: Path,
    run_cell: RunCell,
    on_received: Callable[[Path], object],
) -> FinishedWork:
    """Run every comparison of a matrix that has not ended yet, and make one report. A refused one does not stop the others.

    Args:
        run_cell: runs one comparison in its folder, see `run.run_nested`.
        on_received: called with the folder of each comparison that other machines have run.
    """
    code = 0
    if new_plan.on is not None:
        other_machines().check_can_submit(new_plan)
    with interruptible(), Workspace.open(folder, MATRIX) as workspace:
        plan = workspace.claim(new_plan)
        store.refuse_links(folder, [cell.name for cell in plan.cells])
        try:
            if plan.on is None:
                _run_cells(plan, folder, run_cell)
            else:
                other_machines().run_cells(plan, folder, on_received)
        except Interrupted as interruption:
            code = interruption.exit_code
        with signals.record_signals() as late_signals:
            report = matrix_report.report(matrix_report.read(folder), folder)
            unwritten = report.write(folder)
    code = code or (SIGNAL_EXIT_BASE + late_signals[0] if late_signals else 0)
    return FinishedWork(report=report, folder=folder, code=code, unwritten=unwritten)


def _run_cells(plan: MatrixPlan, folder: Path, run_cell: RunCell) -> None:
    """Run the cells one after the other, and record which were refused."""
    has_started, refusal, twins = False, None, _twins(plan)
    for number, cell in enumerate(plan.cells):
        typer.echo(f"Comparison {number + 1} of {len(plan.cells)}: {cell.name}", err=True)
        request = comparison_plan.request_for_rows(cell.rows, plan, folder / cell.name, twins=twins)
        failure = None
        try:
            run_cell(request, folder / cell.name)
            has_started = True
        except UserError as error:
            refusal, failure = error, str(error)
            typer.echo(f"{cell.name} is left out: {failure}", err=True)
        updated_cells = [*plan.cells]
        updated_cells[number] = cell.model_copy(update={"failure": failure})
        plan = plan.model_copy(update={"cells": updated_cells})
        records.write(folder / cells.PLAN_FILE, plan)
    if refusal is not None and not has_started:
        (folder / cells.PLAN_FILE).unlink()
        raise refusal


def stored_plan(folder: Path, repeats: int | None) -> MatrixPlan:
    """Return the plan of a stored matrix, to continue it."""
    plan = cells.read(folder)
    comparison_plan.refuse_fewer(repeats, plan.settings.repeats, folder)
    comparison_plan.check_contestants(plan.settings.contestants, folder)
    return plan.model_copy(update={"settings": plan.settings.updated(repeats=repeats)})


def rehearse(
    plan: MatrixPlan, out: Path | None, invocation: Invocation, *, times_from: Path | None, again: bool = False
) -> Report | int:
    """Estimate time and disk of the remaining runs of every comparison. Starts none of them."""
    MATRIX.check(out, plan.identity())
    if plan.on is not None:
        return other_machines().rehearse(plan, out or store.new_folder(cells.KIND), as_json=invocation.as_json)
    estimate.announce_measurement(times_from)
    reports: dict[str, Report] = {}
    refusals: dict[str, str] = {}
    twins = _twins(plan)
    for cell in plan.cells:
        cell_folder = out / cell.name if out and (out / cell.name / store.PLAN_FILE).exists() else None
        try:
            request = comparison_plan.request_for_rows(cell.rows, plan, cell_folder, twins=twins)
            reports[cell.name] = estimate.rehearsal_report(replace(request, again=again), invocation.progress, times_from)
        except UserError as error:
            refusals[cell.name] = str(error)
    rows: list[dict[str, Any]] = [{"cell": name, **estimate.totals(report.values)} for name, report in reports.items()]
    total: dict[str, Any] = {key: sum(row[key] or 0 for row in rows) for key in ("runs", "seconds", "proof_seconds", "mib")}
    runs = f"{wording.count(total['runs'], 'run')} in {wording.count(len(reports), 'comparison')}"
    unknown = sum(report.values["unknown"] for report in reports.values())
    total_time = wording.clock_words(total["seconds"] + total["proof_seconds"])
    return estimate.dry_run_report(
        left_out=("Refused", [f"{name}: {why}" for name, why in refusals.items()]),
        sentences=[
            f"{runs}: {estimate.time_words(total['seconds'], unknown)}; {total['mib']:.1f} MiB of disk. With the proofs: about "
            f"{total_time} min.",
            "Each comparison is proved by itself, unless its proof is remembered.",
        ],
        table=Table("dry_run", "Comparisons, in this order", _REHEARSED_COLUMNS, rows),
        values={"cells": {name: report.values for name, report in reports.items()}, "refused": refusals, **total},
        has_failed=bool(refusals) or any(report.exit_code for report in reports.values()),
    )


_REHEARSED_COLUMNS = (
    Column("cell", "comparison"),
    Column("runs", "runs"),
    Column("seconds", "seconds", 0),
    Column("proof_seconds", "seconds of the proof", 0),
    Column("mib", "MiB", 1),
)


def _twins(plan: MatrixPlan) -> Twins:
    """Return the contestants of all comparisons. The rows of each comparison have all of them."""
    return Twins(dict.fromkeys(row.contestant for row in plan.cells[0].rows), plan.settings.contestants)


def _has_started(folder: Path) -> bool:
    return any(folder.glob(f"*/{store.PLAN_FILE}")) or any(folder.glob(f"{cells.JOBS_FOLDER}/*"))


MATRIX = FolderKind(noun=cells.KIND, file=cells.PLAN_FILE, kind=cells.KIND, record=MatrixPlan, has_started=_has_started)
