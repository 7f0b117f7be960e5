"""Verdicts on the claims of a paper, and what forbids one on times: other work, or corrected runs that differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from compare.judgement.statement_words import DOUBTS, NO_FINDING
from compare.judgement.verdict_statements import doubt
from compare.tools.papers.local_results import LocalResults
from compare.tools.papers.plan import CORRECTED

Verdict = Literal["reproduced", "not reproduced", "contradicted by the paper's own table", "cannot be told here"]
CANNOT_TELL: Verdict = "cannot be told here"
CONTRADICTED: Verdict = "contradicted by the paper's own table"

Judgement = tuple[Verdict, list[str]]
"""Verdict, and the sentences that it rests on."""


@dataclass(frozen=True)
class JudgedClaim:
    """A sentence of a paper, with its verdict."""

    name: str
    text: str
    verdict: Verdict
    evidence: list[str]

    @property
    def why_not_told(self) -> str:
        """Why it cannot be told. Empty if it can."""
        return self.evidence[0] if self.verdict == CANNOT_TELL and self.evidence else ""


def judge_all(results: LocalResults) -> list[JudgedClaim]:
    """Judge the claims of the paper, in its order."""
    judged: list[JudgedClaim] = []
    for name, claim in results.paper.claims.items():
        verdict, evidence = claim.judge(results)
        judged.append(JudgedClaim(name, claim.said, verdict, [*evidence, *claim.remarks]))
    return judged


def unless_disturbed(
    results: LocalResults, training: str, rows: Sequence[str], judged: tuple[Verdict, str], who: str = ""
) -> tuple[Verdict, str]:
    """Return a verdict on times of these rows. There is none if other work disturbed a row, or may have.

    Args:
        who: text before "not known" where other work disturbed a row. The ratio is left out then.
    """
    reason, has_ratio = doubts(results, training, rows)
    words = judged[1] if has_ratio else f"{who}not known"
    return (CANNOT_TELL, f"{words}. {reason.removesuffix('.')}") if reason else judged


def unless_unsound(results: LocalResults, judged: tuple[Verdict, str]) -> tuple[Verdict, str]:
    """Return a verdict on the corrected runs. There is none if they are not the same training."""
    return unless_disturbed(results, CORRECTED, (), judged)


def doubts(results: LocalResults, training: str, rows: Sequence[str]) -> tuple[str, bool]:
    """Return why the times of these rows are not reliable, and whether a ratio of them is given.

    The reason is empty if nothing disturbed them.
    """
    if training == CORRECTED and results.unsound_reason:
        return results.unsound_reason, True
    reason = doubt(*(summary for row in rows if (summary := results.summary(training, row))))
    return (NO_FINDING, False) if reason == "disturbed" else (DOUBTS[reason], True)


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """Combine several verdicts: one refutes, all reproduce."""
    distinct = set(verdicts)
    if "not reproduced" in distinct:
        return "not reproduced"
    return "reproduced" if distinct == {"reproduced"} else CANNOT_TELL


def as_sentence(words: str) -> str:
    """Return words as a sentence."""
    return f"{words[:1].upper()}{words[1:]}."
