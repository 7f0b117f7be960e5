"""The report of a measurement of inference: table, sentences and plot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.machine.interference import DISTURBED_FROM
from common.training import inference
from compare.core import verdict_words
from compare.evaluation.inference_timing import CALLS_FOR_P99, Inferred, cell_name
from compare.judgement.verdict_sentences import NO_FINDING
from compare.reporting import document, plots
from compare.reporting.document import Report
from compare.reporting.tables import Column, Table


def report(made: Inferred) -> Report:
    """The report of a measurement of inference."""
    card, found = made.card, findings(made)
    pixels = f"{card.image_size} px"
    return Report(
        title="Inference",
        name="inference",
        facts=[
            f"{card.model}, {len(card.class_names)} classes, {pixels}, {card.precision}, trained in {card.framework}",
            document.hardware_and_versions(made.machine, made.versions),
        ],
        findings=found,
        tables=[latency_table(made)],
        drawings={"inference": partial(_draw, made)},
        values=made.model_dump(mode="json") | {"sentences": [sentence for _, said in found for sentence in said]},
        exit_code=made.exit_code,
    )


def latency_table(made: Inferred) -> Table:
    columns = (
        Column("contestant", "contestant"),
        Column("cores", "cores"),
        Column("batch_size", "batch"),
        Column("p50_ms", "p50 ms", 3, interval=True, pick=lambda row: row.p50_seconds.times(1e3)),
        Column("p99_ms", "p99 ms", 3, pick=lambda row: None if row.p99_seconds is None else 1e3 * row.p99_seconds),
        Column("images_per_second", "images/s", 0, interval=True),
        Column(
            "first_ms",
            "first call ms",
            0,
            short="first\ncall ms",
            interval=True,
            pick=lambda row: row.first_seconds.times(1e3),
        ),
        Column("calls", "calls timed", short="calls"),
        Column("n", "processes", short="n", pick="p50_seconds.n"),
    )
    settings = made.settings
    timed = " to ".join(map(str, sorted({inference.LEAST_CALLS, settings.calls})))
    title = f"How long {made.card.model} takes for a batch of {made.card.image_size} x {made.card.image_size} pixels"
    note = (
        "From uint8 images on the host to logits on the host; decoding files is not in it. p50: of each process's calls, "
        "then the median over processes, in the report with quartiles. p99: of the calls of all processes together, from "
        f"{CALLS_FOR_P99} on. Not counted: the first call, then at least {inference.WARM_UP_CALLS} calls and "
        f"{inference.WARM_UP_SECONDS} s. Timed: {timed} calls, none begun after {settings.seconds:g} s."
    )
    return Table.from_items("inference", title, columns, made.rows, note, spreads_on_terminal=False)


def findings(made: Inferred) -> list[tuple[str, list[str]]]:
    """The findings, by subject."""
    faster: list[str] = []
    for judged in made.verdicts:
        place, pair = judged.name.split(": ")
        first, second = pair.split(" and ")
        held_to = place.split(", batch")[0]
        lost = max(made.cores_lost.get(f"{contestant}, {held_to}", 0.0) for contestant in (first, second))
        told = f"{verdict_words.faster(judged, first, second)}."
        faster.append(f"{place}: {told if lost <= DISTURBED_FROM else f'{first} against {second}: no finding.{NO_FINDING}'}")
    family = verdict_words.family_words(made.verdicts)
    devices = ", ".join(f"{contestant}: {device}" for contestant, device in made.devices.items())
    surety = [*([family] if family else []), f"Times hold for this machine, these versions and this model ({devices})."]
    cautions = [f"{name}: {reason}" for name, reason in made.failures.items()]
    cautions += [
        f"{name}: other work took up to {lost:.2f} cores of its own: rely on no time of it."
        for name, lost in made.cores_lost.items()
        if lost > DISTURBED_FROM
    ]
    if len(set(made.devices.values())) > 1:
        cautions.append("The frameworks used different kinds of devices: this is no comparison of frameworks.")
    found = [
        ("Which framework answers sooner?", faster),
        ("How sure is that?", surety),
        ("Cautions", cautions),
    ]
    return [(title, sentences) for title, sentences in found if sentences]


def _draw(made: Inferred, figure: Figure) -> bool:
    figure.set_size_inches(11, 5)
    latency, throughput = figure.subplots(1, 2)
    for index, contestant in enumerate(made.settings.frameworks):
        for number, cores in enumerate(made.settings.cores):
            own = [row for row in made.rows if (row.contestant, row.cores) == (contestant, cores)]
            style: dict[str, Any] = {
                "color": plots.COLOURS[index % len(plots.COLOURS)],
                "marker": plots.MARKERS[number % len(plots.MARKERS)],
                "linestyle": "-" if number else "--",
            }
            sizes = [row.batch_size for row in own]
            latency.plot(sizes, [1e3 * row.p50_seconds.median for row in own], label=cell_name(contestant, cores), **style)
            throughput.plot(sizes, [row.images_per_second.median for row in own], **style)
    _scale(latency, made.settings.batches, "p50 of a batch, ms", "Latency")
    _scale(throughput, made.settings.batches, "images/s", "Throughput")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return bool(made.rows)


def _scale(axis: Axes, batches: Sequence[int], label: str, title: str) -> None:
    axis.set(title=title, xlabel="images of a batch", ylabel=label, xscale="log", yscale="log")
    axis.set_xticks(batches, list(map(str, batches)))
    axis.minorticks_off()
    axis.yaxis.set_major_formatter("{x:g}")
