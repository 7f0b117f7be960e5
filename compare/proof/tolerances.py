"""Tolerances of recordings: fixed ones, and the yardstick for models that amplify rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.models.architectures import Architecture
from common.spec import Spec
from compare.cli.differences import FLOAT32_TOLERANCE, relative
from compare.proof.certificate import Rung
from compare.proof.differences import Arrays, scaled_difference

LOSS_TOLERANCE = 1e-12
PARALLEL_TOLERANCE = 1e-10
LOGITS_TOLERANCE = 1e-9
"""Tolerance of logits: ten times that of losses. A loss is a mean over a batch; of some hundred logits the farthest one
counts."""
DEEP_FLOAT32_TOLERANCE = 1e-4
"""Tolerance of single float32 logits. They add up the rounding of every layer: some hundred times that of one number."""
GRADIENT_NOISE = 1e-13
"""Rounding in the gradient of a bias before BatchNorm. In exact arithmetic that gradient is zero."""
YARDSTICK_FACTOR = 10.0
YARDSTICK_CEILING = 1e-6
"""Largest tolerance of a judged step. If rounding may exceed it, the step proves nothing and is only shown."""
STRICT_STEPS_IN_PARTS = 2
"""`STRICT_STEPS` if BatchNorm sees one micro-batch at a time. Rounding of resnet18 over four examples grows a hundredfold a
step."""
STRICT_STEPS = 3
"""Number of first steps where every model must keep the plain tolerance. Then models that amplify rounding get a yardstick.

The yardstick also applies to steps 2 and 3, up to `first_limits`."""
AMPLIFIED = 100.0
"""Largest growth of rounding per step, a factor, in the first steps. A network of 50 layers reaches that."""


@dataclass(frozen=True)
class Yardstick:
    """Difference of frameworks from themselves in another summation order, for models that amplify rounding."""

    losses: npt.NDArray[np.floating]
    """[steps] largest relative difference so far. 0, which allows nothing, if it is not finite or large from the start."""
    logits: float
    """Largest difference of logits after the last step, relative to the largest logit."""


def measure_yardstick(pairs: Sequence[tuple[Arrays, Arrays]]) -> Yardstick:
    """Measure the yardstick from pairs of recordings, each of one framework: in order, and with every batch reversed.

    If the order changes the first losses by more than rounding does, see `first_limits`, the yardstick is zero.
    """
    first = first_limits(STRICT_STEPS)
    losses = np.max([relative(ordered["loss"], reordered["loss"]) for ordered, reordered in pairs], axis=0)
    if not (losses[:STRICT_STEPS] <= first[: len(losses)]).all():
        return Yardstick(losses=np.zeros_like(losses), logits=0.0)
    logits = max(scaled_difference(ordered["logits/final"], reordered["logits/final"][::-1]) for ordered, reordered in pairs)
    return Yardstick(
        losses=np.maximum.accumulate(np.where(np.isfinite(losses), losses, 0.0)),
        logits=logits if math.isfinite(logits) else 0.0,
    )


def first_limits(steps: int) -> npt.NDArray[np.floating]:
    """Return the largest error of the first losses by amplified rounding, [steps]. The first loss itself is not amplified."""
    return LOSS_TOLERANCE * AMPLIFIED ** np.arange(steps)


def loss_limits(
    spec: Spec, strict_steps: int, later_limit: float, steps: int, yardstick: Yardstick | None
) -> tuple[npt.NDArray[np.floating], str]:
    """Return ([steps] largest relative difference of each loss, infinite if it is only shown; reason)."""
    if spec.precision == "float32":
        limits = np.full(steps, np.inf)
        limits[0] = FLOAT32_TOLERANCE
        return limits, "rounding of float32 at the first step; later steps are shown"
    limits = np.full(steps, LOSS_TOLERANCE)
    limits[strict_steps:] = later_limit
    if yardstick is None:
        return limits, "rounding of float64"
    yardstick_limits = YARDSTICK_FACTOR * yardstick.losses
    limits[strict_steps:] = np.maximum(later_limit, yardstick_limits[strict_steps:])
    first = first_limits(min(strict_steps, steps))
    limits[:strict_steps] = np.maximum(LOSS_TOLERANCE, np.minimum(yardstick_limits[:strict_steps], first))
    beyond = np.flatnonzero(limits > YARDSTICK_CEILING)
    reason = "rounding of float64; or ten times a framework's difference to itself in another order, where that is more"
    if (limits[:strict_steps] > LOSS_TOLERANCE).any():
        reason += f" (at most {first[-1]:.0e} at step {len(first)})"
    if len(beyond):
        limits[beyond[0] :] = np.inf
        reason += f"; from step {beyond[0] + 1} on, where that exceeds {YARDSTICK_CEILING:.0e}, shown"
    return limits, reason


def strict_steps(spec: Spec, architecture: Architecture) -> int:
    in_parts = architecture.has_batch_norm and spec.traits.cuts_batches and spec.pipeline.micro_batches > 1
    return STRICT_STEPS_IN_PARTS if in_parts else STRICT_STEPS


def may_be_rounding(rungs: list[Rung], strict_steps: int) -> bool:
    """Whether amplified rounding may explain all rungs that failed: after `strict_steps`, or earlier within `first_limits`."""
    first = first_limits(strict_steps)

    def may_be(rung: Rung) -> bool:
        step = rung.step or 0
        return step > strict_steps or (step > 1 and rung.max_relative_difference <= first[step - 1])

    failed = [rung for rung in rungs if rung.status == "failed"]
    return bool(failed) and all(map(may_be, failed))
