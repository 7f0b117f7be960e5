"""What is said of modes that are not serial's mathematics."""

import pytest
from syrupy.assertion import SnapshotAssertion

from common import spec
from common.artifacts.schema import Members, Staleness
from compare.running.matrix import Row
from tests.support import comparisons
from tests.support.comparisons import score, with_runs
from tests.support.statements import in_words


def _sentences(word: str, **facts: object) -> list[str]:
    """Of a row of two replicas beside a serial one whose accuracy is 0.7; its own is 0.8."""
    parallel = spec.build(spec.with_variant({"cores": 2, "epochs": 2}, word, 2))
    rows = [comparisons.row("pytorch"), Row(id="pytorch-other", contestant="pytorch", spec=parallel)]
    stored = with_runs(comparisons.of_rows(rows, (2.0, 1.0)), "pytorch-other", test=score(0.8, 1.0), **facts)
    return in_words(stored)["inexact_modes"]


def test_late_gradients_are_counted_beside_serials_accuracy(snapshot: SnapshotAssertion) -> None:
    (sentence,) = _sentences("parameter_server_async", staleness=Staleness(counts=[10, 20, 10, 0], waiting_seconds=0.25))
    for figure in ("0.8000", "0.7000", "1.00 updates", "2 at most", "40 pushes", "0.25 s"):
        assert figure in sentence
    assert sentence == snapshot


def test_members_their_average_and_their_vote_are_told_apart(snapshot: SnapshotAssertion) -> None:
    members = Members(average=score(0.8, 1.0), ensemble=score(0.85, 1.0), members=[score(0.7, 1.0), score(0.75, 1.0)])
    (sentence,) = _sentences("model_averaging", members=members)
    for figure in ("0.8000", "0.8500", "0.7000 to 0.7500"):
        assert figure in sentence
    assert sentence == snapshot


@pytest.mark.parametrize("word", ["data_parallel", "pipeline", "tensor_parallel"])
def test_nothing_is_said_of_modes_that_claim_to_be_serials(word: str) -> None:
    assert _sentences(word) == []
