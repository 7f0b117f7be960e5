"""The report of a measurement of inference: table, sentences and plot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.machine.interference import DISTURBED_FROM
from common.training import inference
from compare.judgement.statement_words import NO_FINDING
from compare.reporting import document, plots
from compare.reporting.document import Report
from compare.reporting.tables import Column, Table
from compare.statistics import verdict_words
from compare.tools.evaluation.inference_timing import CALLS_FOR_P99, InferenceRecord, cell_name, compared_cells, place_name


def report(record: InferenceRecord) -> Report:
    """Build the report of a measurement of inference."""
    card, sections = record.card, findings(record)
    pixels = f"{card.image_size} px"
    return Report(
        title="Inference",
        name="inference",
        facts=[
            f"{card.model}, {len(card.class_names)} classes, {pixels}, {card.precision}, trained in {card.framework}",
            document.hardware_and_versions(record.machine, record.versions),
        ],
        findings=sections,
        tables=[latency_table(record)],
        drawings={"inference": partial(_draw, record)},
        values=record.model_dump(mode="json")
        | {"sentences": [sentence for _, sentences in sections for sentence in sentences]},
        exit_code=record.exit_code,
    )


def latency_table(record: InferenceRecord) -> Table:
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
    settings = record.settings
    timed = " to ".join(map(str, sorted({inference.LEAST_CALLS, settings.calls})))
    title = f"How long {record.card.model} takes for a batch of {record.card.image_size} x {record.card.image_size} pixels"
    note = (
        "From uint8 images on the host to logits on the host; decoding files is not in it. p50: of each process's calls, "
        "then the median over processes, in the report with quartiles. p99: of the calls of all processes together, from "
        f"{CALLS_FOR_P99} on. Not counted: the first call, then at least {inference.WARM_UP_CALLS} calls and "
        f"{inference.WARM_UP_SECONDS} s. Timed: {timed} calls, none begun after {settings.seconds:g} s."
    )
    return Table.from_items("inference", title, columns, record.rows, note, spreads_on_terminal=False)


def findings(record: InferenceRecord) -> list[tuple[str, list[str]]]:
    """Return the findings, by subject."""
    faster: list[str] = []
    cells = compared_cells(record.settings)
    for judged in record.verdicts:
        (first, second), cores, size = cells[judged.name]
        place = place_name(cores, size)
        taken = max(record.cores_lost.get(cell_name(contestant, cores), 0.0) for contestant in (first, second))
        text = f"{verdict_words.faster(judged, first, second)}."
        faster.append(f"{place}: {text if taken <= DISTURBED_FROM else f'{first} against {second}: not known. {NO_FINDING}'}")
    family = verdict_words.family_words(record.verdicts)
    devices = ", ".join(f"{contestant}: {device}" for contestant, device in record.devices.items())
    surety = [*([family] if family else []), f"Times hold for this machine, these versions and this model ({devices})."]
    cautions = [f"{name}: {reason}" for name, reason in record.failures.items()]
    cautions += [
        f"{name}: other work took up to {taken:.2f} cores of its own: rely on no time of it."
        for name, taken in record.cores_lost.items()
        if taken > DISTURBED_FROM
    ]
    if len(set(record.devices.values())) > 1:
        cautions.append("The frameworks used different kinds of devices: this is no comparison of frameworks.")
    sections = [
        ("Which framework answers sooner?", faster),
        ("How sure is that?", surety),
        ("Cautions", cautions),
    ]
    return [(title, sentences) for title, sentences in sections if sentences]


def _draw(record: InferenceRecord, figure: Figure) -> bool:
    figure.set_size_inches(11, 5)
    latency, throughput = figure.subplots(1, 2)
    for index, contestant in enumerate(record.settings.frameworks):
        for number, cores in enumerate(record.settings.cores):
            rows = [row for row in record.rows if (row.contestant, row.cores) == (contestant, cores)]
            style: dict[str, Any] = {
                "color": plots.COLOURS[index % len(plots.COLOURS)],
                "marker": plots.MARKERS[number % len(plots.MARKERS)],
                "linestyle": "-" if number else "--",
            }
            sizes = [row.batch_size for row in rows]
            latency.plot(sizes, [1e3 * row.p50_seconds.median for row in rows], label=cell_name(contestant, cores), **style)
            throughput.plot(sizes, [row.images_per_second.median for row in rows], **style)
    _scale(latency, record.settings.batches, "p50 of a batch, ms", "Latency")
    _scale(throughput, record.settings.batches, "images/s", "Throughput")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return bool(record.rows)


def _scale(axis: Axes, batches: Sequence[int], label: str, title: str) -> None:
    axis.set(title=title, xlabel="images of a batch", ylabel=label, xscale="log", yscale="log")
    axis.set_xticks(batches, list(map(str, batches)))
    axis.minorticks_off()
    axis.yaxis.set_major_formatter("{x:g}")
