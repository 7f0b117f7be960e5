"""Sums of bytes for each channel, compared with NumPy's 64-bit integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.data.preprocessing.sums import BLOCK_BYTES, Adder, Sums, from_array

Pixels = NDArray[np.uint8]


def expected(*images: Pixels) -> Sums:
    flat = np.concatenate([image.reshape(-1, 3) for image in images]).astype(np.int64)
    return from_array(np.stack([flat.sum(axis=0), (flat**2).sum(axis=0)]), len(flat))


def added(*images: Pixels) -> Sums:
    adder = Adder()
    for image in images:
        adder.next_buffer(image.size)[:] = image.reshape(-1)
    return adder.sums()


def noise(pixels: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (pixels, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "pixels", [1, 2, 7, 1023, 1024, 1025, BLOCK_BYTES // 3 - 1, BLOCK_BYTES // 3, BLOCK_BYTES // 3 + 1, 700_001]
)
def test_sums_are_exact_for_any_number_of_pixels(pixels: int) -> None:
    assert added(noise(pixels)) == expected(noise(pixels))


@pytest.mark.parametrize("value", [0, 1, 127, 128, 254, 255])
def test_no_lane_overflows_with_any_value_in_every_byte(value: int) -> None:
    images = [np.full((300, 300, 3), value, np.uint8)] * 7
    assert added(*images) == expected(*images)


def test_each_channel_is_its_own() -> None:
    image = np.zeros((513, 511, 3), np.uint8)
    image[..., 0], image[..., 2] = 200, 3
    count = 513 * 511
    assert added(image) == Sums(count, (200 * count, 0, 3 * count), (200**2 * count, 0, 9 * count))


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=12), st.integers(0, 2**32))
def test_images_of_any_sizes_add_up_to_the_same_as_one(sizes: list[int], seed: int) -> None:
    images = [noise(size, seed + index) for index, size in enumerate(sizes)]
    parts = sum((added(image) for image in images), Sums())
    assert added(*images) == parts == expected(*images)


def test_an_image_larger_than_the_buffer_finds_room() -> None:
    images = [noise(5), noise(2 * BLOCK_BYTES), noise(11)]
    assert added(*images) == expected(*images)


def test_sums_may_be_asked_for_again_after_more_pixels() -> None:
    adder = Adder()
    adder.next_buffer(30)[:] = noise(10).reshape(-1)
    assert adder.sums() == expected(noise(10))
    adder.next_buffer(60)[:] = noise(20).reshape(-1)
    assert adder.sums() == expected(noise(10), noise(20))


def test_no_pixels_have_zero_sums() -> None:
    assert Adder().sums() == Sums()
