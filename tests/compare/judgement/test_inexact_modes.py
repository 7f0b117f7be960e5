"""What is said of modes that are not serial's mathematics."""

import pytest

from common import spec
from common.artifacts.schema import Members, Staleness
from compare.execution.matrix import Row
from compare.execution.store import StoredComparison
from compare.judgement import inexact_modes
from compare.judgement.summary import summarize
from tests.support import comparisons


def said(word: str, **facts: object) -> list[str]:
    """Of a row of two replicas beside a serial one whose accuracy is 0.7; its own is 0.8."""
    parallel = spec.build(spec.with_variant({"cores": 2, "epochs": 2}, word, 2))
    rows = [comparisons.row("pytorch"), Row(id="pytorch-other", contestant="pytorch", spec=parallel)]
    run = comparisons.good(rows[1], 1.0).model_copy(update={"test": comparisons.score(0.8, 1.0), **facts})
    stored = StoredComparison(
        comparison=comparisons.comparison(rows),
        runs={rows[0].id: {0: comparisons.good(rows[0], 2.0)}, rows[1].id: {0: run}},
        set_aside=[],
    )
    return inexact_modes.sentences(stored, summarize(stored))


def test_late_gradients_are_counted_beside_serials_accuracy() -> None:
    staleness = Staleness(counts=[10, 20, 10, 0], waiting_seconds=0.25)
    assert said("parameter_server_async", staleness=staleness) == [
        "pytorch parameter_server_async x2: gradients are applied to weights that have moved on since: test accuracy 0.8000, "
        "serial's 0.7000; gradients late by 1.00 updates in the mean and 2 at most, over 40 pushes; 0.25 s of waiting."
    ]


def test_members_their_average_and_their_vote_are_told_apart() -> None:
    members = Members(
        average=comparisons.score(0.8, 1.0),
        ensemble=comparisons.score(0.85, 1.0),
        members=[comparisons.score(0.7, 1.0), comparisons.score(0.75, 1.0)],
    )
    (sentence,) = said("model_averaging", members=members)
    assert sentence.endswith("the average of the members 0.8000, their vote 0.8500, each alone 0.7000 to 0.7500.")


@pytest.mark.parametrize("word", ["data_parallel", "pipeline", "tensor_parallel"])
def test_nothing_is_said_of_modes_that_claim_to_be_serials(word: str) -> None:
    assert said(word) == []
