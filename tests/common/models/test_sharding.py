import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.models.sharding import channels, shard
from common.spec import SpecError, micro_batches
from tests.support.refusals import refused


@given(st.integers(0, 2000), st.integers(1, 64))
def test_the_shards_in_order_of_rank_cover_each_position_exactly_once(num_examples: int, replicas: int) -> None:
    shards = [shard(num_examples, replicas, rank) for rank in range(replicas)]
    assert [position for start, stop in shards for position in range(start, stop)] == list(range(num_examples))


@given(st.integers(0, 10**9), st.integers(1, 64))
def test_sizes_differ_by_at_most_one_and_the_first_ranks_take_the_rest(num_examples: int, replicas: int) -> None:
    sizes = [stop - start for start, stop in (shard(num_examples, replicas, rank) for rank in range(replicas))]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == num_examples


@pytest.mark.parametrize(
    ("num_examples", "replicas", "expected"),
    [
        (10, 1, [(0, 10)]),
        (64, 2, [(0, 32), (32, 64)]),
        (10, 4, [(0, 3), (3, 6), (6, 8), (8, 10)]),
        (2, 3, [(0, 1), (1, 2), (2, 2)]),
        (0, 2, [(0, 0), (0, 0)]),
    ],
)
def test_a_share_is_contiguous_and_may_be_empty(num_examples: int, replicas: int, expected: list[tuple[int, int]]) -> None:
    assert [shard(num_examples, replicas, rank) for rank in range(replicas)] == expected


@pytest.mark.parametrize(
    ("num_examples", "most", "replicas", "parts"),
    [(16, 4, 1, 4), (15, 4, 1, 3), (7, 4, 1, 1), (16, 4, 2, 4), (7, 4, 2, 1), (12, 5, 2, 3)],
)
def test_every_replica_cuts_its_shard_into_equal_parts(num_examples: int, most: int, replicas: int, parts: int) -> None:
    assert micro_batches(num_examples, most, replicas) == parts


@pytest.mark.parametrize(("replicas", "rank"), [(2, 2), (2, -1), (1, 5), (0, 0)])
def test_a_rank_that_there_is_not_is_refused(replicas: int, rank: int) -> None:
    with pytest.raises(ValueError) as caught:
        shard(10, replicas, rank)
    assert f"{rank} of {replicas}" in str(caught.value)


def test_a_layers_channels_are_held_without_a_gap_and_by_all_replicas() -> None:
    assert channels("logits", 10, 3) == [(0, 4), (4, 7), (7, 10)]
    with refused(SpecError, received="3 for logits", fix=2):
        channels("logits", 2, 3)
