"""Plots of the published curves, with the local ones over them."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from compare.tools.papers.cells import fill_rows
from compare.tools.papers.local_results import LocalResults
from compare.tools.papers.schema import Curves, run_name

_Curve = tuple[str, dict[int, float], dict[int, float | None]]
"""Title of the run, the paper's value by epoch, and the local value by epoch."""


def draw(figure: Figure, results: LocalResults) -> bool:
    """Draw the paper's axes, over epochs. Solid lines are local results, dashed ones are the paper's.

    Returns:
        Whether the paper has any.
    """
    if not results.paper.curves:
        return False
    axes = figure.subplots(1, len(results.paper.curves), squeeze=False)[0]
    for axis, curve_axes in zip(axes, results.paper.curves, strict=True):
        for number, (title, paper, values) in enumerate(_lines(results, curve_axes)):
            colour = f"C{number}"
            if len(paper) == 1:  # the paper has the last epoch alone
                axis.axhline(*paper.values(), color=colour, linestyle="--", alpha=0.6)
            else:
                axis.plot(list(paper), list(paper.values()), color=colour, linestyle="--", alpha=0.6)
            known = {epoch: value for epoch, value in values.items() if value is not None}
            axis.plot(list(known), list(known.values()), color=colour, marker="o", label=title)
        axis.set(xlabel="epoch", ylabel=curve_axes.label, yscale=curve_axes.scale, title="solid: here; dashed: the paper")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if curve_axes.limits:
            axis.set_ylim(*curve_axes.limits)
    axes[0].legend(fontsize=8)
    return True


def _lines(results: LocalResults, curve_axes: Curves) -> Iterator[_Curve]:
    for table in map(results.paper.table, curve_axes.tables):
        measure = table.columns[curve_axes.column].measure or curve_axes.column
        if table.rows_are == "epochs":
            paper = {
                int(epoch): figure for (epoch,), row in table.rows.items() if (figure := row[curve_axes.column]) is not None
            }
            values_by_epoch = {int(epoch): row[measure] for (epoch,), (row, _) in fill_rows(results, table).items()}
            yield results.paper.runs[table.run].title, paper, values_by_epoch
            continue
        for key, row in table.rows.items():
            name = run_name(key)
            run, summary = results.paper.runs[name], results.summary(results.training_of(name), name)
            epochs = summary.epochs if summary else []
            values_by_epoch = {epoch.epoch: getattr(epoch, f"validation_{measure}") for epoch in epochs}
            yield run.title, {run.epochs: row[curve_axes.column] or 0.0}, values_by_epoch
