"""Exchanges between ranks, as the modes use them, for measurements."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from common.processes.exchanges import Collectives
from tensorflow_impl.parallel import group


def rank_collectives() -> Collectives:
    """Return the collectives that exchange tensors among the ranks of this run."""
    group.all_ranks()  # Twin: the strategy must be there before any tensor. torch's ranks have met in `rendezvous`.
    # Twin: TensorFlow's stages and slices are devices of one graph. torch's are ranks, which send to each other.
    return Collectives(_all_reduce, None)


def _all_reduce(count: int) -> Callable[[], object]:
    ranks, values = group.all_ranks(), tf.zeros(count)
    return lambda: ranks.sum_tensor(values).numpy()
