"""One comparison of a matrix as a job: what it answers, and the process that does it on its machine."""

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
from compare.core.errors import FolderError
from compare.execution import code_digest, launch
from compare.execution.cells import MatrixPlan

FOLDER = "jobs"
"""Of what belongs to jobs, in the folder of the matrix."""
PROCESS = "compare.comparison.cell_process"
"""Runs one comparison of a matrix that is in a folder."""
_POLL_SECONDS = 0.25

Say = Callable[[str], object]


class Answer(Exact):
    """jobs/<comparison>.json: how far a job is."""

    job: str
    """As its scheduler calls it."""
    node: str
    """The machine's name."""
    code: int | None = None
    """Exit code of the comparison. None: it has not ended, or its process died."""
    failure: str | None = None
    """Why there is no comparison."""


class Ended(NamedTuple):
    """A job that is over."""

    cell: str
    failure: str | None
    """None: the comparison is in its folder."""


Ends = Generator[Ended]
"""Jobs as they end. To close it cancels the others."""


def answer_file(folder: Path, cell: str) -> Path:
    return folder / FOLDER / f"{cell}.json"


def answered(folder: Path, cell: str, job: str | None = None) -> Answer | None:
    """What the job of a comparison has answered so far. None: nothing that can be read, or another job has.

    Args:
        job: None: whichever was the last.
    """
    try:
        answer = records.read(answer_file(folder, cell), Answer, kind="answer", remedy="Run it again.", raises=FolderError)
    except FolderError:
        return None
    return answer if job in (None, answer.job) else None


def code_of(plan: MatrixPlan) -> str:
    """SHA-256 of all code that runs a matrix here.

    Raises:
        SpecError, LaunchError: a user's model or somebody else's twin is not here.
    """
    of_cells = {(cell.rows[0].spec.model, tuple(dict.fromkeys(row.contestant for row in cell.rows))) for cell in plan.cells}
    digests = [code_digest.compute(names, model) for model, names in sorted(of_cells)]
    return hashlib.sha256(" ".join([machine.code_digest([machine.PROJECT_ROOT / "compare"]), *digests]).encode()).hexdigest()


def do(folder: Path, cell: str, code: str, job: str, say: Say, is_cancelled: Callable[[], bool] = lambda: False) -> None:
    """Run one comparison of a matrix on this machine, in a process that ends with this one. It leaves an answer.

    Args:
        folder: of the matrix.
        code: see `code_of`. The process refuses to run other code.
        say: called with each line of its progress.
    """
    words = (str(folder), cell, code, job)
    with launch.start_suite_module(PROCESS, *words, stderr=subprocess.STDOUT) as process:

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


def outcome(answer: Answer | None, otherwise: str) -> str | None:
    """Why a job that is over has failed. None: it has not.

    Args:
        otherwise: how it ended, if it gave no answer.
    """
    if answer is None or answer.code is None:
        where = f" on {answer.node}" if answer else ""
        return f"its job was lost{where}: {otherwise}"
    return answer.failure
