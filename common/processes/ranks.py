"""The ranks of one run: whether this process is one, how they are started, and what happens when one fails."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

from common import spec
from common.artifacts import event_log, results, schema
from common.machine import machine, placement, private_folder
from common.processes import hosts, parameter_server, supervisor
from common.processes.process_spec import ProcessSpec
from common.processes.twin import EXIT_DATA_REFUSED, EXIT_FAILED, EXIT_OK, EXIT_USAGE, TwinJob
from common.spec import Spec
from common.training import timing
from common.training.trainer import BaseTrainer


def is_rank(run_spec: Spec, environments: list[dict[str, str]]) -> bool:
    """Return whether this process is one of several, by its environment."""
    if "RANK" not in os.environ:
        return False
    rank, ranks = os.environ["RANK"], os.environ.get("WORLD_SIZE")
    if not environments:
        raise spec.SpecError(f"mode {run_spec.mode} is one process here. Received: RANK={rank} in the environment. Unset it.")
    if ranks != str(run_spec.replicas) or rank not in map(str, range(run_spec.replicas)):
        raise spec.SpecError(
            f"replicas must be the number of ranks that were started. Received: replicas {run_spec.replicas}, and RANK={rank}, "
            f"WORLD_SIZE={ranks} in the environment. Set replicas to WORLD_SIZE."
        )
    if missing := {"MASTER_ADDR", "MASTER_PORT"} - os.environ.keys():
        raise spec.SpecError(f"A rank must know where all meet. Missing in the environment: {', '.join(sorted(missing))}.")
    os.environ.setdefault("LOCAL_RANK", rank)
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(run_spec.replicas))
    return True


def rank_cpus(cpus: list[int], run_spec: Spec) -> list[int]:
    """Return the CPUs of this process: the whole budget, or a rank's share if there is one for each."""
    share = placement.cores_of_replica(run_spec.cores, run_spec.replicas, run_spec.hosts)
    if not placement.is_rank() or share == 0:
        return cpus
    local_rank = int(os.environ["LOCAL_RANK"])
    return cpus[local_rank * share : (local_rank + 1) * share] or cpus  # another host may have fewer


def require_equal_digests(trainer: BaseTrainer, digests: dict[str, str]) -> None:
    """Require the same digests in all ranks, which may be on several machines.

    Raises:
        RuntimeError: a rank has another digest than rank 0.
    """
    rank, ranks = placement.rank(), placement.num_ranks()
    for subject, digest in digests.items():
        sums = np.zeros((ranks, 32), np.int64)
        sums[rank] = list(hashlib.sha256(digest.encode()).digest())
        sums = trainer.all_reduce_world(sums)
        others = [str(other) for other in range(ranks) if (sums[other] != sums[0]).any()]
        if others:
            advice = "Bring every host the same."
            if os.environ.get("LOCAL_WORLD_SIZE") == str(ranks):  # all are on this machine
                advice = (
                    f"A file of the {subject} was changed or added while the ranks started. Start again, and leave it alone."
                )
            raise RuntimeError(f"rank {', '.join(others)} has other {subject} than rank 0. {advice}")


def print_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception by one call of the system. Ranks share a log, and often fail at the same time."""
    sys.stderr.flush()
    os.write(sys.stderr.fileno(), "".join(traceback.format_exception(kind, error, trace)).encode("utf-8", "backslashreplace"))


def launch(
    job: TwinJob,
    environments: list[dict[str, str]],
    waiting: str,
    run_members: Callable[[Sequence[ProcessSpec], supervisor.Watch], supervisor.Failure | None] = supervisor.run_members,
) -> int:
    """Run the command in several processes. If one dies or hangs, end all and name it.

    Args:
        job: the command.
        environments: variables of each rank.
        waiting: see `Rendezvous.WAITING`.
        run_members: runs the processes to their end.
    """
    run_spec, out = job.spec, job.arguments.out
    machine.set_affinity(machine.cpu_budget(run_spec.cores))
    folder = out if job.arguments.command == "run" else out.with_suffix(".stacks")
    try:
        server, address = parameter_server.server_process(run_spec, environments[0][placement.RUN_SECRET_VARIABLE]) or (
            None,
            {},
        )
        shared = {timing.STARTED_VARIABLE: repr(job.started), **address}
        with contextlib.ExitStack() as stack:
            job = replace(job, argv=_rank_argv(job, stack))
            members = [_process(job, rank, environment | shared) for rank, environment in enumerate(environments)]
            if server is not None:
                members.append(server)
            if not private_folder.is_tempdir_private():  # else whoever started this process has made one for the run
                temporary = stack.enter_context(private_folder.PrivateFolder()).environment
                members = [
                    member if member.host else member._replace(environment=member.environment | temporary) for member in members
                ]
            failure = run_members(members, supervisor.Watch(run_spec.hang_seconds, folder, waiting))
    except supervisor.AddressError as error:
        if not run_spec.hosts:
            raise
        print(f"hosts must begin with this machine. Received: {', '.join(run_spec.hosts)} ({error}).", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:  # no room for what watches the ranks, or no more processes
        failure = supervisor.Failure(0, EXIT_FAILED, f"the ranks cannot be run: {error}")
    if failure is None:
        output = out / results.RESULT_FILE if job.arguments.command == "run" else out
        if output.exists():
            return EXIT_OK
        failure = supervisor.Failure(0, EXIT_FAILED, f"all ranks ended with exit code 0, and rank 0 wrote no {output.name}")
    print(failure.message, file=sys.stderr)
    if job.arguments.command == "run":
        try:
            _save_failure(job, out, failure)
        except OSError as error:
            print(results.unwritten_message(error), file=sys.stderr)
    return EXIT_DATA_REFUSED if failure.code == EXIT_DATA_REFUSED else EXIT_FAILED


def _rank_argv(job: TwinJob, stack: contextlib.ExitStack) -> list[str]:
    """Return the arguments of a rank. It cannot read stdin or a pipe again, so it gets a file."""
    path = job.arguments.spec
    if path.is_file() and not path.is_symlink():  # /dev/stdin is a link, also where it leads to a file
        return job.argv
    file = stack.enter_context(private_folder.PrivateFolder()).path / "spec.json"
    file.write_text(job.spec.to_json(), encoding="utf-8")
    return [str(file) if Path(word) == path else word for word in job.argv]


def _process(job: TwinJob, rank: int, environment: dict[str, str]) -> ProcessSpec:
    twin, run_spec, arguments = [sys.executable, "-m", job.package or f"{job.framework}_impl"], job.spec, job.arguments
    host = placement.host_of(rank, run_spec.replicas, len(run_spec.hosts) or 1)
    if host == 0:
        return ProcessSpec(f"rank {rank}", [*twin, *job.argv], environment)
    # Only rank 0's files are wanted. What another host writes goes to a folder that is removed.
    command = [*twin, arguments.command, f"{hosts.FOLDER}/spec.json", "--out", f"{hosts.FOLDER}/out"]
    if arguments.command == "trace" and arguments.reverse_batches:
        command.append("--reverse-batches")
    files = {"spec.json": run_spec.to_json()}
    del environment[timing.STARTED_VARIABLE]  # that machine counts from another start
    return ProcessSpec(f"rank {rank}", command, environment, host=run_spec.hosts[host], files=files)


def _save_failure(job: TwinJob, out: Path, failure: supervisor.Failure) -> None:
    """Make the result name the rank that failed. If rank 0 wrote no result, make one from the epochs so far."""
    status: schema.Status = "killed" if failure.is_death else "failed"
    if not (out / results.RESULT_FILE).exists():
        result = schema.RunResult(
            framework=job.framework,
            spec=job.spec,
            status=status,
            reason=failure.message,
            repeat=job.arguments.repeat,
            epochs=event_log.read_epochs(out),
            machine=machine.describe(),
        )
        results.save(result, out)
        event_log.append_end(out, result.status)
        return
    written = results.load(out / results.RESULT_FILE)
    if written.status == "failed" and failure.rank != 0 and failure.code != EXIT_DATA_REFUSED:
        # Rank 0 may only have noticed that the other was gone. Refused data is refused to all alike.
        reason = f"{failure.message}; rank 0: {written.reason}"
        results.save(written.model_copy(update={"status": status, "reason": reason}), out)
