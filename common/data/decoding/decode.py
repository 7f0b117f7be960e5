"""From the bytes of an image file to uint8 RGB pixels, by one rule for both frameworks."""

from __future__ import annotations

import errno
import hashlib
import io
import re
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, ImageOps

from common.data import threads
from common.data.dataset import BadImageError
from common.data.decoding import other_formats
from common.data.decoding.encoded import Encoded
from common.data.pixel_cache import PixelFile

SUFFIXES = {
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), "JPEG"),
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    **dict.fromkeys((".ppm", ".pgm", ".pbm", ".pnm"), "PPM"),
    ".png": "PNG",
    ".bmp": "BMP",
    ".gif": "GIF",
    ".webp": "WEBP",
}
"""Format of an image file, by its suffix in lower case."""
MAX_PIXELS = 50_000_000

EMPTY = "empty"
NO_SUFFIX = "no image suffix"
UNREAD = "unread format"
UNREADABLE = "unreadable"
NO_IMAGE = "not an image"
WRONG_SUFFIX = "wrong suffix"
TOO_LARGE = "more than 50 megapixels"
TOO_DEEP = "more than 8 bits a channel"
DAMAGED = "truncated or damaged"
OUTSIDE = "outside of the layout"
PROBLEMS = (EMPTY, NO_SUFFIX, UNREAD, UNREADABLE, NO_IMAGE, WRONG_SUFFIX, TOO_LARGE, TOO_DEEP, DAMAGED, OUTSIDE)
"""Reasons why a file is no usable image."""

RULE = f"2, Pillow {PIL.__version__}"
"""Version of the pixels. Raise the number when `decode` or `resize` returns other pixels."""

# Only RGBA takes a palette with transparent colours without a warning. Premultiplied grey has no other way.
_RGB_VIA = {"P": "RGBA", "La": "LA"}
_END_OF_JPEG = b"\xff\xd9"
_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended and progressive Huffman coding, which every decoder has
_MAX_DETAIL = 200
_NO_MEMORY = re.compile(r"out of memory|(insufficient|not enough) memory|memory allocation", re.IGNORECASE)


@dataclass(frozen=True)
class Header:
    """The header of an image file."""

    format: str
    mode: str
    width_px: int
    """Width in pixels, after the rotation of EXIF."""
    height_px: int
    decodes_identically: bool
    """Whether it is a JPEG that every libjpeg decoder decodes to the canonical pixels."""


def decode(content: bytes, image_size: int | None) -> NDArray[np.uint8]:
    """Decode one image file.

    The content decides the format, not the suffix. The first of several frames counts. The orientation of EXIF is applied.
    Pillow converts the result to RGB: grey is repeated, a palette is looked up, CMYK is inverted without a profile.
    Transparency and colour profiles are dropped.

    Args:
        content: a JPEG, PNG, BMP, GIF, WebP, TIFF or PNM file.
        image_size: height and width to resize to, see `resize`. None keeps the image's own.

    Returns:
        uint8 [H, W, 3].

    Raises:
        BadFile: no image, a damaged one, one of another format, of more than 50 megapixels or of more than 8 bits a channel.
    """
    with _open_image(content) as image:
        return np.asarray(_resize_image(_rgb(image), image_size))


def examine(content: bytes) -> tuple[Header, NDArray[np.uint8]]:
    """Decode one image file as `decode` does, at its own size. Returns its header too.

    simplejpeg, a strict libjpeg-turbo that takes each warning for an error, decodes a JPEG that every decoder decodes
    identically. Its pixels equal those of `decode`. Pillow decodes any other file, also if simplejpeg refuses it.
    """
    with _open_image(content) as image:
        image_format, mode = _format(image), image.mode
        pixels = _decode_jpeg(content, image.size) if _may_decode_identically(image, content) else None
        decodes_identically = pixels is not None
        if pixels is None:
            pixels = np.asarray(_rgb(image))
    height, width, _ = pixels.shape
    return Header(image_format, mode, width, height, decodes_identically), pixels


def resize(images: NDArray[np.uint8], image_size: int | None) -> NDArray[np.uint8]:
    """Resize images as `decode` does: stretched to a square, bilinear, antialiased if they shrink (Pillow's rule).

    Args:
        images: uint8 [N, H, W, 3].
        image_size: new height and width. None, or the images' own size, returns them unchanged.

    Returns:
        uint8 [N, image_size, image_size, 3].
    """
    if image_size is None or images.shape[1:3] == (image_size, image_size):
        return images
    return np.stack([np.asarray(_resize_image(Image.fromarray(image), image_size)) for image in images])


def sha256(pixels: NDArray[np.uint8]) -> bytes:
    """Return the SHA-256 of the shape and the values of one image. It is equal only for exact duplicates."""
    digest = hashlib.sha256(repr(pixels.shape).encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()


def decode_all(
    encoded: Encoded, image_size: int | None, pixels: PixelFile, *, limits: threads.ThreadLimits | None = None
) -> None:
    """Decode files on all cores and write them to the cache in their order. Few of them are in memory at once."""

    def decoded(row: int) -> NDArray[np.uint8]:
        return decode(encoded.content(row), image_size)

    with ignore_warnings():
        images = threads.ordered(decoded, range(len(encoded)), num_bytes=lambda _: pixels.row_bytes, limits=limits)
        for row, image in enumerate(images):
            pixels.write(row, image[np.newaxis])


@contextmanager
def ignore_warnings() -> Generator[None]:
    """Ignore Pillow's warnings of odd metadata, in all threads. It only matters whether the pixels can be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _open_image(content: bytes) -> Generator[Image.Image]:
    if not content:
        raise BadImageError(EMPTY)
    try:
        with Image.open(io.BytesIO(content), formats=sorted(set(SUFFIXES.values()))) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise BadImageError(TOO_LARGE, f"{width} x {height} pixels")
            if _is_deep(image):
                raise BadImageError(TOO_DEEP, f"{_format(image)} of mode {image.mode}")
            yield image
    except (BadImageError, MemoryError):  # a lack of memory is no property of the file
        raise
    except PIL.UnidentifiedImageError:
        advice = other_formats.by_content(content)
        raise (BadImageError(UNREAD, advice) if advice else BadImageError(NO_IMAGE)) from None
    except Image.DecompressionBombError:  # Pillow's own limit, which it checks before it gives the size
        raise BadImageError(TOO_LARGE) from None
    except Exception as error:  # Pillow's readers raise a dozen types on damaged or hostile files
        _raise_lack_of_memory(error)
        raise BadImageError(DAMAGED, " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_DETAIL]) from None


def _raise_lack_of_memory(error: Exception) -> None:
    """Raise MemoryError if the message of `error` means it, e.g. Pillow's `out of memory error when reading image file`."""
    if getattr(error, "errno", None) == errno.ENOMEM or _NO_MEMORY.search(str(error)):
        raise MemoryError(str(error)) from error


def _format(image: Image.Image) -> str:
    return "JPEG" if image.format == "MPO" else image.format or ""  # MPO: a JPEG followed by others


def _is_deep(image: Any) -> bool:
    """Return whether a channel has more than 8 bits. Pillow shows some of these files as 8 bits."""
    if image.mode[0] in "IF":
        return True
    if image.format == "TIFF":
        return max(image.tag_v2.get(258, (1,))) > 8  # BitsPerSample
    details = image.tile[0].args if image.tile else ""
    if image.format == "PPM" and isinstance(details, tuple):
        return details[1] > 255  # its largest value
    return image.format == "PNG" and ";16" in str(details)


def _may_decode_identically(image: Any, content: bytes) -> bool:
    """Return whether every libjpeg may decode a JPEG identically: upright, complete, YCbCr or grey, Huffman-coded.

    All versions of libjpeg must interpolate its chroma sampling in the same way.
    """
    if _format(image) != "JPEG" or image.getexif().get(0x0112, 1) != 1:
        return False
    if not content.endswith(_END_OF_JPEG) or not _FRAMES & set(_markers(content)):
        return False
    if len(image.layer) == 1:
        return True
    transform = image.info.get("adobe_transform", 1 if "jfif" in image.info else None)
    ids, samplings = [layer[0] for layer in image.layer], [layer[1:3] for layer in image.layer]
    is_ycbcr = len(ids) == 3 and (transform == 1 or (transform is None and ids == [1, 2, 3]))
    return is_ycbcr and samplings[0] in ((1, 1), (2, 1), (2, 2)) and samplings[1:] == [(1, 1), (1, 1)]


def _decode_jpeg(content: bytes, size: tuple[int, int]) -> NDArray[np.uint8] | None:
    """Decode a JPEG. Returns None if it has any flaw or another (width, height)."""
    try:
        pixels = simplejpeg.decode_jpeg(content)
    except ValueError as error:
        _raise_lack_of_memory(error)
        return None
    return pixels if pixels.shape[1::-1] == size else None


def _markers(content: bytes) -> Iterator[int]:
    """Yield the markers of a JPEG's segments up to its first scan."""
    position = 2
    while position + 4 <= len(content) and content[position] == 0xFF:
        marker = content[position + 1]
        yield marker
        if marker == 0xDA:
            return
        position += 2 + int.from_bytes(content[position + 2 : position + 4], "big")


def _rgb(image: Image.Image) -> Image.Image:
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode in _RGB_VIA:
        image = image.convert(_RGB_VIA[image.mode])
    return image.convert("RGB")


def _resize_image(image: Image.Image, image_size: int | None) -> Image.Image:
    if image_size is None or image.size == (image_size, image_size):
        return image
    # Two passes, the rows first: in one call, the image's shape would decide their order.
    stretched = image.resize((image_size, image.height), Image.Resampling.BILINEAR)
    return stretched.resize((image_size, image_size), Image.Resampling.BILINEAR)
