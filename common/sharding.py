"""Which part of a batch, or of a split, each replica takes."""

from __future__ import annotations


def shard(num_examples: int, replicas: int, rank: int) -> tuple[int, int]:
    """The half-open range of positions that one replica takes: contiguous, sizes differing by at most one.

    Over all ranks the ranges cover every position exactly once, so a sum over replicas is a sum over examples.
    """
    if not 0 <= rank < replicas:
        raise ValueError(f"rank must be in 0..replicas-1. Received: {rank} of {replicas}.")
    base, extra = divmod(num_examples, replicas)
    start = rank * base + min(rank, extra)
    return start, start + base + (rank < extra)
