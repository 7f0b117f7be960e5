"""Which questions of a comparison are decided, for `--until-decided`."""

from __future__ import annotations

from collections.abc import Sequence

from compare.core import wording
from compare.core.statistics import Judged
from compare.core.verdict_words import percent_words
from compare.execution.store import Comparison, Stored
from compare.judgement.summary import rows_of, was_interrupted

_DECIDED = ("above", "below", "no difference that matters")


def undecided(verdicts: Sequence[Judged]) -> list[Judged]:
    """Questions whose answer is neither a difference nor that it is too small to matter."""
    return [each for each in verdicts if each.verdict not in _DECIDED]


def is_hopeful(question: Judged, comparison: Comparison) -> bool:
    """Whether more repeats may decide a question: at least half of the repeats of both its rows made pairs."""
    both = set.intersection(*(set(comparison.repeats_of(row)) for row in rows_of(comparison, question)))
    return 2 * question.ratio.n >= len(both)


def sentence(stored: Stored, verdicts: Sequence[Judged]) -> str | None:
    """How many repeats it took to decide every question, or which ones are open. None without `--until-decided`."""
    comparison = stored.comparison
    until, repeats = comparison.until, wording.count(comparison.repeats, "repeat")
    if until is None:
        return None
    matters = f"A difference below {percent_words(until.smallest_effect)} does not matter here (--smallest-effect)."
    left = undecided(verdicts)
    asked = wording.count(len(verdicts), "question")
    names = "; ".join(each.name if " against " in each.name else f"{each.name} against serial" for each in left)
    if _is_cut_short(stored):  # questions of which no run has been made are not among these
        known = f" Open so far: {len(left)} of {asked} ({names})." if left else ""
        return f"Not all of {repeats} were made, so not all is decided.{known} --resume makes the rest. {matters}"
    if not verdicts:
        return f"Not decided after {repeats}: no two runs can be compared."
    if not left:
        fewer = "Rows whose questions were decided before that ran fewer times. " if comparison.left_out else ""
        return f"{asked} {'was' if len(verdicts) == 1 else 'were all'} decided after {repeats}. {fewer}{matters}"
    end = f"The most is {until.most_repeats} (--most-repeats)."
    if comparison.repeats < until.most_repeats:
        stuck = not any(is_hopeful(each, comparison) for each in left)
        end = "Fewer than half of their runs made pairs, so repeats were not added." if stuck else "--resume adds repeats."
    return f"Not decided after {repeats}: {len(left)} of {asked} ({names}). {end} {matters}"


def _is_cut_short(stored: Stored) -> bool:
    """Whether planned runs have not been made, or not to their end because of a user."""
    return any(
        (run := stored.runs[row.id].get(repeat)) is None or was_interrupted(run)
        for row in stored.comparison.rows
        if row.unavailable is None
        for repeat in stored.comparison.repeats_of(row.id)
    )
