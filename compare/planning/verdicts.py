"""The first lines of a plan: which mode pays, why, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from compare.core.wording import count, joined, percent
from compare.planning import accuracy
from compare.planning.accuracy import TIE, PredictionPair
from compare.planning.planner import PlanResult
from compare.planning.prediction import PredictedLayout

UNMEASURED = ["Nothing was measured.", "Measured errors so far: docs/measurements/plan.md."]
_PARTS = {"compute": "compute", "exposed": "exposed communication", "bubble": "bubble", "input": "input"}


class FrameworkVerdict(NamedTuple):
    """Sentences on one framework."""

    winner: list[str]
    certainty: list[str]
    """Sentences on the certainty of the prediction. Empty: there is no prediction."""


def verdict_lines(plan: PlanResult) -> list[str]:
    """Return one line for each framework."""
    return [f"{name}: {' '.join([*verdict.winner, *verdict.certainty])}" for name, verdict in by_framework(plan).items()]


def by_framework(plan: PlanResult) -> dict[str, FrameworkVerdict]:
    """Return the verdict of each framework."""
    verdicts: dict[str, FrameworkVerdict] = {}
    for name in dict.fromkeys(layout.contestant for layout in plan.predicted):
        layouts = [layout for layout in plan.predicted if layout.contestant == name]
        pairs = [pair for pair in plan.pairs if pair.contestant == name]
        if name in plan.disturbed:
            sentences = [
                "no finding.",
                "Other work disturbed the timing of layers or messages.",
                "Plan again on an idle machine.",
            ]
            verdicts[name] = FrameworkVerdict(sentences, _certainty(pairs, may_measure=False) if pairs else [])
        else:
            verdicts[name] = FrameworkVerdict(_winner(layouts), _certainty(pairs, may_measure=plan.is_local))
    return verdicts


def best_of_each_mode(layouts: Sequence[PredictedLayout]) -> list[PredictedLayout]:
    """Return the best layout of each mode in one framework, and of serial on each number of cores, in ranked order."""
    best: dict[str, PredictedLayout] = {}
    for layout in layouts:
        if layout.rankable:
            best.setdefault(layout.run.variant if layout.run.is_parallel else layout.words, layout)
    return list(best.values())


def winner(layouts: Sequence[PredictedLayout]) -> str:
    """Describe the fastest mode in one framework: the largest part of its step, and what the next mode adds."""
    return " ".join(_winner(layouts))


def _winner(layouts: Sequence[PredictedLayout]) -> list[str]:
    ranked = best_of_each_mode(layouts)
    if not ranked:
        return ["no layout can be predicted and fits."]
    best = ranked[0]
    tied = [layout for layout in ranked if _time_ratio(layout, best) <= 1 + TIE]
    by_part: dict[str, list[str]] = {}
    for layout in tied:
        by_part.setdefault(max(_PARTS, key=lambda part, candidate=layout: candidate.parts[part]), []).append(
            _short_name(layout)
        )
    if len(tied) > 1:
        sentences = [f"{joined([_short_name(layout) for layout in tied])} are predicted equal (within {percent(TIE)})."]
    else:
        sentences = [f"{best.words if best.run.is_parallel else _short_name(best)} is predicted to be the fastest."]
    if len(by_part) == 1:
        sentences.append(
            f"The largest part of {'its step' if len(tied) == 1 else 'their steps'} is {_PARTS[next(iter(by_part))]}."
        )
    else:
        parts = joined([f"{_PARTS[part]} in {joined(names)}" for part, names in by_part.items()])
        sentences.append(f"The largest part of a step is {parts}.")
    variants = {layout.run.variant for layout in tied}
    runner_up = next((layout for layout in ranked if layout.run.variant not in variants), None)
    if runner_up is not None:
        added = _PARTS[max(_PARTS, key=lambda part: runner_up.parts[part] - best.parts[part])]
        sentences.append(
            f"Next is {_short_name(runner_up)}, {_time_ratio(runner_up, best):.2f} times as long: it adds {added}."
        )
    return sentences


def _time_ratio(layout: PredictedLayout, best: PredictedLayout) -> float:
    assert layout.step_seconds is not None and best.step_seconds is not None
    return layout.step_seconds / best.step_seconds


def _short_name(layout: PredictedLayout) -> str:
    return layout.run.variant if layout.run.is_parallel else f"serial on {count(layout.run.cores, 'core')}"


def _certainty(pairs: Sequence[PredictionPair], *, may_measure: bool) -> list[str]:
    if (judged := accuracy.judge(pairs)) is None:
        return [*UNMEASURED, *(["Add --measure."] if may_measure else [])]
    fastest = min(pairs, key=lambda pair: pair.measured_seconds)
    sentences = [
        f"Of {count(judged.n, 'layout')} that were measured, {fastest.words} was the fastest.",
        f"Predicted times were off by up to {percent(judged.worst_error)}.",
    ]
    if doubtful := sum(pair.in_doubt for pair in pairs):
        sentences.append(f"{doubtful} of {count(sum(pair.n for pair in pairs), 'run')} are in doubt.")
    return sentences
