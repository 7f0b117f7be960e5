"""The part of a batch, of a split, of a layer's channels or of a parameter that each replica takes."""

from __future__ import annotations

from common.spec import SpecError


def shard(num_examples: int, replicas: int, rank: int) -> tuple[int, int]:
    """Return the half-open range of positions of one replica. Ranges are contiguous, and their sizes differ by at most one.

    Over all ranks the ranges cover every position exactly once, so a sum over replicas is a sum over examples.
    """
    if not 0 <= rank < replicas:
        raise ValueError(f"rank must be in 0..replicas-1. Received: {rank} of {replicas}.")
    base, extra = divmod(num_examples, replicas)
    start = rank * base + min(rank, extra)
    return start, start + base + (rank < extra)


def rows(count: int, replicas: int) -> list[tuple[int, int]]:
    """Return the half-open range of a parameter's output channels that each replica holds if parameters are divided.

    All ranges are as long as the first, until nothing is left. The last ones may be shorter or empty, as in `torch.chunk` and
    torch's `fully_shard`.
    """
    size = -(-count // replicas)
    return [(min(rank * size, count), min((rank + 1) * size, count)) for rank in range(replicas)]


def channels(layer: str, num_channels: int, replicas: int) -> list[tuple[int, int]]:
    """Return the half-open range of a layer's output channels that each replica holds, by `shard`."""
    if num_channels < replicas:
        raise SpecError(
            f"replicas must not outnumber the channels of a layer that they split. Received: {replicas} for {layer}, which has "
            f"{num_channels}. Use {num_channels} or less."
        )
    return [shard(num_channels, replicas, rank) for rank in range(replicas)]
