"""The first lines of a plan: which mode pays, why, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from compare.core.wording import count, joined, percent
from compare.planning import accuracy
from compare.planning.accuracy import TIE, Pair
from compare.planning.planner import Plan
from compare.planning.prediction import Predicted

UNMEASURED = ["Nothing was measured.", "Measured errors so far: docs/measurements/plan.md."]
_PARTS = {"compute": "compute", "exposed": "exposed communication", "bubble": "bubble", "input": "input"}


class Said(NamedTuple):
    """What is said of one framework, in sentences."""

    winner: list[str]
    certainty: list[str]
    """How sure that is. Empty: there is nothing to be sure of."""


def lines(plan: Plan) -> list[str]:
    """A line for each framework."""
    return [f"{name}: {' '.join([*said.winner, *said.certainty])}" for name, said in by_framework(plan).items()]


def by_framework(plan: Plan) -> dict[str, Said]:
    """What is said of each framework."""
    found: dict[str, Said] = {}
    for name in dict.fromkeys(each.contestant for each in plan.predicted):
        own = [each for each in plan.predicted if each.contestant == name]
        pairs = [each for each in plan.pairs if each.contestant == name]
        if name in plan.disturbed:
            said = ["no finding.", "Other work disturbed the timing of layers or messages.", "Plan again on an idle machine."]
            found[name] = Said(said, _certainty(pairs, may_measure=False) if pairs else [])
        else:
            found[name] = Said(_winner(own), _certainty(pairs, may_measure=plan.here))
    return found


def firsts(own: Sequence[Predicted]) -> list[Predicted]:
    """The best layout of each mode in one framework, of serial on each number of cores, in their order."""
    found: dict[str, Predicted] = {}
    for each in own:
        if each.rankable:
            found.setdefault(each.words if each.run.mode == "serial" else each.run.variant, each)
    return list(found.values())


def winner(own: Sequence[Predicted]) -> str:
    """Which mode pays in one framework, and why: its largest part, and what the next mode adds."""
    return " ".join(_winner(own))


def _winner(own: Sequence[Predicted]) -> list[str]:
    ranked = firsts(own)
    if not ranked:
        return ["no layout can be predicted and fits."]
    best = ranked[0]
    tied = [each for each in ranked if _times_as_long(each, best) <= 1 + TIE]
    by_part: dict[str, list[str]] = {}
    for each in tied:
        by_part.setdefault(max(_PARTS, key=lambda part, each=each: each.parts[part]), []).append(_short(each))
    if len(tied) > 1:
        said = [f"{joined([_short(each) for each in tied])} are predicted equal (within {percent(TIE)})."]
    else:
        said = [f"{best.words if best.run.mode != 'serial' else _short(best)} is predicted to be the fastest."]
    if len(by_part) == 1:
        said.append(f"The largest part of {'its step' if len(tied) == 1 else 'their steps'} is {_PARTS[next(iter(by_part))]}.")
    else:
        parts = joined([f"{_PARTS[part]} in {joined(of)}" for part, of in by_part.items()])
        said.append(f"The largest part of a step is {parts}.")
    known = {each.run.variant for each in tied}
    following = next((each for each in ranked if each.run.variant not in known), None)
    if following is not None:
        added = _PARTS[max(_PARTS, key=lambda part: following.parts[part] - best.parts[part])]
        said.append(f"Next is {_short(following)}, {_times_as_long(following, best):.2f} times as long: it adds {added}.")
    return said


def _times_as_long(each: Predicted, best: Predicted) -> float:
    assert each.step_seconds is not None and best.step_seconds is not None
    return each.step_seconds / best.step_seconds


def _short(each: Predicted) -> str:
    return f"serial on {count(each.run.cores, 'core')}" if each.run.mode == "serial" else each.run.variant


def _certainty(pairs: Sequence[Pair], *, may_measure: bool) -> list[str]:
    if (judged := accuracy.judge(pairs)) is None:
        return [*UNMEASURED, *(["Add --measure."] if may_measure else [])]
    fastest = min(pairs, key=lambda each: each.measured_seconds)
    said = [
        f"Of {count(judged.n, 'layout')} that were measured, {fastest.words} was the fastest.",
        f"Predicted times were off by up to {percent(judged.worst_error)}.",
    ]
    if doubtful := sum(each.in_doubt for each in pairs):
        said.append(f"{doubtful} of {count(sum(each.n for each in pairs), 'run')} are in doubt.")
    return said
