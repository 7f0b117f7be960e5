"""Event files of TensorBoard, written byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Iterable


def crc32c(content: bytes) -> int:
    """CRC-32C, bit by bit: a second opinion on the table of the reader."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    return crc ^ 0xFFFFFFFF


def record(content: bytes) -> bytes:
    """One TFRecord."""

    def masked(part: bytes) -> bytes:
        crc = crc32c(part)
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(content))
    return length + masked(length) + content + masked(content)


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, content: bytes) -> bytes:
    """A field with a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def simple(value: float) -> bytes:
    """The value of a scalar as PyTorch's SummaryWriter writes it."""
    return varint(2 << 3 | 5) + struct.pack("<f", value)


def tensor(value: float, *, raw: bool = False) -> bytes:
    """The value of a scalar as `tf.summary.scalar` writes it: in a tensor, as a float or as bytes."""
    packed = struct.pack("<f", value)
    return field(8, number_field(1, 1) + field(2, b"") + field(4 if raw else 5, packed))


def event(step: int, tag: str, value: bytes) -> bytes:
    time = varint(1 << 3 | 1) + struct.pack("<d", 1.7e9)
    return record(time + number_field(2, step) + field(5, field(1, field(1, tag.encode()) + value)))


def event_file(losses: Iterable[tuple[int, float]], tag: str = "train/loss") -> bytes:
    """An event file with its version, a graph, and the losses of steps."""
    head = record(varint(1 << 3 | 1) + struct.pack("<d", 1.7e9) + field(3, b"brain.Event:2")) + record(field(4, bytes(200_000)))
    return head + b"".join(event(step, tag, simple(loss)) for step, loss in losses)
