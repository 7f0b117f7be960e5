"""`python -m compare scaling`: measures the gain from more replicas, and projects it to other machines, labelled as such."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import matplotlib as mpl
import typer
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

from common import spec
from common.artifacts import atomic_files
from common.artifacts.schema import RunResult
from common.data import sources
from common.frozen import Frozen
from common.spec import SpecError
from common.training.compression import SUMMABLE
from compare.comparison import run
from compare.core import exits, terminal, wording
from compare.core.errors import FolderError
from compare.core.option_parsing import chosen, names, numbers, variants
from compare.core.presets import Preset
from compare.core.statistics import Ratio, Spread, spread
from compare.execution import launch, matrix
from compare.execution.matrix import Row
from compare.execution.store import Stored
from compare.judgement import scaling_laws
from compare.judgement.scaling_laws import Compute, Network, SerialFraction, Topology
from compare.judgement.summary import (
    accelerated,
    images_per_second,
    measured,
    oversubscribed,
    pairs_of_seconds,
    ratio_of_seconds,
    serial_of,
    spread_median,
    summarize,
)
from compare.reporting import document, plots, report, tables
from compare.reporting.report import Report
from compare.reporting.tables import Column, Table

Kind = Literal["strong", "weak"]
KINDS: tuple[Kind, ...] = ("strong", "weak")
TOPOLOGIES: tuple[Topology, ...] = ("ring", "tree", "server")
EXCHANGES: dict[str, Topology] = {"multi_process": "ring", "parameter_server": "server"}
"""Modes whose exchange the alpha-beta model describes. The model is checked on them; see `_topology`."""

SCALING_FILE = "scaling.json"


class Point(Frozen):
    """One mode at one number of replicas."""

    id: str
    framework: str
    mode: str
    kind: Kind
    """strong: the global batch is fixed; weak: it grows with the replicas."""
    replicas: int
    cores: int
    oversubscribed: bool
    """More replicas than cores, so that replicas share cores; see `summary.oversubscribed`."""
    global_batch_size: int
    per_replica_batch_size: int
    workers: int
    status: str
    in_doubt: bool
    """Other work disturbed this run or a run that it is compared with, or the runs were too short to tell."""
    images_per_second: Spread | None
    speedup_one_core: Ratio | None
    """Epoch seconds of serial on one core, with the per-replica batch of the weak runs, divided by this row's."""
    speedup_same_cores: Ratio | None
    """Epoch seconds of serial on as many cores, with the same global batch, divided by this row's."""
    speedup_same_batch: Ratio | None
    """Epoch seconds of serial on one core with this row's per-replica batch, divided by this row's."""
    efficiency_one_core: float | None
    """speedup_one_core / cores; on accelerators, / replicas."""
    efficiency_same_batch: float | None


class Law(Frozen):
    """A law fitted to the points of one mode. Points with more replicas than cores are left out."""

    framework: str
    mode: str
    workers: int
    fraction: SerialFraction


class Check(Frozen):
    """The model is fitted on the smaller runs and compared with the largest measured run."""

    framework: str
    mode: str
    kind: Kind
    workers: int
    replicas: int
    fitted_on: list[int]
    """Replicas of the parallel runs that the link was fitted on. Empty: compute alone."""
    predicted_seconds: float
    measured_seconds: float

    @property
    def error(self) -> float:
        """(predicted - measured) / measured, for a step."""
        return self.predicted_seconds / self.measured_seconds - 1.0


class Projected(Frozen):
    """Projected, not measured: this machine's compute, and the gradient's bytes over a network that it does not have."""

    framework: str
    workers: int
    kind: Kind
    topology: Topology
    network: str
    replicas: int
    step_seconds: float | None
    """None if the global batch has fewer images than replicas."""
    speedup: float | None
    """Images per second divided by those of one replica."""


class Scaling(Frozen):
    """The complete result of `compare scaling`."""

    points: list[Point]
    laws: list[Law]
    checks: list[Check]
    projected: list[Projected]


@dataclass(frozen=True)
class Wish:
    """What to project."""

    replicas: tuple[int, ...] = ()
    link: Network | None = None


def command(
    modes: Annotated[str, typer.Option(help=f"Which of {', '.join(spec.VARIANTS)}, with commas; or all.")] = "multi_process",
    replicas: Annotated[str, typer.Option(help="Numbers of replicas, with commas; 1 is serial, and always measured.")] = "1,2",
    workers: Annotated[str | None, typer.Option(help="Numbers of input workers, with commas.")] = None,
    kinds: Annotated[
        str, typer.Option(help="strong (global batch fixed), weak (batch of a replica fixed), or both.")
    ] = "strong,weak",
    project: Annotated[str | None, typer.Option(help="Numbers of replicas to project to, with commas, e.g. 8,64,512.")] = None,
    network: Annotated[
        str, typer.Option(help="10Gbit, 100Gbit, nvlink, or ALPHA,BETA in seconds and seconds per byte.")
    ] = "10Gbit",
    data: Annotated[str | None, typer.Option(help=f"{', '.join(sources.NAMES)}, or an image folder or archive.")] = None,
    model: Annotated[str | None, typer.Option(help=f"{', '.join(spec.MODELS)}, or package.module of your own.")] = None,
    hosts: Annotated[str | None, typer.Option(help="Machines for the ranks, with commas, the first of them this one.")] = None,
    frameworks: Annotated[str, typer.Option(help="Which, with commas.")] = ",".join(launch.FRAMEWORKS),
    epochs: Annotated[int | None, typer.Option(help="Passes over the training split. Default: 2.")] = None,
    limit: Annotated[int | None, typer.Option(help="Training examples to keep.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each row; intervals need 2, verdicts 5.")] = 1,
    cores: Annotated[int | None, typer.Option(help="CPU cores to scale over. Default: all.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="field=value of the spec, e.g. global_batch_size=128.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder. Default: results/<time>-<model>-<data>.")] = None,
    stored: Annotated[
        Path | None, typer.Option(help="Measure nothing: read this results folder of an earlier scaling.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Measure strong and weak scaling, fit Amdahl and Gustafson, and project to machines that are not here."""
    options: dict[str, Any] = {"data.source": data, "model": model, "epochs": epochs, "data.limit": limit, "cores": cores}
    options["hosts"] = None if hosts is None else names(hosts)
    with exits.told():
        wish = Wish()
        if project is not None:
            wish = Wish(numbers("--project", project, least=1), scaling_laws.network(network))
        if stored is not None:
            raise typer.Exit(show(report.read(stored), stored, wish, as_json=as_json))
        settings = run.settings(None, None, options, assignments or [])
        settings = replace(settings, modes=tuple(variants(modes)), repeats=repeats)
        if workers is not None:
            settings = replace(settings, workers=numbers("--workers", workers, least=0))
        sizes = tuple(size for size in numbers("--replicas", replicas, least=1) if size != 1)
        lay_out = partial(rows, sizes=sizes, kinds=_kinds(kinds))
        request = run.Request(settings, names(frameworks), out, prove=False, lay_out=lay_out, oversubscribe=True)
        code = run.run(request, as_json=as_json, show=partial(_show_run, wish=wish))
    raise typer.Exit(code)


def rows(settings: Preset, frameworks: Sequence[str], *, sizes: Sequence[int], kinds: Sequence[Kind]) -> list[Row]:
    """Every parallel row of the scaling, and every serial row that it is compared with.

    Args:
        settings: its values' `global_batch_size` is that of the strong runs and of each replica of the weak ones.
        frameworks: names of `launch.FRAMEWORKS`.
        sizes: numbers of replicas, each at least 2.
        kinds: of KINDS.

    Raises:
        SpecError: a row's spec is refused.
    """
    values = settings.values
    chosen("frameworks", frameworks, tuple(launch.FRAMEWORKS))
    chosen("modes", settings.modes, tuple(spec.VARIANTS))
    hosts = tuple(values.get("hosts") or ())
    # # Judged without hosts: every scaling begins with serial, which has none.
    first = spec.build({name: value for name, value in values.items() if name not in (("hosts", "cores") if hosts else ())})
    available, batch = first.cores * max(len(hosts), 1), first.global_batch_size
    if hosts and values.get("cores") is not None:
        available = values["cores"]
        if type(available) is not int or available < len(hosts):
            raise SpecError(f"cores must be a whole number, one for each host at least. Received: {available!r}.")
    made: dict[str, Row] = {}

    def add(name: str, framework: str, **fields: Any) -> None:
        made.setdefault(f"{framework}-{name}", Row(id=f"{framework}-{name}", framework=framework, spec=spec.build(fields)))

    for framework in frameworks:
        for fed in [matrix.fed(values, number) for number in settings.workers] or [values]:
            ending = f"-{fed['workers']}workers" if len(settings.workers) > 1 else ""

            def serial(
                cores: int, size: int, fed: dict[str, Any] = fed, ending: str = ending, framework: str = framework
            ) -> None:
                # Over several hosts, serial has the first: with_variant holds it to the cores that are there.
                one = spec.with_variant({**fed, "cores": cores, "global_batch_size": size}, "serial", 1)
                add(f"serial-{one['cores']}cores-batch{size}{ending}", framework, **one)

            serial(1, batch)
            for mode in settings.modes:
                for size in sizes if mode != "serial" else ():
                    for kind in kinds:
                        total = batch if kind == "strong" else batch * size
                        wanted = spec.with_variant({**fed, "global_batch_size": total}, mode, size)
                        wanted["cores"] = min(wanted["replicas"], available)
                        wanted["hosts"] = hosts[: wanted["replicas"]]
                        row = spec.build(wanted)
                        add(f"{mode}-{row.replicas}replicas-{kind}{ending}", framework, **wanted)
                        serial(row.cores, total)
                        serial(1, row.per_replica_batch_size)
    return list(made.values())


def read(stored: Stored, wish: Wish) -> Scaling:
    """The scaling of a comparison that was laid out by `rows`.

    Raises:
        FolderError: it holds no such rows.
    """
    doubted = {summary.id for summary in summarize(stored) if summary.in_doubt}
    points = [_point(stored, row, doubted) for row in stored.comparison.rows if row.spec.mode != "serial"]
    if not points:
        raise FolderError("The folder holds no parallel run. Choose one that compare scaling has filled.")
    return Scaling(
        points=points,
        laws=_laws(stored, points),
        checks=_checks(stored),
        projected=_projected(stored, wish),
    )


def show(made: Report, folder: Path, wish: Wish, *, as_json: bool) -> int:
    """Write tables, plot and scaling.json beside the report of the runs, and print them; the exit code."""
    found = read(made.stored, wish)
    plain = found.model_dump(mode="json") | {"checks": [each.model_dump() | {"error": each.error} for each in found.checks]}
    written = [points_table(found), laws_table(found), checks_table(found), projected_table(found)]
    shown = [table for table in written if table.rows]
    for table in shown:
        tables.write(table, folder / document.TABLES_FOLDER)
    draw(found, folder / document.PLOTS_FOLDER)
    atomic_files.write_atomically(folder / SCALING_FILE, json.dumps(plain, indent=1, allow_nan=False) + "\n")
    if as_json:
        typer.echo(json.dumps(plain, indent=1, allow_nan=False))
        return made.exit_code
    console = terminal.stdout()
    for table in shown:
        console.print()
        console.print(tables.to_rich(table, console.width))
        console.print(Text(table.note, style="dim"))
    _say_troubles(made, console)
    console.print(Text(f"\nTables, plot and every run: {folder}"), soft_wrap=True)
    return made.exit_code


def points_table(found: Scaling) -> Table:
    columns = (
        Column("framework", "framework"),
        Column("mode", "mode"),
        Column("kind", "scaling"),
        Column("replicas", "replicas", short="repl."),
        Column("cores", "cores"),
        Column("global_batch_size", "global batch", short="batch"),
        Column("workers", "input workers", terminal=False),
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
    cells = [
        {column.key: getattr(point, column.key) for column in columns}
        | ({"status": ", ".join(_marks(point)) or "ok"} if point.status == "ok" else {})
        for point in found.points
    ]
    return Table(
        "scaling",
        "Scaling, measured",
        columns,
        cells,
        spreads_on_terminal=False,
        note="Ratios of seconds per epoch, paired by repeat. Same batch: against serial with one replica's batch. "
        "Oversubscribed: more replicas than cores, which take turns. In doubt: other work disturbed it or what it is held "
        "against, or they were too short to tell: rely on no time of it.",
    )


def _marks(point: Point) -> list[str]:
    return ["oversubscribed"] * point.oversubscribed + ["in doubt"] * point.in_doubt


def laws_table(found: Scaling) -> Table:
    columns = (
        Column("framework", "framework"),
        Column("mode", "mode"),
        Column("law", "law"),
        Column("serial_fraction", "serial fraction", 3, interval=True),
        Column("n", "points"),
        Column("speedup_8", "at 8 replicas", 1),
        Column("speedup_64", "at 64", 1),
    )
    cells: list[dict[str, tables.Cell]] = []
    for law in found.laws:
        fraction = law.fraction
        ratio = Ratio(value=fraction.value, low=fraction.low, high=fraction.high, n=fraction.n)
        told = (8, 64) if 0.0 <= fraction.value <= 1.0 else ()
        said: dict[str, tables.Cell] = {f"speedup_{count}": fraction.speedup(count) for count in told}
        cells.append(
            {"framework": law.framework, "mode": law.mode, "law": fraction.law, "serial_fraction": ratio, "n": fraction.n}
            | said
        )
    return Table(
        "scaling_laws",
        "The laws, fitted",
        columns,
        cells,
        note="Serial fraction with its 95 % t-interval, where there are two points or more; what it says of more replicas is "
        "no measurement. Below zero: smaller batches gained more than the replicas' number; above one: replicas are slower "
        "than serial. Of both the law says nothing.",
    )


def checks_table(found: Scaling) -> Table:
    columns = (
        Column("framework", "framework"),
        Column("mode", "mode"),
        Column("kind", "scaling"),
        Column("workers", "input workers", terminal=False),
        Column("replicas", "replicas"),
        Column("fitted_on", "link fitted on"),
        Column("predicted_seconds", "predicted s/step", 4),
        Column("measured_seconds", "measured s/step", 4),
        Column("error_percent", "error %", 1),
    )
    cells: list[dict[str, tables.Cell]] = [
        check.model_dump()
        | {"fitted_on": ", ".join(map(str, check.fitted_on)) or "serial alone", "error_percent": 100 * check.error}
        for check in found.checks
    ]
    return Table(
        "scaling_check",
        "The model of the projection, checked",
        columns,
        cells,
        note="Compute from serial runs on one core, the link from smaller parallel runs; held against the largest run here "
        "that has a core for each replica. Fitted on one number of replicas, the link is taken for bandwidth alone.",
    )


def projected_table(found: Scaling) -> Table:
    columns = (
        Column("framework", "framework"),
        Column("workers", "input workers", terminal=False),
        Column("kind", "scaling"),
        Column("network", "network"),
        Column("topology", "exchange"),
        Column("replicas", "replicas"),
        Column("step_seconds", "projected s/step", 4),
        Column("speedup", "projected speed-up", 1),
    )
    cells: list[dict[str, tables.Cell]] = [projected.model_dump() for projected in found.projected]
    return Table(
        "scaling_projected",
        "Projected, not measured",
        columns,
        cells,
        note="One replica's compute, fitted to serial runs on one core, and alpha + beta x bytes for its exchange, none of it "
        f"hidden behind compute.{_missed(found)}",
    )


def _missed(found: Scaling) -> str:
    """How far off the model was where it could be checked, and whether it rests on doubtful measurements."""
    errors = [f"{100 * check.error:+.0f} %" for check in found.checks]
    checked = f" Of the largest runs here the same model was off by {', '.join(errors)} of a step." if errors else ""
    doubt = " It rests on runs that are in doubt." if any(point.in_doubt for point in found.points) else ""
    return checked + doubt


def draw(found: Scaling, folder: Path) -> list[Path]:
    """Speed-up over replicas: measured points with their intervals; projected points stand apart."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(plots.SETTINGS):
        figure = Figure(figsize=(11, 5) if found.projected else (6.5, 5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, 2 if found.projected else 1, squeeze=False)[0]
        _draw_measured(axes[0], found)
        if found.projected:
            _draw_projected(axes[1], found)
        return plots.save(figure, folder, "scaling")


def _draw_measured(axes: Any, found: Scaling) -> None:
    lines: dict[tuple[str, str, Kind, int], list[Point]] = {}
    for point in found.points:
        if point.speedup_one_core is not None:
            lines.setdefault((point.framework, point.mode, point.kind, point.workers), []).append(point)
    for index, ((framework, mode, kind, workers), line) in enumerate(lines.items()):
        line.sort(key=lambda point: point.replicas)
        ratios = [point.speedup_one_core for point in line if point.speedup_one_core is not None]
        sizes = [point.replicas for point in line]
        colour = plots.COLOURS[index % len(plots.COLOURS)]
        spans = [
            [ratio.value - (ratio.low if ratio.low is not None else ratio.value) for ratio in ratios],
            [(ratio.high if ratio.high is not None else ratio.value) - ratio.value for ratio in ratios],
        ]
        label = f"{framework} {mode}, {kind}{_fed(workers)}"
        axes.errorbar(
            [1, *sizes],
            [1.0, *(ratio.value for ratio in ratios)],
            [[0.0, *span] for span in spans],
            color=colour,
            linestyle="-" if kind == "strong" else "--",
            marker=plots.MARKERS[index % len(plots.MARKERS)],
            capsize=3,
            label=label,
        )
        crowded = [(size, ratio.value) for size, ratio, point in zip(sizes, ratios, line, strict=True) if point.oversubscribed]
        if crowded:
            axes.plot(*zip(*crowded, strict=True), "o", markersize=13, fillstyle="none", color=colour)
    largest = max((point.replicas for point in found.points), default=1)
    axes.plot([1, largest], [1, largest], color="0.6", linestyle=":", label="as many times as replicas")
    note = "; ringed: more replicas than cores" if any(point.oversubscribed for point in found.points) else ""
    axes.set(xlabel="replicas", ylabel="images per second, against serial on one core", title=f"Measured{note}")
    axes.set_xticks(sorted({1, *(point.replicas for point in found.points)}))
    axes.legend(fontsize=8)


def _draw_projected(axes: Any, found: Scaling) -> None:
    lines: dict[tuple[str, int, Kind, Topology], list[Projected]] = {}
    for projected in found.projected:
        if projected.speedup is not None:
            key = projected.framework, projected.workers, projected.kind, projected.topology
            lines.setdefault(key, []).append(projected)
    computes = list(dict.fromkeys((framework, workers) for framework, workers, _, _ in lines))
    styles: dict[Topology, str] = dict(zip((*TOPOLOGIES, "all_gather"), ("-", "--", ":", "-."), strict=True))
    for (framework, workers, kind, topology), line in lines.items():
        colour = 2 * computes.index((framework, workers)) + KINDS.index(kind)
        line.sort(key=lambda projected: projected.replicas)
        axes.plot(
            [projected.replicas for projected in line],
            [projected.speedup for projected in line],
            color=plots.COLOURS[colour % len(plots.COLOURS)],
            linestyle=styles[topology],
            alpha=0.8,
            label=f"{framework}, {kind}, {topology}{_fed(workers)}",
        )
    axes.set(xscale="log", yscale="log", xlabel="replicas", ylabel="images per second, against one replica")
    axes.set_title(f"Projected, not measured: {found.projected[0].network}")
    axes.set_facecolor("0.96")
    axes.legend(fontsize=7, ncols=2)


def _fed(workers: int) -> str:
    return f", {workers} workers" if workers else ""


def _point(stored: Stored, row: Row, doubted: Collection[str]) -> Point:
    wanted, device = row.spec, _device(stored, row)
    whole, part = wanted.global_batch_size, wanted.per_replica_batch_size
    against = ((1, _base_batch(stored)), (wanted.cores, whole), (1, part))
    bases = [serial_of(stored.comparison, row, cores=cores, batch=batch) for cores, batch in against]
    one_core, same_cores, same_batch = (ratio_of_seconds(stored, slow=base, fast=row) if base else None for base in bases)
    resources = wanted.replicas if accelerated(device) else wanted.cores
    good = list(measured(stored, row).values())
    return Point(
        id=row.id,
        framework=row.framework,
        mode=wanted.variant,
        kind=_kind(stored, row),
        replicas=wanted.replicas,
        cores=wanted.cores,
        oversubscribed=oversubscribed(wanted.replicas, wanted.cores, device),
        global_batch_size=wanted.global_batch_size,
        per_replica_batch_size=wanted.per_replica_batch_size,
        workers=wanted.workers,
        status=_status(stored, row),
        in_doubt=any(each.id in doubted for each in (row, *filter(None, bases))),
        images_per_second=spread([images_per_second(result) for result in good]),
        speedup_one_core=one_core,
        speedup_same_cores=same_cores,
        speedup_same_batch=same_batch,
        efficiency_one_core=one_core.value / resources if one_core else None,
        efficiency_same_batch=same_batch.value / resources if same_batch else None,
    )


def _base_batch(stored: Stored) -> int | None:
    """The batch that everything is scaled up from: the batch of the first serial row, which `rows` puts first."""
    return next((row.spec.global_batch_size for row in stored.comparison.rows if row.spec.mode == "serial"), None)


def _kind(stored: Stored, row: Row) -> Kind:
    """A row is a weak run if its batch has grown with the replicas."""
    return "strong" if _base_batch(stored) in (None, row.spec.global_batch_size) else "weak"


def _device(stored: Stored, row: Row) -> str | None:
    return next((result.device for result in measured(stored, row).values() if result.device), None)


def _status(stored: Stored, row: Row) -> str:
    if row.unavailable:
        return row.unavailable.partition(":")[0]
    found = stored.runs[row.id].values()
    bad = [result.status for result in found if result.status != "ok"]
    return bad[0] if bad else "ok" if len(found) == stored.comparison.repeats else "not run"


def _step_seconds(result: RunResult) -> float:
    """Seconds for a step of a whole batch, at the pace of the timed images."""
    return result.spec.global_batch_size / images_per_second(result)


def _laws(stored: Stored, points: Sequence[Point]) -> list[Law]:
    found: list[Law] = []
    groups = dict.fromkeys((point.framework, point.mode, point.workers) for point in points)
    for framework, mode, workers in groups:
        for kind, fit in (("strong", scaling_laws.amdahl), ("weak", scaling_laws.gustafson)):
            samples = [
                (point.replicas, gain)
                for point in points
                if (point.framework, point.mode, point.workers, point.kind) == (framework, mode, workers, kind)
                and not point.oversubscribed
                for gain in _gains(stored, point)
            ]
            fraction = fit(samples)
            if fraction is not None:
                found.append(Law(framework=framework, mode=mode, workers=workers, fraction=fraction))
    return found


def _gains(stored: Stored, point: Point) -> list[float]:
    """The speed-up over serial on one core, for each repeat."""
    (row,) = [row for row in stored.comparison.rows if row.id == point.id]
    base = serial_of(stored.comparison, row, cores=1, batch=_base_batch(stored))
    return [serial / own for serial, own in pairs_of_seconds(stored, slow=base, fast=row)] if base else []


def _fed_alike(stored: Stored) -> list[list[Row]]:
    """The rows by framework and input. Rows with another input have another pace and cannot be used together."""
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in stored.comparison.rows:
        groups.setdefault((row.framework, row.spec.input, row.spec.workers), []).append(row)
    return list(groups.values())


def _compute(stored: Stored, rows: Sequence[Row]) -> Compute | None:
    """One replica's compute, from serial runs on one core."""
    return scaling_laws.fit_compute(
        [
            (row.spec.global_batch_size, _step_seconds(result))
            for row in rows
            if (row.spec.mode, row.spec.cores) == ("serial", 1)
            for result in measured(stored, row).values()
        ]
    )


def _topology(row: Row) -> Topology:
    """How a row exchanges gradients. Compressed data that cannot be summed goes to everybody, in every mode."""
    summable = row.spec.communication.compression in SUMMABLE
    return EXCHANGES[row.spec.variant] if summable else "all_gather"


def _payload_bytes(stored: Stored, rows: Sequence[Row]) -> float:
    """Bytes that one replica sends in a step, as measured in these runs: compressed, with the sums of BatchNorm.

    If no run is parallel: all gradients, uncompressed.
    """
    for row in rows:
        if row.spec.variant in EXCHANGES:
            # Sent by all replicas, and for each of them what beta is multiplied by; a server's link carries all of it.
            sharing = 1 if _topology(row) == "server" else row.spec.replicas
            volume = scaling_laws.exchange_terms(_topology(row), row.spec.replicas, 1.0)[1] * sharing
            for result in measured(stored, row).values():
                if result.bytes_per_step:
                    return result.bytes_per_step / volume
    comparison = stored.comparison
    return comparison.trainable_values * {"float32": 4.0, "float64": 8.0}[comparison.rows[0].spec.precision]


def _checks(stored: Stored) -> list[Check]:
    found: list[Check] = []
    for alike in _fed_alike(stored):
        compute = _compute(stored, alike)
        for mode in EXCHANGES:
            own = [
                row
                for row in alike
                if row.spec.variant == mode and not oversubscribed(row.spec.replicas, row.spec.cores, _device(stored, row))
            ]
            runs = [(row, _step_seconds(result)) for row in own for result in measured(stored, row).values()]
            if compute is None or not runs:
                continue
            topology, payload = _topology(own[0]), _payload_bytes(stored, own)
            largest = max(row.spec.replicas for row, _ in runs)
            beyond = [
                (row.spec.replicas, seconds - compute.step_seconds(row.spec.per_replica_batch_size))
                for row, seconds in runs
                if row.spec.replicas < largest
            ]
            link = scaling_laws.fit_link(topology, payload, beyond)
            exchange = scaling_laws.exchange_seconds(topology, largest, payload, link)
            for row in own:
                seconds = [each for other, each in runs if other.id == row.id]
                if row.spec.replicas == largest and seconds:
                    found.append(
                        Check(
                            framework=row.framework,
                            mode=mode,
                            kind=_kind(stored, row),
                            workers=row.spec.workers,
                            replicas=largest,
                            fitted_on=sorted({replicas for replicas, _ in beyond}),
                            predicted_seconds=compute.step_seconds(row.spec.per_replica_batch_size) + exchange,
                            measured_seconds=spread_median(seconds),
                        )
                    )
    return found


def _projected(stored: Stored, wish: Wish) -> list[Projected]:
    batch = _base_batch(stored)
    if wish.link is None or batch is None:
        return []
    found: list[Projected] = []
    for alike in _fed_alike(stored):
        compute = _compute(stored, alike)
        if compute is None:
            continue
        payload = _payload_bytes(stored, alike)
        for kind in KINDS:
            for topology in _topologies(alike):
                for replicas in wish.replicas:
                    images = batch if kind == "strong" else batch * replicas
                    seconds = speedup = None
                    if images >= replicas:
                        exchange = scaling_laws.exchange_seconds(topology, replicas, payload, wish.link)
                        seconds = compute.step_seconds(images / replicas) + exchange
                        speedup = images / seconds * compute.step_seconds(batch) / batch
                    found.append(
                        Projected(
                            framework=alike[0].framework,
                            workers=alike[0].spec.workers,
                            kind=kind,
                            topology=topology,
                            network=wish.link.name,
                            replicas=replicas,
                            step_seconds=seconds,
                            speedup=speedup,
                        )
                    )
    return found


def _topologies(rows: Sequence[Row]) -> Sequence[Topology]:
    """Possible ways to exchange gradients, sent as these rows send them."""
    return TOPOLOGIES if rows[0].spec.communication.compression in SUMMABLE else ("all_gather",)


def _kinds(text: str) -> tuple[Kind, ...]:
    asked = chosen("--kinds", names(text), KINDS)
    return tuple(kind for kind in KINDS if kind in asked)


def _show_run(made: Report, folder: Path, *, as_json: bool, wish: Wish) -> None:
    show(made, folder, wish, as_json=as_json)


def _say_troubles(made: Report, console: Console) -> None:
    for sentence in made.findings.troubles:
        console.print(Text(wording.one_line(sentence)))
