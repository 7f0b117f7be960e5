"""Splits: those of the data, those that are drawn by a seed, and the part of them that a limit keeps."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.data.dataset import MAX_NAMED, DataRefused, Examples, listed, listed_below

SPLITS = ("train", "validation", "test")
VERSION = 5
"""Raise it when a source is divided, hashed, refused or noted differently, here or in `image_folder.examples`. Divisions are
stored."""
Ids = NDArray[np.int64]


def draw(labels: NDArray[np.int64], count: int, *, seed: int, purpose: str) -> Ids:
    """Draw examples stratified by class: shares by the largest remainder, at least one of each class if there is room.

    The draw depends only on the raw output of the Philox generator. NumPy keeps it the same in all versions, on all machines.

    Args:
        labels: int64 [N], N at least 1.
        count: number of examples to draw, 0..N.
        seed: 0..2**63 - 1.
        purpose: name of the draw. Draws of different purpose are independent of each other.

    Returns:
        int64 [count], ascending.
    """
    stream = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    keys = np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(len(labels))
    by_class = np.lexsort((keys, labels))  # random order inside each class
    _, starts, sizes = np.unique(labels[by_class], return_index=True, return_counts=True)
    quotas = _quotas(sizes, count, lots=keys[by_class[starts]])
    place = np.arange(len(labels)) - np.repeat(starts, sizes)
    return np.sort(by_class[place < np.repeat(quotas, sizes)]).astype(np.int64)


def _quotas(sizes: NDArray[np.int64], count: int, lots: NDArray[np.uint64]) -> NDArray[np.int64]:
    """How many of `count` examples each class gives: in proportion to its size. The larger lot breaks ties.

    If there are at least as many examples as classes, each class gives at least one. The classes that gave most beyond their
    share give less instead.
    """
    total = int(sizes.sum())
    quotas = np.maximum(sizes * count // total, int(count >= len(sizes)))
    missing = count - int(quotas.sum())
    for _ in range(abs(missing)):
        owed = np.sign(missing) * (sizes * count - quotas * total)
        if missing < 0:
            owed = np.where(quotas > 1, owed, -total * total)
        quotas[np.lexsort((lots, owed))[-1]] += np.sign(missing)
    return quotas


@dataclass(frozen=True, eq=False)
class Division:
    """The examples of each split."""

    ids: Mapping[str, Ids]
    """For each of SPLITS, ascending places among the examples of the source."""
    content_hash: str
    """As in Dataset."""
    notes: list[str]


def divide(
    examples: Examples, *, name: str, image_size: int, seed: int, limit: int | None, drawn_part: float, allow_duplicates: bool
) -> Division:
    """Make the three splits of a data set. No pixel is needed.

    - Data without splits is divided 70/20/10 into train, validation and test.
    - A missing split is drawn from train: `drawn_part` of it. Each class has at least one example in each drawn split.
    - Draws are of different images. Exact copies go where the first of them goes.
    - Then `limit` training examples are kept, and the same part of validation and test. A note names classes that are left
      without an example in a split.

    Args:
        examples: all N of the source.
        name: name of the source, for refusals.
        image_size: size of the images in training, for the hash.
        seed: 0..2**63 - 1.
        limit: number of training examples to keep. None keeps all.
        drawn_part: above 0, at most 0.5.
        allow_duplicates: whether the source's own splits may share images.

    Raises:
        DataRefused: a class is too small to divide, or two splits share images.
    """
    first_equal = _first_equal(examples.pixel_sha256)
    ids, notes = _complete(examples, first_equal, name, seed, drawn_part)
    notes += _duplicates(examples, first_equal, ids, name, allow_duplicates)
    whole = ids
    if limit is not None:
        ids, note = _limited(examples.labels, ids, seed, limit)
        notes.append(note)
    notes += _in_two_splits(first_equal, ids)
    notes += _absent(examples, whole, ids, limit)
    return Division(ids, _content_hash(examples, ids, image_size), notes)


CAUTION = "Caution: "
"""Begins the notes that tell what is doubtful, and what to do."""
IN_TWO_CLASSES = "images that stand in more than one class, equal pixel for pixel"
"""Begins the note on labels that contradict each other."""
IN_TWO_SPLITS = "images too, equal pixel for pixel"
"""Ends the notes on images of one split that stand in another too."""


def _first_equal(pixel_sha256: NDArray[np.uint8]) -> Ids:
    """For each example, the first one with the same pixels: itself if no earlier one is a copy."""
    rows = np.ascontiguousarray(pixel_sha256).view(f"V{pixel_sha256.shape[1]}").ravel()
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def _complete(
    examples: Examples, first_equal: Ids, name: str, seed: int, drawn_part: float
) -> tuple[dict[str, Ids], list[str]]:
    ids: dict[str, Ids] = {}
    start = 0
    for split, size in examples.split_sizes.items():
        ids[split] = np.arange(start, start + size, dtype=np.int64)
        start += size
    if "all" in ids:
        ids["train"] = ids.pop("all")
        parts = {"validation": 0.2, "test": 0.1}
        notes = [f"train, validation and test: 70/20/10 of {start:,} examples, drawn by class with seed {seed}"]
    else:
        parts = {split: drawn_part for split in SPLITS if split not in ids}
        notes = [
            f"{split}: {100 * drawn_part:g} % of the {len(ids['train']):,} training examples, drawn by class with seed {seed}, "
            f"as the data has no {split} split"
            for split in parts
        ]
    whole = ids["train"]
    _, first = np.unique(first_equal[whole], return_index=True)
    left = different = whole[np.sort(first)]
    if parts:
        _refuse_small_classes(examples, name, different, needed=1 + len(parts))
    for split, part in parts.items():
        count = max(math.floor(len(different) * part + 0.5), len(np.unique(examples.labels[left])))
        drawn = left[draw(examples.labels[left], count, seed=seed, purpose=f"split {split}")]
        ids[split] = whole[np.isin(first_equal[whole], first_equal[drawn])]
        left = np.setdiff1d(left, drawn, assume_unique=True)
    return {**ids, "train": whole[np.isin(first_equal[whole], first_equal[left])]}, notes


def _refuse_small_classes(examples: Examples, name: str, different: Ids, needed: int) -> None:
    counts = np.bincount(examples.labels[different], minlength=len(examples.class_names))
    small = [f"{examples.class_names[label]!r} ({counts[label]})" for label in np.flatnonzero(counts < needed)]
    if small:
        raise DataRefused(
            f"{name} cannot be divided: each class needs at least {needed} different training images. Received fewer in "
            f"{listed(small)}. Add images, or lay the data out as train/, validation/ and test/."
        )


def _duplicates(examples: Examples, first_equal: Ids, ids: Mapping[str, Ids], name: str, allow: bool) -> list[str]:
    """Notes on images of equal pixels. Raises DataRefused if splits share images and must not."""
    groups = {split: np.unique(first_equal[ids[split]]) for split in SPLITS}
    notes: list[str] = []
    repeated = {split: len(ids[split]) - len(groups[split]) for split in SPLITS}
    if any(repeated.values()):
        counts = ", ".join(f"{count:,} of {split}" for split, count in repeated.items() if count)
        notes.append(f"examples whose pixels equal those of an earlier one of their split: {counts}")
    every = np.unique(np.concatenate([ids[split] for split in SPLITS]))
    labels = np.unique(np.stack([first_equal[every], examples.labels[every]]), axis=1)[0]
    if conflicts := int(np.sum(np.unique(labels, return_counts=True)[1] > 1)):
        notes.append(f"{IN_TWO_CLASSES}: {conflicts:,}")
    group, num_splits = np.unique(np.concatenate(list(groups.values())), return_counts=True)
    shared = group[num_splits > 1]
    if len(shared) and not allow:
        pairs = [
            " = ".join(_named(examples, int(row)) for row in np.flatnonzero(first_equal == each)) for each in shared[:MAX_NAMED]
        ]
        images = "images that are" if len(shared) > 1 else "image that is"
        raise DataRefused(
            f"{name} has {len(shared):,} {images} in more than one split, equal pixel for pixel. "
            + listed_below(pairs, len(shared))
            + "\nKeep each in one split, or allow them with `--set data.duplicates=allow`."
        )
    return notes


def _in_two_splits(first_equal: Ids, ids: Mapping[str, Ids]) -> list[str]:
    """A note for each two splits that share images, of the examples that are kept."""
    notes: list[str] = []
    for other, split in itertools.combinations(SPLITS, 2):
        if seen := int(np.isin(first_equal[ids[split]], first_equal[ids[other]]).sum()):
            images = "training" if other == "train" else other
            notes.append(f"{seen:,} of {len(ids[split]):,} {split} images are {images} {IN_TWO_SPLITS}")
    return notes


def _named(examples: Examples, row: int) -> str:
    return f"example {row:,}" if examples.names is None else repr(examples.names[row])


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


def _absent(examples: Examples, whole: Mapping[str, Ids], kept: Mapping[str, Ids], limit: int | None) -> list[str]:
    """Notes on classes without an example in a split: the data's own, and those that the limit has made."""
    notes: list[str] = []
    number = len(examples.class_names)
    for split in SPLITS:
        before, now = (np.bincount(examples.labels[ids[split]], minlength=number) == 0 for ids in (whole, kept))
        for absent, said in ((before, f"{split} has"), (now & ~before, f"limit {limit or 0:,} leaves {split} with")):
            names = [repr(examples.class_names[label]) for label in np.flatnonzero(absent)]
            if names:
                notes.append(f"{said} no example of {len(names):,} of the {number:,} classes: {listed(names)}")
    return notes


def _content_hash(examples: Examples, ids: Mapping[str, Ids], image_size: int) -> str:
    identity = {
        "image_size": image_size,
        "class_names": list(examples.class_names),
        **{
            split: [_sha256(examples.pixel_sha256[ids[split]]), _sha256(examples.labels[ids[split]].astype("<i8"))]
            for split in SPLITS
        },
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _sha256(values: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
