"""Rules, findings with their traces, and comments that suppress findings."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

CONDITIONAL = "conditional"
"""Severity of a warning that holds only if data-dependent values differ between ranks. It is not counted as a finding."""


class Rule(NamedTuple):
    severity: str
    """error: every run that reaches this hangs or is wrong. warning: it takes an exception or an unlucky order."""
    description: str


RULES = {
    "collective-missing": Rule("error", "One rank never reaches a collective that another rank waits in."),
    "collective-order": Rule("error", "Ranks reach different collectives at the same place of their order."),
    "collective-group": Rule("error", "Ranks use their groups in different orders, or make them of different ranks."),
    "collective-shape": Rule("error", "Ranks give tensors of different shapes to one collective."),
    "collective-root": Rule("error", "Ranks name different roots of one collective."),
    "collective-threads": Rule("error", "Two threads of one rank use one group, so their order can differ by rank."),
    "point-to-point": Rule("error", "Ranks wait for each other in send and recv."),
    "lock-order": Rule("error", "Threads take the same locks in different orders."),
    "lock-again": Rule("error", "A thread takes a lock that it holds and that is not re-entrant."),
    "lock-held": Rule("error", "A thread holds a lock while it waits for a thread that needs this lock."),
    "lock-not-released": Rule("warning", "An exception leaves a lock taken."),
    "queue-deadlock": Rule("error", "The ends of a bounded queue wait for each other."),
    "queue-join": Rule("warning", "A process is joined before its queue is read, and ends only if a pipe holds its items."),
    "never-signalled": Rule("error", "A thread waits for something that nobody gives any more."),
    "pool-deadlock": Rule("error", "A task waits for a task that its own pool has no thread for."),
    "fork-after-threads": Rule("warning", "A process forks while it has other threads, whose locks stay taken in the child."),
    "race": Rule("error", "Two threads update a value without a common lock, so updates get lost."),
    "read-before-join": Rule("warning", "A thread's result is read although nothing says that it is there yet."),
    "suppression": Rule("warning", "A comment suppresses a finding without a reason, or suppresses nothing."),
}
"""Rules by name. The package's README lists the same rules."""


class TraceStep(NamedTuple):
    """One step in the trace of a thread or rank."""

    file: str
    line: int
    says: str

    @property
    def location(self) -> tuple[str, int]:
        return self.file, self.line


@dataclass(frozen=True)
class ConcurrencyFinding:
    rule: str
    file: str
    line: int
    message: str
    paths: Sequence[tuple[str, Sequence[TraceStep]]] = ()
    """(name of the thread or rank, its trace) pairs."""
    related_locations: frozenset[tuple[str, int]] = field(default_factory=frozenset[tuple[str, int]])
    """Other (file, line) pairs where a comment may suppress the finding."""
    condition: TraceStep | None = None
    """Data-dependent decision that must differ between ranks. None: the finding is unconditional."""

    @property
    def severity(self) -> str:
        return RULES[self.rule].severity if self.condition is None else CONDITIONAL

    @property
    def locations(self) -> frozenset[tuple[str, int]]:
        return self.related_locations | {(self.file, self.line)}


def finding_at(
    rule: str,
    step: TraceStep,
    message: str,
    paths: Sequence[tuple[str, Sequence[TraceStep]]] = (),
    related: Iterable[TraceStep] = (),
) -> ConcurrencyFinding:
    """Return a finding about one step. A comment at a related step may suppress it too."""
    return ConcurrencyFinding(rule, *step.location, message, paths, frozenset(other.location for other in related))


_COMMENT = re.compile(r"#\s*convtwins:\s*ignore\b(?:\s*\[([^\]]*)\])?(?:\s+because\s+(\S.*))?")


class Suppression(NamedTuple):
    rules: frozenset[str]
    reason: str


def parse_suppressions(source: str) -> dict[int, Suppression]:
    """Return the suppression comments of a file by line.

    A comment alone on its line applies to the next line of code.
    """
    if "convtwins:" not in source:
        return {}
    suppressions_by_line: dict[int, Suppression] = {}
    pending: list[Suppression] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and (match := _COMMENT.search(token.string)):
            rules = frozenset(filter(None, (name.strip() for name in (match[1] or "").split(","))))
            suppression = Suppression(rules, (match[2] or "").strip())
            if token.line.lstrip().startswith("#"):
                pending.append(suppression)
            else:
                suppressions_by_line[token.start[0]] = suppression
        elif pending and token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE):
            suppressions_by_line[token.start[0]] = pending.pop()
            pending.clear()
    return suppressions_by_line


def apply_suppressions(
    findings: Sequence[ConcurrencyFinding], comments: Mapping[str, Mapping[int, Suppression]]
) -> tuple[list[ConcurrencyFinding], list[tuple[ConcurrencyFinding, str]]]:
    """Return (remaining findings, suppressed findings with their reasons).

    A comment without a rule or a reason, for an unknown rule, or that suppresses nothing is a finding itself.

    Args:
        comments: results of `parse_suppressions` by file.
    """
    remaining: list[ConcurrencyFinding] = []
    suppressed: list[tuple[ConcurrencyFinding, str]] = []
    used_locations: set[tuple[str, int]] = set()
    for finding in findings:
        matches = [
            (location, suppression)
            for location in sorted(finding.locations)
            if (suppression := comments.get(location[0], {}).get(location[1])) and finding.rule in suppression.rules
        ]
        used_locations.update(location for location, _ in matches)
        reasons = [suppression.reason for _, suppression in matches if suppression.reason]
        if reasons:
            suppressed.append((finding, reasons[0]))
        else:
            remaining.append(finding)
    for file, file_comments in comments.items():
        for line, suppression in file_comments.items():
            unknown = sorted(suppression.rules - RULES.keys())
            if unknown:
                message = f"There is no rule {', '.join(unknown)}."
            elif not suppression.reason or not suppression.rules:
                message = "A suppression needs a rule and a reason: `# convtwins: ignore[rule] because ...`."
            elif (file, line) not in used_locations:
                message = (
                    f"Nothing is found here that {', '.join(sorted(suppression.rules))} would suppress. Remove the comment."
                )
            else:
                continue
            remaining.append(ConcurrencyFinding("suppression", file, line, message))
    remaining.sort(key=lambda finding: (finding.file, finding.line, finding.rule))
    return remaining, suppressed
