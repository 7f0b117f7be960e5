"""The report of a bisection: verdict, tests and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from common.artifacts.schema import Environment
from common.machine.machine import processors
from compare.core import verdict_words
from compare.core.statistics import SIGNIFICANCE, VERDICT_PAIRS
from compare.core.terminal import FULL
from compare.core.wording import count, percent
from compare.judgement import environments
from compare.regression import bisection
from compare.regression.bisection import Found, Named, Trial
from compare.regression.candidates import Asked, Candidates
from compare.regression.records import EXIT_OK, EXIT_UNDECIDED, heading
from compare.reporting import comparison_tables
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Cell, Column, Table

_TRIALS = (
    Column("what", "what is tested"),
    Column("later", "revision or environment", fold=40),
    Column("earlier", "beside", fold=40),
    Column("verdict", "verdict"),
    Column("ratio", "times (95 % interval)", 3, interval=True),
    Column("border", "border", 3),
    Column("n", "pairs"),
    Column("left_out", "left out"),
    Column("level", "level", 4, wide=True),
)
_ON_SCREEN = ("what", "later", "verdict", "ratio", "n")
_SKIPPED = (Column("candidate", "revision or environment", fold=40), Column("reason", "reason", fold=80))


def report(found: Found, chosen: Candidates, asked: Asked) -> Report:
    """The report of a search. Its title is the verdict."""
    titles, facts = [each.title for each in chosen.each], chosen.plan.machine
    title, sentences = _sentences(found, titles, heading(asked.metric), asked.threshold)
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
        for trial in found.trials
    ]
    skipped: list[dict[str, Cell]] = [
        {"candidate": titles[place], "reason": reason} for place, reason in sorted(found.skipped.items())
    ]
    tables = [Table("trials", "Tests, in order", _TRIALS, rows)]
    there: dict[str, Environment] = {}
    if len(chosen.environments) == len(titles):
        there = {titles[place]: chosen.environments[place] for place in (found.last_good, found.first_bad)}
    there = environments.relevant_environments(there, facts)
    tables += comparison_tables.environment_table(environments.differences(there))
    sentences.insert(1, (comparison_tables.ENVIRONMENTS, environments.sentences(there)))
    tables += [Table("skipped", "What could not be measured", _SKIPPED, skipped)] if skipped else []
    suspects = [chosen.each[place].identity for place in found.suspects]
    answer = bisection.Answer(
        search=found,
        candidates=[Named(identity=each.identity, title=each.title) for each in chosen.each],
        first_bad=suspects[0] if found.outcome == "found" else None,
        suspects=suspects,
        metric=asked.metric,
        environments=environments.sentences(there),
    )
    code = EXIT_OK if found.outcome == "found" else EXIT_UNDECIDED
    ends = f"{count(len(titles) - 1, 'candidate')} after {titles[0]}, up to {titles[-1]}"
    return Report(
        title=title,
        headline="bold",
        name="bisect",
        json_file="bisect.json",
        overline="Which change made it slower?",
        facts=[
            f"{chosen.rows[0].id}, {heading(asked.metric)}",
            ends,
            f"Machine: {processors(facts)}, {facts.get('logical_cores') or '?'} logical cores",
        ],
        marks=[Mark("First bad", "found" if found.outcome == "found" else found.outcome, _TONES.get(found.outcome, "warn"))],
        findings=[each for each in sentences if each[1]],
        tables=tables,
        values={"headline": title, **answer.model_dump(mode="json")},
        exit_code=code,
        screen=Screen(
            subject=[f"Which change made {heading(asked.metric)} of {chosen.rows[0].id} larger?", ends],
            answers=_answers(found, title, dict(sentences), code),
            table=replace(tables[0], columns=tuple(each for each in _TRIALS if each.key in _ON_SCREEN)),
            next=_next(found, None if asked.environments else chosen.each[found.first_bad].identity),
        ),
    )


_TONES = {"found": "good", "undecided": "bad"}
_FOUND, _DOUBTS = "What was found", "Runs whose times do not count"


def _answers(found: Found, title: str, by_heading: Mapping[str, Sequence[str]], code: int) -> list[Paragraph]:
    """The verdict, how sure it is, and what could not be measured."""
    tests = f"{count(len(found.trials), 'test')} in pairs. At most one search in 20 names a wrong change."
    trouble = [*by_heading.get(_DOUBTS, ())]
    if found.skipped:
        trouble.append(f"{count(len(found.skipped), 'candidate')} could not be measured ({FULL}).")
    answers = [
        Paragraph("Verdict", [f"{title} Exit code {code}.", *by_heading[_FOUND]], _TONES.get(found.outcome, "warn")),
        Paragraph("How sure", [tests]),
        Paragraph("Differs", by_heading[comparison_tables.ENVIRONMENTS]),
        Paragraph("Trouble", trouble, "bad"),
    ]
    return [each for each in answers if each.sentences]


def _next(found: Found, commit: str | None) -> list[tuple[str, str]]:
    """What shows the change, or what may tell more."""
    if found.outcome == "found":
        return [("the change", f"git show {commit[:8]}")] if commit else []
    if found.outcome != "undecided":
        return []
    if found.trials[-1].disturbed:
        return [("on an idle machine", "the same command with the same --out goes on")]
    return [("go on", "the same command with a larger --most-repeats and the same --out")]


def _sentences(found: Found, titles: list[str], figure: str, threshold: float) -> tuple[str, list[tuple[str, list[str]]]]:
    """(the verdict in a sentence, sentences under headings)."""
    last = found.trials[-1]
    bad, ends = titles[found.first_bad], found.trials[0]
    times = _times(ends)
    own = next((trial for trial in found.trials if (trial.earlier, trial.later) == (found.last_good, found.first_bad)), None)
    lines: list[str] = []
    if found.outcome == "found":
        title = f"First bad: {bad}. It made {figure} {_times(own)} as large."
        lines.append(f"From {titles[0]} to {titles[-1]}, {figure} grew to {times} as large.")
    elif found.outcome == "one of several":
        names = "; ".join(titles[place] for place in found.suspects)
        title = f"The first bad one is among {len(found.suspects)} that could not be told apart."
        lines.append(f"They are {names}. All but the last of them cannot be measured.")
    elif found.outcome == "gradual":
        title = f"CANNOT TELL which change: {bad} crosses the border, and alone is not shown to be worse."
        lines.append(
            f"At {bad}, {figure} crosses the border of {ends.border:.3f} times the good end's. Beside "
            f"{titles[found.last_good]} it is {_times(own)} as large. Several changes may share the growth."
        )
    elif found.outcome == "no regression":
        title = f"No regression between the ends: at {titles[-1]}, {figure} is {times} as large."
        lines.append(f"It grew by less than {verdict_words.percent_words(threshold)}, or fell. There is nothing to search for.")
    else:
        title = _undecided(last, titles[last.later])
        if last.ratio:
            lines.append(
                f"Beside {titles[last.earlier]}, {figure} is {_times(last)} as large. The border is {last.border:.3f}."
            )
        if last is not ends:
            lines.append(f"The first bad one is among {'; '.join(titles[place] for place in found.suspects)}.")
        lines.append(
            "Search on an idle machine: the same command with the same --out goes on, and makes the disturbed pairs again."
            if last.disturbed
            else "More pairs (--most-repeats) or longer runs (--epochs) may tell."
        )
    method = [
        f"Each candidate is measured in turn with the good end. It is bad if its {figure} over the good end's is shown to be "
        "above the border, and good if it is shown to be below. The border is half of the difference between the ends, on the "
        "logarithmic scale.",
        "Paired t-tests on logarithms, which may stop at any number of pairs. All tests of the search share "
        f"{percent(SIGNIFICANCE)}: at most one search in 20 names a wrong change. Each interval is that of its test alone.",
    ]
    doubts = list(dict.fromkeys(sentence for trial in found.trials for sentence in trial.doubts))
    return title, [(_FOUND, lines), (_DOUBTS, doubts), ("How it was judged", method)]


def _undecided(trial: Trial, about: str) -> str:
    """The verdict on a test that does not decide, with the cause where it is other work."""
    counted = trial.ratio.n if trial.ratio else 0
    if trial.disturbed and counted < VERDICT_PAIRS:
        return f"CANNOT TELL about {about}: other work disturbed {trial.disturbed} of {count(trial.pairs, 'pair')}."
    if not counted:
        return f"CANNOT TELL about {about}: none of {count(trial.pairs, 'pair')} counts."
    return f"CANNOT TELL: {count(counted, 'pair')} do not decide about {about}."


def _times(trial: Trial | None) -> str:
    return f"{verdict_words.interval_words(trial.ratio)} times" if trial and trial.ratio else ""
