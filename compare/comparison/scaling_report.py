"""The report of a scaling: its tables and its plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from compare.comparison.scaling_fit import TOPOLOGIES, ScalingPoint, ScalingProjection, ScalingResult
from compare.comparison.scaling_rows import KINDS, Kind
from compare.core import wording
from compare.core.scaling_laws import Topology
from compare.core.statistics import Ratio
from compare.core.terminal import FULL
from compare.core.verdict_words import interval_words
from compare.judgement import cautions
from compare.judgement.row_figures import DISTURBED, FAILURES, UNFINISHED
from compare.reporting import comparison_report, comparison_screen, document, plots
from compare.reporting.comparison_report import JudgedComparison
from compare.reporting.document import Report
from compare.reporting.screen import Bar, Chart, Paragraph, Screen
from compare.reporting.tables import Cell, Column, Table

NAME, SCALING_FILE = "scaling", "scaling.json"

_CONTESTANT, _MODE, _KIND = Column("contestant", "contestant"), Column("mode", "mode"), Column("kind", "scaling")
_WORKERS = Column("workers", "input workers", terminal=False)
_RATIOS = ("speedup_one_core", "speedup_same_cores", "speedup_same_batch", "efficiency_one_core", "efficiency_same_batch")


def report(compared: JudgedComparison, folder: Path, scaling: ScalingResult, arguments: Sequence[str]) -> Report:
    """Build the report of a scaling, which is written beside the report of its runs.

    Args:
        arguments: arguments besides `scaling --stored DIR` of the command that makes it again.
    """
    tables = (points_table(scaling), laws_table(scaling), checks_table(scaling), projected_table(scaling))
    checks = [{**check.model_dump(), "error": check.error} for check in scaling.checks]
    command = wording.shell(["scaling", "--stored", str(folder), *arguments])
    return Report(
        title="Scaling",
        name=NAME,
        json_file=SCALING_FILE,
        facts=comparison_report.facts(compared),
        findings=[("Cautions", compared.in_words(compared.cautions, folder))] if compared.cautions else [],
        tables=[table for table in tables if table.rows],
        drawings={NAME: lambda figure: draw(scaling, figure)},
        environment=[*comparison_report.environment(compared), *comparison_report.source_digest(compared.stored.made_from)],
        commands=[("This report, from the stored results:", f"{document.COMPARE} {command}")],
        values=scaling.model_dump() | {"checks": checks, "made_from": compared.stored.made_from},
        exit_code=compared.exit_code,
        failures=compared.failures,
        screen=screen(compared, scaling),
        again=f"{document.COMPARE} {command} {FULL}",
    )


def screen(compared: JudgedComparison, scaling: ScalingResult) -> Screen:
    """Build the first screen: how much faster the largest number of replicas is, and the speed-up of every point."""
    stored = compared.stored
    largest: dict[tuple[str, str, Kind], ScalingPoint] = {}
    for point in sorted(scaling.points, key=lambda item: item.replicas):
        largest[point.contestant, point.mode, point.kind] = point
    failed = [
        f"{summary.id} {summary.status}: {summary.reason or 'no reason given'}"
        for summary in compared.summaries
        if summary.status in (*FAILURES, *UNFINISHED)
    ]
    not_comparable = [] if compared.findings.comparable else ["No ratios: the timed runs did not train the same."]
    caution_count = wording.count(len(compared.in_words(compared.cautions)), "caution")
    answers = [
        Paragraph("Speed-up", [_speedup_text(point) for point in largest.values()]),
        Paragraph("Trouble", [*failed, *not_comparable, *compared.in_words(cautions.signature(stored))], "bad"),
    ]
    return Screen(
        subject=["How does it scale?", *comparison_screen.subject_parts(stored)],
        answers=[paragraph for paragraph in answers if paragraph.sentences],
        chart=Chart(
            ("times as fast as serial on 1 core", "times serial, 1 core"),
            ["efficiency", ""],
            [_bar(point) for point in scaling.points],
        ),
        remarks=[
            *([f"{caution_count}: {FULL}."] if compared.cautions else []),
            *([stored.signature.sentence] if stored.signature is not None and stored.signature.confirmed else []),
        ],
    )


def _speedup_text(point: ScalingPoint) -> str:
    subject = f"{point.contestant} {point.mode}, {point.kind} scaling, {wording.count(point.replicas, 'replica')}"
    if point.disturbed:
        return f"{subject}: no finding. Other work disturbed it."
    if (ratio := point.speedup_one_core) is None:
        return f"{subject}: {point.status if point.status != 'ok' else 'no ratio'}."
    doubt = " Do not rely on it: other work may have disturbed it." if point.in_doubt else ""
    return f"{subject}: {interval_words(ratio)} times as fast as serial on 1 core.{doubt}"


def _bar(point: ScalingPoint) -> Bar:
    ratio = None if point.disturbed else point.speedup_one_core
    written = DISTURBED if point.disturbed else point.status if ratio is None else f"{ratio.value:.2f}"
    known = ratio is not None and point.efficiency_one_core is not None
    efficiency = f"{point.efficiency_one_core:.2f}" if known else ""
    doubt = "in doubt" if point.in_doubt and not point.disturbed else ""
    name = (point.contestant, point.mode, point.kind, f"x{point.replicas}")
    return Bar(name, ratio and ratio.value, written, [efficiency, "oversubscribed" if point.oversubscribed else doubt])


def points_table(scaling: ScalingResult) -> Table:
    columns = (
        _CONTESTANT,
        _MODE,
        _KIND,
        Column("replicas", "replicas", short="repl."),
        Column("cores", "cores"),
        Column("global_batch_size", "global batch", short="batch"),
        _WORKERS,
        Column("images_per_second", "images/s", 0, short="img/s", interval=True),
        Column("speedup_one_core", "against serial, 1 core", 2, short="vs serial,\n1 core", interval=True),
        Column("speedup_same_cores", "against serial, same cores", 2, short="vs serial,\nsame cores", interval=True, wide=True),
        Column(
            "speedup_same_batch", "against serial, same per-replica batch", 2, short="same\nbatch", interval=True, wide=True
        ),
        Column("efficiency_one_core", "efficiency, 1 core", 2, short="eff."),
        Column("efficiency_same_batch", "efficiency, same per-replica batch", 2, short="eff., same\nbatch", wide=True),
        Column("status", "status", fold=14),
    )
    return Table(
        "scaling",
        "Scaling, measured",
        columns,
        [
            {column.key: getattr(point, column.key) for column in columns}
            | {name: DISTURBED for name in _RATIOS if point.disturbed and getattr(point, name)}
            | {"status": _status(point)}
            for point in scaling.points
        ],
        spreads_on_terminal=False,
        note="Ratios of seconds per epoch, paired by repeat. Same batch: against serial with the batch of one replica. "
        "Oversubscribed: there are more replicas than cores, so replicas share cores. In doubt: other work disturbed this run "
        "or the serial run, or they were too short to tell. Do not rely on such a time.",
    )


def _status(point: ScalingPoint) -> str:
    marks = ["oversubscribed"] * point.oversubscribed + ["in doubt"] * point.in_doubt
    return ", ".join(marks) or "ok" if point.status == "ok" else point.status


def laws_table(scaling: ScalingResult) -> Table:
    columns = (
        _CONTESTANT,
        _MODE,
        Column("law", "law"),
        Column("serial_fraction", "serial fraction", 3, interval=True),
        Column("n", "points"),
        Column("speedup_8", "at 8 replicas", 1),
        Column("speedup_64", "at 64", 1),
    )
    cells: list[dict[str, Cell]] = []
    for law in scaling.laws:
        fraction = law.fraction
        ratio = Ratio(value=fraction.value, low=fraction.low, high=fraction.high, n=fraction.n)
        row: dict[str, Cell] = {"contestant": law.contestant, "mode": law.mode, "law": fraction.law, "n": fraction.n}
        extrapolated = (8, 64) if 0.0 <= fraction.value <= 1.0 else ()
        cells.append(
            row | {"serial_fraction": ratio} | {f"speedup_{replicas}": fraction.speedup(replicas) for replicas in extrapolated}
        )
    return Table(
        "scaling_laws",
        "The laws, fitted",
        columns,
        cells,
        note="Serial fraction with its 95 % t-interval, if there are 3 repeats or more. All points of a repeat share its "
        "serial run, so each repeat is one sample. Speed-ups at 8 and 64 replicas follow from the law. They are not measured. "
        "A fraction below zero: smaller batches gained more than the number of replicas. "
        "Above one: replicas are slower than serial. Neither says anything about more replicas.",
    )


def checks_table(scaling: ScalingResult) -> Table:
    columns = (
        _CONTESTANT,
        _MODE,
        _KIND,
        _WORKERS,
        Column("replicas", "replicas"),
        Column("fitted_on", "link fitted on"),
        Column("predicted_seconds", "predicted s/step", 4),
        Column("measured_seconds", "measured s/step", 4),
        Column("error_percent", "error %", 1),
    )
    cells: list[dict[str, Cell]] = [
        check.model_dump()
        | {"fitted_on": ", ".join(map(str, check.fitted_on)) or "serial alone", "error_percent": 100 * check.error}
        for check in scaling.checks
    ]
    return Table(
        "scaling_check",
        "The model of the projection, checked",
        columns,
        cells,
        note="Compute is fitted to serial runs on one core, the link to the smaller parallel runs. The prediction is compared "
        "with the largest run here that has a core for each replica. If all smaller runs have one number of replicas, the link "
        "is fitted as bandwidth alone.",
    )


def projected_table(scaling: ScalingResult) -> Table:
    columns = (
        _CONTESTANT,
        _WORKERS,
        _KIND,
        Column("network", "network"),
        Column("topology", "exchange"),
        Column("replicas", "replicas"),
        Column("step_seconds", "projected s/step", 4),
        Column("speedup", "projected speed-up", 1),
    )
    errors = ", ".join(f"{100 * check.error:+.0f} %" for check in scaling.checks)
    checked = f" For the largest runs here the same model was off by {errors} of a step." if errors else ""
    doubt = " The projection rests on runs that are in doubt." if any(point.in_doubt for point in scaling.points) else ""
    return Table(
        "scaling_projected",
        "Projected, not measured",
        columns,
        [projected.model_dump() for projected in scaling.projected],
        note="One replica's compute is fitted to serial runs on one core. Its exchange takes alpha + beta x bytes, none of it "
        f"hidden behind compute.{checked}{doubt}",
    )


def draw(scaling: ScalingResult, figure: Figure) -> bool:
    """Draw speed-up over replicas. Measured points have their intervals; projected points stand in a plot of their own."""
    figure.set_size_inches(11 if scaling.projected else 6.5, 5)
    axes = figure.subplots(1, 2 if scaling.projected else 1, squeeze=False)[0]
    _draw_measured(axes[0], scaling)
    if scaling.projected:
        _draw_projected(axes[1], scaling)
    return True


def _draw_measured(axes: Axes, scaling: ScalingResult) -> None:
    lines: dict[tuple[str, str, Kind, int], list[tuple[ScalingPoint, Ratio]]] = {}
    for point in scaling.points:
        if point.speedup_one_core is not None and not point.disturbed:
            key = point.contestant, point.mode, point.kind, point.workers
            lines.setdefault(key, []).append((point, point.speedup_one_core))
    for index, line in enumerate(lines.values()):
        _draw_line(axes, index, sorted(line, key=lambda item: item[0].replicas))
    largest = max((point.replicas for point in scaling.points), default=1)
    axes.plot([1, largest], [1, largest], color="0.6", linestyle=":", label="as many times as replicas")
    note = "; ringed: more replicas than cores" if any(point.oversubscribed for point in scaling.points) else ""
    axes.set(xlabel="replicas", ylabel="images per second, against serial on one core", title=f"Measured{note}")
    axes.set_xticks(sorted({1, *(point.replicas for point in scaling.points)}))
    axes.legend(fontsize=8)


def _draw_line(axes: Axes, index: int, line: Sequence[tuple[ScalingPoint, Ratio]]) -> None:
    """Draw one mode's measured points, from serial at 1, with their intervals."""
    first, _ = line[0]
    colour = plots.COLOURS[index % len(plots.COLOURS)]
    values = [ratio.value for _, ratio in line]
    below = [ratio.value - (ratio.value if ratio.low is None else ratio.low) for _, ratio in line]
    above = [(ratio.value if ratio.high is None else ratio.high) - ratio.value for _, ratio in line]
    axes.errorbar(
        [1, *(point.replicas for point, _ in line)],
        [1.0, *values],
        [[0.0, *below], [0.0, *above]],
        color=colour,
        linestyle="-" if first.kind == "strong" else "--",
        marker=plots.MARKERS[index % len(plots.MARKERS)],
        capsize=3,
        label=f"{first.contestant} {first.mode}, {first.kind}{_workers_text(first.workers)}",
    )
    oversubscribed = [(point.replicas, ratio.value) for point, ratio in line if point.oversubscribed]
    if oversubscribed:
        axes.plot(*zip(*oversubscribed, strict=True), "o", markersize=13, fillstyle="none", color=colour)


def _draw_projected(axes: Axes, scaling: ScalingResult) -> None:
    lines: dict[tuple[str, int, Kind, Topology], list[ScalingProjection]] = {}
    for projected in scaling.projected:
        if projected.speedup is not None:
            key = projected.contestant, projected.workers, projected.kind, projected.topology
            lines.setdefault(key, []).append(projected)
    computes = list(dict.fromkeys((contestant, workers) for contestant, workers, _, _ in lines))
    styles: Mapping[Topology, Any] = dict(zip((*TOPOLOGIES, "all_gather"), plots.LINE_STYLES, strict=True))
    for (contestant, workers, kind, topology), line in lines.items():
        colour = 2 * computes.index((contestant, workers)) + KINDS.index(kind)
        line.sort(key=lambda projected: projected.replicas)
        axes.plot(
            [projected.replicas for projected in line],
            [projected.speedup or 0.0 for projected in line],
            color=plots.COLOURS[colour % len(plots.COLOURS)],
            linestyle=styles[topology],
            alpha=0.8,
            label=f"{contestant}, {kind}, {topology}{_workers_text(workers)}",
        )
    axes.set(xscale="log", yscale="log", xlabel="replicas", ylabel="images per second, against one replica")
    axes.set_title(f"Projected, not measured: {scaling.projected[0].network}")
    axes.set_facecolor("0.96")
    axes.legend(fontsize=7, ncols=2)


def _workers_text(workers: int) -> str:
    return f", {workers} workers" if workers else ""
