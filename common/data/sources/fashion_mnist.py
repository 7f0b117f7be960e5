"""Fashion-MNIST, and other data in the four IDX files of MNIST, plain or gzipped.

Xiao, Rasul, Vollgraf (2017), Fashion-MNIST: a Novel Image Dataset. https://arxiv.org/abs/1708.07747
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import cast

import numpy as np
from numpy.typing import NDArray

from common.data.dataset import DataRefused
from common.data.sources.downloads import Download
from common.data.sources.file_source import FileSource
from common.data.sources.pixel_arrays import PixelArrays

CLASS_NAMES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
NAME = "fashion_mnist"
FOLDER = "fashion-mnist"
"""Folder of the files in the cache folder."""

_SIZE_PX = 28
_PAD_PX = 2
_MAX_IMAGES = 200_000
_NUM_CLASSES = 10
_MAX_FILE_BYTES = (16 + _MAX_IMAGES * _SIZE_PX**2, 16 + _MAX_IMAGES)
"""Largest size of a file of images, and of one of labels, in bytes."""


_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"  # without TLS: the hashes alone say what arrived
DOWNLOADS = tuple(
    Download(f"{_ADDRESS}/{name}", sha256, num_bytes)
    for name, sha256, num_bytes in (
        ("train-images-idx3-ubyte.gz", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
        ("train-labels-idx1-ubyte.gz", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
        ("t10k-images-idx3-ubyte.gz", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
        ("t10k-labels-idx1-ubyte.gz", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
    )
)
"""The official files."""
CONTENT_SHA256 = (
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
"""SHA-256 of the unpacked files, in the same order. Other packages, e.g. Debian's, compress them differently."""
_DOWNLOAD_FOLDERS = ("fashion-mnist", "FashionMNIST/raw")
"""Folders of the files in Keras and torchvision."""
_ALTERNATIVE = "give the path of a folder of the four files as data"


def locate(cache: Path, *, downloads: Sequence[Download] = DOWNLOADS, content_sha256: Sequence[str] = CONTENT_SHA256) -> Path:
    """Return the folder of Fashion-MNIST in the cache folder. Missing files are fetched.

    They are copied from the folders of Keras and torch, or else downloaded.

    Args:
        cache: the cache folder.
        downloads: the official files.
        content_sha256: SHA-256 of each when unpacked.
    """
    folder = cache / FOLDER
    for download, sha256 in zip(downloads, content_sha256, strict=True):
        file = folder / download.name
        if file.with_suffix("").is_file() or _is_official(download, file, sha256):
            continue
        if not download.reuse_download([f"{download_folder}/{download.name}" for download_folder in _DOWNLOAD_FOLDERS], file):
            download.fetch(file, source=NAME, alternative=_ALTERNATIVE)
    return folder


def _is_official(download: Download, file: Path, sha256: str) -> bool:
    """Return whether a gzipped file is the official one, or another with the same content."""
    try:
        return download.is_cached(file, alternative=_ALTERNATIVE)
    except DataRefused:
        content = _decompress(file.read_bytes(), str(file), _MAX_FILE_BYTES[0])
        if hashlib.sha256(content).hexdigest() != sha256:
            raise
        return True


def find_files(files: Sequence[str]) -> list[str] | None:
    """Find the IDX files of training images and labels, then test images and labels, among the paths of a tree.

    They are in one folder, each plain or gzipped. None if they are not there.
    """
    present = set(files)
    for folder in sorted({PurePosixPath(file).parent for file in files}):
        candidates = [(str(folder / download.name), str(folder / download.name.removesuffix(".gz"))) for download in DOWNLOADS]
        paths = [next((candidate for candidate in names if candidate in present), None) for names in candidates]
        if None not in paths:
            return cast(list[str], paths)
    return None


def read(tree: FileSource, files: list[str], *, content_sha256: Sequence[str] = CONTENT_SHA256) -> PixelArrays:
    """Read all images, the training images first.

    A grey image of 28x28 pixels gets a border of two zero pixels, and its channel is repeated three times: [32, 32, 3]. Classes
    have the names of Fashion-MNIST if the files hold its bytes, compressed or not: those of `content_sha256`. Else they are the
    numbers 0 to 9.
    """
    read = {name: content() for name, content in tree.read(files)}
    descriptions = [f"{name} in {tree.path}" for name in files]
    contents = [
        _decompress(read[name], description, max_bytes)
        for name, description, max_bytes in zip(files, descriptions, _MAX_FILE_BYTES * 2, strict=True)
    ]
    arrays = [_parse(*parts) for parts in zip(contents, descriptions, (3, 1, 3, 1), strict=True)]
    for index in (0, 2):
        images, labels = arrays[index : index + 2]
        if images.shape[1:] != (_SIZE_PX, _SIZE_PX):
            raise _refusal(descriptions[index], f"images of {images.shape[2]} x {images.shape[1]} pixels, needed: 28 x 28")
        if len(images) != len(labels):
            raise _refusal(descriptions[index + 1], f"{len(labels):,} labels for {len(images):,} images")
        if labels.max() >= _NUM_CLASSES:
            raise _refusal(descriptions[index + 1], f"a label {labels.max()}, needed: 0 to 9")
    grey = np.pad(np.concatenate(arrays[::2]), ((0, 0), (_PAD_PX, _PAD_PX), (_PAD_PX, _PAD_PX)))
    official = [hashlib.sha256(content).hexdigest() for content in contents] == list(content_sha256)
    return PixelArrays(
        images=np.broadcast_to(grey[..., np.newaxis], (*grey.shape, 3)),
        labels=np.concatenate(arrays[1::2]).astype(np.int64),
        class_names=CLASS_NAMES if official else tuple(str(number) for number in range(_NUM_CLASSES)),
        split_sizes={"train": len(arrays[0]), "test": len(arrays[2])},
    )


def _parse(content: bytes, description: str, num_dimensions: int) -> NDArray[np.uint8]:
    """Read an IDX file of bytes: two zeros, the type 8, the number of dimensions, each dimension (big-endian), the values.

    http://yann.lecun.com/exdb/mnist describes the format.
    """
    header_bytes = 4 + 4 * num_dimensions
    if content[:4] != bytes((0, 0, 8, num_dimensions)) or len(content) < header_bytes:
        raise _refusal(description, f"a start of {content[:4].hex(' ') or 'nothing'}, needed: 00 00 08 {num_dimensions:02x}")
    shape = tuple(np.frombuffer(content, ">u4", num_dimensions, offset=4).tolist())
    if not 0 < shape[0] <= _MAX_IMAGES or len(content) - header_bytes != math.prod(shape):
        raise _refusal(
            description, f"{len(content) - header_bytes:,} values under a header that says {' x '.join(map(str, shape))}"
        )
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def _decompress(content: bytes, description: str, limit: int) -> bytes:
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        with gzip.open(io.BytesIO(content)) as file:
            content = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _refusal(description, f"a damaged gzip file ({error})") from None
    if len(content) > limit:
        raise _refusal(description, f"more than {limit:,} bytes when unpacked")
    return content


def _refusal(description: str, received: str) -> DataRefused:
    return DataRefused(f"{description} is no IDX file of this kind. Received: {received}. Fetch it again.")
