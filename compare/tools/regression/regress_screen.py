"""The first screen of a judgement: whether something got worse, what exactly, and how sure that is. It has eight lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from compare.cli.terminal import FULL
from compare.cli.wording import command, count, joined, percent, shortened
from compare.judgement import statement_words
from compare.judgement.figures import times
from compare.judgement.sides import BASE, HEAD
from compare.reporting.document import without_options
from compare.reporting.screen import WIDTH, Paragraph, Screen
from compare.statistics.statistics import POWER, VERDICT_PAIRS, resolution
from compare.statistics.verdict_words import UNBOUNDED, difference_words, percent_words
from compare.tools.regression.records import (
    EXIT_OK,
    EXIT_REGRESSION,
    FAILED,
    JUDGED,
    UNDECIDED,
    Change,
    Judgement,
    MeasuredSide,
    heading,
)
from compare.tools.regression.samples import is_time

LINES = 8
"""Lines at 100 columns, without those that say where the files are."""
_FIXED = 4
"""Lines that are always there: the question, a blank line, the verdict, and the next command."""
_WIDTH = WIDTH - 11
"""Columns beside the labels."""
_LEAST_START = 24
_OF_REGRESS_WITH_VALUE = (
    *("--interleaved", "--out", "--repeats", "--threshold", "--accuracy-threshold", "--metric", "--only", "--markdown"),
)
_OF_REGRESS = ("--json", "--profile", "--no-profile", "--proof", "--no-proof", FULL)
"""Options of `regress` that say how it measures and reports, and not what."""
GO_ON_IDLE = "go on when the machine is idle"
"""Label of the command that makes disturbed pairs again."""
_TONES = {EXIT_OK: "good", EXIT_REGRESSION: "bad"}


class ScreenLine(NamedTuple):
    """A sentence on one line. `start`, a figure's name, is shortened to fit. If there is no `end`, and several sentences
    do not fit, the first one is left. A first sentence that does not fit takes further lines.
    """

    start: str
    end: str = ""

    def within(self, width: int, more: str = "") -> str:
        """Return the line cut to `width` columns, with `more` at its end."""
        end = f"{self.end}{more}"
        left = max(width - len(end), _LEAST_START)
        start = shortened(self.start, left) if self.end else _cut(self.start, left)
        return f"{start.removesuffix('.') if more else start}{end}"


class MeasuredBy(NamedTuple):
    """The command that has measured, for the commands that a screen proposes."""

    repeats: int
    """Number of pairs that it has measured, or the most."""
    words: Sequence[str]
    """The words of the command, from `regress` or `bisect` on."""
    folder: Path
    """The results folder of the command, as the user names it."""

    def again(self, *options: str) -> str:
        """Return the command that makes disturbed pairs again and what is missing, in the same folder."""
        return command(*without_options(self.words, "--out", *options[:1]), *options, "--out", str(self.folder))

    def in_a_new_folder(self, *options: str) -> str:
        """Return the command with other options, into a new folder."""
        return command(*without_options(self.words, "--out", *options[:1]), *options)

    def of_training(self) -> list[str]:
        """Return the options that `bisect` takes too: they say what is measured."""
        words = without_options(self.words[1:], *_OF_REGRESS_WITH_VALUE)
        return [word for word in words if word not in _OF_REGRESS]


def screen(
    judgement: Judgement, undecided_reasons: Sequence[str], pairs: int | None, measured_by: MeasuredBy | None = None
) -> Screen:
    """Build the first screen.

    Args:
        undecided_reasons: reasons why there is no decision. The figures that may be worse come first.
        pairs: number of pairs that would rule out the threshold for all figures. None: unknown.
        measured_by: the command that has measured both sides. None: both were stored.
    """
    question = [f"Is {_side_words(judgement.candidate)} worse than {_side_words(judgement.baseline)}?", judgement.machine]
    verdict = _verdict(judgement)
    serious = statement_words.sentences(caution for caution in judgement.statements if caution.level != "info")
    others = len(judgement.cautions) - len(serious) + len(judgement.environments)
    cautions = f" {count(others, 'caution')}: {FULL} lists all." if others and not serious else ""
    parts = (
        ("Worse", list(_worse(judgement)), "bad"),
        ("Faster", list(_largest_first(judgement, "faster than allowed")), "bad"),
        ("Unsure", _unsure(judgement, undecided_reasons, pairs), "warn"),
        ("Sure?", _against_itself(judgement, cautions), ""),
        ("Trouble", list(map(ScreenLine, serious)), "bad"),
    )
    spare = LINES - _FIXED - sum(bool(lines) for _, lines, _ in parts)
    spare -= (len(" | ".join(question)) > WIDTH) + (len(verdict) > _WIDTH)
    spare -= sum((len(lines[0].within(_WIDTH)) - 1) // _WIDTH for _, lines, _ in parts if lines)
    # Each figure that is worse has its own.
    limits = [_limits(judgement)] if spare > 0 and judgement.exit_code != EXIT_REGRESSION else []
    spare -= len(limits)
    answers = [Paragraph("Verdict", [verdict, *limits], _TONES.get(judgement.exit_code, "warn"))]
    for label, lines, tone in parts:
        visible = lines[: 1 + max(spare, 0)]
        spare -= max(len(visible) - 1, 0)
        hidden = len(lines) - len(visible) + (others if label == "Trouble" and serious else 0)
        more = f"{count(hidden, 'more line')}: {FULL}" if label == "Unsure" else f"{hidden} more"
        ends = [*[""] * (len(visible) - 1), f"; {more}" if hidden else ""]
        answers.append(Paragraph(label, [line.within(_WIDTH, end) for line, end in zip(visible, ends, strict=False)], tone))
    return Screen(
        subject=question,
        answers=[paragraph for paragraph in answers if paragraph.sentences],
        next=_next(judgement, pairs, measured_by),
    )


def _cut(text: str, width: int) -> str:
    """Return a text that fits into `width` columns, else its first sentence, whole."""
    first, stop, _ = text.partition(". ")
    return text if len(text) <= width or not stop else f"{first}."


def _side_words(side: MeasuredSide) -> str:
    """`head (1a2b3c4d)`."""
    folder, _, part = Path(side.source).name.partition("@")
    return f"{shortened(part if part in (BASE, HEAD) else folder, 24)} ({side.commit})"


def failure_words(judgement: Judgement) -> str:
    """Say how many figures fail, and why: `REGRESSION in 1 of 4 figures`. Empty: none does."""
    kinds = zip(("REGRESSION", "FASTER THAN ALLOWED"), FAILED, strict=True)
    failed = [f"{word} in {number}" for word, verdict in kinds if (number := judgement.verdicts.count(verdict))]
    return f"{joined(failed)} of {count(len(judgement.verdicts), 'figure')}" if failed else ""


def disturbed_words(disturbed: int, pairs: int) -> str:
    """`other programs took cores from 3 of 3 pairs`."""
    return f"other programs took cores from {disturbed} of {count(pairs, 'pair')}"


def lacking_words(judgement: Judgement) -> list[str]:
    """Say why there are too few pairs for a verdict: they were not made, or other programs disturbed them. Empty: neither."""
    if judgement.is_unfinished:
        planned = judgement.planned_pairs
        return [f"{planned - judgement.pairs} of {count(planned, 'planned pair')} are missing"]
    return [disturbed_words(judgement.disturbed_pairs, judgement.pairs)] if judgement.is_disturbed else []


def _verdict(judgement: Judgement) -> str:
    """The verdict with its exit code, and how many of the other figures have which verdict."""
    number, code = judgement.num_judged, f"exit code {judgement.exit_code}"
    decided = [change.verdict for change in judgement.changes if not change.not_ruled_out] + [
        fact.verdict for fact in judgement.facts
    ]
    kinds = Counter(verdict for verdict in decided if verdict not in (*FAILED, *UNDECIDED))
    counts = ", ".join(f"{verdict.replace(',', '')} in {times}" for verdict, times in kinds.most_common())
    rest = f" {counts[0].upper()}{counts[1:]}." if counts else ""
    if judgement.exit_code == EXIT_REGRESSION:
        return f"{failure_words(judgement)}: {code}.{rest}"
    if judgement.exit_code != EXIT_OK:
        why = "".join(f"{reason}, " for reason in lacking_words(judgement))
        return f"CANNOT TELL whether there is a regression: {why}{code}.{rest}"
    return f"No regression in {count(number, 'figure')}: {code}.{rest}"


def _limits(judgement: Judgement) -> str:
    seconds, accuracy = map(percent_words, (judgement.threshold, judgement.accuracy_threshold))
    if judgement.kind == "benchmarks":
        return f"Limit: {seconds}."
    return f"Limits: {seconds} of seconds and MiB, {accuracy} of accuracy."


def _worse(judgement: Judgement) -> Iterator[ScreenLine]:
    """Each figure that is worse, with its limit. The largest change comes first."""
    yield from _largest_first(judgement, "regression")
    for fact in judgement.facts:
        if fact.verdict == "regression":
            yield ScreenLine(f"{fact.name}, {fact.what}: {fact.baseline} before, {fact.candidate} now")


def _largest_first(judgement: Judgement, verdict: str) -> Iterator[ScreenLine]:
    changes = [change for change in judgement.changes if change.verdict == verdict]
    for change in sorted(changes, key=lambda change: -abs(change.change.value - _unchanged(change))):
        yield _figure(change, judgement)


def _unchanged(change: Change) -> float:
    return 0.0 if change.is_accuracy else 1.0


def _figure(change: Change, judgement: Judgement) -> ScreenLine:
    """`pytorch serial, 2 cores, seconds per epoch: +20.0 % (+17.3 to +22.8), limit 5 %`."""
    ratio, unchanged = change.change, _unchanged(change)
    size = f"{100 * (ratio.value - unchanged):+.1f} %"
    if not ratio.is_bounded:
        size += f" ({UNBOUNDED})"
    elif ratio.low is not None and ratio.high is not None:
        size += f" ({100 * (ratio.low - unchanged):+.1f} to {100 * (ratio.high - unchanged):+.1f})"
    if change.verdict == "not judged":
        return ScreenLine(f"{change.name}, {heading(change.metric)}", f": {size} measured, not judged")
    limit = percent_words(judgement.limit_of(change))
    return ScreenLine(f"{change.name}, {heading(change.metric)}", f": {size}, limit {limit}")


def _unsure(judgement: Judgement, undecided_reasons: Sequence[str], pairs: int | None) -> list[ScreenLine]:
    """Say what is undecided, how many pairs would decide it, and which ratios were measured and are not judged."""
    lines = [ScreenLine(f"{reason[0].upper()}{reason[1:]}") for reason in undecided_reasons]
    not_judged = list(_largest_first(judgement, "not judged"))
    if not_judged and len(lines) == 1 and judgement.is_disturbed:
        lines = []  # the verdict has the reason
    lines += not_judged
    if open_changes := [change for change in judgement.changes if change.not_ruled_out]:
        is_known = judgement.paired and pairs is not None and not any(change.is_accuracy for change in open_changes)
        first = _figure(open_changes[0], judgement) if len(open_changes) == 1 else lines[0]
        hint = "; the command writes too few digits" * all(map(judgement.lacks_digits, open_changes))
        lines[0] = ScreenLine(first.start, f"{first.end}; about {pairs} pairs would tell" if is_known else f"{first.end}{hint}")
    return lines


def _against_itself(judgement: Judgement, cautions: str) -> list[ScreenLine]:
    """Say how often the same code would be called different, and which difference is found."""
    if not judgement.tested:
        noise = f" {judgement.noise.words}." if judgement.noise else ""
        return [ScreenLine(f"Not known: no figure was tested.{noise}{cautions}")]
    if not judgement.paired:
        return [ScreenLine(f"Not known: measured apart, and the machine may have changed.{cautions}")]
    errs = "Same code looks changed at most 1 time in 20."
    lines = [ScreenLine(f"{errs}{cautions}")]
    if judgement.noise is not None:
        lines = [
            ScreenLine(f"{errs} {judgement.noise.words} (n {judgement.noise.n})."),
            *[ScreenLine(cautions.strip())] * bool(cautions),
        ]
    if _is_same_code(judgement):
        lines.append(ScreenLine("Both sides are the same commit."))
    ratios = [change.change for change in judgement.changes if change.adjusted_p is not None and not change.is_accuracy]
    least = resolution(ratios, judgement.tested, one_look=judgement.one_look)
    if judgement.exit_code == EXIT_OK and least is not None:
        lines.append(ScreenLine(f"A difference of {difference_words(least)} is found in {percent(POWER)} of cases."))
    return lines


def _is_same_code(judgement: Judgement) -> bool:
    """Whether both sides are one commit without changes, in one environment."""
    sides = [
        (side.commit, side.repository, side.suite_commit, side.versions) for side in (judgement.baseline, judgement.candidate)
    ]
    return sides[0] == sides[1] and _is_commit(judgement.baseline) and not judgement.environments


def _is_commit(side: MeasuredSide) -> bool:
    return re.fullmatch("[0-9a-f]{8}", side.commit) is not None


def _next(judgement: Judgement, pairs: int | None, measured_by: MeasuredBy | None) -> list[tuple[str, str]]:
    """Name the command that finds the cause of a regression, or decides what is open."""
    if judgement.exit_code == EXIT_OK:
        return []
    base, is_of_runs = judgement.baseline, judgement.kind == "comparison"
    is_of_suite = is_of_runs and _is_commit(base) and base.commit != judgement.candidate.commit and base.repository is None
    if measured_by is None:
        if judgement.paired:
            return []
        if not is_of_runs:
            return [("in turn", "files of both, one after the other: first A, then B, then B, then A, and so on")]
        return [("in turn, same options", command("regress", "--interleaved", base.commit))] * is_of_suite
    if judgement.exit_code == EXIT_REGRESSION:
        worse = [change for change in judgement.changes if change.verdict == "regression" and not change.is_accuracy]
        is_of_suite = is_of_suite or (
            judgement.kind == "benchmarks" and _is_commit(base) and base.commit != judgement.candidate.commit
        )
        if worse and is_of_suite:
            first = next((change for change in worse if change.metric == JUDGED[0]), worse[0])
            metric = () if first.metric == JUDGED[0] or not is_of_runs else ("--metric", first.metric)
            words = ("--good", base.commit, "--only", first.id, *metric, *measured_by.of_training())
            return [("which commit", command("bisect", *words))]
        is_open = is_of_runs and any(change.metric in times() for change in worse) and not judgement.operations
        return [("where in a step", measured_by.in_a_new_folder("--profile"))] * is_open
    few = [change for change in judgement.changes if change.verdict in UNDECIDED]
    lacks_pairs = any(
        change.verdict == "not judged" or (is_time(change.metric) and change.change.n < measured_by.repeats) for change in few
    )
    if lacks_pairs:
        return [(GO_ON_IDLE, measured_by.again())]
    if few or pairs is not None:
        return [("more pairs", measured_by.in_a_new_folder("--repeats", str(max(pairs or 0, VERDICT_PAIRS))))]
    if all(judgement.lacks_digits(change) for change in judgement.changes if change.not_ruled_out):
        return []
    if is_of_runs:
        return [("longer runs", "the same command with more --epochs, into a new folder")]
    return [("more pairs", measured_by.in_a_new_folder("--repeats", str(2 * measured_by.repeats)))]
