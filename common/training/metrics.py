"""Scores from integer label arrays, the same for every framework and mode.

NumPy counts them. Tests compare them with scikit-learn, whose import would cost every training most of a second.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common.artifacts.schema import Metrics


def metrics(labels: npt.NDArray[np.int64], predictions: npt.NDArray[np.int64], loss_sum: float) -> Metrics:
    """Compute accuracy and mean loss of one pass.

    Args:
        labels: int64 [N], N at least 1.
        predictions: int64 [N].
        loss_sum: cross-entropy summed over the N examples.

    Raises:
        ValueError: the two differ in shape.
    """
    _check(labels, predictions)
    num_correct = int(np.count_nonzero(labels == predictions))
    return from_counts(num_correct, len(labels), loss_sum)


def from_counts(num_correct: int, num_examples: int, loss_sum: float) -> Metrics:
    """Compute accuracy and mean loss from counts that were made on the device."""
    return Metrics(
        loss=loss_sum / num_examples, accuracy=num_correct / num_examples, num_correct=num_correct, num_examples=num_examples
    )


def confusion(labels: npt.NDArray[np.int64], predictions: npt.NDArray[np.int64], num_classes: int) -> list[list[int]]:
    """Count how often each class was predicted as each class.

    Args:
        labels: int64 [N], in 0..num_classes - 1.
        predictions: int64 [N], likewise.
        num_classes: number of classes of the data, whether or not all of them occur.

    Returns:
        [num_classes][num_classes] counts that add up to N: rows are the true class, columns the predicted one.

    Raises:
        ValueError: the two differ in shape, or hold another class.
    """
    _check(labels, predictions)
    cells = np.ravel_multi_index((labels, predictions), (num_classes, num_classes))
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes).tolist()


def _check(labels: npt.NDArray[np.int64], predictions: npt.NDArray[np.int64]) -> None:
    if labels.shape != predictions.shape:
        raise ValueError(f"A prediction for each label is needed. Received shapes: {labels.shape} and {predictions.shape}.")
