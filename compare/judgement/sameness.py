"""Whether the runs of a comparison trained the same: the verdict of the proof, and the evidence of the timed runs."""

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
from compare.execution.store import SpotCheck, StoredComparison
from compare.judgement.row_figures import Summary

FIRST_STEP_TOLERANCE = {"float32": FLOAT32_TOLERANCE, "float64": 1e-12}
"""Largest relative difference of the first losses of timed runs, before any update. It allows only for rounding. See
`first_loss_tolerance`."""
MAX_OWN_TOLERANCE = 1e-3
"""Cap on a framework's own tolerance, however much rounding may do. A tolerance as large as this proves nothing."""
UNEXPLAINED_IMAGES, UNEXPLAINED_PART = 3, 0.01
"""Numbers of images above which ties do not explain that scores differ though losses are equal: at least so many, and more than
this fraction of all."""
NATIVE_OPTIMIZER_DIFFERENCE = {"sgd": "1.1e-03", "adam": "1.2e-02"}
"""Relative difference of float64 losses at step 20, by optimizer, if each framework trains by its own update rule.

The model is simple_cnn on digits. docs/proof.md has the command."""
_AGREEMENT = {
    True: "agrees",
    None: "within what rounding may do here, which is too much to tell",
    False: "DOES NOT AGREE: figures do not compare",
}
FIRST_LOSSES = "8 one step in float32: losses"
"""Start of the name of the rung that has the tolerance of the first loss."""


def is_comparable(stored: StoredComparison, summaries: Sequence[Summary]) -> bool:
    runs = _all_runs(stored)
    hashes = [{run.data_hash for run in runs} - {None}]
    for same_seed in _by_seed(runs):
        hashes.append({run.weights_hash for run in same_seed} - {None})
        for same_length in _by_length([run for run in same_seed if run.status == "ok"]):
            hashes.append({run.order_hash for run in same_length} - {None})
    repeats = [same_seed for row_runs in stored.runs.values() for same_seed in _by_seed(list(row_runs.values()))]
    losses_by_seed = [[run.first_step_loss for run in runs if run.first_step_loss is not None] for runs in repeats]
    same_losses = all(relative_difference(min(losses), max(losses)) <= FLOAT32_TOLERANCE for losses in losses_by_seed if losses)
    proof = stored.comparison.proof
    as_planned = proof is None or not any(check.faults for check in proof.spot_checks)
    agree = all(first_losses_agree(stored, summary) is not False for summary in summaries)
    return same_losses and as_planned and all(len(group) <= 1 for group in hashes) and agree


def _all_runs(stored: StoredComparison) -> list[RunResult]:
    return [result for repeats in stored.runs.values() for result in repeats.values()]


def _by_seed(runs: Sequence[RunResult]) -> list[list[RunResult]]:
    """Runs that are meant to be the same training, seed by seed."""
    seeds = dict.fromkeys(run.spec.seed for run in runs)
    return [[run for run in runs if run.spec.seed == seed] for seed in seeds]


def _by_length(runs: Sequence[RunResult]) -> list[list[RunResult]]:
    """Runs that ended after the same number of epochs."""
    lengths = dict.fromkeys(len(run.epochs) for run in runs)
    return [[run for run in runs if len(run.epochs) == length] for length in lengths]


def first_loss_tolerance(stored: StoredComparison, precision: str) -> float:
    """Largest relative difference that the first losses of two frameworks may have.

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
        has_first_losses = str(rung.get("name")).startswith(FIRST_LOSSES) and rung.get("status") == "passed"
        if (
            has_first_losses
            and isinstance(first_tolerance := rung.get("first_tolerance"), float)
            and 0.0 < first_tolerance < math.inf
        ):
            framework = str(rung.get("framework"))
            allowed[framework] = max(allowed.get(framework, 0.0), min(first_tolerance, MAX_OWN_TOLERANCE))
    return max(least, sum(sorted(allowed.values())[-2:]))


def first_losses_agree(stored: StoredComparison, summary: Summary) -> bool | None:
    """Whether a row's first losses are those of the other frameworks.

    None: they are not known, or only a tolerance that proves nothing allows their difference, see `MAX_OWN_TOLERANCE`.
    """
    difference = summary.first_step_difference
    if difference is None:
        return None
    if difference <= FIRST_STEP_TOLERANCE[summary.precision]:
        return True
    if any(rung.get("status") == "failed" and (rung.get("mode") or "serial") == summary.mode for rung in _first_losses(stored)):
        return False
    allowed = first_loss_tolerance(stored, summary.precision)
    return False if difference > allowed else None if allowed >= MAX_OWN_TOLERANCE else True


def update_rule_sentence(optimizer: str) -> str:
    """A sentence on the update rule that the proof is for, and on what another one would change."""
    return (
        "Update rule: the suite's own, one formula in all frameworks. With each framework's own (--set optimizer.native=true) "
        f"the losses part: by {NATIVE_OPTIMIZER_DIFFERENCE[optimizer]} at step 20 ({optimizer}, simple_cnn on digits, float64)."
    )


def sentences(stored: StoredComparison, summaries: Sequence[Summary]) -> list[str]:
    proof = stored.comparison.proof
    runs = _all_runs(stored)
    twins = {row.framework for row in stored.comparison.rows}
    who = "the frameworks" if len(twins) > 1 else "the contestants"
    verdict_text = "not claimed: it was not examined"
    if proof:
        headline = stored.comparison.headline
        verdict_text = f"{headline}: {proof.sentence.removeprefix(f'{proof.verdict}: ')}".replace("the frameworks", who)
        if headline != proof.verdict:
            some = any(summary.parity == "proved" for summary in summaries)
            rows = "Not every row is proved as it is timed: the table says which" if some else "No row is proved as it is timed"
            verdict_text = f"{verdict_text.removesuffix('.')}. {rows}"
    results = [f"Identical training: {verdict_text.removesuffix('.')}."]
    if _rungs(stored) and not stored.comparison.rows[0].spec.optimizer.native:
        results.append(update_rule_sentence(stored.comparison.rows[0].spec.optimizer.name))
    results += _spot_checks(proof.spot_checks if proof else [])
    results += [f"{mode}: not claimed: {reason}." for mode, reason in (proof.not_claimed if proof else {}).items()]
    results += [
        f"{mode}: compared with {other}. The serial runs here see whole batches."
        for mode, other in (proof.compared_with if proof else {}).items()
    ]
    compared_summaries = [summary for summary in summaries if summary.first_step_difference is not None]
    if compared_summaries:
        worst = max(compared_summaries, key=lambda summary: summary.first_step_difference or 0.0)
        what = f"differ between {who} by at most {worst.first_step_difference:.1e} (relative; {worst.mode})"
        if not worst.first_step_difference:
            what = f"are the same number in all {who.removeprefix('the ')}"
        verdict = _AGREEMENT[
            min((first_losses_agree(stored, summary) for summary in compared_summaries), key=(False, None, True).index)
        ]
        allowed = f"tolerance {first_loss_tolerance(stored, worst.precision):.0e}"
        results.append(f"Timed configuration: {verdict}: the first {worst.precision} losses {what}, {allowed}.")
        failed_rungs = [rung for rung in _first_losses(stored) if rung.get("status") == "failed"]
        results += dict.fromkeys(
            f" {rung.get('framework')}, {rung.get('mode') or 'serial'}: {rung.get('where')}." for rung in failed_rungs
        )
        if unexplained := _unexplained_scores(stored):
            results.append(f" {unexplained}")
    reduced_precision = {
        f"{row.contestant} with {switch}"
        for row in stored.comparison.rows
        for run in stored.runs.get(row.id, {}).values()
        for switch in run.reduced
    }
    if reduced_precision:
        results.append(
            f"Fewer digits than the precision says: {', '.join(sorted(reduced_precision))}. Those first losses are compared "
            "with no others."
        )
    if any(summary.part != "training" for summary in summaries):
        return [*results, *_merge_statements([_hash_statement([runs], "data", lambda result: result.data_hash)])]
    equal = (
        _hash_statement([runs], "data", lambda result: result.data_hash),
        _hash_statement(_by_seed(runs), "initial weights", lambda result: result.weights_hash),
        _order_statement([run for run in runs if run.status == "ok"]),
    )
    return [*results, *_merge_statements(equal)]


def _spot_checks(checks: Sequence[SpotCheck]) -> list[str]:
    """Sentences on the recorded steps of the timed runs, the faults first."""
    results = [
        f"Spot checks: NOT AS PLANNED: {check.row}, repeat {check.repeat + 1}: {'; '.join(check.faults)}."
        for check in checks
        if check.faults
    ]
    silent = sum(not check.steps and not check.has_fingerprints for check in checks)
    if silent:
        results.append(
            f"Spot checks: {wording.count(silent, 'timed run')} recorded nothing: images on a device, or an older version."
        )
    if missing := [check for check in checks if check.missing]:
        steps = sum(len(check.missing) for check in missing)
        results.append(
            f"Spot checks: {wording.count(steps, 'record')} of {wording.count(len(missing), 'timed run')} are not there."
        )
    if good := [check for check in checks if check.steps and not check.faults]:
        steps, epochs = sum(len(check.steps) for check in good), sum(check.epochs for check in good)
        num_recomputed = sum(len(check.computed) for check in good if not check.shown)
        recomputed_words = (
            f" The referee computed loss and gradients of {num_recomputed} of them again: they agree." if num_recomputed else ""
        )
        images = f" Every example, label and pixel of {wording.count(epochs, 'epoch')} is the plan's." if epochs else ""
        results.append(
            f"Spot checks: {wording.count(steps, 'step')} of {wording.count(len(good), 'timed run')}, drawn while they ran, "
            f"had the batch, learning rate and update of the plan.{recomputed_words}{images}"
        )
    results += [
        f"Spot checks: gradients prove nothing: {reason}."
        for reason in dict.fromkeys(check.shown for check in checks if check.shown)
    ]
    return results


_Statement = tuple[str, str] | None
"""(what was compared, sentence). The sentence has the fields `{what}` and `{it}` if it may apply to several subjects."""


def _merge_statements(statements: Sequence[_Statement]) -> list[str]:
    """Merge statements that say the same about several subjects into one sentence each."""
    subjects_by_sentence: dict[str, list[str]] = {}
    for subject, sentence in filter(None, statements):
        subjects_by_sentence.setdefault(sentence, []).append(subject)
    return [
        sentence.format(what=wording.joined(subjects), it="them" if len(subjects) > 1 else "it")
        for sentence, subjects in subjects_by_sentence.items()
    ]


def _order_statement(runs: Sequence[RunResult]) -> _Statement:
    """A statement on the order of examples of runs of equal length. With `best_epoch.patience` lengths may differ."""
    by_seed = _by_seed(runs)
    by_length = [same_length for same_seed in by_seed for same_length in _by_length(same_seed)]
    statement = _hash_statement(by_length, "order of examples", lambda result: result.order_hash)
    if statement is None or len(by_length) == len(by_seed):
        return statement
    subject, sentence = statement
    if all(len(group) == 1 for group in by_length):
        return subject, "Order of examples: the runs ended after different numbers of epochs, so that it cannot be compared."
    return subject, f"{sentence} Only runs that ended after the same number of epochs are compared in this."


def _twin_rows(stored: StoredComparison) -> list[tuple[Row, Row]]:
    """Rows that differ by their framework alone and claim the same mathematics as serial."""
    return [
        (row, other)
        for row, other in itertools.combinations(stored.comparison.rows, 2)
        if matrix.same_except_contestant(row, other) and row.spec.not_serial_because is None and not row.spec.optimizer.native
    ]


def _first_losses(stored: StoredComparison) -> list[dict[str, Any]]:
    """The rungs of first losses, see `spot_checks.first_losses`."""
    return [rung for rung in _rungs(stored) if rung.get("first_tolerance")]


def _rungs(stored: StoredComparison) -> list[dict[str, Any]]:
    return stored.comparison.proof.rungs if stored.comparison.proof else []


def _unexplained_scores(stored: StoredComparison) -> str | None:
    """The largest difference of scores between two runs whose losses agree at every step. None without a difference."""
    differences_found = [
        (
            abs(their_scores.num_correct - our_scores.num_correct),
            our_scores.num_examples,
            split,
            row.spec.variant,
            max(differences),
        )
        for row, other in _twin_rows(stored)
        for ours, theirs in itertools.product(stored.runs[row.id].values(), stored.runs[other.id].values())
        if ours.spec.seed == theirs.spec.seed and not (ours.reduced or theirs.reduced)
        if (differences := _step_loss_differences(ours, theirs)) and max(differences) <= FLOAT32_TOLERANCE
        for split, our_scores, their_scores in _final_scores(ours, theirs)
        if our_scores.accuracy != their_scores.accuracy
    ]
    if not differences_found:
        return None
    num_different, num_images, split, mode, losses = max(
        differences_found, key=lambda difference: (_is_beyond_ties(difference[0], difference[1]), difference[0] / difference[1])
    )
    text = (
        f"The losses agree within {losses:.1e} at every step. The {split} scores differ by {num_different} of "
        f"{wording.count(num_images, 'image')} ({mode})."
    )
    if _is_beyond_ties(num_different, num_images):
        return f"{text} The losses do not explain the scores."
    return f"{text} Rounding can do that where two logits of an image are nearly equal."


def _is_beyond_ties(num_different: int, num_images: int) -> bool:
    return num_different >= UNEXPLAINED_IMAGES and num_different > UNEXPLAINED_PART * num_images


def _step_loss_differences(ours: RunResult, theirs: RunResult) -> list[float]:
    """Relative differences of the losses of all steps. Empty if not all were recorded."""
    steps = {sum(epoch.steps for epoch in run.epochs) for run in (ours, theirs)} | {len(theirs.step_losses)}
    if steps != {len(ours.step_losses)}:
        return []
    return [relative_difference(*losses) for losses in zip(ours.step_losses, theirs.step_losses, strict=True)]


def _final_scores(ours: RunResult, theirs: RunResult) -> Iterator[tuple[str, Metrics, Metrics]]:
    """Yield (split, our scores, their scores) at the end of both runs."""
    for split in ("train", "validation", "test"):
        our_scores, their_scores = (run.test if split == "test" else getattr(run.epochs[-1], split) for run in (ours, theirs))
        if our_scores is not None and their_scores is not None:
            yield split, our_scores, their_scores


def _hash_statement(groups: Sequence[Sequence[RunResult]], subject: str, pick: Callable[[RunResult], str | None]) -> _Statement:
    """A statement whether the runs of each group have equal hashes. Several groups are those of several seeds.

    Args:
        subject: what the hash is of, in words.
    """
    hashes = [[value for run in runs if (value := pick(run)) is not None] for runs in groups]
    number = sum(map(len, hashes))
    if number == 0:
        return None
    if number == 1:
        return subject, f"Same {subject}: one run alone has nothing to be compared with."
    seeds = len({run.spec.seed for runs in groups for run in runs})
    within = f", within each of {seeds} seeds" if len(groups) > 1 and seeds > 1 else ""
    kinds = max(len(set(group)) for group in hashes)
    if kinds == 1:
        return subject, f"Same {{what}} in all {number} runs that recorded {{it}}{within}."
    return subject, f"NOT the same {subject}: {kinds} different among {number} runs{within}. Their figures do not compare."
