"""The report of a bisection: verdict, tests and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

from common.machine.machine import processors
from compare.cli.terminal import FULL
from compare.cli.wording import count, percent
from compare.judgement import environments, statement_words
from compare.reporting import comparison_tables
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Cell, Column, Table
from compare.statistics import verdict_words
from compare.statistics.statistics import SIGNIFICANCE
from compare.tools.regression import bisection
from compare.tools.regression.bisection import BisectionOutcome, BisectionTest, NamedCandidate
from compare.tools.regression.candidates import BisectionQuery, Candidates
from compare.tools.regression.measured import FIGURE
from compare.tools.regression.records import EXIT_OK, EXIT_UNDECIDED, heading
from compare.tools.regression.regress_screen import GO_ON_IDLE, MeasuredBy, disturbed_words
from compare.tools.regression.samples import is_time

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
    words = _SearchWords.of_search(candidates, query)
    figure = words.figure
    title, sentences = _sentences(outcome, titles, words, query.threshold)
    ratios = [trial.ratio if trial.ratio and trial.ratio.has_enough_pairs else None for trial in outcome.trials]
    rows: list[dict[str, Cell]] = [
        {
            "what": words.one_candidate if trial.what == "a candidate" else trial.what,
            "later": titles[trial.later],
            "earlier": titles[trial.earlier],
            "verdict": trial.verdict,
            "ratio": ratio,
            "border": trial.border if ratio else None,
            "n": trial.ratio.n if trial.ratio else 0,
            "left_out": max(trial.pairs - (trial.ratio.n if trial.ratio else 0), 0),
            "level": trial.level,
        }
        for trial, ratio in zip(outcome.trials, ratios, strict=True)
    ]
    skipped: list[dict[str, Cell]] = [
        {"candidate": titles[place], "reason": reason} for place, reason in sorted(outcome.skipped.items())
    ]
    tables = [Table("trials", "Tests, in order", _TRIALS, rows)]
    known = candidates.environments
    end_environments = environments.relevant_environments(
        {titles[place]: known[place] for place in (outcome.last_good, outcome.first_bad) if place in known}, facts
    )
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
    ends = f"{count(len(titles) - 1, words.candidate)} after {titles[0]}, up to {titles[-1]}"
    return Report(
        title=title,
        headline="bold",
        name="bisect",
        json_file="bisect.json",
        overline="Which change made it slower?",
        facts=[
            f"{candidates.subject}, {figure}",
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
            subject=[f"Which change made {figure} of {candidates.subject} larger?", ends],
            answers=_answers(outcome, title, titles, dict(sentences), code, words),
            table=replace(tables[0], columns=tuple(column for column in _TRIALS if column.key in _ON_SCREEN)),
            next=_next(outcome, None if query.environments else candidates.items[outcome.first_bad].identity, measured_by),
        ),
    )


_TONES = {"found": "good", "undecided": "bad"}
_FOUND, _DOUBTS = "What was found", "Runs whose times do not count"


def _answers(
    outcome: BisectionOutcome,
    title: str,
    titles: Sequence[str],
    by_heading: Mapping[str, Sequence[str]],
    code: int,
    words: _SearchWords,
) -> list[Paragraph]:
    """The verdict, how sure it is, and what could not be measured."""
    tests = f"{count(len(outcome.trials), 'test')} in pairs. At most one search in 20 names a wrong change."
    trouble = [*by_heading.get(_DOUBTS, ())]
    if outcome.skipped:
        (place, reason), *others = sorted(outcome.skipped.items())
        trouble.append(f"{titles[place]} was left out: {reason.removesuffix('.')}.")
        if others:
            trouble.append(f"{count(len(others), f'other {words.candidate}')} could not be measured: {FULL} says why.")
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
    last = outcome.trials[-1]
    if last.disturbed and (outcome.outcome == "undecided" or (outcome.outcome == "gradual" and _is_few(last))):
        return [(GO_ON_IDLE, measured_by.again())]
    if outcome.outcome != "undecided":
        return []
    return [("go on with more pairs", measured_by.again("--most-repeats", str(2 * measured_by.repeats)))]


class _SearchWords(NamedTuple):
    """Words of a search for a reader."""

    figure: str
    candidate: str
    """`commit` or `environment`."""
    head: str
    """Name of the last candidate."""
    is_time: bool

    @classmethod
    def of_search(cls, candidates: Candidates[Any], query: BisectionQuery) -> Self:
        """Return the words of a search."""
        of_environments = bool(query.environments)
        return cls(
            figure=candidates.figure or heading(query.metric),
            candidate="environment" if of_environments else "commit",
            head="last environment" if of_environments else "branch",
            is_time=query.metric != FIGURE and is_time(query.metric),
        )

    @property
    def one_candidate(self) -> str:
        return f"{'an' if self.candidate == 'environment' else 'a'} {self.candidate}"

    @property
    def is_worse(self) -> str:
        """`the branch is slower`."""
        return f"the {self.head} is {'slower' if self.is_time else 'worse'}"


def _sentences(
    outcome: BisectionOutcome, titles: list[str], words: _SearchWords, threshold: float
) -> tuple[str, list[tuple[str, list[str]]]]:
    """(the verdict in a sentence, sentences under headings)."""
    last, figure = outcome.trials[-1], words.figure
    bad, ends = titles[outcome.first_bad], outcome.trials[0]
    growth = _times(ends)
    grown = f"{words.is_worse.capitalize()}: {'' if words.is_time else f'{figure} '}{growth}."
    change_test = next(
        (trial for trial in outcome.trials if (trial.earlier, trial.later) == (outcome.last_good, outcome.first_bad)), None
    )
    lines: list[str] = []
    if outcome.outcome == "found":
        title = f"First bad: {bad}. It made {figure} {_times(change_test)} as large."
        lines.append(f"From {titles[0]} to {titles[-1]}, {figure} grew to {growth} as large.")
    elif outcome.outcome == "one of several":
        names = "; ".join(titles[place] for place in outcome.suspects)
        title = f"The first bad one is among {len(outcome.suspects)} that could not be told apart."
        lines.append(f"They are {names}. All but the last of them cannot be measured.")
    elif outcome.outcome == "gradual" and change_test is not None and _is_few(change_test):
        title = f"{grown} Not yet known whether {bad} alone made it so."
        lines.append(f"Beside {titles[outcome.last_good]}: {_why_open(change_test)}.")
        lines.append(_how_to_go_on(change_test))
    elif outcome.outcome == "gradual":
        title = f"CANNOT TELL which change: {bad} is the first bad one, and alone is not shown to be worse."
        lines.append(
            f"At {bad}, {figure} crosses the border of {ends.border:.3f} times the base's. Beside "
            f"{titles[outcome.last_good]} it is {_times(change_test)} as large. Several changes may share the growth."
        )
    elif outcome.outcome == "no regression":
        title = f"No regression between base and head: at {titles[-1]}, {figure} is {growth} as large."
        lines.append(f"It grew by less than {verdict_words.percent_words(threshold)}, or fell. There is nothing to search for.")
    else:
        if last is ends:
            title = f"CANNOT TELL whether {words.is_worse}: {_why_open(last)}."
        else:
            title = f"{grown} Not yet known which of {count(len(outcome.suspects), words.candidate)}."
            lines.append(f"One of {'; '.join(titles[place] for place in outcome.suspects)}.")
            lines.append(f"At {titles[last.later]}: {_why_open(last)}.")
        if last.ratio and not _is_few(last):
            lines.append(f"Beside {titles[last.earlier]}, {figure} is {_times(last)} as large. Above {last.border:.3f} is bad.")
        lines.append(_how_to_go_on(last))
    method = [
        f"Each {words.candidate} is measured in turn with the base, the good one. It is bad if its {figure} over the base's is "
        "shown to be above the border, and good if it is shown to be below. The border is half of the difference between base "
        "and head, on the logarithmic scale. The pairs of base and head alone set it.",
        "Paired t-tests on logarithms, which may stop at any number of pairs. All tests of the search share "
        f"{percent(SIGNIFICANCE)}: at most one search in 20 names a wrong change. Each interval is that of its test alone.",
    ]
    doubts = list(dict.fromkeys(sentence for trial in outcome.trials for sentence in trial.doubts))
    return title, [(_FOUND, lines), (_DOUBTS, doubts), ("How it was judged", method)]


def _is_few(trial: BisectionTest) -> bool:
    """Whether too few pairs count for a ratio that can be relied on."""
    return trial.ratio is None or not trial.ratio.has_enough_pairs


def _why_open(trial: BisectionTest) -> str:
    """Why a test does not decide."""
    if trial.disturbed and _is_few(trial):
        return disturbed_words(trial.disturbed, trial.pairs)
    counted = trial.ratio.n if trial.ratio else 0
    return f"{count(counted, 'pair')} do not decide" if counted else f"none of {count(trial.pairs, 'pair')} counts"


def _how_to_go_on(trial: BisectionTest) -> str:
    if trial.disturbed:
        return "On an idle machine the search can go on. It makes the disturbed pairs again."
    return "More pairs (--most-repeats) or longer runs may tell."


def _times(trial: BisectionTest | None) -> str:
    return f"{verdict_words.interval_words(trial.ratio)} times" if trial and trial.ratio else ""
