from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import architectures, chunks, spec
from common.batches import Plan
from common.datasets import Split

IMAGES = np.random.default_rng(0).integers(0, 256, (45, 32, 32, 3), np.uint8)
SPLIT = Split(images=IMAGES, labels=np.arange(45) % 10)


def a_plan(**fields: Any) -> Plan:
    settings = {"global_batch_size": 8, "epochs": 2, "input": "dask", "workers": 2, "dask": {"chunk_images": 7}, **fields}
    return Plan(spec.build(settings), architectures.resolve("simple_cnn", 10, 32), len(SPLIT))


@pytest.mark.parametrize("order", ["global", "chunks"])
@pytest.mark.parametrize(("world_size", "rank"), [(1, 0), (3, 2)])
def test_every_process_gets_the_images_of_its_shards_in_order(order: str, world_size: int, rank: int) -> None:
    plan = a_plan(dask={"chunk_images": 7, "order": order})
    gathered = list(chunks.batches(plan, SPLIT, world_size, rank))
    expected = [
        IMAGES[plan.draw(epoch).ids[start:stop]] for epoch in (1, 2) for start, stop in plan.bounds(epoch, world_size, rank)
    ]
    assert len(gathered) == len(expected) == plan.total_steps
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(gathered, expected, strict=True))


def test_a_mapped_split_is_read_from_its_file(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", IMAGES)
    split = Split(images=np.load(tmp_path / "images.npy", mmap_mode="r"), labels=SPLIT.labels)
    plan = a_plan(epochs=1)
    gathered = np.concatenate(list(chunks.batches(plan, split, 1, 0)))
    assert np.array_equal(gathered, IMAGES[plan.draw(1).ids])


def test_a_run_that_is_left_early_ends_its_threads() -> None:
    batches = chunks.batches(a_plan(), SPLIT, 1, 0)
    next(batches)
    batches.close()
    with pytest.raises(StopIteration):
        next(batches)
