"""The report of a scaling: its tables and its plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from compare.cli import wording
from compare.cli.terminal import FULL
from compare.judgement import cautions
from compare.judgement.row_figures import DISTURBED, FAILURES, UNFINISHED
from compare.reporting import comparison_report, comparison_screen, document, plots
from compare.reporting.comparison_report import JudgedComparison
from compare.reporting.document import Report
from compare.reporting.screen import Bar, Chart, Paragraph, Screen
from compare.reporting.tables import Column, Table, scaled
from compare.statistics.scaling_laws import Kind, SerialFraction
from compare.statistics.statistics import Ratio
from compare.statistics.verdict_words import interval_words
from compare.tools.planning.scaling_fit import ScalingPoint, ScalingResult

NAME, SCALING_FILE = "scaling", "scaling.json"

_CONTESTANT, _MODE, _KIND = Column("contestant", "contestant"), Column("mode", "mode"), Column("kind", "scaling")
_WORKERS = Column("workers", "input workers", terminal=False)


def report(compared: JudgedComparison, folder: Path, scaling: ScalingResult) -> Report:
    """Build the report of a scaling, which is written beside the report of its runs."""
    tables = (points_table(scaling), laws_table(scaling), checks_table(scaling))
    checks = [{**check.model_dump(), "error": check.error} for check in scaling.checks]
    command = wording.shell(["scaling", "--stored", str(folder)])
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
        answers=answers,
        chart=Chart(
            ("times as fast as serial on 1 core", "times serial, 1 core"),
            ["efficiency", ""],
            [_bar(point) for point in scaling.points],
        ),
        remarks=[
            *([f"{caution_count}: {FULL} lists all."] if compared.cautions else []),
            *([stored.signature.sentence] if stored.signature is not None and stored.signature.confirmed else []),
        ],
    )


def _speedup_text(point: ScalingPoint) -> str:
    subject = f"{point.contestant} {point.mode}, {point.kind} scaling, {wording.count(point.replicas, 'replica')}"
    if point.disturbed:
        return f"{subject}: not known. Other programs took cores from it."
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


def _ratio(key: str, heading: str, short: str, **options: bool) -> Column:
    """Return the column of a ratio, which says `disturbed` instead where other work disturbed the runs."""
    return Column(
        key,
        heading,
        2,
        short=short,
        pick=lambda point: DISTURBED if point.disturbed and getattr(point, key) else getattr(point, key),
        **options,
    )


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
        _ratio("speedup_one_core", "against serial, 1 core", "vs serial,\n1 core", interval=True),
        _ratio("speedup_same_cores", "against serial, same cores", "vs serial,\nsame cores", interval=True, wide=True),
        _ratio("speedup_same_batch", "against serial, same per-replica batch", "same\nbatch", interval=True, wide=True),
        _ratio("efficiency_one_core", "efficiency, 1 core", "eff."),
        _ratio("efficiency_same_batch", "efficiency, same per-replica batch", "eff., same\nbatch", wide=True),
        Column("status", "status", fold=14, pick=_status),
    )
    return Table.from_items(
        "scaling",
        "Scaling, measured",
        columns,
        scaling.points,
        spreads_on_terminal=False,
        note="Ratios of seconds per epoch, paired by repeat. Same batch: against serial with the batch of one replica. "
        "Oversubscribed: there are more replicas than cores, so replicas share cores. In doubt: other work disturbed this run "
        "or the serial run, or they were too short to tell. Do not rely on such a time.",
    )


def _status(point: ScalingPoint) -> str:
    marks = ["oversubscribed"] * point.oversubscribed + ["in doubt"] * point.in_doubt
    return ", ".join(marks) or "ok" if point.status == "ok" else point.status


def _extrapolated(fraction: SerialFraction, replicas: int) -> float | None:
    return fraction.speedup(replicas) if 0.0 <= fraction.value <= 1.0 else None


def laws_table(scaling: ScalingResult) -> Table:
    columns = (
        _CONTESTANT,
        _MODE,
        Column("law", "law", pick="fraction.law"),
        Column("serial_fraction", "serial fraction", 3, interval=True, pick="fraction.ratio"),
        Column("n", "points", pick="fraction.n"),
        Column("speedup_8", "at 8 replicas", 1, pick=lambda law: _extrapolated(law.fraction, 8)),
        Column("speedup_64", "at 64", 1, pick=lambda law: _extrapolated(law.fraction, 64)),
    )
    return Table.from_items(
        "scaling_laws",
        "The laws, fitted",
        columns,
        scaling.laws,
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
        Column("fitted_on", "link fitted on", pick=lambda check: ", ".join(map(str, check.fitted_on)) or "serial alone"),
        Column("predicted_seconds", "predicted s/step", 4),
        Column("measured_seconds", "measured s/step", 4),
        Column("error_percent", "error %", 1, pick=scaled(100, "error")),
    )
    return Table.from_items(
        "scaling_check",
        "The model of messages, checked",
        columns,
        scaling.checks,
        note="Compute is fitted to serial runs on one core, the link to the smaller parallel runs. The prediction is compared "
        "with the largest run here that has a core for each replica. If all smaller runs have one number of replicas, the link "
        "is fitted as bandwidth alone.",
    )


def draw(scaling: ScalingResult, figure: Figure) -> bool:
    """Draw the measured speed-up over replicas, with its intervals."""
    figure.set_size_inches(6.5, 5)
    axes = figure.subplots()
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
    return True


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


def _workers_text(workers: int) -> str:
    return f", {workers} workers" if workers else ""
