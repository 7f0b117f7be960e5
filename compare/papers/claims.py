"""A verdict for each claim of a paper: one function for each kind of claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compare.papers import accuracy_claims, loss_claims, schema, table_claims, time_claims
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
    verdict, evidence = KINDS[type(claim)](here, claim)
    return verdict, [*evidence, *claim.remarks]


KINDS: dict[type[schema.Claim], Callable[[Here, Any], Judgement]] = {
    schema.NotJudged: table_claims.not_judged,
    schema.Ordering: table_claims.ordering,
    schema.NoAccuracyLoss: accuracy_claims.no_accuracy_loss,
    schema.AccuracyLoss: accuracy_claims.accuracy_loss,
    schema.MoreAccurate: accuracy_claims.more_accurate,
    schema.FasterThan: time_claims.faster_than,
    schema.GainsMore: time_claims.gains_more,
    schema.ScansScaleMore: time_claims.scans_scale_more,
    schema.NoGainBeyondCores: time_claims.no_gain_beyond_cores,
    schema.SearchGain: time_claims.search_gain,
    schema.SameLosses: loss_claims.same_losses,
    schema.OtherLosses: loss_claims.other_losses,
}
"""What judges each kind of claim."""
