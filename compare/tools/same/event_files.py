"""Scalars of TensorBoard's event files. The file is a row of TFRecords, each a protocol buffer `tensorflow.Event`.

A reader of the few fields that hold scalars needs no framework. Its input may come from anybody: it trusts no length, and each
record has to have its checksums.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

_MOST_CHECKED_BYTES = 2**16
"""Longest record whose content is always checked. A longer one, a graph or pictures, is checked only if it has scalars too."""
_SCALAR_BYTES = 8
"""Largest size of one number. Longer tensors are no scalars, and are passed over unread."""
_WIRE_LENGTHS = {1: 8, 5: 4}
_FLOAT, _DOUBLE, _HALF, _BFLOAT16 = 1, 2, 19, 14
_FORMATS = {_FLOAT: "<f", _DOUBLE: "<d", _HALF: "<e"}
_Field = tuple[int, int | memoryview]


def _crc_table() -> list[int]:
    table: list[int] = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC_TABLE = _crc_table()


class EventFileError(ValueError):
    """An event file is damaged. The message says where, without the file's name."""


class Scalar(NamedTuple):
    """One value of an event file."""

    tag: str
    step: int
    value: float


def is_event_file(content: bytes) -> bool:
    """Whether a file begins with the length of a record and its checksum."""
    return len(content) >= 12 and _masked_crc(content[:8]) == struct.unpack_from("<I", content, 8)[0]


def scalars(content: bytes) -> Iterator[Scalar]:
    """Yield the scalars of an event file, in its order.

    A last record that is cut off is left out: a run that is still writing, or was killed, leaves one.

    Raises:
        EventFileError: a checksum does not fit, or a record is no event.
    """
    view, place, number = memoryview(content), 0, 0
    while place + 12 <= len(view):
        number += 1
        length, crc = struct.unpack_from("<QI", view, place)
        if _masked_crc(view[place : place + 8]) != crc:
            raise EventFileError(f"the checksum of the length of record {number} does not fit")
        start, end = place + 12, place + 12 + length
        if end + 4 > len(view):
            return
        record = view[start:end]
        of_record, fault = list[Scalar](), None
        try:
            of_record = list(_scalars_of_event(record))
        except (EventFileError, struct.error, UnicodeDecodeError, TypeError) as error:
            fault = error
        if of_record or fault or length <= _MOST_CHECKED_BYTES:
            if _masked_crc(record) != struct.unpack_from("<I", view, end)[0]:
                raise EventFileError(f"the checksum of record {number} does not fit")
            if fault:
                raise EventFileError(f"record {number} is no event ({fault})")
        yield from of_record
        place = end + 4


def _scalars_of_event(record: memoryview) -> Iterator[Scalar]:
    step, summaries = 0, list[memoryview]()
    for number, value in _fields(record):
        if number == 2:
            step = _signed(value)
        elif number == 5:
            summaries.append(_bytes(value))
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1 and (scalar := _scalar(_bytes(value), step)) is not None:
                yield scalar


def _scalar(value: memoryview, step: int) -> Scalar | None:
    """Return a value of a summary. None: it is no scalar."""
    tag, number = "", None
    for field, content in _fields(value):
        if field == 1:
            tag = bytes(_bytes(content)).decode()
        elif field == 2:
            number = struct.unpack("<f", _bytes(content))[0]
        elif field == 8:
            number = _tensor_value(_bytes(content))
    return None if number is None else Scalar(tag, step, number)


def _tensor_value(tensor: memoryview) -> float | None:
    """Return the value of a `TensorProto` with one floating-point number, as `tf.summary.scalar` writes. None: another."""
    dtype, numbers = _FLOAT, list[float]()
    raw = memoryview(b"")
    for field, content in _fields(tensor):
        if field == 1 and isinstance(content, int):
            dtype = content
        elif field == 4:
            raw = _bytes(content)
            if len(raw) > _SCALAR_BYTES:
                return None
        elif field in (5, 6):
            if len(_bytes(content)) > _SCALAR_BYTES:
                return None
            numbers += [value for (value,) in struct.iter_unpack("<f" if field == 5 else "<d", _bytes(content))]
    if raw.nbytes and dtype in _FORMATS:
        numbers = [value for (value,) in struct.iter_unpack(_FORMATS[dtype], raw)]
    elif raw.nbytes and dtype == _BFLOAT16:
        numbers = [struct.unpack("<f", b"\0\0" + pair)[0] for (pair,) in struct.iter_unpack("2s", raw)]
    return numbers[0] if len(numbers) == 1 else None


def _fields(message: memoryview) -> Iterator[_Field]:
    """Yield (number, value) of each field of a protocol buffer. A number of fixed length is its bytes."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        wire = key & 7
        if wire == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if wire == 2:
            length, place = _varint(message, place)
        elif wire in _WIRE_LENGTHS:
            length = _WIRE_LENGTHS[wire]
        else:
            raise EventFileError(f"a field has the wire type {wire}")
        if length > len(message) - place:
            raise EventFileError("a field is longer than its record")
        yield key >> 3, message[place : place + length]
        place += length


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise EventFileError("a number is cut off")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise EventFileError("a number has more than ten bytes")


def _signed(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise EventFileError("its step is no number")
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise EventFileError("a field is a number in the place of bytes")
    return value


def _masked_crc(content: Any) -> int:
    """Return the masked CRC-32C of TFRecords."""
    crc = 0xFFFFFFFF
    for byte in bytes(content):
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
