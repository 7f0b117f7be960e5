"""Where the time of a step goes: compute and exchange, forward to optimizer, and single operations. Measured after training."""

from __future__ import annotations

import gzip
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.artifacts import atomic_files, results
from common.artifacts.schema import ProfiledOperation, StepParts, TopOperations
from common.training.trainer import Batch, Recording, Span, Trainer

MOST_OPERATIONS = 10
MOST_TRACED_STEPS = 3
"""More steps make a larger trace that shows nothing new."""


def step_parts(trainer: Trainer, batch: Batch, num_examples: int, steps: int) -> StepParts:
    """Time whole steps, steps without exchange, and the exchange alone. They take turns, so all meet the same conditions.

    Each timing starts when all processes are ready and ends when their devices have finished. Exposed communication is the
    time of a whole step beyond the computing of its slowest replica. Hidden communication is the rest of the exchange's own
    time. Then the breakdown of that computing is timed in the same way. The learning rate is 0, so the weights stay, but
    BatchNorm's statistics change.

    Args:
        trainer: of a run that has been scored. All its processes call this together.
        batch: this process's shard of a whole global batch.
        num_examples: of the global batch.
        steps: how often each is timed.
    """

    def step() -> None:
        trainer.train_step(batch, num_examples, 0.0)

    parts = trainer.compute_and_exchange(batch, num_examples)
    if parts is None or isinstance(parts, str):
        seconds = float(_median_seconds(trainer, steps, step)[0].max())
        measured = StepParts(steps=steps, step_seconds=seconds, not_separable=parts)
        if parts is None:
            nothing = dict.fromkeys(("communication_hidden_seconds", "communication_exposed_seconds", "idle_seconds"), 0.0)
            measured = measured.model_copy(update={"compute_seconds": seconds, **nothing})
    elif isinstance(parts, StepParts):
        measured = parts
    else:
        whole, computed, exchanged = _median_seconds(trainer, steps, step, parts.compute, parts.exchange)
        compute, taken = float(computed.max()), float(whole.max())
        exposed = max(taken - compute, 0.0)
        measured = StepParts(
            steps=steps,
            step_seconds=taken,
            compute_seconds=compute,
            communication_hidden_seconds=max(float(exchanged.max()) - exposed, 0.0),
            communication_exposed_seconds=exposed,
            idle_seconds=None if parts.not_separable else float((compute - computed).mean()),
            not_separable=parts.not_separable,
        )
    return measured.model_copy(update=_breakdown(trainer, batch, num_examples, steps))


def _breakdown(trainer: Trainer, batch: Batch, num_examples: int, steps: int) -> dict[str, Any]:
    """The fields of StepParts that say how long transfer, forward, backward and optimizer take."""
    breakdown = trainer.step_breakdown(batch, num_examples)
    if isinstance(breakdown, str):
        return {"pieces": breakdown}
    functions = {"forward": breakdown.forward, "backward": breakdown.backward}
    if breakdown.optimizer is not None:
        functions["optimizer"] = breakdown.optimizer
    transfer, *medians = _median_seconds(trainer, steps, breakdown.transfer, *functions.values())
    how = "each by itself, the device waited for before and after"
    if breakdown.nested:
        medians = [own - before for own, before in zip(medians, [np.zeros(1), *medians], strict=False)]
        how = "differences between medians: forward alone, with backward, and the step, each compiled by itself"
    found = {name: float(seconds.max()) for name, seconds in zip(functions, medians, strict=True)}
    clipped = [f"{name} came out below 0 and is reported as 0" for name, seconds in found.items() if seconds < 0.0]
    return {
        "transfer_seconds": float(transfer.max()),
        **{f"{name}_seconds": max(seconds, 0.0) for name, seconds in found.items()},
        "pieces": "; ".join([how, *clipped, *([breakdown.note] if breakdown.note else [])]),
    }


def _median_seconds(trainer: Trainer, steps: int, *functions: Callable[[], Any]) -> list[npt.NDArray[np.float64]]:
    """The median seconds of each function, for every replica whose time is known."""
    for function in functions:
        function()  # compiles, and touches memory for the first time
    seconds: list[list[Any]] = [[] for _ in functions]
    for _ in range(steps):
        for function, taken in zip(functions, seconds, strict=True):
            trainer.synchronize()
            trainer.total(np.zeros(1))  # so that no process waits for another inside a function without exchange
            start = time.perf_counter()
            own = function()
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
    """Record a few more steps with the framework's own profiler; the weights stay.

    The steps run even if the profiler fails, because other processes take part in them.

    Args:
        trainer: of a run that has been scored. All its processes call this together.
        batch: this process's shard of a whole global batch.
        num_examples: of the global batch.
        steps: how many.
        folder: where the trace is written; None: another process records, and this one only takes part in the steps.

    Returns:
        What was recorded, or why nothing was; None without a folder.
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
    trainer.total(np.zeros(1))  # no process leaves while another still writes its trace
    return found


def _written(recording: Recording, steps: int, folder: Path) -> TopOperations:
    found = TopOperations(steps=steps, operations=ranked(recording.spans, steps))
    try:
        atomic_files.write_atomically(folder / results.TRACE_FILE, gzip.compress(recording.trace, mtime=0))
    except OSError as error:
        return found.model_copy(update={"failure": f"the trace cannot be written: {error}"})
    return found.model_copy(update={"trace": results.TRACE_FILE})


def ranked(spans: Sequence[Span], steps: int) -> list[ProfiledOperation]:
    """The MOST_OPERATIONS operations with the longest self time in a number of steps, the longest first.

    A span's self time is its time without that of the spans inside it. The same rule counts both frameworks.
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
        ProfiledOperation(
            name=name,
            calls=calls[name] / steps,
            self_seconds=seconds[name] / steps,
            share=seconds[name] / total if total else 0.0,
        )
        for name in longest
    ]


def _end(span: Span) -> float:
    return span.start_seconds + span.seconds
