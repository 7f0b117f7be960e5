"""Verdicts as statements: who, against whom, by how much, how surely, under which conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from common.machine.machine import cpu_name
from compare.cli import wording
from compare.judgement.cautions import AGAIN_DISTURBED, advice, is_reproduction
from compare.judgement.conditions import DIVISION_WORDS, INPUT_CONDITIONS, MODE_CONDITIONS, division
from compare.judgement.row_figures import Doubt, Summary
from compare.judgement.run_pairs import finished_runs, serial_row_of, uses_accelerator
from compare.judgement.statement import Advice, Statement
from compare.judgement.summary import Family
from compare.results.store import StoredComparison
from compare.running.matrix import Row
from compare.statistics.statistics import VERDICT_PAIRS, JudgedRatio

AGAIN = Advice(kind="again_when_idle", options=AGAIN_DISTURBED)
"""Advice on a stored comparison that other work disturbed."""

_DECISIVE_SWITCHES = ("graph", "memory_format")
"""Switches whose values stand in every verdict, whether the spec names them or not: they decide most of the time."""


def doubt(*summaries: Summary) -> Doubt | None:
    """Why the times of these rows are not reliable. None if they are."""
    if any(summary.disturbed for summary in summaries):
        return "disturbed"
    if any(summary.clock_caution is not None for summary in summaries):
        return "late_losses"
    return "unwatched" if any(summary.unwatched for summary in summaries) else None


def is_proof_missing(*summaries: Summary) -> bool:
    """Whether the proof of one of these rows failed or broke off."""
    return any(summary.parity == "not proved" for summary in summaries)


def _verdict(
    stored: StoredComparison, kind: str, judged: JudgedRatio, conditions: dict[str, str], *summaries: Summary, base: str = ""
) -> Statement:
    """The verdict on the times of these rows. If other work disturbed one, it has advice and its words give no ratio.

    Args:
        base: what the first row is compared with, in words. Empty: the other contestant.
    """
    why_doubtful = doubt(*summaries)
    return Statement(
        kind=kind,
        level="finding",
        rows=tuple(summary.id for summary in summaries),
        values={
            "contestants": [summary.contestant for summary in summaries],
            "judged": judged.model_dump(),
            "cores": summaries[0].cores,
            "base": base,
            "conditions": {**conditions},
            "doubt": why_doubtful,
            "proof_missing": is_proof_missing(*summaries),
        },
        advice=_again(stored, summaries) if why_doubtful == "disturbed" else None,
    )


def _again(stored: StoredComparison, summaries: Sequence[Summary]) -> Advice:
    """Advice to make disturbed runs again. A reproduction has the repeats of its scale."""
    if min(summary.repeats for summary in summaries) >= VERDICT_PAIRS:
        return AGAIN
    if not is_reproduction(stored):
        return Advice(kind="again_with_repeats", options=(*AGAIN_DISTURBED, "--repeats", str(VERDICT_PAIRS)))
    return Advice(kind="again_at_scale" if advice(stored, "") else "again_with_repeats", options=AGAIN_DISTURBED)


def contestant_statements(stored: StoredComparison, judged_family: Family) -> list[Statement]:
    """Which framework is faster, one statement for each configuration that both ran."""
    return _with_shared_conditions(_contestant_verdicts(stored, judged_family))


def _contestant_verdicts(stored: StoredComparison, judged_family: Family) -> list[Statement]:
    pairs = [(first, second) for first, second, _ in judged_family.contestants]
    verdicts: list[Statement] = []
    for (first, second, seconds), switches in zip(judged_family.contestants, _switch_words(stored, pairs), strict=True):
        kind = division(stored, _row(stored, first), _row(stored, second)).kind
        # The line of the division says why, see `conditions.division_statements`.
        conditions = _conditions(stored, first, switches, DIVISION_WORDS[kind], mode=_mode(stored, first))
        verdicts.append(_verdict(stored, "contestants_compared", seconds, conditions, first, second))
    return verdicts


def mode_statements(stored: StoredComparison, summaries: Sequence[Summary], judged_family: Family) -> list[Statement]:
    """Which parallel modes pay, one statement for each. They stand below those of `contestant_statements`."""
    by_id = {summary.id: summary for summary in summaries}
    pairs = [
        (by_id[row.id], by_id[serial.id])
        for row in stored.comparison.rows
        if row.id in judged_family.modes and (serial := serial_row_of(stored.comparison, row)) is not None
    ]
    verdicts: list[Statement] = []
    for (summary, serial), switches in zip(pairs, _switch_words(stored, [(summary,) for summary, _ in pairs]), strict=True):
        mode_division = division(stored, _row(stored, serial), _row(stored, summary), MODE_CONDITIONS)
        words = "equal settings except the mode (closed division)" if mode_division.kind == "closed" else mode_division.words
        conditions = _conditions(stored, summary, switches, words)
        base = f"serial on {wording.count(summary.cores, 'core')}"
        verdicts.append(
            _verdict(stored, "mode_compared", judged_family.modes[summary.id], conditions, summary, serial, base=base)
        )
    return _with_shared_conditions(verdicts, _contestant_verdicts(stored, judged_family))


def input_statements(stored: StoredComparison, judged_family: Family) -> list[Statement]:
    """Which inputs pay, one statement for each. They stand below those of `mode_statements`."""
    pairs = [(row,) for row, _, _ in judged_family.inputs]
    verdicts: list[Statement] = []
    for (row, base, judged), switches in zip(judged_family.inputs, _switch_words(stored, pairs), strict=True):
        input_division = division(stored, _row(stored, base), _row(stored, row), INPUT_CONDITIONS)
        words = "equal settings except the input (closed division)" if input_division.kind == "closed" else input_division.words
        conditions = _conditions(stored, row, switches, words)
        verdicts.append(_verdict(stored, "input_compared", judged, conditions, row, base, base=f"the input {base.input_words}"))
    return _with_shared_conditions(verdicts, _contestant_verdicts(stored, judged_family))


def _shared_conditions(verdicts: Sequence[Statement]) -> dict[str, JsonValue]:
    """Conditions that all verdicts share. Empty for fewer than two verdicts."""
    if len(verdicts) < 2:
        return {}
    first, *others = [_conditions_of(verdict) for verdict in verdicts]
    return {name: words for name, words in first.items() if all(other.get(name) == words for other in others)}


def _conditions_of(verdict: Statement) -> dict[str, JsonValue]:
    conditions = verdict.values["conditions"]
    return conditions if isinstance(conditions, dict) else {}


def _with_shared_conditions(verdicts: Sequence[Statement], above: Sequence[Statement] = ()) -> list[Statement]:
    """Verdicts between a statement on the conditions that all share, and the advice that several have.

    Args:
        above: verdicts that stand above these in the report.
    """
    shared, shared_above = _shared_conditions(verdicts), _shared_conditions(above)
    is_as_above = bool(shared_above) and shared_above.keys() <= shared.keys()
    statements: list[Statement] = []
    if shared:
        new = {name: words for name, words in shared.items() if not is_as_above or shared_above.get(name) != words}
        statements.append(
            Statement(kind="shared_conditions", level="info", values={"conditions": new, "as_above": is_as_above})
        )
    advised, advised_above = ([verdict for verdict in group if verdict.advice is not None] for group in (verdicts, above))
    is_advice_last = max(len(advised), len(advised_above)) > 1
    statements += [
        verdict.model_copy(
            update={
                "values": {**verdict.values, "shared_conditions": [*shared]},
                "advice": None if is_advice_last else verdict.advice,
            }
        )
        for verdict in verdicts
    ]
    if is_advice_last and len(advised_above) < 2:
        more_repeats_first = sorted(advised, key=lambda verdict: verdict.advice == AGAIN)
        statements.append(Statement(kind="no_finding", level="caution", advice=more_repeats_first[0].advice))
    return statements


def _conditions(stored: StoredComparison, summary: Summary, switches: str, division: str, **mode: str) -> dict[str, str]:
    """Conditions that decide a row's times, by name."""
    spec, facts = _row(stored, summary).spec, stored.comparison.machine
    place = ", ".join(dict.fromkeys(facts.get("gpus") or ())) if uses_accelerator(summary.device) else cpu_name(facts)
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
