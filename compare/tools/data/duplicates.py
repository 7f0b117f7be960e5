"""Search for exact duplicates, equal pixel for pixel, and near twins, which look nearly the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from common.data.dataset import Images
from common.machine.machine import available_cores

MAX_DISTANCE = 2
RULE = (
    "Near twins have different pixels and similar difference hashes. A hash has a bit for each of 8 x 8 grey cells: is it "
    f"brighter than its right, or its lower, neighbour? At most {MAX_DISTANCE} of 64 bits differ each way. Near twins are "
    "mostly copies that were saved again, resized or brightened. Images with little content count too. Rotated or cropped "
    "copies are not found."
)

_CELLS = 9
_BYTES_AT_ONCE = 1 << 24
_PARTS = 4  # two hashes that differ in two bits agree in at least two of their four parts, each way
_PART_BITS = 64 // _PARTS

Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class NearTwins:
    rule: str = RULE
    images: int
    """Number of images with a near twin."""
    pairs: int
    pairs_across_splits: int
    named: list[tuple[str, str, int]]
    """Some of the pairs: (name, name, number of different bits of their hashes, both ways together). Pairs across splits come
    first, then the nearest."""


def exact(digests: Sequence[bytes]) -> list[list[int]]:
    """Return groups of two or more examples of equal pixels, ordered by their first example. Each group is in order."""
    groups: dict[bytes, list[int]] = {}
    for index, digest in enumerate(digests):
        groups.setdefault(digest, []).append(index)
    return [group for group in groups.values() if len(group) > 1]


def difference_hashes(images: Images, bytes_at_once: int = _BYTES_AT_ONCE) -> NDArray[np.uint64]:
    """Compute difference hashes of each image, across and down, in chunks on all cores: uint64 [N, 2].

    N. Krawetz (2013), Kind of Like That. https://www.hackerfactor.com/blog/index.php?/archives/529-Kind-of-Like-That.html

    Args:
        images: uint8 [N, H, W, 3]. A memory map is read in chunks.
        bytes_at_once: size of a chunk.
    """
    rows = max(1, bytes_at_once // max(1, images[:1].nbytes))

    def work(first: int) -> NDArray[np.uint64]:
        return _hashes(images[first : first + rows])

    with ThreadPoolExecutor(available_cores()) as pool:
        hashes = list(pool.map(work, range(0, len(images), rows)))
    return np.concatenate([np.zeros((0, 2), np.uint64), *hashes])


def near(
    hashes: NDArray[np.uint64], digests: Sequence[bytes], splits: Ids, names: Sequence[str], max_named: int = 20
) -> NearTwins:
    """Find near twins without comparing all pairs of images.

    Args:
        hashes: uint64 [N, 2], see `difference_hashes`.
        digests: [N], equal for equal pixels. Such images are duplicates, not near twins.
        splits: [N], split of each image as a small number.
        names: [N], name of each image.
        max_named: largest number of pairs that are named.
    """
    values, of_image = np.unique(hashes, axis=0, return_inverse=True)
    members: list[list[int]] = [[] for _ in values]
    for index, value in enumerate(of_image.tolist()):
        members[value].append(index)
    by_split = np.zeros((len(values), int(splits.max(initial=0)) + 1), np.int64)
    np.add.at(by_split, (of_image, splits), 1)
    counts = by_split.sum(axis=1)

    has_twin = np.zeros(len(values), np.bool_)  # for each hash: whether another hash is near
    pairs = across = 0
    candidates: list[tuple[bool, int, int, int]] = []  # (within one split, distance, one image, another)
    for left, right, distances in _neighbours(values):
        has_twin[left] = has_twin[right] = True
        products = counts[left] * counts[right]
        products_across = products - (by_split[left] * by_split[right]).sum(axis=1)
        pairs, across = pairs + int(products.sum()), across + int(products_across.sum())
        order = np.lexsort((distances, products_across == 0))[:max_named]
        for place in order.tolist():
            first_image, second_image = _choose_pair(members[left[place]], members[right[place]], splits)
            candidates.append(
                (bool(splits[first_image] == splits[second_image]), int(distances[place]), first_image, second_image)
            )
    images = int(counts[has_twin].sum())
    for value in np.flatnonzero(counts > 1).tolist():
        kinds: dict[bytes, list[int]] = {}
        for index in members[value]:
            kinds.setdefault(digests[index], []).append(index)
        if len(kinds) == 1:
            continue
        if not has_twin[value]:
            images += len(members[value])
        same = [np.bincount(splits[kind], minlength=by_split.shape[1]) for kind in kinds.values()]
        pairs += _pairs(counts[value]) - sum(_pairs(len(kind)) for kind in kinds.values())
        across += _pairs_across(by_split[value]) - sum(_pairs_across(kind) for kind in same)
        first, second, *_ = kinds.values()
        first_image, second_image = _choose_pair(first, second, splits)
        candidates.append((bool(splits[first_image] == splits[second_image]), 0, first_image, second_image))
    candidates.sort()
    named = [(names[min(one, other)], names[max(one, other)], distance) for _, distance, one, other in candidates[:max_named]]
    return NearTwins(images=images, pairs=pairs, pairs_across_splits=across, named=named)


def _hashes(images: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Compute hashes from the means of 9 x 9 cells of whole pixels, compared as exact fractions."""
    _, height, width, _ = images.shape
    row_starts, column_starts = (np.arange(_CELLS) * size // _CELLS for size in (height, width))
    sums = np.add.reduceat(images, row_starts, axis=1, dtype=np.uint32)
    sums = np.add.reduceat(sums, column_starts, axis=2, dtype=np.uint32).astype(np.int64)
    grey = sums @ np.array([299, 587, 114])
    heights = np.maximum(np.diff(row_starts, append=height), 1)[:, np.newaxis]
    widths = np.maximum(np.diff(column_starts, append=width), 1)
    across = grey[:, :-1, :-1] * widths[1:] > grey[:, :-1, 1:] * widths[:-1]
    down = grey[:, :-1, :-1] * heights[1:] > grey[:, 1:, :-1] * heights[:-1]
    return np.packbits(np.stack([across, down], axis=1).reshape(len(images), 2, -1), axis=2).view(np.uint64)[..., 0]


def _neighbours(values: NDArray[np.uint64]) -> Iterator[tuple[Ids, Ids, Ids]]:
    """Yield each pair of different hashes within MAX_DISTANCE each way, once: (places, places, distances).

    Two hashes within two bits agree in two of their four parts. So for each choice of two parts across and two parts down, only
    hashes that agree in all four are compared. A pair is given for its first such choice.
    """
    parts = [*_parts(values[:, 0]), *_parts(values[:, 1])]
    choices = [
        (*across, *(_PARTS + part for part in down))
        for across in combinations(range(_PARTS), 2)
        for down in combinations(range(_PARTS), 2)
    ]
    for number, choice in enumerate(choices):
        keys = np.zeros(len(values), np.uint64)
        for part in choice:
            keys = keys << np.uint64(_PART_BITS) | parts[part]
        order = np.argsort(keys, kind="stable")
        keys, step = keys[order], 1
        starts = np.arange(len(keys) - 1)
        while len(starts := starts[starts + step < len(keys)]) and len(starts := starts[keys[starts] == keys[starts + step]]):
            left, right = order[starts], order[starts + step]
            distances = np.bitwise_count(values[left] ^ values[right]).astype(np.int64)
            close = (distances <= MAX_DISTANCE).all(axis=1)
            left, right, distances = left[close], right[close], distances[close].sum(axis=1)
            if len(left):
                agree = np.stack([part[left] == part[right] for part in parts])
                is_new = np.ones(len(left), np.bool_)
                for earlier in choices[:number]:
                    is_new &= ~agree[list(earlier)].all(axis=0)
                yield left[is_new], right[is_new], distances[is_new]
            step += 1


def _parts(values: NDArray[np.uint64]) -> list[NDArray[np.uint64]]:
    """Cut each hash into parts and distribute varying bits evenly: images with an empty margin share many bits."""
    bits = np.unpackbits(np.ascontiguousarray(values).view(np.uint8).reshape(-1, 8), axis=1)
    by_balance = np.argsort(np.abs(bits.mean(axis=0) - 0.5), kind="stable")
    parts = [np.packbits(bits[:, by_balance[part::_PARTS]], axis=1).astype(np.uint64) for part in range(_PARTS)]
    return [high_and_low[:, 0] << np.uint64(8) | high_and_low[:, 1] for high_and_low in parts]


def _choose_pair(first_group: list[int], second_group: list[int], splits: Ids) -> tuple[int, int]:
    """Choose one image of each group, of different splits if possible."""
    for other in second_group:
        if splits[other] != splits[first_group[0]]:
            return first_group[0], other
    for one in first_group:
        if splits[one] != splits[second_group[0]]:
            return one, second_group[0]
    return first_group[0], second_group[0]


def _pairs(count: int) -> int:
    return int(count) * (int(count) - 1) // 2


def _pairs_across(counts: Ids) -> int:
    return _pairs(int(counts.sum())) - sum(_pairs(count) for count in counts.tolist())
