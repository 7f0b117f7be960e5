"""Breakdown of a step's time into compute and exchange, forward to optimizer, and operations. Measured after training."""

from __future__ import annotations

import gzip
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.artifacts import atomic_files, results
from common.artifacts.schema import ProfiledOperation, StepParts, TopOperations
from common.training.trainer import BaseTrainer, Batch, ProfilerRecording, ProfilerSpan, StepBreakdown

MOST_OPERATIONS = 10
MOST_TRACED_STEPS = 3
"""Largest number of traced steps. More steps make a larger trace that shows nothing new."""


def step_parts(
    trainer: BaseTrainer, batch: Batch, num_examples: int, steps: int, clock: Callable[[], float] = time.perf_counter
) -> StepParts:
    """Time whole steps, steps without exchange, and the exchange alone, in turns, so that conditions are equal.

    Each timing starts when all processes are ready and ends when their devices have finished. Exposed communication is the
    time of a whole step beyond the computing of its slowest replica. Hidden communication is the rest of the exchange's own
    time. Then the breakdown of that computing is timed in the same way. The learning rate is 0, so the weights stay, but
    BatchNorm's statistics change.

    Args:
        trainer: the trainer of a scored run. All its processes call this together.
        batch: this process's shard of a whole global batch.
        num_examples: size of the global batch.
        steps: number of timings of each.
        clock: returns the time in seconds.
    """

    def step() -> None:
        trainer.train_step(batch, num_examples, 0.0)

    median_seconds = partial(_median_seconds, trainer, steps, clock)
    parts = trainer.compute_and_exchange(batch, num_examples)
    if parts is None or isinstance(parts, str):
        seconds = float(median_seconds(step)[0].max())
        measured = StepParts(steps=steps, step_seconds=seconds, not_separable=parts)
        if parts is None:
            zeros = dict.fromkeys(("communication_hidden_seconds", "communication_exposed_seconds", "idle_seconds"), 0.0)
            measured = measured.model_copy(update={"compute_seconds": seconds, **zeros})
    elif isinstance(parts, StepParts):
        measured = parts
    else:
        step_samples, compute_samples, exchange_samples = median_seconds(step, parts.compute, parts.exchange)
        compute, step_seconds = float(compute_samples.max()), float(step_samples.max())
        exposed = max(step_seconds - compute, 0.0)
        measured = StepParts(
            steps=steps,
            step_seconds=step_seconds,
            compute_seconds=compute,
            communication_hidden_seconds=max(float(exchange_samples.max()) - exposed, 0.0),
            communication_exposed_seconds=exposed,
            idle_seconds=None if parts.not_separable else float((compute - compute_samples).mean()),
            not_separable=parts.not_separable,
        )
    return measured.model_copy(update=_breakdown(trainer.step_breakdown(batch, num_examples), median_seconds))


def _breakdown(breakdown: StepBreakdown | str, median_seconds: Callable[..., list[npt.NDArray[np.float64]]]) -> dict[str, Any]:
    """Return the fields of StepParts for transfer, forward, backward and optimizer."""
    if isinstance(breakdown, str):
        return {"pieces": breakdown}
    functions = {"forward": breakdown.forward, "backward": breakdown.backward}
    if breakdown.optimizer is not None:
        functions["optimizer"] = breakdown.optimizer
    transfer, *medians = median_seconds(breakdown.transfer, *functions.values())
    method = "each by itself, the device waited for before and after"
    if breakdown.nested:
        medians = [median - previous for median, previous in zip(medians, [np.zeros(1), *medians], strict=False)]
        method = "differences between medians: forward alone, with backward, and the step, each compiled by itself"
    seconds_by_part = {name: float(seconds.max()) for name, seconds in zip(functions, medians, strict=True)}
    clipped_words = [
        f"{name} came out below 0 and is reported as 0" for name, seconds in seconds_by_part.items() if seconds < 0.0
    ]
    return {
        "transfer_seconds": float(transfer.max()),
        **{f"{name}_seconds": max(seconds, 0.0) for name, seconds in seconds_by_part.items()},
        "pieces": "; ".join([method, *clipped_words, *([breakdown.note] if breakdown.note else [])]),
    }


def _median_seconds(
    trainer: BaseTrainer, steps: int, clock: Callable[[], float], *functions: Callable[[], Any]
) -> list[npt.NDArray[np.float64]]:
    """Return the median seconds of each function, for every replica whose time is known."""
    for function in functions:
        function()  # compiles, and touches memory for the first time
    seconds: list[list[Any]] = [[] for _ in functions]
    for _ in range(steps):
        for function, samples in zip(functions, seconds, strict=True):
            trainer.synchronize()
            trainer.all_reduce_world(np.zeros(1))  # so that no process waits for another inside a function without exchange
            start = clock()
            replica_seconds = function()
            trainer.synchronize()
            samples.append([clock() - start] if replica_seconds is None else replica_seconds)
    return [_gather_replicas(trainer, np.median(np.array(samples, np.float64), axis=0)) for samples in seconds]


def _gather_replicas(trainer: BaseTrainer, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Gather these values from all replicas."""
    index, number = trainer.shard
    gathered = np.zeros((number, len(values)))
    gathered[index] = values
    return trainer.all_reduce_shards(gathered).reshape(-1)


def top_operations(
    trainer: BaseTrainer, batch: Batch, num_examples: int, steps: int, folder: Path | None
) -> TopOperations | None:
    """Record a few more steps with the framework's own profiler; the weights stay.

    The steps run even if the profiler fails, because other processes take part in them.

    Args:
        trainer: the trainer of a scored run. All its processes call this together.
        batch: this process's shard of a whole global batch.
        num_examples: size of the global batch.
        steps: number of steps.
        folder: the folder for the trace; None: another process records, and this one only takes part in the steps.

    Returns:
        The record, or why there is none; None without a folder.
    """
    has_begun = has_ended = False

    def work() -> None:
        nonlocal has_begun, has_ended
        has_begun = True
        for _ in range(steps):
            trainer.train_step(batch, num_examples, 0.0)
        trainer.synchronize()
        has_ended = True

    result: TopOperations | None = None
    if folder is None:
        work()
    else:
        try:
            result = _write_trace(trainer.record(work), steps, folder)
        except Exception as error:
            if has_begun and not has_ended:
                raise  # it was the step that failed
            result = TopOperations(steps=steps, failure=f"{type(error).__name__}: {error}")
        if not has_begun:
            work()
    trainer.all_reduce_world(np.zeros(1))  # no process leaves while another still writes its trace
    return result


def _write_trace(recording: ProfilerRecording, steps: int, folder: Path) -> TopOperations:
    result = TopOperations(steps=steps, operations=longest_operations(recording.spans, steps))
    try:
        atomic_files.write_atomically(folder / results.TRACE_FILE, gzip.compress(recording.trace, mtime=0))
    except OSError as error:
        return result.model_copy(update={"failure": f"the trace cannot be written: {error}"})
    return result.model_copy(update={"trace": results.TRACE_FILE})


def longest_operations(spans: Sequence[ProfilerSpan], steps: int) -> list[ProfiledOperation]:
    """Return the MOST_OPERATIONS operations with the longest self time in a number of steps, longest first.

    A span's self time is its time without that of the spans inside it. The same rule counts both frameworks.
    """
    calls: defaultdict[str, int] = defaultdict(int)
    seconds: defaultdict[str, float] = defaultdict(float)
    enclosing: list[ProfilerSpan] = []
    for span in sorted(spans, key=lambda span: (span.lane, span.start_seconds, -span.seconds)):
        while enclosing and (enclosing[-1].lane != span.lane or _end(enclosing[-1]) <= span.start_seconds):
            enclosing.pop()
        if enclosing:
            seconds[enclosing[-1].name] -= min(span.seconds, _end(enclosing[-1]) - span.start_seconds)
        calls[span.name] += 1
        seconds[span.name] += span.seconds
        enclosing.append(span)
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


def _end(span: ProfilerSpan) -> float:
    return span.start_seconds + span.seconds
