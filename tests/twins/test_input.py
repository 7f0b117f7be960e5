import gc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from common.batches import Plan
from common.datasets import Split
from common.training import Batch
from tests.twins import made, oracles
from tests.twins.adapters import Twin

ARCHITECTURE = made.network()
SPLIT = made.dataset(ARCHITECTURE).train

AUGMENTED = {"horizontal_flip": True, "shift_px": 5}

FLIPS = np.array([True, False, True, False, True])
SHIFTS = np.array([[0, 0], [2, -1], [-12, 0], [3, 11], [-1, -20]])


@pytest.mark.parametrize("shifts", [None, SHIFTS], ids=["still", "shifted"])
@pytest.mark.parametrize("flips", [None, FLIPS], ids=["unflipped", "flipped"])
def test_augmentation_moves_every_pixel_as_drawn(twin: Twin, flips: Any, shifts: Any) -> None:
    images = SPLIT.images[:5]
    augmented = twin.array(
        twin.input.augment(twin.tensor(images), *(None if draw is None else twin.tensor(draw) for draw in (flips, shifts)))
    )
    assert augmented.dtype == np.uint8
    assert np.array_equal(augmented, oracles.augment(images, flips, shifts))


def test_a_shift_beyond_the_edge_leaves_nothing(twin: Twin) -> None:
    far = np.array([[12, 0], [0, -12], [99, -99]])
    assert not twin.array(twin.input.augment(twin.tensor(SPLIT.images[:3]), None, twin.tensor(far))).any()


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_scaling_is_one_multiplication_in_the_models_precision(twin: Twin, precision: Any) -> None:
    every_value = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3)
    scaled = twin.nhwc(twin.input.scale(twin.tensor(every_value), twin.dtype(precision.__name__)))
    assert scaled.dtype == precision
    assert np.array_equal(scaled, every_value.astype(precision) * precision(1 / 255))


@pytest.mark.parametrize(("world_size", "rank"), [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_inline_batches_are_this_ranks_shards_of_the_plan(twin: Twin, world_size: int, rank: int) -> None:
    assert_follows_the_plan(twin, plan(epochs=2), SPLIT, world_size, rank)


@pytest.mark.slow
def test_a_worker_gives_the_same_batches_in_the_same_order(twin: Twin) -> None:
    assert_follows_the_plan(twin, plan(epochs=2, input="workers", workers=1), SPLIT, 1, 0)


def test_workers_read_a_ranks_images_from_a_memory_map(twin: Twin, tmp_path: Path) -> None:
    file = tmp_path / "pixels"
    file.write_bytes(b"header" + SPLIT.images.tobytes())
    mapped = np.memmap(file, np.uint8, "r", offset=6, shape=SPLIT.images.shape)
    split = Split(images=mapped, labels=SPLIT.labels)
    assert_follows_the_plan(twin, plan(epochs=2, input="workers", workers=2), split, 3, 1)


@pytest.mark.slow
def test_a_worker_reads_images_from_a_part_of_a_memory_map(twin: Twin, tmp_path: Path) -> None:
    file = tmp_path / "pixels"
    file.write_bytes(bytes(SPLIT.images.size) + SPLIT.images.tobytes())
    count = len(SPLIT.labels)
    part = np.memmap(file, np.uint8, "r", shape=(2 * count, *SPLIT.images.shape[1:]))[count:]
    assert_follows_the_plan(twin, plan(input="workers", workers=1), Split(images=part, labels=SPLIT.labels), 1, 0)


def test_runs_that_are_read_in_turn_and_left_do_not_disturb_each_other(twin: Twin) -> None:
    one, other = (twin.input.batches(plan(), SPLIT, 1, 0) for _ in range(2))
    first, same = next(one), next(other)
    assert np.array_equal(twin.array(first.ids), twin.array(same.ids))
    del one
    gc.collect()
    assert len(list(other)) == 2


def test_steps_cut_the_last_epoch_short(twin: Twin) -> None:
    short = plan(epochs=None, steps=4)
    assert (short.steps_per_epoch, short.epochs, short.steps_in(2)) == (3, 2, 1)
    assert_follows_the_plan(twin, short, SPLIT, 1, 0)


def test_without_augmentation_the_images_are_the_data_sets(twin: Twin) -> None:
    for batch in twin.input.batches(plan(augmentation={}), SPLIT, 1, 0):
        ids = twin.array(batch.ids)
        assert np.array_equal(twin.array(batch.images), SPLIT.images[ids])
        assert np.array_equal(twin.array(batch.labels), SPLIT.labels[ids])


def test_a_batch_turned_back_to_front_holds_the_same_examples(twin: Twin) -> None:
    spec = made.settings(augmentation=AUGMENTED)
    forward, backward = (
        list(twin.input.batches(Plan(spec, ARCHITECTURE, len(SPLIT), reverse), SPLIT, 1, 0)) for reverse in (False, True)
    )
    for one, other in zip(forward, backward, strict=True):
        for left, right in zip(arrays(twin, one), arrays(twin, other), strict=True):
            assert np.array_equal(left, right[::-1])


def plan(**fields: Any) -> Plan:
    """22 examples in batches of 9: the last has 4."""
    return Plan(made.settings(**{"augmentation": AUGMENTED, **fields}), ARCHITECTURE, len(SPLIT))


def assert_follows_the_plan(twin: Twin, plan: Plan, split: Split, world_size: int, rank: int) -> None:
    received = [arrays(twin, batch) for batch in twin.input.batches(plan, split, world_size, rank)]
    expected = [
        loaded(plan, epoch, start, stop)
        for epoch in range(1, plan.epochs + 1)
        for start, stop in plan.bounds(epoch, world_size, rank)
    ]
    assert len(received) == len(expected) == plan.total_steps
    for ours, theirs in zip(received, expected, strict=True):
        for array, oracle in zip(ours, theirs, strict=True):
            assert array.dtype == oracle.dtype
            assert np.array_equal(array, oracle)


def loaded(plan: Plan, epoch: int, start: int, stop: int) -> list[npt.NDArray[Any]]:
    drawn = plan.draw(epoch)
    ids = drawn.ids[start:stop]
    flips, shifts = (None if draw is None else draw[start:stop] for draw in (drawn.flips, drawn.shifts))
    masks = [mask[start:stop] for mask in drawn.masks]
    return [ids, oracles.augment(SPLIT.images[ids], flips, shifts), SPLIT.labels[ids], *masks]


def arrays(twin: Twin, batch: Batch) -> list[npt.NDArray[Any]]:
    return [twin.array(tensor) for tensor in (batch.ids, batch.images, batch.labels, *batch.masks)]
