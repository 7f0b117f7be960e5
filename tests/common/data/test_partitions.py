"""Fixed ownership of examples."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common import spec
from common.data import chunks
from common.data.batches import BatchPlan, all_batches
from common.data.partitions import owners_of_positions, partition
from common.data.sources import DatasetSplit
from common.models import architectures
from common.spec import Dask
from tests.common.data.test_chunks import IMAGES, together
from tests.support.refusals import refused

LABELS = np.repeat(np.arange(10), 60)
ASYNCHRONOUS = {"mode": "parameter_server", "parameter_server": {"updates": "asynchronous"}}


def a_plan(
    num_examples: int = 600,
    owners: int = 3,
    labels: Any = None,
    mode: str = "model_averaging",
    batch_size: int = 30,
    **settings: Any,
) -> BatchPlan:
    fields = {"mode": mode, "replicas": 1 if mode == "serial" else owners, "global_batch_size": batch_size, "epochs": 2}
    dask = {"order": "owned", "owners": owners, "chunk_images": 7, **settings}
    made = spec.build({**fields, "input": "dask", "workers": 1, "dask": dask})
    return BatchPlan(made, architectures.resolve("simple_cnn", 10, 32), num_examples, labels=labels)


def parts(**settings: Any) -> list[Any]:
    return partition(Dask(**settings), 3, LABELS, np.random.default_rng(0))


@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=200),
    speeds=st.lists(st.floats(0.01, 100), min_size=1, max_size=6),
    skew=st.floats(0.01, 100),
    seed=st.integers(0, 2**32),
)
def test_every_example_has_one_owner_and_sizes_are_equal_or_in_proportion_to_speeds(
    labels: list[int], speeds: list[float], skew: float, seed: int
) -> None:
    count, owners = len(labels), len(speeds)
    shares = {"balanced": [1 / owners] * owners, "speed": [speed / sum(speeds) for speed in speeds], "class_skew": None}
    for name, share in shares.items():
        settings = Dask.model_validate({"partition": name, "speeds": speeds, "skew": skew})
        found = partition(settings, owners, np.array(labels, np.int64), np.random.default_rng(seed))
        assert np.array_equal(np.sort(np.concatenate(found)), np.arange(count))
        assert len(found) == owners and all((np.diff(ids) > 0).all() for ids in found)
        assert share is None or all(abs(len(ids) - part * count) <= 1 for ids, part in zip(found, share, strict=True))


def test_parts_have_their_sizes_and_a_balanced_one_all_classes_and_a_skewed_one_them_in_unequal_numbers() -> None:
    def most_unequal(found: list[Any]) -> float:
        return max(np.bincount(LABELS[ids], minlength=10).max() / len(ids) for ids in found)

    assert list(map(len, parts())) == [200, 200, 200]
    assert list(map(len, parts(partition="speed", speeds=(1.0, 2.0, 3.0)))) == [100, 200, 300]
    assert most_unequal(parts()) < 0.2
    assert most_unequal(parts(partition="class_skew", skew=1e6)) < 0.2
    assert most_unequal(parts(partition="class_skew", skew=0.05)) > 0.3


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.integers(1, 64))
@example([100, 200, 303], 30)
def test_the_positions_of_an_owner_are_spread_evenly_and_together_in_each_batch(sizes: list[int], batch_size: int) -> None:
    found = owners_of_positions(sizes, batch_size)
    assert np.bincount(found).tolist() == sizes
    most = 1.0 if sizes == [100, 200, 303] else 1 + len(sizes)
    for start in range(0, len(found), batch_size):
        batch = found[start : start + batch_size]
        assert (np.diff(batch) >= 0).all()
        counts = np.bincount(batch, minlength=len(sizes))
        if len(batch) == batch_size:
            assert (np.abs(counts - np.round(batch_size * np.array(sizes) / sum(sizes))) <= most).all()


def test_a_part_that_no_batch_has_an_example_of_is_refused() -> None:
    speeds = {"partition": "speed", "speeds": (1.0, 1000.0, 1000.0)}
    with refused(spec.SpecError, names=["part 0 of 3", "step 1"]):
        a_plan(**speeds)


@pytest.mark.parametrize(
    "settings", [{}, {"partition": "class_skew", "skew": 2.0}, {"partition": "speed", "speeds": (1.0, 2.0, 3.0)}]
)
def test_each_rank_trains_on_all_of_its_own_examples_and_no_others(settings: dict[str, Any]) -> None:
    plan = a_plan(600, labels=LABELS, **settings)
    orders = [plan.draw(epoch).ids for epoch in (1, 2)]
    assert not np.array_equal(*orders)
    for rank, own in enumerate(plan.owned):
        for epoch, order in enumerate(orders, 1):
            seen = np.concatenate([order[slice(*each)] for each in plan.bounds(epoch, 3, rank)])
            assert np.array_equal(np.sort(seen), own)
    for step in range(plan.steps_per_epoch):  # the shards are the global batch, in order of rank
        edges = [plan.bounds(1, 3, rank)[step] for rank in range(3)]
        assert (edges[0][0], edges[-1][1]) == plan.batch(step)
        assert [stop for _, stop in edges[:-1]] == [start for start, _ in edges[1:]]
    for rank in range(3):
        sizes = {stop - start for start, stop in plan.bounds(1, 3, rank)}
        assert sizes == {each[rank] for each in plan.local_batch_sizes(30, 3)}  # 600 divides into batches of 30


def test_the_sizes_to_compile_are_equally_many_for_all_processes_and_no_more_than_the_most_of_one() -> None:
    plan = a_plan(1437, partition="speed", speeds=(1.0, 2.0, 3.0), batch_size=66)
    wholes = [
        {stop - start for start, stop in plan.bounds(1, 3, rank)[:-1]}  # the last batch is smaller
        for rank in range(3)
    ]
    assert len(set(map(len, wholes))) > 1, "else each process would have made equally many anyway"
    made = plan.local_batch_sizes(66, 3)
    assert len(made) == max(map(len, wholes))
    assert [set(sizes) for sizes in zip(*made, strict=True)] == wholes


def test_a_serial_run_follows_the_same_order() -> None:
    parallel, serial = a_plan(), a_plan(mode="serial")
    assert np.array_equal(parallel.draw(2).ids, serial.draw(2).ids)
    assert serial.bounds(1, 1, 0) == [serial.batch(step) for step in range(20)]
    assert sum(parallel.weight(3, rank) for rank in range(3)) == pytest.approx(3)


def test_owned_images_are_held_by_their_owner_and_nothing_is_moved() -> None:
    settings = {"partition": "speed", "speeds": (1.0, 2.0), "chunk_images": 4}
    plan, accounts = a_plan(45, 2, **settings), together(2)
    split = DatasetSplit(images=IMAGES, labels=np.arange(45) % 10)
    feeds = [chunks.feed(plan, split, 2, rank, account) for rank, account in enumerate(accounts)]
    for rank, feed in enumerate(feeds):
        wanted = [plan.draw(epoch).ids[slice(*each)] for epoch in (1, 2) for each in plan.bounds(epoch, 2, rank)]
        for ours, ids in zip(all_batches(plan, feed), wanted, strict=True):
            assert np.array_equal(ours, IMAGES[ids])
    assert [account.moved_bytes for account in accounts] == [0, 0]
    assert [account.held_bytes[0] // IMAGES[0].nbytes for account in accounts] == [15, 30]
    assert accounts[0].owner_of_chunk == [0] * 4 + [1] * 8


@pytest.mark.parametrize(
    ("fields", "dask", "field", "received", "names"),
    [
        ({}, {"owners": 3}, "dask.owners", "3 with global", ["dask.order owned"]),
        ({}, {"partition": "speed"}, "dask.partition", "speed with global", ["dask.order owned"]),
        ({"mode": "data_parallel"}, {"order": "owned", "owners": 2}, "dask.order owned", None, ["serial", "multi_process"]),
        ({}, {"skew": 0.1}, "dask.skew", "0.1 with global", ["dask.order owned"]),
        ({"mode": "multi_process"}, {"order": "owned", "owners": 2, "skew": 0.1}, "dask.skew", None, ["class_skew"]),
        (ASYNCHRONOUS, {"order": "owned", "owners": 2}, "dask.order owned", None, ["asynchronous"]),
        ({"mode": "multi_process"}, {"order": "owned"}, "dask.owners", None, ["replicas"]),
        ({"mode": "multi_process"}, {"order": "owned", "owners": 4}, "dask.owners", "4 with replicas 2", ["replicas"]),
        ({"mode": "multi_process"}, {"order": "owned", "owners": 2, "scheduler": "tcp://a:1"}, None, None, ["chunks"]),
        ({"mode": "multi_process", "accumulation": 2}, {"order": "owned", "owners": 2}, "accumulation", None, ["dask"]),
        ({"mode": "multi_process"}, {"order": "owned", "owners": 2, "partition": "speed"}, "dask.speeds", None, ["one number"]),
        ({"mode": "multi_process"}, {"order": "owned", "owners": 2, "speeds": [1, 2]}, "dask.speeds", None, ["one number"]),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(
    fields: dict[str, Any], dask: dict[str, Any], field: str | None, received: str | None, names: list[str]
) -> None:
    base = {"replicas": 2 if fields else 1, "input": "dask", "workers": 1, "dask": dask}
    with refused(spec.SpecError, field=field, received=received, names=names):
        spec.build(base | fields)
