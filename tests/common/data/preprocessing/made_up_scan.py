"""Packed image files for the tests of scans."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from common.data.decoding import decode
from common.data.preprocessing import scan
from common.data.preprocessing.sums import Sums
from common.data.sources import Encoded


def jpeg(seed: int, size_px: int = 24, mode: str = "RGB") -> bytes:
    """A plain JPEG of smooth noise."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((size_px, size_px)).convert(mode).save(file, "JPEG")
    return file.getvalue()


def png(seed: int, size_px: int = 24) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size_px, size_px, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def packed(path: Path, contents: Sequence[bytes], plain: Sequence[bool] | None = None) -> Encoded:
    """One file of these; without `plain`, all of them are plain JPEGs."""
    path.write_bytes(b"".join(contents))
    sizes = np.array([len(content) for content in contents], np.int64)
    flags = np.ones(len(contents), np.bool_) if plain is None else np.array(plain, np.bool_)
    return Encoded(path, np.cumsum(sizes) - sizes, sizes, flags)


def repeated(encoded: Encoded, times: int) -> Encoded:
    """The same files again and again, without a byte more on the disk."""
    return encoded.take(np.tile(np.arange(len(encoded)), times))


def oracle(encoded: Encoded, image_size: int) -> Sums:
    """The sums over all images, decoded one by one."""
    images = [decode.decode(encoded.content(index), image_size) for index in range(len(encoded))]
    return scan.array_sums(np.stack(images))
