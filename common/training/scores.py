"""Every score of a trained model from integer labels and logits: one evaluator, whatever framework made them."""

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
"""Labels among which the true one counts as found, beside the likeliest alone."""
BINS = 15
"""Of confidence, of equal width, as in Guo et al. 2017."""
CHANCE = 0.95
"""Part of the samples of a calibrated model whose calibration error stays within `Scores.calibration_chance`."""
_DRAWS = 1000
"""Number of such samples that are drawn."""

Labels = npt.NDArray[np.int64]
Logits = npt.NDArray[np.floating]


class ClassScores(Frozen):
    """Of one class, or averaged over classes. A quotient by 0 is 0: a class that was never predicted has precision 0."""

    precision: float
    """Fraction of the examples predicted as the class that are of it."""
    recall: float
    """Fraction of the examples of the class that are predicted as it."""
    f1: float
    """Harmonic mean of the two."""
    support: int
    """Examples of the class; of an average, of all."""


class Bin(Frozen):
    """The predictions of one range of confidence."""

    low: float
    high: float
    count: int
    confidence: float | None
    """Mean probability that they gave to their label; None where there are none."""
    accuracy: float | None


class Scores(Frozen):
    """All scores of a model on a split."""

    num_examples: int
    num_correct: int
    accuracy: float
    top_accuracy: float | None
    """How often the true label is among the TOP likeliest; None where there are no more classes than that."""
    loss: float
    """Mean cross-entropy."""
    classes: list[ClassScores]
    """By class id."""
    macro: ClassScores
    """The mean over classes, each counting the same."""
    weighted: ClassScores
    """The mean over classes, each counting by its support."""
    confusion: list[list[int]]
    """Examples of each true class (row) that were taken for each class (column)."""
    calibration_error: float
    """Of the confidence: |accuracy - mean confidence| of each bin, weighted by its count (Naeini et al. 2015)."""
    calibration_chance: float
    """Calibration error that a calibrated model of the same confidences stays within by chance. Only endless examples give 0.
    Estimated by drawing whether each label is right, as often as its confidence says (Bröcker & Smith 2007)."""
    bins: list[Bin]
    predictions_hash: str
    """SHA-256 over the int64 predicted labels."""


class Confusion(Frozen):
    """One class that is taken for another."""

    true: int
    predicted: int
    count: int
    share: float
    """Of the examples of the true class."""
    examples: list[int]
    """Their places in the split, the surest mistakes first."""


class Agreement(Frozen):
    """How two models agree on the same examples."""

    num_examples: int
    labelled_differently: int
    first_alone_right: int
    second_alone_right: int
    p: float | None
    """Two-sided, of McNemar's exact test that both are right equally often. None if they never differ."""
    largest_difference: float
    """Of the probabilities, over all examples and classes."""


def probabilities(logits: Logits) -> npt.NDArray[np.float64]:
    """Softmax of [N, classes], in float64."""
    return special.softmax(logits.astype(np.float64), axis=1)


def predictions(logits: Logits) -> Labels:
    """int64 [N], the likeliest labels; of equal ones the smallest."""
    return logits.argmax(1).astype(np.int64)


def score(labels: Labels, logits: Logits) -> Scores:
    """Every score.

    Args:
        labels: int64 [N], N at least 1.
        logits: [N, classes], finite.
    """
    from sklearn.metrics import precision_recall_fscore_support, top_k_accuracy_score  # here: it takes a second to import

    count, classes = logits.shape
    every, predicted = np.arange(classes), predictions(logits)
    logarithms = special.log_softmax(logits.astype(np.float64), axis=1)
    confidence = np.exp(logarithms.max(1))
    rules: Any = {"labels": every, "zero_division": 0.0}
    by_class: Any = precision_recall_fscore_support(labels, predicted, **rules)
    num_correct = int((predicted == labels).sum())

    def average(kind: str) -> ClassScores:
        averaged: Any = precision_recall_fscore_support(labels, predicted, average=kind, **rules)
        precision, recall, f1, _ = averaged
        return ClassScores(precision=float(precision), recall=float(recall), f1=float(f1), support=count)

    return Scores(
        num_examples=count,
        num_correct=num_correct,
        accuracy=num_correct / count,
        top_accuracy=float(top_k_accuracy_score(labels, logits, k=TOP, labels=every)) if classes > TOP else None,
        loss=float(-logarithms[np.arange(count), labels].mean()),
        classes=[
            ClassScores(precision=float(precision), recall=float(recall), f1=float(f1), support=int(support))
            for precision, recall, f1, support in zip(*by_class, strict=True)
        ],
        macro=average("macro"),
        weighted=average("weighted"),
        confusion=metrics.confusion(labels, predicted, classes),
        calibration_error=_calibration_error(confidence, predicted == labels),
        calibration_chance=_calibration_chance(confidence),
        bins=_bins(confidence, predicted == labels),
        predictions_hash=hashlib.sha256(np.ascontiguousarray(predicted, "<i8").tobytes()).hexdigest(),
    )


def worst_confused(labels: Labels, logits: Logits, most: int) -> list[Confusion]:
    """The pairs of classes that are confused most often, one way each, the most frequent first; no more than `most`."""
    predicted, sure = predictions(logits), probabilities(logits).max(1)
    table = np.array(metrics.confusion(labels, predicted, logits.shape[1]))
    support = table.sum(1)
    np.fill_diagonal(table, 0)
    order = np.argsort(-table, axis=None, kind="stable")[:most]
    found: list[Confusion] = []
    for true, taken in zip(*np.unravel_index(order, table.shape), strict=True):
        if not table[true, taken]:
            break
        places = np.flatnonzero((labels == true) & (predicted == taken))
        surest = places[np.argsort(-sure[places], kind="stable")]
        found.append(
            Confusion(
                true=int(true),
                predicted=int(taken),
                count=int(table[true, taken]),
                share=float(table[true, taken] / support[true]),
                examples=[int(place) for place in surest],
            )
        )
    return found


def agreement(labels: Labels, first: Logits, second: Logits) -> Agreement:
    """Compare two models, example by example.

    McNemar's test (1947) looks at the examples that one model alone has right: were both right equally often, each of these
    would fall to either like a coin. It is exact here (binomial), however few they are.

    Args:
        labels: int64 [N].
        first, second: [N, classes] of the two.
    """
    from scipy import stats  # here: it takes half a second to import

    right = [predictions(logits) == labels for logits in (first, second)]
    alone = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    return Agreement(
        num_examples=len(labels),
        labelled_differently=int((predictions(first) != predictions(second)).sum()),
        first_alone_right=alone[0],
        second_alone_right=alone[1],
        p=float(stats.binomtest(alone[0], sum(alone)).pvalue) if sum(alone) else None,
        largest_difference=float(np.abs(probabilities(first) - probabilities(second)).max()),
    )


def _bins(confidence: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> list[Bin]:
    edges, places = np.linspace(0.0, 1.0, BINS + 1), _places(confidence)
    made: list[Bin] = []
    for number, (low, high) in enumerate(pairwise(edges)):
        own = places == number
        empty = not own.any()
        made.append(
            Bin(
                low=float(low),
                high=float(high),
                count=int(own.sum()),
                confidence=None if empty else float(confidence[own].mean()),
                accuracy=None if empty else float(right[own].mean()),
            )
        )
    return made


def _places(confidence: npt.NDArray[np.float64]) -> Labels:
    """The bin of each; (low, high], as Guo et al. have them."""
    return np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)


def _calibration_error(confidence: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> float:
    gaps = np.bincount(_places(confidence), weights=right - confidence)  # of each bin, times its count
    return float(np.abs(gaps).sum() / len(confidence))


def _calibration_chance(confidence: npt.NDArray[np.float64]) -> float:
    generator = np.random.default_rng(0)
    draws = [_calibration_error(confidence, generator.random(len(confidence)) < confidence) for _ in range(_DRAWS)]
    return float(np.quantile(draws, CHANCE))


def added_up(matrices: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    """Confusion matrices of several models on the same examples, added up."""
    return np.sum([np.array(matrix) for matrix in matrices], axis=0).tolist()
