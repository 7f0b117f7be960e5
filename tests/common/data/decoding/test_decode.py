"""One rule from the bytes of an image to its pixels."""

import io

import numpy as np
import pytest
from PIL import Image

from common.data.decoding import decode
from common.data.sources import DataRefused
from tests.common.made_up_data import image, pixels, saved


def test_lossless_formats_give_the_exact_pixels():
    for image_format in ("PNG", "BMP", "PPM", "TIFF"):
        assert np.array_equal(decode.decode(image("a", 5, 7, image_format), None), pixels("a", 5, 7)), image_format


def test_a_jpeg_gives_what_pillow_decodes():
    content = image("a", 16, 16, "JPEG")
    assert np.array_equal(decode.decode(content, None), np.asarray(Image.open(io.BytesIO(content))))


def test_the_orientation_that_exif_states_is_applied():
    picture = Image.fromarray(pixels("a", 4, 6))
    content = saved(picture, exif=turned(6))  # the camera was turned: show it turned by 90 degrees clockwise
    assert np.array_equal(decode.decode(content, None), np.rot90(pixels("a", 4, 6), -1))


def smooth(width: int = 16, height: int = 24) -> Image.Image:
    """A picture that integers alone describe, of other sizes and directions than its neighbours."""
    rows, columns = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([rows * 9, columns * 13, 255 - rows * 4 - columns * 5], axis=2).astype(np.uint8))


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def with_alpha(picture: Image.Image) -> Image.Image:
    picture.putalpha(Image.fromarray(np.arange(24 * 16, dtype=np.uint16).reshape(24, 16).astype(np.uint8)))
    return picture


ODD = {
    "black_and_white": (lambda: saved(smooth().convert("1"), "PNG"), "fc7dcafadf82067e"),
    "grey": (lambda: saved(smooth().convert("L"), "PNG"), "6b56d2f1e394b125"),
    "grey_with_alpha": (lambda: saved(with_alpha(smooth().convert("L")), "PNG"), "6b56d2f1e394b125"),
    "grey_jpeg": (lambda: saved(smooth().convert("L"), "JPEG"), "2a02cb775784d544"),
    "colours_with_alpha": (lambda: saved(with_alpha(smooth()), "PNG"), "32513369c53391c4"),
    "palette": (lambda: saved(smooth().quantize(16), "PNG"), "f21c2222b607d039"),
    "palette_with_transparency": (lambda: saved(smooth().quantize(16), "PNG", transparency=3), "f21c2222b607d039"),
    "gif": (lambda: saved(smooth().quantize(16), "GIF", transparency=5), "f21c2222b607d039"),
    "cmyk_tiff": (lambda: saved(smooth().convert("CMYK"), "TIFF"), "32513369c53391c4"),
    "cmyk_jpeg": (lambda: saved(smooth().convert("CMYK"), "JPEG"), "6f90c3d5080656a3"),
    "turned_jpeg": (lambda: saved(smooth(), "JPEG", exif=turned(6)), "5c426d2ca4e00d92"),
    "mirrored_and_turned_png": (lambda: saved(smooth(), "PNG", exif=turned(5)), "0cee40dda17385bf"),
    "ycbcr_tiff": (lambda: saved(smooth().convert("YCbCr"), "TIFF"), "fb53bf62dd0bd351"),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_colours_become_the_same_rgb_everywhere(kind):
    make, expected = ODD[kind]
    decoded = decode.decode(make(), None)
    assert decoded.shape == ((16, 24, 3) if "turned" in kind else (24, 16, 3)) and decoded.dtype == np.uint8
    assert decode.sha256(decoded).hex()[:16] == expected


def test_transparency_is_dropped_and_not_blended():
    rgba = np.concatenate([pixels("a"), np.zeros((8, 8, 1), np.uint8)], axis=2)
    assert np.array_equal(decode.decode(saved(Image.fromarray(rgba)), None), pixels("a"))


def test_a_palette_with_transparent_colours_keeps_its_colours():
    picture = Image.fromarray(pixels("a")).quantize(8)
    expected = np.asarray(picture.convert("RGB"))
    assert np.array_equal(decode.decode(saved(picture, transparency=bytes([0, 128, 255])), None), expected)


def test_the_first_frame_counts():
    frames = [Image.fromarray(pixels(name)) for name in "ab"]
    content = saved(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    assert np.array_equal(decode.decode(content, None), pixels("a"))


def test_an_image_is_stretched_to_the_given_size():
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
