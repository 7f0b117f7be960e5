"""The losses of a run, and of copies of it that start one unit in the last place apart: how far rounding carries them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from common.data.batches import Plan
from common.machine import heartbeat
from common.training.trainer import Trainer


def losses(trainer: Trainer, plan: Plan, first: int, last: int, steps: int) -> dict[str, npt.NDArray[Any]]:
    """Train the first steps of a plan from the trainer's own weights, and from copies of them.

    Args:
        trainer: before its first step. A mode that can resume.
        first, last: copies by number, both included. See `moved`. Copy 0 is the run itself.
        steps: at most those of the plan.

    Returns:
        losses: float64 [last - first + 1, steps], mean over each global batch before its update.
    """
    start = {name: array.copy() for name, array in trainer.state().items()}  # a framework may return its own memory
    found: list[npt.NDArray[np.float64]] = []
    for copy in range(first, last + 1):
        trainer.load_state(
            {name: moved(array, copy) if name.startswith("weights/") else array for name, array in start.items()}, 0
        )
        found.append(_train(trainer, plan, steps))
    return {"losses": np.stack(found)}


def moved(array: npt.NDArray[Any], copy: int) -> npt.NDArray[Any]:
    """Weights of a copy. Copy 0 is the run itself. In the others each value is the next larger or smaller number.

    Zero stays zero. The numbers next to it are hundreds of orders of magnitude smaller than any rounding.
    """
    if copy == 0:
        return array
    upwards = np.random.default_rng([copy, array.size]).random(array.shape) < 0.5
    limit = np.where(upwards, np.inf, -np.inf).astype(array.dtype)
    return np.where(array == 0, array, np.nextafter(array, limit))


def _train(trainer: Trainer, plan: Plan, steps: int) -> npt.NDArray[np.float64]:
    batches, found = trainer.batches(), list[Any]()
    for step in range(steps):
        start, stop = plan.batch(step % plan.steps_per_epoch)
        loss, _ = trainer.train_step(next(batches), stop - start, plan.learning_rate(step))
        found.append(loss)
        heartbeat.stepped()
    return trainer.all_reduce(trainer.fetch(found).astype(np.float64))
