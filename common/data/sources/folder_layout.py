"""Splits and classes in the paths of a tree of images: `[train|validation|valid|val|test]/class/image` or `class/image`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from common.data.dataset import DataRefused, listed
from common.data.decoding import decode
from common.data.sources.file_source import Listing
from common.data.sources.manifest import STRAY
from common.data.sources.splits import SPLITS

LAYOUT = "Lay it out as train/<class>/<image> with validation/ and test/ beside, or as <class>/<image>."
_SPLIT_OF = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}


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
        DataRefused: no file has an image suffix, or there are images outside of the layout.
    """
    parts_of = {file: PurePosixPath(file).parts for file in (*listing.files, *listing.empty_folders)}
    images = [file for file in listing.files if PurePosixPath(file).suffix.lower() in decode.SUFFIXES]
    if not images:
        files = f"Received: {listed(sorted(map(repr, listing.files)))}. " if listing.files else ""
        raise DataRefused(f"{tree} holds no images. {files}{LAYOUT}")
    usual = _usual_depth([parts_of[file] for file in images])
    within = [parts_of[file] for file in images if len(parts_of[file]) >= usual]
    skip = _wrapping_folders(within)
    wrapping = within[0][:skip]
    divided = all(_is_split(parts[skip]) for parts in within)
    if divided:
        _refuse_other_splits({parts[skip] for parts in within}, tree)
    depth = skip + (2 if divided else 1)

    def place(path: str, expected: int) -> tuple[str, str]:
        parts = parts_of[path]
        if parts[:skip] != wrapping or len(parts) != expected or (divided and not _is_split(parts[skip])):
            return STRAY, STRAY
        return _SPLIT_OF[parts[skip].lower()] if divided else "all", parts[depth - 1]

    found = sorted((Place(*place(file, depth + 1), file) for file in listing.files), key=lambda each: each.order)
    stray = {each.path for each in found if each.split == STRAY and len(parts_of[each.path]) >= usual}.intersection(images)
    if stray:
        raise DataRefused(
            f"{tree} has images outside of the layout. Received: {listed([repr(file) for file in sorted(stray)])}. {LAYOUT}"
        )
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
        is_split = _is_split(paths[0][skip])
        splits_below = depth - skip > 3 and all(_is_split(parts[skip + 1]) for parts in paths)
        if is_split and not splits_below:
            break
        skip += 1
    return skip


def _is_split(folder: str) -> bool:
    return folder.lower() in _SPLIT_OF


def _refuse_other_splits(folders: set[str], tree: Path) -> None:
    names = Counter(_SPLIT_OF[folder.lower()] for folder in folders)
    if max(names.values()) > 1:
        raise DataRefused(f"{tree} has one split under two names. Received: {', '.join(sorted(folders))}. Keep one of them.")
    if "train" not in names:
        raise DataRefused(f"{tree} has no training split. Received: {', '.join(sorted(folders))}. {LAYOUT}")
