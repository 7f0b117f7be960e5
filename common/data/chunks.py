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
from common.data.decoding.images import Gathered, Rows
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
    known.owners.serve(holder.gather, holder.num_images, plan.spec.global_batch_size)

    def start(epoch: int, steps: Sequence[int]) -> Iterator[Images]:
        ids, bounds = plan.draw(epoch).ids, plan.bounds(epoch, world_size, rank)
        pending: deque[Callable[[], Images]] = deque()
        for step in steps:
            pending.append(holder.collect(ids[slice(*bounds[step])]))
            if len(pending) > plan.spec.prefetch:
                yield pending.popleft()()
        while pending:
            yield pending.popleft()()

    def close() -> None:
        known.owners.close()  # first: an answer that is being made needs the pools
        opened.close()

    weakref.finalize(start, close)
    return start


class _Holder:
    """The chunks of this process, which are read when an image is first asked for. It collects all others from their owners."""

    def __init__(self, plan: Plan, split: Split, account: Account, opened: ExitStack) -> None:
        self._split = split
        self._spec = plan.spec
        self._image_size = plan.architecture.image_size
        self._account = account
        self._opened = opened
        self._first = threading.Lock()
        self._gather: Gather | None = None
        account.on_cluster = plan.spec.dask.scheduler not in spec.SCHEDULERS
        number, size, n = 1 if account.on_cluster else account.owners.number, plan.spec.dask.chunk_images, len(split)
        if number > 1 and plan.owners == number:
            owned = plan.owned
        else:
            bounds = [shard(-(-n // size), number, owner) for owner in range(number)]
            owned = [np.arange(first * size, min(last * size, n)) for first, last in bounds]
        self._starts = np.cumsum([0, *map(len, owned)])
        self._place = np.argsort(np.concatenate(owned))
        """[N], where each image is if the owners' images stand one behind the other."""
        own = owned[0 if account.on_cluster else account.owners.rank]
        self.num_images = len(own)
        self._chunks = [own[first : first + size] for first in range(0, len(own), size)]
        if not account.on_cluster:
            account.owner_of_chunk = [owner for owner, ids in enumerate(owned) for _ in range(0, len(ids), size)]

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
        places = self._place[ids]
        owners = np.searchsorted(self._starts[1:], places, "right")
        parts = [(own, self._ask(owner, places[own])) for owner in np.unique(owners).tolist() for own in [owners == owner]]

        def wait() -> Images:
            images = np.empty((len(ids), self._image_size, self._image_size, 3), np.uint8)
            for own, part in parts:
                images[own] = part()
            return images

        return wait

    def _ask(self, owner: int, places: npt.NDArray[np.int64]) -> Callable[[], Images]:
        positions, owners = places - self._starts[owner], self._account.owners
        return self.gather(positions) if owner == owners.rank else owners.ask(owner, positions, self._image_size)

    @contextmanager
    def _gathering(self) -> Generator[Gather]:
        # Here and not above: Dask takes a second to import, and no other input needs it.
        import distributed

        from common.data.preprocessing import dask_scan

        settings, workers, owners = self._spec.dask, self._spec.workers, self._account.owners
        # Every process asks a cluster for the same chunks by the same names, so it holds each of them once.
        name = f"convtwins-{owners.word}"
        array = _array(self._split, self._image_size, self._chunks, name)
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
                while (found_there := _on_workers(client, kept)) is None:
                    with client.as_current():
                        distributed.wait(kept)
                self._account.owner_of_chunk, self._account.held_bytes = found_there

            def gather_there(positions: npt.NDArray[np.int64]) -> Callable[[], Images]:
                future: Any = client.compute(kept[positions])
                return future.result

            yield gather_there


def _array(split: Split, image_size: int, chunks: list[npt.NDArray[np.int64]], name: str) -> Any:
    """The images of some ids, as an array of chunks. The same name gives tasks of the same names."""
    import dask.array
    from dask.delayed import delayed

    shape = (image_size, image_size, 3)
    if not chunks:  # more owners than chunks
        return dask.array.zeros((0, *shape), dtype=np.uint8)
    read, found = delayed(_chunk, pure=False), list[Any]()
    for number, ids in enumerate(chunks):
        value = read(_part(split, ids), image_size, dask_key_name=f"{name}-{number}")
        found.append(dask.array.from_delayed(value, (len(ids), *shape), np.uint8))
    return dask.array.concatenate(found)


def _on_workers(client: Any, kept: Any) -> tuple[list[int], list[int]] | None:
    """(the worker that holds each chunk of an array, bytes by worker). Workers are numbered in the order of their addresses.

    None: a worker has died meanwhile, and others are reading its chunks again.
    """
    from dask.core import flatten

    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    found, sizes = client.who_has(kept), [0] * len(workers)
    places = [[workers.index(each) for each in found[key] if each in workers] for key in flatten(kept.__dask_keys__())]
    if not all(places):
        return None
    owners = list(map(min, places))
    row_bytes = kept.nbytes // len(kept)
    for owner, length in zip(owners, kept.chunks[0], strict=True):
        sizes[owner] += length * row_bytes
    return owners, sizes


def _part(split: Split, ids: npt.NDArray[np.int64]) -> Any:
    """What a worker needs to read a chunk: a reference to its file if there is one, else its bytes."""
    if split.encoded is not None:
        return split.encoded.take(ids)
    if isinstance(split.images, Rows):
        return split.images.take(ids)
    if ids[-1] - ids[0] + 1 == len(ids):  # they are ascending
        return mapped.portable(split.images[ids[0] : ids[-1] + 1])
    images: Any = split.images
    return images[ids] if mapped.reference(images) is None else Gathered(images, ids)


def _chunk(part: Any, image_size: int) -> Images:
    if isinstance(part, Encoded):
        return np.stack([decode(part.content(index), image_size) for index in range(len(part))])
    return np.array(mapped.opened(part))  # a view of a mapped file would hold nothing, and be read for every batch
