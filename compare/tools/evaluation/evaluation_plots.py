"""Plots of an evaluation, and pictures of confused images."""

from __future__ import annotations

from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.data.dataset import Images
from compare.cli import wording
from compare.reporting import comparison_plots, image_grid, plots
from compare.reporting.document import PLOTS_FOLDER
from compare.reporting.plots import Drawing
from compare.statistics.statistics import spread
from compare.tools.evaluation.evaluation_tables import confusion
from compare.tools.evaluation.scoring import EvaluationRecord

_NAMED_CLASSES = 40
_NAME = 24


def drawings(evaluation: EvaluationRecord) -> dict[str, Drawing]:
    """Return every plot by name. Without a scored model there is nothing to draw."""
    drawn = {"confusion": _draw_confusion, "calibration": _draw_calibration, "f1_by_class": _draw_f1}
    return {name: partial(drawing, evaluation) if evaluation.scored else _draw_nothing for name, drawing in drawn.items()}


def confused_images(evaluation: EvaluationRecord, images: Images) -> dict[str, bytes]:
    """Return PNG files of the images behind the worst confusions, by path under the report's folder.

    Args:
        images: images of the test split, uint8 [N, S, S, 3].
    """
    rows = {contestant: _confused_rows(evaluation, contestant, images) for contestant in evaluation.scored}
    return {
        f"{PLOTS_FOLDER}/confused_{contestant}.png": image_grid.rows_of_images(image_rows)
        for contestant, image_rows in rows.items()
        if image_rows
    }


def _draw_nothing(figure: Figure) -> bool:
    return False


def _draw_confusion(evaluation: EvaluationRecord, figure: Figure) -> bool:
    confusions = {
        contestant: (np.array(confusion(evaluation, contestant)) / len(evaluation.models_of(contestant))).tolist()
        for contestant in evaluation.scored
    }
    return comparison_plots.draw_confusion(figure, confusions, evaluation.class_names)


def _draw_calibration(evaluation: EvaluationRecord, figure: Figure) -> bool:
    axis, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    axis.plot([0, 1], [0, 1], color="0.6", linestyle=":", label="as sure as right")
    for index, contestant in enumerate(evaluation.scored):
        for number, model in enumerate(evaluation.models_of(contestant)):
            assert model.scores is not None
            bins = [score_bin for score_bin in model.scores.bins if score_bin.count]
            style = {"color": plots.COLOURS[index % len(plots.COLOURS)], "marker": plots.MARKERS[index % len(plots.MARKERS)]}
            label = contestant if number == 0 else None
            axis.plot(
                [score_bin.confidence for score_bin in bins], [score_bin.accuracy for score_bin in bins], label=label, **style
            )
            edges = [model.scores.bins[0].low, *(score_bin.high for score_bin in model.scores.bins)]
            counts.stairs([score_bin.count for score_bin in model.scores.bins], edges, color=style["color"], linewidth=2)
    axis.set(title="How sure, and how often right", ylabel="accuracy of the bin", ylim=(0, 1.02))
    counts.set(xlabel="probability of the predicted label", ylabel="images")
    axis.legend(frameon=False)
    return True


def _draw_f1(evaluation: EvaluationRecord, figure: Figure) -> bool:
    names = [wording.shortened(name, _NAME) for name in plots.labels(evaluation.shown_class_names)]
    figure.set_figheight(max(5.0, 1.5 + 0.34 * len(names)))
    axis: Axes = figure.subplots()
    height = 0.8 / len(evaluation.scored)
    for index, contestant in enumerate(evaluation.scored):
        spreads = [
            spread([model.scores.classes[label].f1 for model in evaluation.models_of(contestant) if model.scores])
            for label in range(len(names))
        ]
        places = np.arange(len(names)) + (index - (len(evaluation.scored) - 1) / 2) * height
        medians = [value.median if value else 0.0 for value in spreads]
        axis.barh(places, medians, height, color=plots.COLOURS[index % len(plots.COLOURS)], label=contestant)
    if len(names) <= _NAMED_CLASSES:
        axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set(title="F1 of each class on the test split", xlabel="F1", xlim=(0, 1))
    figure.legend(loc="outside lower center", ncols=len(evaluation.scored), frameon=False)
    return True


def _confused_rows(evaluation: EvaluationRecord, contestant: str, images: Images) -> list[image_grid.ImageRow]:
    """Return rows of images of the first training only: the grid is for viewing, not for counting."""
    model = evaluation.models_of(contestant)[0]
    names = plots.labels(evaluation.shown_class_names)
    return [
        image_grid.ImageRow(
            f"{names[pair.true]}\ntaken for {names[pair.predicted]}",
            f"{pair.count:,}, {100 * pair.share:.0f} % of the class",
            [images[place] for place in pair.examples[: image_grid.PER_ROW]],
        )
        for pair in model.worst
    ]
