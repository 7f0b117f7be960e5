"""The evaluator, held against hand-made cases and the formulas of its sources."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.training import scores

LABELS = np.array([0, 0, 0, 1, 1, 2])
LOGITS = np.log(
    np.array([
        [0.80, 0.10, 0.10],
        [0.30, 0.60, 0.10],
        [0.20, 0.70, 0.10],
        [0.10, 0.80, 0.10],
        [0.55, 0.35, 0.10],
        [0.10, 0.60, 0.30],
    ])
)  # fmt: skip
"""Predicted 0, 1, 1, 1, 0, 1: two of six right; nothing is taken for class 2."""


def test_scores_of_a_case_counted_by_hand() -> None:
    found = scores.score(LABELS, LOGITS)
    assert (found.num_examples, found.num_correct, found.accuracy) == (6, 2, pytest.approx(2 / 6))
    assert found.confusion == [[1, 2, 0], [1, 1, 0], [0, 1, 0]]
    assert [each.support for each in found.classes] == [3, 2, 1]
    assert [each.precision for each in found.classes] == pytest.approx([1 / 2, 1 / 4, 0])
    assert [each.recall for each in found.classes] == pytest.approx([1 / 3, 1 / 2, 0])
    assert [each.f1 for each in found.classes] == pytest.approx([0.4, 1 / 3, 0])
    assert found.macro.recall == pytest.approx((1 / 3 + 1 / 2) / 3)
    assert found.weighted.f1 == pytest.approx((3 * 0.4 + 2 / 3) / 6)
    assert (found.macro.support, found.weighted.support) == (6, 6)
    assert found.loss == pytest.approx(-np.log([0.8, 0.3, 0.2, 0.8, 0.35, 0.3]).mean())
    assert found.top_accuracy is None  # three classes have no fifth


def test_the_calibration_error_is_the_weighted_gap_of_the_bins() -> None:
    # Right with 0.8 twice: in (12/15, 13/15] would be 0.8 + a hair, so (11/15, 12/15].
    found = scores.score(LABELS, LOGITS)
    filled = {round(each.high * 15): each for each in found.bins if each.count}
    assert len(found.bins) == 15
    assert {number: each.count for number, each in filled.items()} == {9: 3, 11: 1, 12: 2}
    gaps = 3 / 6 * abs(0 - (0.6 + 0.55 + 0.6) / 3) + 1 / 6 * 0.7 + 2 / 6 * (1 - 0.8)
    assert found.calibration_error == pytest.approx(gaps)


def test_a_calibrated_model_is_off_by_chance_alone_and_one_that_is_too_sure_is_not() -> None:
    generator = np.random.default_rng(4)
    logits = generator.normal(0, 2, (400, 3))
    labels = np.array([generator.choice(3, p=chances) for chances in scores.probabilities(logits)])
    honest, boastful = scores.score(labels, logits), scores.score(labels, 3 * logits)
    assert 0.0 < honest.calibration_error <= honest.calibration_chance < 0.1
    assert boastful.calibration_error > 2 * boastful.calibration_chance


def test_the_true_label_among_the_five_likeliest_counts() -> None:
    logits = np.array([[7.0, 6, 5, 4, 3, 2, 1]] * 3)
    assert scores.score(np.array([0, 4, 5]), logits).top_accuracy == pytest.approx(2 / 3)


def test_the_worst_confused_pairs_come_with_their_surest_examples() -> None:
    found = scores.most_confused(LABELS, LOGITS, max_pairs=2)
    assert [(each.true, each.predicted, each.count, each.examples) for each in found] == [(0, 1, 2, [2, 1]), (1, 0, 1, [4])]
    assert found[0].share == pytest.approx(2 / 3)
    perfect = 10.0 * np.eye(3)
    assert scores.most_confused(np.arange(3), perfect, max_pairs=5) == []


def test_mcnemar_counts_what_one_model_alone_has_right() -> None:
    labels = np.zeros(20, np.int64)
    right, wrong = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    first = np.array([right] * 15 + [wrong] * 5)
    second = np.array([wrong] * 9 + [right] * 7 + [wrong] * 4)
    found = scores.agreement(labels, first, second)
    assert (found.first_alone_right, found.second_alone_right, found.labelled_differently) == (9, 1, 10)
    assert found.p == pytest.approx(2 * (1 + 10) / 2**10)
    same = scores.agreement(labels, first, first)
    assert (same.p, same.labelled_differently, same.largest_difference) == (None, 0, 0.0)


def test_two_wrong_labels_differ_without_a_word_from_mcnemar() -> None:
    found = scores.agreement(np.array([0]), np.array([[0.0, 9.0, 1.0]]), np.array([[0.0, 1.0, 9.0]]))
    assert (found.labelled_differently, found.first_alone_right, found.second_alone_right, found.p) == (1, 0, 0, None)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(2, 100), st.floats(0.01, 4))
def test_scores_hold_together(seed: int, count: int, classes: int, spread: float) -> None:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    found = scores.score(labels, generator.normal(0, spread, (count, classes)).astype(np.float32))
    assert np.sum(found.confusion) == count and np.trace(found.confusion) == found.num_correct
    assert sum(each.count for each in found.bins) == count
    assert all(each.low < each.confidence <= each.high for each in found.bins if each.confidence is not None)
    assert found.weighted.recall == pytest.approx(found.accuracy)
    assert found.top_accuracy is None or found.top_accuracy >= found.accuracy
    assert 0.0 <= found.calibration_error <= 1.0
    assert scores.sum_matrices([found.confusion, found.confusion]) == (2 * np.array(found.confusion)).tolist()
