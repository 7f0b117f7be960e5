"""What the replicas of a machine do to each other: how much slower they compute together, and how long messages take."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.artifacts import atomic_files
from common.frozen import Frozen
from common.machine import heartbeat
from common.processes import parameter_server
from common.spec import Spec

ITEM_BYTES = 4
"""Of a float32 value."""
SIZES = (2**10, 2**16, 2**20, 2**24)
"""Bytes of the messages that are timed: the first shows the latency, the last the rate."""
WARM_UP_CALLS, CALLS = 3, 10
LONG_WARM_UP_CALLS, LONG_CALLS = 1, 5
"""The largest message is sent less often. Over a link of 10 Mbit/s it takes 14 s."""


class Ways(NamedTuple):
    """How the ranks of a twin send tensors. Each function takes a number of float32 values, and returns what sends them once.

    All ranks make the same calls. A call returns when the values are there.
    """

    all_reduce: Callable[[int], Callable[[], object]]
    """Sums values over all ranks."""
    send: Callable[[int], Callable[[], object]] | None
    """Sends values to a neighbour, and receives as many. None: modes that divide the model send nothing between processes."""


class Timed(Frozen):
    """Seconds by the bytes of a message, medians over calls."""

    num_bytes: int
    seconds: float


class Exchanged(Frozen):
    """What one run of several ranks has measured. Of a parameter server only the server's."""

    replicas: int
    alone_seconds: float | None = None
    """A forward and backward pass on rank 0, while the others wait."""
    together_seconds: float | None = None
    """The same while all ranks compute."""
    all_reduce: list[Timed] = []
    send: list[Timed] = []
    server: list[Timed] = []
    """A push and a pull by each worker, at the same time."""
    versions: dict[str, str]


def measure(read: Spec, ways: Ways, one_pass: Callable[[], object], synchronize: Callable[[], None]) -> Exchanged:
    """Time what ranks do alone, together, and to each other. All ranks call this.

    Args:
        read: of the ranks.
        one_pass: a model's forward and backward pass on one batch.
        synchronize: waits for the device.
    """

    def finished(work: Callable[[], object]) -> Callable[[], object]:
        def both() -> None:
            work()
            synchronize()

        return both

    meet = finished(ways.all_reduce(1))
    first = os.environ["RANK"] == "0"
    one_pass = finished(one_pass)
    alone = _seconds(one_pass) if first else 0.0
    meet()
    together = _seconds(one_pass)
    meet()
    found: dict[str, list[Timed]] = {}
    for name, way in (("all_reduce", ways.all_reduce), ("send", ways.send)):
        if way is not None:
            works = [(size, finished(way(size // ITEM_BYTES))) for size in SIZES]
            found[name] = [Timed(num_bytes=size, seconds=_seconds(work, meet, *_calls(size))) for size, work in works]
    return Exchanged(replicas=read.replicas, alone_seconds=alone, together_seconds=together, versions={}, **found)


def measure_server(read: Spec, meeting_place: str) -> Exchanged:
    """Time the parameter server of a run. All its workers call this."""
    connection = parameter_server.join(read, int(os.environ["RANK"]), meeting_place)
    own = np.zeros((read.replicas, len(SIZES)))
    for index, size in enumerate(SIZES):
        values = np.zeros(size // ITEM_BYTES, np.float32)
        connection.load(values, [len(values)])

        def push_and_pull(values: np.ndarray = values) -> None:
            connection.push([values], 0.0)
            connection.pull()

        own[int(os.environ["RANK"]), index] = _seconds(push_and_pull, connection.barrier, *_calls(size))
    slowest = connection.sum(own).max(axis=0)  # a worker beside the server is done before one that is far away
    connection.close()
    found = [Timed(num_bytes=size, seconds=float(seconds)) for size, seconds in zip(SIZES, slowest, strict=True)]
    return Exchanged(replicas=read.replicas, server=found, versions={})


def save(measured: Exchanged, versions: dict[str, str], out: Path) -> None:
    made = measured.model_copy(update={"versions": versions})
    atomic_files.write_atomically(out, made.model_dump_json(indent=1))


def _calls(size: int) -> tuple[int, int]:
    """Calls that warm up, and calls that are timed, of a message of so many bytes."""
    return (LONG_WARM_UP_CALLS, LONG_CALLS) if size == SIZES[-1] else (WARM_UP_CALLS, CALLS)


def _seconds(
    work: Callable[[], object],
    meet: Callable[[], object] = lambda: None,
    warm_up_calls: int = WARM_UP_CALLS,
    calls: int = CALLS,
) -> float:
    """The median of a call, each begun when all are ready."""
    taken: list[float] = []
    for _ in range(warm_up_calls + calls):
        heartbeat.count_sync_point()
        meet()
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[warm_up_calls:])
