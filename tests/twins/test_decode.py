"""The framework's own decoder, held against the canonical decode on real and on made-up files."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from common.data.decoding import decode
from common.data.preprocessing.scan import read_files
from common.data.sources import Encoded, load_files
from common.spec import Data
from tests.common.data.preprocessing.made_up_scan import jpeg, png
from tests.twins.adapters import Twin

REAL = {"tomato-leaf-subset.tar": 700, "cifar10-jpeg.tar.xz": 300}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_a_thousand_real_images_are_the_canonical_pixels_to_the_last_bit(
    twin: Twin, test_data: Callable[[str], Path], name: str
) -> None:
    encoded = load_files(Data(source=str(test_data(name))), seed=0).train.encoded
    chosen: Encoded = encoded.take(np.linspace(0, len(encoded) - 1, REAL[name]).astype(np.int64))
    assert chosen.decodes_identically.all()
    for content in read_files(chosen):
        assert np.array_equal(twin.array(twin.decode.decode(content)), decode.decode(content, None))


@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0", "grey"])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (16, 16), (33, 50)])
def test_every_sampling_and_odd_size_is_decoded_alike(twin: Twin, sampling: str, size: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file, picture = io.BytesIO(), Image.fromarray(noise)
    if sampling == "grey":
        picture.convert("L").save(file, "JPEG")
    else:
        picture.save(file, "JPEG", subsampling=sampling)
    decoded = twin.array(twin.decode.decode(file.getvalue()))
    assert decoded.dtype == np.uint8
    assert np.array_equal(decoded, decode.decode(file.getvalue(), None))


@pytest.mark.parametrize(
    ("content", "plain"),
    [(jpeg(0), True), (jpeg(1, mode="L"), True), (jpeg(2, size_px=40), True), (png(3), False), (png(4, size_px=31), False)],
    ids=["plain", "grey", "plain of another size", "PNG", "PNG of another size"],
)
def test_any_file_becomes_its_canonical_pixels_at_the_size_wanted(twin: Twin, content: bytes, plain: bool) -> None:
    image = twin.array(twin.decode.image(content, plain, 24))
    assert image.shape == (24, 24, 3)
    assert np.array_equal(image, decode.decode(content, 24))


def test_every_way_to_write_a_plain_jpeg_is_decoded_alike(twin: Twin) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (40, 33, 3), dtype=np.uint8)
    for options in ({"progressive": True}, {"optimize": True}, {"restart_marker_rows": 1}, {"quality": 5}, {"quality": 100}):
        file = io.BytesIO()
        Image.fromarray(noise).save(file, "JPEG", **options)
        assert decode.examine(file.getvalue())[0].decodes_identically
        assert np.array_equal(twin.array(twin.decode.decode(file.getvalue())), decode.decode(file.getvalue(), None))


def test_whatever_counts_as_plain_is_decoded_alike_however_it_was_damaged(twin: Twin) -> None:
    draw = np.random.default_rng(2)
    plain = 0
    for number in range(300):
        damaged = bytearray(jpeg(number, size_px=int(draw.integers(8, 40))))
        for place in draw.integers(2, len(damaged) - 2, draw.integers(1, 4)):
            damaged[place] = draw.integers(256)
        try:
            header, pixels = decode.examine(bytes(damaged))
        except decode.BadImageError:
            continue
        if header.decodes_identically:
            plain += 1
            assert np.array_equal(twin.array(twin.decode.decode(bytes(damaged))), pixels)
    assert plain > 20  # so many changed values give another picture, and no flaw
