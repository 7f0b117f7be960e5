"""Which questions of a comparison are decided, for `--until-decided`."""

from __future__ import annotations

from collections.abc import Sequence

from compare.core import wording
from compare.core.statistics import JudgedRatio
from compare.core.verdict_words import percent_words
from compare.execution.store import Comparison, StoredComparison
from compare.judgement.run_pairs import was_interrupted
from compare.judgement.summary import compared_row_ids

_DECIDED = ("above", "below", "no difference that matters")


def undecided(verdicts: Sequence[JudgedRatio]) -> list[JudgedRatio]:
    """Questions whose answer is neither a difference nor that it is too small to matter."""
    return [judged for judged in verdicts if judged.verdict not in _DECIDED]


def is_hopeful(judged: JudgedRatio, comparison: Comparison) -> bool:
    """Whether more repeats may decide a question: at least half of the repeats of both its rows made pairs."""
    both = set.intersection(*(set(comparison.repeats_of(row)) for row in compared_row_ids(comparison, judged)))
    return 2 * judged.ratio.n >= len(both)


def sentence(stored: StoredComparison, verdicts: Sequence[JudgedRatio]) -> str | None:
    """How many repeats it took to decide every question, or which ones are open. None without `--until-decided`."""
    comparison = stored.comparison
    until, repeats = comparison.until, wording.count(comparison.repeats, "repeat")
    if until is None:
        return None
    matters = f"A difference below {percent_words(until.smallest_effect)} does not matter here (--smallest-effect)."
    undecided_verdicts = undecided(verdicts)
    questions = wording.count(len(verdicts), "question")
    names = "; ".join(
        judged.name if " against " in judged.name else f"{judged.name} against serial" for judged in undecided_verdicts
    )
    if _is_cut_short(stored):  # questions of which no run has been made are not among these
        known = f" Open so far: {len(undecided_verdicts)} of {questions} ({names})." if undecided_verdicts else ""
        return f"Not all of {repeats} were made, so not all is decided.{known} --resume makes the rest. {matters}"
    if not verdicts:
        return f"Not decided after {repeats}: no two runs can be compared."
    if not undecided_verdicts:
        fewer = "Rows whose questions were decided before that ran fewer times. " if comparison.left_out else ""
        return f"{questions} {'was' if len(verdicts) == 1 else 'were all'} decided after {repeats}. {fewer}{matters}"
    end = f"The most is {until.most_repeats} (--most-repeats)."
    if comparison.repeats < until.most_repeats:
        is_stuck = not any(is_hopeful(judged, comparison) for judged in undecided_verdicts)
        end = "Fewer than half of their runs made pairs, so repeats were not added." if is_stuck else "--resume adds repeats."
    return f"Not decided after {repeats}: {len(undecided_verdicts)} of {questions} ({names}). {end} {matters}"


def _is_cut_short(stored: StoredComparison) -> bool:
    """Whether planned runs have not been made, or not to their end because of a user."""
    return any(
        (run := stored.runs[row.id].get(repeat)) is None or was_interrupted(run)
        for row in stored.comparison.rows
        if row.unavailable is None
        for repeat in stored.comparison.repeats_of(row.id)
    )
