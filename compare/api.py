"""Comparisons and their results in a notebook.

`run(spec)` runs a comparison, `load(DIR)` reads a stored one. Both give pandas data frames. `plot_*` are the report's plots as
figures. `match` compares a port.

from compare import api
results = api.run({"data": {"source": "digits"}, "modes": ["serial"], "repeats": 5})
results.epochs.groupby(["framework", "mode"]).seconds.median()
api.plot_loss(results)
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from common.spec import Spec
from compare.cli.errors import FolderError
from compare.comparison import run_process
from compare.judgement import cautions
from compare.reporting import comparison_plots, comparison_report, dataframes, matrix_report, plots, tables
from compare.reporting.comparison_report import JudgedComparison
from compare.results import cells

if TYPE_CHECKING:
    from compare.tools.matching.match import match as match


class Plot(Figure):
    """A figure that any notebook shows, whatever matplotlib's backend is."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=100, bbox_inches="tight")
        return content.getvalue()


@dataclass(frozen=True)
class Results:
    """A stored comparison."""

    compared: JudgedComparison
    folder: Path

    @property
    def exit_code(self) -> int:
        """Exit code of `run`: 1 if a run failed or is missing, or the proof failed. Else 0."""
        return self.compared.exit_code

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One line for each run: its configuration, status, scores, and wall time by phase in seconds."""
        return dataframes.runs(self.compared.stored)

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """One line for each epoch of each run: its scores, seconds and images per second."""
        return dataframes.epochs(self.compared.stored)

    @cached_property
    def summaries(self) -> pd.DataFrame:
        """One line for each row of the tables: medians over its repeats (`..._median`), and its speed-ups (`..._value`)."""
        lines = [{"name": summary.name, **summary.model_dump(exclude={"epochs"})} for summary in self.compared.summaries]
        groups = {field for line in lines for field, value in line.items() if isinstance(value, dict)}
        return pd.json_normalize(lines, sep="_").drop(columns=list(groups), errors="ignore")

    @property
    def sentences(self) -> list[str]:
        """The sentences of the report."""
        first = [*cautions.signature(self.compared.stored), *self.compared.findings.divisions]
        return [
            *self.compared.in_words(first),
            *(sentence for _, sentences in comparison_report.sections(self.compared) for sentence in sentences),
        ]


@dataclass(frozen=True)
class Matrix:
    """A stored matrix: several comparisons."""

    folder: Path
    cells: dict[str, Results]
    """Comparisons by name of their cell. Cells without a run are not in it."""
    who_wins_where: pd.DataFrame
    """First table of the matrix's report: one line for each configuration of each cell. `times_value` is the ratio."""
    refused: dict[str, str]
    """Reason by name of each cell that could not begin."""


def run(
    spec: Spec | Mapping[str, Any] | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    frameworks: Sequence[str] | None = None,
    proof: bool = True,
    sign: str | os.PathLike[str] | None = None,
) -> Results | Matrix:
    """Run what `convtwins run --spec` runs, in a process of its own, and load it.

    A folder that holds the same comparison is resumed. A run that fails is a row with its status: see `Results.exit_code`.

    Args:
        spec: the path of a spec file, or what it holds: fields as a mapping, or a `Spec`. Of a `Spec`, the fields that were
            set count. Lists of models, data and the like make a matrix.
        out: the results folder. Default: one named by time under `results`.
        frameworks: names of those to compare. Default: all, or the contestants of the spec.
        proof: whether to prove first that the frameworks train the same.
        sign: an SSH key to sign the results with.

    Raises:
        OSError: the disk is full.
        KeyboardInterrupt: it was interrupted. The same call with the same `out` continues.
    """
    return load(run_process.call(spec, out, frameworks, proof=proof, sign=sign))


def load(folder: str | Path) -> Results | Matrix:
    """Read the results folder of a comparison or a matrix, finished or not."""
    try:
        path = Path(folder)
    except TypeError:
        raise FolderError(f"folder must be a path. Received: {folder!r}. Name the folder that `run` printed.") from None
    if not cells.is_matrix(path):
        return Results(comparison_report.read(path), path)
    matrix = matrix_report.read(path)
    table = tables.to_plain(matrix_report.winners_table(matrix.plan, matrix_report.cell_verdicts(matrix)))
    winners = pd.json_normalize(table["rows"], sep="_")
    return Matrix(
        folder=path,
        cells={name: Results(compared, path / name) for name, compared in matrix.compared.items()},
        who_wins_where=winners,
        refused={cell.name: cell.failure for cell in matrix.plan.cells if cell.failure is not None},
    )


def plot(results: Results, name: str) -> Plot:
    """One of the report's plots, see `comparison_plots.names`.

    Raises:
        ValueError: there is no such plot, or it has nothing to show.
    """
    if name not in comparison_plots.names():
        raise ValueError(f"plot is unknown. Received: {name!r}. Use one of {', '.join(comparison_plots.names())}.")
    with mpl.rc_context(plots.SETTINGS):
        figure = Plot(figsize=(9, 5), layout="constrained")
        if not comparison_plots.draw(name, figure, results.compared.summaries, results.compared.stored.comparison.class_names):
            raise ValueError(f"There is nothing to plot. Received: {name}. See `results.runs` for what was run.")
        return figure


def plot_loss(results: Results) -> Plot:
    """Training and validation loss by epoch."""
    return plot(results, "loss")


def plot_accuracy(results: Results) -> Plot:
    """Training and validation accuracy by epoch."""
    return plot(results, "accuracy")


def plot_seconds(results: Results) -> Plot:
    """Median seconds per epoch of each row."""
    return plot(results, "seconds_per_epoch")


def plot_speedup(results: Results) -> Plot:
    """Speed-up of each row against serial."""
    return plot(results, "speedup")


def plot_efficiency(results: Results) -> Plot:
    """Parallel efficiency of each row: its speed-up over the ratio of cores."""
    return plot(results, "efficiency")


def plot_phases(results: Results) -> Plot:
    """Wall seconds of each row by phase."""
    return plot(results, "phases")


def plot_input(results: Results) -> Plot:
    """Images per second of the input alone, by its number of workers."""
    return plot(results, "images_per_second")


def plot_confusion(results: Results) -> Plot:
    """The predicted classes of each class of the test split, a matrix for each row."""
    return plot(results, comparison_plots.CONFUSION)


def __getattr__(name: str) -> Any:
    """Import the tool behind `match` only for somebody who asks for it."""
    if name == "match":
        from compare.tools.matching.match import match

        return match
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
