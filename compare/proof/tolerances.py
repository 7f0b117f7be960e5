"""How far recordings may differ: fixed tolerances, and the yardstick for models that amplify rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.models.architectures import Architecture
from common.spec import Spec
from compare.core.differences import FLOAT32_TOLERANCE, relative
from compare.proof.certificate import Rung
from compare.proof.differences import Arrays, scaled

LOSS_TOLERANCE = 1e-12
PARALLEL_TOLERANCE = 1e-10
LOGITS_TOLERANCE = 1e-9
"""Ten times that of losses. A loss is a mean over a batch. Of some hundred logits the farthest one counts."""
DEEP_FLOAT32_TOLERANCE = 1e-4
"""Of single logits, which add up the rounding of every layer: some hundred times that of one number."""
GRADIENT_NOISE = 1e-13
"""Rounding in the gradient of a bias before BatchNorm. In exact arithmetic that gradient is zero."""
YARDSTICK_FACTOR = 10.0
YARDSTICK_CEILING = 1e-6
"""If rounding alone may exceed this, a step is shown and not judged. It proves nothing any more."""
STRICT_STEPS_IN_PARTS = 2
"""If BatchNorm sees a micro-batch at a time. Rounding of resnet18 over four examples grows a hundredfold with each step."""
STRICT_STEPS = 3
"""Every model must meet the plain tolerance for so many steps. Then models that amplify rounding get a yardstick.

The yardstick also applies to steps 2 and 3, up to `first_limits`."""
AMPLIFIED = 100.0
"""Largest factor by which rounding may grow per step, in the first steps. A network of 50 layers reaches that."""


@dataclass(frozen=True)
class Yardstick:
    """How far frameworks differ from themselves in another summation order. For models that amplify rounding."""

    losses: npt.NDArray[np.floating]
    """[steps], relative, the largest so far. 0, which allows nothing, if not finite or large from the start."""
    logits: float
    """After the last step, on the scale of the largest logit."""


def measure_yardstick(pairs: Sequence[tuple[Arrays, Arrays]]) -> Yardstick:
    """The yardstick from pairs of recordings of one framework each: in order, and with every batch reversed.

    If the order changes the first losses by more than rounding does, see `first_limits`, the yardstick is zero.
    """
    first = first_limits(STRICT_STEPS)
    losses = np.max([relative(ordered["loss"], reordered["loss"]) for ordered, reordered in pairs], axis=0)
    if not (losses[:STRICT_STEPS] <= first[: len(losses)]).all():
        return Yardstick(losses=np.zeros_like(losses), logits=0.0)
    logits = max(scaled(ordered["logits/final"], reordered["logits/final"][::-1]) for ordered, reordered in pairs)
    return Yardstick(
        losses=np.maximum.accumulate(np.where(np.isfinite(losses), losses, 0.0)),
        logits=logits if math.isfinite(logits) else 0.0,
    )


def first_limits(steps: int) -> npt.NDArray[np.floating]:
    """[steps]: how far amplified rounding may carry the first losses. The first one itself is not amplified."""
    return LOSS_TOLERANCE * AMPLIFIED ** np.arange(steps)


def loss_limits(
    what: Spec, strict_steps: int, later: float, steps: int, yardstick: Yardstick | None
) -> tuple[npt.NDArray[np.floating], str]:
    """([steps] the largest relative difference of each loss, infinite if it is only shown; why)."""
    if what.precision == "float32":
        limits = np.full(steps, np.inf)
        limits[0] = FLOAT32_TOLERANCE
        return limits, "rounding of float32 at the first step; later steps are shown"
    limits = np.full(steps, LOSS_TOLERANCE)
    limits[strict_steps:] = later
    if yardstick is None:
        return limits, "rounding of float64"
    own = YARDSTICK_FACTOR * yardstick.losses
    limits[strict_steps:] = np.maximum(later, own[strict_steps:])
    first = first_limits(min(strict_steps, steps))
    limits[:strict_steps] = np.maximum(LOSS_TOLERANCE, np.minimum(own[:strict_steps], first))
    beyond = np.flatnonzero(limits > YARDSTICK_CEILING)
    reason = "rounding of float64; or ten times a framework's difference to itself in another order, where that is more"
    if (limits[:strict_steps] > LOSS_TOLERANCE).any():
        reason += f" (at most {first[-1]:.0e} at step {len(first)})"
    if len(beyond):
        limits[beyond[0] :] = np.inf
        reason += f"; from step {beyond[0] + 1} on, where that exceeds {YARDSTICK_CEILING:.0e}, shown"
    return limits, reason


def strict_steps(what: Spec, architecture: Architecture) -> int:
    in_parts = architecture.has_batch_norm and "pipeline" in what.variant and what.pipeline.micro_batches > 1
    return STRICT_STEPS_IN_PARTS if in_parts else STRICT_STEPS


def may_be_rounding(compared: list[Rung], strict_steps: int) -> bool:
    """Whether amplified rounding may explain all rungs that failed: after `strict_steps`, or earlier within `first_limits`."""
    first = first_limits(strict_steps)

    def may_be(rung: Rung) -> bool:
        step = rung.step or 0
        return step > strict_steps or (step > 1 and rung.max_relative_difference <= first[step - 1])

    failed = [rung for rung in compared if rung.status == "failed"]
    return bool(failed) and all(map(may_be, failed))
