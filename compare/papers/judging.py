"""Verdicts on claims, from intervals alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from common.artifacts.schema import Metrics, RunResult
from compare.core import statistics, verdict_words
from compare.core.statistics import SIGNIFICANCE, VERDICT_PAIRS, JudgedRatio, Ratio
from compare.core.wording import count
from compare.judgement.summary import family, ratio_of_seconds
from compare.judgement.verdict_sentences import DISTURBED, NO_FINDING, doubt_warning
from compare.papers.here import Here
from compare.papers.plan import CORRECTED

Verdict = Literal["reproduced", "not reproduced", "contradicted by the paper's own table", "cannot be told here"]
CANNOT_TELL: Verdict = "cannot be told here"
CONTRADICTED: Verdict = "contradicted by the paper's own table"

Judgement = tuple[Verdict, list[str]]
"""The verdict, and the sentences that it rests on."""

EQUIVALENT = 0.01
"""Accuracy, 0..1. A smaller loss counts as none: one point."""

NO_RATIO = NO_FINDING.strip()
"""Said in place of a ratio of times that other work disturbed."""

SURELY = 10.0
"""A difference counts only if it is this many times that of two runs that differ by rounding alone."""


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
    """Holm-corrected among the differences that were tested with it."""
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
        said = f"{100 * self.mean:+z.1f} points of {self.split} accuracy ({100 * self.low:+z.1f} to {100 * self.high:+z.1f})"
        return f"{self.first} against {self.second}: {said} over {self.n} seeds (p {verdict_words.p_words(self.p)})"


def differences(
    here: Here, training: str, pairs: Sequence[tuple[str, str]], split: Literal["validation", "test"] = "test"
) -> dict[tuple[str, str], Difference]:
    """Seed-by-seed differences in accuracy, tested as one family. A pair without a common seed is left out.

    Args:
        pairs: ids of rows.
        split: to score after the last epoch.
    """
    found: dict[tuple[str, str], Difference] = {}
    report = here.trainings.get(training)
    guessing = 1.0 / len(report.stored.comparison.class_names) if report and report.stored.comparison.class_names else 0.0
    for first, second in pairs:
        one, other = (here.runs(training, row) for row in (first, second))
        scored = [(_scores(one[each], split), _scores(other[each], split)) for each in one if each in other]
        both = [(a, b) for a, b in scored if a is not None and b is not None]
        if not both:
            continue
        step = 1.0 / both[0][0].num_examples
        made = statistics.mean_difference([a.accuracy - b.accuracy for a, b in both], rounding=step)
        above_guessing = [
            statistics.mean_difference([each.accuracy - guessing for each in scores], rounding=step)
            for scores in zip(*both, strict=True)
        ]
        one_name, other_name = (summary.name if (summary := here.summary(training, row)) else row for row in (first, second))
        half = made.half_width if len(both) > 1 else float("inf")
        found[first, second] = Difference(
            one_name,
            other_name,
            made.mean,
            made.mean - half,
            made.mean + half,
            len(both),
            made.p,
            learned=any(each.mean > each.half_width for each in above_guessing),
            split=split,
        )
    tested = [pair for pair, each in found.items() if each.decided]
    corrected = statistics.holm([found[pair].p for pair in tested])
    return found | {pair: replace(found[pair], p=p) for pair, p in zip(tested, corrected, strict=True)}


def _scores(run: RunResult, split: str) -> Metrics | None:
    if split == "test":
        return run.test
    return run.epochs[-1].validation if run.epochs else None


def more_accurate(difference: Difference | None, points: float) -> tuple[Verdict, str]:
    """Whether the first of two is the more accurate one.

    Args:
        points: published lead, in hundredths, above 0. If the interval rules it out, the claim is not reproduced.
    """
    if difference is None or not (difference.decided and difference.learned):
        return CANNOT_TELL, _why_not(difference)
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


def loses(difference: Difference | None, points: float) -> tuple[Verdict, str]:
    """Whether the first of two is less accurate by so many points, under settings that a report does not state.

    A loss supports the claim. No loss says something about the settings chosen here, and nothing about the report's.

    Args:
        points: in hundredths, above 0.
    """
    if difference is None or not (difference.decided and difference.learned):
        return CANNOT_TELL, _why_not(difference)
    surely = difference.p < SIGNIFICANCE
    if not difference.low <= -points / 100 <= difference.high:
        loss = "a loss, but " if surely and difference.high < 0 else ""
        return CANNOT_TELL, f"{difference.words}: {loss}not the {points:g} that were published"
    if surely:
        return "reproduced", f"{difference.words}, which holds the {points:g} that were published"
    return CANNOT_TELL, f"{difference.words}, which holds a loss of {points:g}, and none as well"


def loses_none(difference: Difference | None) -> tuple[Verdict, str]:
    """Whether the first of two is at most a point less accurate."""
    if difference is None or not (difference.decided and difference.learned):
        return CANNOT_TELL, _why_not(difference)
    if difference.p < SIGNIFICANCE and difference.high < 0:
        small = f", though less than {100 * EQUIVALENT:g} point" if difference.low > -EQUIVALENT else ""
        return "not reproduced", f"{difference.words}: it loses{small}"
    if difference.low > -EQUIVALENT:
        return "reproduced", f"{difference.words}: a loss of {100 * EQUIVALENT:g} point or more is ruled out"
    return CANNOT_TELL, f"{difference.words}: neither a loss nor its absence is shown"


def pair(here: Here, framework: str) -> tuple[str, str]:
    """Ids of a framework's corrected rows: data parallel, and serial on as many cores."""
    rows = [row for row in here.plan.corrected.rows if row.contestant == framework]
    parallel = next(row for row in rows if row.spec.mode == "data_parallel")
    serial = next(row for row in rows if row.spec.mode == "serial" and row.spec.cores == parallel.spec.cores)
    return parallel.id, serial.id


def framework_times(here: Here, first: str, second: str) -> JudgedRatio | None:
    """Seconds of the second row over those of the first, judged in the family of its comparison. None if one is missing."""
    report = here.trainings.get(CORRECTED)
    found = family(report.stored, report.summaries).contestants if report else []
    return next((judged for one, other, judged in found if (one.id, other.id) == (first, second)), None)


def speedup(here: Here, training: str, row: str) -> JudgedRatio | None:
    """Speed-up of a mode over serial on the same cores, judged in the family of its comparison. None if one is missing."""
    report = here.trainings.get(training)
    return family(report.stored, report.summaries).modes.get(row) if report else None


def gains_more(first: Ratio, second: Ratio) -> Verdict:
    """Whether the first of two speed-ups, both with enough repeats, is surely the larger one, and a gain at all."""
    first_low, first_high, second_low, second_high = (end or 0.0 for end in (first.low, first.high, second.low, second.high))
    if first_low > max(second_high, 1.0):
        return "reproduced"
    return "not reproduced" if first_high < max(second_low, 1.0) else CANNOT_TELL


def above(judged: JudgedRatio | None, words: str) -> tuple[Verdict, str]:
    """Whether a ratio is above one.

    Args:
        words: names the ratio, e.g. `data_parallel x2 over serial`.
    """
    if judged is None:
        return CANNOT_TELL, f"{words}: one of the two was not run here, or was too short to be timed"
    said = f"{words}: {verdict_words.interval_words(judged.ratio)} times{verdict_words.p_value_text(judged)}"
    match judged.verdict:
        case "above":
            return "reproduced", said
        case "below":
            return "not reproduced", said
        case _:
            return CANNOT_TELL, f"{said}: {judged.verdict}"


def paired(here: Here, training: str, slow: str, fast: str) -> Ratio | None:
    """Epoch seconds of one row divided by those of another, over repeats. None if one is missing."""
    report = here.trainings.get(training)
    rows = {row.id: row for row in report.stored.comparison.rows} if report else {}
    if report is None or not {slow, fast} <= rows.keys():
        return None
    return ratio_of_seconds(report.stored, slow=rows[slow], fast=rows[fast])


def undisturbed(
    here: Here, training: str, rows: Sequence[str], judged: tuple[Verdict, str], who: str = ""
) -> tuple[Verdict, str]:
    """A verdict on times of these rows. There is none if other work disturbed a row, or may have.

    Args:
        who: what is said before "no finding" where other work disturbed a row. Its ratio is not said then.
    """
    said = doubt(here, training, rows)
    words = f"{who}no finding" if said == NO_RATIO else judged[1]
    return (CANNOT_TELL, f"{words}. {said.removesuffix('.')}") if said else judged


def sound(here: Here, judged: tuple[Verdict, str]) -> tuple[Verdict, str]:
    """A verdict on the corrected runs. There is none if they are not the same training."""
    return undisturbed(here, CORRECTED, (), judged)


def doubt(here: Here, training: str, rows: Sequence[str]) -> str:
    """Why the times of these rows are not reliable. Empty if nothing disturbed them."""
    if training == CORRECTED and (said := unsound(here)):
        return said
    said = doubt_warning(*(summary for row in rows if (summary := here.summary(training, row))))
    return NO_RATIO if said == DISTURBED else said.strip()


def unsound(here: Here) -> str:
    """Why the corrected runs show nothing. Empty if they are the same training, or were not run."""
    report = here.trainings.get(CORRECTED)
    if report is None:
        return ""
    proof = report.stored.comparison.proof
    if proof is not None and proof.verdict == "not proved":
        return "The proof that the corrected runs are the same training did not hold: see their page."
    return "" if report.findings.comparable else "The corrected runs were not the same training: see their page."


def budget(here: Here, training: str) -> str:
    """How much training the accuracies rest on."""
    report = here.trainings.get(training)
    if report is None:
        return "Nothing was trained."
    of, first = report.stored.comparison, report.stored.comparison.rows[0].spec
    return (
        f"After {count(first.epochs or 0, 'epoch')} of {count(of.train_examples, 'image')} of {first.data.image_size} px "
        f"({of.data_name}, {count(len(of.class_names), 'class', 'classes')}): of longer training, or other images, it says "
        "nothing."
    )


def _why_not(difference: Difference | None) -> str:
    if difference is None:
        return "one of the two was not run here"
    if not difference.decided:
        return f"{difference.words}; {difference.n} of the {VERDICT_PAIRS} seeds that a verdict needs"
    return f"{difference.words}; neither is surely better than guessing, so that there is no accuracy to lose"


def joined(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several verdicts: one refutes, all reproduce."""
    known = set(verdicts)
    if "not reproduced" in known:
        return "not reproduced"
    return "reproduced" if known == {"reproduced"} else CANNOT_TELL


def corrected_row(here: Here, run: str) -> str:
    """The corrected row that stands for a published run."""
    known = here.paper.runs[run]
    parallel, alone = pair(here, known.framework)
    return parallel if known.parallel else alone


def sentence(words: str) -> str:
    """Words as a sentence."""
    return f"{words[:1].upper()}{words[1:]}."
