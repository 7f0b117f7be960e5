import gc
import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import psutil
import pytest
from dask.core import flatten
from hypothesis import given
from hypothesis import strategies as st

from common import spec
from common.data import chunks
from common.data.batches import BatchPlan, all_batches
from common.data.chunks import TransferStats
from common.data.owners import OwnerGoneError, Owners
from common.data.sources import DatasetSplit
from common.machine import challenge, placement
from common.models import architectures
from common.models.sharding import shard
from common.processes import supervisor
from tests.common.data.preprocessing.made_up_cluster import Cluster
from tests.strangers import attack
from tests.support import processes

IMAGES = np.random.default_rng(0).integers(0, 256, (45, 32, 32, 3), np.uint8)
SPLIT = DatasetSplit(images=IMAGES, labels=np.arange(45) % 10)


def a_plan(num_examples: int = len(SPLIT), **fields: Any) -> BatchPlan:
    settings = {"global_batch_size": 8, "epochs": 2, "input": "dask", "workers": 2, "dask": {"chunk_images": 7}, **fields}
    return BatchPlan(spec.build(settings), architectures.resolve("simple_cnn", 10, 32), num_examples)


def expected(plan: BatchPlan, world_size: int = 1, rank: int = 0) -> list[Any]:
    epochs = range(1, plan.epochs + 1)
    return [
        IMAGES[plan.draw(epoch).ids[start:stop]] for epoch in epochs for start, stop in plan.bounds(epoch, world_size, rank)
    ]


@pytest.mark.parametrize("order", ["global", "chunks"])
@pytest.mark.parametrize(("world_size", "rank"), [(1, 0), (3, 2)])
def test_every_process_gets_the_images_of_its_shards_in_order(order: str, world_size: int, rank: int) -> None:
    plan = a_plan(dask={"chunk_images": 7, "order": order})
    assert_all_arrive(plan, world_size, rank)


def test_a_cluster_of_other_processes_gives_the_same_batches(cluster: Cluster) -> None:
    assert cluster.address.startswith("tcp://")
    for world_size, rank in ((1, 0), (3, 2)):
        assert_all_arrive(a_plan(dask={"chunk_images": 7, "scheduler": cluster.address}), world_size, rank)


@pytest.mark.slow
def test_cluster_workers_that_are_killed_again_and_again_cost_only_time(cluster: Cluster) -> None:
    plan = a_plan(epochs=5, dask={"chunk_images": 7, "scheduler": cluster.address})
    assert_all_arrive(plan, at_step=lambda step: cluster.kill(1 + step // 6 % 2) if step % 6 == 1 else None)


@pytest.mark.slow
def test_killing_all_processes_again_and_again_costs_only_time() -> None:
    """For longer than the 15 s after which Dask gives up a worker that is not back."""
    known = set(psutil.Process().children(recursive=True))

    def kill(step: int) -> None:
        for process in psutil.Process().children(recursive=True) if step % 6 == 1 else []:
            with suppress(psutil.NoSuchProcess):
                if process not in known and "spawn_main" in " ".join(process.cmdline()):
                    process.kill()

    assert_all_arrive(a_plan(epochs=9, dask={"chunk_images": 7, "scheduler": "processes"}), at_step=kill)


def together(ranks: int) -> list[TransferStats]:
    """The accounts of all processes of a run, which are all this one."""
    listeners = [placement.bind(placement.LOOPBACK, 0) for _ in range(ranks)]
    for listener in listeners:
        listener.listen()
    addresses = [listener.getsockname() for listener in listeners]
    return [chunks.TransferStats(owners=Owners(rank, addresses, listeners[rank])) for rank in range(ranks)]


@pytest.mark.parametrize("order", ["global", "chunks"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_processes_that_own_a_part_each_get_all_images_and_say_what_was_moved(ranks: int, order: str) -> None:
    plan, accounts = a_plan(dask={"chunk_images": 4, "order": order}), together(ranks)
    feeds = [chunks.feed(plan, SPLIT, ranks, rank, account) for rank, account in enumerate(accounts)]
    assert not any(account.held_bytes for account in accounts), "nothing is read before the first batch"
    owner_of_chunk = [rank for rank in range(ranks) for _ in range(*shard(12, ranks, rank))]
    for rank, (feed, account) in enumerate(zip(feeds, accounts, strict=True)):
        wanted = expected(plan, ranks, rank)
        for ours, theirs in zip(all_batches(plan, feed), wanted, strict=True):
            assert np.array_equal(ours, theirs)
        ids = np.concatenate(
            [plan.draw(epoch).ids[slice(*each)] for epoch in (1, 2) for each in plan.bounds(epoch, ranks, rank)]
        )
        image = IMAGES[0].nbytes
        assert account.owner_of_chunk == owner_of_chunk
        assert account.gathered_bytes == len(ids) * image
        assert account.moved_bytes == (np.array(owner_of_chunk)[ids // 4] != rank).sum() * image
    held = [account.held_bytes[0] for account in accounts]
    assert sum(held) == IMAGES.nbytes
    assert max(held) <= IMAGES.nbytes / ranks + 4 * IMAGES[0].nbytes


def test_more_owners_than_chunks_leave_some_with_nothing() -> None:
    plan, accounts = a_plan(dask={"chunk_images": 30}), together(4)
    feeds = [chunks.feed(plan, SPLIT, 4, rank, account) for rank, account in enumerate(accounts)]
    for rank, feed in enumerate(feeds):
        found = list(all_batches(plan, feed))
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found, expected(plan, 4, rank), strict=True))
    assert accounts[0].owner_of_chunk == [0, 1]
    assert [sum(account.held_bytes) // IMAGES[0].nbytes for account in accounts] == [30, 15, 0, 0]


def test_a_feed_that_is_left_early_does_not_mix_up_the_next_epoch() -> None:
    plan, accounts = a_plan(), together(2)
    feeds = [chunks.feed(plan, SPLIT, 2, rank, account) for rank, account in enumerate(accounts)]
    next(feeds[0](1, range(5)))
    found = list(all_batches(plan, feeds[0]))
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found, expected(plan, 2, 0), strict=True))


def test_owners_end_their_threads_with_the_feed() -> None:
    before = threading.active_count()
    accounts = together(2)
    feeds = [chunks.feed(a_plan(), SPLIT, 2, rank, account) for rank, account in enumerate(accounts)]
    batches = [next(feed(1, range(5))) for feed in feeds]
    assert threading.active_count() > before
    del feeds, batches
    gc.collect()
    assert threading.active_count() == before


def test_an_owner_that_has_gone_is_named() -> None:
    accounts = together(2)
    feeds = [chunks.feed(a_plan(), SPLIT, 2, rank, account) for rank, account in enumerate(accounts)]
    batches = feeds[0](1, range(6))
    next(batches)
    del feeds[1]
    gc.collect()
    with pytest.raises(OwnerGoneError, match=r"rank 1 .*part of the training images"):  # a name would keep the feeds alive
        list(batches)


def test_a_stranger_gets_no_image_and_asks_in_vain_for_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(placement.RUN_SECRET_VARIABLE, "of the run")
    accounts = together(2)
    feeds = [chunks.feed(a_plan(), SPLIT, 2, rank, account) for rank, account in enumerate(accounts)]
    port = accounts[1].owners._addresses[1][1]
    assert all(answer.refused for answer in attack([port], tmp_path / "ran"))
    assert not accounts[1].held_bytes
    monkeypatch.setenv(placement.RUN_SECRET_VARIABLE, "another")
    stranger = chunks.TransferStats(owners=Owners(0, accounts[0].owners._addresses))
    with pytest.raises(challenge.AuthenticationError):
        list(chunks.feed(a_plan(), SPLIT, 2, 0, stranger)(1, range(6)))
    assert len(list(feeds[0](1, range(6)))) == 6


MEMORY = """
    import json, sys
    from pathlib import Path
    import numpy as np
    from common.data import chunks, owners
    from common.data.sources import DatasetSplit
    from common.processes import rendezvous
    from tests.common.data.test_chunks import a_plan

    def total(values):
        return np.sum([json.loads(word) for word in rendezvous.all_gather(json.dumps(values.tolist()))], 0)

    def private():
        return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) * 1024

    if __name__ == "__main__":
        file, rank, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        images = np.load(file, mmap_mode="r")
        split = DatasetSplit(images=images, labels=np.zeros(len(images), np.int64))
        plan = a_plan(len(images), epochs=1, global_batch_size=512, workers=1, dask={"chunk_images": 512})
        import distributed  # it is no image
        before = private()
        account = chunks.TransferStats(owners=owners.connect_owners(total) if ranks > 1 else owners.Owners())
        feed = chunks.feed(plan, split, ranks, rank, account)
        for _ in feed(1, range(10)):
            pass
        print(json.dumps([private() - before, account.held_bytes[0], account.moved_bytes, account.gathered_bytes]))
        sys.stdout.flush()
        sys.stdin.read()  # others may still ask
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say what a process has to itself")
@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_memory_falls_as_one_over_the_ranks(tmp_path: Path, ranks: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2**15, 32, 32, 3), np.uint8)
    np.save(tmp_path / "images.npy", images)
    place = placement.rank_environments(ranks)
    (port,) = supervisor.free_ports(1)
    words = [sys.executable, "-c", textwrap.dedent(MEMORY), tmp_path / "images.npy"]
    with ExitStack() as stack:
        started: list[Any] = []
        for rank in range(ranks):
            how = {"variables": {**place[rank], "MASTER_PORT": str(port)}, "stdin": subprocess.PIPE, "stderr": None}
            started.append(stack.enter_context(processes.started([*words, rank, ranks], **how)))
        answers = [json.loads(process.stdout.readline()) for process in started]
        for process in started:
            process.communicate(timeout=300)
    private, held, moved, gathered = zip(*answers, strict=True)
    assert held == (images.nbytes // ranks,) * ranks
    assert abs(sum(moved) / sum(gathered) - (1 - 1 / ranks)) < 0.02
    # Beside the chunks: batches on their way, Dask's graphs, and what the allocator keeps.
    assert images.nbytes / ranks <= max(private) <= images.nbytes / ranks + 40 * 2**20


def test_a_chunk_that_no_worker_holds_is_asked_for_again() -> None:
    """A worker has died after it had read its chunk, and another is reading it again."""
    array = dask.array.concatenate([dask.array.zeros((rows, 2), dtype=np.uint8) for rows in (3, 4)])
    keys = list(flatten(array.__dask_keys__()))

    class Client:
        def scheduler_info(self, n_workers: int) -> dict[str, Any]:
            return {"workers": {"tcp://b": {}, "tcp://a": {}}}

        def who_has(self, kept: Any) -> dict[Any, tuple[str, ...]]:
            return dict(zip(keys, (held, ("tcp://a", "tcp://gone")), strict=True))

    held: tuple[str, ...] = ()
    assert chunks._worker_placement(Client(), array) is None
    held = ("tcp://gone",)
    assert chunks._worker_placement(Client(), array) is None
    held = ("tcp://b",)
    assert chunks._worker_placement(Client(), array) == ([1, 0], [8, 6])


def assert_all_arrive(
    plan: BatchPlan, world_size: int = 1, rank: int = 0, at_step: Callable[[int], object] = lambda step: None
) -> None:
    arrived: list[Any] = []
    for step, images in enumerate(all_batches(plan, chunks.feed(plan, SPLIT, world_size, rank))):
        arrived.append(images)
        at_step(step)
    wanted = expected(plan, world_size, rank)
    assert len(arrived) == len(wanted) == plan.total_steps
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(arrived, wanted, strict=True))


def test_a_mapped_split_is_read_from_its_file(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", IMAGES)
    split = DatasetSplit(images=np.load(tmp_path / "images.npy", mmap_mode="r"), labels=SPLIT.labels)
    plan = a_plan(epochs=1)
    gathered = np.concatenate(list(all_batches(plan, chunks.feed(plan, split, 1, 0))))
    assert np.array_equal(gathered, IMAGES[plan.draw(1).ids])


def test_a_run_that_is_left_early_ends_its_threads() -> None:
    before = threading.active_count()
    feed = chunks.feed(a_plan(), SPLIT, 1, 0)
    batches = feed(1, range(5))
    next(batches)
    assert threading.active_count() > before
    del batches, feed
    gc.collect()
    assert threading.active_count() == before


def test_a_feed_makes_no_batch_before_it_is_asked_nor_beyond_its_steps() -> None:
    stats, image = TransferStats(), IMAGES[0].nbytes
    feed = chunks.feed(a_plan(), SPLIT, 1, 0, stats)
    batches = feed(1, range(4))
    assert stats.gathered_bytes == 0
    assert len(list(batches)) == 4 and stats.gathered_bytes == 4 * 8 * image
    list(feed(2, [5]))
    assert stats.gathered_bytes == (4 * 8 + 5) * image


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 6))
def test_all_ranks_agree_who_owns_which_chunk_in_order_and_in_equal_numbers(num_images: int, size: int, ranks: int) -> None:
    plan = a_plan(num_images, dask={"chunk_images": size})
    split = DatasetSplit(images=np.zeros((num_images, 1, 1, 3), np.uint8), labels=np.zeros(num_images, np.int64))
    owners_by_rank = list[list[int]]()
    for rank in range(ranks):
        stats = TransferStats(owners=Owners(rank, [("", 0)] * ranks))
        chunks.feed(plan, split, ranks, rank, stats)
        owners_by_rank.append(stats.owner_of_chunk)
    owners = owners_by_rank[0]
    assert owners_by_rank == [owners] * ranks and owners == sorted(owners) and len(owners) == -(-num_images // size)
    counts = np.bincount(owners, minlength=ranks)
    assert counts.max() - counts.min() <= 1
