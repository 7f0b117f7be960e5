"""Results of a comparison: one record for each row, computed once for every table and plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, permutations
from typing import NamedTuple

from compare.judgement import sameness
from compare.judgement.figures import all_figures
from compare.judgement.row_figures import DISTURBED, NOT_COMPARABLE, Summary
from compare.judgement.row_values import RowRuns
from compare.judgement.run_pairs import ratio_of_seconds, serial_row_of, uses_accelerator
from compare.results.store import Comparison, StoredComparison
from compare.running import matrix
from compare.statistics.statistics import JudgedRatio, verdicts
from compare.statistics.verdict_words import speedup_verdict


class Family(NamedTuple):
    """All ratios of a report that get a verdict, judged together."""

    contestants: list[tuple[Summary, Summary, JudgedRatio]]
    """Rows that differ by their framework alone, and seconds of the second over seconds of the first."""
    modes: dict[str, JudgedRatio]
    """Row id: speed-up of a parallel mode over serial on the same cores."""
    inputs: list[tuple[Summary, Summary, JudgedRatio]]
    """Rows that differ by their input alone, the second as the base, and seconds of the second over seconds of the first."""

    @property
    def judged(self) -> list[JudgedRatio]:
        contestants, inputs = ([judged for _, _, judged in pairs] for pairs in (self.contestants, self.inputs))
        return [*contestants, *self.modes.values(), *inputs]


def summarize(stored: StoredComparison) -> list[Summary]:
    """Summarize all rows of a comparison, in its order."""
    first_summaries = [_summary(RowRuns(stored, row)) for row in stored.comparison.rows]
    name_counts = Counter(summary.name for summary in first_summaries)
    first_summaries = [summary.model_copy(update={"shares_name": name_counts[summary.name] > 1}) for summary in first_summaries]
    comparable = sameness.is_comparable(stored, first_summaries)
    modes = family(stored, first_summaries).modes if comparable else {}
    unreliable = {summary.id for summary in first_summaries if summary.disturbed}
    summaries: list[Summary] = []
    for row, summary in zip(stored.comparison.rows, first_summaries, strict=True):
        one_core, same_cores = serial_row_of(stored.comparison, row, cores=1), serial_row_of(stored.comparison, row)
        resources = same_cores if uses_accelerator(summary.device) else one_core
        bases = {"speedup_one_core": one_core, "speedup_same_cores": same_cores, "parallel_efficiency": resources}
        hidden = {
            name: DISTURBED if comparable else NOT_COMPARABLE
            for name, base in bases.items()
            if base and getattr(summary, name) and (not comparable or unreliable & {row.id, base.id})
        }
        pays_word = hidden.get("speedup_same_cores") or speedup_verdict(modes.get(row.id))
        summaries.append(summary.model_copy(update={"pays": pays_word, "hidden_ratios": hidden}))
    return summaries


def _summary(runs: RowRuns) -> Summary:
    return Summary.model_validate({figure.name: figure.of_row(runs) for figure in all_figures() if figure.is_in_summary})


def family(stored: StoredComparison, summaries: Sequence[Summary]) -> Family:
    """All comparisons that get a sentence, judged as one family.

    Frameworks are compared with each other, modes with serial, and inputs with inline or the first one.
    """
    rows = {row.id: row for row in stored.comparison.rows}
    pairs = [
        (first, second, ratio)
        for first, second in combinations(summaries, 2)
        if first.device == second.device
        and matrix.same_except_contestant(rows[first.id], rows[second.id])
        and (ratio := ratio_of_seconds(stored, slow=rows[second.id], fast=rows[first.id])) is not None
    ]
    modes = [
        (summary.id, summary.speedup_same_cores)
        for summary in summaries
        if summary.is_parallel and summary.speedup_same_cores is not None
    ]
    by_id, all_rows = {summary.id: summary for summary in summaries}, list(rows.values())
    inputs = [
        (by_id[row.id], by_id[base.id], ratio)
        for row in all_rows
        if (base := matrix.input_base_of(all_rows, row)) is not None
        and (ratio := ratio_of_seconds(stored, slow=base, fast=row)) is not None
    ]
    named_pairs, named_inputs = (
        [(_pair_name(first, second), ratio) for first, second, ratio in compared] for compared in (pairs, inputs)
    )
    named_ratios = [*named_pairs, *modes, *named_inputs]
    until = stored.comparison.settings.until
    judged = verdicts(named_ratios, until.smallest_effect if until else None)
    contestants = [(first, second, judged_pair) for (first, second, _), judged_pair in zip(pairs, judged, strict=False)]
    judged_modes, judged_inputs = judged[len(pairs) : len(pairs) + len(modes)], judged[len(pairs) + len(modes) :]
    return Family(
        contestants,
        {judged_mode.name: judged_mode for judged_mode in judged_modes},
        [(row, base, judged_input) for (row, base, _), judged_input in zip(inputs, judged_inputs, strict=True)],
    )


def compared_row_ids(comparison: Comparison, judged: JudgedRatio) -> list[str]:
    """Ids of the two rows of a judged comparison."""
    row = next((row for row in comparison.rows if row.id == judged.name), None)
    if row is None:
        return next(
            [one.id, other.id] for one, other in permutations(comparison.rows, 2) if _pair_name(one, other) == judged.name
        )
    serial = serial_row_of(comparison, row)
    return [row.id, *([serial.id] if serial else [])]


def _pair_name(one: matrix.Row | Summary, other: matrix.Row | Summary) -> str:
    return f"{one.id} against {other.id}"


def has_comparisons(comparison: Comparison) -> bool:
    """Whether two rows that can be run differ by their contestant or input alone, or one is a parallel mode with its serial
    row.
    """
    rows = [row for row in comparison.rows if row.unavailable is None]
    is_pair = (matrix.same_except_contestant, matrix.same_except_input)
    if any(same(one, other) for one, other in combinations(rows, 2) for same in is_pair):
        return True
    return any(row.spec.is_parallel and serial_row_of(comparison, row) in rows for row in rows)
