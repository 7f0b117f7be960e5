"""The training images as a chunked Dask array. Dask's workers compute and keep it, and replicas receive batches of it."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from common import spec
from common.data import mapped
from common.data.batches import Feed, Plan
from common.data.decoding.decode import decode
from common.data.decoding.images import Rows
from common.data.sources import Encoded, Split

_Images = npt.NDArray[np.uint8]
_Gather = Callable[[npt.NDArray[np.int64]], Callable[[], _Images]]
"""Starts to gather the images of some ids. The function that it returns waits for them."""


def feed(plan: Plan, split: Split, world_size: int, rank: int) -> Feed[_Images]:
    """A feed of the images of one process's shard of each global batch, before augmentation.

    Args:
        split: the training split. Dask's workers decode its files if it has any.
        world_size: number of processes of the run. Each has its own connection to the cluster.
    """
    opened = ExitStack()

    @cache
    def gather() -> _Gather:
        return opened.enter_context(_gathering(split, plan.architecture.image_size, plan.spec.dask, plan.spec.workers))

    def start(epoch: int, steps: Sequence[int]) -> Iterator[_Images]:
        ids, bounds = plan.draw(epoch).ids, plan.bounds(epoch, world_size, rank)
        pending: deque[Callable[[], _Images]] = deque()
        for step in steps:
            pending.append(gather()(ids[slice(*bounds[step])]))
            if len(pending) > plan.spec.prefetch:
                yield pending.popleft()()
        while pending:
            yield pending.popleft()()

    weakref.finalize(start, opened.close)
    return start


@contextmanager
def _gathering(split: Split, image_size: int, settings: spec.Dask, workers: int) -> Generator[_Gather]:
    # Here and not above: Dask takes a second to import, and no other input needs it.
    import distributed

    from common.data.preprocessing import dask_scan

    array = _array(split, image_size, settings.chunk_images)
    if settings.scheduler == "threads":
        with ThreadPoolExecutor(workers, "dask") as pool, ThreadPoolExecutor(1, "gather") as ahead:
            kept = array.persist(scheduler="threads", pool=pool)

            def gather(ids: npt.NDArray[np.int64]) -> Callable[[], _Images]:
                return ahead.submit(lambda: kept[ids].compute(scheduler="threads", pool=pool)).result

            yield gather
        return
    with dask_scan.client(workers, settings.scheduler) as client:
        if (found := dask_scan.num_workers(client)) != workers:
            raise spec.SpecError(
                f"workers must be the number of workers of the cluster. Received: {workers}, it has {found}. Use {found}."
            )
        kept = client.persist(array)
        with client.as_current():
            distributed.wait(kept)  # else chunks would be read while later batches are timed

        def gather_there(ids: npt.NDArray[np.int64]) -> Callable[[], _Images]:
            future: Any = client.compute(kept[ids])
            return future.result

        yield gather_there


def _array(split: Split, image_size: int, chunk_images: int) -> Any:
    import dask.array
    from dask.delayed import delayed

    shape = (image_size, image_size, 3)
    starts = range(0, len(split), chunk_images)
    parts = [(start, min(start + chunk_images, len(split))) for start in starts]
    read = delayed(_chunk, pure=False)
    chunks = [
        dask.array.from_delayed(read(_part(split, start, stop), image_size), (stop - start, *shape), np.uint8)
        for start, stop in parts
    ]
    return dask.array.concatenate(chunks)


def _part(split: Split, start: int, stop: int) -> Any:
    """What a worker needs to read a chunk: a reference to its file if there is one, else its bytes."""
    if split.encoded is not None:
        return split.encoded.take(np.arange(start, stop))
    if isinstance(split.images, Rows):
        return split.images.part(start, stop)
    return mapped.portable(split.images[start:stop])


def _chunk(part: Any, image_size: int) -> _Images:
    if isinstance(part, Encoded):
        return np.stack([decode(part.content(index), image_size) for index in range(len(part))])
    return np.asarray(mapped.opened(part))
