"""The sentences beside the tables of a comparison. They say what its figures mean."""

from __future__ import annotations

from collections.abc import Sequence

from common.frozen import Frozen
from compare.core import verdict_words, wording
from compare.core.statistics import JudgedRatio
from compare.execution.matrix import Row
from compare.execution.store import StoredComparison
from compare.judgement import cautions, conditions, decision, environments, inexact_modes, sameness, verdict_sentences
from compare.judgement.row_figures import GUESSING, Summary
from compare.judgement.summary import Family, compared_row_ids, family

MIN_INPUT_WAIT = 0.1
"""Fraction of the training time spent waiting for input, below which the model alone bounds a run."""


class ComparisonFindings(Frozen):
    """Sentences by subject. Each list may be empty."""

    sameness: list[str]
    """The proof, and what the timed runs themselves show."""
    comparable: bool
    """Whether the timed runs had the same data, weights and order, and the same first step up to rounding."""
    divisions: list[str]
    """Why nothing is trained, then divisions that disagree, then the division of each pair of rows."""
    contestants: list[str]
    """Which framework is faster, for each configuration that both ran."""
    modes: list[str]
    """Which parallel modes pay."""
    verdicts: list[JudgedRatio]
    """Every comparison that was judged. `contestants` and `modes` say these in sentences."""
    surety: list[str]
    """How sure the verdicts are, and how many there are."""
    scores: list[str]
    """Accuracy over seeds, and the time to the target accuracy."""
    inexact_modes: list[str]
    """Modes whose mathematics differ from serial's by design, and their accuracy."""
    bounds: list[str]
    """Runs that wait for their input, each with the part of its training that it waits."""
    environments: list[str] = []
    """In what the environments of two contestants differ."""
    troubles: list[str]
    """Runs that failed or are missing, exceeded their budget or did not get it."""


def findings(stored: StoredComparison, summaries: Sequence[Summary]) -> ComparisonFindings:
    comparable = sameness.is_comparable(stored, summaries)
    judged_family = family(stored, summaries) if comparable else Family([], {})
    disturbed = {summary.id for summary in summaries if summary.disturbed}
    verdicts = [
        judged.model_copy(update={"disturbed": not disturbed.isdisjoint(compared_row_ids(stored.comparison, judged))})
        for judged in judged_family.judged
    ]
    words = None if all(verdict.disturbed for verdict in verdicts) else verdict_words.family_words(judged_family.judged)
    surety = (decision.sentence(stored, judged_family.judged), words)
    return ComparisonFindings(
        sameness=sameness.sentences(stored, summaries),
        comparable=comparable,
        divisions=cautions.nothing_can_run(stored.comparison) + _divisions(stored, summaries, judged_family),
        contestants=verdict_sentences.contestant_sentences(stored, judged_family),
        modes=verdict_sentences.mode_sentences(stored, summaries, judged_family),
        verdicts=verdicts,
        surety=[sentence for sentence in surety if sentence],
        scores=[sentence for summary in summaries for sentence in _scores(summary)],
        inexact_modes=inexact_modes.sentences(stored, summaries),
        bounds=[sentence for summary in summaries if (sentence := _input_bound(summary))],
        environments=environments.sentences(
            environments.relevant_environments(stored.comparison.environments, stored.comparison.machine)
        ),
        troubles=cautions.sentences(stored, summaries),
    )


def _divisions(stored: StoredComparison, summaries: Sequence[Summary], judged_family: Family) -> list[str]:
    names = {summary.id: summary.configuration for summary in summaries if summary.repeats_done}
    return [
        *conditions.disagreements(conditions.faster_frameworks(stored, undisturbed_pairs(stored, judged_family))),
        *conditions.division_sentences(stored, names),
    ]


def undisturbed_pairs(stored: StoredComparison, judged_family: Family) -> list[tuple[Row, Row, JudgedRatio]]:
    """The rows of two frameworks that were judged. Rows that other work disturbed are left out."""
    rows = {row.id: row for row in stored.comparison.rows}
    return [
        (rows[first.id], rows[second.id], judged)
        for first, second, judged in judged_family.contestants
        if not (first.disturbed or second.disturbed)
    ]


def _scores(summary: Summary) -> list[str]:
    sentences: list[str] = []
    over_seeds = summary.test_accuracy_over_seeds
    if over_seeds is not None:
        quartiles = f"(quartiles {over_seeds.low:.4f} to {over_seeds.high:.4f}){f', {GUESSING}' if summary.guesses else ''}"
        sentences.append(f"{summary.name}: test accuracy {over_seeds.median:.4f} over {over_seeds.n} seeds {quartiles}.")
    target, pace = summary.target, summary.epoch_seconds
    if target is not None and target.repeats:
        repeats = f"{target.reached} of {target.repeats} repeats"
        text = f"validation accuracy {target.accuracy:g} was not reached in {wording.count(summary.epochs_done, 'epoch')}"
        if target.reached:
            text = f"validation accuracy {target.accuracy:g} was reached in {repeats}, which leaves no median"
        if target.seconds is not None and target.epochs is not None:
            seconds, epochs = target.seconds, target.epochs
            spread = f" ({seconds.low:.2f} to {seconds.high:.2f})" if seconds.n > 1 else ""
            after = wording.count(epochs.median, "epoch")
            text = f"validation accuracy {target.accuracy:g} after {seconds.median:.2f} s{spread} and {after}"
            text += f", in {repeats}" if target.repeats > 1 else ""
        sentences.append(f"{summary.name}: {text}; {pace.median:.2f} s per epoch." if pace else f"{summary.name}: {text}.")
    return sentences


def _input_bound(summary: Summary) -> str | None:
    wait = summary.input_wait
    if summary.part != "training" or wait is None or wait < MIN_INPUT_WAIT:
        return None
    conclusion = "the input bounds it" if wait > 0.5 else "both count"
    waits = f"waits {wording.percent(wait)} of its training time for its input"
    return f"{summary.name}: {waits}: {conclusion}.{verdict_sentences.doubt_warning(summary)}"
