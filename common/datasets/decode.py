"""From the bytes of an image file to uint8 RGB pixels, by one rule for both frameworks."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, ImageOps

from common.datasets.dataset import MAX_NAMED, DataRefused
from common.preprocessing.cache import PixelFile
from common.spec import available_cores

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
)
MAX_PIXELS = 50_000_000

RULE = f"1, Pillow {PIL.__version__}"
"""Names how pixels come about. The number grows when `decode` or `resize` changes what it returns."""

_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_BATCH = 32  # images per task: a task costs about as much as the decoding of one small image

_Row = tuple[int, str, bytes]
_DecodedRow = tuple[int, str, NDArray[np.uint8] | DataRefused]


def decode(content: bytes, image_size: int | None) -> NDArray[np.uint8]:
    """Decode one image file.

    The format is told by the content, not by a suffix; of several frames the first one counts. The orientation that
    EXIF states is applied; transparency and colour profiles are dropped; of 16-bit grey the upper 8 bits are kept.

    Args:
        content: a JPEG, PNG, BMP, GIF, WebP, TIFF or PNM file.
        image_size: height and width to resize to, see `resize`; None keeps the image's own.

    Returns:
        uint8 [H, W, 3].

    Raises:
        DataRefused: no image, a torn one, or one of more than 50 megapixels. The message has no file name.
    """
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise DataRefused(f"{width} x {height} pixels, more than {MAX_PIXELS:,}")
            ImageOps.exif_transpose(image, in_place=True)
            return np.asarray(_resized(_rgb(image), image_size))
    except DataRefused:
        raise
    except PIL.UnidentifiedImageError:
        raise DataRefused("no image of a known format") from None
    except Exception as error:  # Pillow's readers raise a dozen types on torn or hostile files
        raise DataRefused(f"{type(error).__name__}: {error}") from None


def resize(images: NDArray[np.uint8], image_size: int | None) -> NDArray[np.uint8]:
    """Resize images as `decode` does: stretched to a square, bilinear, antialiased where they shrink (Pillow's rule).

    Args:
        images: uint8 [N, H, W, 3].
        image_size: new height and width; None, or the images' own, returns them unchanged.

    Returns:
        uint8 [N, image_size, image_size, 3].
    """
    if image_size is None or images.shape[1:3] == (image_size, image_size):
        return images
    return np.stack([np.asarray(_resized(Image.fromarray(image), image_size)) for image in images])


def decode_all(files: Iterable[_Row], *, num_files: int, image_size: int | None, pixels: PixelFile, source: object) -> None:
    """Decode files on all cores and write them to the cache, without ever holding all of them.

    Args:
        files: (row, name, content), in any order.
        num_files: how many files there are.
        image_size: as in `decode`.
        pixels: receives every image at its row.
        source: where the files come from, for refusals.

    Raises:
        DataRefused: naming the files that are no images, or whose sizes differ or are not square.
    """
    refused: list[str] = []
    first: tuple[str, tuple[int, ...]] | None = None
    for row, name, image in _decoded(files, image_size):
        if isinstance(image, DataRefused):
            refused.append(f"{name!r}: {image}")
            if len(refused) > MAX_NAMED:
                break
            continue
        height, width, _ = image.shape
        if first is None:
            if height != width:
                raise DataRefused(
                    f"images in {source} must be square. Received: {name!r} of {width} x {height} pixels. "
                    "Use `--set data.image_size=64` to resize all of them."
                )
            first = (name, image.shape)
            pixels.allocate(num_files, height)
        elif image.shape != first[1]:
            raise DataRefused(
                f"images in {source} must all be of one size. Received: {first[0]!r} of {first[1][1]} x {first[1][0]} pixels "
                f"and {name!r} of {width} x {height}. Use `--set data.image_size=64` to resize all of them."
            )
        pixels.write(row, image[np.newaxis])
    if refused:
        count = f"more than {MAX_NAMED}" if len(refused) > MAX_NAMED else str(len(refused))
        raise DataRefused(
            f"{source} holds files that cannot be read as images. Received {count}:\n  "
            + "\n  ".join(refused[:MAX_NAMED])
            + "\nReplace them or take them out."
        )


def _decoded(files: Iterable[_Row], image_size: int | None) -> Iterator[_DecodedRow]:
    """Decode in threads (Pillow works outside the interpreter lock), in the order of the files."""

    def work(batch: list[_Row]) -> list[_DecodedRow]:
        return [(row, name, _decoded_or_refused(content, image_size)) for row, name, content in batch]

    threads = available_cores()
    remaining = iter(files)
    pending: deque[Future[list[_DecodedRow]]] = deque()
    with ThreadPoolExecutor(threads, "decode") as pool:
        while batch := list(islice(remaining, _BATCH)):
            pending.append(pool.submit(work, batch))
            if len(pending) > 2 * threads:  # bounds what is held in memory
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def _decoded_or_refused(content: bytes, image_size: int | None) -> NDArray[np.uint8] | DataRefused:
    try:
        return decode(content, image_size)
    except DataRefused as refusal:
        return refusal


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F"):
        raise DataRefused(f"pixels of mode {image.mode} (32 bits in a channel) have no scale; use 8 or 16 bits")
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.mode == "P":  # a palette may hold transparent colours, which only RGBA takes without a warning
        image = image.convert("RGBA")
    return image.convert("RGB")


def _resized(image: Image.Image, image_size: int | None) -> Image.Image:
    if image_size is None or image.size == (image_size, image_size):
        return image
    # Two passes, the rows first: in one call Pillow chooses their order by the image's shape. See preprocessing.resize.
    across = image.resize((image_size, image.height), Image.Resampling.BILINEAR)
    return across.resize((image_size, image_size), Image.Resampling.BILINEAR)
