"""Report of timed scans: a table, sentences, a plot and JSON."""

from __future__ import annotations

import json
import statistics as python_statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from common import spec
from common.data.preprocessing import scan, statistics
from common.data.preprocessing.sums import Sums
from common.machine import interference, machine
from common.machine.interference import DISTURBED_FROM
from compare.cli import wording
from compare.reporting import plots
from compare.reporting.document import Report
from compare.reporting.tables import Cell, Column, Table
from compare.running import launch
from compare.tools.data.engine_scans import ScanOutcome, ScanRow

SCHEMA_VERSION = 1
KIND = "preprocess"
NAME, RESULTS_FILE = "preprocess", "preprocess.json"


def cores_taken(row: Mapping[str, Any]) -> float:
    """Return the most cores that other work took from a row's scans. `row` is one of `to_rows`, of this machine."""
    cores, machine_facts = machine.available_cores(), machine.describe()
    budget = min(row["workers"], cores)
    return max((interference.cores_taken(scan["cores_of_others"], budget, machine_facts) for scan in row["scans"]), default=0.0)


def doubt(rows: Iterable[Mapping[str, Any]]) -> str:
    """Name the rows that other work disturbed, for the caption of a table. Empty if there are none."""
    names = [f"{row['engine']} x{row['workers']}" for row in rows if cores_taken(row) > DISTURBED_FROM]
    number = wording.count(len(names), "row")
    return f"Other work disturbed scans of {number} ({', '.join(names)}): rely on no time of them." if names else ""


def table(outcome: ScanOutcome) -> Table:
    """Build a table with one row for each engine and number of workers."""
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
    plain_rows = to_rows(outcome)
    for plain_row in plain_rows:
        cells = {column.key: plain_row[column.key] for column in columns}
        rows.append(cells | {"oversubscribed": "yes" if plain_row["oversubscribed"] else "no"})
    request = outcome.request
    # The workers of a cluster count as other work.
    on_a_cluster = request.scheduler not in spec.SCHEDULERS
    local_rows = [row for row in plain_rows if not (on_a_cluster and row["engine"] in launch.SUITE_WORKERS)]
    repeats = f"median of {request.repeats} scans" if request.repeats > 1 else "one scan"
    return Table(
        NAME,
        f"Mean and standard deviation of {len(outcome.files.train):,} images of {outcome.files.name} at "
        f"{outcome.files.image_size} x {outcome.files.image_size} pixels",
        columns,
        rows,
        note=f"Seconds: {repeats}, each in a fresh process, without its import and the start of its workers. Speed-up: "
        f"relative to the same engine with 1 worker. Efficiency: speed-up / workers. Oversubscribed: more workers than cores "
        f"({outcome.cores} here). Dask: {request.scheduler}. {doubt(local_rows)}".strip(),
    )


def to_rows(outcome: ScanOutcome) -> list[dict[str, Any]]:
    """Return the rows, JSON-ready."""
    single_worker_seconds = {row.engine: row.seconds for row in outcome.rows if row.workers == 1}
    tasks = len(scan.parts(outcome.files.train.files))
    return [{**_plain_row(row, single_worker_seconds.get(row.engine)), "tasks": tasks} for row in outcome.rows]


def to_plain(outcome: ScanOutcome) -> dict[str, Any]:
    """Return everything, JSON-ready."""
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


def sentences(outcome: ScanOutcome) -> list[str]:
    """Return the results in sentences."""
    lines: list[str] = []
    if outcome.sums is not None:
        moments = statistics.statistics(outcome.sums)
        red, green, blue = (f"{mean:.6f} / {std:.6f}" for mean, std in zip(moments.mean, moments.std, strict=True))
        size_px = outcome.files.image_size
        lines.append(
            f"Mean / standard deviation in 0..1 at {size_px} x {size_px} pixels: red {red}, green {green}, blue {blue}."
        )
    if outcome.differing:
        names = ", ".join(row.name for row in outcome.differing)
        lines.append(f"NOT THE SAME: {names} found other integer sums than the others. Nothing was stored.")
    elif outcome.sums is not None:
        count = sum(len(row.scans) for row in outcome.rows)
        scans = "both" if count == 2 else f"all {count}"
        agreement = (
            f"The same integer sums in {scans} scans"
            if count > 1
            else "The one scan found the same integer sums as this process"
        )
        lines.append(f"{agreement}. They are stored for runs with data.normalization=dataset.")
    tasks = len(scan.parts(outcome.files.train.files))
    idle = sorted({row.workers for row in outcome.rows if row.scans and row.workers > tasks})
    if idle:
        lines.append(
            f"Of {', '.join(f'{count:,}' for count in idle)} workers at most {tasks:,} had work: the split has no more tasks. "
            f"A task is about {scan.CHUNK_BYTES / 2**20:.0f} MiB of files."
        )
    lines += [f"{row.name}: {row.status}: {row.reason}" for row in outcome.rows if row.reason]
    return lines


def report(outcome: ScanOutcome) -> Report:
    """Build the report of the scans."""
    return Report(
        title="Mean and standard deviation",
        name=NAME,
        json_file=RESULTS_FILE,
        overline="Preprocessing",
        findings=[
            ("What was found", sentences(outcome)),
            *([("The data", list(outcome.files.notes))] if outcome.files.notes else []),
        ],
        tables=[table(outcome)],
        drawings={NAME: lambda figure: _draw(figure, outcome)},
        values=to_plain(outcome),
        exit_code=outcome.exit_code,
    )


def read(folder: Path) -> list[dict[str, Any]]:
    """Read the rows of the report in a folder, in the form of `to_rows`."""
    return json.loads((folder / RESULTS_FILE).read_text("utf-8"))["rows"]


def _draw(figure: Figure, outcome: ScanOutcome) -> bool:
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
    max_workers = max(outcome.request.workers)
    if max_workers > outcome.cores:
        axis.axvspan(
            outcome.cores * 1.1,
            max_workers * 1.1,
            color="black",
            alpha=0.06,
            label=f"more workers than the {outcome.cores} cores",
        )
    if axis.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return True


def _plain_row(row: ScanRow, single_worker_seconds: float | None) -> dict[str, Any]:
    seconds = row.seconds
    speedup = single_worker_seconds / seconds if single_worker_seconds is not None and seconds is not None else None
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
    moments = statistics.statistics(sums)
    return {"mean": list(moments.mean), "std": list(moments.std)}
