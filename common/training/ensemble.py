"""Scores of separately trained models: of each one, of their vote, and of the average of their weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common.artifacts.schema import Members, Metrics
from common.training import metrics


def members(
    labels: npt.NDArray[np.int64],
    predictions: npt.NDArray[np.int64],
    loss_sums: npt.NDArray[np.float64],
    average: Metrics,
) -> Members:
    """Compute the members' scores on one split.

    Args:
        labels: int64 [N].
        predictions: int64 [members, N], labels.
        loss_sums: [members], cross-entropy summed over the N examples.
        average: scores of the model whose weights are the members' mean.
    """
    return Members(
        average=average,
        ensemble=metrics.metrics(labels, vote(predictions), float(loss_sums.mean())),
        members=[
            metrics.metrics(labels, member_predictions, float(loss))
            for member_predictions, loss in zip(predictions, loss_sums, strict=True)
        ],
    )


def vote(predictions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the labels [N] that most members predict, from int64 [members, N]. The smallest label wins a tie."""
    candidates = np.arange(predictions.max(initial=0) + 1)
    return (predictions[:, :, None] == candidates).sum(0).argmax(1)
