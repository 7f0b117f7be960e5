"""Verdicts in sentences: who, against whom, by how much, how surely, under which conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from compare.core import verdict_words, wording
from compare.core.statistics import VERDICT_PAIRS, JudgedRatio
from compare.execution.matrix import Row
from compare.execution.store import StoredComparison
from compare.judgement.cautions import RESUME_PLACEHOLDER, advice, is_reproduction
from compare.judgement.conditions import DIVISION_WORDS, MODE_CONDITIONS, division
from compare.judgement.row_figures import Summary
from compare.judgement.run_pairs import finished_runs, serial_row_of, uses_accelerator
from compare.judgement.summary import Family

DISTURBED = " Other work disturbed it: do not rely on this."
NO_FINDING = " Other work disturbed these runs. Make them again on an idle machine."
"""End of a sentence that gives no ratio."""
RERUN_ADVICE = f"{NO_FINDING.removesuffix('.')}: {RESUME_PLACEHOLDER} --again disturbed."
"""End of such a sentence on a stored comparison, which can repeat its runs."""
_REPEATS_NEEDED = f"A verdict needs {VERDICT_PAIRS} repeats."
RERUN_WITH_MORE_REPEATS = f"{RERUN_ADVICE.removesuffix('.')} --repeats {VERDICT_PAIRS}. {_REPEATS_NEEDED}"
"""End of such a sentence on a stored comparison with fewer repeats than a verdict needs."""
UNWATCHED = " Too short to tell whether other work disturbed it: do not rely on this."
LATE_LOSSES = " Its losses came after the clock had stopped, so some work may not be timed: do not rely on this."
NOT_PROVED = " The same training is not proved."

_DECISIVE_SWITCHES = ("graph", "memory_format")
"""Switches whose values stand in every verdict, whether the spec names them or not: they decide most of the time."""


class _Verdict(NamedTuple):
    text: str
    """Sentence that names who, against whom, by how much, how surely."""
    conditions: dict[str, str]
    """Conditions that decide the times, by name, in the order of reading."""
    doubt: str
    has_advice: bool = False
    """Whether the doubt says how to repeat the runs."""


def doubt_warning(*summaries: Summary) -> str:
    """The warning behind a sentence on the times of these rows. Empty if nothing disturbed them."""
    if any(summary.disturbed for summary in summaries):
        return DISTURBED
    if any(summary.clock_caution is not None for summary in summaries):
        return LATE_LOSSES
    return UNWATCHED if any(summary.unwatched for summary in summaries) else ""


def proof_warning(*summaries: Summary) -> str:
    """The warning behind a verdict on these rows, if the proof of one failed or broke off."""
    return NOT_PROVED if any(summary.parity == "not proved" for summary in summaries) else ""


def _verdict(stored: StoredComparison, text: str, subject: str, conditions: dict[str, str], *summaries: Summary) -> _Verdict:
    """The verdict on the times of these rows. If other work disturbed one, it gives no ratio."""
    if any(summary.disturbed for summary in summaries):
        doubt = RERUN_ADVICE
        if min(summary.repeats for summary in summaries) < VERDICT_PAIRS:
            doubt = (
                f"{RERUN_ADVICE} {_REPEATS_NEEDED}{advice(stored, '')}" if is_reproduction(stored) else RERUN_WITH_MORE_REPEATS
            )
        return _Verdict(f"{subject}: no finding", conditions, doubt, has_advice=True)
    return _Verdict(text, conditions, proof_warning(*summaries) + doubt_warning(*summaries))


def contestant_sentences(stored: StoredComparison, judged_family: Family) -> list[str]:
    """Which framework is faster, one sentence for each configuration that both ran."""
    return _sentences(_contestant_verdicts(stored, judged_family), ": ")


def _contestant_verdicts(stored: StoredComparison, judged_family: Family) -> list[_Verdict]:
    pairs = [(first, second) for first, second, _ in judged_family.contestants]
    verdicts: list[_Verdict] = []
    for (first, second, seconds), switches in zip(judged_family.contestants, _switch_words(stored, pairs), strict=True):
        kind = division(stored, _row(stored, first), _row(stored, second)).kind
        # The line of the division says why, see `conditions.division_sentences`.
        conditions = _conditions(stored, first, switches, DIVISION_WORDS[kind], mode=_mode(stored, first))
        text = verdict_words.faster(seconds, first.contestant, second.contestant)
        verdicts.append(_verdict(stored, text, f"{first.contestant} against {second.contestant}", conditions, first, second))
    return verdicts


def mode_sentences(stored: StoredComparison, summaries: Sequence[Summary], judged_family: Family) -> list[str]:
    """Which parallel modes pay, one sentence for each. They stand below those of `contestant_sentences`."""
    by_id = {summary.id: summary for summary in summaries}
    pairs = [
        (by_id[row.id], by_id[serial.id])
        for row in stored.comparison.rows
        if row.id in judged_family.modes and (serial := serial_row_of(stored.comparison, row)) is not None
    ]
    verdicts: list[_Verdict] = []
    for (summary, serial), switches in zip(pairs, _switch_words(stored, [(summary,) for summary, _ in pairs]), strict=True):
        mode_division = division(stored, _row(stored, serial), _row(stored, summary), MODE_CONDITIONS)
        words = "conditions equal but for the mode (closed division)" if mode_division.kind == "closed" else mode_division.words
        conditions = _conditions(stored, summary, switches, words)
        text = _mode_sentence(summary, judged_family.modes[summary.id])
        verdicts.append(_verdict(stored, text, summary.name, conditions, summary, serial))
    return _sentences(verdicts, "; ", _contestant_verdicts(stored, judged_family))


def _mode_sentence(summary: Summary, speedup: JudgedRatio) -> str:
    times = f"{verdict_words.interval_words(speedup.ratio)} times as fast as serial on {wording.count(summary.cores, 'core')}"
    if speedup.verdict == "too few repeats to tell":
        pairs = f"({speedup.ratio.n} of {VERDICT_PAIRS})"
        return f"{summary.name}: too few repeats to tell {pairs}; it is {times} here"
    word = verdict_words.speedup_verdict(speedup)
    start = f"{summary.name} {word}: it" if speedup.verdict in ("above", "below") else f"{summary.name}: {word}; it"
    return f"{start} is {times}{verdict_words.p_value_text(speedup)}"


def _shared_conditions(verdicts: Sequence[_Verdict]) -> dict[str, str]:
    """Conditions that all verdicts share. Empty for fewer than two verdicts."""
    if len(verdicts) < 2:
        return {}
    first = verdicts[0].conditions
    return {name: words for name, words in first.items() if all(verdict.conditions.get(name) == words for verdict in verdicts)}


def _sentences(verdicts: Sequence[_Verdict], separator: str, above: Sequence[_Verdict] = ()) -> list[str]:
    """Sentences of the verdicts. Shared conditions are said once before them, and a shared doubt once after them.

    Args:
        above: verdicts that stand above these in the report.
    """
    shared = _shared_conditions(verdicts)
    sentences = [f"All with {', '.join(shared.values())}."] if shared else []
    if (shared_above := _shared_conditions(above)) and shared_above.keys() <= shared.keys():
        new = [words for name, words in shared.items() if shared_above.get(name) != words]
        sentences = [f"All {', '.join(['as above', *new])}."]
    doubts_with_advice = [[verdict.doubt for verdict in group if verdict.has_advice] for group in (verdicts, above)]
    is_advice_last = max(map(len, doubts_with_advice)) > 1
    for verdict in verdicts:
        own_conditions = ", ".join(words for name, words in verdict.conditions.items() if name not in shared)
        doubt = "" if verdict.has_advice and is_advice_last else verdict.doubt
        sentences.append(f"{verdict.text}{separator if own_conditions else ''}{own_conditions}.{doubt}")
    if is_advice_last and len(doubts_with_advice[1]) < 2:
        sentences.append(f"No finding:{max(doubts_with_advice[0], key=len, default=RERUN_ADVICE)}")
    return sentences


def _conditions(stored: StoredComparison, summary: Summary, switches: str, division: str, **mode: str) -> dict[str, str]:
    """Conditions that decide a row's times, by name."""
    spec, facts = _row(stored, summary).spec, stored.comparison.machine
    place = ", ".join(dict.fromkeys(facts.get("gpus") or ())) if uses_accelerator(summary.device) else facts.get("processor")
    place = place or summary.device
    return {
        "model": spec.model_label,
        "batch": f"batch {spec.global_batch_size}",
        "precision": spec.precision,
        **mode,
        "switches": switches,
        **({"machine": f"on {place}"} if place else {}),
        "division": division,
        **({"row": f"row {summary.configuration}"} if summary.shares_name else {}),
    }


def _mode(stored: StoredComparison, summary: Summary) -> str:
    kind = "Dask" if summary.input == "dask" else "input"
    workers = "" if summary.input == "inline" else f" with {wording.count(summary.workers, f'{kind} worker')}"
    hosts = len(_row(stored, summary).spec.hosts)
    name = f"{summary.mode} x{summary.replicas}" if summary.is_parallel else summary.mode
    return f"{name} on {wording.count(summary.cores, 'core')}{f' of {hosts} hosts' if hosts else ''}{workers}"


def _switch_words(stored: StoredComparison, groups: Sequence[Sequence[Summary]]) -> list[str]:
    """For each group of rows, the level of its switches, with those that decide most or that the spec names.

    If each framework has the same ones in all rows, every group names those of all frameworks. So they can be said once.
    """
    by_contestant: dict[str, set[str]] = {}
    for summary in (summary for group in groups for summary in group):
        by_contestant.setdefault(summary.contestant, set()).add(_switches(stored, summary))
    is_uniform = all(len(words) == 1 for words in by_contestant.values())
    words_by_contestant = {contestant: next(iter(words)) for contestant, words in by_contestant.items()}
    return [
        _level(
            _row(stored, group[0]),
            words_by_contestant if is_uniform else {summary.contestant: _switches(stored, summary) for summary in group},
        )
        for group in groups
    ]


def _level(row: Row, by_contestant: Mapping[str, str]) -> str:
    words_by_contestant = ", ".join(f"{contestant} {words}" for contestant, words in by_contestant.items() if words)
    return f"switches {row.spec.switches}{f' ({words_by_contestant})' if words_by_contestant else ''}"


def _switches(stored: StoredComparison, summary: Summary) -> str:
    row = _row(stored, summary)
    recorded = next((result.switches for result in finished_runs(stored, row).values() if result.switches), {})
    decisive = [str(recorded[name]) for name in _DECISIVE_SWITCHES if name in recorded]
    named = [
        f"{name}={value}"
        for name, value in row.spec.framework_options.items()
        if name not in recorded or name not in _DECISIVE_SWITCHES
    ]
    return " ".join([*decisive, *named])


def _row(stored: StoredComparison, summary: Summary) -> Row:
    return next(row for row in stored.comparison.rows if row.id == summary.id)
