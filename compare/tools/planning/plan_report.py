"""The report of a plan: its tables, sentences, maps and files."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from compare.cli.terminal import FULL
from compare.cli.wording import clock_words, count, joined, percent
from compare.judgement.row_figures import DISTURBED
from compare.reporting import document, plots
from compare.reporting.document import Report
from compare.reporting.screen import Bar, Chart, Paragraph, Screen, caution_count
from compare.reporting.tables import Column, Table, scaled
from compare.tools.planning import accuracy, planned_machine, prediction
from compare.tools.planning.accuracy import TIE, Accuracy, PredictionPair
from compare.tools.planning.planner import PlanResult
from compare.tools.planning.prediction import PredictedLayout
from compare.tools.planning.projection import MAP_LINKS, MAP_REPLICAS, MAP_SPEEDS, MapPoint, MeasuredWinner, ProjectedLayout

RESULTS_FILE, MACHINE_FILE, MEASURED_FOLDER = "plan.json", "machine.yaml", "measured"

_MAX_BARS, _MIN_BARS = 8, 3
"""Number of layouts on the first screen: of all frameworks together, and at least of each."""

UNMEASURED = ["Nothing was measured here.", "How far off earlier predictions were: docs/measurements.md."]
_PARTS = {
    "compute": "computing",
    "exposed": "waiting for messages",
    "bubble": "waiting for other devices",
    "input": "waiting for input",
}

_CONTESTANT, _LAYOUT = Column("contestant", "contestant"), Column("words", "layout", fold=34)


def report(plan: PlanResult, limit_mib: float | None) -> Report:
    """The report of everything that a plan holds."""
    judgement = accuracy.judge(plan.pairs)
    versions = {name: timings.versions for name, timings in plan.machine.frameworks.items()}
    first = [f"{name}: {' '.join([*fastest, *certainty])}" for name, (fastest, certainty) in framework_verdicts(plan).items()]
    sections = [
        ("Cautions", plan.cautions),
        ("What would have to change", plan.changes),
        ("How good the predictions were", accuracy.sentences(judgement)),
    ]
    tables = [
        predicted_table(plan.predicted, limit_mib, plan.disturbed),
        cuts_table(plan.cuts),
        measured_table(plan.pairs),
        projected_table(plan.projected, judgement),
    ]
    return Report(
        title=f"Plan for {plan.run.model_label}, batch {plan.run.global_batch_size}",
        json_file=RESULTS_FILE,
        facts=[
            *first,
            f"Planned for: {plan.machine.name}. Timing and simulating took {clock_words(plan.seconds)} (minutes:seconds).",
            document.hardware_and_versions(plan.machine.facts, versions),
        ],
        findings=[(heading, sentences) for heading, sentences in sections if sentences],
        tables=[table for table in tables if table.rows],
        detail_tables=[memory_table(plan.predicted)],
        drawings={f"map_{name}": _map(points, plan.measured_winners.get(name)) for name, points in plan.winners.items()},
        files={MACHINE_FILE: planned_machine.text(plan.machine)},
        values={
            "spec": plan.run.model_dump(mode="json"),
            "machine": plan.machine.model_dump(mode="json"),
            "verdicts": first,
            "predict_seconds": plan.seconds,
            "predicted": [layout.model_dump(mode="json", exclude={"run"}) for layout in plan.predicted],
            "measured": [{**pair.model_dump(), "error": pair.error, "memory_error": pair.memory_error} for pair in plan.pairs],
            "accuracy": judgement,
            "projected": plan.projected,
            "winners": plan.winners,
            "measured_winners": plan.measured_winners,
        },
        screen=screen(plan),
    )


def screen(plan: PlanResult) -> Screen:
    """Return the first screen: which mode pays in each framework, and its best layouts beside serial."""
    verdicts, several = framework_verdicts(plan), len(plan.names) > 1
    max_bars = max(_MIN_BARS, _MAX_BARS // max(len(verdicts), 1))
    bars = [
        layout
        for name in verdicts
        for place, layout in enumerate(prediction.best_of_each_mode(plan.predictions_of(name)))
        if place < max_bars or not layout.run.is_parallel
    ]
    bars.sort(key=lambda layout: layout.step_seconds or 0.0)
    certainties = [f"{name}: " * several + " ".join(certainty) for name, (_, certainty) in verdicts.items()]
    unknown, cautions = sum(not layout.rankable for layout in plan.predicted), len(plan.cautions)
    return Screen(
        subject=[
            f"Which mode pays? {plan.run.model_label} on {plan.run.data.source}, batch {plan.run.global_batch_size}",
            f"planned for: {plan.machine.name}",
        ],
        answers=[
            *(Paragraph(name, fastest, "warn" if name in plan.disturbed else "") for name, (fastest, _) in verdicts.items()),
            Paragraph("How sure?", certainties if plan.pairs else UNMEASURED),
        ],
        chart=_chart(plan, bars),
        remarks=[
            *([f"{count(unknown, 'layout')} cannot be predicted, or do not fit: {FULL} lists them."] if unknown else []),
            *caution_count(cautions),
        ],
        next=[("how good it is", "the same command with --measure")] if plan.is_local and not plan.pairs else [],
    )


def _chart(plan: PlanResult, layouts: list[PredictedLayout]) -> Chart:
    """Return predicted times as bars, beside the measured ones."""
    measured = {(pair.contestant, pair.words): f"{1e3 * pair.measured_seconds:.1f}" for pair in plan.pairs}
    columns = [*(["measured"] if measured else []), "MiB", *([""] if plan.disturbed else [])]
    bars: list[Bar] = []
    for layout in layouts:
        cells = [measured.get((layout.contestant, layout.words), "")] if measured else []
        cells.append(f"{_fullest(layout) or 0.0:.0f}")
        cells += [DISTURBED if layout.contestant in plan.disturbed else ""] if plan.disturbed else []
        bars.append(
            Bar((layout.contestant, layout.words), layout.step_seconds, f"{1e3 * (layout.step_seconds or 0.0):.1f}", cells)
        )
    headings = ("predicted ms per step (shorter is faster)", "predicted ms per step", "ms per step")
    return Chart(headings, columns, bars)


def framework_verdicts(plan: PlanResult) -> dict[str, tuple[list[str], list[str]]]:
    """Return sentences on the fastest mode, and on how sure that is, for each framework. No prediction has no certainty."""
    verdicts: dict[str, tuple[list[str], list[str]]] = {}
    for name in plan.names:
        pairs = plan.pairs_of(name)
        if name in plan.disturbed:
            sentences = [
                "not known.",
                "Other work disturbed the timing of layers or messages.",
                "Plan again on an idle machine.",
            ]
            verdicts[name] = sentences, _certainty(pairs, may_measure=False) if pairs else []
        else:
            verdicts[name] = _winner(plan.predictions_of(name)), _certainty(pairs, may_measure=plan.is_local)
    return verdicts


def winner(layouts: Sequence[PredictedLayout]) -> str:
    """Describe the fastest mode in one framework: the largest part of its step, and what the next mode adds."""
    return " ".join(_winner(layouts))


def _winner(layouts: Sequence[PredictedLayout]) -> list[str]:
    ranked = prediction.best_of_each_mode(layouts)
    if not ranked:
        return ["no layout both fits and can be predicted."]
    best = ranked[0]
    tied = [layout for layout in ranked if _time_ratio(layout, best) <= 1 + TIE]
    by_part: dict[str, list[str]] = {}
    for layout in tied:
        by_part.setdefault(max(_PARTS, key=lambda part, candidate=layout: candidate.parts[part]), []).append(
            _short_name(layout)
        )
    if len(tied) > 1:
        sentences = [f"{joined([_short_name(layout) for layout in tied])} are predicted equal (within {percent(TIE)})."]
    else:
        sentences = [f"{best.words if best.run.is_parallel else _short_name(best)} is predicted to be the fastest."]
    if len(by_part) == 1:
        sentences.append(
            f"The largest part of {'its step' if len(tied) == 1 else 'their steps'} is {_PARTS[next(iter(by_part))]}."
        )
    else:
        parts = joined([f"{_PARTS[part]} in {joined(names)}" for part, names in by_part.items()])
        sentences.append(f"The largest part of a step is {parts}.")
    variants = {layout.run.variant for layout in tied}
    runner_up = next((layout for layout in ranked if layout.run.variant not in variants), None)
    if runner_up is not None:
        added = _PARTS[max(_PARTS, key=lambda part: runner_up.parts[part] - best.parts[part])]
        sentences.append(
            f"Next is {_short_name(runner_up)}, {_time_ratio(runner_up, best):.2f} times as long: it adds {added}."
        )
    return sentences


def _time_ratio(layout: PredictedLayout, best: PredictedLayout) -> float:
    assert layout.step_seconds is not None and best.step_seconds is not None
    return layout.step_seconds / best.step_seconds


def _short_name(layout: PredictedLayout) -> str:
    return layout.run.variant if layout.run.is_parallel else f"serial on {count(layout.run.cores, 'core')}"


def _certainty(pairs: Sequence[PredictionPair], *, may_measure: bool) -> list[str]:
    if (judged := accuracy.judge(pairs)) is None:
        return [*UNMEASURED, *(["Add --measure."] if may_measure else [])]
    fastest = min(pairs, key=lambda pair: pair.measured_seconds)
    sentences = [
        f"Of {count(judged.n, 'layout')} that were measured, {fastest.words} was the fastest.",
        f"Predicted times were off by up to {percent(judged.worst_error)}.",
    ]
    if doubtful := sum(pair.in_doubt for pair in pairs):
        sentences.append(f"{doubtful} of {count(sum(pair.n for pair in pairs), 'run')} are in doubt.")
    return sentences


def predicted_table(layouts: list[PredictedLayout], limit_mib: float | None, disturbed: Collection[str]) -> Table:
    limit = f" Memory limit of each device: {limit_mib:.0f} MiB." if limit_mib else ""
    columns = (
        _CONTESTANT,
        _LAYOUT,
        Column("epoch_seconds", "s per epoch", 2, short="s per\nepoch"),
        Column("step_ms", "ms per step", 1, short="ms per\nstep", pick=scaled(1e3, "step_seconds")),
        *(
            Column(
                part, heading, 1, short=short, wide=part == "input", pick=scaled(1e3, f"parts.{part}")
            )
            for part, heading, short in (
                ("compute", "compute, ms", "compute\nms"),
                ("exposed", "exposed communication, ms", "exposed\nms"),
                ("bubble", "bubble, ms", "bubble\nms"),
                ("input", "input, ms", "input\nms"),
            )
        ),
        Column("memory", "peak memory of the fullest device, MiB", 0, short="MiB", pick=_fullest),
        Column("efficiency", "efficiency", 2, short="eff."),
        Column(
            "why", "status", fold=30, pick=lambda layout: layout.why or (DISTURBED if layout.contestant in disturbed else "ok")
        ),
    )  # fmt: skip
    return Table.from_items(
        "predicted",
        "Predicted, the fastest first",
        columns,
        layouts,
        note="Simulated from the times of single layers and messages. Parts of a step are means over the devices. Bubble: a "
        "device waits for another one's computing. Efficiency: times as fast as serial on one device, over the devices."
        + limit,
    )


def memory_table(layouts: list[PredictedLayout]) -> Table:
    rows = [(layout, device, size) for layout in layouts for device, size in layout.memory_mib.items()]
    columns = (
        Column("contestant", "contestant", pick="0.contestant"),
        Column("words", "layout", pick="0.words"),
        Column("device", "device", pick="1"),
        Column("memory_mib", "peak MiB", 0, pick="2"),
    )
    return Table.from_items(
        "memory",
        "Peak memory of each device, computed",
        tuple(columns),
        rows,
        note="Weights, their gradients, the optimizer's values, what the backward pass keeps, and the process. Buffers of "
        "kernels and messages are left out. Devices of one process share its memory: it counts for the first of them.",
    )


def cuts_table(cuts: list[dict[str, Any]]) -> Table:
    columns = (
        _CONTESTANT,
        Column("layout", "layout"),
        Column("stages", "the best cut", fold=60),
        Column("gain", "times as fast as the even cut", 2, short="gain"),
    )
    return Table.from_items(
        "cuts",
        "Pipelines that another cut makes faster, predicted",
        columns,
        cuts,
        note="The suite's pipelines run the even cut, by counted operations. A stage ends behind the layer that is named, or "
        "inside it where it has branches.",
    )


def measured_table(pairs: list[PredictionPair]) -> Table:
    columns = (
        _CONTESTANT,
        _LAYOUT,
        Column("predicted", "predicted ms per step", 1, short="predicted\nms", pick=scaled(1e3, "predicted_seconds")),
        Column("measured", "measured ms per step", 1, short="measured\nms", pick=scaled(1e3, "measured_seconds")),
        Column("low", "fastest", 1, pick=scaled(1e3, "low_seconds")),
        Column("high", "slowest", 1, pick=scaled(1e3, "high_seconds")),
        Column("n", "runs"),
        Column("in_doubt", "in doubt"),
        Column("error", "error %", 1, pick=scaled(100, "error")),
        Column("predicted_mib", "predicted MiB", 0, short="predicted\nMiB", wide=True),
        Column("measured_mib", "measured MiB", 0, short="measured\nMiB", wide=True),
    )
    return Table.from_items(
        "measured",
        "Predicted and measured",
        columns,
        pairs,
        note="Seconds: medians over runs in fresh processes, interleaved. MiB: peak memory (RSS) of the fullest rank with its "
        "workers; measured, the largest of all runs.",
    )


def projected_table(projections: list[ProjectedLayout], judged: Accuracy | None) -> Table:
    columns = (
        _CONTESTANT,
        _LAYOUT,
        Column("replicas", "replicas"),
        Column("kind", "scaling"),
        Column("step", "projected ms per step", 1, short="projected\nms", pick=scaled(1e3, "step_seconds")),
        Column("low", "from", 1, pick=scaled(1e3, "low_seconds")),
        Column("high", "to", 1, pick=scaled(1e3, "high_seconds")),
        Column("efficiency", "projected efficiency", 2, short="eff."),
    )
    bands = (
        "Bands: the smallest and largest ratio of measured to predicted time among the layouts above."
        if judged
        else "No bands: nothing was measured here. Add --measure."
    )
    network = projections[0].network if projections else None
    links = f"devices over {network}" if network else "devices and links"
    return Table.from_items(
        "projected",
        "Projected, not measured",
        columns,
        projections,
        note=f"The same {links}, as often as there are replicas. Weak: the batch grows with the replicas. Strong: the batch is "
        f"that of the plan. {bands}",
    )


def _fullest(layout: PredictedLayout) -> float | None:
    return max(layout.memory_mib.values(), default=None)


def _map(points: list[MapPoint], measured: MeasuredWinner | None) -> Any:
    """Return a function that draws the fastest mode over links and replicas, one panel for each speed. A star: measured."""

    def draw(figure: Figure) -> bool:
        modes = dict.fromkeys([*(point.mode for point in points), *([measured.mode] if measured else [])])
        colours = {mode: plots.COLOURS[index % len(plots.COLOURS)] for index, mode in enumerate(modes)}
        figure.set_size_inches(3 * len(MAP_SPEEDS), 4.5)
        fields = figure.subplots(1, len(MAP_SPEEDS), sharey=True)
        for axes, speed in zip(fields, MAP_SPEEDS, strict=True):
            for point in points:
                if point.speed != speed:
                    continue
                x, y = list(MAP_LINKS).index(point.link), MAP_REPLICAS.index(point.replicas)
                axes.scatter(x, y, s=700, marker="s", color=colours[point.mode])
                axes.text(x, y, f"{point.speedup:.1f}", ha="center", va="center", fontsize=8)
            if measured is not None and speed == 1.0:
                x, y = _place(measured.seconds_per_byte), MAP_REPLICAS.index(measured.replicas) - 0.3
                axes.scatter(x, y, s=200, marker="*", color=colours[measured.mode], edgecolors="black", zorder=3)
                axes.annotate(f"{measured.speedup:.1f}", (x, y), (9, -4), textcoords="offset points", fontsize=8)
            axes.set(title=f"devices x{speed:g}", xlim=(-0.6, len(MAP_LINKS) - 0.4), ylim=(-0.6, len(MAP_REPLICAS) - 0.4))
            axes.set_xticks(range(len(MAP_LINKS)), list(MAP_LINKS), rotation=60, ha="right")
            axes.set_yticks(range(len(MAP_REPLICAS)), [f"{number} replicas" for number in MAP_REPLICAS])
            axes.grid(visible=False)
        handles = [Patch(color=colour, label=mode) for mode, colour in colours.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8)
        star = "; star: measured here, the same batch divided" if measured else ""
        figure.suptitle(f"Projected: the fastest mode with serial's mathematics, and its speed-up over one device{star}")
        return bool(points)

    return draw


def _place(seconds_per_byte: float) -> float:
    """Return the position of a link on the axis of a map. Each position is ten times as fast as the one before."""
    slowest = next(iter(MAP_LINKS.values()))[1]
    return min(max(math.log10(slowest / max(seconds_per_byte, 1e-15)), -0.4), len(MAP_LINKS) - 0.6)
