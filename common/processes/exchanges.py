"""Timing of the replicas of a machine: how much slower they compute together, and how long messages take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.artifacts import atomic_files
from common.frozen import Frozen
from common.machine import heartbeat, placement
from common.processes import parameter_server
from common.spec import Spec

ITEM_BYTES = 4
"""Bytes of a float32 value."""
SIZES = (2**10, 2**16, 2**20, 2**24)
"""Bytes of the timed messages. The first shows the latency, the last the rate."""
WARM_UP_CALLS, CALLS = 3, 10
LONG_WARM_UP_CALLS, LONG_CALLS = 1, 5
"""The largest message is sent less often. Over a link of 10 Mbit/s it takes 14 s."""


class Collectives(NamedTuple):
    """The collectives of a twin's ranks. Each takes a number of float32 values, and returns a function that sends them.

    All ranks make the same calls. A call returns when the values have arrived.
    """

    all_reduce: Callable[[int], Callable[[], object]]
    """Sums values over all ranks."""
    send: Callable[[int], Callable[[], object]] | None
    """Sends values to a neighbour, and receives as many. None: modes that divide the model send nothing between processes."""


class MessageTiming(Frozen):
    """Time of messages of one size, the median over calls."""

    num_bytes: int
    seconds: float


class ExchangeTimings(Frozen):
    """The timings of one run of several ranks. A run with a parameter server has only `server`."""

    replicas: int
    alone_seconds: float | None = None
    """Seconds of a forward and backward pass on rank 0 while the others wait."""
    together_seconds: float | None = None
    """Seconds of a forward and backward pass on rank 0 while all ranks compute."""
    all_reduce: list[MessageTiming] = []
    send: list[MessageTiming] = []
    server: list[MessageTiming] = []
    """Times of a push and a pull by each worker, at the same time."""
    versions: dict[str, str]


def measure(
    run_spec: Spec,
    collectives: Collectives,
    training_pass: Callable[[], object],
    synchronize: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
) -> ExchangeTimings:
    """Time passes of one rank, passes of all ranks, and messages between them. All ranks call this.

    Args:
        run_spec: spec of the run.
        collectives: the twin's collectives.
        training_pass: a model's forward and backward pass on one batch.
        synchronize: waits for the device.
        clock: returns the time in seconds.
    """

    def synchronized(work: Callable[[], object]) -> Callable[[], object]:
        def call() -> None:
            work()
            synchronize()

        return call

    barrier = synchronized(collectives.all_reduce(1))
    first = placement.is_first_rank()
    training_pass = synchronized(training_pass)
    alone = _seconds(training_pass, clock=clock) if first else 0.0
    barrier()
    together = _seconds(training_pass, clock=clock)
    barrier()
    timings: dict[str, list[MessageTiming]] = {}
    for name, make_call in (("all_reduce", collectives.all_reduce), ("send", collectives.send)):
        if make_call is not None:
            calls = [(size, synchronized(make_call(size // ITEM_BYTES))) for size in SIZES]
            timings[name] = [
                MessageTiming(num_bytes=size, seconds=_seconds(work, barrier, *_num_calls(size), clock)) for size, work in calls
            ]
    return ExchangeTimings(replicas=run_spec.replicas, alone_seconds=alone, together_seconds=together, versions={}, **timings)


def measure_server(run_spec: Spec, rendezvous_id: str) -> ExchangeTimings:
    """Time the parameter server of a run. All its workers call this."""
    connection = parameter_server.join(run_spec, placement.rank(), rendezvous_id)
    seconds_by_rank = np.zeros((run_spec.replicas, len(SIZES)))
    for index, size in enumerate(SIZES):
        values = np.zeros(size // ITEM_BYTES, np.float32)
        connection.load(values, [len(values)])

        def push_and_pull(values: np.ndarray = values) -> None:
            connection.push([values], 0.0)
            connection.pull()

        seconds_by_rank[placement.rank(), index] = _seconds(push_and_pull, connection.barrier, *_num_calls(size))
    slowest = connection.sum(seconds_by_rank).max(axis=0)  # a worker beside the server is done before one that is far away
    connection.close()
    timings = [MessageTiming(num_bytes=size, seconds=float(seconds)) for size, seconds in zip(SIZES, slowest, strict=True)]
    return ExchangeTimings(replicas=run_spec.replicas, server=timings, versions={})


def save(timings: ExchangeTimings, versions: dict[str, str], out: Path) -> None:
    result = timings.model_copy(update={"versions": versions})
    atomic_files.write_atomically(out, result.model_dump_json(indent=1))


def _num_calls(size: int) -> tuple[int, int]:
    """Return the numbers of warm-up calls and of timed calls for a message of `size` bytes."""
    return (LONG_WARM_UP_CALLS, LONG_CALLS) if size == SIZES[-1] else (WARM_UP_CALLS, CALLS)


def _seconds(
    work: Callable[[], object],
    barrier: Callable[[], object] = lambda: None,
    warm_up_calls: int = WARM_UP_CALLS,
    calls: int = CALLS,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the median seconds of a call. Each call begins after a barrier."""
    seconds: list[float] = []
    for _ in range(warm_up_calls + calls):
        heartbeat.count_sync_point()
        barrier()
        start = clock()
        work()
        seconds.append(clock() - start)
    return statistics.median(seconds[warm_up_calls:])
