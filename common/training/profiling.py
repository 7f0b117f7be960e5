"""Where the time of a step goes: its parts, its pieces and its operations, in segments of their own after the training."""

from __future__ import annotations

import gzip
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from common.artifacts import atomic_files, results
from common.artifacts.schema import Operation, StepParts, TopOperations
from common.training.trainer import Recording, Span

if TYPE_CHECKING:  # a run calls this module
    from common.training.trainer import Batch, Trainer

MOST_OPERATIONS = 10
MOST_TRACED_STEPS = 3
"""A trace grows with them, and shows nothing new."""


def step_parts(trainer: Trainer, batch: Batch, num_examples: int, steps: int) -> StepParts:
    """Time whole steps, steps without exchange and the exchange alone, in turn, so that all meet the same machine.

    Every piece starts when all processes are there and ends when their devices are done. A whole step is longer than the
    computing of its slowest replica by the exchange that nothing hides; what the exchange takes by itself beyond that is
    hidden behind computing. Then the pieces of that computing are timed likewise. The learning rate is 0: the weights stay,
    BatchNorm's statistics do not.

    Args:
        trainer: of a run that has been scored; called by all its processes alike.
        batch: this process's shard of a whole global batch.
        num_examples: of the global batch.
        steps: of each piece.
    """

    def step() -> None:
        trainer.train_step(batch, num_examples, 0.0)

    separated = trainer.separate(batch, num_examples)
    if isinstance(separated, StepParts):
        parts = separated
    elif separated is None or isinstance(separated, str):
        seconds = float(_timed(trainer, steps, step)[0].max())
        parts = StepParts(steps=steps, step_seconds=seconds, not_separable=separated)
        if separated is None:
            nothing = dict.fromkeys(("communication_hidden_seconds", "communication_exposed_seconds", "idle_seconds"), 0.0)
            parts = parts.model_copy(update={"compute_seconds": seconds, **nothing})
    else:
        whole, computed, exchanged = _timed(trainer, steps, step, separated.compute, separated.exchange)
        compute, taken = float(computed.max()), float(whole.max())
        exposed = max(taken - compute, 0.0)
        parts = StepParts(
            steps=steps,
            step_seconds=taken,
            compute_seconds=compute,
            communication_hidden_seconds=max(float(exchanged.max()) - exposed, 0.0),
            communication_exposed_seconds=exposed,
            idle_seconds=None if separated.fused else float((compute - computed).mean()),
            not_separable=separated.fused,
        )
    return parts.model_copy(update=_pieces(trainer, batch, num_examples, steps))


def _pieces(trainer: Trainer, batch: Batch, num_examples: int, steps: int) -> dict[str, Any]:
    """The fields of StepParts that say how long each piece of the computing takes."""
    pieces = trainer.pieces(batch, num_examples)
    if isinstance(pieces, str):
        return {"pieces": pieces}
    called = {"forward": pieces.forward, "backward": pieces.backward}
    if pieces.optimizer is not None:
        called["optimizer"] = pieces.optimizer
    transfer, *medians = _timed(trainer, steps, pieces.transfer, *called.values())
    how = "each by itself, the device waited for before and after"
    if pieces.nested:
        medians = [own - before for own, before in zip(medians, [np.zeros(1), *medians], strict=False)]
        how = "differences between medians: forward alone, with backward, and the step, each compiled by itself"
    found = {name: float(seconds.max()) for name, seconds in zip(called, medians, strict=True)}
    clipped = [name for name, seconds in found.items() if seconds < 0.0]
    said = [how, *(f"{name} came out below 0 and is told as 0" for name in clipped), *([pieces.fused] if pieces.fused else [])]
    return {
        "transfer_seconds": float(transfer.max()),
        **{f"{name}_seconds": max(seconds, 0.0) for name, seconds in found.items()},
        "pieces": "; ".join(said),
    }


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


def top_operations(trainer: Trainer, batch: Batch, num_examples: int, steps: int, folder: Path | None) -> TopOperations | None:
    """Look at a few more steps with the framework's own profiler; the weights stay.

    Whatever becomes of the profiler, the steps are done: other processes have a part in them.

    Args:
        trainer: of a run that has been scored; called by all its processes alike.
        batch: this process's shard of a whole global batch.
        num_examples: of the global batch.
        steps: how many.
        folder: where the trace is written; None: another process looks, and this one takes its part in the steps.

    Returns:
        What was seen, or why nothing was; None without a folder.
    """
    begun = ended = False

    def work() -> None:
        nonlocal begun, ended
        begun = True
        for _ in range(steps):
            trainer.train_step(batch, num_examples, 0.0)
        trainer.synchronize()
        ended = True

    found: TopOperations | None = None
    if folder is None:
        work()
    else:
        try:
            found = _written(trainer.record(work), steps, folder)
        except Exception as error:
            if begun and not ended:
                raise  # it was the step that failed
            found = TopOperations(steps=steps, failure=f"{type(error).__name__}: {error}")
        if not begun:
            work()
    trainer.total(np.zeros(1))  # nobody leaves while another is still at its trace
    return found


def _written(recording: Recording, steps: int, folder: Path) -> TopOperations:
    found = TopOperations(steps=steps, operations=ranked(recording.spans, steps))
    try:
        atomic_files.write_atomically(folder / results.TRACE_FILE, gzip.compress(recording.trace, mtime=0))
    except OSError as error:
        return found.model_copy(update={"failure": f"the trace cannot be written: {error}"})
    return found.model_copy(update={"trace": results.TRACE_FILE})


def ranked(spans: Sequence[Span], steps: int) -> list[Operation]:
    """The operations with the longest self time in so many steps, the longest first; of no more than MOST_OPERATIONS names.

    A span's self time is its own without that of the spans inside of it: both frameworks' are counted by this one rule.
    """
    calls: defaultdict[str, int] = defaultdict(int)
    seconds: defaultdict[str, float] = defaultdict(float)
    around: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.lane, span.start_seconds, -span.seconds)):
        while around and (around[-1].lane != span.lane or _end(around[-1]) <= span.start_seconds):
            around.pop()
        if around:
            seconds[around[-1].name] -= min(span.seconds, _end(around[-1]) - span.start_seconds)
        calls[span.name] += 1
        seconds[span.name] += span.seconds
        around.append(span)
    total = sum(seconds.values())
    longest = sorted(seconds, key=lambda name: (-seconds[name], name))[:MOST_OPERATIONS]
    return [
        Operation(
            name=name,
            calls=calls[name] / steps,
            self_seconds=seconds[name] / steps,
            share=seconds[name] / total if total else 0.0,
        )
        for name in longest
    ]


def _end(span: Span) -> float:
    return span.start_seconds + span.seconds
