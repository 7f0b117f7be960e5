"""Messages between ranks, as the modes send them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import distributed

from common.machine import flight
from common.processes.exchanges import Ways
from pytorch_impl import collectives, device
from pytorch_impl.parallel import group


def ways() -> Ways:
    """How the ranks of this run send tensors."""
    # Twin: torch's stages and slices are ranks, which send to each other. TensorFlow's are devices of one graph.
    return Ways(_all_reduce, _send)


def _all_reduce(count: int) -> Callable[[], object]:
    ranks, values = group.all_ranks(), torch.zeros(count, device=device.kind())
    return lambda: ranks.total(values)


def _send(count: int) -> Callable[[], object]:
    """Every rank sends to its neighbour in a pair. Of an odd number the last one sends nothing."""
    rank, peer = distributed.get_rank(), distributed.get_rank() ^ 1
    pair = flight.group_channel((min(rank, peer), max(rank, peer)))
    own, received = torch.zeros(count, device=device.kind()), torch.empty(count, device=device.kind())

    def swap() -> None:
        if peer < distributed.get_world_size():
            both = [distributed.P2POp(distributed.isend, own, peer), distributed.P2POp(distributed.irecv, received, peer)]
            collectives.swap(pair.begin("exchange", "float32", (count,), own.nbytes), both)

    return swap
