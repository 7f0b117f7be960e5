"""Verdicts on claims, from intervals alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from common.artifacts.schema import Metrics, RunResult
from compare.cli.wording import count
from compare.judgement.row_figures import Summary
from compare.judgement.run_pairs import ratio_of_seconds
from compare.judgement.statement_words import DOUBTS, NO_FINDING
from compare.judgement.summary import family
from compare.judgement.verdict_statements import doubt
from compare.statistics import statistics, verdict_words
from compare.statistics.statistics import SIGNIFICANCE, VERDICT_PAIRS, JudgedRatio, Ratio
from compare.tools.papers.local_results import LocalResults
from compare.tools.papers.plan import CORRECTED

Verdict = Literal["reproduced", "not reproduced", "contradicted by the paper's own table", "cannot be told here"]
CANNOT_TELL: Verdict = "cannot be told here"
CONTRADICTED: Verdict = "contradicted by the paper's own table"

Judgement = tuple[Verdict, list[str]]
"""Verdict, and the sentences that it rests on."""

EQUIVALENT = 0.01
"""Largest loss of accuracy, 0..1, that counts as none: one point."""

"""Text in place of a ratio of times that other work disturbed."""

SURELY = 10.0
"""Smallest ratio of a difference that counts to that of two runs that differ by rounding alone."""


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
    def words(self) -> str:
        if self.n < 2:
            return (
                f"{self.first} against {self.second}: {100 * self.mean:+z.1f} points of {self.split} accuracy, of a single seed"
            )
        size = f"{100 * self.mean:+z.1f} points of {self.split} accuracy ({100 * self.low:+z.1f} to {100 * self.high:+z.1f})"
        return f"{self.first} against {self.second}: {size} over {self.n} seeds (p {verdict_words.p_words(self.p)})"


def accuracy_differences(
    results: LocalResults, training: str, pairs: Sequence[tuple[str, str]], split: Literal["validation", "test"] = "test"
) -> dict[tuple[str, str], Difference]:
    """Return seed-by-seed differences in accuracy, tested as one family. A pair without a common seed is left out.

    Args:
        pairs: ids of rows.
        split: split to score after the last epoch.
    """
    by_pair: dict[tuple[str, str], Difference] = {}
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


def judge_more_accurate(difference: Difference | None, points: float) -> tuple[Verdict, str]:
    """Judge whether the first of two is the more accurate one.

    Args:
        points: published lead, in hundredths, above 0. If the interval rules it out, the claim is not reproduced.
    """
    if difference is None or not (difference.decided and difference.learned):
        return CANNOT_TELL, _undecided_reason(difference)
    if difference.p < SIGNIFICANCE and difference.low > 0:
        return "reproduced", difference.words
    if difference.p < SIGNIFICANCE and difference.high < 0:
        return "not reproduced", f"{difference.words}: it is the less accurate one"
    if difference.high < points / 100:
        return (
            "not reproduced",
            f"{difference.words}: no lead shown, and one of the {points:.2g} that were published is ruled out",
        )
    return CANNOT_TELL, f"{difference.words}: no difference shown"


def judge_loss(difference: Difference | None, points: float) -> tuple[Verdict, str]:
    """Judge whether the first of two is less accurate by `points`, under settings that a report does not state.

    A loss supports the claim. No loss says something about the settings chosen here, and nothing about the report's.

    Args:
        points: published loss, in hundredths, above 0.
    """
    if difference is None or not (difference.decided and difference.learned):
        return CANNOT_TELL, _undecided_reason(difference)
    surely = difference.p < SIGNIFICANCE
    if not difference.low <= -points / 100 <= difference.high:
        loss = "a loss, but " if surely and difference.high < 0 else ""
        return CANNOT_TELL, f"{difference.words}: {loss}not the {points:g} that were published"
    if surely:
        return "reproduced", f"{difference.words}, which holds the {points:g} that were published"
    return CANNOT_TELL, f"{difference.words}, which holds a loss of {points:g}, and none as well"


def judge_no_loss(difference: Difference | None) -> tuple[Verdict, str]:
    """Judge whether the first of two is at most a point less accurate."""
    if difference is None or not (difference.decided and difference.learned):
        return CANNOT_TELL, _undecided_reason(difference)
    if difference.p < SIGNIFICANCE and difference.high < 0:
        small = f", though less than {100 * EQUIVALENT:g} point" if difference.low > -EQUIVALENT else ""
        return "not reproduced", f"{difference.words}: it loses{small}"
    if difference.low > -EQUIVALENT:
        return "reproduced", f"{difference.words}: a loss of {100 * EQUIVALENT:g} point or more is ruled out"
    return CANNOT_TELL, f"{difference.words}: neither a loss nor its absence is shown"


def corrected_pair(results: LocalResults, framework: str) -> tuple[str, str]:
    """Return the ids of a framework's corrected rows: data parallel, and serial on as many cores."""
    rows = [row for row in results.plan.corrected.rows if row.contestant == framework]
    parallel = next(row for row in rows if row.spec.is_parallel)
    serial = next(row for row in rows if not row.spec.is_parallel and row.spec.cores == parallel.spec.cores)
    return parallel.id, serial.id


def framework_times(results: LocalResults, first: str, second: str) -> JudgedRatio | None:
    """Return the second row's seconds over the first's, judged in the family of its comparison. None if one is missing."""
    report = results.trainings.get(CORRECTED)
    contestant_ratios = family(report.stored, report.summaries).contestants if report else []
    return next(
        (judged for first_row, second_row, judged in contestant_ratios if (first_row.id, second_row.id) == (first, second)),
        None,
    )


def speedup(results: LocalResults, training: str, row: str) -> JudgedRatio | None:
    """Return a mode's speed-up over serial on the same cores, judged in the family of its comparison. None if not run."""
    report = results.trainings.get(training)
    return family(report.stored, report.summaries).modes.get(row) if report else None


def judge_larger_gain(first: Ratio, second: Ratio) -> Verdict:
    """Judge whether the first of two speed-ups, both with enough repeats, is surely the larger one, and a gain at all."""
    first_low, first_high, second_low, second_high = (end or 0.0 for end in (first.low, first.high, second.low, second.high))
    if first_low > max(second_high, 1.0):
        return "reproduced"
    return "not reproduced" if first_high < max(second_low, 1.0) else CANNOT_TELL


def judge_above_one(judged: JudgedRatio | None, words: str) -> tuple[Verdict, str]:
    """Judge whether a ratio is above one.

    Args:
        words: names the ratio, e.g. `data_parallel x2 over serial`.
    """
    if judged is None:
        return CANNOT_TELL, f"{words}: one of the two was not run here, or was too short to be timed"
    text = f"{words}: {verdict_words.interval_words(judged.ratio)} times{verdict_words.p_value_text(judged)}"
    match judged.verdict:
        case "above":
            return "reproduced", text
        case "below":
            return "not reproduced", text
        case _:
            return CANNOT_TELL, f"{text}: {judged.verdict}"


def seconds_ratio(results: LocalResults, training: str, slow: str, fast: str) -> Ratio | None:
    """Return the epoch seconds of one row divided by those of another, over repeats. None if one is missing."""
    report = results.trainings.get(training)
    rows = {row.id: row for row in report.stored.comparison.rows} if report else {}
    if report is None or not {slow, fast} <= rows.keys():
        return None
    return ratio_of_seconds(report.stored, slow=rows[slow], fast=rows[fast])


def unless_disturbed(
    results: LocalResults, training: str, rows: Sequence[str], judged: tuple[Verdict, str], who: str = ""
) -> tuple[Verdict, str]:
    """Return a verdict on times of these rows. There is none if other work disturbed a row, or may have.

    Args:
        who: text before "no finding" where other work disturbed a row. The ratio is left out then.
    """
    reason = doubt_reason(results, training, rows)
    words = f"{who}no finding" if is_without_ratio(results, training, rows) else judged[1]
    return (CANNOT_TELL, f"{words}. {reason.removesuffix('.')}") if reason else judged


def unless_unsound(results: LocalResults, judged: tuple[Verdict, str]) -> tuple[Verdict, str]:
    """Return a verdict on the corrected runs. There is none if they are not the same training."""
    return unless_disturbed(results, CORRECTED, (), judged)


def doubt_reason(results: LocalResults, training: str, rows: Sequence[str]) -> str:
    """Say why the times of these rows are not reliable. Empty if nothing disturbed them."""
    if training == CORRECTED and (reason := unsound_reason(results)):
        return reason
    if is_without_ratio(results, training, rows):
        return NO_FINDING
    return DOUBTS[doubt(*_summaries(results, training, rows))]


def is_without_ratio(results: LocalResults, training: str, rows: Sequence[str]) -> bool:
    """Whether other work disturbed one of these rows, so that no ratio is given. Unsound runs show nothing anyway."""
    is_sound = training != CORRECTED or not unsound_reason(results)
    return is_sound and doubt(*_summaries(results, training, rows)) == "disturbed"


def _summaries(results: LocalResults, training: str, rows: Sequence[str]) -> list[Summary]:
    return [summary for row in rows if (summary := results.summary(training, row))]


def unsound_reason(results: LocalResults) -> str:
    """Say why the corrected runs show nothing. Empty if they are the same training, or were not run."""
    report = results.trainings.get(CORRECTED)
    if report is None:
        return ""
    proof = report.stored.comparison.proof
    if proof is not None and proof.verdict == "not proved":
        return "The proof that the corrected runs are the same training did not hold: see their page."
    return "" if report.findings.comparable else "The corrected runs were not the same training: see their page."


def training_sentence(results: LocalResults, training: str) -> str:
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


def _undecided_reason(difference: Difference | None) -> str:
    if difference is None:
        return "one of the two was not run here"
    if not difference.decided:
        return f"{difference.words}; {difference.n} of the {VERDICT_PAIRS} seeds that a verdict needs"
    return f"{difference.words}; neither is surely better than guessing, so that there is no accuracy to lose"


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """Combine several verdicts: one refutes, all reproduce."""
    distinct = set(verdicts)
    if "not reproduced" in distinct:
        return "not reproduced"
    return "reproduced" if distinct == {"reproduced"} else CANNOT_TELL


def corrected_row(results: LocalResults, run: str) -> str:
    """Return the corrected row that stands for a published run."""
    published = results.paper.runs[run]
    parallel, alone = corrected_pair(results, published.framework)
    return parallel if published.parallel else alone


def as_sentence(words: str) -> str:
    """Return words as a sentence."""
    return f"{words[:1].upper()}{words[1:]}."
