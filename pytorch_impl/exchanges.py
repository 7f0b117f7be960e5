"""Exchanges between ranks, as the modes use them, for measurements."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import distributed

from common.machine import flight
from common.processes.exchanges import Collectives
from pytorch_impl import collectives, device
from pytorch_impl.parallel import group


def rank_collectives() -> Collectives:
    """Return the collectives that exchange tensors among the ranks of this run."""
    # Twin: torch's stages and slices are ranks, which send to each other. TensorFlow's are devices of one graph.
    return Collectives(_all_reduce, _send)


def _all_reduce(count: int) -> Callable[[], object]:
    ranks, values = group.all_ranks(), torch.zeros(count, device=device.kind())
    return lambda: ranks.sum_tensor(values)


def _send(count: int) -> Callable[[], object]:
    """Let every rank send to its neighbour in a pair. With an odd number of ranks the last one sends nothing."""
    rank, peer = distributed.get_rank(), distributed.get_rank() ^ 1
    pair = flight.group_channel((min(rank, peer), max(rank, peer)))
    sent, received = torch.zeros(count, device=device.kind()), torch.empty(count, device=device.kind())

    def swap() -> None:
        if peer < distributed.get_world_size():
            messages = [distributed.P2POp(distributed.isend, sent, peer), distributed.P2POp(distributed.irecv, received, peer)]
            collectives.swap(pair.begin("exchange", "float32", (count,), sent.nbytes), messages)

    return swap
