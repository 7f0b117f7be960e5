"""The training images as a chunked Dask array. Each process of a run holds its own chunks, and receives batches of all."""

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
from common.data.batches import BatchPlan, Feed
from common.data.decoding.decode import decode
from common.data.decoding.images import MappedRows, Rows
from common.data.owners import Gather, Images, Owners
from common.data.sources import DatasetSplit, Encoded
from common.models.sharding import shard


@dataclass
class TransferStats:
    """Statistics of a feed so far: the bytes that are held and transferred, as one process of the run knows them."""

    on_cluster: bool = False
    """Whether the workers of a cluster own the chunks. Otherwise the processes of the run do."""
    owner_of_chunk: list[int] = field(default_factory=list[int])
    """Owner of each chunk. For a cluster it is known once the chunks have been read."""
    held_bytes: list[int] = field(default_factory=list[int])
    """Bytes of pixels held by this process, or by each of the cluster's workers. Empty until the chunks have been read."""
    gathered_bytes: int = 0
    """Bytes of the pixels of all batches of this process."""
    owners: Owners = field(default_factory=Owners)

    @property
    def moved_bytes(self) -> int:
        """Bytes of `gathered_bytes` that another process of the run, or a cluster, has sent."""
        return self.gathered_bytes if self.on_cluster else self.owners.moved_bytes


def feed(plan: BatchPlan, split: DatasetSplit, world_size: int, rank: int, stats: TransferStats | None = None) -> Feed[Images]:
    """Return a feed of the images of one process's shard of each global batch, before augmentation.

    Args:
        plan: the batches of the run.
        split: the training split. Dask's workers decode its files if it has any.
        world_size: number of shards of every global batch.
        rank: number of this process's shard.
        stats: statistics to update. Its owners hold the chunks together. None: this process holds all of them.
    """
    stack = ExitStack()
    transfer_stats = stats or TransferStats()
    store = _ChunkStore(plan, split, transfer_stats, stack)
    transfer_stats.owners.serve(store.gather, store.num_images, plan.spec.global_batch_size)

    def start(epoch: int, steps: Sequence[int]) -> Iterator[Images]:
        ids, bounds = plan.draw(epoch).ids, plan.bounds(epoch, world_size, rank)
        pending: deque[Callable[[], Images]] = deque()
        for step in steps:
            pending.append(store.collect(ids[slice(*bounds[step])]))
            if len(pending) > plan.spec.prefetch:
                yield pending.popleft()()
        while pending:
            yield pending.popleft()()

    def close() -> None:
        transfer_stats.owners.close()  # first: an answer that is being made needs the pools
        stack.close()

    weakref.finalize(start, close)
    return start


class _ChunkStore:
    """The chunks of this process, which are read at the first request. All other images are collected from their owners."""

    def __init__(self, plan: BatchPlan, split: DatasetSplit, stats: TransferStats, stack: ExitStack) -> None:
        self._split = split
        self._spec = plan.spec
        self._image_size = plan.architecture.image_size
        self._account = stats
        self._opened = stack
        self._gather_lock = threading.Lock()
        self._gather: Gather | None = None
        stats.on_cluster = plan.spec.dask.scheduler not in spec.SCHEDULERS
        num_owners, size, n = 1 if stats.on_cluster else stats.owners.size, plan.spec.dask.chunk_images, len(split)
        if num_owners > 1 and plan.owners == num_owners:
            owned = plan.owned
        else:
            bounds = [shard(-(-n // size), num_owners, owner) for owner in range(num_owners)]
            owned = [np.arange(first * size, min(last * size, n)) for first, last in bounds]
        self._starts = np.cumsum([0, *map(len, owned)])
        self._position_of = np.argsort(np.concatenate(owned))
        """Position of each image in the concatenation of the owners' images, [N]."""
        held_ids = owned[0 if stats.on_cluster else stats.owners.rank]
        self.num_images = len(held_ids)
        self._chunks = [held_ids[first : first + size] for first in range(0, len(held_ids), size)]
        if not stats.on_cluster:
            stats.owner_of_chunk = [owner for owner, ids in enumerate(owned) for _ in range(0, len(ids), size)]

    def gather(self, positions: npt.NDArray[np.int64]) -> Callable[[], Images]:
        """Start to gather images at positions among this process's images."""
        with self._gather_lock:  # other processes ask from other threads
            if self._gather is None:
                self._gather = self._opened.enter_context(self._start_gathering())
        return self._gather(positions)

    def collect(self, ids: npt.NDArray[np.int64]) -> Callable[[], Images]:
        """Start to gather images by id, from all owners."""
        self._account.gathered_bytes += len(ids) * self._image_size**2 * 3
        if len(self._starts) == 2:
            return self.gather(ids)
        positions = self._position_of[ids]
        owners = np.searchsorted(self._starts[1:], positions, "right")
        parts = [
            (mask, self._ask(owner, positions[mask])) for owner in np.unique(owners).tolist() for mask in [owners == owner]
        ]

        def wait() -> Images:
            images = np.empty((len(ids), self._image_size, self._image_size, 3), np.uint8)
            for mask, part in parts:
                images[mask] = part()
            return images

        return wait

    def _ask(self, owner: int, stacked_positions: npt.NDArray[np.int64]) -> Callable[[], Images]:
        positions, owners = stacked_positions - self._starts[owner], self._account.owners
        return self.gather(positions) if owner == owners.rank else owners.ask(owner, positions, self._image_size)

    @contextmanager
    def _start_gathering(self) -> Generator[Gather]:
        # Here and not above: Dask takes a second to import, and no other input needs it.
        import distributed

        from common.data.preprocessing import dask_scan

        settings, workers, owners = self._spec.dask, self._spec.workers, self._account.owners
        # Every process asks a cluster for the same chunks by the same names, so it holds each of them once.
        name = f"convtwins-{owners.word}"
        array = _array(self._split, self._image_size, self._chunks, name)
        if settings.scheduler == "threads":
            with ThreadPoolExecutor(workers, "dask") as pool, ThreadPoolExecutor(owners.size, "gather") as gather_pool:
                persisted: Any = array.persist(scheduler="threads", pool=pool)
                self._account.held_bytes = [persisted.nbytes]

                def gather(positions: npt.NDArray[np.int64]) -> Callable[[], Images]:
                    return gather_pool.submit(lambda: persisted[positions].compute(scheduler="threads", pool=pool)).result

                yield gather
            return
        with dask_scan.client(workers, settings.scheduler) as client:
            if (num_workers := dask_scan.num_workers(client)) != workers:
                raise spec.SpecError(
                    f"workers must be the number of workers of the cluster. Received: {workers}, it has {num_workers}. "
                    f"Use {num_workers}."
                )
            persisted = client.persist(array)
            with client.as_current():
                distributed.wait(persisted)  # else chunks would be read while later batches are timed
            self._account.held_bytes = [persisted.nbytes]
            if self._account.on_cluster:
                while (placement := _worker_placement(client, persisted)) is None:
                    with client.as_current():
                        distributed.wait(persisted)
                self._account.owner_of_chunk, self._account.held_bytes = placement

            def gather_on_cluster(positions: npt.NDArray[np.int64]) -> Callable[[], Images]:
                future: Any = client.compute(persisted[positions])
                return future.result

            yield gather_on_cluster


def _array(split: DatasetSplit, image_size: int, chunks: list[npt.NDArray[np.int64]], name: str) -> Any:
    """Return the images of some ids as an array of chunks. Equal names give tasks of equal names."""
    import dask.array
    from dask.delayed import delayed

    shape = (image_size, image_size, 3)
    if not chunks:  # more owners than chunks
        return dask.array.zeros((0, *shape), dtype=np.uint8)
    read_chunk, blocks = delayed(_chunk, pure=False), list[Any]()
    for number, ids in enumerate(chunks):
        value = read_chunk(_chunk_source(split, ids), image_size, dask_key_name=f"{name}-{number}")
        blocks.append(dask.array.from_delayed(value, (len(ids), *shape), np.uint8))
    return dask.array.concatenate(blocks)


def _worker_placement(client: Any, persisted: Any) -> tuple[list[int], list[int]] | None:
    """Return (worker of each chunk of an array, bytes by worker). Workers are numbered in the order of their addresses.

    None: a worker has died meanwhile, and others are reading its chunks again.
    """
    from dask.core import flatten

    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    holders, sizes = client.who_has(persisted), [0] * len(workers)
    worker_indices = [
        [workers.index(address) for address in holders[key] if address in workers] for key in flatten(persisted.__dask_keys__())
    ]
    if not all(worker_indices):
        return None
    owners = list(map(min, worker_indices))
    row_bytes = persisted.nbytes // len(persisted)
    for owner, length in zip(owners, persisted.chunks[0], strict=True):
        sizes[owner] += length * row_bytes
    return owners, sizes


def _chunk_source(split: DatasetSplit, ids: npt.NDArray[np.int64]) -> Any:
    """Return the images of a chunk for a worker: a reference to rows of a file if they are in one, else their bytes."""
    if split.encoded is not None:
        return split.encoded.take(ids)
    if isinstance(split.images, Rows):
        return split.images.take(ids)
    images: Any = split.images
    return images[ids] if mapped.reference(images) is None else MappedRows(images, ids)


def _chunk(part: Any, image_size: int) -> Images:
    if isinstance(part, Encoded):
        return np.stack([decode(part.content(index), image_size) for index in range(len(part))])
    return np.asarray(part)
