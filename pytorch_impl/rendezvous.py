"""Rendezvous of the ranks of a run with several processes."""

from __future__ import annotations

import os

from common.machine import flight, placement
from common.processes import rendezvous
from common.spec import Spec

# Twin: where torch's processes exchange tensors, including the backward pass of DistributedDataParallel.
WAITING: str = (
    r"/torch/(distributed|autograd|nn/parallel)/|/pytorch_impl/collectives|/common/(processes/parameter_server|data/owners)"
)
"""Regular expression that matches a stack frame's file name if the rank waits for others there."""


def environments(spec: Spec) -> list[dict[str, str]]:
    """Return the environment of each rank, see `common.processes.rendezvous`. Empty for a mode with one process."""
    # Twin: torch uses one process for each device. TensorFlow uses one graph over all devices where it can.
    return placement.rank_environments(spec.replicas, spec.hosts) if spec.traits.processes != "one" else []


def adopt() -> None:
    """Read this rank's number from an outer launcher, if one started it."""
    # Twin: torchrun's variables need no translation. The other twin translates TF_CONFIG.


def join(spec: Spec) -> None:
    """Connect to the other ranks, if there are any. Call before making a tensor."""
    if not placement.is_rank():
        return
    import torch  # here: the launcher of ranks never imports a framework
    from torch import distributed

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(placement.gpu_index())  # from here "cuda" is this rank's GPU
    if spec.traits.has_server:
        return
    for backend in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{backend}_SOCKET_IFNAME", rendezvous.local_interface())
    rank, ranks = placement.rank(), placement.num_ranks()
    number = flight.group_channel(tuple(range(ranks))).begin("rendezvous")
    # torchrun may keep the store itself. Otherwise rank 0 keeps it, on the rendezvous address only; torch's default is all
    # addresses.
    is_master = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = distributed.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        *placement.master_address(),
        ranks,
        is_master=is_master,
        master_listen_fd=rendezvous.listen().detach() if is_master else None,
    )
    distributed.init_process_group(
        "nccl" if cuda else "gloo",
        store=store,
        rank=rank,
        world_size=ranks,
        device_id=torch.device("cuda", torch.cuda.current_device()) if cuda else None,
    )
    flight.end(number)
