"""Whether the runs of a comparison trained the same: the verdict of the proof, and the evidence of the timed runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic import JsonValue

from common.artifacts.schema import Metrics, RunResult
from compare.cli.differences import FLOAT32_TOLERANCE, relative_difference
from compare.judgement.row_figures import Summary
from compare.judgement.statement import Statement
from compare.results.store import SpotCheck, StoredComparison
from compare.running import matrix
from compare.running.matrix import Row

FIRST_STEP_TOLERANCE = {"float32": FLOAT32_TOLERANCE, "float64": 1e-12}
"""Largest relative difference of the first losses of timed runs, before any update. It allows only for rounding. See
`first_loss_tolerance`."""
MAX_OWN_TOLERANCE = 1e-3
"""Cap on a framework's own tolerance, however much rounding may do. A tolerance as large as this proves nothing."""
UNEXPLAINED_IMAGES, UNEXPLAINED_PART = 3, 0.01
"""Numbers of images above which ties do not explain that scores differ though losses are equal: at least so many, and more than
this fraction of all."""
NATIVE_OPTIMIZER_DIFFERENCE = {"sgd": 1.1e-3, "adam": 1.2e-2}
"""Relative difference of float64 losses at step 20, by optimizer, if each framework trains by its own update rule.

The model is simple_cnn on digits. docs/proof.md has the command."""


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

    In float32 a deep network rounds by more than a shallow one. If losses differ by more than a shallow one's, the first
    loss is judged by a tolerance of the arithmetic, each framework against the referee, see `spot_checks.first_losses`. Two
    frameworks that passed differ by the sum of theirs at most.
    """
    least = FIRST_STEP_TOLERANCE[precision]
    proof = stored.comparison.proof
    if precision != "float32" or proof is None:
        return least
    allowed: dict[str, float] = {}
    for rung in proof.rungs:
        is_passed = (rung.get("precision"), rung.get("status")) == ("float32", "passed")
        if is_passed and isinstance(first_tolerance := rung.get("first_tolerance"), float) and 0.0 < first_tolerance < math.inf:
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


def update_rule(optimizer: str) -> Statement:
    """The update rule that the proof is for, and what another one would change."""
    values: dict[str, JsonValue] = {"optimizer": optimizer, "difference": NATIVE_OPTIMIZER_DIFFERENCE[optimizer]}
    return Statement(kind="update_rule", level="info", values=values)


def statements(stored: StoredComparison, summaries: Sequence[Summary]) -> list[Statement]:
    proof = stored.comparison.proof
    results = [_identical_training(stored, summaries)]
    if _rungs(stored) and not stored.comparison.rows[0].spec.optimizer.native:
        results.append(update_rule(stored.comparison.rows[0].spec.optimizer.name))
    if proof:
        results += _spot_checks(proof.spot_checks)
        results += [
            Statement(kind="mode_not_claimed", level="info", values={"mode": mode, "reason": reason})
            for mode, reason in proof.not_claimed.items()
        ]
        results += [
            Statement(kind="mode_compared_with", level="info", values={"mode": mode, "other": other})
            for mode, other in proof.compared_with.items()
        ]
    results += _timed_configuration(stored, summaries)
    reduced_precision = {
        f"{row.contestant} with {switch}"
        for row in stored.comparison.rows
        for run in stored.runs.get(row.id, {}).values()
        for switch in run.reduced
    }
    if reduced_precision:
        results.append(Statement(kind="reduced_precision", level="caution", values={"switches": [*sorted(reduced_precision)]}))
    return [*results, *_equal_hashes(stored, is_training=all(summary.part == "training" for summary in summaries))]


def _contestants_noun(stored: StoredComparison) -> str:
    """`frameworks`, or `contestants` if all are of one framework."""
    return "frameworks" if len({row.framework for row in stored.comparison.rows}) > 1 else "contestants"


def _identical_training(stored: StoredComparison, summaries: Sequence[Summary]) -> Statement:
    """The verdict of the proof."""
    proof, headline = stored.comparison.proof, stored.comparison.headline
    if proof is None:
        return Statement(kind="not_examined", level="finding")
    values: dict[str, JsonValue] = {"verdict": headline, "reason": proof.reason}
    if headline != proof.verdict:
        values["some_rows_proved"] = any(summary.parity == "proved" for summary in summaries)
    return Statement(kind="identical_training", level="finding", values=values)


def _timed_configuration(stored: StoredComparison, summaries: Sequence[Summary]) -> list[Statement]:
    """Whether the first losses of the timed runs agree, and what is behind a difference."""
    compared_summaries = [summary for summary in summaries if summary.first_step_difference is not None]
    if not compared_summaries:
        return []
    worst = max(compared_summaries, key=lambda summary: summary.first_step_difference or 0.0)
    agree = min((first_losses_agree(stored, summary) for summary in compared_summaries), key=(False, None, True).index)
    values: dict[str, JsonValue] = {
        "agree": agree,
        "precision": worst.precision,
        "difference": worst.first_step_difference,
        "mode": worst.mode,
        "between": _contestants_noun(stored),
        "tolerance": first_loss_tolerance(stored, worst.precision),
    }
    results = [Statement(kind="first_losses", level="trouble" if agree is False else "finding", values=values)]
    for rung in _first_losses(stored):
        if rung.get("status") == "failed":
            place: dict[str, JsonValue] = {
                "framework": rung.get("framework"),
                "mode": rung.get("mode") or "serial",
                "where": rung.get("where"),
            }
            failed = Statement(kind="first_loss_failed", level="caution", values=place)
            results += [failed] if failed not in results else []
    return [*results, *_unexplained_scores(stored)]


def _spot_checks(checks: Sequence[SpotCheck]) -> list[Statement]:
    """Statements on the recorded steps of the timed runs, the faults first."""
    results = [
        Statement(
            kind="spot_check_failed",
            level="trouble",
            rows=(check.row,),
            values={"repeat": check.repeat + 1, "faults": [*check.faults]},
        )
        for check in checks
        if check.faults
    ]
    silent = sum(not check.steps and not check.has_fingerprints for check in checks)
    if silent:
        results.append(Statement(kind="nothing_recorded", level="info", values={"runs": silent}))
    if missing := [check for check in checks if check.missing]:
        values: dict[str, JsonValue] = {"records": sum(len(check.missing) for check in missing), "runs": len(missing)}
        results.append(Statement(kind="records_missing", level="caution", values=values))
    if good := [check for check in checks if check.steps and not check.faults]:
        values = {
            "steps": sum(len(check.steps) for check in good),
            "runs": len(good),
            "recomputed": sum(len(check.computed) for check in good if not check.shown),
            "epochs": sum(check.epochs for check in good),
        }
        results.append(Statement(kind="spot_checks_passed", level="finding", values=values))
    results += [
        Statement(kind="gradients_prove_nothing", level="caution", values={"reason": reason})
        for reason in dict.fromkeys(check.shown for check in checks if check.shown)
    ]
    return results


def _equal_hashes(stored: StoredComparison, *, is_training: bool) -> list[Statement]:
    """Whether the runs recorded the same data, and in training the same weights and order of examples.

    Statements with equal values are one statement on several subjects.
    """
    runs = _all_runs(stored)
    candidates = [("data", _hash_statement([runs], lambda result: result.data_hash))]
    if is_training:
        candidates.append(("initial weights", _hash_statement(_by_seed(runs), lambda result: result.weights_hash)))
        candidates.append(("order of examples", _order_statement([run for run in runs if run.status == "ok"])))
    merged: list[tuple[Statement, list[JsonValue]]] = []
    for subject, statement in candidates:
        same = next((subjects for other, subjects in merged if other == statement), None)
        if same is not None:
            same.append(subject)
        elif statement is not None:
            merged.append((statement, [subject]))
    return [
        statement.model_copy(update={"values": {**statement.values, "subjects": subjects}}) for statement, subjects in merged
    ]


def _order_statement(runs: Sequence[RunResult]) -> Statement | None:
    """A statement on the order of examples of runs of equal length. With `best_epoch.patience` lengths may differ."""
    by_seed = _by_seed(runs)
    by_length = [same_length for same_seed in by_seed for same_length in _by_length(same_seed)]
    statement = _hash_statement(by_length, lambda result: result.order_hash)
    if statement is None or len(by_length) == len(by_seed):
        return statement
    if all(len(group) == 1 for group in by_length):
        return Statement(kind="order_not_compared", level="info")
    return statement.model_copy(update={"values": {**statement.values, "of_equal_length": True}})


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


def _unexplained_scores(stored: StoredComparison) -> list[Statement]:
    """The largest difference of scores between two runs whose losses agree at every step. Empty without a difference."""
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
        return []
    num_different, num_images, split, mode, losses = max(
        differences_found, key=lambda difference: (_is_beyond_ties(difference[0], difference[1]), difference[0] / difference[1])
    )
    values: dict[str, JsonValue] = {
        "loss_difference": losses,
        "split": split,
        "different": num_different,
        "images": num_images,
        "mode": mode,
        "explained": not _is_beyond_ties(num_different, num_images),
    }
    return [Statement(kind="scores_differ", level="caution", values=values)]


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


def _hash_statement(groups: Sequence[Sequence[RunResult]], pick: Callable[[RunResult], str | None]) -> Statement | None:
    """A statement whether the runs of each group have equal hashes. Several groups are those of several seeds."""
    hashes = [[value for run in runs if (value := pick(run)) is not None] for runs in groups]
    number = sum(map(len, hashes))
    if number == 0:
        return None
    if number == 1:
        return Statement(kind="one_hash", level="info")
    seeds = len({run.spec.seed for runs in groups for run in runs})
    kinds = max(len(set(group)) for group in hashes)
    values: dict[str, JsonValue] = {"runs": number, "seeds": seeds if len(groups) > 1 else 1}
    if kinds == 1:
        return Statement(kind="same_hashes", level="finding", values=values)
    return Statement(kind="other_hashes", level="trouble", values={**values, "different": kinds})
