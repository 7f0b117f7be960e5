"""CIFAR-10 in its official forms: the binary and the python archive, or the folder that one of them unpacks to.

Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images. https://www.cs.toronto.edu/~kriz/cifar.html
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

import filelock
import numpy as np
from numpy.typing import NDArray

from common.data.dataset import Arrays, DataRefused
from common.data.sources import reuse_download, unpickle
from common.data.sources.file_source import FileSource

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_SIZE_PX = 32
_PIXELS = 3 * _SIZE_PX * _SIZE_PX
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_TIMEOUT_SECONDS = 30

_Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True)
class Download:
    url: str
    sha256: str
    num_bytes: int
    folder: str
    """What it unpacks to."""

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


BINARY = Download(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    num_bytes=170_052_171,
    folder="cifar-10-batches-bin",
)
PYTHON = Download(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    num_bytes=170_498_071,
    folder="cifar-10-batches-py",
)

_ELSEWHERE = ("cifar-10-batches-py-target_archive", "cifar-10-batches-py.tar.gz", PYTHON.name)
"""The python archive as Keras names it, today and before, and as torchvision does."""


@dataclass(frozen=True)
class Layout:
    """Where the batches lie in a tree, and how they are read."""

    files: tuple[str, ...]
    """Five of training images, one of test images."""
    read: Callable[[bytes, str], _Batch]


def locate(cache: Path) -> Path:
    """CIFAR-10 in the cache folder, as an archive of either form or its unpacked folder; fetched where it is missing.

    From the folders of Keras and torch, where they have it, else from its official address.

    Raises:
        DataRefused: an archive differs from the official one, or cannot be downloaded.
    """
    for known in (BINARY, PYTHON):
        archive = cache / known.name
        if archive.is_file():
            with archive.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if sha256 != known.sha256:
                raise DataRefused(
                    f"{archive} is not the official archive. Received: SHA-256 {sha256}, needed: {known.sha256}. Delete it and "
                    "start again; to use it as it is, give its path as data."
                )
            return archive
        if (cache / known.folder).is_dir():
            return cache / known.folder
    if reuse_download.adopt(_ELSEWHERE, PYTHON.sha256, cache / PYTHON.name):
        return cache / PYTHON.name
    return _download(BINARY, cache)


def recognise(files: Sequence[str]) -> Layout | None:
    """The official layout in a tree's paths, or None."""
    present = set(files)
    for suffix, read in ((".bin", _read_binary), ("", unpickle.read_batch)):
        for file in files:
            path = PurePosixPath(file)
            if path.name == _BATCHES[-1] + suffix:
                batches = tuple((path.parent / (batch + suffix)).as_posix() for batch in _BATCHES)
                if present.issuperset(batches):
                    return Layout(batches, read)
    return None


def read(tree: FileSource, layout: Layout) -> Arrays:
    """All batches, in the official order."""
    batches: dict[str, _Batch] = {}
    for name, content in tree.read(layout.files):
        where = f"{name} in {tree.path}"
        batches[name] = _checked(layout.read(content(), where), where)
    in_order = [batches[name] for name in layout.files]
    planes = np.concatenate([data for data, _ in in_order]).reshape(-1, 3, _SIZE_PX, _SIZE_PX)
    labels = np.concatenate([labels for _, labels in in_order])
    num_test = len(in_order[-1][1])
    return Arrays(
        images=planes.transpose(0, 2, 3, 1),
        labels=labels,
        class_names=CLASS_NAMES,
        split_sizes={"train": len(labels) - num_test, "test": num_test},
    )


def _read_binary(content: bytes, name: str) -> _Batch:
    if len(content) % (1 + _PIXELS):
        raise DataRefused(
            f"{name} is no CIFAR-10 batch. Received: {len(content):,} bytes, no multiple of {1 + _PIXELS:,}. "
            "Fetch the official archive."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + _PIXELS)
    return records[:, 1:], records[:, 0].astype(np.int64)


def _checked(batch: _Batch, name: str) -> _Batch:
    data, labels = batch
    if data.shape[1] != _PIXELS or not len(labels):
        raise DataRefused(f"{name} is no CIFAR-10 batch. Received: data of shape {data.shape}. Fetch the official archive.")
    if labels.min() < 0 or labels.max() >= len(CLASS_NAMES):
        raise DataRefused(
            f"{name} is no CIFAR-10 batch. Received: labels {labels.min()} to {labels.max()}, needed: 0 to 9. "
            "Fetch the official archive."
        )
    return batch


def _download(known: Download, cache: Path) -> Path:
    import pooch  # here: it takes long to import, and is needed once in the life of a cache

    cache.mkdir(parents=True, exist_ok=True)
    downloader = cast(Any, pooch.HTTPDownloader(timeout=_TIMEOUT_SECONDS))
    try:
        with filelock.FileLock(cache / f"{known.name}.lock"):
            return Path(pooch.retrieve(known.url, f"sha256:{known.sha256}", known.name, cache, downloader=downloader))
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; another hash is a ValueError
        raise DataRefused(
            f"cifar10 cannot be downloaded. Received from {known.url}: {error} Fetch its {known.num_bytes:,} bytes (SHA-256 "
            f"{known.sha256}) by hand and put the file at {cache / known.name}, or give the file's path as data."
        ) from None
