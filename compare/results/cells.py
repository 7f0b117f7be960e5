"""A matrix: comparisons that differ in their model, data, batch or the like. Each is a cell, with a folder within one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from common.frozen import Exact, Moment
from compare.results import store
from compare.results.workspace import PlannedWork
from compare.running.axes import MOST_CELLS
from compare.running.comparison_settings import PlannedSettings, from_version_1
from compare.running.matrix import FileName, Row

PLAN_FILE, KIND = "matrix.json", "matrix"
JOBS_FOLDER = "jobs"
"""Subfolder that holds the files of jobs, if other machines run the comparisons."""


class Cell(Exact):
    """One comparison of a matrix."""

    name: FileName
    """Name of the cell's folder."""
    labels: dict[str, str]
    """{name of an axis in reports: the cell's value}, for the axes with several values."""
    rows: list[Row] = Field(min_length=1)
    """Rows as they are laid out, before they are checked."""
    failure: str | None = None
    """Why the cell was refused at the last attempt."""
    job: str | None = None
    """Id of the last Slurm job that ran the cell."""


class MatrixPlan(PlannedWork):
    """matrix.json: the comparisons of a matrix, and what they share."""

    kind: Literal["matrix"] = KIND
    schema_version: Literal[2] = 2
    """Version 1 had no such field."""
    created_at: Moment
    argv: list[str]
    cells: list[Cell] = Field(min_length=1, max_length=MOST_CELLS)
    settings: PlannedSettings
    on: str | None = None
    """Backend that runs the comparisons on other machines: `slurm`, or the address of a Dask scheduler. None: this machine."""

    _read_version_1 = model_validator(mode="before")(lambda values: from_version_1(values, version=None))

    def identity(self) -> dict[str, Any]:
        shared = self.settings.model_dump(mode="json", include={"contestants", "prove", "oversubscribe", "seeds"})
        rows = {cell.name: {row.id: row.model_dump(mode="json") for row in cell.rows} for cell in self.cells}
        return {"cells": rows, "on other machines": self.on is not None, **shared}

    def difference(self, new: Any) -> str | None:
        return self.settings.difference_in_turns(new.settings) or super().difference(new)

    def continued_by(self, new: Any) -> Self:
        return self.model_copy(update={"settings": self.settings.continued_by(new.settings), "on": new.on})

    @property
    def axes(self) -> list[str]:
        return list(self.cells[0].labels)


def is_matrix(folder: Path) -> bool:
    """Whether a folder holds a matrix."""
    return (folder / PLAN_FILE).exists()


def read(folder: Path) -> MatrixPlan:
    """Read the plan of a matrix."""
    return store.read_record(folder / PLAN_FILE, MatrixPlan, "a matrix")
