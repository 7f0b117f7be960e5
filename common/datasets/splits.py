"""Seeded draws: the splits that the data itself lacks, and the part of it that a limit keeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from common.datasets.dataset import DataRefused, Dataset, Split, listed
from common.preprocessing.cache import Decoded

SPLITS = ("train", "validation", "test")
Ids = NDArray[np.int64]


def draw(labels: NDArray[np.int64], count: int, *, seed: int, purpose: str) -> Ids:
    """Draw examples so that each class gives its share, to within one example.

    The draw rests on nothing but the raw output of the Philox generator, which NumPy keeps the same in all versions
    and on all machines.

    Args:
        labels: int64 [N], N at least 1.
        count: number of examples to draw, 0..N.
        seed: 0..2**63 - 1.
        purpose: names the draw; draws of different purpose are independent of each other.

    Returns:
        int64 [count], ascending.
    """
    stream = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    keys = np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(len(labels))
    by_class = np.lexsort((keys, labels))  # in each class at random
    quota = np.arange(len(labels) + 1, dtype=np.int64) * count // len(labels)
    return np.sort(by_class[np.diff(quota) > 0]).astype(np.int64)


def divide(decoded: Decoded, *, name: str, seed: int, limit: int | None) -> Dataset:
    """Make the three splits of a dataset.

    Data that is not divided at all is divided 70/20/10 into train, validation and test; a split that divided data
    lacks is drawn from train, a tenth of it. Then `limit` training examples are kept, and as large a part of
    validation and test.

    Raises:
        DataRefused: a class is too small to be divided.
    """
    ids, notes = _complete(decoded, name, seed)
    if limit is not None:
        ids, note = _limited(decoded.labels, ids, seed, limit)
        notes.append(note)
    splits = {split: _split(decoded, ids[split]) for split in SPLITS}
    return Dataset(
        name=name,
        class_names=decoded.class_names,
        content_hash=_content_hash(decoded, ids),
        image_size=decoded.images.shape[1],
        notes=tuple(notes),
        **splits,
    )


def _complete(decoded: Decoded, name: str, seed: int) -> tuple[dict[str, Ids], list[str]]:
    ids: dict[str, Ids] = {}
    first = 0
    for split, size in decoded.split_sizes.items():
        ids[split] = np.arange(first, first + size, dtype=np.int64)
        first += size
    if "all" in ids:
        ids["train"] = ids.pop("all")
        percent = {"validation": 20, "test": 10}
        notes = [f"train, validation and test: 70/20/10 of {first:,} examples, drawn by class with seed {seed}"]
    else:
        percent = {split: 10 for split in SPLITS if split not in ids}
        notes = [
            f"{split}: a tenth of the {len(ids['train']):,} training examples, drawn by class with seed {seed}, "
            f"as the data has no {split} split"
            for split in percent
        ]
    train = ids["train"]
    if percent:
        _refuse_small_classes(decoded, name, train, needed=1 + len(percent))
    num_whole = len(train)
    for split, part in percent.items():
        count = max(1, (num_whole * part + 50) // 100)
        ids[split] = train[draw(decoded.labels[train], count, seed=seed, purpose=f"split {split}")]
        train = np.setdiff1d(train, ids[split], assume_unique=True)
    return {**ids, "train": train}, notes


def _refuse_small_classes(decoded: Decoded, name: str, train: Ids, needed: int) -> None:
    counts = np.bincount(decoded.labels[train], minlength=len(decoded.class_names))
    small = [f"{decoded.class_names[label]!r} ({counts[label]})" for label in np.flatnonzero(counts < needed)]
    if small:
        raise DataRefused(
            f"{name} cannot be divided: each class needs at least {needed} training images. Received fewer in "
            f"{listed(small)}. Add images, or lay the data out as train/, validation/ and test/."
        )


def _limited(labels: NDArray[np.int64], ids: dict[str, Ids], seed: int, limit: int) -> tuple[dict[str, Ids], str]:
    num_train = len(ids["train"])
    if limit >= num_train:
        return ids, f"limit {limit:,} reaches all {num_train:,} training examples"
    kept: dict[str, Ids] = {}
    for split in SPLITS:
        whole = ids[split]
        count = max(1, (2 * len(whole) * limit + num_train) // (2 * num_train))  # rounded half up
        kept[split] = whole[draw(labels[whole], count, seed=seed, purpose=f"limit {split}")]
    sizes = ", ".join(f"{len(kept[split]):,} of {len(ids[split]):,} {split}" for split in SPLITS)
    return kept, f"limit {limit:,} keeps {sizes} examples, drawn by class with seed {seed}"


def _split(decoded: Decoded, ids: Ids) -> Split:
    first, last = int(ids[0]), int(ids[-1]) + 1
    if last - first == len(ids):  # one stretch: stays a view, so that a memory map stays shared
        return Split(images=decoded.images[first:last], labels=decoded.labels[first:last])
    images, labels = decoded.images[ids], decoded.labels[ids]
    images.flags.writeable = labels.flags.writeable = False
    return Split(images=images, labels=labels)


def _content_hash(decoded: Decoded, ids: Mapping[str, Ids]) -> str:
    identity = {
        "pixels": decoded.pixels_sha256,
        "shape": list(decoded.images.shape),
        "labels": _sha256(decoded.labels),
        "class_names": list(decoded.class_names),
        "ids": {split: _sha256(ids[split]) for split in SPLITS},
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _sha256(integers: NDArray[np.int64]) -> str:
    return hashlib.sha256(integers.astype("<i8").tobytes()).hexdigest()
