"""Timed scans of a training split by every engine. Each scan runs in a fresh process."""

from __future__ import annotations

import statistics as python_statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pydantic

from common import spec
from common.data import sources
from common.data.preprocessing import job, scan, statistics
from common.data.preprocessing.job import Scan
from common.data.preprocessing.sums import Sums
from common.data.sources import Dataset
from common.machine import machine
from common.machine.private_folder import PrivateFolder
from common.spec import Spec, SpecError
from compare.cli import exits, wording
from compare.cli.progress import Display
from compare.running import launch
from compare.running.contestants import Contestant
from compare.running.interleaving import Job, rounds, run_in_turns

LOGS = "logs"
"""Folder of the processes' logs, in the folder of the results."""


@dataclass
class ScanRow:
    """One engine with one number of workers, and its measurements."""

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
        """Median of the repeats. None for a row that failed."""
        return python_statistics.median(scan.seconds for scan in self.scans) if self.status == "ok" else None


@dataclass(frozen=True)
class ScanRequest:
    """Data, engines and numbers of workers of the scans."""

    engines: tuple[str, ...]
    workers: tuple[int, ...]
    scheduler: str
    repeats: int
    spec: Spec


@dataclass(frozen=True)
class ScanOutcome:
    """Result of the scans: all rows and their sums."""

    request: ScanRequest
    files: Dataset
    cores: int
    rows: list[ScanRow]

    @property
    def sums(self) -> Sums | None:
        """Sums that most scans computed. None if no scan ended, or if no sums are the most frequent."""
        counts = Counter(scan.sums for row in self.rows for scan in row.scans).most_common(2)
        if not counts or (len(counts) > 1 and counts[0][1] == counts[1][1]):
            return None
        return counts[0][0]

    @property
    def differing(self) -> list[ScanRow]:
        """Rows that computed other sums."""
        return [row for row in self.rows if any(scan.sums != self.sums for scan in row.scans)]

    @property
    def exit_code(self) -> int:
        return exits.RUN_FAILED if self.differing or any(row.status in ("failed", "killed") for row in self.rows) else 0


def run(request: ScanRequest, progress: Display, out: Path | None) -> ScanOutcome:
    """Scan with each engine and number of workers in interleaved order, each time in a fresh process.

    If all engines agree, the result is stored for runs that normalise by it.
    """
    cluster_workers, cluster_cores = _cluster(request, progress)
    progress.say("reading the data")
    data, cache_dir = request.spec.data, request.spec.paths.cache_dir
    files = sources.load_files(data, seed=request.spec.split_seed, cache_dir=cache_dir)
    rows = [plan_row(engine, count, cluster_workers, cluster_cores) for engine in request.engines for count in request.workers]
    with PrivateFolder() as temporary:
        folder = temporary.path
        job.save(files.train.files, files.image_size, folder / "job.npz")

        def execute(job: Job[ScanRow]) -> None:
            if (row := job.item).status == "ok":
                _scan(row, request.scheduler, folder, (out or folder) / LOGS / f"{row.engine}-{row.workers}.txt")

        for _ in run_in_turns(
            rounds(rows, request.repeats),
            execute,
            progress,
            name=lambda row: row.name,
            label=lambda job: job.item.name,
        ):
            pass
    if len({row.engine for row in rows if row.scans}) == 1:  # a single engine cannot be compared with another
        progress.say("checking the sums")
        sums = scan.scan(files.train.files, files.image_size, machine.available_cores())
        for row in rows:
            if any(result.sums != sums for result in row.scans):
                row.status, row.reason = "failed", "found other integer sums than the scan of this process"
                row.scans.clear()
    outcome = ScanOutcome(request, files, machine.available_cores(), rows)
    if outcome.sums is not None and not outcome.differing:
        statistics.store(outcome.sums, files.content_hash, cache_dir=cache_dir)
    return outcome


def _cluster(request: ScanRequest, progress: Display) -> tuple[int | None, int]:
    """Return (workers of the cluster, cores of Dask's workers). Workers is None if Dask runs on this machine."""
    if request.scheduler in spec.SCHEDULERS or not set(request.engines) & set(launch.SUITE_WORKERS):
        return None, machine.available_cores()
    from common.data.preprocessing import dask_scan  # takes a second to import

    progress.say(f"asking {request.scheduler}")
    try:
        return dask_scan.workers_and_cores(request.scheduler)
    except dask_scan.SchedulerError as error:
        raise SpecError(str(error)) from None


def plan_row(engine: str, workers: int, cluster_workers: int | None, cluster_cores: int) -> ScanRow:
    """Return the row of an engine. It is not available if Dask's cluster has fewer workers.

    Args:
        cluster_workers: workers of the cluster. None: Dask runs on this machine.
        cluster_cores: CPU cores of Dask's workers.
    """
    is_suite_worker = engine in launch.SUITE_WORKERS
    row = ScanRow(engine, workers, workers > (cluster_cores if is_suite_worker else machine.available_cores()))
    if is_suite_worker and cluster_workers is not None and workers > cluster_workers:
        row.status, row.reason = (
            "not available",
            f"the cluster has {wording.count(cluster_workers, 'worker')}",
        )
    return row


def _scan(row: ScanRow, scheduler: str, folder: Path, log: Path) -> None:
    """Run a row once. If its process dies, the row states why and is not run again."""
    result = folder / "scan.json"
    result.unlink(missing_ok=True)
    arguments = [str(folder / "job.npz"), "--workers", str(row.workers), "--out", str(result)]
    arguments = [*arguments, "--scheduler", scheduler] if row.engine in launch.SUITE_WORKERS else ["preprocess", *arguments]
    log.unlink(missing_ok=True)
    code = launch.call(Contestant.plain(row.engine), arguments, log=log)
    try:
        row.scans.append(Scan.model_validate_json(result.read_bytes()))
    except (OSError, pydantic.ValidationError):
        last = launch.last_line(log)
        reason = launch.describe_exit(code) if code else "ended without a result"
        row.status = "killed" if code < 0 else "failed"
        row.reason = f"{reason}: {last}" if last else reason
