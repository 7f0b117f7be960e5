import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from common import spec
from common.data.batches import BatchPlan, EpochDraws, order_digest
from common.models.architectures import Architecture, Dropout
from common.spec import SpecError
from tests.support.refusals import refused

MODEL = Architecture("any", 32, 10, (Dropout("first", 0.5, 6), Dropout("second", 0.5, 6), Dropout("third", 0.2, 3)))
AUGMENTED = {"horizontal_flip": True, "shift_px": 4}

sizes = st.integers(1, 200)
batch_sizes = st.integers(1, 64)
seeds = st.integers(0, 2**63 - 1)


def a_plan(num_examples: int = 100, *, reverse_batches: bool = False, **fields: Any) -> BatchPlan:
    return BatchPlan(spec.build({"augmentation": AUGMENTED} | fields), MODEL, num_examples, reverse_batches)


def arrays(epoch: EpochDraws) -> list[NDArray[Any]]:
    assert epoch.flips is not None and epoch.shifts is not None
    masks = [
        np.unpackbits(bits, axis=1, count=units, bitorder="little")
        for bits, units in zip(epoch.masks, epoch.mask_units, strict=True)
    ]
    return [epoch.ids, epoch.flips, epoch.shifts, *masks]


def same(left: EpochDraws, right: EpochDraws) -> list[bool]:
    return [np.array_equal(*pair) for pair in zip(arrays(left), arrays(right), strict=True)]


# Draws.


@given(sizes, seeds, st.integers(1, 1000))
def test_the_order_of_an_epoch_is_a_permutation_of_the_training_split(num_examples: int, seed: int, epoch: int) -> None:
    drawn = a_plan(num_examples, seed=seed).draw(epoch)
    assert drawn.ids.dtype == np.int64
    assert sorted(drawn.ids) == list(range(num_examples))
    assert [array.shape for array in arrays(drawn)[1:]] == [(num_examples, *rest) for rest in ((), (2,), (6,), (6,), (3,))]


@pytest.mark.parametrize(
    "fields",
    [
        {"global_batch_size": 16, "epochs": 9},
        {"mode": "multi_process", "replicas": 4},
        {"mode": "data_parallel", "replicas": 2, "batch_norm_statistics": "synchronised"},
        {"input": "workers", "workers": 3},
        {"precision": "float64", "steps": 1, "optimizer": {"name": "adam"}},
    ],
)
def test_draws_depend_on_seed_and_epoch_alone(fields: dict[str, Any]) -> None:
    drawn = a_plan(seed=5).draw(3)
    assert all(same(a_plan(seed=5, **fields).draw(3), drawn))
    assert not any(same(a_plan(seed=6, **fields).draw(3), drawn))
    assert not any(same(a_plan(seed=5, **fields).draw(4), drawn))


def test_an_augmentation_that_is_off_leaves_the_other_draws_alone() -> None:
    whole, bare = a_plan().draw(1), a_plan(augmentation={}).draw(1)
    assert (bare.flips, bare.shifts) == (None, None)
    assert all(map(np.array_equal, (bare.ids, *bare.masks), (whole.ids, *whole.masks)))


def test_masks_are_the_same_however_many_are_drawn_at_once() -> None:
    """A chunk has 2**20 values: here an example of three, or one that is as long as all of them."""
    units = 2**19 + 3
    chunked, whole = (
        BatchPlan(spec.build({}), Architecture("any", 32, 10, (Dropout("wide", 0.5, width),)), count).draw(2)
        for width, count in ((units, 3), (3 * units, 1))
    )
    rows = np.unpackbits(chunked.masks[0], axis=1, count=units, bitorder="little")
    assert np.array_equal(rows.reshape(-1), np.unpackbits(whole.masks[0], count=3 * units, bitorder="little"))


def test_draws_have_the_frequencies_that_the_spec_asks_for() -> None:
    n = 20_000
    _, flips, shifts, first, second, third = arrays(a_plan(n).draw(1))
    assert flips.mean() == pytest.approx(0.5, abs=5 * 0.5 / n**0.5)
    assert third.mean() == pytest.approx(1 - 0.2, abs=5 * 0.4 / (3 * n) ** 0.5)
    assert (first == second).mean() == pytest.approx(0.5, abs=5 * 0.5 / (6 * n) ** 0.5)  # two dropouts share no mask
    for axis in (0, 1):
        values, counts = np.unique(shifts[:, axis], return_counts=True)
        assert values.tolist() == list(range(-4, 5))
        assert counts / n == pytest.approx(1 / 9, abs=5 * (8 / 81 / n) ** 0.5)


@given(sizes, batch_sizes)
def test_a_reversed_batch_holds_the_same_examples_with_the_same_draws(num_examples: int, batch_size: int) -> None:
    plan = a_plan(num_examples, global_batch_size=batch_size)
    forward, backward = plan.draw(2), a_plan(num_examples, global_batch_size=batch_size, reverse_batches=True).draw(2)
    for start, stop in map(plan.batch, range(plan.steps_per_epoch)):
        for there, back in zip(arrays(forward), arrays(backward), strict=True):
            assert np.array_equal(there[start:stop][::-1], back[start:stop])


# Which positions come when.


@given(sizes, batch_sizes, st.integers(1, 9), st.integers(1, 500))
def test_all_ranks_together_load_each_position_once_and_in_order(
    num_examples: int, batch_size: int, world_size: int, steps: int
) -> None:
    plan = a_plan(num_examples, global_batch_size=batch_size, steps=steps)
    epochs = range(1, plan.epochs + 1)
    assert sum(map(plan.steps_in, epochs)) == steps
    for epoch in {epochs[0], epochs[-1]}:
        by_rank = [plan.bounds(epoch, world_size, rank) for rank in range(world_size)]
        loaded = [position for step in zip(*by_rank, strict=True) for bounds in step for position in range(*bounds)]
        assert loaded == list(range(min(plan.steps_in(epoch) * batch_size, num_examples)))


@pytest.mark.parametrize(
    ("length", "num_examples", "steps_by_epoch"),
    [
        ({"epochs": 2}, 100, [4, 4]),
        ({"epochs": 1}, 96, [3]),
        ({"steps": 6}, 100, [4, 2]),
        ({"steps": 4}, 100, [4]),
        ({"steps": 1}, 100, [1]),
        ({"epochs": 3}, 5, [1, 1, 1]),
    ],
)
def test_a_run_is_as_long_as_the_spec_says(length: dict[str, Any], num_examples: int, steps_by_epoch: list[int]) -> None:
    plan = a_plan(num_examples, global_batch_size=32, **length)
    assert [plan.steps_in(epoch) for epoch in range(1, plan.epochs + 1)] == steps_by_epoch
    assert plan.total_steps == sum(steps_by_epoch)


def test_the_schedule_counts_the_steps_of_this_data() -> None:
    halved = {"name": "step", "step_size": 1, "gamma": 0.5}
    plan = a_plan(100, global_batch_size=32, optimizer={"learning_rate": 0.1}, schedule=halved)
    assert [plan.learning_rate(step) for step in range(plan.total_steps)] == pytest.approx([0.1] * 4 + [0.05] * 4)
    cosine = a_plan(100, global_batch_size=32, optimizer={"learning_rate": 0.1}, schedule={"name": "cosine"})
    assert cosine.learning_rate(4) == pytest.approx(0.05)  # half of the run


@pytest.mark.parametrize(("num_examples", "last"), [(99, None), (102, None), (3, None), (100, 1), (101, 2), (2, 2)])
def test_a_last_batch_with_an_example_for_each_replica_is_needed(num_examples: int, last: int | None) -> None:
    fields: dict[str, Any] = {"mode": "data_parallel", "replicas": 3, "global_batch_size": 33}
    if last is None:
        assert a_plan(num_examples, **fields).num_examples == num_examples
    else:
        with refused(SpecError, names=[f"a last batch of {last}", num_examples, "replicas 3"]):
            a_plan(num_examples, **fields)


# Stored orders.


def test_the_digest_of_an_order_never_changes() -> None:
    # printf '\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0' | sha256sum
    assert order_digest(np.array([2, 0, 1])) == "53afea624a503a0bf39e469e8979f67fcb1890ea0392adf9e155124f5ede9ebb"


def test_the_draws_of_a_seed_never_change() -> None:
    drawn = a_plan(seed=1).draw(2)
    assert drawn.ids[:8].tolist() == [58, 94, 42, 87, 89, 57, 18, 56]
    assert order_digest(drawn.ids) == "dfe17d997c90cae3405c8b512b89fda4c7b1cbecf894b98e259eb957f0082b4a"
    others = hashlib.sha256(b"".join(np.ascontiguousarray(array, "<i8").tobytes() for array in arrays(drawn)[1:]))
    assert others.hexdigest() == "e91bf0741f919eca63882d6189953c4e370acc743360ba298cee71e471d25d08"


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, unique=True))
def test_the_digest_follows_values_and_order_but_not_the_layout_in_memory(ids: list[int]) -> None:
    array = np.array(ids)
    assert order_digest(array[::-1]) == order_digest(np.array(ids[::-1])) != order_digest(array)
    assert order_digest(array.astype(">i8")) == order_digest(array)
    assert order_digest(array[:-1]) != order_digest(array)
