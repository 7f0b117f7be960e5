"""Did the runs of a comparison train the same? What the proof says, and what the timed runs themselves show."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from common.artifacts.schema import Metrics, RunResult
from compare.core import wording
from compare.core.differences import FLOAT32_TOLERANCE, relative_difference
from compare.execution import matrix
from compare.execution.matrix import Row
from compare.execution.store import SpotCheck, Stored
from compare.judgement.row_figures import Summary

FIRST_STEP_TOLERANCE = {"float32": FLOAT32_TOLERANCE, "float64": 1e-12}
"""Relative difference of the first losses of the timed runs, before any update: rounding, and no more. See `tolerance`."""
MOST_ALLOWED = 1e-3
"""Of a framework's own tolerance that counts, however much rounding may do. A tolerance as large as this proves nothing."""
UNEXPLAINED_IMAGES, UNEXPLAINED_PART = 3, 0.01
"""Scores of equal losses that differ by so many images at least, and by more than this part of all, are no matter of ties."""
OWN_RULES_PART = {"sgd": "1.1e-03", "adam": "1.2e-02"}
"""Optimizer: how far float64 losses of simple_cnn on digits are apart at step 20, relative, if each framework trains by its own
update rule. docs/proof.md has the command."""
_AGREEMENT = {
    True: "agrees",
    None: "within what rounding may do here, which is too much to tell",
    False: "DOES NOT AGREE: figures do not compare",
}
FIRST_LOSSES = "8 one step in float32: losses"
"""How the name of the rung begins that has the tolerance of the first loss."""


def is_comparable(stored: Stored, summaries: Sequence[Summary]) -> bool:
    runs = _all_runs(stored)
    hashes = [{run.data_hash for run in runs} - {None}]
    for same_seed in _by_seed(runs):
        hashes.append({run.weights_hash for run in same_seed} - {None})
        for as_long in _by_length([run for run in same_seed if run.status == "ok"]):
            hashes.append({run.order_hash for run in as_long} - {None})
    repeats = [same_seed for each in stored.runs.values() for same_seed in _by_seed(list(each.values()))]
    known = [[run.first_step_loss for run in each if run.first_step_loss is not None] for each in repeats]
    alike = all(relative_difference(min(losses), max(losses)) <= FLOAT32_TOLERANCE for losses in known if losses)
    proof = stored.comparison.proof
    as_planned = proof is None or not any(check.faults for check in proof.spot_checks)
    agree = all(agrees(stored, summary) is not False for summary in summaries)
    return alike and as_planned and all(len(each) <= 1 for each in hashes) and agree


def _all_runs(stored: Stored) -> list[RunResult]:
    return [result for repeats in stored.runs.values() for result in repeats.values()]


def _by_seed(runs: Sequence[RunResult]) -> list[list[RunResult]]:
    """Runs that are meant to be the same training, seed by seed."""
    seeds = dict.fromkeys(run.spec.seed for run in runs)
    return [[run for run in runs if run.spec.seed == seed] for seed in seeds]


def _by_length(runs: Sequence[RunResult]) -> list[list[RunResult]]:
    """Runs that ended after the same number of epochs."""
    lengths = dict.fromkeys(len(run.epochs) for run in runs)
    return [[run for run in runs if len(run.epochs) == length] for length in lengths]


def tolerance(stored: Stored, precision: str) -> float:
    """How far the first losses of two frameworks may differ.

    In float32 a deep network rounds by more than a shallow one. Where losses differ by more than a shallow one's, the first
    loss is judged by a tolerance of the arithmetic, each framework against the referee, see `spot_checks.first_losses`. Two
    frameworks that passed differ by the sum of theirs at most.
    """
    least = FIRST_STEP_TOLERANCE[precision]
    proof = stored.comparison.proof
    if precision != "float32" or proof is None:
        return least
    allowed: dict[str, float] = {}
    for rung in proof.rungs:
        of_losses = str(rung.get("name")).startswith(FIRST_LOSSES) and rung.get("status") == "passed"
        if of_losses and isinstance(each := rung.get("first_tolerance"), float) and 0.0 < each < math.inf:
            framework = str(rung.get("framework"))
            allowed[framework] = max(allowed.get(framework, 0.0), min(each, MOST_ALLOWED))
    return max(least, sum(sorted(allowed.values())[-2:]))


def agrees(stored: Stored, summary: Summary) -> bool | None:
    """Whether its first losses are those of the other frameworks.

    None: they are not known, or they differ by what only a tolerance allows that proves nothing, see `MOST_ALLOWED`.
    """
    difference = summary.first_step_difference
    if difference is None:
        return None
    if difference <= FIRST_STEP_TOLERANCE[summary.precision]:
        return True
    if any(each.get("status") == "failed" and (each.get("mode") or "serial") == summary.mode for each in _first_losses(stored)):
        return False
    allowed = tolerance(stored, summary.precision)
    return False if difference > allowed else None if allowed >= MOST_ALLOWED else True


def update_rule(optimizer: str) -> str:
    """Which update rule the proof is for, and what another one would change."""
    return (
        "Update rule: the suite's own, one formula in all frameworks. With each framework's own (--set optimizer.native=true) "
        f"the losses part: by {OWN_RULES_PART[optimizer]} at step 20 ({optimizer}, simple_cnn on digits, float64)."
    )


def sentences(stored: Stored, summaries: Sequence[Summary]) -> list[str]:
    proof = stored.comparison.proof
    runs = _all_runs(stored)
    twins = {row.framework for row in stored.comparison.rows}
    who = "the frameworks" if len(twins) > 1 else "the contestants"
    said = "not claimed: it was not examined"
    if proof:
        headline = stored.comparison.headline
        said = f"{headline}: {proof.sentence.removeprefix(f'{proof.verdict}: ')}".replace("the frameworks", who)
        if headline != proof.verdict:
            some = any(summary.parity == "proved" for summary in summaries)
            rows = "Not every row is proved as it is timed: the table says which" if some else "No row is proved as it is timed"
            said = f"{said.removesuffix('.')}. {rows}"
    found = [f"Identical training: {said.removesuffix('.')}."]
    if _rungs(stored) and not stored.comparison.rows[0].spec.optimizer.native:
        found.append(update_rule(stored.comparison.rows[0].spec.optimizer.name))
    found += _spot_checks(proof.spot_checks if proof else [])
    found += [f"{mode}: not claimed: {reason}." for mode, reason in (proof.not_claimed if proof else {}).items()]
    found += [
        f"{mode}: compared with {other}. The serial runs here see whole batches."
        for mode, other in (proof.compared_with if proof else {}).items()
    ]
    known = [summary for summary in summaries if summary.first_step_difference is not None]
    if known:
        worst = max(known, key=lambda summary: summary.first_step_difference or 0.0)
        what = f"differ between {who} by at most {worst.first_step_difference:.1e} (relative; {worst.mode})"
        if not worst.first_step_difference:
            what = f"are the same number in all {who.removeprefix('the ')}"
        verdict = _AGREEMENT[min((agrees(stored, each) for each in known), key=(False, None, True).index)]
        allowed = f"tolerance {tolerance(stored, worst.precision):.0e}"
        found.append(f"Timed configuration: {verdict}: the first {worst.precision} losses {what}, {allowed}.")
        wrong = [each for each in _first_losses(stored) if each.get("status") == "failed"]
        found += dict.fromkeys(
            f" {each.get('framework')}, {each.get('mode') or 'serial'}: {each.get('where')}." for each in wrong
        )
        if unexplained := _unexplained_scores(stored):
            found.append(f" {unexplained}")
    fewer = {
        f"{row.contestant} with {switch}"
        for row in stored.comparison.rows
        for run in stored.runs.get(row.id, {}).values()
        for switch in run.reduced
    }
    if fewer:
        found.append(
            f"Fewer digits than the precision says: {', '.join(sorted(fewer))}. Those first losses are compared with no others."
        )
    if any(summary.part != "training" for summary in summaries):
        return [*found, *_together([_equal([runs], "data", lambda result: result.data_hash)])]
    equal = (
        _equal([runs], "data", lambda result: result.data_hash),
        _equal(_by_seed(runs), "initial weights", lambda result: result.weights_hash),
        _same_order([run for run in runs if run.status == "ok"]),
    )
    return [*found, *_together(equal)]


def _spot_checks(checks: Sequence[SpotCheck]) -> list[str]:
    """What the recorded steps of the timed runs say, the faults first."""
    found = [
        f"Spot checks: NOT AS PLANNED: {each.row}, repeat {each.repeat + 1}: {'; '.join(each.faults)}."
        for each in checks
        if each.faults
    ]
    silent = sum(not each.steps and not each.has_fingerprints for each in checks)
    if silent:
        found.append(
            f"Spot checks: {wording.count(silent, 'timed run')} recorded nothing: images on a device, or an older version."
        )
    if missing := [each for each in checks if each.missing]:
        steps = sum(len(each.missing) for each in missing)
        found.append(
            f"Spot checks: {wording.count(steps, 'record')} of {wording.count(len(missing), 'timed run')} are not there."
        )
    if good := [each for each in checks if each.steps and not each.faults]:
        steps, epochs = sum(len(each.steps) for each in good), sum(each.epochs for each in good)
        computed = sum(len(each.computed) for each in good if not each.shown)
        again = f" The referee computed loss and gradients of {computed} of them again: they agree." if computed else ""
        images = f" Every example, label and pixel of {wording.count(epochs, 'epoch')} is the plan's." if epochs else ""
        found.append(
            f"Spot checks: {wording.count(steps, 'step')} of {wording.count(len(good), 'timed run')}, drawn while they ran, "
            f"had the batch, learning rate and update of the plan.{again}{images}"
        )
    found += [
        f"Spot checks: gradients prove nothing: {reason}."
        for reason in dict.fromkeys(each.shown for each in checks if each.shown)
    ]
    return found


_Said = tuple[str, str] | None
"""(what was compared, a sentence). The sentence has the places `{what}` and `{it}` if it may be said of several things."""


def _together(said: Sequence[_Said]) -> list[str]:
    """These sentences, where those that say the same of several things are one."""
    alike: dict[str, list[str]] = {}
    for what, sentence in filter(None, said):
        alike.setdefault(sentence, []).append(what)
    return [
        sentence.format(what=wording.joined(things), it="them" if len(things) > 1 else "it")
        for sentence, things in alike.items()
    ]


def _same_order(runs: Sequence[RunResult]) -> _Said:
    """Of runs that trained as long as each other: with `best_epoch.patience` each may end when it will."""
    by_seed = _by_seed(runs)
    by_length = [as_long for same_seed in by_seed for as_long in _by_length(same_seed)]
    said = _equal(by_length, "order of examples", lambda result: result.order_hash)
    if said is None or len(by_length) == len(by_seed):
        return said
    what, sentence = said
    if all(len(each) == 1 for each in by_length):
        return what, "Order of examples: the runs ended after different numbers of epochs, so that it cannot be compared."
    return what, f"{sentence} Only runs that ended after the same number of epochs are compared in this."


def _twin_rows(stored: Stored) -> list[tuple[Row, Row]]:
    """Rows that differ by their framework alone and claim the same mathematics as serial."""
    return [
        (row, other)
        for row, other in itertools.combinations(stored.comparison.rows, 2)
        if matrix.differ_by_contestant(row, other) and row.spec.departs is None and not row.spec.optimizer.native
    ]


def _first_losses(stored: Stored) -> list[dict[str, Any]]:
    """The rungs of first losses, see `spot_checks.first_losses`."""
    return [each for each in _rungs(stored) if each.get("first_tolerance")]


def _rungs(stored: Stored) -> list[dict[str, Any]]:
    return stored.comparison.proof.rungs if stored.comparison.proof else []


def _unexplained_scores(stored: Stored) -> str | None:
    """The largest difference of the scores of two runs whose losses agree at every step to the end. None: there is none."""
    found = [
        (abs(theirs.num_correct - own.num_correct), own.num_examples, split, row.spec.variant, max(differences))
        for row, other in _twin_rows(stored)
        for ours, its in itertools.product(stored.runs[row.id].values(), stored.runs[other.id].values())
        if ours.spec.seed == its.spec.seed and not (ours.reduced or its.reduced)
        if (differences := _whole(ours, its)) and max(differences) <= FLOAT32_TOLERANCE
        for split, own, theirs in _scores(ours, its)
        if own.accuracy != theirs.accuracy
    ]
    if not found:
        return None
    images, of, split, mode, losses = max(found, key=lambda each: (_is_beyond_ties(each[0], each[1]), each[0] / each[1]))
    said = (
        f"The losses agree within {losses:.1e} at every step. The {split} scores differ by {images} of "
        f"{wording.count(of, 'image')} ({mode})."
    )
    if _is_beyond_ties(images, of):
        return f"{said} The losses do not explain the scores."
    return f"{said} Rounding can do that where two logits of an image are nearly equal."


def _is_beyond_ties(images: int, of: int) -> bool:
    return images >= UNEXPLAINED_IMAGES and images > UNEXPLAINED_PART * of


def _whole(ours: RunResult, theirs: RunResult) -> list[float]:
    """Relative differences of the losses of all steps. Empty: not all were recorded."""
    steps = {sum(epoch.steps for epoch in run.epochs) for run in (ours, theirs)} | {len(theirs.step_losses)}
    if steps != {len(ours.step_losses)}:
        return []
    return [relative_difference(*losses) for losses in zip(ours.step_losses, theirs.step_losses, strict=True)]


def _scores(ours: RunResult, theirs: RunResult) -> Iterator[tuple[str, Metrics, Metrics]]:
    """(split, scores of one, scores of the other) at the end of both."""
    for split in ("train", "validation", "test"):
        own, other = (run.test if split == "test" else getattr(run.epochs[-1], split) for run in (ours, theirs))
        if own is not None and other is not None:
            yield split, own, other


def _equal(groups: Sequence[Sequence[RunResult]], what: str, pick: Callable[[RunResult], str | None]) -> _Said:
    """Whether the runs of each group have the same of something; several groups are those of several seeds."""
    known = [[value for run in runs if (value := pick(run)) is not None] for runs in groups]
    number = sum(map(len, known))
    if number == 0:
        return None
    if number == 1:
        return what, f"Same {what}: one run alone has nothing to be compared with."
    seeds = len({run.spec.seed for runs in groups for run in runs})
    within = f", within each of {seeds} seeds" if len(groups) > 1 and seeds > 1 else ""
    kinds = max(len(set(each)) for each in known)
    if kinds == 1:
        return what, f"Same {{what}} in all {number} runs that recorded {{it}}{within}."
    return what, f"NOT the same {what}: {kinds} different among {number} runs{within}. Their figures do not compare."
