"""What a report says of the losses and scores of two frameworks."""

from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from compare.judgement import sameness
from compare.judgement.summary import summarize
from compare.results.store import ProofRecord, StoredComparison
from tests.support import comparisons
from tests.support.comparisons import score, with_plan, with_runs
from tests.support.statements import in_words

LOSSES = [2.3 - 0.01 * step for step in range(20)]
PROVED = ProofRecord(verdict="proved", sentence="")


def _stored(proof: ProofRecord = PROVED, **fields: Any) -> StoredComparison:
    """Two serial runs of 20 steps whose losses are equal. TensorFlow's has these fields."""
    stored = comparisons.of_rows([comparisons.row("pytorch"), comparisons.row("tensorflow")], step_losses=LOSSES)
    return with_runs(with_plan(stored, proof=proof), "tensorflow", **fields)


def _sentences(stored: StoredComparison) -> list[str]:
    return in_words(stored)["sameness"]


@pytest.mark.parametrize(
    ("fields", "is_said"),
    [
        ({"test": score(0.6, 0.6)}, True),
        ({"test": score(0.69, 0.6)}, True),  # ties alone can do that, though 2 images are more than 1 %
        ({"test": score(0.68, 0.6)}, True),
        ({"test": score(0.6, 0.6), "step_losses": LOSSES[:10]}, False),
        ({}, False),
    ],
)
def test_accuracies_that_differ_where_losses_agree_are_said_to_be_unexplained_or_ties(
    fields: dict[str, Any], is_said: bool, snapshot: SnapshotAssertion
) -> None:
    of_scores = [sentence for sentence in _sentences(_stored(**fields)) if "test scores" in sentence]
    assert len(of_scores) == is_said and of_scores == snapshot


@pytest.mark.parametrize(("status", "agrees"), [("passed", True), ("failed", False)])
def test_a_first_loss_that_the_referee_refutes_does_not_agree_and_is_named(
    status: str, agrees: bool, snapshot: SnapshotAssertion
) -> None:
    """The tolerance of the other framework alone would let both pass."""
    rung = {"precision": "float32", "mode": None, "first_tolerance": 2e-5}
    rungs = [
        rung | {"framework": name, "status": own, "where": name}
        for name, own in (("pytorch", "passed"), ("tensorflow", status))
    ]
    proof = ProofRecord(verdict="proved", sentence="", rungs=rungs)
    stored = _stored(proof, first_step_loss=2.3 * (1 + 1.5e-5))
    summaries = summarize(stored)
    assert sameness.is_comparable(stored, summaries) is agrees
    assert [sameness.first_losses_agree(stored, summary) for summary in summaries] == [agrees] * 2
    assert _sentences(stored) == snapshot
