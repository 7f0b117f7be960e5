import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from common import spec
from common.data import chunks
from common.data.batches import Plan, in_order
from common.data.sources import Split
from common.models import architectures
from tests.common.data.preprocessing.made_up_cluster import Cluster

IMAGES = np.random.default_rng(0).integers(0, 256, (45, 32, 32, 3), np.uint8)
SPLIT = Split(images=IMAGES, labels=np.arange(45) % 10)


def a_plan(**fields: Any) -> Plan:
    settings = {"global_batch_size": 8, "epochs": 2, "input": "dask", "workers": 2, "dask": {"chunk_images": 7}, **fields}
    return Plan(spec.build(settings), architectures.resolve("simple_cnn", 10, 32), len(SPLIT))


def expected(plan: Plan, world_size: int = 1, rank: int = 0) -> list[Any]:
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


def assert_all_arrive(
    plan: Plan, world_size: int = 1, rank: int = 0, at_step: Callable[[int], object] = lambda step: None
) -> None:
    arrived: list[Any] = []
    for step, images in enumerate(in_order(plan, chunks.feed(plan, SPLIT, world_size, rank))):
        arrived.append(images)
        at_step(step)
    wanted = expected(plan, world_size, rank)
    assert len(arrived) == len(wanted) == plan.total_steps
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(arrived, wanted, strict=True))


def test_a_mapped_split_is_read_from_its_file(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", IMAGES)
    split = Split(images=np.load(tmp_path / "images.npy", mmap_mode="r"), labels=SPLIT.labels)
    plan = a_plan(epochs=1)
    gathered = np.concatenate(list(in_order(plan, chunks.feed(plan, split, 1, 0))))
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


def test_a_feed_makes_no_batch_before_it_is_asked_nor_beyond_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[int] = []
    gathering = chunks._gathering

    @contextmanager
    def counted(*arguments: Any) -> Iterator[Any]:
        with gathering(*arguments) as gather:
            yield lambda ids: gathered.append(len(ids)) or gather(ids)

    monkeypatch.setattr(chunks, "_gathering", counted)
    feed = chunks.feed(a_plan(), SPLIT, 1, 0)
    batches = feed(1, range(4))
    assert gathered == []
    assert len(list(batches)) == len(gathered) == 4
    list(feed(2, [5]))
    assert gathered == [8] * 4 + [5]
