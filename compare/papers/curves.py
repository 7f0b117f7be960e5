"""The published curves, with those found here over them."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from compare.papers.cells import found
from compare.papers.here import Here
from compare.papers.schema import Curves, run_name

_Line = tuple[str, dict[int, float], dict[int, float | None]]
"""Title of the run, the paper's value by epoch, and the value here by epoch."""


def draw(figure: Figure, here: Here) -> bool:
    """Draw the paper's axes, over epochs. Solid lines are found here, dashed ones are the paper's.

    Returns:
        Whether the paper has any.
    """
    if not here.paper.curves:
        return False
    axes = figure.subplots(1, len(here.paper.curves), squeeze=False)[0]
    for axis, wanted in zip(axes, here.paper.curves, strict=True):
        for number, (title, paper, values) in enumerate(_lines(here, wanted)):
            colour = f"C{number}"
            if len(paper) == 1:  # the paper has the last epoch alone
                axis.axhline(*paper.values(), color=colour, linestyle="--", alpha=0.6)
            else:
                axis.plot(list(paper), list(paper.values()), color=colour, linestyle="--", alpha=0.6)
            shown = {epoch: value for epoch, value in values.items() if value is not None}
            axis.plot(list(shown), list(shown.values()), color=colour, marker="o", label=title)
        axis.set(xlabel="epoch", ylabel=wanted.label, yscale=wanted.scale, title="solid: here; dashed: the paper")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if wanted.limits:
            axis.set_ylim(*wanted.limits)
    axes[0].legend(fontsize=8)
    return True


def _lines(here: Here, wanted: Curves) -> Iterator[_Line]:
    for table in map(here.paper.table, wanted.tables):
        measure = table.columns[wanted.column].measure or wanted.column
        if table.rows_are == "epochs":
            paper = {int(epoch): figure for (epoch,), row in table.rows.items() if (figure := row[wanted.column]) is not None}
            values = {int(epoch): values[measure] for (epoch,), (values, _) in found(here, table).items()}
            yield here.paper.runs[table.run].title, paper, values
            continue
        for key, row in table.rows.items():
            name = run_name(key)
            run, summary = here.paper.runs[name], here.summary(here.training_of(name), name)
            epochs = summary.epochs if summary else []
            values = {each.epoch: getattr(each, f"validation_{measure}") for each in epochs}
            yield run.title, {run.epochs: row[wanted.column] or 0.0}, values
