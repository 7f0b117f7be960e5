"""How the ranks of a multi_process run on this machine find each other."""

from __future__ import annotations

from common import processes
from common.spec import Spec


def environments(spec: Spec) -> list[dict[str, str]]:
    """The environment of each rank, as torchrun sets it."""
    # Twin: torchrun's variables; the other twin needs TF_CONFIG beside RANK.
    (port,) = processes.free_ports(1)
    common = {"WORLD_SIZE": str(spec.replicas), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(spec.replicas)]
