"""Sums and sums of squares of bytes for each channel, as integers: exact in any order of addition.

A float32 accumulation over the pixels of ten thousand images is wrong in the fourth digit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ROWS, _ROW_BYTES = 256, 3072
BLOCK_BYTES = _ROWS * _ROW_BYTES
"""Bytes per addition: 512 x 512 pixels, so that NumPy's calls are few. A row holds whole pixels."""

_BYTE = 8
_LOW_BYTE = np.uint16(0xFF)

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Sums:
    """Sums over the pixels of some images. The sums of several parts add up to those of the whole."""

    pixels: int = 0
    values: Triple = (0, 0, 0)
    """Sum of the bytes of each channel."""
    squares: Triple = (0, 0, 0)
    """Sum of the squares of the bytes of each channel."""

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.pixels + other.pixels, _add(self.values, other.values), _add(self.squares, other.squares))


def from_array(totals: NDArray[np.int64], pixels: int) -> Sums:
    """Build Sums from int64 [2, 3], the sums of the bytes and of their squares, and the number of pixels."""
    values, squares = totals.tolist()
    return Sums(pixels, (values[0], values[1], values[2]), (squares[0], squares[1], squares[2]))


class Adder:
    """Adds up pixels that are written into its buffer, block by block.

    NumPy adds bytes into wider integers one by one, but adds 16-bit integers with vector instructions. So even and odd bytes
    are separated into lanes of 16 bits. A lane also holds the square of its byte. The lanes of 256 rows are added: the values,
    the squares modulo 2**16, and the upper bytes of the squares. No sum of 256 bytes exceeds a lane, so the last two also give
    the sum of the lower bytes.
    """

    def __init__(self) -> None:
        self._buffer = np.empty(BLOCK_BYTES, np.uint8)
        self._filled = self._num_bytes = 0
        self._lanes = np.empty((_ROWS, _ROW_BYTES // 2), np.uint16)
        # for even and odd bytes, for each lane of a row: sums of values, of squares modulo 2**16, and of their upper bytes
        self._columns = np.empty((2, 3, _ROW_BYTES // 2), np.uint16)
        self._totals = np.zeros(self._columns.shape, np.uint64)

    def next_buffer(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return a buffer for the next bytes to add: uint8 [num_bytes], whole RGB pixels. Fill it before the next call."""
        if self._filled + num_bytes > len(self._buffer):
            self._add_whole_blocks()
        if self._filled + num_bytes > len(self._buffer):
            larger = np.empty(self._filled + num_bytes, np.uint8)
            larger[: self._filled] = self._buffer[: self._filled]
            self._buffer = larger
        start, self._filled = self._filled, self._filled + num_bytes
        self._num_bytes += num_bytes
        return self._buffer[start : self._filled]

    def sums(self) -> Sums:
        """Return the sums of all pixels so far."""
        self._add_whole_blocks()
        if self._filled:
            block = np.zeros(BLOCK_BYTES, np.uint8)  # zeros add nothing
            block[: self._filled] = self._buffer[: self._filled]
            self._add_block(block)
            self._filled = 0
        channels = (2 * np.arange(_ROW_BYTES // 2) + np.arange(2)[:, np.newaxis]) % 3
        by_channel = [self._totals.transpose(1, 0, 2)[:, channels == channel].sum(axis=1).tolist() for channel in range(3)]
        values, lower, upper = zip(*by_channel, strict=True)
        squares = [low + (high << _BYTE) for low, high in zip(lower, upper, strict=True)]
        return Sums(self._num_bytes // 3, values, (squares[0], squares[1], squares[2]))

    def _add_whole_blocks(self) -> None:
        whole = self._filled // BLOCK_BYTES * BLOCK_BYTES
        for first in range(0, whole, BLOCK_BYTES):
            self._add_block(self._buffer[first : first + BLOCK_BYTES])
        self._filled -= whole
        self._buffer[: self._filled] = self._buffer[whole : whole + self._filled].copy()

    def _add_block(self, block: NDArray[np.uint8]) -> None:
        pairs = block.view(np.uint16).reshape(self._lanes.shape)  # little-endian: the even byte is the lower one
        for extract, operand, (values, squares, upper) in (
            (np.bitwise_and, _LOW_BYTE, self._columns[0]),
            (np.right_shift, _BYTE, self._columns[1]),
        ):
            lanes = extract(pairs, operand, out=self._lanes)
            np.add.reduce(lanes, axis=0, dtype=np.uint16, out=values)
            np.multiply(lanes, lanes, out=lanes)
            np.add.reduce(lanes, axis=0, dtype=np.uint16, out=squares)
            np.right_shift(lanes, _BYTE, out=lanes)
            np.add.reduce(lanes, axis=0, dtype=np.uint16, out=upper)
        self._columns[:, 1] -= self._columns[:, 2] << _BYTE  # modulo 2**16 again, now the sums of the lower bytes
        self._totals += self._columns


def _add(one: Triple, other: Triple) -> Triple:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]
