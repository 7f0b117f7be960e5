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
from compare.cluster import jobs
from compare.cluster.jobs import Ended, Ends, Say
from compare.core import wording
from compare.core.errors import LaunchError
from compare.execution import launch

NAME = "slurm"
_PROGRAMS = ("sbatch", "squeue", "scancel", "srun")
_ALIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
# sbatch prefers some of these variables to its script. The others are of an array that this command is a task of.
_OVERRULING = (
    *("SBATCH_ARRAY_INX", "SBATCH_EXCLUSIVE", "SBATCH_JOB_NAME", "SBATCH_REQUEUE"),
    *("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
)
_POLL_SECONDS = 1.0
_ANSWER_SECONDS = 20.0
"""How long an answer may take after its job has gone. A shared disk shows files late, and a cancelled run stores its part."""
_ASKED, _ASK_SECONDS = 30, 10.0
"""How often Slurm is asked while jobs run, and the time between, if its controller does not answer."""


def refuse_missing() -> None:
    """Check that this machine can submit jobs.

    Raises:
        LaunchError: it cannot.
    """
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        raise LaunchError(
            f"--on slurm needs Slurm's commands. Received: a machine without {', '.join(missing)}. Run it where you submit "
            "jobs, e.g. on the login node of the cluster."
        )


def script(folder: Path, num_jobs: int) -> str:
    """What sbatch is given.

    Args:
        folder: of the matrix.
    """
    from submitit.slurm import slurm  # here: only this mode needs it

    # What submitit does with `map_count` when it submits several jobs.
    array: dict[str, Any] = {"map_count": num_jobs} if num_jobs > 1 else {}
    place = _place(folder)
    command = f"{shlex.quote(sys.executable)} -u -m submitit.core._submit {shlex.quote(str(place))}"
    make = slurm._make_sbatch_string  # pyright: ignore[reportPrivateUsage]  what submitit itself calls; no public name has it
    return make(command, place, **_parameters(folder, None), **array)


def _place(folder: Path) -> Path:
    place = folder.absolute() / jobs.FOLDER
    if "%" in str(place):  # sbatch would put a job's id there
        raise LaunchError(f"Slurm writes to no folder with % in its path. Received: {folder}. Choose another --out.")
    return place


def _name(folder: Path) -> str:
    """Of the jobs of a folder, by which Slurm finds them. No other folder's have it."""
    return f"convtwins-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]}"


def _parameters(folder: Path, node: str | None) -> dict[str, Any]:
    """Of submitit. What a site asks for besides, sbatch takes from its variables: SBATCH_PARTITION, SBATCH_ACCOUNT ..."""
    path = os.pathsep.join([str(PROJECT_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    return {
        "job_name": _name(folder),
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


def work(folder: Path, cell: str, code: str) -> None:
    """What a job runs, on its machine."""
    job = "_".join(filter(None, [os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")]))
    with _log(folder, cell).open("a", encoding="utf-8") as log:
        jobs.do(folder, cell, code, job or os.environ["SLURM_JOB_ID"], lambda line: print(line, file=log, flush=True))


def _log(folder: Path, cell: str) -> Path:
    return folder / jobs.FOLDER / f"{cell}.txt"


def run(
    folder: Path,
    cells: Sequence[str],
    code: str,
    *,
    known: Mapping[str, str],
    nodes: Mapping[str, str],
    submitted: Callable[[Mapping[str, str]], object],
    say: Say,
) -> Ends:
    """Submit these comparisons, and wait for them.

    Args:
        code: see `jobs.code_of`.
        known: jobs that an earlier command submitted, by their comparison. One that Slurm still has is waited for.
        nodes: the machines that comparisons were begun on.
        submitted: called with all jobs that are waited for, once.

    Yields:
        Each comparison when its job is over.

    Raises:
        LaunchError: Slurm takes no jobs, or cannot be asked.
    """
    alive = {job for job, state in _states(folder).items() if state.name in _ALIVE}
    waiting = {cell: job for cell, job in known.items() if cell in cells and job in alive and not _has_ended(folder, cell, job)}
    if others := alive.difference(waiting.values()):  # of a command that was killed before it knew them
        subprocess.run(["scancel", *others], capture_output=True, check=False)
    try:
        groups: dict[str | None, list[str]] = defaultdict(list)
        for cell in cells:
            if cell not in waiting:
                groups[nodes.get(cell)].append(cell)
        for node, group in groups.items():
            with signals.deferred():  # else an interruption could leave jobs that nobody knows
                waiting |= _submit(folder, group, code, node)
        submitted(waiting)
    except BaseException:
        _cancel(folder, waiting, say)
        raise
    try:
        yield from _ends(folder, waiting, say)
    except LaunchError:
        raise  # Slurm does not answer: the jobs go on, and are known
    except BaseException:
        _cancel(folder, waiting, say)
        raise


def _submit(folder: Path, cells: Sequence[str], code: str, node: str | None) -> dict[str, str]:
    """Jobs by their comparison."""
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    executor = submitit.SlurmExecutor(_place(folder))
    executor.update_parameters(**_parameters(folder, node))
    for name in _OVERRULING:
        os.environ.pop(name, None)
    try:
        made = executor.map_array(work, *zip(*[(folder.absolute(), cell, code) for cell in cells], strict=True))
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        raise LaunchError(
            f"sbatch took no job. Received: {wording.one_line(str(error))}. What your cluster asks for, such as a partition or "
            "an account, is set by sbatch's variables: SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT."
        ) from None
    return {cell: job.job_id for cell, job in zip(cells, made, strict=True)}


def _ends(folder: Path, waiting: dict[str, str], say: Say) -> Ends:
    """Wait for jobs, and take each out of `waiting` when it is over."""
    shown: dict[str, tuple[str, bool]] = {}
    read = {cell: log.stat().st_size if (log := _log(folder, cell)).exists() else 0 for cell in waiting}
    gone_since: dict[str, float] = {}
    while waiting:
        time.sleep(_POLL_SECONDS)
        states = _states(folder, _ASKED)
        for cell, job in list(waiting.items()):
            state = states.get(job, _State("gone"))
            told = state.name, state.why != "None"  # a reason may change at every look
            if shown.get(cell) != told and state.name in _ALIVE:
                shown[cell] = told
                say(f"{cell}: job {job} is {state.words}")
            read[cell] = _follow(_log(folder, cell), read[cell], cell, say)
            is_alive = (
                state.name in _ALIVE or time.monotonic() - gone_since.setdefault(cell, time.monotonic()) < _ANSWER_SECONDS
            )
            if is_alive and not _has_ended(folder, cell, job):
                continue
            del waiting[cell]
            answer = jobs.answered(folder, cell, job)
            last = launch.last_line(next((folder / jobs.FOLDER).glob(f"{job}_*log.out"), Path()))
            yield Ended(cell, jobs.outcome(answer, f"job {job}, {state.words}{f': {last}' if last else ''}"))


def _has_ended(folder: Path, cell: str, job: str) -> bool:
    answer = jobs.answered(folder, cell, job)
    return answer is not None and answer.code is not None


def _follow(log: Path, read: int, cell: str, say: Say) -> int:
    """Say what is new in the log of a job. Returns how much of it has been read."""
    new = log.read_bytes()[read:] if log.exists() else b""
    whole = new[: new.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        say(f"{cell}: {line}")
    return read + len(whole)


class _State(NamedTuple):
    """Of a job, and why it waits, in Slurm's words."""

    name: str
    why: str = "None"

    @property
    def words(self) -> str:
        return self.name.lower() + (f" ({self.why})" if self.name == "PENDING" and self.why != "None" else "")


def _states(folder: Path, times: int = 1) -> dict[str, _State]:
    """State of each job of a folder that Slurm still knows.

    Args:
        times: how often it is asked, at most.

    Raises:
        LaunchError: it cannot be asked.
    """
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r", f"--name={_name(folder)}"]
    why = ""
    for number in range(times):
        time.sleep(_ASK_SECONDS if number else 0.0)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            lines = (line.strip().split("|", 2) for line in done.stdout.splitlines() if "|" in line)
            return {job: _State(*state) for job, *state in lines}
        why = wording.one_line(done.stderr)
    raise LaunchError(f"Slurm does not answer. Received from squeue: {why}. The same command goes on when it does.")


def _cancel(folder: Path, waiting: Mapping[str, str], say: Say) -> None:
    """Cancel all jobs of a folder, and wait until those that run have stored what they have."""

    def is_running(cell: str) -> bool:
        answer = jobs.answered(folder, cell, waiting[cell])
        return answer is not None and answer.code is None

    command = ["scancel", f"--name={_name(folder)}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        say(f"The jobs are not cancelled. Received from scancel: {wording.one_line(done.stderr)}. Run: {' '.join(command)}")
        return
    until = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < until and any(map(is_running, waiting)):
        time.sleep(0.2)
