"""Where the time of a step goes: its parts, timed apart in a segment after the training."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from common.results import StepParts

if TYPE_CHECKING:  # a run calls this module
    from common.training import Batch, Trainer


def step_parts(trainer: Trainer, batch: Batch, num_examples: int, steps: int) -> StepParts:
    """Time whole steps, steps without exchange and the exchange alone, in turn, so that all meet the same machine.

    Every piece starts when all processes are there and ends when their devices are done. A whole step is longer than the
    computing of its slowest replica by the exchange that nothing hides; what the exchange takes by itself beyond that is
    hidden behind computing. The learning rate is 0: the weights stay, BatchNorm's statistics do not.

    Args:
        trainer: of a run that has been scored; called by all its processes alike.
        batch: this process's shard of a whole global batch.
        num_examples: of the global batch.
        steps: of each piece.
    """

    def step() -> None:
        trainer.train_step(batch, num_examples, 0.0)

    separated = trainer.separate(batch, num_examples)
    if separated is None or isinstance(separated, str):
        seconds = float(_timed(trainer, steps, step)[0].max())
        if separated is not None:
            return StepParts(steps=steps, step_seconds=seconds, not_separable=separated)
        return StepParts(
            steps=steps,
            step_seconds=seconds,
            compute_seconds=seconds,
            communication_hidden_seconds=0.0,
            communication_exposed_seconds=0.0,
            idle_seconds=0.0,
        )
    whole, computed, exchanged = _timed(trainer, steps, step, separated.compute, separated.exchange)
    compute, taken = float(computed.max()), float(whole.max())
    exposed = max(taken - compute, 0.0)
    return StepParts(
        steps=steps,
        step_seconds=taken,
        compute_seconds=compute,
        communication_hidden_seconds=max(float(exchanged.max()) - exposed, 0.0),
        communication_exposed_seconds=exposed,
        idle_seconds=None if separated.fused else float((compute - computed).mean()),
        not_separable=separated.fused,
    )


def _timed(trainer: Trainer, steps: int, *pieces: Callable[[], Any]) -> list[npt.NDArray[np.float64]]:
    """The median seconds of each piece, of every replica whose time can be told."""
    for piece in pieces:
        piece()  # compiled, and touched for the first time
    seconds: list[list[Any]] = [[] for _ in pieces]
    for _ in range(steps):
        for piece, taken in zip(pieces, seconds, strict=True):
            trainer.synchronize()
            trainer.total(np.zeros(1))  # nobody waits for another within a piece that has no exchange
            start = time.perf_counter()
            own = piece()
            trainer.synchronize()
            taken.append([time.perf_counter() - start] if own is None else own)
    return [_of_all(trainer, np.median(np.array(taken, np.float64), axis=0)) for taken in seconds]


def _of_all(trainer: Trainer, own: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """This process's numbers and those of all others."""
    index, number = trainer.shard
    gathered = np.zeros((number, len(own)))
    gathered[index] = own
    return trainer.all_reduce(gathered).reshape(-1)
