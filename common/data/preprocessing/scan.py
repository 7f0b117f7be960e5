"""One pass over the images of a split for their sums: the parts that all engines share, and the scan in threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from common.data.dataset import Images
from common.data.decoding import decode
from common.data.decoding.encoded import Encoded
from common.data.preprocessing.sums import Adder, Sums

CHUNK_BYTES = 1 << 21
"""Bytes of files in one task: some hundredths of a second of work. A worker holds them in memory."""


def parts(encoded: Encoded, chunk_bytes: int = CHUNK_BYTES) -> list[Encoded]:
    """Divide the files of a split into groups of about `chunk_bytes`, in their order."""
    ends = np.cumsum(encoded.sizes)
    cuts = np.searchsorted(ends, np.arange(chunk_bytes, ends[-1], chunk_bytes)) + 1
    groups = np.split(np.arange(len(encoded)), np.unique(cuts))
    return [encoded.take(ids) for ids in groups if len(ids)]


def read_files(encoded: Encoded) -> Iterator[bytes]:
    """Read the files one after another. Bytes read through a map would count as this process's memory until it ends."""
    with encoded.path.open("rb") as file:
        for offset, size in zip(encoded.offsets.tolist(), encoded.sizes.tolist(), strict=True):
            yield os.pread(file.fileno(), size, offset)


def file_sums(encoded: Encoded, image_size: int) -> Sums:
    """Sum the canonical pixels of these files at this size."""
    adder = Adder()
    for content, decodes_identically in zip(read_files(encoded), encoded.decodes_identically.tolist(), strict=True):
        buffer = adder.next_buffer(3 * image_size * image_size)
        if not (decodes_identically and _decode_jpeg(content, image_size, buffer)):
            buffer[:] = decode.decode(content, image_size).reshape(-1)
    return adder.sums()


def array_sums(images: NDArray[np.uint8]) -> Sums:
    """Sum the pixels of uint8 [N, H, W, 3]."""
    adder = Adder()
    for image in images:
        adder.next_buffer(image.size)[:] = image.reshape(-1)
    return adder.sums()


def scan(encoded: Encoded, image_size: int, workers: int, *, chunk_bytes: int = CHUNK_BYTES) -> Sums:
    """Sum the pixels of a split of files, in threads. Reading, decoding and adding release the interpreter lock."""
    with ThreadPoolExecutor(workers, "scan") as pool:
        return sum(pool.map(file_sums, parts(encoded, chunk_bytes), repeat(image_size)), Sums())


def scan_array(images: Images, workers: int, *, chunk_bytes: int = CHUNK_BYTES) -> Sums:
    """Sum the pixels of uint8 [N, H, W, 3], in threads."""
    rows = max(1, chunk_bytes // images[:1].nbytes)

    def work(first: int) -> Sums:
        return array_sums(images[first : first + rows])  # in the thread: indexing reads images that are no array

    with ThreadPoolExecutor(workers, "scan") as pool:
        return sum(pool.map(work, range(0, len(images), rows)), Sums())


def _decode_jpeg(content: bytes, image_size: int, buffer: NDArray[np.uint8]) -> bool:
    """Decode a JPEG by libjpeg-turbo, whose pixels equal Pillow's. Returns False if it has another size or a flaw."""
    try:
        decoded = simplejpeg.decode_jpeg(content, buffer=buffer)
    except ValueError:  # also a larger image, which does not fit
        return False
    return decoded.shape == (image_size, image_size, 3)
