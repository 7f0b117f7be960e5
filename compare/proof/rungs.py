"""Rungs 1 to 7 of the ladder. Each compares one aspect of two recordings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from common.models.architectures import Architecture
from common.spec import Spec
from compare.cli.differences import FLOAT32_TOLERANCE, absolute, relative
from compare.proof import tolerances
from compare.proof.certificate import Rung
from compare.proof.differences import (
    Arrays,
    compare_parameters,
    difference_to_largest,
    group,
    largest_difference,
    make_rung,
    on_scale,
    scaled_difference,
    statistics_difference,
    update_difference,
)
from compare.proof.tolerances import Yardstick


def compare_serials(
    base: Spec, architecture: Architecture, ours: Arrays, theirs: Arrays, yardstick: Yardstick | None
) -> list[Rung]:
    """Return rungs 1 to 5 and 7 between two serial recordings of the same spec. Only rung 1 if that one fails.

    Args:
        base: the spec of both recordings.
        architecture: the architecture that both should have built.
        ours: the recording of the first framework.
        theirs: the recording of the other framework.
        yardstick: yardstick of a model that amplifies rounding. None: every step must keep the plain tolerance.
    """
    tolerance = tolerances.LOSS_TOLERANCE if base.precision == "float64" else tolerances.DEEP_FLOAT32_TOLERANCE
    kind = f"rounding of {base.precision}, through all layers"
    exact = "names, shapes, count and values are equal or not"
    rungs = [make_rung(base, 1, "parameters", *compare_parameters(architecture, ours, theirs), 0.0, exact)]
    if rungs[0].status == "failed":
        return rungs
    for mode in ("train", "eval"):
        difference = scaled_difference(ours[f"logits/{mode}"], theirs[f"logits/{mode}"])
        rungs.append(make_rung(base, 2, f"logits, {mode} mode", difference, None, tolerance, kind))
    if base.precision == "float64":  # in float32, rung 8 judges them
        difference, where = difference_to_largest(group(ours, "gradient/"), group(theirs, "gradient/"))
        reason = f"{kind}, on the scale of the model's largest gradient"
        rungs.append(make_rung(base, 3, "gradients", difference, where, tolerance, reason))
        rungs += _after_one_step(base, 4, architecture, ours, theirs)
    limits, reason = tolerances.loss_limits(
        base, tolerances.STRICT_STEPS, tolerances.LOSS_TOLERANCE, len(ours["loss"]), yardstick
    )
    rungs.append(_losses(base, 5, ours, theirs, tolerances.STRICT_STEPS, limits, reason))
    rungs.append(_last_logits(base, 5, "logits after the last step, eval mode", architecture, ours, theirs, yardstick))
    rungs.append(_pixels(base, ours, theirs))
    return rungs


def compare_mode(
    parallel: Spec,
    architecture: Architecture,
    framework: str,
    serial_arrays: Arrays,
    parallel_arrays: Arrays,
    yardstick: Yardstick | None,
) -> list[Rung]:
    """Return rung 6: the recording of a parallel mode against the serial one of the same framework.

    Losses alone are not enough. They do not depend on BatchNorm's running statistics, which evaluation uses.
    """
    strict = tolerances.strict_steps(parallel, architecture)
    limits, _ = tolerances.loss_limits(parallel, strict, tolerances.PARALLEL_TOLERANCE, len(serial_arrays["loss"]), yardstick)
    reason = "summation order over replicas is the only difference left"
    losses = _losses(parallel, 6, serial_arrays, parallel_arrays, strict, limits, reason, framework=framework)
    if not np.array_equal(serial_arrays["ids"], parallel_arrays["ids"]):
        failure = {"max_relative_difference": math.inf, "status": "failed", "where": "order of the examples"}
        losses = losses.model_copy(update=failure)
    # A rank holds only its own part of the batch. The first rank holds the first rows.
    whole = {**serial_arrays, "logits/final": serial_arrays["logits/final"][: len(parallel_arrays["logits/final"])]}
    after_one_step: list[Rung] = []
    if parallel.precision == "float64":
        after_one_step = _after_one_step(parallel, 6, architecture, serial_arrays, parallel_arrays, framework=framework)
    aspect = "logits after the last step"
    logits = _last_logits(parallel, 6, aspect, architecture, whole, parallel_arrays, yardstick, framework=framework)
    return [losses, *after_one_step, logits]


def _after_one_step(
    spec: Spec, number: int, architecture: Architecture, ours: Arrays, theirs: Arrays, **fields: Any
) -> list[Rung]:
    """Compare weights relative to the largest update, and BatchNorm statistics relative to the largest mean or variance."""
    plain, kind = tolerances.LOSS_TOLERANCE, "rounding of float64"
    limit, reason = 10 * plain, kind
    if spec.optimizer.name == "adam":
        # Adam's first direction is g / (|g| + epsilon). If g is small, its rounding counts up to 1 / epsilon times.
        limit, reason = 1e4 * plain, f"{kind}, times what Adam makes of small gradients"
    difference, where = update_difference(spec, limit, ours, theirs)
    reason = f"{reason}, on the scale of the largest update"
    rungs = [make_rung(spec, number, "weights after one step", difference, where, limit, reason, **fields)]
    if architecture.has_batch_norm:
        difference, where = statistics_difference(ours, theirs)
        reason = f"{kind}, on the scale of the largest of their kind"
        aspect = "BatchNorm statistics after one step"
        rungs.append(make_rung(spec, number, aspect, difference, where, plain, reason, **fields))
    return rungs


def _losses(
    spec: Spec,
    number: int,
    ours: Arrays,
    theirs: Arrays,
    strict_steps: int,
    limits: npt.NDArray[np.floating],
    reason: str,
    **fields: Any,
) -> Rung:
    """Compare the loss at every step, and the number of right predictions at the first ones, which rounding cannot change."""
    differences = relative(ours["loss"], theirs["loss"])
    steps = len(differences)
    passed = np.isfinite(differences).all() and (differences <= limits).all()
    if passed:
        # The largest judged difference, not the one nearest to its limit. Limits may grow with the steps.
        step = int(np.argmax(np.where(np.isfinite(limits), differences, 0.0)))
    else:
        step = int(np.argmax(np.divide(differences, limits, out=np.full(steps, np.inf), where=np.isfinite(differences))))
    difference, tolerance, where = float(differences[step]), float(limits[step]), None
    if not math.isfinite(tolerance):  # a loss that is only shown, and not finite
        tolerance = float(limits[0])
    status = "passed" if passed else "failed"
    if spec.precision == "float32":
        where = "differs by " + ", ".join(
            f"{differences[milestone - 1]:.1e} at step {milestone}" for milestone in _milestones(steps)
        )
    elif passed:  # how much training there was to agree on
        few = min(5, -(-steps // 2))
        where = f"loss from {ours['loss'][:few].mean():.2f} to {ours['loss'][-few:].mean():.2f}"
    counted = 1 if spec.precision == "float32" else strict_steps
    miscounted = absolute(ours["num_correct"], theirs["num_correct"])[:counted] > 0.0
    if passed and miscounted.any():
        step, difference, status, where = int(np.argmax(miscounted)), math.inf, "failed", "number of right predictions"
    judged = int(np.isfinite(limits).sum())
    values = {"step": step + 1, "steps": steps, "judged_steps": judged, "status": status, **fields}
    return make_rung(spec, number, "losses", difference, where, tolerance, reason, **values)


def _last_logits(
    spec: Spec,
    number: int,
    aspect: str,
    architecture: Architecture,
    ours: Arrays,
    theirs: Arrays,
    yardstick: Yardstick | None,
    **fields: Any,
) -> Rung:
    steps = len(ours["loss"])
    difference = scaled_difference(ours["logits/final"], theirs["logits/final"])
    values: dict[str, Any] = {"step": steps, "steps": steps, **fields}
    if spec.precision == "float32":
        if math.isfinite(difference):
            values["status"] = "shown"
        reason = "shown: rounding grows with the steps"
        return make_rung(spec, number, aspect, difference, None, FLOAT32_TOLERANCE, reason, **values)
    limit, reason = tolerances.LOGITS_TOLERANCE, "rounding of float64, summed over the steps"
    settings = spec.optimizer
    if settings.name == "adam" and architecture.has_batch_norm and not settings.weight_decay:
        # With weight decay the noise grows with each step. Only the yardstick says by how much.
        limit = max(limit, steps * settings.learning_rate * min(tolerances.GRADIENT_NOISE / settings.epsilon, 1.0))
        reason = "Adam moves biases in front of BatchNorm by rounding noise over epsilon, which the running means follow"
    if yardstick is not None and tolerances.YARDSTICK_FACTOR * yardstick.logits > limit:
        limit = tolerances.YARDSTICK_FACTOR * yardstick.logits
        reason = "ten times a framework's difference to itself in another order"
        if limit > tolerances.YARDSTICK_CEILING and math.isfinite(difference):
            values["status"], reason = "shown", f"shown: {reason} exceeds {tolerances.YARDSTICK_CEILING:.0e}"
    return make_rung(spec, number, aspect, difference, None, limit, reason, **values)


def _pixels(base: Spec, ours: Arrays, theirs: Arrays) -> Rung:
    difference, where = 0.0, None
    if not np.array_equal(ours["ids"], theirs["ids"]):
        difference, where = math.inf, "order of the examples"
    elif not np.array_equal(ours["decoded"], theirs["decoded"]):
        difference, where = math.inf, "decoded pixels"
    else:
        images, others = group(ours, "images/"), group(theirs, "images/")
        levels, name = largest_difference(
            [
                (on_scale(absolute(array.astype(np.int64), others.get(name)).max(), 255.0), name)
                for name, array in images.items()
            ]
        )
        differs = absolute(ours["pixels"], theirs["pixels"]).any(axis=1)
        if levels:
            difference, where = levels, f"images of step {int(name or 0) + 1}"
        elif differs.any():
            difference, where = math.inf, f"images of step {int(np.argmax(differs)) + 1}"
    reason = "order and augmentation, which moves whole pixels, are equal at every step or not; decoding is shared code"
    return make_rung(base, 7, "pixels and order", difference, where, 0.0, reason, steps=len(ours["loss"]))


def _milestones(steps: int) -> list[int]:
    return [milestone for milestone in (1, 2, 5, 10, 20, 50, 100) if milestone < steps] + [steps]
