"""Where the ranks of a run are: their machine, their number of cores, their GPU.

All of it is read from the environment that the launcher of ranks sets.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence

LOOPBACK = "127.0.0.1"


SPOT_CHECKS_VARIABLE = "CONVTWINS_SPOT_CHECKS"
"""Holds the word that the recorded steps of a run are drawn from, see `common.training.spot_checks`."""
PASSWORD_VARIABLE = "CONVTWINS_MEETING"
"""A word that the ranks of one run alone know; an outer launcher has none."""


def is_first_rank() -> bool:
    """Whether this process writes the run's files: it is the only one, or rank 0 of several."""
    return os.environ.get("RANK", "0") == "0"


def environments(replicas: int, hosts: Sequence[str] = ()) -> list[dict[str, str]]:
    """Each rank's identity, as torchrun's variables. Their common port is added when they start.

    Args:
        replicas: the number of ranks.
        hosts: get the ranks in order and in equal parts. None given: this machine.
    """
    places = [host_of(rank, replicas, len(hosts) or 1) for rank in range(replicas)]
    shared = {
        "WORLD_SIZE": str(replicas),
        "MASTER_ADDR": hosts[0] if hosts else LOOPBACK,
        PASSWORD_VARIABLE: secrets.token_hex(16),
    }
    return [
        {
            **shared,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank - places.index(own)),
            "LOCAL_WORLD_SIZE": str(places.count(own)),
        }
        for rank, own in enumerate(places)
    ]


def host_of(rank: int, replicas: int, hosts: int) -> int:
    """Index of the host of a rank."""
    return rank * hosts // replicas


def on_one_host() -> bool:
    """Whether all of this run is on this machine."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def machines(hosts: Sequence[str]) -> int:
    """How many times the CPUs of this process a run has, for each of its machines: 1 where all of it is here.

    Args:
        hosts: of the run, as its spec names them. If it names none, an outer launcher's variables may name several.
    """
    if hosts:
        return len(hosts)
    if PASSWORD_VARIABLE in os.environ or "RANK" not in os.environ:
        return 1
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    return -(-ranks // (1 if _has_cpus_of_its_own() else int(os.environ.get("LOCAL_WORLD_SIZE", ranks))))


def cores_of_replica(cores: int, replicas: int, hosts: Sequence[str]) -> int:
    """CPU cores for each replica of this process's machine; 0 where there are fewer than replicas.

    Args:
        cores: of the whole run.
        replicas: of the whole run.
        hosts: of the run.
    """
    if "RANK" not in os.environ:
        return cores // replicas
    sharing = 1 if _has_cpus_of_its_own() else int(os.environ.get("LOCAL_WORLD_SIZE", replicas))
    return cores // machines(hosts) // sharing


def judged_by_its_launcher() -> bool:
    """Whether the suite started this process as a rank: its cores were judged where the run began, on the first host."""
    return PASSWORD_VARIABLE in os.environ and "RANK" in os.environ


def _has_cpus_of_its_own() -> bool:
    """Whether Slurm started this rank as a task and holds it to CPUs of its own; what torchrun starts in a task shares them."""
    own = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    task = {"RANK": os.environ.get("SLURM_PROCID"), "WORLD_SIZE": os.environ.get("SLURM_NTASKS")}
    return PASSWORD_VARIABLE not in os.environ and "SLURM_CPUS_PER_TASK" in os.environ and own == task


def replicas_that_share_gpus() -> int:
    """Replicas that see the GPUs of this process: those on this machine, unless an outer launcher gave each a GPU of its own.

    Such a launcher (`srun --gpus-per-task=1`) hides the other GPUs from a rank; a user who hides them from the launcher of
    this suite leaves one GPU to all its ranks.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if PASSWORD_VARIABLE not in os.environ and visible != [""] and len(visible) == 1:
        return 1
    return int(os.environ["LOCAL_WORLD_SIZE"])


def own_gpu() -> int:
    """Index of this rank's GPU among those that it sees."""
    return int(os.environ["LOCAL_RANK"]) if replicas_that_share_gpus() > 1 else 0


def place() -> tuple[str, int]:
    """(address, port) of rank 0, where the ranks of this run meet."""
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def own_address() -> str:
    """The address of this machine that its connection to the meeting place has."""
    family, kind, _, _, there = socket.getaddrinfo(*place(), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(there)  # asks the routing table, and sends nothing
        return probe.getsockname()[0]


def bound(address: str, port: int) -> socket.socket:
    """A TCP socket that is bound to an address of this machine. Port 0: a free one."""
    family, _, _, _, there = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(there)
    except BaseException:
        listener.close()
        raise
    return listener
