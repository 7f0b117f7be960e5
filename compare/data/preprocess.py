"""`python -m compare preprocess`: mean and standard deviation of a training split, by every engine, timed."""

from __future__ import annotations

import json
import statistics as python_statistics
import tempfile
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import matplotlib as mpl
import pydantic
import typer
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter
from rich.console import Console
from rich.text import Text

from common import spec
from common.artifacts import atomic_files
from common.data import sources
from common.data.preprocessing import job, scan, statistics
from common.data.preprocessing.job import Scan
from common.data.preprocessing.sums import Sums
from common.data.sources import Files
from common.machine import machine
from common.spec import Spec, SpecError
from compare.core import exits, terminal, wording
from compare.core.interrupt import interruptible
from compare.core.option_parsing import chosen, names, numbers
from compare.core.progress import Display, display
from compare.execution import launch, store
from compare.execution.interleaving import turn
from compare.reporting import plots, tables
from compare.reporting.tables import Cell, Column, Table

SCHEMA_VERSION = 1
KIND = "preprocess"
NAME = "preprocess"
"""Of the files that --out gets, but for their suffix."""

_LOGS = "logs"

_REASON_LENGTH = 300


@dataclass
class Row:
    """One engine with one number of workers, and what its runs measured."""

    engine: str
    workers: int
    oversubscribed: bool
    scans: list[Scan] = field(default_factory=list[Scan])
    status: str = "ok"
    reason: str | None = None

    @property
    def name(self) -> str:
        return f"{self.engine} x{self.workers}"

    @property
    def seconds(self) -> float | None:
        """Median over the repeats; None for a row that failed."""
        return python_statistics.median(scan.seconds for scan in self.scans) if self.status == "ok" else None


@dataclass(frozen=True)
class Request:
    """What is to be scanned, and how."""

    engines: tuple[str, ...]
    workers: tuple[int, ...]
    scheduler: str
    repeats: int
    spec: Spec


@dataclass(frozen=True)
class Outcome:
    """All rows, and whether their sums are one."""

    request: Request
    files: Files
    cores: int
    rows: list[Row]

    @property
    def sums(self) -> Sums | None:
        """What most scans found; None where none came to an end, or no sums are those of most."""
        counts = Counter(scan.sums for row in self.rows for scan in row.scans).most_common(2)
        if not counts or (len(counts) > 1 and counts[0][1] == counts[1][1]):
            return None
        return counts[0][0]

    @property
    def differing(self) -> list[Row]:
        """Rows that found other sums than most."""
        return [row for row in self.rows if any(scan.sums != self.sums for scan in row.scans)]

    @property
    def exit_code(self) -> int:
        return exits.RUN_FAILED if self.differing or any(row.status in ("failed", "killed") for row in self.rows) else 0


def command(
    data: Annotated[str, typer.Argument(metavar="DATA", help="cifar10, leaves, or an image folder or archive.")],
    engines: Annotated[str, typer.Option(help="Which, with commas.")] = ",".join((*launch.OWN, *launch.FRAMEWORKS)),
    workers: Annotated[str, typer.Option(help="Numbers of workers, with commas.")] = "1,2,4,8",
    scheduler: Annotated[str, typer.Option(help="Dask's: threads, processes, or tcp://host:port of a cluster.")] = "threads",
    limit: Annotated[int | None, typer.Option(help="Training images to keep.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each row; the median counts.")] = 3,
    on_bad: Annotated[
        Literal["strict", "skip"] | None,
        typer.Option(help="strict: bad files refuse the data; skip: they are left out. Default: strict."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the splits and the limit.")] = 0,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="field=value of the spec, e.g. data.on_bad=skip.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write table, plot and logs here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Compute each channel's mean and standard deviation of the training split by every engine, and time it."""
    with exits.told(), interruptible():
        values = {"data": {"source": data, "limit": limit, **({"on_bad": on_bad} if on_bad else {})}, "seed": seed}
        request = _judged(engines, workers, scheduler, repeats, values, assignments or [])
        with display(Console(stderr=True)) as shown, _folder(out):
            outcome = run(request, shown, out)
            if out is not None:
                write(outcome, out)
        show(outcome, as_json=as_json)
    raise typer.Exit(outcome.exit_code)


def run(request: Request, shown: Display, out: Path | None) -> Outcome:
    """Scan with every engine and every number of workers, in turns, each time in a fresh process.

    The result is stored for the runs that normalise by it, where all engines agree.

    Raises:
        SpecError: the cluster is not there.
        DataRefused: as `datasets.load_files`.
    """
    cluster_workers, cluster_cores = _cluster(request, shown)
    shown.say("reading the data")
    data, cache_dir = request.spec.data, request.spec.paths.cache_dir
    files = sources.load_files(data, seed=request.spec.split_seed, cache_dir=cache_dir)
    rows = [_row(engine, count, cluster_workers, cluster_cores) for engine in request.engines for count in request.workers]
    with tempfile.TemporaryDirectory(prefix="convtwins-") as temporary:
        folder = Path(temporary)
        job.save(files.train.encoded, files.image_size, folder / "job.npz")
        turns = [row for repeat in range(request.repeats) for row in turn(rows, repeat)]
        shown.plan([row.name for row in turns])
        for row in turns:
            shown.begin(row.name, row.name)
            if row.status == "ok":
                _scan(row, request.scheduler, folder, (out or folder) / _LOGS / f"{row.engine}-{row.workers}.txt")
            shown.end()
    if len({row.engine for row in rows if row.scans}) == 1:  # one engine alone has nobody to agree with
        shown.say("checking the sums")
        _check(rows, scan.scan(files.train.encoded, files.image_size, machine.available_cores()))
    outcome = Outcome(request, files, machine.available_cores(), rows)
    if outcome.sums is not None and not outcome.differing:
        statistics.store(outcome.sums, files.content_hash, cache_dir=cache_dir)
    return outcome


def _check(rows: list[Row], sums: Sums) -> None:
    for row in rows:
        if any(found.sums != sums for found in row.scans):
            row.status, row.reason = "failed", "found other integer sums than this process's own scan"
            row.scans.clear()


def table(outcome: Outcome) -> Table:
    """One row for each engine and number of workers."""
    columns = (
        Column("engine", "engine"),
        Column("workers", "workers"),
        Column("seconds", "seconds", 3),
        Column("images_per_second", "images/s", 0),
        Column("speedup", "speed-up", 2),
        Column("efficiency", "efficiency", 2),
        Column("oversubscribed", "oversubscribed"),
        Column("import_seconds", "import seconds", 1, short="import\ns"),
        Column("start_seconds", "start seconds", 1, short="start\ns"),
        Column("peak_memory_mib", "peak memory MiB", 0, short="peak\nMiB", wide=True),
        Column("status", "status"),
        Column("reason", "reason", terminal=False),
    )
    rows: list[dict[str, Cell]] = []
    for made in to_rows(outcome):
        cells = {column.key: made[column.key] for column in columns}
        rows.append(cells | {"oversubscribed": "yes" if made["oversubscribed"] else "no"})
    request = outcome.request
    repeats = f"median of {request.repeats} scans" if request.repeats > 1 else "one scan"
    return Table(
        NAME,
        f"Mean and standard deviation of {len(outcome.files.train):,} images of {outcome.files.name}",
        columns,
        rows,
        note=f"Seconds: {repeats}, each in a fresh process; its import and the start of its workers stand apart. Speed-up: "
        f"against the same engine with 1 worker. Efficiency: speed-up over workers. Oversubscribed: more workers than cores "
        f"({outcome.cores} here). Dask: {request.scheduler}.",
    )


def to_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """The rows, JSON-ready."""
    alone = {row.engine: row.seconds for row in outcome.rows if row.workers == 1}
    tasks = len(scan.parts(outcome.files.train.encoded))
    return [{**_plain_row(row, alone.get(row.engine)), "tasks": tasks} for row in outcome.rows]


def to_plain(outcome: Outcome) -> dict[str, Any]:
    """Everything, JSON-ready."""
    request, files = outcome.request, outcome.files
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "data": files.name,
        "content_hash": files.content_hash,
        "image_size": files.image_size,
        "images": len(files.train),
        "notes": list(files.notes),
        "scheduler": request.scheduler,
        "repeats": request.repeats,
        "cores": outcome.cores,
        "machine": machine.describe(),
        **_mean_and_std(outcome.sums),
        "rows": to_rows(outcome),
        "differing": [row.name for row in outcome.differing],
        "exit_code": outcome.exit_code,
    }


def sentences(outcome: Outcome) -> list[str]:
    """What the rows say, in words."""
    said: list[str] = []
    if outcome.sums is not None:
        made = statistics.statistics(outcome.sums)
        red, green, blue = (f"{mean:.6f} / {std:.6f}" for mean, std in zip(made.mean, made.std, strict=True))
        said.append(f"Mean / standard deviation in 0..1: red {red}, green {green}, blue {blue}.")
    if outcome.differing:
        names = ", ".join(row.name for row in outcome.differing)
        said.append(f"NOT THE SAME: {names} found other integer sums than the others. Nothing was stored.")
    elif outcome.sums is not None:
        count = sum(len(row.scans) for row in outcome.rows)
        scans = "both" if count == 2 else f"all {count}"
        agreed = (
            f"The same integer sums in {scans} scans"
            if count > 1
            else "The one scan found the integer sums of this process's own"
        )
        said.append(f"{agreed}; stored for runs with data.normalization=dataset.")
    tasks = len(scan.parts(outcome.files.train.encoded))
    idle = sorted({row.workers for row in outcome.rows if row.scans and row.workers > tasks})
    if idle:
        said.append(
            f"Of {', '.join(f'{count:,}' for count in idle)} workers no more than {tasks:,} had work: the split makes no more "
            f"tasks, each about {scan.CHUNK_BYTES / 2**20:.0f} MiB of files."
        )
    said += [f"{row.name}: {row.status}: {row.reason}" for row in outcome.rows if row.reason]
    return said


def show(outcome: Outcome, *, as_json: bool) -> None:
    """Print the table and what it says on stdout, or all of it as one JSON object."""
    if as_json:
        typer.echo(json.dumps(to_plain(outcome), indent=1, allow_nan=False))
        return
    console = terminal.stdout()
    made = table(outcome)
    console.print(tables.to_rich(made, console.width))
    console.print(Text(tables.note_on_terminal(made, console.width, tables.ELSEWHERE), style="dim"))
    for sentence in sentences(outcome):
        console.print(Text(wording.one_line(sentence)))


def write(outcome: Outcome, folder: Path) -> None:
    """Write the table as Markdown, CSV and JSON, and the plot of time against workers as PNG and SVG."""
    made = table(outcome)
    said = "".join(f"- {tables.escaped(sentence)}\n" for sentence in sentences(outcome))
    atomic_files.write_atomically(
        folder / f"{NAME}.md", f"{tables.to_markdown(made)}\n{said}\n![time against workers]({NAME}.png)\n"
    )
    atomic_files.write_atomically(folder / f"{NAME}.csv", tables.to_csv(made))
    atomic_files.write_atomically(folder / f"{NAME}.json", json.dumps(to_plain(outcome), indent=1, allow_nan=False) + "\n")
    with mpl.rc_context(plots.SETTINGS):
        plots.save(_figure(outcome), folder, NAME)


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows that `write` has left in a folder, as `to_rows` has them."""
    return json.loads((folder / f"{NAME}.json").read_text("utf-8"))["rows"]


def _figure(outcome: Outcome) -> Figure:
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for index, engine in enumerate(outcome.request.engines):
        points = sorted((row.workers, row.seconds) for row in outcome.rows if row.engine == engine and row.seconds is not None)
        if points:
            counts, seconds = zip(*points, strict=True)
            marker = plots.MARKERS[index % len(plots.MARKERS)]
            axis.plot(counts, seconds, label=engine, color=plots.COLOURS[index], marker=marker)
    axis.set(title=table(outcome).title, xlabel="workers", ylabel="seconds", ylim=(0, None))
    axis.set_xscale("log", base=2)
    axis.xaxis.set(major_locator=FixedLocator(sorted(outcome.request.workers)), minor_locator=NullLocator())
    axis.xaxis.set_major_formatter(ScalarFormatter())
    most = max(outcome.request.workers)
    if most > outcome.cores:
        axis.axvspan(
            outcome.cores * 1.1, most * 1.1, color="black", alpha=0.06, label=f"more workers than the {outcome.cores} cores"
        )
    if axis.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def _judged(
    engines: str, workers: str, scheduler: str, repeats: int, values: dict[str, Any], assignments: list[str]
) -> Request:
    named = chosen("--engines", names(engines), (*launch.OWN, *launch.FRAMEWORKS))
    counts = numbers("--workers", workers, least=1)
    if scheduler not in spec.SCHEDULERS and not scheduler.startswith("tcp://"):
        raise SpecError(
            f"--scheduler is unknown. Received: {scheduler!r}. Use {', '.join(spec.SCHEDULERS)}, or tcp://host:port."
        )
    wanted = spec.build(spec.overlay(values, spec.parse_assignments(assignments)))
    return Request(tuple(named), counts, scheduler, repeats, wanted)


def _folder(out: Path | None) -> AbstractContextManager[None]:
    """Hold the folder that is written to, where there is one."""
    if out is None:
        return nullcontext()
    store.refuse_others(out, f"{NAME}.json", KIND, KIND, own=(_LOGS,))
    return store.locked(out)


def _cluster(request: Request, shown: Display) -> tuple[int | None, int]:
    """Workers of the cluster, None where Dask works on this machine, and the cores that Dask's workers have."""
    if request.scheduler in spec.SCHEDULERS or not set(request.engines) & set(launch.OWN):
        return None, machine.available_cores()
    from common.data.preprocessing import dask_scan  # takes a second to import

    shown.say(f"asking {request.scheduler}")
    try:
        return dask_scan.workers_and_cores(request.scheduler)
    except dask_scan.SchedulerError as error:
        raise SpecError(str(error)) from None


def _row(engine: str, workers: int, cluster_workers: int | None, cluster_cores: int) -> Row:
    own = engine in launch.OWN
    row = Row(engine, workers, workers > (cluster_cores if own else machine.available_cores()))
    if own and cluster_workers is not None and workers > cluster_workers:
        row.status, row.reason = (
            "not available",
            f"the cluster has {wording.count(cluster_workers, 'worker')}",
        )
    return row


def _scan(row: Row, scheduler: str, folder: Path, log: Path) -> None:
    """Run a row once; where its process dies, the row says why and is not run again."""
    result = folder / "scan.json"
    result.unlink(missing_ok=True)
    arguments = [str(folder / "job.npz"), "--workers", str(row.workers), "--out", str(result)]
    arguments = [*arguments, "--scheduler", scheduler] if row.engine in launch.OWN else ["preprocess", *arguments]
    log.unlink(missing_ok=True)
    code = launch.call(row.engine, arguments, log=log)
    try:
        row.scans.append(Scan.model_validate_json(result.read_bytes()))
    except (OSError, pydantic.ValidationError):
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        words = launch.exit_words(code) if code else "ended without a result"
        row.status = "killed" if code < 0 else "failed"
        row.reason = wording.one_line(f"{words}: {lines[-1][:_REASON_LENGTH]}" if lines else words)


def _plain_row(row: Row, alone: float | None) -> dict[str, Any]:
    seconds = row.seconds
    speedup = alone / seconds if alone is not None and seconds is not None else None
    last = row.scans[-1] if seconds is not None else None

    def median(name: str) -> float | None:
        return python_statistics.median(getattr(scan, name) for scan in row.scans) if last else None

    return {
        "engine": row.engine,
        "workers": row.workers,
        "seconds": seconds,
        "images": last.images if last else None,
        "images_per_second": last.images / seconds if last and seconds else None,
        "speedup": speedup,
        "efficiency": speedup / row.workers if speedup is not None else None,
        "oversubscribed": row.oversubscribed,
        **_mean_and_std(last.sums if last else None),
        "import_seconds": median("import_seconds"),
        "start_seconds": median("start_seconds"),
        "peak_memory_mib": median("peak_memory_mib"),
        "status": row.status,
        "reason": row.reason,
        "scans": [scan.model_dump() for scan in row.scans],
    }


def _mean_and_std(sums: Sums | None) -> dict[str, list[float] | None]:
    if sums is None:
        return {"mean": None, "std": None}
    made = statistics.statistics(sums)
    return {"mean": list(made.mean), "std": list(made.std)}
