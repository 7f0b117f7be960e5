"""Verdicts on the claims of a paper: one function for each kind of claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compare.tools.papers import accuracy_claims, loss_claims, table_claims, time_claims
from compare.tools.papers.judging import Judgement, Verdict
from compare.tools.papers.local_results import LocalResults


@dataclass(frozen=True)
class JudgedClaim:
    """A sentence of a paper, with its verdict."""

    name: str
    text: str
    verdict: Verdict
    evidence: list[str]


def judge_all(results: LocalResults) -> list[JudgedClaim]:
    """Judge the claims of the paper, in its order."""
    return [JudgedClaim(name, claim.said, *judge(results, name)) for name, claim in results.paper.claims.items()]


def judge(results: LocalResults, name: str) -> Judgement:
    """Judge a claim of the paper by its name."""
    claim = results.paper.claims[name]
    verdict, evidence = KINDS[claim.kind](results, claim)
    return verdict, [*evidence, *claim.remarks]


KINDS: dict[str, Callable[[LocalResults, Any], Judgement]] = {
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
"""Function that judges each kind of claim. The kind is the function's name."""
