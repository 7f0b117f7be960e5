"""How the ranks of a run of several processes find each other."""

from __future__ import annotations

import os

from common.machine import placement
from common.processes import rendezvous
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
WAITING: str = r"/torch/(distributed|autograd|nn/parallel)/|/common/parameter_server"
"""Matches the file names of the frames in which a rank waits for the others."""


def environments(spec: Spec) -> list[dict[str, str]]:
    """The environment of each rank, see `common.processes.rendezvous`; none for a mode of one process."""
    return placement.environments(spec.replicas, spec.hosts) if spec.mode in _MODES else []


def adopt() -> None:
    """Learn who this rank is from an outer launcher, where one has started it."""
    # Twin: torchrun's variables are read as they are; the other twin translates TF_CONFIG.


def join(spec: Spec) -> None:
    """Meet the other ranks, where there are any; call before the first tensor."""
    if "RANK" not in os.environ:
        return
    import torch  # here: the launcher of ranks never imports a framework
    from torch import distributed

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(placement.own_gpu())  # from now on "cuda" is this rank's own
    if spec.mode == "parameter_server":
        return
    for backend in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{backend}_SOCKET_IFNAME", rendezvous.own_interface())
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # torchrun may keep the store itself; else rank 0 does, at the meeting place alone: by itself torch listens everywhere.
    keeps = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = distributed.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        *placement.place(), ranks, is_master=keeps, master_listen_fd=rendezvous.listen().detach() if keeps else None
    )
    distributed.init_process_group(
        "nccl" if cuda else "gloo",
        store=store,
        rank=rank,
        world_size=ranks,
        device_id=torch.device("cuda", torch.cuda.current_device()) if cuda else None,
    )
