"""The plots of a tuning: the same figures as its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from compare.core import wording
from compare.core.statistics import Spread, spread
from compare.reporting import plots
from compare.tuning import search_space, tuning_findings
from compare.tuning.optuna_study import Searched
from compare.tuning.tuner import Tuned
from compare.tuning.tuning_findings import Findings

_INSTANTS = 200
"""Times at which the best value so far is drawn."""
_COLOUR_MAP = "viridis"


def write(tuned: Tuned, found: Findings, folder: Path) -> list[Path]:
    """Write every plot that the trials allow, as PNG and SVG; the files written."""

    def drawing(draw: Callable[[Figure, Tuned, Findings], bool], figure: Figure) -> bool:
        return draw(figure, tuned, found)

    return plots.write_all({name: partial(drawing, draw) for name, draw in _PLOTS.items()}, folder)


def _by_trials(figure: Figure, tuned: Tuned, found: Findings) -> bool:
    def curve(searches: Sequence[Searched]) -> tuple[Sequence[float], list[Spread | None]]:
        counts = range(1, 1 + max(len(search.trials) for search in searches))
        return list(counts), [tuning_findings.over_repeats(searches, tuned.plan.settings.objective, trials=n) for n in counts]

    return _best(figure, tuned, "after each trial", "trials that have ended", curve)


def _by_seconds(figure: Figure, tuned: Tuned, found: Findings) -> bool:
    objective = tuned.plan.settings.objective

    def curve(searches: Sequence[Searched]) -> tuple[Sequence[float], list[Spread | None]]:
        # # Only while all repeats run: after that, the fastest would be missing.
        last = min(search.seconds for search in searches)
        instants = np.linspace(0.0, last, _INSTANTS)
        found = [[tuning_findings.best(search, objective, until=instant) for search in searches] for instant in instants]
        whole = [[value for value in values if value is not None] for values in found]
        return list(instants), [spread(values) if len(values) == len(searches) else None for values in whole]

    return _best(figure, tuned, "against seconds", "seconds since the search began", curve)


def _best(
    figure: Figure,
    tuned: Tuned,
    against: str,
    label: str,
    curve: Callable[[Sequence[Searched]], tuple[Sequence[float], list[Spread | None]]],
) -> bool:
    settings = tuned.plan.settings
    groups = {framework: tuning_findings.grouped(tuned, framework) for framework in settings.frameworks}
    axes: list[Axes] = list(figure.subplots(1, len(groups), sharey=True, squeeze=False)[0])
    drawn = False
    for axis, (framework, by_jobs) in zip(axes, groups.items(), strict=True):
        axis.set(title=framework, xlabel=label)
        for index, (jobs, searches) in enumerate(by_jobs.items()):
            told = [search for search in searches if search.trials]
            if not told:
                continue
            xs, spreads = curve(told)
            points = [(x, value) for x, value in zip(xs, spreads, strict=True) if value is not None]
            colour = plots.COLOURS[index % len(plots.COLOURS)]
            name = f"{wording.count(jobs, 'job')}"
            axis.step([x for x, _ in points], [each.median for _, each in points], where="post", color=colour, label=name)
            axis.fill_between(
                [x for x, _ in points],
                [each.low for _, each in points],
                [each.high for _, each in points],
                step="post",
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
            drawn = drawn or bool(points)
    axes[0].set_ylabel(f"best validation {settings.objective}")
    band = " (median; band: 25 % to 75 % quantile of the repeats)" if settings.repeats > 1 else ""
    figure.suptitle(f"Best value {against}{band}", fontsize=11)
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return drawn


def _seconds(figure: Figure, tuned: Tuned, found: Findings) -> bool:
    settings = tuned.plan.settings
    if len(settings.jobs) < 2:
        return False
    axis: Axes = figure.subplots()
    ticks = sorted(settings.jobs)
    for index, framework in enumerate(settings.frameworks):
        spreads = {
            jobs: spread([search.seconds for search in searches if search.done])
            for jobs, searches in tuning_findings.grouped(tuned, framework).items()
        }
        known = [(jobs, value) for jobs, value in spreads.items() if value is not None]
        colour, marker = plots.COLOURS[index % len(plots.COLOURS)], plots.MARKERS[index % len(plots.MARKERS)]
        whiskers = [[each.median - each.low for _, each in known], [each.high - each.median for _, each in known]]
        xs = [ticks.index(jobs) for jobs, _ in known]
        axis.errorbar(
            xs, [each.median for _, each in known], yerr=whiskers, color=colour, marker=marker, label=framework, capsize=3
        )
    axis.set_xticks(range(len(ticks)), [str(jobs) for jobs in ticks])
    cores = tuned.plan.budget
    title = f"Seconds of a search, on {wording.count(cores, 'core')} in all (median; whiskers: 25 % to 75 % quantile)"
    axis.set(title=title, xlabel=f"jobs ({settings.backend})", ylabel="seconds", ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return any(search.done for search in tuned.searches)


def _importance(figure: Figure, tuned: Tuned, found: Findings) -> bool:
    axis: Axes = figure.subplots()
    fields = list(dict.fromkeys(field for parts in found.importances.values() for field in parts))
    height = 0.8 / max(len(found.importances), 1)
    for index, (framework, parts) in enumerate(found.importances.items()):
        places = [place + height * (index - (len(found.importances) - 1) / 2) for place in range(len(fields))]
        colour = plots.COLOURS[index % len(plots.COLOURS)]
        axis.barh(places, [parts.get(field, 0.0) for field in fields], height, color=colour, label=framework)
    axis.set_yticks(range(len(fields)), fields)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set(title="Importance (fANOVA over the trials that were trained to their end)", xlabel="part of the variance")
    if fields:
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return bool(fields)


def _parallel(figure: Figure, tuned: Tuned, found: Findings) -> bool:
    settings = tuned.plan.settings
    distributions = search_space.judged(settings.space, settings.values, settings.space_name).distributions
    whole = [
        (search.framework, trial)
        for search in tuned.searches
        for trial in search.trials
        if trial.state == "ok" and trial.value is not None
    ]
    if len(whole) < 2:
        return False
    values = [trial.value or 0.0 for _, trial in whole]
    # The better half of the ranks has most of the colours: one bad trial would leave the rest in one.
    low, high = (
        float(quantile) for quantile in np.quantile(values, (0.0, 0.9) if settings.objective == "loss" else (0.1, 1.0))
    )
    norm = Normalize(low, high if high > low else low + 1.0)
    colours = mpl.colormaps[_COLOUR_MAP if settings.objective == "accuracy" else f"{_COLOUR_MAP}_r"]
    figure.set_size_inches(max(9.0, 1.8 * len(distributions)), 4.5 * len(settings.frameworks))
    axes: list[Axes] = list(figure.subplots(len(settings.frameworks), 1, squeeze=False)[:, 0])
    names = [*distributions, f"validation {settings.objective}"]
    for axis, framework in zip(axes, settings.frameworks, strict=True):
        own = [trial for name, trial in whole if name == framework]
        own.sort(key=lambda trial: trial.value or 0.0, reverse=settings.objective == "loss")  # the best on top
        lines = [
            [(place, _height(distributions[field], trial.fields[field])) for place, field in enumerate(distributions)]
            + [(len(distributions), float(norm(trial.value or 0.0)))]
            for trial in own
        ]
        shades = [colours(float(np.clip(norm(trial.value or 0.0), 0, 1))) for trial in own]
        axis.add_collection(LineCollection(lines, colors=shades, linewidths=1.5, alpha=0.8))
        axis.set(title=framework, xlim=(-0.2, len(names) - 0.8), ylim=(-0.05, 1.05))
        axis.set_xticks(range(len(names)), names, rotation=15, ha="right", fontsize=8)
        axis.set_yticks([])
        axis.grid(visible=False)
        axis.spines[["left", "bottom"]].set_visible(False)
        for place, field in enumerate(distributions):
            axis.axvline(place, color="black", linewidth=0.8)
            for text, height in _marks(distributions[field]):
                axis.annotate(text, (place, height), (3, 0), textcoords="offset points", fontsize=7, va="center")
        axis.axvline(len(distributions), color="black", linewidth=0.8)
        for height in (0.0, 1.0):
            text = f"{norm.inverse(height):.4g}"
            axis.annotate(text, (len(distributions), height), (3, 0), textcoords="offset points", fontsize=7, va="center")
    return True


def _height(distribution: BaseDistribution, value: Any) -> float:
    """Position of a value on its axis, 0..1."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices.index(value) / max(len(distribution.choices) - 1, 1)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    ends = np.array([value, distribution.low, distribution.high], float)
    own, low, high = np.log(ends) if distribution.log else ends
    return float((own - low) / (high - low))


def _marks(distribution: BaseDistribution) -> list[tuple[str, float]]:
    if isinstance(distribution, CategoricalDistribution):
        return [(str(choice), _height(distribution, choice)) for choice in distribution.choices]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return [(f"{distribution.low:.4g}", 0.0), (f"{distribution.high:.4g}", 1.0)]


_PLOTS: dict[str, Callable[[Figure, Tuned, Findings], bool]] = {
    "best_after_trials": _by_trials,
    "best_after_seconds": _by_seconds,
    "seconds_by_jobs": _seconds,
    "importance": _importance,
    "parallel_coordinates": _parallel,
}
