"""`python -m compare infer`: how fast a trained model answers in each framework. The frameworks alternate."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field
from rich.console import Console
from rich.text import Text

from common.artifacts import atomic_files, trained
from common.artifacts.trained import Card, Trained
from common.frozen import Frozen
from common.machine import machine
from common.models import weights
from common.spec import SpecError
from common.training import inference
from common.training.inference import BatchTimes, Latencies
from compare.core import errors, exits, statistics, terminal, wording
from compare.core.errors import FolderError
from compare.core.interrupt import Interrupted, interruptible
from compare.core.option_parsing import chosen, names, numbers
from compare.core.progress import Display, display
from compare.core.statistics import Judged, Ratio, Spread, paired_ratio, spread
from compare.execution import launch, store, twin_client
from compare.execution.interleaving import turn
from compare.execution.twin_client import OwnModel
from compare.judgement.summary import DISTURBED_FROM, cores_lost
from compare.judgement.verdict_sentences import DISTURBED
from compare.proof import ladder
from compare.reporting import document, plots, tables
from compare.reporting.tables import Cell, Column, Table

SCHEMA_VERSION = 1
KIND = "inference"
PLAN_FILE, RECORD_FILE, REPORT_FILE = "plan.json", "inference.json", "inference.md"
RUNS_FOLDER = "runs"

CALLS_FOR_P99 = 100
"""Fewest calls, of all processes together, for a p99. Below it, the slowest hundredth is just the slowest call."""


class Settings(Frozen):
    """What is timed."""

    frameworks: tuple[str, ...] = tuple(launch.FRAMEWORKS)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    cores: tuple[int, ...]
    repeats: int = Field(5, ge=1)
    """Processes of each framework and number of cores."""
    calls: int = Field(200, ge=inference.LEAST_CALLS)
    """Most timed calls of each batch size in each process."""
    seconds: float = Field(3.0, gt=0)
    """Seconds after which no further call begins."""


class Plan(Frozen):
    """plan.json: what is timed, so that an interrupted measurement resumes unchanged."""

    kind: str = KIND
    settings: Settings
    weights_hash: str
    """Of the model."""
    code_hash: str
    machine: dict[str, Any]


class Measured(Frozen):
    """One framework with one number of cores and one batch size, over its processes."""

    framework: str
    cores: int
    batch_size: int
    p50_seconds: Spread
    """Of a batch, from images on the host to logits on the host."""
    p99_seconds: float | None
    """Over the calls of all processes together. None if there are fewer than CALLS_FOR_P99."""
    images_per_second: Spread
    first_seconds: Spread
    """Of the first call: tracing or compiling."""
    calls: int
    """Timed, of all processes."""


class Inferred(Frozen):
    """The complete result of a measurement of inference."""

    schema_version: int = SCHEMA_VERSION
    kind: str = KIND
    settings: Settings
    card: Card
    weights_hash: str
    devices: dict[str, str]
    versions: dict[str, dict[str, str]]
    machine: dict[str, Any]
    rows: list[Measured]
    verdicts: list[Judged]
    """Seconds of one framework divided by those of the other (p50), by cores and batch size: one family."""
    failures: dict[str, str]
    """Process: why it measured nothing."""
    cores_lost: dict[str, float]
    """By framework and cores: the most of these cores that other work used during one process."""

    @property
    def exit_code(self) -> int:
        """1 if a process failed, else 0."""
        return exits.RUN_FAILED if self.failures else 0


def command(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A trained model (best.safetensors of a run).")],
    frameworks: Annotated[str, typer.Option(help="Which, with commas.")] = ",".join(launch.FRAMEWORKS),
    batches: Annotated[str, typer.Option(help="Images of a call, with commas.")] = "1,2,4,8,16,32,64,128,256",
    cores: Annotated[str | None, typer.Option(help="Numbers of CPU cores, with commas. Default: 1 and all.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Processes of each; verdicts need 5.")] = 5,
    calls: Annotated[int, typer.Option(min=inference.LEAST_CALLS, help="Timed calls of each batch size, at most.")] = 200,
    seconds: Annotated[float, typer.Option(min=0.001, help="After which no more calls of a batch size are begun.")] = 3.0,
    model: OwnModel = None,
    out: Annotated[Path | None, typer.Option(help="Results folder. Default: results/<time>-infer-<model>.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Time how fast a trained model answers: latency and throughput by batch size, frameworks in turns, fresh processes."""
    with exits.told():
        found = trained.load(checkpoint, model)
        settings = Settings(
            frameworks=tuple(chosen("--frameworks", names(frameworks), tuple(launch.FRAMEWORKS))),
            batches=numbers("--batches", batches, least=1),
            cores=tuple(sorted({1, machine.available_cores()})) if cores is None else numbers("--cores", cores, least=1),
            repeats=repeats,
            calls=calls,
            seconds=seconds,
        )
        folder = out or store.new_folder("infer", found.card.model)
        try:
            with interruptible(), display(Console(stderr=True)) as shown:
                made = measure(settings, checkpoint, found, folder, shown)
                write(made, folder)
        except Interrupted as interruption:
            interruption.words = f"Interrupted. The same command with --out {folder} goes on."
            raise
        if as_json:
            typer.echo(json.dumps(to_plain(made), indent=1, allow_nan=False))
        else:
            console = terminal.stdout()
            print_to(console, made)
            console.print(Text(f"Report: {folder / REPORT_FILE}"), soft_wrap=True)
    raise typer.Exit(made.exit_code)


def measure(settings: Settings, checkpoint: Path, model: Trained, folder: Path, shown: Display) -> Inferred:
    """Time every framework and number of cores alternately, each in a fresh process. Finished results in the folder are kept.

    Args:
        settings: what is timed.
        checkpoint: the file of the model.
        model: what is in it.
        folder: gets a file for each process, and the record.
        shown: where progress is shown.

    Raises:
        SpecError: the machine has fewer cores.
        FolderError: the folder holds something else.
        Interrupted: finished measurements are in the folder.
    """
    most = machine.available_cores()
    if max(settings.cores) > most:
        raise SpecError(f"cores exceeds what this process may use. Received: {max(settings.cores)}. Use 1 to {most}.")
    store.refuse_others(folder, PLAN_FILE, KIND, "measurement of inference")
    with store.locked(folder):
        _claim(settings, model, folder)
        cells = [(framework, cores) for cores in settings.cores for framework in settings.frameworks]
        turns = [(framework, cores, repeat) for repeat in range(settings.repeats) for framework, cores in turn(cells, repeat)]
        found: dict[tuple[str, int, int], Latencies] = {}
        failures: dict[str, str] = {}
        shown.plan([_cell_name(framework, cores) for framework, cores, _ in turns])
        for framework, cores, repeat in turns:
            name = _cell_name(framework, cores)
            shown.begin(name, f"{name} ({repeat + 1} of {settings.repeats})")
            path = folder / RUNS_FOLDER / f"{framework}-{cores}-r{repeat}.json"
            made = _stored(path)
            if made is None or len(made.batches) < len(settings.batches):
                made, failure = _timed(settings, checkpoint, model, framework, cores, path)
                if failure is not None:
                    failures[f"{name}, process {repeat + 1}"] = failure
            if made is not None:
                found[framework, cores, repeat] = made
            shown.end()
        _refuse_other_versions(found, folder)
        made = _inferred(settings, model, found, failures)
        atomic_files.write_atomically(folder / RECORD_FILE, atomic_files.with_checksum(made.model_dump_json()))
    return made


def read(folder: Path) -> Inferred:
    """The record of a measurement.

    Raises:
        FolderError: there is none, or it cannot be read.
    """
    return store.read_record(folder / RECORD_FILE, Inferred, "a measurement of inference")


def documents(made: Inferred) -> list[Table]:
    return [latency_table(made)]


def latency_table(made: Inferred) -> Table:
    columns = (
        Column("framework", "framework"),
        Column("cores", "cores"),
        Column("batch_size", "batch"),
        Column("p50_ms", "p50 ms", 3, interval=True),
        Column("p99_ms", "p99 ms", 3),
        Column("images_per_second", "images/s", 0, interval=True),
        Column("first_ms", "first call ms", 0, short="first\ncall ms", interval=True),
        Column("calls", "calls timed", short="calls"),
        Column("n", "processes", short="n"),
    )
    rows: list[dict[str, Cell]] = [
        {
            "framework": row.framework,
            "cores": row.cores,
            "batch_size": row.batch_size,
            "p50_ms": row.p50_seconds.times(1e3),
            "p99_ms": None if row.p99_seconds is None else 1e3 * row.p99_seconds,
            "images_per_second": row.images_per_second,
            "first_ms": row.first_seconds.times(1e3),
            "calls": row.calls,
            "n": row.p50_seconds.n,
        }
        for row in made.rows
    ]
    settings = made.settings
    timed = " to ".join(map(str, sorted({inference.LEAST_CALLS, settings.calls})))
    return Table(
        "inference",
        f"How long {made.card.model} takes for a batch of {made.card.image_size} x {made.card.image_size} pixels",
        columns,
        rows,
        spreads_on_terminal=False,
        note="From uint8 images on the host to logits on the host; decoding files is not in it. p50: of each process's calls, "
        "then the median over processes, in the report with quartiles. p99: of the calls of all processes together, from "
        f"{CALLS_FOR_P99} on. Not counted: the first call, then at least {inference.WARM_UP_CALLS} calls and "
        f"{inference.WARM_UP_SECONDS} s. Timed: "
        f"{timed} calls, none begun after {settings.seconds:g} s.",
    )


def sections(made: Inferred) -> list[tuple[str, list[str]]]:
    """The findings, by subject."""
    faster: list[str] = []
    for judged in made.verdicts:
        place, pair = judged.name.split(": ")
        first, second = pair.split(" and ")
        held_to = place.split(", batch")[0]
        lost = max(made.cores_lost.get(f"{framework}, {held_to}", 0.0) for framework in (first, second))
        doubt = DISTURBED if lost > DISTURBED_FROM else ""
        faster.append(f"{place}: {statistics.faster(judged, first, second)}.{doubt}")
    family = statistics.family_words(made.verdicts)
    devices = ", ".join(f"{framework}: {device}" for framework, device in made.devices.items())
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


def write(made: Inferred, folder: Path) -> None:
    """Write tables (Markdown, CSV, LaTeX), the plot and the report.

    Raises:
        OSError: they cannot be written.
    """
    for table in documents(made):
        tables.write(table, folder / document.TABLES_FOLDER)
    drawn = draw(made, folder / document.PLOTS_FOLDER)
    written = document.markdown("Inference", heading(made).splitlines(), sections(made), documents(made), drawn)
    atomic_files.write_atomically(folder / REPORT_FILE, written)


def heading(made: Inferred) -> str:
    card = made.card
    return (
        f"{card.model}, {len(card.class_names)} classes, {card.image_size} px, {card.precision}, trained in {card.framework}\n"
        f"{document.ground(made.machine, made.versions)}"
    )


def print_to(console: Console, made: Inferred) -> None:
    """The table, with its sentences below."""
    console.print(Text(heading(made)))
    tables.print_all(console, documents(made), where=REPORT_FILE)
    tables.print_sections(console, sections(made))
    console.print()


def to_plain(made: Inferred) -> dict[str, Any]:
    """Everything, JSON-ready."""
    return made.model_dump(mode="json") | {
        "tables": [tables.to_plain(table) for table in documents(made)],
        "sentences": [sentence for _, sentences in sections(made) for sentence in sentences],
        "exit_code": made.exit_code,
    }


def draw(made: Inferred, folder: Path) -> list[str]:
    """Draw latency and throughput by batch size; the names of the plots."""
    files = plots.write_all({"inference": lambda figure: _draw(figure, made)}, folder)
    return list(dict.fromkeys(path.stem for path in files))


def _draw(figure: Figure, made: Inferred) -> bool:
    figure.set_size_inches(11, 5)
    latency, throughput = figure.subplots(1, 2)
    for index, framework in enumerate(made.settings.frameworks):
        for number, cores in enumerate(made.settings.cores):
            own = [row for row in made.rows if (row.framework, row.cores) == (framework, cores)]
            style: dict[str, Any] = {
                "color": plots.COLOURS[index % len(plots.COLOURS)],
                "marker": plots.MARKERS[number % len(plots.MARKERS)],
                "linestyle": "-" if number else "--",
            }
            sizes = [row.batch_size for row in own]
            latency.plot(sizes, [1e3 * row.p50_seconds.median for row in own], label=_cell_name(framework, cores), **style)
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


def _claim(settings: Settings, model: Trained, folder: Path) -> None:
    """Claim the folder: a new one, or one of the same measurement. Only the repeats may grow.

    Raises:
        FolderError: it holds another one.
    """
    wanted = Plan(
        settings=settings,
        weights_hash=weights.digest(model.weights),
        code_hash=ladder.code_digest(settings.frameworks, model.card.model),
        machine=machine.describe(),
    )
    if (folder / PLAN_FILE).exists():
        earlier = store.read_record(folder / PLAN_FILE, Plan, "a measurement of inference")
        there, asked = (
            {**plan.settings.model_dump(mode="json", exclude={"repeats"}), "weights": plan.weights_hash}
            for plan in (earlier, wanted)
        )
        ground = store.other_ground((earlier.code_hash, wanted.code_hash), (earlier.machine, wanted.machine))
        if differing := store.differing(there, asked) or ground:
            raise FolderError(f"{folder} holds another measurement ({differing}). Choose another --out, or remove it.")
    atomic_files.write_atomically(folder / PLAN_FILE, atomic_files.with_checksum(wanted.model_dump_json()))


def _stored(path: Path) -> Latencies | None:
    try:
        return Latencies.model_validate_json(path.read_bytes())
    except (OSError, pydantic.ValidationError):
        return None


def _refuse_other_versions(found: Mapping[tuple[str, int, int], Latencies], folder: Path) -> None:
    """Require one version for all processes of a framework, which may have run days apart."""
    by_framework: dict[str, dict[str, str]] = {}
    for (framework, _, _), made in found.items():
        if (first := by_framework.setdefault(framework, made.versions)) != made.versions:
            raise FolderError(
                f"{folder} holds times of other versions of {framework} ({store.differing(first, made.versions)}). Choose "
                "another --out, or remove it."
            )


def _timed(
    settings: Settings, checkpoint: Path, model: Trained, framework: str, cores: int, path: Path
) -> tuple[Latencies | None, str | None]:
    """What a process measured, and why it stopped early, if it did."""
    words = ["--cores", str(cores), "--calls", str(settings.calls), "--seconds", str(settings.seconds)]
    words += ["--batches", ",".join(map(str, settings.batches)), *twin_client.own_model(model)]
    failure: str | None = None
    try:
        twin_client.ask(framework, ["infer", checkpoint, "--out", path, *words], path.with_suffix(".txt"))
    except errors.LaunchError as error:
        failure = str(error)
    made = _stored(path)
    known = 0 if made is None else len(made.batches)
    if known < len(settings.batches):
        missing = ", ".join(map(str, settings.batches[known:]))
        failure = f"{failure or f'{framework} ended without a result'}. No times of batch {missing}; see {path.stem}.txt"
    return made, failure


def _inferred(
    settings: Settings, model: Trained, found: dict[tuple[str, int, int], Latencies], failures: dict[str, str]
) -> Inferred:
    rows: list[Measured] = []
    by_place: dict[tuple[str, int, int], dict[int, BatchTimes]] = {}
    for (framework, cores, repeat), made in found.items():
        for times in made.batches:
            by_place.setdefault((framework, cores, times.batch_size), {})[repeat] = times
    for framework in settings.frameworks:
        for cores in settings.cores:
            for size in settings.batches:
                if own := by_place.get((framework, cores, size)):
                    rows.append(_measured(framework, cores, size, list(own.values())))
    ratios: list[tuple[str, Ratio]] = []
    for cores in settings.cores:
        for size in settings.batches:
            for first, second in combinations(settings.frameworks, 2):
                sides = [by_place.get((framework, cores, size), {}) for framework in (first, second)]
                pairs = [(_p50(sides[1][repeat]), _p50(sides[0][repeat])) for repeat in sides[0] if repeat in sides[1]]
                place = f"{wording.count(cores, 'core')}, batch {size}"
                if (ratio := paired_ratio(pairs)) is not None:
                    ratios.append((f"{place}: {first} and {second}", ratio))
    known = machine.describe()
    lost: dict[str, float] = {}
    for (framework, cores, _), made in found.items():
        name = _cell_name(framework, cores)
        lost[name] = max(lost.get(name, 0.0), cores_lost(made.cores_of_others, cores, known))
    return Inferred(
        settings=settings,
        card=model.card,
        weights_hash=weights.digest(model.weights),
        devices={framework: made.device for (framework, _, _), made in found.items()},
        versions={framework: made.versions for (framework, _, _), made in found.items()},
        machine=known,
        rows=rows,
        verdicts=statistics.verdicts(ratios),
        failures=failures,
        cores_lost=lost,
    )


def _measured(framework: str, cores: int, size: int, own: list[BatchTimes]) -> Measured:
    def over(values: list[float]) -> Spread:
        made = spread(values)
        assert made is not None  # finished processes have times
        return made

    every = [seconds for times in own for seconds in times.seconds]
    return Measured(
        framework=framework,
        cores=cores,
        batch_size=size,
        p50_seconds=over([_p50(times) for times in own]),
        p99_seconds=float(np.quantile(every, 0.99)) if len(every) >= CALLS_FOR_P99 else None,
        images_per_second=over([size * len(times.seconds) / sum(times.seconds) for times in own]),
        first_seconds=over([times.first_seconds for times in own]),
        calls=len(every),
    )


def _p50(times: BatchTimes) -> float:
    return float(np.median(times.seconds))


def _cell_name(framework: str, cores: int) -> str:
    return f"{framework}, {wording.count(cores, 'core')}"
