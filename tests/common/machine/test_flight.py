import json
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.machine import flight
from common.machine.flight import ExchangeRecord, Flight, RankRange


@pytest.fixture(autouse=True)
def ring() -> Iterator[bytearray]:
    """A ring of this test. Numbers go on from other tests, so that the ring starts anywhere."""
    memory = bytearray(flight.BYTES)
    flight.attach(memoryview(memory))
    yield memory
    flight.attach(memoryview(bytearray(flight.BYTES)))


def test_a_record_says_what_was_exchanged_with_whom_and_when(ring: bytearray) -> None:
    channel = flight.Channel(RankRange(0, 1, 2))
    number = channel.begin("all_reduce", "float32", (4, 25), 400)
    flight.end(channel.begin("barrier"))
    begun, done = flight.read(bytes(ring), bytes(ring), 0).records
    assert begun == ExchangeRecord(number, RankRange(0, 1, 2), 1, "all_reduce", "float32", (4, 25), 400, begun.begin_ns, 0)
    assert done == ExchangeRecord(number + 1, RankRange(0, 1, 2), 2, "barrier", "", (), 0, done.begin_ns, done.end_ns)
    assert begun.begin_ns <= done.begin_ns <= done.end_ns
    flight.end(number)
    assert flight.read(bytes(ring), bytes(ring), 0).records[0].end_ns >= done.end_ns


@given(
    st.sampled_from(flight.KINDS),
    st.sampled_from(flight.DTYPES),
    st.lists(st.integers(0, 2**62), max_size=6),
    st.integers(0, 2**62),
)
def test_any_exchange_comes_back_with_up_to_four_sizes(kind: str, dtype: str, sizes: list[int], num_bytes: int) -> None:
    flight.attach(memoryview(own := bytearray(flight.BYTES)))
    flight.Channel(RankRange(0, 1, 2)).begin(kind, dtype, tuple(sizes), num_bytes)
    (record,) = flight.read(bytes(own), bytes(own), 0).records
    assert (record.kind, record.dtype, record.shape, record.num_bytes) == (kind, dtype, tuple(sizes[:4]), num_bytes)


@pytest.mark.parametrize("name", ["KINDS", "DTYPES"])
def test_every_kind_and_type_comes_back_and_has_a_code_of_one_byte(ring: bytearray, name: str) -> None:
    channel, words = flight.Channel(RankRange(0, 1, 2)), getattr(flight, name)
    for word in words:
        channel.begin(*((word, "") if name == "KINDS" else ("all_reduce", word)))
    records = flight.read(bytes(ring), bytes(ring), 0).records
    assert tuple(record.kind if name == "KINDS" else record.dtype for record in records) == words
    assert len(set(words)) == len(words) <= 256


def test_the_last_256_are_kept_in_order_and_an_overwritten_one_ends_nobody_else(ring: bytearray) -> None:
    channel = flight.Channel(RankRange(0, 1, 2))
    first = channel.begin("barrier")
    for _ in range(flight.NUM_RECORDS + 10):
        channel.begin("all_reduce")
    flight.end(first)
    records = flight.read(bytes(ring), bytes(ring), 0).records
    assert [record.sequence for record in records] == list(range(12, flight.NUM_RECORDS + 12))
    assert not any(record.end_ns for record in records)


def test_a_record_that_is_being_written_is_left_out(ring: bytearray) -> None:
    channel = flight.Channel(RankRange(0, 1, 2))
    for _ in range(flight.NUM_RECORDS + 3):
        number = channel.begin("all_reduce")
    # A record is written from its first byte to its last: here only the number has been.
    place = (number + 1) % flight.NUM_RECORDS * (flight.BYTES // flight.NUM_RECORDS)
    ring[place : place + 8] = (number + 1).to_bytes(8, "little")
    assert [record.number for record in flight.read(bytes(ring), bytes(ring), 0).records] == list(
        range(number - flight.NUM_RECORDS + 2, number + 1)
    )


def test_a_record_that_is_begun_between_two_readings_is_left_out_and_one_that_ends_is_kept(ring: bytearray) -> None:
    channel = flight.Channel(RankRange(0, 1, 2))
    first, second = channel.begin("all_reduce"), channel.begin("all_reduce")
    before = bytes(ring)
    flight.end(first)
    place = second % flight.NUM_RECORDS * (flight.BYTES // flight.NUM_RECORDS)
    ring[place + 8 : place + 16] = (77).to_bytes(8, "little")  # its sequence, while its number is still the former one
    (record,) = flight.read(before, bytes(ring), 0).records
    assert record.number == first and record.end_ns


def test_threads_that_record_at_once_lose_nothing(ring: bytearray) -> None:
    channel = flight.Channel(RankRange(0, 1, 2))

    def record() -> None:
        for _ in range(flight.NUM_RECORDS // 4):
            flight.end(channel.begin("sum"))

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = flight.read(bytes(ring), bytes(ring), 0).records
    assert sorted(record.sequence for record in records) == list(range(1, flight.NUM_RECORDS + 1))
    assert all(record.end_ns for record in records)


def test_channels_of_the_same_ranks_count_on_and_ways_have_a_direction() -> None:
    assert flight.group_channel((0, 2, 4)) is flight.group_channel((0, 2, 4))
    assert flight.group_channel((3,)) is not flight.group_channel((2,))
    assert flight.p2p_channel(0, 1) is not flight.p2p_channel(1, 0)
    assert RankRange(4, 2, 3).members == (4, 6, 8)
    assert RankRange(1, -1, 2, directed=True).members == (1, 0)


def test_what_a_record_has_no_words_for_does_not_end_training(ring: bytearray) -> None:
    flight.end(flight.group_channel((0, 1, 3)).begin("all_reduce", "float32"))
    flight.end(flight.group_channel((0, 2, 4)).begin("all_reduce", "complex64", (2,), 16))
    (record,) = flight.read(bytes(ring), bytes(ring), 0).records
    assert (record.ranks, record.dtype, record.shape) == (RankRange(0, 2, 3), "", (2,))


@pytest.mark.parametrize(
    "spoilt",
    [
        RankRange(-9, 1, 2),
        RankRange(0, -1, 2),
        RankRange(0, 1, 2**31 - 1),
        RankRange(2**31 - 1, 1, 1),
        RankRange(0, 2**31 - 1, 2),
        RankRange(0, 1, 0),
        RankRange(0, 1, 1, directed=True),
    ],
)
def test_a_record_of_ranks_that_cannot_be_is_left_out(ring: bytearray, spoilt: RankRange) -> None:
    flight.Channel(spoilt).begin("all_reduce")
    flight.Channel(RankRange(1, -1, 2, directed=True)).begin("send")
    assert [each.kind for each in flight.read(bytes(ring), bytes(ring), 0).records] == ["send"]


def test_what_goes_through_json_comes_back(ring: bytearray) -> None:
    flight.Channel(RankRange(0, 1, 2)).begin("all_reduce", "float32", (4, 25), 400)
    taken = flight.read(bytes(ring), bytes(ring), 17)
    assert Flight.from_json(json.loads(json.dumps(taken))) == taken
