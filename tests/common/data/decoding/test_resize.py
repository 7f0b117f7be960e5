"""The rule of resizing images, written again in integers."""

import numpy as np
import pytest

from common.data.decoding import decode

HALF, UNIT = 2**21, 2**22


@pytest.mark.parametrize(
    ("height", "width", "to_px"),
    [(32, 32, 64), (256, 256, 64), (64, 64, 63), (37, 91, 32), (8, 8, 32), (1, 5, 3), (300, 7, 11), (99, 7, 34)],
)
def test_resizing_is_bilinear_antialiased_rows_first_with_weights_of_22_bits(height: int, width: int, to_px: int) -> None:
    image = np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)
    across = one_pass(weights(width, to_px), image.transpose(1, 0, 2)).transpose(1, 0, 2)
    both = one_pass(weights(height, to_px), across)
    assert np.array_equal(both, decode.resize(image[np.newaxis], to_px)[0])


def weights(from_px: int, to_px: int) -> np.ndarray:
    """[to_px, from_px] of whole numbers: every source pixel's part in every output pixel, in units of 2**-22."""
    scale = from_px / to_px
    support = max(scale, 1.0)
    found = np.zeros((to_px, from_px), np.int64)
    for index in range(to_px):
        center = (index + 0.5) * scale
        first, stop = max(int(center - support + 0.5), 0), min(int(center + support + 0.5), from_px)
        taps = np.maximum(1.0 - np.abs((np.arange(first, stop) - center + 0.5) * (1.0 / support)), 0.0)
        total = float(np.add.accumulate(taps)[-1])  # one after another, as Pillow adds
        found[index, first:stop] = np.floor(taps * (1.0 / total) * UNIT + 0.5)
    return found


def one_pass(matrix: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    summed = np.einsum("oi,ijc->ojc", matrix, pixels.astype(np.int64))
    return np.clip((summed + HALF) >> 22, 0, 255).astype(np.uint8)
