"""What the figures allow to be said, in sentences that stand with the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import BaseModel, ConfigDict

from common.results import RunResult
from common.training import relative_difference
from compare import departures, statistics
from compare.statistics import Judged, interval_words
from compare.store import ProofRecord, Stored
from compare.summary import FAILURES, Family, Summary, family

FIRST_STEP_TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
"""Relative difference of the first losses of the timed runs, before any update: rounding, and no more."""


WORTH_SAYING = 0.1
"""Part of the training time spent waiting for input below which the model alone bounds a run."""


class Findings(BaseModel):
    """Sentences by subject; each list may be empty."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sameness: list[str]
    """The proof, and what the timed runs themselves show."""
    comparable: bool
    """Whether the timed runs had the same data, weights and order, and the same first step up to rounding."""
    frameworks: list[str]
    """Which framework is faster, for each configuration that both ran."""
    modes: list[str]
    """Which parallel modes pay."""
    verdicts: list[Judged]
    """Behind the sentences on frameworks and modes: every comparison that was judged."""
    surety: list[str]
    """How sure those sentences are, and how many they are."""
    departures: list[str]
    """Modes that are not meant to be serial's mathematics, and what came of them."""
    bounds: list[str]
    """Runs that wait for their input, and for how much of their training."""
    troubles: list[str]
    """Runs that failed or are missing, broke their budget or did not get it."""


def findings(stored: Stored, summaries: Sequence[Summary]) -> Findings:
    comparable = _comparable(stored, summaries)
    judged = family(stored, summaries) if comparable else Family([], {})
    return Findings(
        sameness=_sameness(stored, summaries),
        comparable=comparable,
        frameworks=_frameworks(judged),
        modes=[_pays(summary, judged.modes[summary.id]) for summary in summaries if summary.id in judged.modes],
        verdicts=judged.judged,
        surety=[sentence] if (sentence := statistics.family_words(judged.judged)) else [],
        departures=departures.sentences(stored, summaries),
        bounds=[sentence for summary in summaries if (sentence := _bound(summary))],
        troubles=_troubles(stored, summaries),
    )


def _comparable(stored: Stored, summaries: Sequence[Summary]) -> bool:
    runs = [result for repeats in stored.runs.values() for result in repeats.values()]
    whole = [run for run in runs if run.status == "ok"]
    hashes = (
        {run.data_hash for run in runs} - {None},
        {run.weights_hash for run in runs} - {None},
        {run.order_hash for run in whole} - {None},
    )
    repeats = [
        [run.first_step_loss for run in each.values() if run.first_step_loss is not None] for each in stored.runs.values()
    ]
    alike = all(
        relative_difference(min(losses), max(losses)) <= FIRST_STEP_TOLERANCE["float32"] for losses in repeats if losses
    )
    return alike and all(len(known) <= 1 for known in hashes) and all(_agrees(summary) for summary in summaries)


def _agrees(summary: Summary) -> bool:
    tolerance = FIRST_STEP_TOLERANCE[summary.precision]
    return summary.first_step_difference is None or summary.first_step_difference <= tolerance


def _sameness(stored: Stored, summaries: Sequence[Summary]) -> list[str]:
    proof = stored.comparison.proof
    runs = [result for repeats in stored.runs.values() for result in repeats.values()]
    said = "not claimed: it was not examined"
    if proof:
        said = f"{proof.verdict}: {proof.sentence.removeprefix(f'{proof.verdict}: ')}"
    sentences = [f"Identical training: {said.removesuffix('.')}."]
    sentences += [f"{mode}: not claimed: {reason}." for mode, reason in (proof.not_claimed if proof else {}).items()]
    known = [summary for summary in summaries if summary.first_step_difference is not None]
    if known:
        worst = max(known, key=lambda summary: summary.first_step_difference or 0.0)
        what = f"differ between the frameworks by at most {worst.first_step_difference:.1e} (relative; {worst.mode})"
        if not worst.first_step_difference:
            what = "are the same number in all frameworks"
        grown = _growth(proof)
        grows = f" It grows by rounding, {grown}: so float32 scores differ in the end." if grown else ""
        agrees = "agrees" if all(map(_agrees, known)) else "DOES NOT AGREE: figures do not compare"
        tolerance = FIRST_STEP_TOLERANCE[worst.precision]
        sentences.append(
            f"Timed configuration: {agrees}: the first {worst.precision} losses {what}, tolerance {tolerance:.0e}.{grows}"
        )
    if any(summary.part != "training" for summary in summaries):
        return [*sentences, *filter(None, [_equal(runs, "data", lambda result: result.data_hash)])]
    sentences += filter(
        None,
        [
            _equal(runs, "data", lambda result: result.data_hash),
            _equal(runs, "initial weights", lambda result: result.weights_hash),
            _equal([run for run in runs if run.status == "ok"], "order of examples", lambda result: result.order_hash),
        ],
    )
    return sentences


def _growth(proof: ProofRecord | None) -> str | None:
    """How the float32 losses of the timed configuration part, as the proof has seen it; None where it has not looked."""
    rungs = proof.rungs if proof else []
    shown = [rung["where"] for rung in rungs if rung["name"] == "5 losses" and rung["precision"] == "float32"]
    return next((str(where).removeprefix("grows by rounding: ") for where in shown if where), None)


def _equal(runs: Sequence[RunResult], what: str, pick: Callable[[RunResult], str | None]) -> str | None:
    known = [value for run in runs if (value := pick(run)) is not None]
    if not known:
        return None
    kinds = len(set(known))
    if len(known) == 1:
        return f"Same {what}: one run alone has nothing to be compared with."
    if kinds == 1:
        return f"Same {what} in all {len(known)} runs that recorded it."
    return f"NOT the same {what}: {kinds} different among {len(known)} runs. Their figures do not compare."


def _frameworks(judged: Family) -> list[str]:
    sentences: list[str] = []
    for first, second, seconds in judged.frameworks:
        configuration = first.name.removeprefix(f"{first.framework} ")
        doubt = "" if not (first.disturbed or second.disturbed) else " Other work disturbed it: do not rely on this."
        sentences.append(f"{configuration}: {statistics.faster(seconds, first.framework, second.framework)}.{doubt}")
    return sentences


def _pays(summary: Summary, speedup: Judged) -> str:
    cores = f"{summary.cores} core{'s' if summary.cores > 1 else ''}"
    times = f"{interval_words(speedup.ratio)} times serial on {cores}"
    return f"{summary.name}: {statistics.pays(speedup)}; {times}{statistics.surety(speedup)}."


def _bound(summary: Summary) -> str | None:
    wait = summary.input_wait
    if summary.part != "training" or wait is None or wait < WORTH_SAYING:
        return None
    what = "the input bounds it" if wait > 0.5 else "both count"
    return f"{summary.name}: waits {wait:.0%} of its training time for its input: {what}."


def _troubles(stored: Stored, summaries: Sequence[Summary]) -> list[str]:
    sentences = [f"Set aside: {reason}" for reason in stored.set_aside]
    for summary in summaries:
        if summary.status in FAILURES:
            done = f"after {summary.epochs_done} epochs" if summary.epochs_done != 1 else "after 1 epoch"
            sentences.append(f"{summary.name}: {summary.status} {done}: {summary.reason}.")
        elif summary.status != "ok":
            sentences.append(f"{summary.name}: {summary.status}: {summary.reason}.")
        if summary.repeats_done and summary.oversubscribed:
            sentences.append(f"{summary.name}: oversubscribed, {summary.replicas} replicas on {summary.cores} cores.")
        if summary.too_short:
            sentences.append(
                f"{summary.name}: {summary.timed_steps} timed batches, of {summary.steps_needed} that show a steady pace: rely "
                "on no rate of it, and make it longer with --epochs."
            )
        if summary.exceeds_budget:
            sentences.append(f"{summary.name}: used {summary.cores_used:.2f} cores of a budget of {summary.cores}.")
        if summary.disturbed:
            sentences.append(
                f"{summary.name}: other work took {summary.cores_lost:.2f} cores of its budget of {summary.cores}: rely "
                "on no time of it."
            )
    return sentences
