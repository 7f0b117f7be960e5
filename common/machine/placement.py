"""The place of a rank in its run: its machine, its number of cores, its GPU.

All of it is read from the environment that the launcher of ranks sets.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence

LOOPBACK = "127.0.0.1"


SPOT_CHECKS_VARIABLE = "CONVTWINS_SPOT_CHECKS"
"""Variable with the seed of a run's recorded steps, see `common.training.spot_checks`."""
RUN_SECRET_VARIABLE = "CONVTWINS_RUN_SECRET"
"""Variable with the secret that only the processes of one run share. An outer launcher sets none."""


def is_rank() -> bool:
    """Return whether this process is one of several of its run, by its environment."""
    return "RANK" in os.environ


def rank() -> int:
    """Return the number of this process among those of its run, from 0. 0: it may be the only one."""
    return int(os.environ.get("RANK", "0"))


def num_ranks() -> int:
    """Return the number of processes of this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first_rank() -> bool:
    """Return whether this process writes the run's files: it is the only one, or rank 0 of several."""
    return rank() == 0


def rank_environments(replicas: int, hosts: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return each rank's identity, as torchrun's variables. The common port is added when the ranks start.

    Args:
        replicas: the number of ranks.
        hosts: machines that get the ranks in order and in equal parts. Empty: this machine.
    """
    host_indices = [host_of(rank, replicas, len(hosts) or 1) for rank in range(replicas)]
    shared = {
        "WORLD_SIZE": str(replicas),
        "MASTER_ADDR": hosts[0] if hosts else LOOPBACK,
        RUN_SECRET_VARIABLE: secrets.token_hex(16),
    }
    return [
        {
            **shared,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank - host_indices.index(host)),
            "LOCAL_WORLD_SIZE": str(host_indices.count(host)),
        }
        for rank, host in enumerate(host_indices)
    ]


def host_of(rank: int, replicas: int, hosts: int) -> int:
    """Return the index of a rank's host."""
    return rank * hosts // replicas


def on_one_host() -> bool:
    """Return whether all of this run is on this machine."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def num_machines(hosts: Sequence[str]) -> int:
    """Return the number of machines of a run, each with as many CPUs as this process. 1: all of it is here.

    Args:
        hosts: hosts in the run's spec. If it names none, the variables of an outer launcher may name several.
    """
    if hosts:
        return len(hosts)
    if RUN_SECRET_VARIABLE in os.environ or "RANK" not in os.environ:
        return 1
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    return -(-ranks // (1 if _has_exclusive_cpus() else int(os.environ.get("LOCAL_WORLD_SIZE", ranks))))


def cores_of_replica(cores: int, replicas: int, hosts: Sequence[str]) -> int:
    """Return the CPU cores for each replica on this process's machine. 0: there are fewer cores than replicas.

    Args:
        cores: cores of the whole run.
        replicas: replicas of the whole run.
        hosts: hosts of the run.
    """
    if "RANK" not in os.environ:
        return cores // replicas
    sharing = 1 if _has_exclusive_cpus() else int(os.environ.get("LOCAL_WORLD_SIZE", replicas))
    return cores // num_machines(hosts) // sharing


def is_launched_rank() -> bool:
    """Return whether the suite started this process as a rank. Its cores were then validated on the first host."""
    return RUN_SECRET_VARIABLE in os.environ and "RANK" in os.environ


def _has_exclusive_cpus() -> bool:
    """Return whether Slurm started this rank as a task with its own CPUs. Ranks that torchrun starts in a task share them."""
    launched = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    slurm = {"RANK": os.environ.get("SLURM_PROCID"), "WORLD_SIZE": os.environ.get("SLURM_NTASKS")}
    return RUN_SECRET_VARIABLE not in os.environ and "SLURM_CPUS_PER_TASK" in os.environ and launched == slurm


def replicas_that_share_gpus() -> int:
    """Return the number of replicas that see this process's GPUs: all on this machine, or 1 if each was given its own GPU.

    A launcher that gives each its own (`srun --gpus-per-task=1`) hides the other GPUs from a rank. A user who hides them from
    the launcher of this suite leaves one GPU to all its ranks.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if RUN_SECRET_VARIABLE not in os.environ and visible != [""] and len(visible) == 1:
        return 1
    return int(os.environ["LOCAL_WORLD_SIZE"])


def gpu_index() -> int:
    """Return the index of this rank's GPU among those that it sees."""
    return int(os.environ["LOCAL_RANK"]) if replicas_that_share_gpus() > 1 else 0


def gpu_indices(local_replicas: int) -> range:
    """Return the indices of this process's GPUs among those that it sees: one for each of its replicas."""
    first = gpu_index() if is_rank() else 0
    return range(first, first + local_replicas)


def master_address() -> tuple[str, int]:
    """Return (address, port) of the run's rendezvous on rank 0."""
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def local_address() -> str:
    """Return the address of this machine in its connection to rank 0."""
    family, kind, _, _, sockaddr = socket.getaddrinfo(*master_address(), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(sockaddr)  # asks the routing table, and sends nothing
        return probe.getsockname()[0]


def bind(address: str, port: int) -> socket.socket:
    """Return a TCP socket that is bound to an address of this machine. Port 0: a free one."""
    family, _, _, _, sockaddr = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(sockaddr)
    except BaseException:
        listener.close()
        raise
    return listener
