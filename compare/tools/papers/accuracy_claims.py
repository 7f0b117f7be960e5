"""Claims on accuracy, judged over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from common.artifacts.schema import Metrics, RunResult
from compare.cli.wording import count
from compare.running import launch
from compare.statistics import statistics, verdict_words
from compare.statistics.statistics import SIGNIFICANCE, VERDICT_PAIRS
from compare.tools.papers.judging import CANNOT_TELL, Judgement, Verdict, as_sentence, combine, unless_unsound
from compare.tools.papers.local_results import LocalResults
from compare.tools.papers.plan import AS_IT_WAS, CORRECTED
from compare.tools.papers.schema import PublishedClaim

EQUIVALENT = 0.01
"""Largest loss of accuracy, 0..1, that counts as none: one point."""

Pair = tuple[str, str]
"""Ids of two rows that are compared."""


@dataclass(frozen=True)
class Difference:
    """Accuracy of one row minus that of another on one split, over seeds, with its 95 % t-interval."""

    first: str
    second: str
    mean: float
    low: float
    high: float
    n: int
    p: float
    """Holm-corrected p among the differences that were tested with it."""
    learned: bool = True
    """Whether at least one of the two rows is surely better than guessing."""
    split: str = "test"

    @property
    def decided(self) -> bool:
        return self.n >= VERDICT_PAIRS

    @property
    def is_shown(self) -> bool:
        return self.p < SIGNIFICANCE

    @property
    def words(self) -> str:
        if self.n < 2:
            return (
                f"{self.first} against {self.second}: {100 * self.mean:+z.1f} points of {self.split} accuracy, of a single seed"
            )
        size = f"{100 * self.mean:+z.1f} points of {self.split} accuracy ({100 * self.low:+z.1f} to {100 * self.high:+z.1f})"
        return f"{self.first} against {self.second}: {size} over {self.n} seeds (p {verdict_words.p_words(self.p)})"


def accuracy_differences(
    results: LocalResults, training: str, pairs: Sequence[Pair], split: Literal["validation", "test"] = "test"
) -> dict[Pair, Difference]:
    """Return seed-by-seed differences in accuracy, tested as one family. A pair without a common seed is left out.

    Args:
        pairs: ids of rows.
        split: split to score after the last epoch.
    """
    by_pair: dict[Pair, Difference] = {}
    report = results.trainings.get(training)
    guessing = 1.0 / len(report.stored.comparison.class_names) if report and report.stored.comparison.class_names else 0.0
    for first, second in pairs:
        first_runs, second_runs = (results.runs(training, row) for row in (first, second))
        scored = [
            (_scores(first_runs[repeat], split), _scores(second_runs[repeat], split))
            for repeat in first_runs
            if repeat in second_runs
        ]
        both = [(a, b) for a, b in scored if a is not None and b is not None]
        if not both:
            continue
        step = 1.0 / both[0][0].num_examples
        estimate = statistics.mean_difference([a.accuracy - b.accuracy for a, b in both], rounding=step)
        margins = [
            statistics.mean_difference([score.accuracy - guessing for score in scores], rounding=step)
            for scores in zip(*both, strict=True)
        ]
        one_name, other_name = (summary.name if (summary := results.summary(training, row)) else row for row in (first, second))
        half_width = estimate.half_width if len(both) > 1 else float("inf")
        by_pair[first, second] = Difference(
            one_name,
            other_name,
            estimate.mean,
            estimate.mean - half_width,
            estimate.mean + half_width,
            len(both),
            estimate.p,
            learned=any(margin.mean > margin.half_width for margin in margins),
            split=split,
        )
    tested = [pair for pair, difference in by_pair.items() if difference.decided]
    corrected = statistics.holm([by_pair[pair].p for pair in tested])
    return by_pair | {pair: replace(by_pair[pair], p=p) for pair, p in zip(tested, corrected, strict=True)}


def _scores(run: RunResult, split: str) -> Metrics | None:
    if split == "test":
        return run.test
    return run.epochs[-1].validation if run.epochs else None


class _AccuracyClaim(PublishedClaim):
    """A claim on accuracy. The differences of all such claims of a paper are tested as one family."""

    def published_pairs(self) -> list[Pair]:
        """Return the pairs of published runs that the claim compares."""
        return []

    def corrected_pairs(self, results: LocalResults) -> list[Pair]:
        """Return the pairs of corrected rows that the claim compares."""
        raise NotImplementedError

    def verdict_on(self, difference: Difference) -> tuple[Verdict, str]:
        """Judge a difference over enough seeds, where at least one row learned."""
        raise NotImplementedError

    def verdict(self, difference: Difference | None) -> tuple[Verdict, str]:
        """Judge a difference, if it can be judged."""
        if difference is None:
            return CANNOT_TELL, "one of the two was not run here"
        if not difference.decided:
            return CANNOT_TELL, f"{difference.words}; {difference.n} of the {VERDICT_PAIRS} seeds that a verdict needs"
        if not difference.learned:
            return (
                CANNOT_TELL,
                f"{difference.words}; neither is surely better than guessing, so that there is no accuracy to lose",
            )
        return self.verdict_on(difference)


def _published_differences(results: LocalResults) -> dict[Pair, Difference]:
    """Return the differences between published runs that the paper's claims need."""
    pairs = [pair for claim in _accuracy_claims(results) for pair in claim.published_pairs()]
    return accuracy_differences(results, AS_IT_WAS, pairs, "validation")


def _corrected_differences(results: LocalResults) -> dict[Pair, Difference]:
    """Return the differences between corrected rows that the paper's claims need."""
    pairs = [pair for claim in _accuracy_claims(results) for pair in claim.corrected_pairs(results)]
    return accuracy_differences(results, CORRECTED, list(dict.fromkeys(pairs)))


def _accuracy_claims(results: LocalResults) -> list[_AccuracyClaim]:
    return [claim for claim in results.paper.claims.values() if isinstance(claim, _AccuracyClaim)]


class NoAccuracyLoss(_AccuracyClaim):
    """Claim: replicas are no less accurate than serial, corrected, in every framework."""

    kind: Literal["no_accuracy_loss"]

    def corrected_pairs(self, results: LocalResults) -> list[Pair]:
        return [results.corrected_pair(framework) for framework in launch.FRAMEWORKS]

    def verdict_on(self, difference: Difference) -> tuple[Verdict, str]:
        """Judge whether the first of two is at most a point less accurate."""
        if difference.is_shown and difference.high < 0:
            small = f", though less than {100 * EQUIVALENT:g} point" if difference.low > -EQUIVALENT else ""
            return "not reproduced", f"{difference.words}: it loses{small}"
        if difference.low > -EQUIVALENT:
            return "reproduced", f"{difference.words}: a loss of {100 * EQUIVALENT:g} point or more is ruled out"
        return CANNOT_TELL, f"{difference.words}: neither a loss nor its absence is shown"

    def judge(self, results: LocalResults) -> Judgement:
        differences = _corrected_differences(results)
        pairs = self.corrected_pairs(results)
        judgements = [unless_unsound(results, self.verdict(differences.get(pair))) for pair in pairs]
        evidence = [*(as_sentence(words) for _, words in judgements), _training_sentence(results, CORRECTED)]
        return combine([verdict for verdict, _ in judgements]), evidence


class _RunsDiffer(_AccuracyClaim):
    run: str
    than: str
    points: float
    """Published lead or loss, in points."""

    def published_pairs(self) -> list[Pair]:
        return [(self.run, self.than)]

    def corrected_pairs(self, results: LocalResults) -> list[Pair]:
        return [(results.corrected_row(self.run), results.corrected_row(self.than))]

    def differences(self, results: LocalResults) -> tuple[Difference | None, Difference | None]:
        """Return the difference of the published runs, and that of the corrected ones."""
        (published,), (corrected,) = self.published_pairs(), self.corrected_pairs(results)
        return _published_differences(results).get(published), _corrected_differences(results).get(corrected)


class AccuracyLoss(_RunsDiffer):
    """Claim: a run is less accurate than another by so many points, as it was.

    A loss supports the claim. No loss says something about the settings chosen here, and nothing about the report's, which
    it does not state.
    """

    kind: Literal["accuracy_loss"]

    def verdict_on(self, difference: Difference) -> tuple[Verdict, str]:
        """Judge whether the first of two is less accurate by `points`."""
        if not difference.low <= -self.points / 100 <= difference.high:
            loss = "a loss, but " if difference.is_shown and difference.high < 0 else ""
            return CANNOT_TELL, f"{difference.words}: {loss}not the {self.points:g} that were published"
        if difference.is_shown:
            return "reproduced", f"{difference.words}, which includes the {self.points:g} that were published"
        return CANNOT_TELL, f"{difference.words}, which leaves both possible: a loss of {self.points:g}, and none"

    def judge(self, results: LocalResults) -> Judgement:
        published, corrected = self.differences(results)
        verdict, words = self.verdict(published)
        evidence = [as_sentence(f"As it was: {words}"), _training_sentence(results, AS_IT_WAS)]
        if corrected and not results.unsound_reason:
            evidence.append(as_sentence(f"Corrected: {corrected.words}"))
        return verdict, evidence


class MoreAccurate(_RunsDiffer):
    """Claim: a run is more accurate than another, as it was and corrected."""

    kind: Literal["more_accurate"]

    def verdict_on(self, difference: Difference) -> tuple[Verdict, str]:
        """Judge whether the first of two is the more accurate one. It is not if the interval rules out the published lead."""
        if difference.is_shown and difference.low > 0:
            return "reproduced", difference.words
        if difference.is_shown and difference.high < 0:
            return "not reproduced", f"{difference.words}: it is the less accurate one"
        if difference.high < self.points / 100:
            return (
                "not reproduced",
                f"{difference.words}: no lead shown, and one of the {self.points:.2g} that were published is ruled out",
            )
        return CANNOT_TELL, f"{difference.words}: no difference shown"

    def judge(self, results: LocalResults) -> Judgement:
        published, corrected = self.differences(results)
        verdict, words = unless_unsound(results, self.verdict(corrected))
        published_verdict, published_words = self.verdict(published)
        evidence = [
            as_sentence(f"As it was: {published_words}"),
            _training_sentence(results, AS_IT_WAS),
            as_sentence(f"Corrected: {words}"),
            _training_sentence(results, CORRECTED),
        ]
        report = results.trainings.get(CORRECTED)
        proof = report.stored.comparison.proof if report else None
        if proof and proof.verdict == "proved":
            evidence.append("The proof says that both are the same training. Only rounding is left to tell them apart.")
        return verdict if verdict == published_verdict else CANNOT_TELL, evidence


def _training_sentence(results: LocalResults, training: str) -> str:
    """Say how much training the accuracies rest on."""
    report = results.trainings.get(training)
    if report is None:
        return "Nothing was trained."
    comparison, first = report.stored.comparison, report.stored.comparison.rows[0].spec
    return (
        f"After {count(first.epochs or 0, 'epoch')} of {count(comparison.train_examples, 'image')} of "
        f"{first.data.image_size} px ({comparison.data_name}, {count(len(comparison.class_names), 'class', 'classes')}): of "
        "longer training, or other images, it says nothing."
    )
