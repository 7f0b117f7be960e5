"""Scalars of event files: the forms that writers have, and bytes from anybody."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.tools.same import event_files
from compare.tools.same.event_files import EventFileError
from tests.compare.tools.same import events


def test_the_checksum_is_the_one_of_the_standard() -> None:
    assert events.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize(
    "value", [events.simple(0.625), events.tensor(0.625), events.tensor(0.625, raw=True)], ids=["simple", "floats", "bytes"]
)
@pytest.mark.parametrize("step", [0, 1, 300, 2**40, -1])
def test_each_form_of_a_scalar_is_read(value: bytes, step: int) -> None:
    content = events.event(step, "loss", value)
    assert event_files.is_event_file(content)
    assert list(event_files.scalars(content)) == [event_files.Scalar("loss", step, 0.625)]


def test_doubles_halves_and_bfloat16_in_bytes_are_read() -> None:
    forms = {2: struct.pack("<d", 0.1), 19: struct.pack("<e", 0.5), 14: struct.pack("<f", 0.5)[2:]}
    for dtype, content in forms.items():
        value = events.field(8, events.number_field(1, dtype) + events.field(4, content))
        (scalar,) = event_files.scalars(events.event(1, "loss", value))
        assert scalar.value == (0.1 if dtype == 2 else 0.5)


def test_graphs_pictures_and_texts_are_passed_over() -> None:
    picture = events.field(4, b"png")
    vector = events.field(8, events.number_field(1, 1) + events.field(5, struct.pack("<2f", 1, 2)))
    content = events.event_file([(1, 0.5)]) + events.event(1, "picture", picture) + events.event(1, "vector", vector)
    assert [scalar.tag for scalar in event_files.scalars(content)] == ["train/loss"]


@pytest.mark.parametrize("behind", [False, True])
def test_a_scalar_that_shares_a_large_record_with_a_picture_is_read(behind: bool) -> None:
    values = [
        events.field(1, b"picture") + events.field(4, bytes(100_000)),
        events.field(1, b"loss") + events.simple(0.5),
    ]
    merged = b"".join(events.field(1, value) for value in (values[::-1] if behind else values))
    content = events.record(events.number_field(2, 7) + events.field(5, merged))
    assert list(event_files.scalars(content)) == [event_files.Scalar("loss", 7, 0.5)]
    place = content.index(struct.pack("<f", 0.5))
    with pytest.raises(EventFileError, match="checksum"):
        list(event_files.scalars(content[:place] + b"\1" + content[place + 1 :]))


def test_a_large_tensor_is_passed_over_unread() -> None:
    for number, part in ((4, bytes(400_000)), (5, struct.pack("<f", 1) * 100_000), (6, bytes(800_000))):
        value = events.field(8, events.number_field(1, 1) + events.field(number, part))
        assert list(event_files.scalars(events.event(1, "weights", value))) == []


def test_a_last_record_that_is_cut_off_is_left_out() -> None:
    content = events.event_file([(1, 0.5), (2, 0.25)])
    assert [scalar.step for scalar in event_files.scalars(content[:-5])] == [1]


def test_a_changed_byte_of_a_scalar_is_noticed() -> None:
    content = events.event(1, "loss", events.simple(0.5))
    for place in range(len(content)):
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        with pytest.raises(EventFileError):
            list(event_files.scalars(changed))


@pytest.mark.parametrize(
    "content",
    [
        events.field(5, b"\x0a\xff\xff\xff\xff\x0f"),  # a summary whose value claims four GB
        b"\xff" * 12,  # a number of more than ten bytes
        events.field(5, events.number_field(1, 3)),
        events.field(2, b"12"),  # a step in the form of bytes
        b"\x0b",  # a group, which is no longer in use
        events.field(5, events.field(1, events.field(1, b"\xff\xfe"))),  # a tag that is no UTF-8
        events.field(5, events.field(1, events.field(2, b"12"))),
    ],
)
def test_a_record_that_is_no_event_is_refused(content: bytes) -> None:
    with pytest.raises(EventFileError):
        list(event_files.scalars(events.record(content)))


def test_a_length_beyond_the_file_ends_it() -> None:
    length = struct.pack("<Q", 2**63)
    crc = events.crc32c(length)
    masked = struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)
    assert list(event_files.scalars(length + masked + b"123456")) == []


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60))
def test_any_record_gives_scalars_or_one_error(content: bytes) -> None:
    for whole in (content, events.record(content), events.record(events.field(5, events.field(1, content)))):
        try:
            for scalar in event_files.scalars(whole):
                assert (type(scalar.tag), type(scalar.step), type(scalar.value)) == (str, int, float)
                assert -(2**63) <= scalar.step < 2**63
        except EventFileError:
            pass
