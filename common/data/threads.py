"""A parallel map in threads on all cores, for work that releases the interpreter lock: reading, decoding, hashing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from common.machine.machine import available_cores

BATCH = 32
"""Number of items per task. The overhead of a task is about the cost of decoding one small image."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class ThreadLimits:
    """Upper bounds of the threads and the memory of `ordered`."""

    threads: int = field(default_factory=available_cores)
    batch_bytes: int = 16 * 2**20
    """Bytes of a task's items where it gets no further item."""


def ordered(
    function: Callable[[_Item], _Result],
    items: Iterable[_Item],
    *,
    num_bytes: Callable[[_Item], int] = lambda _: 0,
    limits: ThreadLimits | None = None,
) -> Iterator[_Result]:
    """`map(function, items)` in threads. Results are in the order of the items. Few items and results are in memory at once.

    Args:
        function: called in any thread.
        items: read in this thread, up to `2 * limits.threads + 1` batches ahead of the results.
        num_bytes: memory that an item or its result holds.
        limits: None: a thread for each core.
    """

    def work(batch: list[_Item]) -> list[_Result]:
        return [function(item) for item in batch]

    limits = limits or ThreadLimits()
    pending: deque[Future[list[_Result]]] = deque()
    with ThreadPoolExecutor(limits.threads, "data") as pool:
        for batch in _batches(items, num_bytes, limits.batch_bytes):
            pending.append(pool.submit(work, batch))
            if len(pending) > 2 * limits.threads:  # bounds what is held in memory
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def _batches(items: Iterable[_Item], num_bytes: Callable[[_Item], int], batch_bytes: int) -> Iterator[list[_Item]]:
    batch: list[_Item] = []
    held_bytes = 0
    for item in items:
        batch.append(item)
        held_bytes += num_bytes(item)
        if len(batch) == BATCH or held_bytes >= batch_bytes:
            yield batch
            batch, held_bytes = [], 0
    if batch:
        yield batch
