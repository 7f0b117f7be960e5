"""Which rungs follow from which: each case names the rungs that differ, and those that follow from another."""

import pytest

from compare.tools.matching.causes import Cause
from compare.tools.matching.model_comparison import FAILED, FOLLOWS, PASSED, RungResult, _mark_consequences

INFERENCE, EXTREMES, TRAINING = "logits, inference", "logits, far from the usual values", "logits, training"
NAMES = (
    "layers and parameters", "weights as given", INFERENCE, EXTREMES, TRAINING, "running statistics", "loss", "gradients",
    "one update, sgd", "20 steps, sgd", "one update, adam", "20 steps, adam",
)  # fmt: skip


@pytest.mark.parametrize(
    ("differ", "follow"),
    [
        ({INFERENCE, TRAINING, "loss", "gradients"}, {TRAINING, "loss", "gradients"}),
        ({"weights as given", EXTREMES, TRAINING}, {EXTREMES, TRAINING}),
        ({INFERENCE, "running statistics"}, {"running statistics"}),  # a BatchNorm may even out outputs
        ({INFERENCE, "loss"}, set()),  # outputs in training agree
        ({"running statistics", EXTREMES, "loss", "gradients"}, {"gradients"}),  # nothing follows from the first two
        ({"loss", "one update, sgd"}, set()),  # the gradients agree
        ({"gradients", "one update, adam", "20 steps, adam"}, {"one update, adam", "20 steps, adam"}),
        ({"one update, sgd", "20 steps, sgd", "one update, adam"}, {"20 steps, sgd"}),  # another rule is judged by itself
    ],
)
def test_a_rung_follows_from_those_that_it_depends_on(differ: set[str], follow: set[str]) -> None:
    rungs = [RungResult(name, 1.0, 0.0, FAILED if name in differ else PASSED) for name in NAMES]
    assert {rung.name for rung in _mark_consequences(rungs) if rung.status == FOLLOWS} == follow


def test_statistics_with_a_cause_of_their_own_do_not_follow() -> None:
    cause = Cause("batch-norm-momentum")
    rungs = [RungResult(INFERENCE, 1.0, 0.0, FAILED), RungResult("running statistics", 1.0, 0.0, FAILED, causes=(cause,))]
    assert [rung.status for rung in _mark_consequences(rungs)] == [FAILED, FAILED]
