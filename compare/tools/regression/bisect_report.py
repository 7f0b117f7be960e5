"""The report of a bisection: verdict, tests and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from common.artifacts.schema import Environment
from common.machine.machine import processors
from compare.cli.terminal import FULL
from compare.cli.wording import count, percent
from compare.judgement import environments, statement_words
from compare.reporting import comparison_tables
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Cell, Column, Table
from compare.statistics import verdict_words
from compare.statistics.statistics import SIGNIFICANCE, VERDICT_PAIRS
from compare.tools.regression import bisection
from compare.tools.regression.bisection import BisectionOutcome, BisectionTest, NamedCandidate
from compare.tools.regression.candidates import BisectionQuery, Candidates
from compare.tools.regression.records import EXIT_OK, EXIT_UNDECIDED, heading
from compare.tools.regression.regress_screen import MeasuredBy

_TRIALS = (
    Column("what", "what is tested"),
    Column("later", "revision or environment", fold=40),
    Column("earlier", "beside", fold=40),
    Column("verdict", "verdict"),
    Column("ratio", "times", 3, interval=True),
    Column("border", "border", 3),
    Column("n", "pairs"),
    Column("left_out", "left out"),
    Column("level", "level", 4, wide=True),
)
_ON_SCREEN = ("what", "later", "verdict", "ratio", "n")
_SKIPPED = (Column("candidate", "revision or environment", fold=40), Column("reason", "reason", fold=80))


def report(outcome: BisectionOutcome, candidates: Candidates[Any], query: BisectionQuery, measured_by: MeasuredBy) -> Report:
    """The report of a search. Its title is the verdict.

    Args:
        measured_by: the command that searched, with the most pairs of a test.
    """
    titles, facts = [candidate.title for candidate in candidates.items], candidates.machine
    title, sentences = _sentences(outcome, titles, heading(query.metric), query.threshold)
    rows: list[dict[str, Cell]] = [
        {
            "what": trial.what,
            "later": titles[trial.later],
            "earlier": titles[trial.earlier],
            "verdict": trial.verdict,
            "ratio": trial.ratio,
            "border": trial.border if trial.ratio else None,
            "n": trial.ratio.n if trial.ratio else 0,
            "left_out": max(trial.pairs - (trial.ratio.n if trial.ratio else 0), 0),
            "level": trial.level,
        }
        for trial in outcome.trials
    ]
    skipped: list[dict[str, Cell]] = [
        {"candidate": titles[place], "reason": reason} for place, reason in sorted(outcome.skipped.items())
    ]
    tables = [Table("trials", "Tests, in order", _TRIALS, rows)]
    end_environments: dict[str, Environment] = {}
    if len(candidates.environments) == len(titles):
        end_environments = {titles[place]: candidates.environments[place] for place in (outcome.last_good, outcome.first_bad)}
    end_environments = environments.relevant_environments(end_environments, facts)
    tables += comparison_tables.environment_table(environments.differences(end_environments))
    sentences.insert(1, (comparison_tables.ENVIRONMENTS, statement_words.sentences(environments.statements(end_environments))))
    tables += [Table("skipped", "What could not be measured", _SKIPPED, skipped)] if skipped else []
    suspects = [candidates.items[place].identity for place in outcome.suspects]
    answer = bisection.BisectionReport(
        search=outcome,
        candidates=[NamedCandidate(identity=candidate.identity, title=candidate.title) for candidate in candidates.items],
        first_bad=suspects[0] if outcome.outcome == "found" else None,
        suspects=suspects,
        metric=query.metric,
        environments=statement_words.sentences(environments.statements(end_environments)),
    )
    code = EXIT_OK if outcome.outcome == "found" else EXIT_UNDECIDED
    ends = f"{count(len(titles) - 1, 'candidate')} after {titles[0]}, up to {titles[-1]}"
    return Report(
        title=title,
        headline="bold",
        name="bisect",
        json_file="bisect.json",
        overline="Which change made it slower?",
        facts=[
            f"{candidates.subject}, {heading(query.metric)}",
            ends,
            f"Machine: {processors(facts)}, {facts.get('logical_cores') or '?'} logical cores",
        ],
        marks=[
            Mark("First bad", "found" if outcome.outcome == "found" else outcome.outcome, _TONES.get(outcome.outcome, "warn"))
        ],
        findings=[section for section in sentences if section[1]],
        tables=tables,
        values={"headline": title, **answer.model_dump(mode="json")},
        exit_code=code,
        screen=Screen(
            subject=[f"Which change made {heading(query.metric)} of {candidates.subject} larger?", ends],
            answers=_answers(outcome, title, dict(sentences), code),
            table=replace(tables[0], columns=tuple(column for column in _TRIALS if column.key in _ON_SCREEN)),
            next=_next(outcome, None if query.environments else candidates.items[outcome.first_bad].identity, measured_by),
        ),
    )


_TONES = {"found": "good", "undecided": "bad"}
_FOUND, _DOUBTS = "What was found", "Runs whose times do not count"


def _answers(outcome: BisectionOutcome, title: str, by_heading: Mapping[str, Sequence[str]], code: int) -> list[Paragraph]:
    """The verdict, how sure it is, and what could not be measured."""
    tests = f"{count(len(outcome.trials), 'test')} in pairs. At most one search in 20 names a wrong change."
    trouble = [*by_heading.get(_DOUBTS, ())]
    if outcome.skipped:
        trouble.append(f"{count(len(outcome.skipped), 'candidate')} could not be measured: {FULL} says why.")
    answers = [
        Paragraph("Verdict", [f"{title} Exit code {code}.", *by_heading[_FOUND]], _TONES.get(outcome.outcome, "warn")),
        Paragraph("How sure", [tests]),
        Paragraph("Differs", by_heading[comparison_tables.ENVIRONMENTS]),
        Paragraph("Trouble", trouble, "bad"),
    ]
    return [paragraph for paragraph in answers if paragraph.sentences]


def _next(outcome: BisectionOutcome, commit: str | None, measured_by: MeasuredBy) -> list[tuple[str, str]]:
    """Name the command that shows the change, or a command that may decide."""
    if outcome.outcome == "found":
        return [("the change", f"git show {commit[:8]}")] if commit else []
    if outcome.outcome != "undecided":
        return []
    if outcome.trials[-1].disturbed:
        return [("go on when the machine is idle", measured_by.again())]
    return [("go on with more pairs", measured_by.again("--most-repeats", str(2 * measured_by.repeats)))]


def _sentences(
    outcome: BisectionOutcome, titles: list[str], figure: str, threshold: float
) -> tuple[str, list[tuple[str, list[str]]]]:
    """(the verdict in a sentence, sentences under headings)."""
    last = outcome.trials[-1]
    bad, ends = titles[outcome.first_bad], outcome.trials[0]
    times = _times(ends)
    change_test = next(
        (trial for trial in outcome.trials if (trial.earlier, trial.later) == (outcome.last_good, outcome.first_bad)), None
    )
    lines: list[str] = []
    if outcome.outcome == "found":
        title = f"First bad: {bad}. It made {figure} {_times(change_test)} as large."
        lines.append(f"From {titles[0]} to {titles[-1]}, {figure} grew to {times} as large.")
    elif outcome.outcome == "one of several":
        names = "; ".join(titles[place] for place in outcome.suspects)
        title = f"The first bad one is among {len(outcome.suspects)} that could not be told apart."
        lines.append(f"They are {names}. All but the last of them cannot be measured.")
    elif outcome.outcome == "gradual":
        title = f"CANNOT TELL which change: {bad} crosses the border, and alone is not shown to be worse."
        lines.append(
            f"At {bad}, {figure} crosses the border of {ends.border:.3f} times the good end's. Beside "
            f"{titles[outcome.last_good]} it is {_times(change_test)} as large. Several changes may share the growth."
        )
    elif outcome.outcome == "no regression":
        title = f"No regression between the ends: at {titles[-1]}, {figure} is {times} as large."
        lines.append(f"It grew by less than {verdict_words.percent_words(threshold)}, or fell. There is nothing to search for.")
    else:
        title = _undecided(last, titles[last.later])
        if last.ratio:
            lines.append(
                f"Beside {titles[last.earlier]}, {figure} is {_times(last)} as large. The border is {last.border:.3f}."
            )
        if last is not ends:
            lines.append(f"The first bad one is among {'; '.join(titles[place] for place in outcome.suspects)}.")
        lines.append(
            "On an idle machine the search can go on. It makes the disturbed pairs again."
            if last.disturbed
            else "More pairs (--most-repeats) or longer runs may tell."
        )
    method = [
        f"Each candidate is measured in turn with the good end. It is bad if its {figure} over the good end's is shown to be "
        "above the border, and good if it is shown to be below. The border is half of the difference between the ends, on the "
        "logarithmic scale.",
        "Paired t-tests on logarithms, which may stop at any number of pairs. All tests of the search share "
        f"{percent(SIGNIFICANCE)}: at most one search in 20 names a wrong change. Each interval is that of its test alone.",
    ]
    doubts = list(dict.fromkeys(sentence for trial in outcome.trials for sentence in trial.doubts))
    return title, [(_FOUND, lines), (_DOUBTS, doubts), ("How it was judged", method)]


def _undecided(trial: BisectionTest, about: str) -> str:
    """The verdict on a test that does not decide, with the cause where it is other work."""
    counted = trial.ratio.n if trial.ratio else 0
    if trial.disturbed and counted < VERDICT_PAIRS:
        return f"CANNOT TELL about {about}: other programs took cores from {trial.disturbed} of {count(trial.pairs, 'pair')}."
    if not counted:
        return f"CANNOT TELL about {about}: none of {count(trial.pairs, 'pair')} counts."
    return f"CANNOT TELL: {count(counted, 'pair')} do not decide about {about}."


def _times(trial: BisectionTest | None) -> str:
    return f"{verdict_words.interval_words(trial.ratio)} times" if trial and trial.ratio else ""
