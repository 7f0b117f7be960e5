"""A verdict for each claim of a paper: one function for each kind of claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compare.papers import accuracy_claims, loss_claims, table_claims, time_claims
from compare.papers.here import Here
from compare.papers.judging import Judgement, Verdict


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper, judged."""

    name: str
    said: str
    verdict: Verdict
    evidence: list[str]


def judge_all(here: Here) -> list[Claim]:
    """The claims of the paper, in its order."""
    return [Claim(name, each.said, *judge(here, name)) for name, each in here.paper.claims.items()]


def judge(here: Here, name: str) -> Judgement:
    """A claim of the paper by its name."""
    claim = here.paper.claims[name]
    verdict, evidence = KINDS[claim.kind](here, claim)
    return verdict, [*evidence, *claim.remarks]


KINDS: dict[str, Callable[[Here, Any], Judgement]] = {
    judge.__name__: judge
    for judge in (
        table_claims.not_judged,
        table_claims.ordering,
        accuracy_claims.no_accuracy_loss,
        accuracy_claims.accuracy_loss,
        accuracy_claims.more_accurate,
        time_claims.faster_than,
        time_claims.gains_more,
        time_claims.scans_scale_more,
        time_claims.no_gain_beyond_cores,
        time_claims.search_gain,
        loss_claims.same_losses,
        loss_claims.other_losses,
    )
}
"""What judges each kind of claim."""
