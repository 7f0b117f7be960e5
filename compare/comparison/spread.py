"""`convtwins run --on`: the comparisons of a matrix on other machines, as jobs of Slurm or of a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import typer

from common.artifacts import records
from common.data.sources import DataRefused
from common.spec import SpecError
from compare.cluster import archive, dask_slots, jobs, slurm
from compare.cluster.jobs import Ends
from compare.comparison import comparison_plan
from compare.comparison.comparison_plan import Request
from compare.core import wording
from compare.core.errors import FolderError
from compare.execution import cells, store
from compare.execution.cells import Cell, MatrixPlan
from compare.reporting.document import Report


def _say(line: str) -> None:
    """Progress. Part of it comes from other machines."""
    typer.echo(wording.one_line(line), err=True)


def check(on: str) -> None:
    """Check what `--on` names.

    Raises:
        SpecError: it is neither Slurm nor an address.
    """
    if on != slurm.NAME and not on.startswith(dask_slots.SCHEMES):
        raise SpecError(f"--on must be slurm or the address of a Dask scheduler. Received: {on!r}. Use e.g. tcp://HOST:8786.")


def check_rows(requests: Sequence[Request]) -> None:
    """Check that other machines can do what is asked for.

    Raises:
        SpecError: no number of cores is named, or a run is spread over machines itself.
    """
    for request in requests:
        if request.settings.values.get("cores") is None:
            raise SpecError("--on needs --cores: other machines may have more or fewer. Received: none. Use what each has.")
        if request.settings.values.get("hosts"):
            raise SpecError("--on runs each comparison on one machine. Received also: --hosts. Leave one of them out.")


def refuse_unready(plan: MatrixPlan) -> None:
    """Check that jobs can be submitted, before a folder is made.

    Raises:
        LaunchError: they cannot. The message says what is missing.
    """
    assert plan.on is not None
    if plan.on == slurm.NAME:
        slurm.refuse_missing()
        return
    with dask_slots.slots(plan.on, plan):
        pass


def run_cells(plan: MatrixPlan, folder: Path, received: Callable[[Path], object]) -> None:
    """Run the comparisons that are missing as jobs, and record which failed.

    Args:
        received: called with the folder of each comparison that has come back and was checked.

    Raises:
        LaunchError: no job can be submitted.
        Interrupted: the jobs are cancelled. What has come back stays.
    """
    for cell in plan.cells:
        archive.restore(folder, cell)
    done = [cell.name for cell in plan.cells if _is_done(plan, cell, folder)]
    left = [cell for cell in plan.cells if cell.name not in done]
    _say(f"{wording.count(len(left), 'comparison')} to run on {plan.on}, {len(done)} there already.")
    code = jobs.code_of(plan)
    (folder / jobs.FOLDER).mkdir(exist_ok=True)

    def record(**changes: Mapping[str, str | None]) -> None:
        nonlocal plan
        known = [
            each.model_copy(update={field: of[each.name] for field, of in changes.items() if each.name in of})
            for each in plan.cells
        ]
        plan = plan.model_copy(update={"cells": known})
        records.write(folder / cells.PLAN_FILE, plan)

    def taken(name: str) -> str | None:
        """Check a comparison that has come back, and make its report. Returns why it is refused."""
        cell = next(cell for cell in plan.cells if cell.name == name)
        try:
            archive.refuse_other(folder / name, plan, cell)
            received(folder / name)
        except (SpecError, DataRefused, FolderError) as error:
            return str(error)
        answer = jobs.answered(folder, name)
        if answer is not None and answer.code == 0 and not _is_done(plan, cell, folder):  # it was submitted for fewer
            return "its job has not made all runs that are asked for now. Run the same command again."
        return None

    record(failure={name: taken(name) for name in done})
    with closing(_ends(plan, folder, left, code, lambda known: record(job=known))) as ends:
        for number, (name, failure) in enumerate(ends, 1):
            failure = failure or taken(name)
            record(failure={name: failure})
            node = answer.node if (answer := jobs.answered(folder, name)) else "an unknown machine"
            end = f"has failed: {failure}" if failure else f"has come back from {node}"
            _say(f"{name} {end.rstrip('.')}; {len(left) - number} left.")


def _ends(
    plan: MatrixPlan, folder: Path, left: Sequence[Cell], code: str, submitted: Callable[[Mapping[str, str]], None]
) -> Ends:
    assert plan.on is not None
    if plan.on != slurm.NAME:
        return dask_slots.run(plan.on, folder, plan, left, code, say=_say)
    names = [cell.name for cell in left]
    begun = [name for name in names if (folder / name / store.PLAN_FILE).exists()]
    nodes = {name: answer.node for name in begun if (answer := jobs.answered(folder, name))}
    known = {cell.name: cell.job for cell in left if cell.job}
    return slurm.run(folder, names, code, known=known, nodes=nodes, submitted=submitted, say=_say)


def _is_done(plan: MatrixPlan, cell: Cell, folder: Path) -> bool:
    """Whether a comparison has all runs that are asked for now."""
    place, answer = folder / cell.name, jobs.answered(folder, cell.name)
    if answer is None or answer.code is None or answer.failure or not (place / store.PLAN_FILE).exists():
        return False
    comparison = store.read_plan(place)
    asked = comparison_plan.check_repeats(comparison_plan.of_rows(cell.rows, plan, place).settings)
    enough = comparison.repeats >= asked.repeats and comparison.until == plan.until
    return enough and not comparison_plan.jobs(comparison, place)


def rehearse(plan: MatrixPlan, folder: Path, *, as_json: bool) -> int:
    """Print what would be submitted. Nothing is, and no folder is made.

    Raises:
        LaunchError: a Dask cluster cannot run the matrix.
    """
    names = [cell.name for cell in plan.cells if not _is_done(plan, cell, folder)]
    if plan.on == slurm.NAME:
        text = slurm.script(folder, len(names))
        if not as_json:
            typer.echo(text)
            _say(f"Would be submitted: {wording.count(len(names), 'job')} ({', '.join(names) or 'all are done'}). Nothing was.")
            return 0
        values: dict[str, Any] = {"jobs": names, "script": text}
    else:
        assert plan.on is not None
        with dask_slots.slots(plan.on, plan) as (_, machines):
            values = {"jobs": names, "machines": machines}
    said = [f"{wording.count(len(names), 'job')} on {plan.on}: {', '.join(names) or 'all are done'}. Nothing was submitted."]
    return Report(title="Dry run", findings=[("Jobs", said)], values=values).deliver(None, as_json=as_json)
