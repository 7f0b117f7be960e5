"""Claims on accuracy, judged over seeds."""

from __future__ import annotations

from compare.running import launch
from compare.tools.papers import judging, schema
from compare.tools.papers.judging import CANNOT_TELL, Difference, Judgement
from compare.tools.papers.local_results import LocalResults
from compare.tools.papers.plan import AS_IT_WAS, CORRECTED


def _differences(results: LocalResults, *, corrected: bool) -> dict[tuple[str, str], Difference]:
    """Return the differences in accuracy that the claims need, tested as one family; by published runs or frameworks' rows."""
    runs: list[tuple[str, str]] = []
    rows: list[tuple[str, str]] = []
    for claim in results.paper.claims.values():
        if isinstance(claim, schema.AccuracyDifference):
            runs.append((claim.run, claim.than))
            rows.append(_rows(results, claim))
        elif isinstance(claim, schema.NoAccuracyLoss):
            rows += [judging.corrected_pair(results, framework) for framework in launch.FRAMEWORKS]
    if corrected:
        return judging.accuracy_differences(results, CORRECTED, list(dict.fromkeys(rows)))
    return judging.accuracy_differences(results, AS_IT_WAS, runs, "validation")


def _rows(results: LocalResults, claim: schema.AccuracyDifference) -> tuple[str, str]:
    return judging.corrected_row(results, claim.run), judging.corrected_row(results, claim.than)


def _both_differences(results: LocalResults, claim: schema.AccuracyDifference) -> tuple[Difference | None, Difference | None]:
    """Return the difference of the published runs, and that of the corrected ones."""
    published, corrected_difference = (_differences(results, corrected=corrected) for corrected in (False, True))
    return published.get((claim.run, claim.than)), corrected_difference.get(_rows(results, claim))


def no_accuracy_loss(results: LocalResults, claim: schema.NoAccuracyLoss) -> Judgement:
    differences = _differences(results, corrected=True)
    pairs = [judging.corrected_pair(results, framework) for framework in launch.FRAMEWORKS]
    judgements = [judging.unless_unsound(results, judging.judge_no_loss(differences.get(pair))) for pair in pairs]
    evidence = [*(judging.as_sentence(words) for _, words in judgements), judging.training_sentence(results, CORRECTED)]
    return judging.combine([verdict for verdict, _ in judgements]), evidence


def accuracy_loss(results: LocalResults, claim: schema.AccuracyDifference) -> Judgement:
    published, corrected_difference = _both_differences(results, claim)
    verdict, words = judging.judge_loss(published, claim.points)
    corrected = (
        [judging.as_sentence(f"Corrected: {corrected_difference.words}")]
        if corrected_difference and not judging.unsound_reason(results)
        else []
    )
    return verdict, [judging.as_sentence(f"As it was: {words}"), judging.training_sentence(results, AS_IT_WAS), *corrected]


def more_accurate(results: LocalResults, claim: schema.AccuracyDifference) -> Judgement:
    published, corrected_difference = _both_differences(results, claim)
    verdict, words = judging.unless_unsound(results, judging.judge_more_accurate(corrected_difference, claim.points))
    published_verdict, published_words = judging.judge_more_accurate(published, claim.points)
    evidence = [
        judging.as_sentence(f"As it was: {published_words}"),
        judging.training_sentence(results, AS_IT_WAS),
        judging.as_sentence(f"Corrected: {words}"),
        judging.training_sentence(results, CORRECTED),
    ]
    report = results.trainings.get(CORRECTED)
    proof = report.stored.comparison.proof if report else None
    if proof and proof.verdict == "proved":
        evidence.append("The proof says that both are the same training. Only rounding is left to tell them apart.")
    return verdict if verdict == published_verdict else CANNOT_TELL, evidence
