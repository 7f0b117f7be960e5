"""Which questions of a comparison are decided, for `--until-decided`."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from compare.judgement.run_pairs import was_interrupted
from compare.judgement.statement import Advice, Statement
from compare.judgement.summary import compared_row_ids
from compare.results.store import Comparison, StoredComparison
from compare.statistics.statistics import JudgedRatio

DECIDED = ("above", "below", "no difference that matters")
"""Verdicts that answer a question."""


def undecided(verdicts: Sequence[JudgedRatio]) -> list[JudgedRatio]:
    """Questions whose answer is neither a difference nor that it is too small to matter."""
    return [judged for judged in verdicts if judged.verdict not in DECIDED]


def is_hopeful(judged: JudgedRatio, comparison: Comparison) -> bool:
    """Whether more repeats may decide a question: at least half of the repeats of both its rows made pairs."""
    both = set.intersection(*(set(comparison.repeats_of(row)) for row in compared_row_ids(comparison, judged)))
    return 2 * judged.ratio.n >= len(both)


def statement(stored: StoredComparison, verdicts: Sequence[JudgedRatio]) -> Statement | None:
    """How many repeats it took to decide every question, or which ones are open. None without `--until-decided`.

    Args:
        verdicts: those of all questions. One on runs that other work disturbed is not known, whatever its figures say.
    """
    comparison = stored.comparison
    if (until := comparison.settings.until) is None:
        return None
    open_verdicts = undecided([judged for judged in verdicts if not judged.disturbed])
    disturbed: list[JsonValue] = [_question(comparison, judged) for judged in verdicts if judged.disturbed]
    values: dict[str, JsonValue] = {
        "repeats": comparison.settings.repeats,
        "questions": len(verdicts),
        "open": [_question(comparison, judged) for judged in open_verdicts],
        "smallest_effect": until.smallest_effect,
    }
    if _is_cut_short(stored):  # questions of which no run has been made are not among these
        return Statement(kind="decision_cut_short", level="caution", values=values, advice=Advice(kind="make_rest"))
    if not verdicts:
        return Statement(kind="nothing_to_decide", level="caution", values=values)
    if not open_verdicts and not disturbed:
        return Statement(kind="decided", level="info", values=values | {"some_ran_fewer": bool(comparison.left_out)})
    is_stuck = not any(is_hopeful(judged, comparison) for judged in open_verdicts)
    can_go_on = bool(open_verdicts) and comparison.num_rounds < until.most_repeats and not is_stuck
    more: dict[str, JsonValue] = {"disturbed": disturbed, "most_repeats": until.most_repeats, "stuck": is_stuck}
    more["rounds"] = comparison.num_rounds
    return Statement(
        kind="not_decided",
        level="caution",
        values=values | more,
        advice=Advice(kind="add_repeats") if can_go_on else None,
    )


def _question(comparison: Comparison, judged: JudgedRatio) -> str:
    is_mode = judged.name in {row.id for row in comparison.rows}
    return f"{judged.name} against serial" if is_mode else judged.name


def _is_cut_short(stored: StoredComparison) -> bool:
    """Whether planned runs have not been made, or not to their end because of a user."""
    return any(
        (run := stored.runs[row.id].get(repeat)) is None or was_interrupted(run)
        for row in stored.comparison.rows
        if row.unavailable is None
        for repeat in stored.comparison.repeats_of(row.id)
    )
