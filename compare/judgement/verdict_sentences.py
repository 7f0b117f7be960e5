"""Verdicts in sentences: who, against whom, by how much, how surely, under which conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from compare.core import verdict_words, wording
from compare.core.statistics import VERDICT_PAIRS, Judged
from compare.execution.matrix import Row
from compare.execution.store import Stored
from compare.judgement.cautions import RESUME, advice, is_reproduction
from compare.judgement.conditions import OF_THE_MODE, WORDS, division
from compare.judgement.row_figures import Summary
from compare.judgement.summary import Family, accelerated, measured, serial_of

DISTURBED = " Other work disturbed it: do not rely on this."
NO_FINDING = " Other work disturbed these runs. Make them again on an idle machine."
"""Behind a sentence that gives no ratio."""
MAKE_AGAIN = f"{NO_FINDING.removesuffix('.')}: {RESUME} --again disturbed."
"""The same of a stored comparison, which can make them again."""
_NEEDED = f"A verdict needs {VERDICT_PAIRS} repeats."
MAKE_MORE = f"{MAKE_AGAIN.removesuffix('.')} --repeats {VERDICT_PAIRS}. {_NEEDED}"
"""The same of one with fewer repeats than a verdict needs."""
UNWATCHED = " Too short to tell whether other work disturbed it: do not rely on this."
LATE = " Its losses came after the clock had stopped, so some work may not be timed: do not rely on this."
NOT_PROVED = " The same training is not proved."

_TELLING = ("graph", "memory_format")
"""Switches whose values stand in every verdict, whether the spec names them or not: they decide most of the time."""


class _Verdict(NamedTuple):
    said: str
    """Who, against whom, by how much, how surely."""
    conditions: dict[str, str]
    """What decides the times, by name, in the order of reading."""
    doubt: str
    advised: bool = False
    """Whether the doubt says how to make the runs again."""


def doubt_of(*compared: Summary) -> str:
    """The warning behind a sentence on the times of these rows. Empty if nothing disturbed them."""
    if any(summary.disturbed for summary in compared):
        return DISTURBED
    if any(summary.clock_caution is not None for summary in compared):
        return LATE
    return UNWATCHED if any(summary.unwatched for summary in compared) else ""


def unproved(*compared: Summary) -> str:
    """The warning behind a verdict on these rows, if the proof of one failed or broke off."""
    return NOT_PROVED if any(summary.parity == "not proved" for summary in compared) else ""


def _verdict(stored: Stored, said: str, who: str, conditions: dict[str, str], *compared: Summary) -> _Verdict:
    """The verdict on the times of these rows. If other work disturbed one, no ratio is said."""
    if any(summary.disturbed for summary in compared):
        doubt = MAKE_AGAIN
        if min(summary.repeats for summary in compared) < VERDICT_PAIRS:
            doubt = f"{MAKE_AGAIN} {_NEEDED}{advice(stored, '')}" if is_reproduction(stored) else MAKE_MORE
        return _Verdict(f"{who}: no finding", conditions, doubt, advised=True)
    return _Verdict(said, conditions, unproved(*compared) + doubt_of(*compared))


def of_contestants(stored: Stored, judged: Family) -> list[str]:
    """Which framework is faster, one sentence for each configuration that both ran."""
    return _sentences(_of_contestants(stored, judged), ": ")


def _of_contestants(stored: Stored, judged: Family) -> list[_Verdict]:
    pairs = [(first, second) for first, second, _ in judged.contestants]
    verdicts: list[_Verdict] = []
    for (first, second, seconds), switches in zip(judged.contestants, _settings(stored, pairs), strict=True):
        kind = division(stored, _row(stored, first), _row(stored, second)).kind
        # The line of the division says why, see `conditions.lines`.
        conditions = _conditions(stored, first, switches, WORDS[kind], mode=_mode(stored, first))
        said = verdict_words.faster(seconds, first.contestant, second.contestant)
        verdicts.append(_verdict(stored, said, f"{first.contestant} against {second.contestant}", conditions, first, second))
    return verdicts


def of_modes(stored: Stored, summaries: Sequence[Summary], judged: Family) -> list[str]:
    """Which parallel modes pay, one sentence for each. They stand below those of `of_contestants`."""
    by_id = {summary.id: summary for summary in summaries}
    pairs = [
        (by_id[row.id], by_id[serial.id])
        for row in stored.comparison.rows
        if row.id in judged.modes and (serial := serial_of(stored.comparison, row)) is not None
    ]
    verdicts: list[_Verdict] = []
    for (summary, serial), switches in zip(pairs, _settings(stored, [(summary,) for summary, _ in pairs]), strict=True):
        found = division(stored, _row(stored, serial), _row(stored, summary), OF_THE_MODE)
        words = "conditions equal but for the mode (closed division)" if found.kind == "closed" else found.words
        conditions = _conditions(stored, summary, switches, words)
        said = _pays(summary, judged.modes[summary.id])
        verdicts.append(_verdict(stored, said, summary.name, conditions, summary, serial))
    return _sentences(verdicts, "; ", _of_contestants(stored, judged))


def _pays(summary: Summary, speedup: Judged) -> str:
    times = f"{verdict_words.interval_words(speedup.ratio)} times as fast as serial on {wording.count(summary.cores, 'core')}"
    if speedup.verdict == "too few repeats to tell":
        pairs = f"({speedup.ratio.n} of {VERDICT_PAIRS})"
        return f"{summary.name}: too few repeats to tell {pairs}; it is {times} here"
    word = verdict_words.pays(speedup)
    said = f"{summary.name} {word}: it" if speedup.verdict in ("above", "below") else f"{summary.name}: {word}; it"
    return f"{said} is {times}{verdict_words.surety(speedup)}"


def _shared(verdicts: Sequence[_Verdict]) -> dict[str, str]:
    """The conditions of all, if there are several verdicts."""
    if len(verdicts) < 2:
        return {}
    first = verdicts[0].conditions
    return {name: words for name, words in first.items() if all(each.conditions.get(name) == words for each in verdicts)}


def _sentences(verdicts: Sequence[_Verdict], separator: str, above: Sequence[_Verdict] = ()) -> list[str]:
    """The verdicts. Conditions that several share are said once, before them, and a doubt that several share after them.

    Args:
        above: the verdicts above these.
    """
    shared = _shared(verdicts)
    said = [f"All with {', '.join(shared.values())}."] if shared else []
    if (before := _shared(above)) and before.keys() <= shared.keys():
        new = [words for name, words in shared.items() if before.get(name) != words]
        said = [f"All {', '.join(['as above', *new])}."]
    advised = [[verdict.doubt for verdict in each if verdict.advised] for each in (verdicts, above)]
    at_the_end = max(map(len, advised)) > 1
    for verdict in verdicts:
        own = ", ".join(words for name, words in verdict.conditions.items() if name not in shared)
        doubt = "" if verdict.advised and at_the_end else verdict.doubt
        said.append(f"{verdict.said}{separator if own else ''}{own}.{doubt}")
    if at_the_end and len(advised[1]) < 2:
        said.append(f"No finding:{max(advised[0], key=len, default=MAKE_AGAIN)}")
    return said


def _conditions(stored: Stored, summary: Summary, switches: str, division: str, **mode: str) -> dict[str, str]:
    """What decides a row's times."""
    spec, facts = _row(stored, summary).spec, stored.comparison.machine
    place = ", ".join(dict.fromkeys(facts.get("gpus") or ())) if accelerated(summary.device) else facts.get("processor")
    place = place or summary.device
    return {
        "model": spec.model_words,
        "batch": f"batch {spec.global_batch_size}",
        "precision": spec.precision,
        **mode,
        "switches": switches,
        **({"machine": f"on {place}"} if place else {}),
        "division": division,
        **({"row": f"row {summary.configuration}"} if summary.shares_name else {}),
    }


def _mode(stored: Stored, summary: Summary) -> str:
    kind = "Dask" if summary.input == "dask" else "input"
    workers = "" if summary.input == "inline" else f" with {wording.count(summary.workers, f'{kind} worker')}"
    hosts = len(_row(stored, summary).spec.hosts)
    name = summary.mode if summary.mode == "serial" else f"{summary.mode} x{summary.replicas}"
    return f"{name} on {wording.count(summary.cores, 'core')}{f' of {hosts} hosts' if hosts else ''}{workers}"


def _settings(stored: Stored, groups: Sequence[Sequence[Summary]]) -> list[str]:
    """For each group of rows, the level of its switches, with those that decide most or that the spec names.

    If each framework has the same ones in all rows, every group names those of all frameworks. So they can be said once.
    """
    by_contestant: dict[str, set[str]] = {}
    for summary in (each for group in groups for each in group):
        by_contestant.setdefault(summary.contestant, set()).add(_switches(stored, summary))
    alike = all(len(each) == 1 for each in by_contestant.values())
    together = {contestant: next(iter(each)) for contestant, each in by_contestant.items()}
    return [
        _level(_row(stored, group[0]), together if alike else {each.contestant: _switches(stored, each) for each in group})
        for group in groups
    ]


def _level(row: Row, by_contestant: Mapping[str, str]) -> str:
    named = ", ".join(f"{contestant} {words}" for contestant, words in by_contestant.items() if words)
    return f"switches {row.spec.switches}{f' ({named})' if named else ''}"


def _switches(stored: Stored, summary: Summary) -> str:
    row = _row(stored, summary)
    ran = next((result.switches for result in measured(stored, row).values() if result.switches), {})
    telling = [str(ran[name]) for name in _TELLING if name in ran]
    named = [f"{name}={value}" for name, value in row.spec.framework_options.items() if name not in ran or name not in _TELLING]
    return " ".join([*telling, *named])


def _row(stored: Stored, summary: Summary) -> Row:
    return next(row for row in stored.comparison.rows if row.id == summary.id)
