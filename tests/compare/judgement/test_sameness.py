"""What a report says of the losses and scores of two frameworks."""

from typing import Any

from compare.execution.store import ProofRecord, StoredComparison
from compare.judgement import sameness, summary
from tests.support import comparisons

STEPS = 20
LOSSES = [2.3 - 0.01 * step for step in range(STEPS)]


def stored(**changes: Any) -> StoredComparison:
    """Two serial runs of 20 steps whose losses are equal. TensorFlow's has these changes."""
    rows = [comparisons.row("pytorch"), comparisons.row("tensorflow")]
    runs = {row.id: {0: comparisons.good(row, 1.0).model_copy(update={"step_losses": LOSSES})} for row in rows}
    other = runs["tensorflow-serial-2"]
    other[0] = other[0].model_copy(update=changes)
    return StoredComparison(
        comparison=comparisons.comparison(rows, proof=ProofRecord(verdict="proved", sentence="")), runs=runs, set_aside=[]
    )


def said(of: StoredComparison) -> str:
    return "\n".join(sameness.sentences(of, summary.summarize(of)))


def test_accuracies_that_differ_where_losses_agree_are_said_to_be_unexplained() -> None:
    agree = "The losses agree within 0.0e+00 at every step. The test scores differ by"
    found = said(stored(test=comparisons.score(0.6, 0.6)))
    assert f"{agree} 10 of 100 images (serial). The losses do not explain the scores." in found
    for accuracy, images in ((0.69, 1), (0.68, 2)):  # ties alone can do that, though 2 are more than 1 %
        found = said(stored(test=comparisons.score(accuracy, 0.6)))
        tied = f"{agree} {images} of 100 images (serial). Rounding can do that where two logits of an image are nearly equal."
        assert tied in found
    assert "explain" not in said(stored(test=comparisons.score(0.6, 0.6), step_losses=LOSSES[:10]))
    assert "explain" not in said(stored())


def test_a_first_loss_that_the_referee_refutes_does_not_agree_and_is_named() -> None:
    """The tolerance of the other framework alone would let both pass."""
    close = stored(first_step_loss=2.3 * (1 + 1.5e-5))

    def judged(status: str) -> StoredComparison:
        rungs = [
            {
                "name": sameness.FIRST_LOSSES,
                "framework": name,
                "mode": None,
                "status": own,
                "first_tolerance": 2e-5,
                "where": name,
            }
            for name, own in (("pytorch", "passed"), ("tensorflow", status))
        ]
        proof = ProofRecord(verdict="proved", sentence="", rungs=rungs)
        return close.model_copy(update={"comparison": close.comparison.model_copy(update={"proof": proof})})

    def is_comparable(of: StoredComparison) -> bool:
        return sameness.is_comparable(of, summary.summarize(of))

    assert is_comparable(judged("passed")) and "Timed configuration: agrees" in said(judged("passed"))
    assert not is_comparable(judged("failed"))
    assert "DOES NOT AGREE" in said(judged("failed")) and " tensorflow, serial: tensorflow." in said(judged("failed"))
