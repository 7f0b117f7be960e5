"""The plots of a comparison. They show the figures of its tables and no others."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Annotation
from matplotlib.textpath import TextPath
from matplotlib.ticker import MaxNLocator

from common.artifacts.schema import Phases
from compare.judgement.row_figures import FAILURES, Summary
from compare.reporting import class_tables, plots
from compare.reporting.plots import COLOURS, LINE_STYLES, MARKERS, Drawing
from compare.statistics.statistics import Ratio

DrawResult = bool | Literal["x", "y"]
"""Return type of a `Drawing`."""

_HATCH: dict[str, Any] = {"hatch": "////", "edgecolor": "white", "linewidth": 0}
"""Style of a bar whose time is in doubt."""
_ALPHA = {"speedup_one_core": 0.45, "speedup_same_cores": 1.0}
"""Opacity of a speed-up's bar, by what it is against. Its colour is the contestant's."""
CONFUSION = "confusion"
"""The plot that also shows class names."""

_CLASS_SIDE, _LEAST_SIDE, _MOST_SIDE = 0.24, 2.4, 6.0
"""Inches of one class, and of a whole confusion matrix."""
_TOTAL_WIDTH, _LABEL_MARGIN = 12.0, 0.9
"""Inches of all matrices side by side, and of their titles and axis labels. The class names come on top."""
_VERTICAL_GAP = 0.1
"""Inches above and below each matrix."""
_NAME_SIZE = 6
"""Font size of class names, in points."""
_LETTERS_PER_INCH = 12
"""Letters per inch in a line of a matrix's title."""
_DARK_BELOW = 0.18
"""Luminance below which white text stands out more than black."""
_MOST_COUNTED, _MOST_NAMED = 15, 50
"""Numbers of classes above which counts and names are too small to read."""


def drawings(summaries: Sequence[Summary], class_names: Sequence[str] = ()) -> dict[str, Drawing]:
    """Every plot of a comparison by name, for `plots.write_all`.

    Args:
        class_names: by class id. Classes beyond them are shown by id.
    """

    def drawing(name: str, figure: Figure) -> DrawResult:
        result = draw(name, figure, summaries, class_names)
        if omitted := omitted_rows(summaries):
            figure.text(0.01, -0.02, f"Left out: {omitted}", fontsize=8, va="top")
        return result

    return {name: partial(drawing, name) for name in names()}


def names() -> tuple[str, ...]:
    """Names of all plots."""
    return (*_PLOTS, CONFUSION)


def draw(name: str, figure: Figure, summaries: Sequence[Summary], class_names: Sequence[str] = ()) -> DrawResult:
    """Draw one plot into a figure, within SETTINGS. The result is that of a `Drawing`."""
    visible_summaries = [summary for summary in summaries if has_figures(summary)]
    if name == CONFUSION:
        return draw_confusion(
            figure,
            {summary.name: class_tables.mean_confusion(summary) for summary in visible_summaries if summary.confusion},
            class_names,
        )
    return _PLOTS[name](figure, visible_summaries)


def has_figures(summary: Summary) -> bool:
    """Whether a row has figures that can be compared with others."""
    return summary.repeats_done > 0 and summary.status not in FAILURES


def omitted_rows(summaries: Sequence[Summary]) -> str:
    """The rows that no plot shows, by name and reason: `tensorflow multi_process x2 (killed)`."""
    return ", ".join(f"{summary.name} ({summary.status})" for summary in summaries if not has_figures(summary))


def _curves(score: str, figure: Figure, summaries: Sequence[Summary]) -> DrawResult:
    axes: list[Axes] = list(figure.subplots(1, 2, sharey=True))
    has_points = False
    for axis, split, field in ((axes[0], "training", f"train_{score}"), (axes[1], "validation", f"validation_{score}")):
        axis.set(title=f"{split} {score}", xlabel="epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.set_xlim(0.5, max((epoch.epoch for summary in summaries for epoch in summary.epochs), default=1) + 0.5)
        for summary, style in zip(summaries, _styles(summaries), strict=True):
            points = [(epoch.epoch, value) for epoch in summary.epochs if (value := getattr(epoch, field)) is not None]
            (line,) = axis.plot([x for x, _ in points], [y for _, y in points], label=summary.name, **style)
            labels = [f"{summary.name}, epoch {x}: {split} {score} {y:.4f}" for x, y in points if math.isfinite(y)]
            plots.mark(line, summary.name, labels)
            has_points = has_points or bool(points)
    axes[0].set_ylabel(score)
    handles, legend_labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, legend_labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return has_points and ("y" if score == "loss" else True)


def _seconds(figure: Figure, summaries: Sequence[Summary]) -> DrawResult:
    timed = [(summary, summary.epoch_seconds) for summary in summaries if summary.epoch_seconds]
    axis: Axes = figure.subplots()
    for place, (summary, seconds) in enumerate(timed):
        ends = (seconds.low, seconds.high) if seconds.n > 1 else None
        colour = _colour(summary, summaries)
        hatch = _HATCH if summary.in_doubt else {}
        label = f"{summary.name}: {{}} s per epoch"
        _bar(axis, place, seconds.median, summary.contestant, label, ends, color=colour, **hatch)
    name_rows(axis, [summary.name for summary, _ in timed])
    doubt = "; hatched: in doubt" if any(summary.in_doubt for summary, _ in timed) else ""
    several = any(seconds.n > 1 for _, seconds in timed)
    spread_words = "median; whiskers: 25 % to 75 % quantile" if several else "one repeat"
    axis.set(title=f"Seconds per epoch ({spread_words}{doubt})", xlabel="seconds")
    return timed != [] and "x"


def _speedup(figure: Figure, summaries: Sequence[Summary]) -> DrawResult:
    baselines = (("serial on 1 core", "speedup_one_core"), ("serial on the same cores", "speedup_same_cores"))
    compared = [summary for summary in summaries if any(_ratio(summary, key) for _, key in baselines)]
    axis: Axes = figure.subplots()
    for place, summary in enumerate(compared):
        ratios = [(base, key, ratio) for base, key in baselines if (ratio := _ratio(summary, key)) is not None]
        for index, (base, key, ratio) in enumerate(ratios):
            ends = None
            if ratio.low is not None and ratio.high is not None and ratio.has_enough_pairs:
                ends = ratio.low, ratio.high
            series, y = f"against {base}", place + 0.4 * (index - (len(ratios) - 1) / 2)
            label = f"{summary.name}: {{}} times as fast as {base}"
            style = {"color": _colour(summary, summaries), "alpha": _ALPHA[key]}
            _bar(axis, y, ratio.value, series, label, ends, height=0.38, label=series, **style)
    axis.axvline(1.0, color="black", linewidth=1)
    name_rows(axis, [summary.name for summary in compared])
    axis.set(title="Speed-up by seconds per epoch (whiskers: 95 % interval, from 5 repeats on)")
    axis.set(xlabel=f"times as fast{_omission_note(summaries)}")
    drawn = dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    handles = [
        Patch(color="0.35", alpha=_ALPHA[key], label=series)
        for base, key in baselines
        if (series := f"against {base}") in drawn
    ]
    figure.legend(handles=handles, loc="outside lower center", frameon=False, ncols=2)
    return compared != [] and "x"


def _ratio(summary: Summary, key: str) -> Ratio | None:
    """A ratio of a row. None if there is none, or if a word of `hidden_ratios` replaces it."""
    ratio = summary.reported_ratio(key)
    return ratio if isinstance(ratio, Ratio) else None


def _omission_note(summaries: Sequence[Summary]) -> str:
    words = dict.fromkeys(word for summary in summaries for word in summary.hidden_ratios.values())
    return f" (left out: {', '.join(words)})" if words else ""


def _efficiency(figure: Figure, summaries: Sequence[Summary]) -> DrawResult:
    compared = [
        summary
        for summary in summaries
        if summary.parallel_efficiency is not None and "parallel_efficiency" not in summary.hidden_ratios
    ]
    axis: Axes = figure.subplots()
    for place, summary in enumerate(compared):
        label = f"{summary.name}: parallel efficiency {{}}"
        _bar(axis, place, summary.parallel_efficiency or 0.0, summary.contestant, label, color=_colour(summary, summaries))
    axis.axvline(1.0, color="black", linewidth=1)
    name_rows(axis, [summary.name for summary in compared])
    axis.set(
        title="Parallel efficiency (speed-up over the ratio of resources; 1: nothing is lost)",
        xlabel=f"efficiency{_omission_note(summaries)}",
    )
    return bool(compared)


def _phases(figure: Figure, summaries: Sequence[Summary]) -> DrawResult:
    timed = [(summary.name, summary.phases) for summary in summaries if summary.phases]
    axis: Axes = figure.subplots()
    for place, (row, phases) in enumerate(timed):
        end = 0.0
        for name, (colour, hatch, pick) in _PHASES.items():
            (bar,) = axis.barh(
                place, pick(phases), left=end, color=colour, label=name, hatch=hatch, edgecolor="white", linewidth=0
            )
            plots.mark(bar, name, [f"{row}, {name}: {pick(phases):.2f} s"])
            end += pick(phases)
        _label(axis, end, end, place)
    name_rows(axis, [name for name, _ in timed])
    axis.set(title="Wall seconds by phase", xlabel="seconds")
    _legend(figure, axis, ncols=4, fontsize=9)
    return bool(timed)


_PHASES: dict[str, tuple[str, str | None, Callable[[Phases], float]]] = {
    "import": ("#dadaeb", None, lambda phases: phases.import_seconds),
    "build": ("#bcbddc", None, lambda phases: phases.build_seconds),
    "first step": ("#9e9ac8", None, lambda phases: phases.first_step_seconds),
    "compile": ("#c994c7", None, lambda phases: phases.compile_seconds),
    "training": ("#6a51a3", None, lambda phases: phases.training_seconds - phases.input_wait_seconds),
    "training: wait for input": ("#6a51a3", "////", lambda phases: phases.input_wait_seconds),
    "evaluation": ("#737373", None, lambda phases: phases.evaluation_seconds),
    "other": ("#bdbdbd", None, lambda phases: phases.other_seconds),
}
"""Colour, hatch and seconds of each phase, stacked in this order. No phase has the colour of a contestant. The wait for input
is part of the training."""


def _input(figure: Figure, summaries: Sequence[Summary]) -> DrawResult:
    timed = [summary for summary in summaries if summary.part == "input" and summary.images_per_second]
    workers = sorted({summary.workers for summary in timed})
    if len(workers) < 2:
        return False
    axis: Axes = figure.subplots()
    lines = list(dict.fromkeys(summary.fed_name for summary in timed))
    for index, name in enumerate(lines):
        line_summaries = sorted((summary for summary in timed if summary.fed_name == name), key=lambda summary: summary.workers)
        rates = [summary.images_per_second.median for summary in line_summaries if summary.images_per_second]
        (line,) = axis.plot(
            [workers.index(summary.workers) for summary in line_summaries],
            rates,
            label=name,
            color=_colour(line_summaries[0], summaries),
            linestyle=LINE_STYLES[index % len(LINE_STYLES)],
            marker=MARKERS[index % len(MARKERS)],
        )
        plots.mark(
            line, name, [f"{summary.name}: {rate:.0f} images/s" for summary, rate in zip(line_summaries, rates, strict=True)]
        )
    axis.set_xticks(range(len(workers)), [str(number) if number else "inline" for number in workers])
    axis.set(title="Images per second of the input alone (median)", xlabel="input workers", ylabel="images/s", ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return "y"


def draw_confusion(figure: Figure, confusions: Mapping[str, Sequence[Sequence[float]]], class_names: Sequence[str]) -> bool:
    """Draw confusion matrices side by side, within SETTINGS. False: there are none.

    Args:
        figure: figure whose size is changed to what the matrices need.
        confusions: counts by name, means of the repeats: examples of each true class (row) by predicted class (column).
        class_names: by class id. Classes beyond them are shown by id.
    """
    matrices = {name: np.array(counts) for name, counts in confusions.items()}
    if not matrices:
        return False
    size = max(map(len, matrices.values()))
    names = plots.labels(class_tables.short_class_names(class_names, size))
    side = min(max(_LEAST_SIDE, _CLASS_SIDE * size), _MOST_SIDE)
    lines = math.ceil(len(matrices) / int(_TOTAL_WIDTH / side))
    columns = math.ceil(len(matrices) / lines)
    is_named = size <= _MOST_NAMED
    ids = "" if is_named else ", by its id"
    margin = _LABEL_MARGIN + (max(map(_inches, names)) if is_named else 0.0)
    lines_with_names = 1 + (len(matrices) > columns and len(matrices) % columns > 0)
    figure.set_size_inches(columns * side + margin, lines * side + lines_with_names * margin)
    figure.set_layout_engine("compressed", h_pad=_VERTICAL_GAP)  # for square axes
    for place, (name, counts) in enumerate(matrices.items()):
        axis = figure.add_subplot(lines, columns, place + 1)
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        colours = axis.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0).to_rgba(shares)
        axis.set_title(textwrap.fill(name, int(side * _LETTERS_PER_INCH)), fontsize=9)
        axis.grid(visible=False)
        if size <= _MOST_COUNTED:
            for true, predicted in np.argwhere(counts):
                is_dark = plots.luminance(colours[true, predicted]) < _DARK_BELOW
                colour = "white" if is_dark else "#000001"  # black itself would follow the page's theme
                text = axis.text(
                    predicted,
                    true,
                    class_tables.count_text(float(counts[true, predicted])),
                    ha="center",
                    va="center",
                    fontsize=6,
                    color=colour,
                )
                text.set_in_layout(False)
        lowest, leftmost = place + columns >= len(matrices), place % columns == 0  # ticks take most of the time to draw
        if is_named:
            axis.set_xticks(range(size) if lowest else [], names if lowest else [], rotation=90, fontsize=_NAME_SIZE)
            axis.set_yticks(range(size) if leftmost else [], names if leftmost else [], fontsize=_NAME_SIZE)
        axis.set(xlabel=f"taken for{ids}" if lowest else "", ylabel=f"true class{ids}" if leftmost else "")
    figure.suptitle("Confusion (test split, mean of the repeats; colour: share of the true class)", fontsize=11)
    return True


def _inches(name: str) -> float:
    """Length of a class's name, in inches."""
    return TextPath((0, 0), name, size=_NAME_SIZE).get_extents().width / 72


_PLOTS: dict[str, Callable[[Figure, Sequence[Summary]], DrawResult]] = {
    "loss": partial(_curves, "loss"),
    "accuracy": partial(_curves, "accuracy"),
    "seconds_per_epoch": _seconds,
    "speedup": _speedup,
    "efficiency": _efficiency,
    "phases": _phases,
    "images_per_second": _input,
}


def _styles(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """The colour of its contestant for each row, a line and marker for each mode. Thick to thin: curves of twins overlap."""
    modes = list(dict.fromkeys(summary.configuration for summary in summaries))
    styles: list[dict[str, Any]] = []
    for index, summary in enumerate(summaries):
        mode = modes.index(summary.configuration)
        thickness = 1.0 - index / max(len(summaries), 2)
        styles.append(
            {
                "color": _colour(summary, summaries),
                "linestyle": LINE_STYLES[mode % len(LINE_STYLES)],
                "marker": MARKERS[mode % len(MARKERS)],
                "markerfacecolor": "white" if mode else None,
                "markersize": 3 + 8 * thickness,
                "linewidth": 1 + 6 * thickness,
            }
        )
    return styles


def _colour(summary: Summary, summaries: Sequence[Summary]) -> str:
    contestants = list(dict.fromkeys(other.contestant for other in summaries))
    return COLOURS[contestants.index(summary.contestant) % len(COLOURS)]


def _legend(figure: Figure, axis: Axes, **options: Any) -> None:
    """One entry for each label below the plot."""
    handles, labels = axis.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(unique.values(), unique.keys(), loc="outside lower center", frameon=False, **options)


def _bar(
    axis: Axes, y: float, value: float, series: str, tooltip: str, ends: tuple[float, float] | None = None, **options: Any
) -> None:
    """Draw a bar of a series, with whiskers and its value. `tooltip` has a field for the value."""
    whiskers = [[value - ends[0]], [ends[1] - value]] if ends else None
    bars = axis.barh(y, value, xerr=whiskers, capsize=3, **options)
    interval = f" ({ends[0]:.3f} to {ends[1]:.3f})" if ends else ""
    plots.mark(bars[0], series, [tooltip.format(f"{value:.3f}{interval}")])
    for other in (*(bars.errorbar.get_children() if bars.errorbar else ()), _label(axis, value, ends[1] if ends else value, y)):
        plots.mark(other, series)


def _label(axis: Axes, value: float, x: float, y: float) -> Annotation:
    """Write a bar's value after its end."""
    axis.margins(x=0.12)  # room for the value of the longest one
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.8}
    return axis.annotate(f"{value:.2f}", (x, y), (6, 0), textcoords="offset points", va="center", fontsize=9, bbox=box)


def draw_ratio(axis: Axes, place: int, ratio: Ratio, series: str, words: str, colour: str = plots.COLOURS[0]) -> None:
    """Draw a ratio with its interval, in the row at `place`. `words` are its tooltip."""
    ends = (ratio.low, ratio.high) if ratio.low is not None and ratio.high is not None and ratio.is_bounded else None
    whiskers = [[ratio.value - ends[0]], [ends[1] - ratio.value]] if ends else None
    container = axis.errorbar(ratio.value, place, xerr=whiskers, fmt="o", capsize=3, color=colour)
    plots.mark(container[0], series, [words])


def name_rows(axis: Axes, names: Sequence[str]) -> None:
    """Write names of rows from top to bottom, and make the figure high enough for them."""
    figure = axis.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(max(figure.get_figheight(), 2 + 0.3 * len(names)))
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
