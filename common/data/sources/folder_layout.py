"""Splits and classes in the paths of a tree of images: `split/class/image` or `class/image`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from common.data.dataset import DataRefused, listed
from common.data.decoding import decode, other_formats
from common.data.sources.file_source import Listing
from common.data.sources.manifest import STRAY
from common.data.sources.splits import SPLITS

LAYOUT = "Lay it out as train/<class>/<image> with validation/ and test/ beside, or as <class>/<image>."
_SPLIT_OF = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
_LONGER = re.compile(r"(train|test|validation|valid|val)(?:ing)?[ _-]?(?:set|data|images)?")
"""Longer names of splits: `Training`, `test_set`."""


class Place(NamedTuple):
    """Split and class of a file."""

    split: str
    class_name: str
    path: str

    @property
    def order(self) -> tuple[int, str, str]:
        """The manifest is sorted by it."""
        return (SPLITS.index(self.split) if self.split in SPLITS else len(SPLITS), self.class_name, self.path)


def places(listing: Listing, tree: Path) -> tuple[list[Place], list[tuple[str, str]]]:
    """Find the split and the class of each file of a tree.

    Folders that wrap the whole tree are skipped. Names sort by code point, the same on all machines.

    Returns:
        (places in the manifest's order, (split, class) of class folders that hold nothing).

    Raises:
        DataRefused: no file has the suffix of an image that is read, or there are images outside of the layout.
    """
    parts_of = {file: PurePosixPath(file).parts for file in (*listing.files, *listing.empty_folders)}
    images = [file for file in listing.files if PurePosixPath(file).suffix.lower() in decode.SUFFIXES]
    if not images:
        raise _no_images(listing, tree)
    if all(len(parts_of[file]) == 1 for file in images):
        raise _no_class_folders(images, tree)
    usual = _usual_depth([parts_of[file] for file in images])
    within = [parts_of[file] for file in images if len(parts_of[file]) >= usual]
    skip = _wrapping_folders(within)
    wrapping = within[0][:skip]
    divided = all(split_of(parts[skip]) for parts in within)
    if divided:
        _refuse_other_splits({parts[skip] for parts in within}, tree)
    depth = skip + (2 if divided else 1)

    def place(path: str, expected: int) -> tuple[str, str]:
        parts = parts_of[path]
        if parts[:skip] != wrapping or len(parts) != expected or (divided and not split_of(parts[skip])):
            return STRAY, STRAY
        return (split_of(parts[skip]) or STRAY) if divided else "all", parts[depth - 1]

    found = sorted((Place(*place(file, depth + 1), file) for file in listing.files), key=lambda each: each.order)
    stray = {each.path for each in found if each.split == STRAY and len(parts_of[each.path]) >= usual}.intersection(images)
    if stray:
        all_parts = {parts_of[file]: file for file in sorted(images)}
        splits_beside = [parts for parts in all_parts if len(parts) == skip + 3 and split_of(parts[skip])]
        placed = [parts_of[each.path] for each in found if each.split != STRAY and parts_of[each.path] in all_parts]
        raise _outside(all_parts, max(placed, splits_beside, key=len), tree)
    return found, sorted({place(folder, depth) for folder in listing.empty_folders} - {(STRAY, STRAY)})


def _usual_depth(paths: list[tuple[str, ...]]) -> int:
    """Depth of most images. A few images beside the class folders say nothing about the layout. They are bad files."""
    depths = Counter(map(len, paths))
    return max(depths, key=lambda depth: (depths[depth], -depth))


def _wrapping_folders(paths: list[tuple[str, ...]]) -> int:
    """How many folders wrap the tree: all files are in them, and what is below is still a tree."""
    depth = min(len(parts) for parts in paths)
    skip = 0
    while depth - skip > 2 and len({parts[skip] for parts in paths}) == 1:
        is_split = paths[0][skip].lower() in _SPLIT_OF  # a longer name alone has always been a folder around the tree
        splits_below = depth - skip > 3 and all(split_of(parts[skip + 1]) for parts in paths)
        if is_split and not splits_below:
            break
        skip += 1
    return skip


def split_of(folder: str) -> str | None:
    """`test` for folders named test, TEST, Testing, test_set, ... None for a folder that is not named like a split."""
    named = _LONGER.fullmatch(folder.lower())
    return _SPLIT_OF[named[1]] if named else None


def _refuse_other_splits(folders: set[str], tree: Path) -> None:
    names = Counter(map(split_of, folders))
    if max(names.values()) > 1:
        raise DataRefused(f"{tree} has one split under two names. Received: {', '.join(sorted(folders))}. Keep one of them.")
    if "train" not in names:
        raise DataRefused(f"{tree} has no training split. Received: {', '.join(sorted(folders))}. {LAYOUT}")


def _no_images(listing: Listing, tree: Path) -> DataRefused:
    files = sorted(listing.files)
    unread = {file: told for file in files if (told := other_formats.by_suffix(PurePosixPath(file).suffix))}
    if unread:
        told = listed(list(dict.fromkeys(unread.values())))
        return DataRefused(f"{tree} holds no image that is read. Received: {_some(list(unread))}. {told}.")
    received = f"Received: {_some(files)}. " if files else ""
    if listing.hidden:
        hidden = listed(list(map(repr, listing.hidden)))
        received += f"Images are hidden, as a name begins with a point: {hidden}. Rename them. "
    return DataRefused(f"{tree} holds no images. {received}{LAYOUT}")


def _no_class_folders(images: Sequence[str], tree: Path) -> DataRefused:
    """Of a tree whose images all lie right in it, as in the folder of one class."""
    above = tree.resolve().parent
    above = above.parent if split_of(above.name) else above
    use = f"use the folder above: {above}" if tree.is_dir() else "pack the folder above"
    return DataRefused(
        f"{tree} has no class folders. Received: {_some(sorted(images))} right in it. If these are the images of one class, "
        f"{use}. {LAYOUT}"
    )


def _outside(images: Collection[tuple[str, ...]], placed: Collection[tuple[str, ...]], tree: Path) -> DataRefused:
    """Names the folders with images that have no place in the layout, not each image."""
    right = {parts[:depth] for parts in placed for depth in range(len(parts) + 1)}
    held: dict[tuple[str, ...], list[str]] = {}
    for parts in images:
        if parts not in right:
            held.setdefault(_misplaced(parts, right), []).append("/".join(parts))
    doubled = any(_is_doubled(folder) for folder in held)
    advice = "A folder inside a folder of the same kind: take it out, or give it alone as the data. " if doubled else ""
    folders = [f"{'/'.join(folder) or '.'!r} with {_some(files)}" for folder, files in held.items()]
    return DataRefused(f"{tree} has images outside of the layout. Received: {listed(folders)}. {advice}{LAYOUT}")


def _misplaced(parts: tuple[str, ...], right: Collection[tuple[str, ...]]) -> tuple[str, ...]:
    """The outermost folder of an image that holds nothing in its place. Before it, one inside a folder of the same kind."""
    folders = [parts[:depth] for depth in range(1, len(parts)) if parts[:depth] not in right]
    return next(filter(_is_doubled, folders), folders[0] if folders else parts[:-1])


def _is_doubled(folder: tuple[str, ...]) -> bool:
    kinds = [split_of(name) or name.lower() for name in folder[-2:]]
    return len(kinds) == 2 and kinds[0] == kinds[1]


def _some(files: Sequence[str]) -> str:
    """`40 files, e.g. 'cat/0.png'`."""
    return f"{len(files):,} files, e.g. {files[0]!r}" if len(files) > 1 else repr(files[0])
