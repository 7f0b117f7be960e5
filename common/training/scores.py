"""Scores of a trained model from integer labels and logits, by one evaluator for all frameworks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from common.frozen import Frozen
from common.training import metrics

TOP = 5
"""Number of likeliest labels for the top-k accuracy."""
BINS = 15
"""Number of bins of confidence, of equal width, as in Guo et al. 2017."""
CHANCE = 0.95
"""Fraction of the samples of a calibrated model whose calibration error is within `SplitScores.calibration_chance`."""
_DRAWS = 1000
"""Number of samples that are drawn to estimate it."""

Labels = npt.NDArray[np.int64]
Logits = npt.NDArray[np.floating]


class ClassScores(Frozen):
    """Scores of one class, or averaged over classes. A quotient by 0 is 0: a class never predicted has precision 0."""

    precision: float
    """Fraction of the examples predicted as the class that are of it."""
    recall: float
    """Fraction of the examples of the class that are predicted as it."""
    f1: float
    """Harmonic mean of precision and recall."""
    support: int
    """Number of examples of the class; for an average, of all classes."""


class Bin(Frozen):
    """The predictions of one range of confidence."""

    low: float
    high: float
    count: int
    confidence: float | None
    """Mean probability of the predicted label; None for an empty bin."""
    accuracy: float | None


class SplitScores(Frozen):
    """All scores of a model on a split."""

    num_examples: int
    num_correct: int
    accuracy: float
    top_accuracy: float | None
    """Fraction of examples whose true label is among the TOP likeliest; None if there are no more classes than that."""
    loss: float
    """Mean cross-entropy."""
    classes: list[ClassScores]
    """Scores of each class, by class id."""
    macro: ClassScores
    """Mean over classes with equal weights."""
    weighted: ClassScores
    """Mean over classes, weighted by support."""
    confusion: list[list[int]]
    """Number of examples of each true class (row) by predicted class (column)."""
    calibration_error: float
    """Mean over bins of |accuracy - mean confidence|, weighted by count (Naeini et al. 2015)."""
    calibration_chance: float
    """Calibration error that a calibrated model of the same confidences stays within by chance. Only endless examples give 0.
    Estimated by drawing whether each label is right, as often as its confidence says (Bröcker & Smith 2007)."""
    bins: list[Bin]
    predictions_hash: str
    """SHA-256 over the int64 predicted labels."""


class Confusion(Frozen):
    """Examples of one class that are predicted as another."""

    true: int
    predicted: int
    count: int
    share: float
    """Fraction of the examples of the true class."""
    examples: list[int]
    """Positions of the examples in the split, highest confidence first."""


class Agreement(Frozen):
    """Agreement of two models on the same examples."""

    num_examples: int
    labelled_differently: int
    first_alone_right: int
    second_alone_right: int
    p: float | None
    """Two-sided p-value of McNemar's exact test that both are right equally often. None if they never differ."""
    largest_difference: float
    """Largest difference of a probability over all examples and classes."""


def probabilities(logits: Logits) -> npt.NDArray[np.float64]:
    """Return the softmax of logits [N, classes], in float64."""
    return special.softmax(logits.astype(np.float64), axis=1)


def predictions(logits: Logits) -> Labels:
    """Return int64 [N], the likeliest labels. The smallest label wins a tie."""
    return logits.argmax(1).astype(np.int64)


def score(labels: Labels, logits: Logits) -> SplitScores:
    """Compute all scores.

    Args:
        labels: int64 [N], N at least 1.
        logits: [N, classes], finite.
    """
    from sklearn.metrics import precision_recall_fscore_support, top_k_accuracy_score  # here: it takes a second to import

    count, classes = logits.shape
    class_ids, predicted = np.arange(classes), predictions(logits)
    logarithms = special.log_softmax(logits.astype(np.float64), axis=1)
    confidence = np.exp(logarithms.max(1))
    options: Any = {"labels": class_ids, "zero_division": 0.0}
    class_scores: Any = precision_recall_fscore_support(labels, predicted, **options)
    num_correct = int((predicted == labels).sum())

    def average(kind: str) -> ClassScores:
        class_average: Any = precision_recall_fscore_support(labels, predicted, average=kind, **options)
        precision, recall, f1, _ = class_average
        return ClassScores(precision=float(precision), recall=float(recall), f1=float(f1), support=count)

    return SplitScores(
        num_examples=count,
        num_correct=num_correct,
        accuracy=num_correct / count,
        top_accuracy=float(top_k_accuracy_score(labels, logits, k=TOP, labels=class_ids)) if classes > TOP else None,
        loss=float(-logarithms[np.arange(count), labels].mean()),
        classes=[
            ClassScores(precision=float(precision), recall=float(recall), f1=float(f1), support=int(support))
            for precision, recall, f1, support in zip(*class_scores, strict=True)
        ],
        macro=average("macro"),
        weighted=average("weighted"),
        confusion=metrics.confusion(labels, predicted, classes),
        calibration_error=_calibration_error(confidence, predicted == labels),
        calibration_chance=_calibration_chance(confidence),
        bins=_bins(confidence, predicted == labels),
        predictions_hash=hashlib.sha256(np.ascontiguousarray(predicted, "<i8").tobytes()).hexdigest(),
    )


def most_confused(labels: Labels, logits: Logits, max_pairs: int) -> list[Confusion]:
    """Return the (true, predicted) pairs of classes that are confused most often, most frequent first, at most `max_pairs`."""
    predicted, confidence = predictions(logits), probabilities(logits).max(1)
    table = np.array(metrics.confusion(labels, predicted, logits.shape[1]))
    support = table.sum(1)
    np.fill_diagonal(table, 0)
    order = np.argsort(-table, axis=None, kind="stable")[:max_pairs]
    confusions: list[Confusion] = []
    for true, predicted_class in zip(*np.unravel_index(order, table.shape), strict=True):
        if not table[true, predicted_class]:
            break
        positions = np.flatnonzero((labels == true) & (predicted == predicted_class))
        by_confidence = positions[np.argsort(-confidence[positions], kind="stable")]
        confusions.append(
            Confusion(
                true=int(true),
                predicted=int(predicted_class),
                count=int(table[true, predicted_class]),
                share=float(table[true, predicted_class] / support[true]),
                examples=[int(position) for position in by_confidence],
            )
        )
    return confusions


def agreement(labels: Labels, first: Logits, second: Logits) -> Agreement:
    """Compare two models, example by example.

    McNemar's test (1947) looks at the examples that one model alone has right: were both right equally often, each of these
    would fall to either like a coin. It is exact here (binomial), however few they are.

    Args:
        labels: int64 [N].
        first, second: logits [N, classes] of the two models.
    """
    from scipy import stats  # here: it takes half a second to import

    is_correct = [predictions(logits) == labels for logits in (first, second)]
    num_alone = int((is_correct[0] & ~is_correct[1]).sum()), int((is_correct[1] & ~is_correct[0]).sum())
    return Agreement(
        num_examples=len(labels),
        labelled_differently=int((predictions(first) != predictions(second)).sum()),
        first_alone_right=num_alone[0],
        second_alone_right=num_alone[1],
        p=float(stats.binomtest(num_alone[0], sum(num_alone)).pvalue) if sum(num_alone) else None,
        largest_difference=float(np.abs(probabilities(first) - probabilities(second)).max()),
    )


def _bins(confidence: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> list[Bin]:
    edges, bin_numbers = np.linspace(0.0, 1.0, BINS + 1), _bin_numbers(confidence)
    bins: list[Bin] = []
    for number, (low, high) in enumerate(pairwise(edges)):
        is_in_bin = bin_numbers == number
        empty = not is_in_bin.any()
        bins.append(
            Bin(
                low=float(low),
                high=float(high),
                count=int(is_in_bin.sum()),
                confidence=None if empty else float(confidence[is_in_bin].mean()),
                accuracy=None if empty else float(right[is_in_bin].mean()),
            )
        )
    return bins


def _bin_numbers(confidence: npt.NDArray[np.float64]) -> Labels:
    """Return the number of each value's bin. Bins are (low, high], as in Guo et al."""
    return np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)


def _calibration_error(confidence: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> float:
    gaps = np.bincount(_bin_numbers(confidence), weights=right - confidence)  # of each bin, times its count
    return float(np.abs(gaps).sum() / len(confidence))


def _calibration_chance(confidence: npt.NDArray[np.float64]) -> float:
    generator = np.random.default_rng(0)
    draws = [_calibration_error(confidence, generator.random(len(confidence)) < confidence) for _ in range(_DRAWS)]
    return float(np.quantile(draws, CHANCE))


def sum_matrices(matrices: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    """Add up confusion matrices of several models on the same examples."""
    return np.sum([np.array(matrix) for matrix in matrices], axis=0).tolist()
