"""`convtwins run --on`: the comparisons of a matrix on other machines, as jobs of Slurm or of a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import typer

from common.artifacts import records
from common.errors import UserError
from common.spec import SpecError
from compare.cli import wording
from compare.comparison import comparison_plan
from compare.comparison.comparison_plan import ComparisonRequest
from compare.reporting.document import Report
from compare.results import cells, store
from compare.results.cells import Cell, MatrixPlan
from compare.tools.cluster import archive, dask_slots, jobs, slurm
from compare.tools.cluster.jobs import JobEnds


def _say(line: str) -> None:
    """Print a line of progress. Part of it comes from other machines."""
    typer.echo(wording.one_line(line), err=True)


def check_backend(on: str) -> None:
    """Check the value of `--on`."""
    if on != slurm.NAME and not on.startswith(dask_slots.SCHEMES):
        raise SpecError(f"--on must be slurm or the address of a Dask scheduler. Received: {on!r}. Use e.g. tcp://HOST:8786.")


def check_rows(requests: Sequence[ComparisonRequest]) -> None:
    """Check that other machines can run the requested comparisons."""
    for request in requests:
        if request.settings.values.get("cores") is None:
            raise SpecError("--on needs --cores: other machines may have more or fewer. Received: none. Use what each has.")
        if request.settings.values.get("hosts"):
            raise SpecError("--on runs each comparison on one machine. Received also: --hosts. Leave one of them out.")


def check_can_submit(plan: MatrixPlan) -> None:
    """Check that jobs can be submitted, before a folder is made."""
    assert plan.on is not None
    if plan.on == slurm.NAME:
        slurm.check_commands()
        return
    with dask_slots.connect_slots(plan.on, plan):
        pass


def run_cells(plan: MatrixPlan, folder: Path, on_received: Callable[[Path], object]) -> None:
    """Run the missing comparisons as jobs, and record which failed.

    Args:
        on_received: called with the folder of each comparison that has come back and was checked.
    """
    for cell in plan.cells:
        archive.restore(folder, cell)
    finished_names = [cell.name for cell in plan.cells if _is_done(plan, cell, folder)]
    remaining = [cell for cell in plan.cells if cell.name not in finished_names]
    _say(f"{wording.count(len(remaining), 'comparison')} to run on {plan.on}, {len(finished_names)} there already.")
    code_hash = jobs.matrix_code_hash(plan)
    (folder / cells.JOBS_FOLDER).mkdir(exist_ok=True)

    def record(**changes: Mapping[str, str | None]) -> None:
        nonlocal plan
        updated_cells = [
            cell.model_copy(update={field: values[cell.name] for field, values in changes.items() if cell.name in values})
            for cell in plan.cells
        ]
        plan = plan.model_copy(update={"cells": updated_cells})
        records.write(folder / cells.PLAN_FILE, plan)

    def check_returned(name: str) -> str | None:
        """Check a comparison that has come back, and make its report. Returns why it is refused."""
        cell = next(cell for cell in plan.cells if cell.name == name)
        try:
            archive.refuse_other_comparison(folder / name, plan, cell)
            on_received(folder / name)
        except UserError as error:
            return str(error)
        status = jobs.read_status(folder, name)
        if status is not None and status.code == 0 and not _is_done(plan, cell, folder):  # it was submitted for fewer
            return "its job has not made all runs that are asked for now. Run the same command again."
        return None

    record(failure={name: check_returned(name) for name in finished_names})
    with closing(_ends(plan, folder, remaining, code_hash, lambda job_ids: record(job=job_ids))) as ends:
        for number, (name, failure) in enumerate(ends, 1):
            failure = failure or check_returned(name)
            record(failure={name: failure})
            node = status.node if (status := jobs.read_status(folder, name)) else "an unknown machine"
            end = f"has failed: {failure}" if failure else f"has come back from {node}"
            _say(f"{name} {end.rstrip('.')}; {len(remaining) - number} left.")


def _ends(
    plan: MatrixPlan, folder: Path, left: Sequence[Cell], code: str, submitted: Callable[[Mapping[str, str]], None]
) -> JobEnds:
    assert plan.on is not None
    if plan.on != slurm.NAME:
        return dask_slots.run(plan.on, folder, plan, left, code, say=_say)
    names = [cell.name for cell in left]
    started_names = [name for name in names if (folder / name / store.PLAN_FILE).exists()]
    nodes = {name: status.node for name in started_names if (status := jobs.read_status(folder, name))}
    job_ids = {cell.name: cell.job for cell in left if cell.job}
    return slurm.run(folder, names, code, job_ids=job_ids, nodes=nodes, on_submitted=submitted, say=_say)


def _is_done(plan: MatrixPlan, cell: Cell, folder: Path) -> bool:
    """Return whether a comparison has all runs that are requested now."""
    cell_folder, status = folder / cell.name, jobs.read_status(folder, cell.name)
    if status is None or status.code is None or status.failure or not (cell_folder / store.PLAN_FILE).exists():
        return False
    comparison = store.read_plan(cell_folder)
    repeats = plan.settings.check_repeats().repeats
    has_all_repeats = comparison.settings.repeats >= repeats and comparison.settings.until == plan.settings.until
    return has_all_repeats and not comparison_plan.remaining_rounds(comparison, cell_folder)


def rehearse(plan: MatrixPlan, folder: Path, *, as_json: bool) -> Report | int:
    """Report the jobs that would be submitted, or print the script of Slurm. None is submitted, and no folder is made."""
    names = [cell.name for cell in plan.cells if not _is_done(plan, cell, folder)]
    if plan.on == slurm.NAME:
        text = slurm.batch_script(folder, len(names))
        if not as_json:
            typer.echo(text)
            _say(f"Would be submitted: {wording.count(len(names), 'job')} ({', '.join(names) or 'all are done'}). Nothing was.")
            return 0
        values: dict[str, Any] = {"jobs": names, "script": text}
    else:
        assert plan.on is not None
        with dask_slots.connect_slots(plan.on, plan) as (_, machines):
            values = {"jobs": names, "machines": machines}
    sentences = [
        f"{wording.count(len(names), 'job')} on {plan.on}: {', '.join(names) or 'all are done'}. Nothing was submitted."
    ]
    return Report(title="Dry run", findings=[("Jobs", sentences)], values=values)
