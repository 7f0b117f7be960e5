"""How the ranks of a run of several processes on this machine find each other."""

from __future__ import annotations

from common import processes
from common.spec import Spec

# Twin: torch's way over several devices is a process for each; TensorFlow's is one graph over them where it can be.
_MODES = (
    "multi_process",
    "parameter_server",
    "model_parallel",
    "tensor_parallel",
    "pipeline",
    "hybrid",
    "model_averaging",
)

# Twin: where torch's processes exchange tensors, the backward pass of DistributedDataParallel too.
WAITING = r"/torch/(distributed|autograd|nn/parallel)/"
"""Matches the file names of the frames in which a rank waits for the others."""


def environments(spec: Spec) -> list[dict[str, str]]:
    """The environment of each rank, as torchrun sets it; none for a mode of one process."""
    if spec.mode not in _MODES:
        return []
    # Twin: torchrun's variables; the other twin needs TF_CONFIG beside RANK.
    (port,) = processes.free_ports(1)
    common = {"WORLD_SIZE": str(spec.replicas), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(spec.replicas)]
