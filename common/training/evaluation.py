"""Scores of a split: every example once, over all processes of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from common.artifacts.schema import Metrics
from common.data.sources import DatasetSplit
from common.machine import heartbeat
from common.models.sharding import shard
from common.training import metrics
from common.training.trainer import BaseTrainer

_MAX_DEVICE_LOSSES = 32
"""Number of losses of evaluation batches that stay on the device. Thousands of small tensors between large ones would
fragment freed memory, and the process would grow by hundreds of MiB."""


def evaluate(trainer: BaseTrainer, split: DatasetSplit, batch_size: int) -> tuple[Metrics, npt.NDArray[np.int64]]:
    """Score every example of a split exactly once, over all shards.

    Args:
        trainer: each process scores its shard of the split.
        split: N examples.
        batch_size: examples per forward pass of one process.

    Returns:
        The metrics, and int64 [N] predicted labels, the same in every process.
    """
    n = len(split.labels)
    index, number = trainer.shard
    low, high = shard(n, number, index)
    predictions, times_scored = np.zeros(n, np.int64), np.zeros(n, np.int64)
    losses: list[Any] = []
    fetched = [np.zeros(0)]
    # The first shard is the longest. Where replicas gather weights to score, one that is done scores an empty batch.
    longest = shard(n, number, 0)[1] if trainer.scores_together else high - low
    for start in range(low, low + longest, batch_size):
        part = slice(min(start, high), min(start + batch_size, high))
        loss, predicted = trainer.score(split.images[part], split.labels[part])
        if len(predicted) != part.stop - part.start:
            raise AssertionError(f"{len(predicted)} predictions for {part.stop - part.start} examples")
        predictions[part] = predicted
        times_scored[part] += 1
        losses.append(loss)
        if len(losses) == _MAX_DEVICE_LOSSES or start + batch_size >= low + longest:
            fetched.append(trainer.fetch(losses))
            losses = []
        heartbeat.heartbeat()
    if not (trainer.all_reduce_shards(times_scored) == 1).all():
        raise AssertionError("an example was not scored exactly once")
    loss_sum = np.concatenate(fetched, dtype=np.float64).sum()
    total_loss = trainer.all_reduce_shards(np.array([loss_sum]))
    predictions = trainer.all_reduce_shards(predictions)
    return metrics.metrics(split.labels, predictions, float(total_loss[0])), predictions
