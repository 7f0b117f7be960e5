"""Jobs of Slurm: each comparison is one job, alone on its machine. The results folder is on a disk that all machines share."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.machine.machine import PROJECT_ROOT
from common.processes import signals
from compare.cli import wording
from compare.cli.errors import LaunchError
from compare.results.cells import JOBS_FOLDER
from compare.running import launch
from compare.tools.cluster import jobs
from compare.tools.cluster.jobs import JobEnd, JobEnds, Say

NAME = "slurm"
_PROGRAMS = ("sbatch", "squeue", "scancel", "srun")
_ALIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
# sbatch prefers some of these variables to its script. The others belong to an array that this command is a task of.
_OVERRIDING_VARIABLES = (
    *("SBATCH_ARRAY_INX", "SBATCH_EXCLUSIVE", "SBATCH_JOB_NAME", "SBATCH_REQUEUE"),
    *("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
)
_POLL_SECONDS = 1.0
_ANSWER_SECONDS = 20.0
"""Seconds to wait for a status after its job has gone. A shared disk shows files late, and a cancelled run stores results."""
_QUERY_ATTEMPTS, _QUERY_SECONDS = 30, 10.0
"""Number of queries, and the seconds between them, if Slurm's controller does not answer while jobs run."""


def check_commands() -> None:
    """Check that this machine can submit jobs."""
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        raise LaunchError(
            f"--on slurm needs Slurm's commands. Received: a machine without {', '.join(missing)}. Run it where you submit "
            "jobs, e.g. on the login node of the cluster."
        )


def batch_script(folder: Path, num_jobs: int) -> str:
    """Return the batch script for sbatch.

    Args:
        folder: folder of the matrix.
    """
    from submitit.slurm import slurm  # here: only this mode needs it

    # submitit does the same with `map_count` when it submits several jobs.
    array: dict[str, Any] = {"map_count": num_jobs} if num_jobs > 1 else {}
    jobs_folder = _jobs_folder(folder)
    command = f"{shlex.quote(sys.executable)} -u -m submitit.core._submit {shlex.quote(str(jobs_folder))}"
    make_script = slurm._make_sbatch_string  # pyright: ignore[reportPrivateUsage]  what submitit itself calls; no public name has it
    return make_script(command, jobs_folder, **_submitit_parameters(folder, None), **array)


def _jobs_folder(folder: Path) -> Path:
    jobs_folder = folder.absolute() / JOBS_FOLDER
    if "%" in str(jobs_folder):  # sbatch would put a job's id there
        raise LaunchError(f"Slurm writes to no folder with % in its path. Received: {folder}. Choose another --out.")
    return jobs_folder


def _job_name(folder: Path) -> str:
    """Return the name that Slurm finds the jobs of a folder by. It is unique to the folder."""
    return f"convtwins-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]}"


def _submitit_parameters(folder: Path, node: str | None) -> dict[str, Any]:
    """Return parameters for submitit. sbatch takes a site's own settings from SBATCH_PARTITION, SBATCH_ACCOUNT ..."""
    path = os.pathsep.join([str(PROJECT_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    return {
        "job_name": _job_name(folder),
        "time": None,  # submitit's default is five minutes
        "wckey": None,
        "nodes": 1,
        "exclusive": True,
        "mem": "0",  # all of it
        "nodelist": node,
        "use_srun": False,  # a step of srun would have one core
        "stderr_to_stdout": True,
        # Slurm would start a job again on another machine, which has no pair for its runs.
        "additional_parameters": {"no-requeue": True},
        "setup": [f"export PYTHONPATH={shlex.quote(path)} PYTHONSAFEPATH=1"],
    }


def run_in_job(folder: Path, cell: str, code_hash: str) -> None:
    """Run one comparison inside a job, on its machine."""
    job = "_".join(filter(None, [os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")]))
    with _log(folder, cell).open("a", encoding="utf-8") as log:
        jobs.run_job(folder, cell, code_hash, job or os.environ["SLURM_JOB_ID"], lambda line: print(line, file=log, flush=True))


def _log(folder: Path, cell: str) -> Path:
    return folder / JOBS_FOLDER / f"{cell}.txt"


def run(
    folder: Path,
    cells: Sequence[str],
    code_hash: str,
    *,
    job_ids: Mapping[str, str],
    nodes: Mapping[str, str],
    on_submitted: Callable[[Mapping[str, str]], object],
    say: Say,
) -> JobEnds:
    """Submit these comparisons, and wait for them.

    Args:
        code_hash: see `jobs.matrix_code_hash`.
        job_ids: jobs that an earlier command submitted, by their comparison. A job that Slurm still has is waited for.
        nodes: machines that comparisons were started on, by comparison.
        on_submitted: called once, with all jobs that are waited for.

    Yields:
        Each comparison when its job has ended.
    """
    alive = {job for job, state in _states(folder).items() if state.name in _ALIVE}
    waiting = {
        cell: job for cell, job in job_ids.items() if cell in cells and job in alive and not _has_ended(folder, cell, job)
    }
    if orphans := alive.difference(waiting.values()):  # of a command that was killed before it knew them
        subprocess.run(["scancel", *orphans], capture_output=True, check=False)
    try:
        groups: dict[str | None, list[str]] = defaultdict(list)
        for cell in cells:
            if cell not in waiting:
                groups[nodes.get(cell)].append(cell)
        for node, group in groups.items():
            with signals.defer_signals():  # else an interruption could leave jobs that nobody knows
                waiting |= _submit(folder, group, code_hash, node)
        on_submitted(waiting)
    except BaseException:
        _cancel(folder, waiting, say)
        raise
    try:
        yield from _wait_for_jobs(folder, waiting, say)
    except LaunchError:
        raise  # Slurm does not answer: the jobs go on, and are known
    except BaseException:
        _cancel(folder, waiting, say)
        raise


def _submit(folder: Path, cells: Sequence[str], code_hash: str, node: str | None) -> dict[str, str]:
    """Submit jobs. Returns their ids by comparison."""
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    executor = submitit.SlurmExecutor(_jobs_folder(folder))
    executor.update_parameters(**_submitit_parameters(folder, node))
    for name in _OVERRIDING_VARIABLES:
        os.environ.pop(name, None)
    try:
        submitted_jobs = executor.map_array(
            run_in_job, *zip(*[(folder.absolute(), cell, code_hash) for cell in cells], strict=True)
        )
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        raise LaunchError(
            f"sbatch took no job. Received: {wording.one_line(str(error))}. What your cluster asks for, such as a partition or "
            "an account, is set by sbatch's variables: SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT."
        ) from None
    return {cell: job.job_id for cell, job in zip(cells, submitted_jobs, strict=True)}


def _wait_for_jobs(folder: Path, waiting: dict[str, str], say: Say) -> JobEnds:
    """Wait for jobs, and remove each from `waiting` when it has ended."""
    reported: dict[str, tuple[str, bool]] = {}
    bytes_read = {cell: log.stat().st_size if (log := _log(folder, cell)).exists() else 0 for cell in waiting}
    gone_since: dict[str, float] = {}
    while waiting:
        time.sleep(_POLL_SECONDS)
        states = _states(folder, _QUERY_ATTEMPTS)
        for cell, job in list(waiting.items()):
            state = states.get(job, _JobState("gone"))
            report_key = state.name, state.reason != "None"  # a reason may change at every look
            if reported.get(cell) != report_key and state.name in _ALIVE:
                reported[cell] = report_key
                say(f"{cell}: job {job} is {state.text}")
            bytes_read[cell] = _tail_log(_log(folder, cell), bytes_read[cell], cell, say)
            is_alive = (
                state.name in _ALIVE or time.monotonic() - gone_since.setdefault(cell, time.monotonic()) < _ANSWER_SECONDS
            )
            if is_alive and not _has_ended(folder, cell, job):
                continue
            del waiting[cell]
            status = jobs.read_status(folder, cell, job)
            last_line = launch.last_line(next((folder / JOBS_FOLDER).glob(f"{job}_*log.out"), Path()))
            yield JobEnd(cell, jobs.failure_reason(status, f"job {job}, {state.text}{f': {last_line}' if last_line else ''}"))


def _has_ended(folder: Path, cell: str, job: str) -> bool:
    status = jobs.read_status(folder, cell, job)
    return status is not None and status.code is not None


def _tail_log(log: Path, bytes_read: int, cell: str, say: Say) -> int:
    """Print new lines of a job's log. Returns the number of bytes that have been read."""
    new = log.read_bytes()[bytes_read:] if log.exists() else b""
    complete_lines = new[: new.rfind(b"\n") + 1]
    for line in complete_lines.decode(errors="replace").splitlines():
        say(f"{cell}: {line}")
    return bytes_read + len(complete_lines)


class _JobState(NamedTuple):
    """State of a job, and why it is pending, in Slurm's words."""

    name: str
    reason: str = "None"

    @property
    def text(self) -> str:
        return self.name.lower() + (f" ({self.reason})" if self.name == "PENDING" and self.reason != "None" else "")


def _states(folder: Path, attempts: int = 1, interval_seconds: float = _QUERY_SECONDS) -> dict[str, _JobState]:
    """Query the state of each job of a folder that Slurm still knows.

    Args:
        attempts: largest number of queries.
        interval_seconds: time between two of them.
    """
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r", f"--name={_job_name(folder)}"]
    error = ""
    for number in range(attempts):
        time.sleep(interval_seconds if number else 0.0)
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            lines = (line.strip().split("|", 2) for line in result.stdout.splitlines() if "|" in line)
            return {job: _JobState(*state) for job, *state in lines}
        error = wording.one_line(result.stderr)
    raise LaunchError(f"Slurm does not answer. Received from squeue: {error}. The same command goes on when it does.")


def _cancel(folder: Path, waiting: Mapping[str, str], say: Say) -> None:
    """Cancel all jobs of a folder, and wait until the running ones have stored their results."""

    def is_running(cell: str) -> bool:
        status = jobs.read_status(folder, cell, waiting[cell])
        return status is not None and status.code is None

    command = ["scancel", f"--name={_job_name(folder)}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        say(f"The jobs are not cancelled. Received from scancel: {wording.one_line(result.stderr)}. Run: {' '.join(command)}")
        return
    deadline_seconds = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline_seconds and any(map(is_running, waiting)):
        time.sleep(0.2)
