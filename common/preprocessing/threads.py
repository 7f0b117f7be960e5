"""Work on many items on all cores, for what runs outside of the interpreter lock (reading, decoding, hashing)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from common.spec import available_cores

_BATCH = 32  # items per task: a task costs about as much as the decoding of one small image

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def ordered(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """`map(function, items)` in threads: results in the order of the items, few of either in memory at once."""

    def work(batch: list[_Item]) -> list[_Result]:
        return [function(item) for item in batch]

    threads = available_cores()
    remaining = iter(items)
    pending: deque[Future[list[_Result]]] = deque()
    with ThreadPoolExecutor(threads, "data") as pool:
        while batch := list(islice(remaining, _BATCH)):
            pending.append(pool.submit(work, batch))
            if len(pending) > 2 * threads:  # bounds what is held in memory
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
