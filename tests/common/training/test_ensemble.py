import numpy as np
import pytest

from common.training import ensemble, metrics


@pytest.mark.parametrize(
    ("votes", "elected"),
    [([3], 3), ([2, 2, 0], 2), ([2, 0, 2], 2), ([2, 1], 1), ([1, 2], 1), ([3, 0, 3, 0, 1], 0), ([4, 2, 3], 2), ([0, 0], 0)],
)
def test_a_vote_elects_the_label_of_most_members_and_of_several_the_smallest(votes: list[int], elected: int) -> None:
    predictions = np.array([[each, 0] for each in votes])
    assert ensemble.vote(predictions).tolist() == [elected, 0]


def test_members_are_scored_one_by_one_and_together() -> None:
    labels = np.array([0, 1, 2, 1])
    predictions = np.array([[0, 1, 0, 0], [0, 2, 2, 0], [1, 1, 2, 1]])
    average = metrics.from_counts(4, 4, 0.4)
    found = ensemble.members(labels, predictions, np.array([4.0, 8.0, 3.0]), average)
    assert found.average == average
    assert [member.num_correct for member in found.members] == [2, 2, 3]
    assert [member.loss for member in found.members] == [1.0, 2.0, 0.75]
    assert (found.ensemble.num_correct, found.ensemble.num_examples) == (3, 4)
    assert found.ensemble.loss == pytest.approx(1.25)
