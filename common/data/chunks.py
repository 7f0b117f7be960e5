"""The training images as a chunked Dask array. Each process of a run keeps its own chunks, and receives batches of all."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from common import spec
from common.data import mapped
from common.data.batches import Feed, Plan
from common.data.decoding.decode import decode
from common.data.decoding.images import Rows
from common.data.owners import Gather, Images, Owners
from common.data.sources import Encoded, Split
from common.models.sharding import shard


@dataclass
class Account:
    """What a feed has held and moved so far, as one process of the run knows it."""

    on_cluster: bool = False
    """Whether the workers of a cluster own the chunks. Otherwise the processes of the run do."""
    owner_of_chunk: list[int] = field(default_factory=list[int])
    """Of a cluster, known once the chunks have been read."""
    held_bytes: list[int] = field(default_factory=list[int])
    """Pixels that are kept: by this process, or by each of the cluster's workers. Empty until the chunks have been read."""
    gathered_bytes: int = 0
    """Of the pixels of all batches of this process."""
    owners: Owners = field(default_factory=Owners)

    @property
    def moved_bytes(self) -> int:
        """The part of `gathered_bytes` that another process of the run, or a cluster, has sent."""
        return self.gathered_bytes if self.on_cluster else self.owners.moved_bytes


def feed(plan: Plan, split: Split, world_size: int, rank: int, account: Account | None = None) -> Feed[Images]:
    """A feed of the images of one process's shard of each global batch, before augmentation.

    Args:
        split: the training split. Dask's workers decode its files if it has any.
        world_size: number of shards of every global batch.
        rank: number of this process's shard.
        account: its owners hold the chunks together. None: this process holds all of them.
    """
    opened = ExitStack()
    known = account or Account()
    holder = _Holder(plan, split, known, opened)
    known.owners.serve(holder.gather)

    def start(epoch: int, steps: Sequence[int]) -> Iterator[Images]:
        ids, bounds = plan.draw(epoch).ids, plan.bounds(epoch, world_size, rank)
        pending: deque[Callable[[], Images]] = deque()
        for step in steps:
            pending.append(holder.collect(ids[slice(*bounds[step])]))
            if len(pending) > plan.spec.prefetch:
                yield pending.popleft()()
        while pending:
            yield pending.popleft()()

    weakref.finalize(start, opened.close)
    return start


class _Holder:
    """The chunks of this process, which are read when an image is first asked for. It collects all others from their owners."""

    def __init__(self, plan: Plan, split: Split, account: Account, opened: ExitStack) -> None:
        self._split = split
        self._spec = plan.spec
        self._image_size = plan.architecture.image_size
        self._account = account
        self._opened = opened
        opened.callback(account.owners.close)
        self._first = threading.Lock()
        self._gather: Gather | None = None
        account.on_cluster = plan.spec.dask.scheduler not in spec.SCHEDULERS
        number = 1 if account.on_cluster else account.owners.number
        num_chunks = -(-len(split) // plan.spec.dask.chunk_images)
        bounds = [shard(num_chunks, number, owner) for owner in range(number)]
        if not account.on_cluster:
            account.owner_of_chunk = [owner for owner, (first, last) in enumerate(bounds) for _ in range(first, last)]
        self._starts = [min(first * plan.spec.dask.chunk_images, len(split)) for first, _ in bounds] + [len(split)]

    def gather(self, positions: npt.NDArray[np.int64]) -> Callable[[], Images]:
        """Gather images at positions of this process's own."""
        with self._first:  # other processes ask from other threads
            if self._gather is None:
                self._gather = self._opened.enter_context(self._gathering())
        return self._gather(positions)

    def collect(self, ids: npt.NDArray[np.int64]) -> Callable[[], Images]:
        """Gather images by id, from all owners."""
        self._account.gathered_bytes += len(ids) * self._image_size**2 * 3
        if len(self._starts) == 2:
            return self.gather(ids)
        owners = np.searchsorted(self._starts[1:], ids, "right")
        parts = [
            (place, self._ask(owner, ids[place])) for owner in range(len(self._starts) - 1) if (place := owners == owner).any()
        ]

        def wait() -> Images:
            images = np.empty((len(ids), self._image_size, self._image_size, 3), np.uint8)
            for place, part in parts:
                images[place] = part()
            return images

        return wait

    def _ask(self, owner: int, ids: npt.NDArray[np.int64]) -> Callable[[], Images]:
        positions, owners = ids - self._starts[owner], self._account.owners
        return self.gather(positions) if owner == owners.rank else owners.ask(owner, positions, self._image_size)

    @contextmanager
    def _gathering(self) -> Generator[Gather]:
        # Here and not above: Dask takes a second to import, and no other input needs it.
        import distributed

        from common.data.preprocessing import dask_scan

        settings, workers, owners = self._spec.dask, self._spec.workers, self._account.owners
        own = (0, len(self._split)) if self._account.on_cluster else (self._starts[owners.rank], self._starts[owners.rank + 1])
        # Every process asks a cluster for the same chunks by the same names, so it holds each of them once.
        name = f"convtwins-{owners.word}"
        array = _array(self._split, self._image_size, settings.chunk_images, *own, name)
        if settings.scheduler == "threads":
            with ThreadPoolExecutor(workers, "dask") as pool, ThreadPoolExecutor(owners.number, "gather") as ahead:
                kept: Any = array.persist(scheduler="threads", pool=pool)
                self._account.held_bytes = [kept.nbytes]

                def gather(positions: npt.NDArray[np.int64]) -> Callable[[], Images]:
                    return ahead.submit(lambda: kept[positions].compute(scheduler="threads", pool=pool)).result

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
            self._account.held_bytes = [kept.nbytes]
            if self._account.on_cluster:
                self._account.owner_of_chunk, self._account.held_bytes = _on_workers(client, kept)

            def gather_there(positions: npt.NDArray[np.int64]) -> Callable[[], Images]:
                future: Any = client.compute(kept[positions])
                return future.result

            yield gather_there


def _array(split: Split, image_size: int, chunk_images: int, start: int, stop: int, name: str) -> Any:
    """The images from `start` to `stop`, as an array of chunks. The same name gives tasks of the same names."""
    import dask.array
    from dask.delayed import delayed

    shape = (image_size, image_size, 3)
    if start == stop:  # more owners than chunks
        return dask.array.zeros((0, *shape), np.uint8)
    read, chunks = delayed(_chunk, pure=False), list[Any]()
    for first in range(start, stop, chunk_images):
        last = min(first + chunk_images, stop)
        value = read(_part(split, first, last), image_size, dask_key_name=f"{name}-{first}")
        chunks.append(dask.array.from_delayed(value, (last - first, *shape), np.uint8))
    return dask.array.concatenate(chunks)


def _on_workers(client: Any, kept: Any) -> tuple[list[int], list[int]]:
    """(the worker that holds each chunk of an array, bytes by worker). Workers are numbered in the order of their addresses."""
    from dask.core import flatten

    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    found, sizes = client.who_has(kept), [0] * len(workers)
    owners = [workers.index(min(found[key])) for key in flatten(kept.__dask_keys__())]
    row_bytes = kept.nbytes // len(kept)
    for owner, length in zip(owners, kept.chunks[0], strict=True):
        sizes[owner] += length * row_bytes
    return owners, sizes


def _part(split: Split, start: int, stop: int) -> Any:
    """What a worker needs to read a chunk: a reference to its file if there is one, else its bytes."""
    if split.encoded is not None:
        return split.encoded.take(np.arange(start, stop))
    if isinstance(split.images, Rows):
        return split.images.part(start, stop)
    return mapped.portable(split.images[start:stop])


def _chunk(part: Any, image_size: int) -> Images:
    if isinstance(part, Encoded):
        return np.stack([decode(part.content(index), image_size) for index in range(len(part))])
    return np.array(mapped.opened(part))  # a view of a mapped file would hold nothing, and be read for every batch
