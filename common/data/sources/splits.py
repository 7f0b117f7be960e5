"""Splits: the data's own, splits drawn by a seed, and the part of them that a limit keeps."""

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

from common.data.dataset import MAX_NAMED, DataRefused, LabeledExamples, join_names, list_faults
from common.data.notes import in_two_classes, in_two_splits
from common.errors import Setting

SPLITS = ("train", "validation", "test")
VERSION = 6
"""Version of stored splits. Raise it when a source is divided, hashed, refused or noted differently, here or in
`image_folder.examples`."""
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
    position = np.arange(len(labels)) - np.repeat(starts, sizes)
    return np.sort(by_class[position < np.repeat(quotas, sizes)]).astype(np.int64)


def _quotas(sizes: NDArray[np.int64], count: int, lots: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return how many of `count` examples each class gives, in proportion to its size. The larger lot breaks ties.

    If there are at least as many examples as classes, each class gives at least one. The classes that gave most beyond their
    share give less instead.
    """
    total = int(sizes.sum())
    quotas = np.maximum(sizes * count // total, int(count >= len(sizes)))
    missing = count - int(quotas.sum())
    for _ in range(abs(missing)):
        remainders = np.sign(missing) * (sizes * count - quotas * total)
        if missing < 0:
            remainders = np.where(quotas > 1, remainders, -total * total)
        quotas[np.lexsort((lots, remainders))[-1]] += np.sign(missing)
    return quotas


@dataclass(frozen=True, eq=False)
class SplitAssignment:
    """The examples of each split."""

    ids: Mapping[str, Ids]
    """Ids of each of SPLITS: ascending positions among the examples of the source."""
    content_hash: str
    """Hash as in `Dataset.content_hash`."""
    notes: list[str]


def divide(
    examples: LabeledExamples,
    *,
    name: str,
    image_size: int,
    seed: int,
    limit: int | None,
    drawn_part: float,
    allow_duplicates: bool,
) -> SplitAssignment:
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
    """
    first_equal = _first_equal(examples.pixel_sha256)
    ids, notes = _complete_splits(examples, first_equal, name, seed, drawn_part)
    notes += _duplicate_notes(examples, first_equal, ids, name, allow_duplicates)
    unlimited = ids
    if limit is not None:
        ids, note = _apply_limit(examples.labels, ids, seed, limit)
        notes.append(note)
    notes += _shared_image_notes(first_equal, ids)
    notes += _absent_class_notes(examples, unlimited, ids, limit)
    return SplitAssignment(ids, _content_hash(examples, ids, image_size), notes)


def _first_equal(pixel_sha256: NDArray[np.uint8]) -> Ids:
    """Return for each example the first one with the same pixels: itself if no earlier one is a copy."""
    rows = np.ascontiguousarray(pixel_sha256).view(f"V{pixel_sha256.shape[1]}").ravel()
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def _complete_splits(
    examples: LabeledExamples, first_equal: Ids, name: str, seed: int, drawn_part: float
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
    train_ids = ids["train"]
    _, first = np.unique(first_equal[train_ids], return_index=True)
    remaining = distinct = train_ids[np.sort(first)]
    if parts:
        _check_class_sizes(examples, name, distinct, minimum=1 + len(parts))
    for split, part in parts.items():
        count = max(math.floor(len(distinct) * part + 0.5), len(np.unique(examples.labels[remaining])))
        drawn_ids = remaining[draw(examples.labels[remaining], count, seed=seed, purpose=f"split {split}")]
        ids[split] = train_ids[np.isin(first_equal[train_ids], first_equal[drawn_ids])]
        remaining = np.setdiff1d(remaining, drawn_ids, assume_unique=True)
    return {**ids, "train": train_ids[np.isin(first_equal[train_ids], first_equal[remaining])]}, notes


def _check_class_sizes(examples: LabeledExamples, name: str, distinct: Ids, minimum: int) -> None:
    counts = np.bincount(examples.labels[distinct], minlength=len(examples.class_names))
    small = [f"{examples.class_names[label]!r} ({counts[label]})" for label in np.flatnonzero(counts < minimum)]
    if small:
        raise DataRefused(
            f"{name} cannot be divided: each class needs at least {minimum} different training images. Received fewer in "
            f"{join_names(small)}. Add images, or lay the data out as train/, validation/ and test/."
        )


def _duplicate_notes(examples: LabeledExamples, first_equal: Ids, ids: Mapping[str, Ids], name: str, allow: bool) -> list[str]:
    """Return notes on images of equal pixels. Raises DataRefused if splits share images and must not."""
    groups = {split: np.unique(first_equal[ids[split]]) for split in SPLITS}
    notes: list[str] = []
    repeated = {split: len(ids[split]) - len(groups[split]) for split in SPLITS}
    if any(repeated.values()):
        counts = ", ".join(f"{count:,} of {split}" for split, count in repeated.items() if count)
        notes.append(f"examples whose pixels equal those of an earlier one of their split: {counts}")
    all_ids = np.unique(np.concatenate([ids[split] for split in SPLITS]))
    labels = np.unique(np.stack([first_equal[all_ids], examples.labels[all_ids]]), axis=1)[0]
    if conflicts := int(np.sum(np.unique(labels, return_counts=True)[1] > 1)):
        notes.append(in_two_classes(conflicts))
    groups_found, num_splits = np.unique(np.concatenate(list(groups.values())), return_counts=True)
    shared = groups_found[num_splits > 1]
    if len(shared) and not allow:
        pairs = [
            " = ".join(repr(examples.names[int(row)]) for row in np.flatnonzero(first_equal == group_id))
            for group_id in shared[:MAX_NAMED]
        ]
        images = "images that are" if len(shared) > 1 else "image that is"
        raise DataRefused(
            f"{name} has {len(shared):,} {images} in more than one split, equal pixel for pixel. "
            + list_faults(pairs, len(shared))
            + "\nKeep each in one split.",
            setting=Setting("Or allow them with", "data.duplicates", "allow"),
        )
    return notes


def _shared_image_notes(first_equal: Ids, ids: Mapping[str, Ids]) -> list[str]:
    """Return a note for each two splits that share images, among the examples that are kept."""
    notes: list[str] = []
    for other, split in itertools.combinations(SPLITS, 2):
        if num_shared := int(np.isin(first_equal[ids[split]], first_equal[ids[other]]).sum()):
            notes.append(in_two_splits(num_shared, len(ids[split]), split, other))
    return notes


def _apply_limit(labels: NDArray[np.int64], ids: dict[str, Ids], seed: int, limit: int) -> tuple[dict[str, Ids], str]:
    num_train = len(ids["train"])
    if limit >= num_train:
        return ids, f"limit {limit:,} reaches all {num_train:,} training examples"
    limited: dict[str, Ids] = {}
    for split in SPLITS:
        split_ids = ids[split]
        count = max(1, (2 * len(split_ids) * limit + num_train) // (2 * num_train))  # rounded half up
        limited[split] = split_ids[draw(labels[split_ids], count, seed=seed, purpose=f"limit {split}")]
    sizes = ", ".join(f"{len(limited[split]):,} of {len(ids[split]):,} {split}" for split in SPLITS)
    return limited, f"limit {limit:,} keeps {sizes} examples, drawn by class with seed {seed}"


def _absent_class_notes(
    examples: LabeledExamples, unlimited: Mapping[str, Ids], limited: Mapping[str, Ids], limit: int | None
) -> list[str]:
    """Return notes on classes without an example in a split, by the data or by the limit."""
    notes: list[str] = []
    number = len(examples.class_names)
    for split in SPLITS:
        before, after = (np.bincount(examples.labels[ids[split]], minlength=number) == 0 for ids in (unlimited, limited))
        for is_absent, beginning in ((before, f"{split} has"), (after & ~before, f"limit {limit or 0:,} leaves {split} with")):
            names = [repr(examples.class_names[label]) for label in np.flatnonzero(is_absent)]
            if names:
                notes.append(f"{beginning} no example of {len(names):,} of the {number:,} classes: {join_names(names)}")
    return notes


def _content_hash(examples: LabeledExamples, ids: Mapping[str, Ids], image_size: int) -> str:
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
