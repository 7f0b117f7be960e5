"""Exchanges between all ranks of a run, beside those of the training itself. All ranks call each function together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common.machine import placement
from common.training.trainer import BaseTrainer


def gather(trainer: BaseTrainer, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the values of every rank.

    Args:
        values: array [...] of this rank, with the same shape in every rank.

    Returns:
        float64 [..., ranks].
    """
    values = np.asarray(values, np.float64)
    by_rank = np.zeros((*values.shape, placement.num_ranks()))
    by_rank[..., placement.rank()] = values
    return trainer.all_reduce_world(by_rank)


def broadcast_from_rank0(trainer: BaseTrainer, *decisions: bool) -> list[bool]:
    """Broadcast decisions of rank 0. Clocks and the last bits of sums differ between ranks, but all must decide the same."""
    return [bool(decision) for decision in trainer.all_reduce_world(np.array(decisions, np.int64) * placement.is_first_rank())]


def barrier(trainer: BaseTrainer) -> None:
    """Wait until all ranks have reached this point."""
    trainer.all_reduce_world(np.zeros(1))
