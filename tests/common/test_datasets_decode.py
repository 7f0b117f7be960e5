"""One rule from the bytes of an image to its pixels."""

import io

import numpy as np
import pytest
from PIL import Image

from common.datasets import DataRefused, decode
from tests.common.made_up_data import image, pixels


def saved(picture: Image.Image, image_format: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, image_format, **options)
    return file.getvalue()


def test_lossless_formats_give_the_very_pixels():
    for image_format in ("PNG", "BMP", "PPM", "TIFF"):
        assert np.array_equal(decode.decode(image("a", 5, 7, image_format), None), pixels("a", 5, 7)), image_format


def test_a_jpeg_gives_what_pillow_decodes():
    content = image("a", 16, 16, "JPEG")
    assert np.array_equal(decode.decode(content, None), np.asarray(Image.open(io.BytesIO(content))))


def test_the_orientation_that_exif_states_is_applied():
    picture = Image.fromarray(pixels("a", 4, 6))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it turned by 90 degrees clockwise
    assert np.array_equal(decode.decode(saved(picture, exif=exif), None), np.rot90(pixels("a", 4, 6), -1))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGBA", "CMYK"])
def test_every_mode_becomes_rgb(mode):
    content = saved(Image.fromarray(pixels("a", 6, 6)).convert(mode), "TIFF" if mode in ("CMYK", "PA") else "PNG")
    decoded = decode.decode(content, None)
    assert decoded.shape == (6, 6, 3) and decoded.dtype == np.uint8


def test_transparency_is_dropped_and_not_blended():
    rgba = np.concatenate([pixels("a"), np.zeros((8, 8, 1), np.uint8)], axis=2)
    assert np.array_equal(decode.decode(saved(Image.fromarray(rgba)), None), pixels("a"))


def test_a_palette_with_transparent_colours_keeps_its_colours():
    picture = Image.fromarray(pixels("a")).quantize(8)
    expected = np.asarray(picture.convert("RGB"))
    assert np.array_equal(decode.decode(saved(picture, transparency=bytes([0, 128, 255])), None), expected)


def test_of_16_bit_grey_the_upper_bits_are_kept():
    values = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)
    assert np.array_equal(decode.decode(saved(Image.fromarray(values)), None)[..., 0], (values >> 8).astype(np.uint8))


def test_32_bits_a_channel_are_refused():
    with pytest.raises(DataRefused, match="mode F"):
        decode.decode(saved(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"), None)


def test_the_first_frame_counts():
    frames = [Image.fromarray(pixels(name)) for name in "ab"]
    content = saved(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    assert np.array_equal(decode.decode(content, None), pixels("a"))


def test_an_image_is_stretched_to_the_size_asked_for():
    decoded = decode.decode(image("a", 20, 10), 8)
    expected = Image.fromarray(pixels("a", 20, 10)).resize((8, 8), Image.Resampling.BILINEAR)
    assert np.array_equal(decoded, np.asarray(expected))


def test_arrays_are_resized_by_the_same_rule_as_files():
    arrays = np.stack([pixels(name) for name in "abc"])
    assert np.array_equal(decode.resize(arrays, 5), np.stack([decode.decode(image(name), 5) for name in "abc"]))
    assert decode.resize(arrays, 8) is arrays


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"<svg/>", image("a")[:60]])
def test_what_is_no_image_is_refused(content):
    with pytest.raises(DataRefused):
        decode.decode(content, None)
