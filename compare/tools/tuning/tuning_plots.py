"""The plots of a tuning: the same figures as its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from compare.cli.wording import count
from compare.reporting.plots import COLOURS, MARKERS, Drawing
from compare.statistics.statistics import Spread, spread
from compare.tools.tuning.records import TuningRecord, TuningSearch
from compare.tools.tuning.tuning_findings import Findings, over_repeats

_INSTANTS = 200
"""Number of instants when the best value so far is drawn."""

_Curve = Callable[[Sequence[TuningSearch]], list[tuple[float, Spread | None]]]


def drawings(tuned: TuningRecord, findings: Findings) -> dict[str, Drawing]:
    """Return the plots by name."""
    objective = tuned.plan.settings.objective

    def by_trials(searches: Sequence[TuningSearch]) -> list[tuple[float, Spread | None]]:
        counts = range(1, 1 + max(len(search.trials) for search in searches))
        return [(n, over_repeats(searches, objective, trials=n)) for n in counts]

    def by_seconds(searches: Sequence[TuningSearch]) -> list[tuple[float, Spread | None]]:
        # Only while all repeats run: after that, the fastest would be missing.
        instants = np.linspace(0.0, min(search.seconds for search in searches), _INSTANTS)
        best = {float(instant): [search.best(objective, until=instant) for search in searches] for instant in instants}
        return [
            (instant, None if None in values else spread([value or 0.0 for value in values]))
            for instant, values in best.items()
        ]

    trials, seconds = ("after each trial", "trials that have ended"), ("against seconds", "seconds since the search began")
    return {
        "best_after_trials": partial(_best, tuned, *trials, by_trials),
        "best_after_seconds": partial(_best, tuned, *seconds, by_seconds),
        "seconds_by_jobs": partial(_seconds, tuned),
        "importance": partial(_importance, findings.importances),
        "parallel_coordinates": partial(_parallel, tuned),
    }


def _best(tuned: TuningRecord, against: str, label: str, curve: _Curve, figure: Figure) -> bool:
    settings = tuned.plan.settings
    axes: list[Axes] = list(figure.subplots(1, len(settings.frameworks), sharey=True, squeeze=False)[0])
    drawn = False
    for axis, contestant in zip(axes, settings.frameworks, strict=True):
        axis.set(title=contestant, xlabel=label)
        for index, (jobs, searches) in enumerate(tuned.by_jobs(contestant).items()):
            started = [search for search in searches if search.trials]
            if not started:
                continue
            points = [(x, value) for x, value in curve(started) if value is not None]
            xs = [x for x, _ in points]
            colour = COLOURS[index % len(COLOURS)]
            axis.step(xs, [point.median for _, point in points], where="post", color=colour, label=count(jobs, "job"))
            low, high = [point.low for _, point in points], [point.high for _, point in points]
            axis.fill_between(xs, low, high, step="post", color=colour, alpha=0.15, linewidth=0)
            drawn = drawn or bool(points)
    axes[0].set_ylabel(f"best validation {settings.objective}")
    band = " (median; band: 25 % to 75 % quantile of the repeats)" if settings.repeats > 1 else ""
    figure.suptitle(f"Best value {against}{band}", fontsize=11)
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return drawn


def _seconds(tuned: TuningRecord, figure: Figure) -> bool:
    settings = tuned.plan.settings
    if len(settings.jobs) < 2:
        return False
    axis: Axes = figure.subplots()
    ticks = sorted(settings.jobs)
    for index, contestant in enumerate(settings.frameworks):
        by_jobs = tuned.by_jobs(contestant).items()
        spreads = {jobs: spread([search.seconds for search in searches if search.done]) for jobs, searches in by_jobs}
        known = {ticks.index(jobs): value for jobs, value in spreads.items() if value is not None}
        medians = [point.median for point in known.values()]
        whiskers = [
            [point.median - point.low for point in known.values()],
            [point.high - point.median for point in known.values()],
        ]
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        axis.errorbar(list(known), medians, yerr=whiskers, color=colour, marker=marker, label=contestant, capsize=3)
    axis.set_xticks(range(len(ticks)), [str(jobs) for jobs in ticks])
    cores = count(tuned.plan.budget, "core")
    title = f"Seconds of a search, on {cores} in all (median; whiskers: 25 % to 75 % quantile)"
    axis.set(title=title, xlabel=f"jobs ({settings.backend})", ylabel="seconds", ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return any(search.done for search in tuned.searches)


def _importance(importances: dict[str, dict[str, float]], figure: Figure) -> bool:
    axis: Axes = figure.subplots()
    fields = list(dict.fromkeys(field for parts in importances.values() for field in parts))
    height = 0.8 / max(len(importances), 1)
    for index, (contestant, parts) in enumerate(importances.items()):
        places = [place + height * (index - (len(importances) - 1) / 2) for place in range(len(fields))]
        colour = COLOURS[index % len(COLOURS)]
        axis.barh(places, [parts.get(field, 0.0) for field in fields], height, color=colour, label=contestant)
    axis.set_yticks(range(len(fields)), fields)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set(title="Importance (fANOVA over the trials that were trained to their end)", xlabel="part of the variance")
    if fields:
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return bool(fields)


def _parallel(tuned: TuningRecord, figure: Figure) -> bool:
    settings = tuned.plan.settings
    scored = {contestant: tuned.scored(contestant) for contestant in settings.frameworks}
    values = [trial.value or 0.0 for trials in scored.values() for trial in trials]
    if len(values) < 2:
        return False
    minimize = settings.objective == "loss"
    colours = mpl.colormaps["viridis_r" if minimize else "viridis"]
    # The better half of the ranks has most of the colours. Otherwise one bad trial would leave the rest in one colour.
    low, high = map(float, np.quantile(values, (0.0, 0.9) if minimize else (0.1, 1.0)))
    norm = Normalize(low, high if high > low else low + 1.0)
    distributions = settings.checked_space().distributions
    marks = {field: _marks(drawn) for field, drawn in distributions.items()}
    marks[f"validation {settings.objective}"] = [(f"{norm.inverse(height):.4g}", height) for height in (0.0, 1.0)]
    figure.set_size_inches(max(9.0, 1.8 * len(distributions)), 4.5 * len(scored))
    axes: list[Axes] = list(figure.subplots(len(scored), 1, squeeze=False)[:, 0])
    for axis, (contestant, trials) in zip(axes, scored.items(), strict=True):
        for trial in sorted(trials, key=lambda trial: trial.value or 0.0, reverse=minimize):  # the best on top
            heights = [_height(drawn, trial.fields[field]) for field, drawn in distributions.items()]
            value = float(norm(trial.value or 0.0))
            axis.plot([*heights, value], color=colours(float(np.clip(value, 0, 1))), linewidth=1.5, alpha=0.8)
        axis.set(title=contestant, xlim=(-0.2, len(marks) - 0.8), ylim=(-0.05, 1.05))
        axis.set_xticks(range(len(marks)), list(marks), rotation=15, ha="right", fontsize=8)
        axis.set_yticks([])
        axis.grid(visible=False)
        axis.spines[["left", "bottom"]].set_visible(False)
        for place, positions in enumerate(marks.values()):
            axis.axvline(place, color="black", linewidth=0.8)
            for text, height in positions:
                axis.annotate(text, (place, height), (3, 0), textcoords="offset points", fontsize=7, va="center")
    return True


def _height(distribution: BaseDistribution, value: Any) -> float:
    """Return the position of a value on its axis, from 0 to 1."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices.index(value) / max(len(distribution.choices) - 1, 1)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return float((LogNorm if distribution.log else Normalize)(distribution.low, distribution.high)(value))


def _marks(distribution: BaseDistribution) -> list[tuple[str, float]]:
    """Return (text, position) of each mark of an axis."""
    if isinstance(distribution, CategoricalDistribution):
        return [(str(choice), _height(distribution, choice)) for choice in distribution.choices]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return [(f"{distribution.low:.4g}", 0.0), (f"{distribution.high:.4g}", 1.0)]
