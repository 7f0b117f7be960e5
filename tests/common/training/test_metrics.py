import math

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.training.metrics import confusion, from_counts, metrics

pairs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=50)


def columns(pairs: list[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    labels, predictions = np.array(pairs, np.int64).T
    return labels, predictions


@given(pairs)
def test_counts_of_the_device_give_the_accuracy_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = columns(pairs)
    scores = from_counts(int((labels == predictions).sum()), len(labels), 1.5)
    assert scores.accuracy == pytest.approx(float(sklearn.metrics.accuracy_score(labels, predictions)), rel=1e-15)
    assert scores.num_examples == len(pairs)


@given(pairs, st.floats(0, 1e6))
def test_label_arrays_and_their_counts_give_the_same_scores(pairs: list[tuple[int, int]], loss_sum: float) -> None:
    num_correct = sum(label == prediction for label, prediction in pairs)
    scores = metrics(*columns(pairs), loss_sum)
    assert scores == from_counts(num_correct, len(pairs), loss_sum)
    assert type(scores.num_correct) is int


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_a_sum_of_cross_entropies_gives_the_log_loss_of_scikit_learn(seed: int, num_examples: int) -> None:
    generator = np.random.default_rng(seed)
    probabilities = generator.dirichlet(np.ones(5), num_examples)
    labels = generator.integers(0, 5, num_examples)
    loss_sum = -np.log(probabilities[np.arange(num_examples), labels]).sum()
    expected = sklearn.metrics.log_loss(labels, probabilities, labels=range(5))
    assert metrics(labels, probabilities.argmax(1), float(loss_sum)).loss == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(
    ("labels", "predictions", "accuracy"),
    [([3], [3], 1.0), ([3], [4], 0.0), ([0, 0, 0, 0], [0, 0, 0, 7], 0.75), ([0, 1, 2], [1, 2, 0], 0.0)],
)
def test_accuracy_is_the_share_of_examples_whose_label_was_predicted(
    labels: list[int], predictions: list[int], accuracy: float
) -> None:
    assert metrics(np.array(labels), np.array(predictions), 0.0).accuracy == accuracy


def test_a_loss_that_is_no_number_is_kept_as_it_is() -> None:
    assert math.isnan(from_counts(1, 4, math.nan).loss)
    assert from_counts(1, 4, math.inf).loss == math.inf


def test_predictions_for_another_number_of_examples_are_refused() -> None:
    labels, predictions = np.array([1, 2]), np.array([1])
    for score in (metrics, confusion):
        with pytest.raises(ValueError, match=r"Received shapes: \(2,\) and \(1,\)"):
            score(labels, predictions, 3)


@given(pairs)
def test_every_example_is_counted_once_in_its_true_row_and_its_predicted_column(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = columns(pairs)
    counts = confusion(labels, predictions, 10)
    assert [sum(row) for row in counts] == np.bincount(labels, minlength=10).tolist()
    assert [sum(column) for column in zip(*counts, strict=True)] == np.bincount(predictions, minlength=10).tolist()
    assert sum(counts[label][label] for label in range(10)) == metrics(labels, predictions, 0.0).num_correct
    assert counts == sklearn.metrics.confusion_matrix(labels, predictions, labels=range(10)).tolist()
    assert all(type(count) is int for row in counts for count in row)


def test_classes_that_do_not_occur_have_their_row_and_column() -> None:
    assert confusion(np.array([0, 0, 2]), np.array([0, 2, 2]), 4) == [[1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
