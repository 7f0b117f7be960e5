"""Mean and standard deviation of each channel of a training split, from exact sums in the cache."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import NamedTuple

import filelock

from common.data import cache
from common.data.dataset import DatasetSplit
from common.data.decoding import decode
from common.data.preprocessing import scan
from common.data.preprocessing.sums import Sums
from common.machine.machine import available_cores

_VERSION = 1

Channels = tuple[float, float, float]


class Statistics(NamedTuple):
    """Statistics of the pixels of a split in units of 0..1, for red, green and blue."""

    mean: Channels
    std: Channels
    """Standard deviation of the population. The divisor is the number of pixels."""


def statistics(sums: Sums) -> Statistics:
    """Compute mean and standard deviation from integer sums. Only the last division and the root round.

    Raises:
        ValueError: the sums have no pixels.
    """
    if not sums.pixels:
        raise ValueError("sums must be over at least one pixel. Received: none.")
    scale = 255 * sums.pixels
    red, green, blue = (
        (value / scale, math.sqrt(sums.pixels * square - value * value) / scale)
        for value, square in zip(sums.values, sums.squares, strict=True)
    )
    return Statistics((red[0], green[0], blue[0]), (red[1], green[1], blue[1]))


def dataset_statistics(train: DatasetSplit, key: str, *, cache_dir: str | None = None) -> Statistics:
    """Return the statistics of a training split. If they are not stored, compute them in threads on all cores and store them.

    Processes that ask at the same time compute them once.

    Args:
        train: the training split. Its files are decoded if it is streamed.
        key: the data set's `content_hash`. It covers the pixels of the training split.
        cache_dir: the cache folder. None: $CONVTWINS_CACHE, else the user's cache folder.

    Raises:
        OSError: the cache folder cannot be written.
    """
    path = _path(key, cache_dir)
    sums = _read(path)
    if sums is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(path.with_suffix(".lock")):
            sums = _read(path)  # another process may have stored them while this one waited
            if sums is None:
                sums = _compute(train)
                store(sums, key, cache_dir=cache_dir)
    return statistics(sums)


def store(sums: Sums, key: str, *, cache_dir: str | None = None) -> Path:
    """Store the sums of a training split for `dataset_statistics`, see there.

    Returns:
        The path of the written file.
    """
    path = _path(key, cache_dir)
    record = {
        "version": _VERSION,
        "key": key,
        "decode": decode.RULE,
        "pixels": sums.pixels,
        "values": list(sums.values),
        "squares": list(sums.squares),
        **statistics(sums)._asdict(),
    }
    cache.write_record(path, record)
    return path


def _compute(train: DatasetSplit) -> Sums:
    if train.encoded is None:
        return scan.scan_array(train.images, available_cores())
    return scan.scan(train.encoded, train.images.shape[1], available_cores())


def _path(key: str, cache_dir: str | None) -> Path:
    identity = json.dumps({"key": key, "split": "train", "decode": decode.RULE})
    return cache.folder(cache_dir) / "statistics" / f"{hashlib.sha256(identity.encode()).hexdigest()}.json"


def _read(path: Path) -> Sums | None:
    """Read the stored sums. Returns None if they are missing, corrupt or changed."""
    try:
        record = cache.read_record(path, _VERSION)
        values, squares = record["values"], record["squares"]
        return Sums(record["pixels"], (values[0], values[1], values[2]), (squares[0], squares[1], squares[2]))
    except (*cache.CORRUPT_ENTRY_ERRORS, IndexError):
        return None
