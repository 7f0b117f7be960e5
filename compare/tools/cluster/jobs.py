"""One comparison of a matrix as a job: its status, and the process that runs it on its machine."""

from __future__ import annotations

import hashlib
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

from common.artifacts import records
from common.frozen import Exact
from common.machine import machine
from compare.cli.errors import FolderError
from compare.results.cells import JOBS_FOLDER, MatrixPlan
from compare.running import code_digest, contestants, launch

PROCESS = "compare.tools.cluster.cell_process"
"""Module that runs one comparison of a matrix that is in a folder."""
_POLL_SECONDS = 0.25

Say = Callable[[str], object]


class JobStatus(Exact):
    """jobs/<comparison>.json: the status of a job."""

    job: str
    """Id of the job in its scheduler."""
    node: str
    """Name of the machine that runs the job."""
    code: int | None = None
    """Exit code of the comparison. None: it has not ended, or its process died."""
    failure: str | None = None
    """Why there is no comparison. None: there is one, or the job has not ended."""


class JobEnd(NamedTuple):
    """A job that has ended."""

    cell: str
    failure: str | None
    """Why the job failed. None: the comparison is in its folder."""


JobEnds = Generator[JobEnd]
"""Generator of jobs as they end. Closing it cancels the others."""


def status_file(folder: Path, cell: str) -> Path:
    return folder / JOBS_FOLDER / f"{cell}.json"


def read_status(folder: Path, cell: str, job: str | None = None) -> JobStatus | None:
    """Read the status of the job of a comparison. None: it cannot be read, or is of another job.

    Args:
        job: id of the job. None: the last one.
    """
    try:
        status = records.read(status_file(folder, cell), JobStatus, kind="answer", remedy="Run it again.", raises=FolderError)
    except FolderError:
        return None
    return status if job in (None, status.job) else None


def matrix_code_hash(plan: MatrixPlan) -> str:
    """Compute SHA-256 over all code that runs a matrix here."""
    models_and_contestants = {
        (cell.rows[0].spec.model, tuple(dict.fromkeys(row.contestant for row in cell.rows))) for cell in plan.cells
    }
    digests = [
        code_digest.compute(contestants.resolve(names, plan.settings.contestants), model)
        for model, names in sorted(models_and_contestants)
    ]
    return hashlib.sha256(" ".join([machine.code_digest([machine.PROJECT_ROOT / "compare"]), *digests]).encode()).hexdigest()


def run_job(
    folder: Path, cell: str, code_hash: str, job: str, say: Say, is_cancelled: Callable[[], bool] = lambda: False
) -> None:
    """Run one comparison of a matrix on this machine, in a process that ends with this one. It writes its status.

    Args:
        folder: folder of the matrix.
        code_hash: see `matrix_code_hash`. The process refuses to run other code.
        say: called with each line of its progress.
    """
    arguments = (str(folder), cell, code_hash, job)
    with launch.start_suite_module(PROCESS, *arguments, stderr=subprocess.STDOUT) as process:

        def read() -> None:
            for line in process.stdout or ():
                say(line.rstrip("\n"))

        reader = threading.Thread(target=read)
        reader.start()
        while process.poll() is None:
            if is_cancelled():
                process.terminate()  # it stores what it has, and ends
            time.sleep(_POLL_SECONDS)
        reader.join()


def failure_reason(status: JobStatus | None, default_reason: str) -> str | None:
    """Explain why a job that has ended failed. None: it has not failed.

    Args:
        default_reason: how it ended, if it wrote no status.
    """
    if status is None or status.code is None:
        where = f" on {status.node}" if status else ""
        return f"its job was lost{where}: {default_reason}"
    return status.failure
