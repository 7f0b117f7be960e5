"""The first screen of a judgement: whether something got worse, what exactly, and how sure that is. It has eight lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from compare.core.statistics import POWER, VERDICT_PAIRS, resolution
from compare.core.terminal import FULL
from compare.core.verdict_words import UNBOUNDED, difference_words, percent_words
from compare.core.wording import command, count, percent, shortened
from compare.judgement.measurements import TIMES
from compare.regression.facts import PROOF, UNPROVED, UNWATCHED
from compare.regression.records import CHOICES, EXIT_OK, EXIT_REGRESSION, UNDECIDED, Change, Judgement, Side, heading
from compare.reporting.screen import WIDTH, Paragraph, Screen

LINES = 8
"""At 100 columns, without those that say where the files are."""
_FIXED = 4
"""Of them: what was asked, a blank line, the verdict, and the next command."""
_ROOM = WIDTH - 11
"""Columns beside the labels."""
_LEAST_START = 24
_TONES = {EXIT_OK: "good", EXIT_REGRESSION: "bad"}


class Line(NamedTuple):
    """A sentence on one line. Its start is shortened, the name of a figure. Without an end, the line is cut between words."""

    start: str
    end: str = ""

    def within(self, room: int, more: str = "") -> str:
        """The line in so many columns, with `more` at its end."""
        end = f"{self.end}{more}"
        left = max(room - len(end), _LEAST_START)
        start = shortened(self.start, left) if self.end else _cut(self.start, left)
        return f"{start.removesuffix('.') if more else start}{end}"


def screen(judged: Judgement, untold: Sequence[str], pairs: int | None, repeats: int) -> Screen:
    """The first screen.

    Args:
        untold: what cannot be told. The figures that may be worse come first.
        pairs: that would rule out the threshold for all figures. None: unknown.
        repeats: pairs that the command has made. 0: both sides were stored.
    """
    asked = [f"Is {_side_words(judged.candidate)} worse than {_side_words(judged.baseline)}?", judged.machine]
    verdict = _verdict(judged)
    serious = [each for each in judged.cautions if not each.startswith((PROOF, UNPROVED, UNWATCHED))]
    others = len(judged.cautions) - len(serious) + len(judged.environments)
    cautions = f" {count(others, 'caution')}: {FULL}." if others and not serious else ""
    parts = (
        ("Worse", list(_worse(judged)), "bad"),
        ("Unsure", _unsure(judged, untold, pairs), "warn"),
        ("A/A", _against_itself(judged, cautions), ""),
        ("Trouble", list(map(Line, serious)), "bad"),
    )
    spare = LINES - _FIXED - sum(bool(lines) for _, lines, _ in parts)
    spare -= (len(" | ".join(asked)) > WIDTH) + (len(verdict) > _ROOM)
    # Each figure that is worse has its own.
    limits = [_limits(judged)] if spare > 0 and judged.exit_code != EXIT_REGRESSION else []
    spare -= len(limits)
    answers = [Paragraph("Verdict", [verdict, *limits], _TONES.get(judged.exit_code, "warn"))]
    for label, lines, tone in parts:
        shown = lines[: 1 + max(spare, 0)]
        spare -= max(len(shown) - 1, 0)
        hidden = len(lines) - len(shown) + (others if label == "Trouble" and serious else 0)
        ends = [*[""] * (len(shown) - 1), f"; {hidden} more" if hidden else ""]
        answers.append(Paragraph(label, [line.within(_ROOM, end) for line, end in zip(shown, ends, strict=False)], tone))
    return Screen(subject=asked, answers=[each for each in answers if each.sentences], next=_next(judged, pairs, repeats))


def _cut(text: str, room: int) -> str:
    """The first words of a text, or the first of its sentences, that fit into so many columns."""
    if len(text) <= room:
        return text
    first = text.partition(". ")[0]
    return f"{first}. …" if len(first) + 3 <= room else f"{text[: room - 1].rpartition(' ')[0]} …"


def _side_words(side: Side) -> str:
    """`head (1a2b3c4d)`."""
    return f"{shortened(Path(side.source).name.partition('@')[0], 24)} ({side.commit})"


def _verdict(judged: Judgement) -> str:
    """The verdict with its exit code, and how many of the other figures have which verdict."""
    number, code = len(judged.verdicts), f"exit code {judged.exit_code}"
    decided = [each.verdict for each in judged.changes if not each.not_ruled_out] + [each.verdict for each in judged.facts]
    kinds = Counter(each for each in decided if each not in ("regression", *UNDECIDED))
    counts = ", ".join(f"{times} {each.replace(',', '')}" for each, times in kinds.most_common())
    rest = f" {counts}." if counts else ""
    if judged.exit_code == EXIT_REGRESSION:
        return f"REGRESSION in {judged.verdicts.count('regression')} of {number} figures: {code}.{rest}"
    if judged.exit_code != EXIT_OK:
        return f"CANNOT TELL whether there is a regression: {code}.{rest}"
    return f"No regression in {count(number, 'figure')}: {code}.{rest}"


def _limits(judged: Judgement) -> str:
    seconds, accuracy = map(percent_words, (judged.threshold, judged.accuracy_threshold))
    return f"Limits: {seconds} of seconds and MiB, {accuracy} of accuracy."


def _worse(judged: Judgement) -> Iterator[Line]:
    """Each figure that is worse, with its limit. The largest change comes first."""
    worse = [each for each in judged.changes if each.verdict == "regression"]
    for change in sorted(worse, key=lambda each: -abs(each.change.value - _unchanged(each))):
        yield _figure(change, judged)
    for fact in judged.facts:
        if fact.verdict == "regression":
            yield Line(f"{fact.name}, {fact.what}: {fact.baseline} before, {fact.candidate} now")


def _unchanged(change: Change) -> float:
    return 0.0 if change.is_accuracy else 1.0


def _figure(change: Change, judged: Judgement) -> Line:
    """`pytorch serial, 2 cores, seconds per epoch: +20.0 % (+17.3 to +22.8), limit 5 %`."""
    ratio, unchanged = change.change, _unchanged(change)
    size = f"{100 * (ratio.value - unchanged):+.1f} %"
    if not ratio.is_bounded:
        size += f" ({UNBOUNDED})"
    elif ratio.low is not None and ratio.high is not None:
        size += f" ({100 * (ratio.low - unchanged):+.1f} to {100 * (ratio.high - unchanged):+.1f})"
    limit = percent_words(judged.accuracy_threshold if change.is_accuracy else judged.threshold)
    return Line(f"{change.name}, {heading(change.metric)}", f": {size}, limit {limit}")


def _unsure(judged: Judgement, untold: Sequence[str], pairs: int | None) -> list[Line]:
    """What cannot be told, and how many pairs would tell."""
    lines = [Line(f"{each[0].upper()}{each[1:]}") for each in untold]
    if open_ones := [each for each in judged.changes if each.not_ruled_out]:
        told = judged.paired and pairs is not None and not any(each.is_accuracy for each in open_ones)
        first = _figure(open_ones[0], judged) if len(open_ones) == 1 else lines[0]
        lines[0] = Line(first.start, f"{first.end}; about {pairs} pairs would tell" if told else first.end)
    return lines


def _against_itself(judged: Judgement, cautions: str) -> list[Line]:
    """How often the same code would be called different, and which difference is found."""
    if not judged.tested:
        return [Line(f"Not known: no figure was tested.{cautions}")]
    if not judged.paired:
        return [Line(f"Not known: measured apart, and the machine may have changed.{cautions}")]
    lines = [Line(f"The same code is called different in at most 1 of 20 judgements.{cautions}")]
    if _is_same_code(judged):
        lines.append(Line("Both sides are the same commit."))
    ratios = [each.change for each in judged.changes if each.adjusted_p is not None and not each.is_accuracy]
    least = resolution(ratios, judged.tested, one_look=judged.one_look)
    if judged.exit_code == EXIT_OK and least is not None:
        lines.append(Line(f"A difference of {difference_words(least)} is found in {percent(POWER)} of cases."))
    return lines


def _is_same_code(judged: Judgement) -> bool:
    """Whether both sides are one commit without changes, in one environment."""
    sides = [(each.commit, each.repository, each.suite_commit, each.versions) for each in (judged.baseline, judged.candidate)]
    return sides[0] == sides[1] and _is_commit(judged.baseline) and not judged.environments


def _is_commit(side: Side) -> bool:
    return re.fullmatch("[0-9a-f]{8}", side.commit) is not None


def _next(judged: Judgement, pairs: int | None, repeats: int) -> list[tuple[str, str]]:
    """Name the command that finds the cause of a regression, or decides what is open."""
    if judged.exit_code == EXIT_OK:
        return []
    base, is_of_runs = judged.baseline, judged.kind == "comparison"
    is_of_suite = is_of_runs and _is_commit(base) and base.commit != judged.candidate.commit and base.repository is None
    if not repeats:
        if judged.paired:
            return []
        in_turn = f"{command('regress', '--interleaved', base.commit)} ..." if is_of_suite else ""
        in_turn = in_turn if is_of_runs else "files of both, one after the other: A, B, B, A, ..."
        return [("in turn", in_turn)] * bool(in_turn)
    if judged.exit_code == EXIT_REGRESSION:
        worse = [each for each in judged.changes if each.verdict == "regression" and not each.is_accuracy]
        if worse and is_of_suite:
            first = next((each for each in worse if each.metric == CHOICES[0]), worse[0])
            metric = () if first.metric == CHOICES[0] else ("--metric", first.metric)
            return [("which commit", f"{command('bisect', '--good', base.commit, '--only', first.id, *metric)} ...")]
        is_open = any(each.metric in TIMES for each in worse) and not judged.operations
        return [("where in a step", "the same command with --profile and another --out")] * is_open
    few = [each for each in judged.changes if each.verdict in UNDECIDED]
    if any(each.verdict == "not judged" or (each.metric in TIMES and each.change.n < repeats) for each in few):
        return [("on an idle machine", "the same command with the same --out makes the disturbed pairs again")]
    if few or pairs is not None:
        return [("more pairs", f"the same command with --repeats {max(pairs or 0, VERDICT_PAIRS)} and another --out")]
    return [("longer runs", "the same command with more --epochs and another --out")] * bool(judged.num_not_ruled_out)
