"""Claims on accuracy, judged over seeds."""

from __future__ import annotations

from compare.execution import launch
from compare.papers import judging, schema
from compare.papers.here import Here
from compare.papers.judging import CANNOT_TELL, Difference, Judgement
from compare.papers.plan import AS_IT_WAS, CORRECTED


def _differences(here: Here, *, corrected: bool) -> dict[tuple[str, str], Difference]:
    """All differences in accuracy that the paper's claims need, tested as one family; by published runs or frameworks' rows."""
    runs: list[tuple[str, str]] = []
    rows: list[tuple[str, str]] = []
    for claim in here.paper.claims.values():
        if isinstance(claim, schema.AccuracyDifference):
            runs.append((claim.run, claim.than))
            rows.append(_rows(here, claim))
        elif isinstance(claim, schema.NoAccuracyLoss):
            rows += [judging.pair(here, framework) for framework in launch.FRAMEWORKS]
    if corrected:
        return judging.differences(here, CORRECTED, list(dict.fromkeys(rows)))
    return judging.differences(here, AS_IT_WAS, runs, "validation")


def _rows(here: Here, claim: schema.AccuracyDifference) -> tuple[str, str]:
    return judging.corrected_row(here, claim.run), judging.corrected_row(here, claim.than)


def _both(here: Here, claim: schema.AccuracyDifference) -> tuple[Difference | None, Difference | None]:
    """As it was, and corrected."""
    native, alike = (_differences(here, corrected=corrected) for corrected in (False, True))
    return native.get((claim.run, claim.than)), alike.get(_rows(here, claim))


def no_accuracy_loss(here: Here, claim: schema.NoAccuracyLoss) -> Judgement:
    differences = _differences(here, corrected=True)
    pairs = [judging.pair(here, framework) for framework in launch.FRAMEWORKS]
    judged = [judging.sound(here, judging.loses_none(differences.get(pair))) for pair in pairs]
    evidence = [*(judging.sentence(words) for _, words in judged), judging.budget(here, CORRECTED)]
    return judging.joined([verdict for verdict, _ in judged]), evidence


def accuracy_loss(here: Here, claim: schema.AccuracyDifference) -> Judgement:
    native, alike = _both(here, claim)
    verdict, words = judging.loses(native, claim.points)
    corrected = [judging.sentence(f"Corrected: {alike.words}")] if alike and not judging.unsound(here) else []
    return verdict, [judging.sentence(f"As it was: {words}"), judging.budget(here, AS_IT_WAS), *corrected]


def more_accurate(here: Here, claim: schema.AccuracyDifference) -> Judgement:
    native, alike = _both(here, claim)
    verdict, words = judging.sound(here, judging.more_accurate(alike, claim.points))
    was, said_then = judging.more_accurate(native, claim.points)
    evidence = [
        judging.sentence(f"As it was: {said_then}"),
        judging.budget(here, AS_IT_WAS),
        judging.sentence(f"Corrected: {words}"),
        judging.budget(here, CORRECTED),
    ]
    report = here.trainings.get(CORRECTED)
    proof = report.stored.comparison.proof if report else None
    if proof and proof.verdict == "proved":
        evidence.append("The proof says that both are the same training. Only rounding is left to tell them apart.")
    return verdict if verdict == was else CANNOT_TELL, evidence
