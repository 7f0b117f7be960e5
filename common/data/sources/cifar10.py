"""CIFAR-10 in its official forms: the binary and the python archive, or the folder that either unpacks to.

Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images. https://www.cs.toronto.edu/~kriz/cifar.html
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.data.dataset import DataRefused
from common.data.sources.downloads import Download
from common.data.sources.file_source import FileSource
from common.data.sources.pixel_arrays import PixelArrays

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_SIZE_PX = 32
_PIXELS = 3 * _SIZE_PX * _SIZE_PX
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")

_PICKLE_KEYS = ("batch_label", "labels", "data", "filenames")
_PICKLE_NAMES = ("numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype")

_Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]


BINARY = Download(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    num_bytes=170_052_171,
)
PYTHON = Download(
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    num_bytes=170_498_071,
)
FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")
"""Folders that the two archives unpack to."""

_DOWNLOAD_NAMES = ("cifar-10-batches-py-target_archive", "cifar-10-batches-py.tar.gz", PYTHON.name)
"""Names of the python archive in Keras, in earlier Keras, and in torchvision."""
_ALTERNATIVE = "give the file's path as data"


@dataclass(frozen=True)
class BatchFiles:
    """Paths of the batches in a tree, and their format."""

    files: tuple[str, ...]
    """Paths of five batches of training images and one of test images."""
    read: Callable[[bytes, str], _Batch]


def locate(cache: Path, *, binary: Download = BINARY, python: Download = PYTHON) -> Path:
    """Return the path of CIFAR-10 in the cache folder, either archive or its unpacked folder. A missing archive is fetched.

    It is copied from the folders of Keras and torch, or else downloaded.

    Args:
        cache: the cache folder.
        binary, python: the two archives.
    """
    for archive, folder in zip((binary, python), FOLDERS, strict=True):
        if archive.is_cached(cache / archive.name, alternative=_ALTERNATIVE):
            return cache / archive.name
        if (cache / folder).is_dir():
            return cache / folder
    if python.reuse_download(_DOWNLOAD_NAMES, cache / python.name):
        return cache / python.name
    binary.fetch(cache / binary.name, source="cifar10", alternative=_ALTERNATIVE)
    return cache / binary.name


def find_files(files: Sequence[str]) -> BatchFiles | None:
    """Find the official layout among the paths of a tree. None if it is not there."""
    present = set(files)
    for suffix, read in ((".bin", _read_binary), ("", read_pickle)):
        for file in files:
            path = PurePosixPath(file)
            if path.name == _BATCHES[-1] + suffix:
                batches = tuple((path.parent / (batch + suffix)).as_posix() for batch in _BATCHES)
                if present.issuperset(batches):
                    return BatchFiles(batches, read)
    return None


def read(tree: FileSource, layout: BatchFiles) -> PixelArrays:
    """Read all batches, in the official order."""
    batches: dict[str, _Batch] = {}
    for name, content in tree.read(layout.files):
        description = f"{name} in {tree.path}"
        batches[name] = _check_batch(layout.read(content(), description), description)
    ordered = [batches[name] for name in layout.files]
    planes = np.concatenate([data for data, _ in ordered]).reshape(-1, 3, _SIZE_PX, _SIZE_PX)
    labels = np.concatenate([labels for _, labels in ordered])
    num_test = len(ordered[-1][1])
    return PixelArrays(
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


def read_pickle(content: bytes, name: str) -> _Batch:
    """Read a pickle of {"data": uint8 [N, 3072], "labels": N integers, ...}, written by Python 2.

    Its opcodes are read, and not followed. So nothing that the file names is called.

    Args:
        content: the pickle.
        name: name of the file, for refusals.
    """
    values: dict[str, list[Any]] = {key: [] for key in _PICKLE_KEYS}
    key = ""
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name in ("GLOBAL", "INST") and (name_in_pickle := str(argument).replace(" ", ".")) not in _PICKLE_NAMES:
                raise ValueError(f"it asks for {name_in_pickle}")
            if opcode.name == "NEWTRUE":
                raise ValueError("it holds an array in Fortran's order")
            if argument in values:
                key = argument
            elif opcode.name in ("EMPTY_LIST", "BININT1", "BININT2", "BININT", "SHORT_BINSTRING", "BINSTRING"):
                values[key].append(argument)
        *kind, pixels = (value for value in values["data"] if isinstance(value, str))
        start_of_list, *labels = values["labels"]
        if "u1" not in kind or start_of_list is not None or not all(type(label) is int for label in labels):
            raise ValueError("an array that does not hold bytes, or labels that are no list of integers")
        data = np.frombuffer(pixels.encode("latin-1"), np.uint8).reshape(len(labels), -1)
        return data, np.array(labels, np.int64)
    except Exception as error:  # a hostile pickle can raise any type
        raise DataRefused(
            f"{name} is no CIFAR-10 batch. Received: a pickle that cannot be trusted ({error}). Fetch the official archive."
        ) from None


def _check_batch(batch: _Batch, name: str) -> _Batch:
    data, labels = batch
    if data.shape[1] != _PIXELS or not len(labels):
        raise DataRefused(f"{name} is no CIFAR-10 batch. Received: data of shape {data.shape}. Fetch the official archive.")
    if labels.min() < 0 or labels.max() >= len(CLASS_NAMES):
        raise DataRefused(
            f"{name} is no CIFAR-10 batch. Received: labels {labels.min()} to {labels.max()}, needed: 0 to 9. "
            "Fetch the official archive."
        )
    return batch
