"""The plots of an evaluation, and its pictures of confused images."""

from __future__ import annotations

from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.data.dataset import Images
from compare.core import wording
from compare.core.statistics import spread
from compare.evaluation.evaluation_tables import confusion
from compare.evaluation.scoring import Evaluated
from compare.reporting import comparison_plots, image_grid, plots
from compare.reporting.document import PLOTS_FOLDER
from compare.reporting.plots import Drawing

_NAMED_CLASSES = 40
_NAME = 24


def drawings(made: Evaluated) -> dict[str, Drawing]:
    """Every plot by name. Without a scored model there is nothing to draw."""
    drawn = {"confusion": _draw_confusion, "calibration": _draw_calibration, "f1_by_class": _draw_f1}
    return {name: partial(drawing, made) if made.scored else _nothing for name, drawing in drawn.items()}


def confused_images(made: Evaluated, images: Images) -> dict[str, bytes]:
    """PNG files of the images behind the worst confusions, by path under the report's folder.

    Args:
        images: uint8 [N, S, S, 3], of the test split.
    """
    rows = {contestant: _confused_rows(made, contestant, images) for contestant in made.scored}
    return {
        f"{PLOTS_FOLDER}/confused_{contestant}.png": image_grid.rows_of_images(each)
        for contestant, each in rows.items()
        if each
    }


def _nothing(figure: Figure) -> bool:
    return False


def _draw_confusion(made: Evaluated, figure: Figure) -> bool:
    confusions = {contestant: confusion(made, contestant) for contestant in made.scored}
    return comparison_plots.draw_confusion(figure, confusions, made.class_names)


def _draw_calibration(made: Evaluated, figure: Figure) -> bool:
    axis, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    axis.plot([0, 1], [0, 1], color="0.6", linestyle=":", label="as sure as right")
    for index, contestant in enumerate(made.scored):
        for number, model in enumerate(made.of(contestant)):
            assert model.scores is not None
            bins = [each for each in model.scores.bins if each.count]
            style = {"color": plots.COLOURS[index % len(plots.COLOURS)], "marker": plots.MARKERS[index % len(plots.MARKERS)]}
            label = contestant if number == 0 else None
            axis.plot([each.confidence for each in bins], [each.accuracy for each in bins], label=label, **style)
            edges = [model.scores.bins[0].low, *(each.high for each in model.scores.bins)]
            counts.stairs([each.count for each in model.scores.bins], edges, color=style["color"], linewidth=2)
    axis.set(title="How sure, and how often right", ylabel="accuracy of the bin", ylim=(0, 1.02))
    counts.set(xlabel="probability of the predicted label", ylabel="images")
    axis.legend(frameon=False)
    return True


def _draw_f1(made: Evaluated, figure: Figure) -> bool:
    names = [wording.shortened(name, _NAME) for name in plots.labels(made.shown_class_names)]
    figure.set_figheight(max(5.0, 1.5 + 0.34 * len(names)))
    axis: Axes = figure.subplots()
    height = 0.8 / len(made.scored)
    for index, contestant in enumerate(made.scored):
        found = [
            spread([model.scores.classes[label].f1 for model in made.of(contestant) if model.scores])
            for label in range(len(names))
        ]
        places = np.arange(len(names)) + (index - (len(made.scored) - 1) / 2) * height
        medians = [each.median if each else 0.0 for each in found]
        axis.barh(places, medians, height, color=plots.COLOURS[index % len(plots.COLOURS)], label=contestant)
    if len(names) <= _NAMED_CLASSES:
        axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set(title="F1 of each class on the test split", xlabel="F1", xlim=(0, 1))
    figure.legend(loc="outside lower center", ncols=len(made.scored), frameon=False)
    return True


def _confused_rows(made: Evaluated, contestant: str, images: Images) -> list[image_grid.ImageRow]:
    """Images of the first training only: the grid is for viewing, not for counting."""
    model = made.of(contestant)[0]
    names = plots.labels(made.shown_class_names)
    return [
        image_grid.ImageRow(
            f"{names[pair.true]}\ntaken for {names[pair.predicted]}",
            f"{pair.count:,}, {100 * pair.share:.0f} % of the class",
            [images[place] for place in pair.examples[: image_grid.PER_ROW]],
        )
        for pair in model.worst
    ]
