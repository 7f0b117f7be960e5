"""`convtwins run` with several models, data or the like: one comparison after the other, in one folder and one report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import typer

from common.artifacts import records
from common.data.sources import DataRefused
from common.machine import machine
from common.processes import signals
from common.spec import SpecError
from compare.cluster import jobs
from compare.comparison import comparison_plan, estimate, spread
from compare.comparison.comparison_plan import Request
from compare.core import exits, wording
from compare.core.errors import FolderError, LaunchError
from compare.core.interrupt import SIGNALLED, Interrupted, interruptible
from compare.execution import cells, code_digest, contestants, results_folder, store
from compare.execution.cells import Cell, MatrixPlan
from compare.reporting import matrix_report
from compare.reporting.document import Report
from compare.reporting.tables import Column, Table

Within = Callable[[Request, Path], object]
_REFUSALS = (SpecError, DataRefused, LaunchError, FolderError)


def planned(requests: Sequence[tuple[dict[str, str], Request]], on: str | None = None) -> MatrixPlan:
    """The plan of these comparisons, by the labels of their cells.

    Args:
        on: see `MatrixPlan.on`. Then a single comparison makes a matrix too, of one cell.

    Raises:
        SpecError: a row of one is refused.
    """
    if on is not None:
        spread.check_rows([request for _, request in requests])
    first = requests[0][1]
    comparison_plan.check_repeats(first.settings)
    laid_out = [request.lay_out(request.settings, request.frameworks) for _, request in requests]
    labelled = [
        labels or {cells.AXES["model"]: rows[0].spec.model} for (labels, _), rows in zip(requests, laid_out, strict=True)
    ]
    names = cells.names(labelled)
    return MatrixPlan(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=list(first.argv),
        code_hash=code_digest.of(first.frameworks, laid_out[0][0].spec.model),
        # Whichever machine waits for the jobs makes no run.
        machine=machine.describe() if on is None else {},
        cells=[Cell(name=name, labels=own, rows=rows) for name, own, rows in zip(names, labelled, laid_out, strict=True)],
        repeats=first.settings.repeats,
        seeds=list(first.settings.seeds),
        until=first.settings.until,
        contestants=contestants.entered(first.frameworks),
        prove=first.prove,
        oversubscribe=first.oversubscribe,
        restarts=first.restarts,
        target_accuracy=first.target_accuracy,
        on=on,
    )


def run_all(
    wanted: MatrixPlan,
    folder: Path,
    within: Within,
    deliver: Callable[[Report, Path], int],
    *,
    live: bool = False,
    received: Callable[[Path], object] = lambda folder: None,
) -> int:
    """Run every comparison of a matrix that has not ended yet, and make one report. A refused one does not stop the others.

    Args:
        within: runs one comparison in its folder, see `run.within`.
        deliver: writes the report to the folder. Returns the exit code.
        received: called with the folder of each comparison that other machines have run.

    Returns:
        The exit code: 0; 1 if a run failed or a comparison was refused; 130 or 143 if it was interrupted.

    Raises:
        SpecError, DataRefused, LaunchError, FolderError: no comparison could begin.
    """
    code = 0
    if wanted.on is not None:
        spread.refuse_unready(wanted)
    with (
        interruptible(),
        results_folder.claimed(
            folder,
            cells.PLAN_FILE,
            wanted,
            cells.KIND,
            identity=_identity,
            merge=_merged,
            is_begun=partial(_is_begun, folder),
        ) as plan,
    ):
        store.refuse_links(folder, [cell.name for cell in plan.cells])
        try:
            if plan.on is None:
                _run_cells(plan, folder, within, live=live)
            else:
                spread.run_cells(plan, folder, received)
        except Interrupted as interruption:
            code = interruption.exit_code
        with signals.noted() as late:
            report = matrix_report.report(matrix_report.read(folder), folder)
            # Of an interrupted matrix, the interruption is the reason.
            done = deliver(replace(report, failures=()) if code else report, folder)
    return code or (SIGNALLED + late[0] if late else done)


def _run_cells(plan: MatrixPlan, folder: Path, within: Within, *, live: bool) -> None:
    """Run the cells one after the other, and record which were refused.

    Raises:
        Interrupted: some cells were run. Their results stay.
    """
    begun, refusal = False, None
    for number, cell in enumerate(plan.cells):
        typer.echo(f"Comparison {number + 1} of {len(plan.cells)}: {cell.name}", err=True)
        request = comparison_plan.of_rows(cell.rows, plan, folder / cell.name)
        failure = None
        try:
            within(replace(request, live=live), folder / cell.name)
            begun = True
        except _REFUSALS as error:
            refusal, failure = error, str(error)
            typer.echo(f"{cell.name} is left out: {failure}", err=True)
        known = [*plan.cells]
        known[number] = cell.model_copy(update={"failure": failure})
        plan = plan.model_copy(update={"cells": known})
        records.write(folder / cells.PLAN_FILE, plan)
    if refusal is not None and not begun:
        (folder / cells.PLAN_FILE).unlink()
        raise refusal


def stored(folder: Path, repeats: int | None) -> MatrixPlan:
    """The plan of a stored matrix, to go on with it."""
    plan = cells.read(folder)
    comparison_plan.refuse_fewer(repeats, plan.repeats, folder)
    comparison_plan.enter(plan.contestants, folder)
    return plan.model_copy(update={"repeats": plan.repeats if repeats is None else repeats})


def rehearse(plan: MatrixPlan, out: Path | None, *, as_json: bool, like: Path | None, again: bool = False) -> int:
    """Print what the runs of every comparison that are left would take, added up. Starts none of them."""
    if out is not None:
        results_folder.refuse_other_request(
            out,
            cells.PLAN_FILE,
            MatrixPlan,
            cells.KIND,
            _identity(plan),
            identity=_identity,
            kind=cells.KIND,
            is_begun=partial(_is_begun, out),
        )
    if plan.on is not None:
        return spread.rehearse(plan, out or store.new_folder(cells.KIND), as_json=as_json)
    estimate.say_what_is_measured(like)
    made: dict[str, Report] = {}
    refused: dict[str, str] = {}
    for cell in plan.cells:
        there = out / cell.name if out and (out / cell.name / store.PLAN_FILE).exists() else None
        try:
            request = comparison_plan.of_rows(cell.rows, plan, there)
            comparison_plan.refuse_used(request)
            made[cell.name] = estimate.rehearsed(replace(request, again=again), like)
        except _REFUSALS as error:
            refused[cell.name] = str(error)
    values = {name: report.values for name, report in made.items()}
    columns = (
        Column("cell", "comparison"),
        Column("runs", "runs"),
        Column("seconds", "seconds", 0),
        Column("proof_seconds", "seconds of the proof", 0),
        Column("mib", "MiB", 1),
    )
    rows: list[dict[str, Any]] = [
        {
            "cell": name,
            "runs": len(each["runs"]),
            "seconds": each["seconds"],
            "proof_seconds": each["proof_seconds"],
            "mib": each["num_bytes"] / 2**20,
        }
        for name, each in values.items()
    ]
    total: dict[str, Any] = {key: sum(row[key] or 0 for row in rows) for key in ("runs", "seconds", "proof_seconds", "mib")}
    alone, whole = (wording.clock_words(seconds) for seconds in (total["seconds"], total["seconds"] + total["proof_seconds"]))
    unknown = sum(each["unknown"] for each in values.values())
    besides = f", and {unknown} of which nothing is known" if unknown else ""
    said = [
        f"{wording.count(total['runs'], 'run')} in {wording.count(len(made), 'comparison')}: about {alone} min{besides}; "
        f"{total['mib']:.1f} MiB of disk. With the proofs: about {whole} min.",
        "Each comparison is proved by itself, unless its proof is remembered. No results folder was touched.",
    ]
    return Report(
        title="Dry run",
        findings=[("Refused", [f"{name}: {why}" for name, why in refused.items()]), ("Time and disk", said)],
        tables=[Table("dry_run", "Comparisons, in this order", columns, rows)] if rows else [],
        values={"cells": values, "refused": refused, **total},
        exit_code=exits.RUN_FAILED if refused or any(report.exit_code for report in made.values()) else 0,
    ).deliver(None, as_json=as_json)


def _is_begun(folder: Path) -> bool:
    return any(folder.glob(f"*/{store.PLAN_FILE}")) or any(folder.glob(f"{jobs.FOLDER}/*"))


def _identity(plan: MatrixPlan) -> dict[str, Any]:
    shared = plan.model_dump(mode="json", include={"contestants", "prove", "oversubscribe", "seeds"})
    rows = {cell.name: {row.id: row.model_dump(mode="json") for row in cell.rows} for cell in plan.cells}
    return {"cells": rows, "on other machines": plan.on is not None, **shared}


def _merged(stored: MatrixPlan, wanted: MatrixPlan) -> MatrixPlan:
    """The stored plan with the larger number of repeats, and when to stop and restart as asked for now."""
    repeats = max(stored.repeats, wanted.repeats)
    return stored.model_copy(
        update={"repeats": repeats, "until": wanted.until or stored.until, "restarts": wanted.restarts, "on": wanted.on}
    )
