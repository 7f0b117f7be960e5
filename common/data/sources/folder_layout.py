"""Splits and classes in the paths of a tree of images: `split/class/image` or `class/image`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from common.data.dataset import DataRefused, join_names
from common.data.decoding import decode, other_formats
from common.data.sources.file_source import Listing
from common.data.sources.manifest import STRAY
from common.data.sources.splits import SPLITS

LAYOUT = "Lay it out as train/<class>/<image> with validation/ and test/ beside, or as <class>/<image>."
_SPLIT_OF = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
_LONG_SPLIT_NAME = re.compile(r"(train|test|validation|valid|val)(?:ing)?[ _-]?(?:set|data|images)?")
"""Longer names of splits: `Training`, `test_set`."""


class FilePlacement(NamedTuple):
    """Split and class of a file."""

    split: str
    class_name: str
    path: str

    @property
    def order(self) -> tuple[int, str, str]:
        """Sort key of the manifest."""
        return (SPLITS.index(self.split) if self.split in SPLITS else len(SPLITS), self.class_name, self.path)


def placements(listing: Listing, tree: Path) -> tuple[list[FilePlacement], list[tuple[str, str]]]:
    """Find the split and the class of each file of a tree.

    Folders that wrap the whole tree are skipped. Names sort by code point, the same on all machines.

    Returns:
        (placements in the manifest's order, (split, class) of class folders that hold nothing).
    """
    parts_of = {file: PurePosixPath(file).parts for file in (*listing.files, *listing.empty_folders)}
    images = [file for file in listing.files if PurePosixPath(file).suffix.lower() in decode.SUFFIXES]
    if not images:
        raise _no_images_error(listing, tree)
    if all(len(parts_of[file]) == 1 for file in images):
        raise _no_class_folders_error(images, tree)
    usual_depth = _usual_depth([parts_of[file] for file in images])
    parts_within = [parts_of[file] for file in images if len(parts_of[file]) >= usual_depth]
    skip = _wrapping_folders(parts_within)
    wrapping = parts_within[0][:skip]
    is_divided = all(split_of(parts[skip]) for parts in parts_within)
    if is_divided:
        _check_splits({parts[skip] for parts in parts_within}, tree)
    depth = skip + (2 if is_divided else 1)

    def classify(path: str, expected: int) -> tuple[str, str]:
        parts = parts_of[path]
        if parts[:skip] != wrapping or len(parts) != expected or (is_divided and not split_of(parts[skip])):
            return STRAY, STRAY
        return (split_of(parts[skip]) or STRAY) if is_divided else "all", parts[depth - 1]

    sorted_placements = sorted(
        (FilePlacement(*classify(file, depth + 1), file) for file in listing.files), key=lambda placement: placement.order
    )
    stray_paths = {
        placement.path
        for placement in sorted_placements
        if placement.split == STRAY and len(parts_of[placement.path]) >= usual_depth
    }.intersection(images)
    if stray_paths:
        all_parts = {parts_of[file]: file for file in sorted(images)}
        splits_beside = [parts for parts in all_parts if len(parts) == skip + 3 and split_of(parts[skip])]
        placed_parts = [
            parts_of[placement.path]
            for placement in sorted_placements
            if placement.split != STRAY and parts_of[placement.path] in all_parts
        ]
        raise _misplaced_images_error(all_parts, max(placed_parts, splits_beside, key=len), tree)
    return sorted_placements, sorted({classify(folder, depth) for folder in listing.empty_folders} - {(STRAY, STRAY)})


def _usual_depth(paths: list[tuple[str, ...]]) -> int:
    """Return the depth of most images. A few images beside the class folders do not define the layout. They are bad files."""
    depths = Counter(map(len, paths))
    return max(depths, key=lambda depth: (depths[depth], -depth))


def _wrapping_folders(paths: list[tuple[str, ...]]) -> int:
    """Return the number of folders that wrap the tree: all files are in them, and their content is still a tree."""
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
    """Return the split that a folder is named like: `test` for test, TEST, Testing, test_set, ... None: no split."""
    match = _LONG_SPLIT_NAME.fullmatch(folder.lower())
    return _SPLIT_OF[match[1]] if match else None


def _check_splits(folders: set[str], tree: Path) -> None:
    names = Counter(map(split_of, folders))
    if max(names.values()) > 1:
        raise DataRefused(f"{tree} has one split under two names. Received: {', '.join(sorted(folders))}. Keep one of them.")
    if "train" not in names:
        raise DataRefused(f"{tree} has no training split. Received: {', '.join(sorted(folders))}. {LAYOUT}")


def _no_images_error(listing: Listing, tree: Path) -> DataRefused:
    files = sorted(listing.files)
    unread = {file: advice for file in files if (advice := other_formats.by_suffix(PurePosixPath(file).suffix))}
    if unread:
        advice = join_names(list(dict.fromkeys(unread.values())))
        return DataRefused(f"{tree} holds no image that is read. Received: {_count_and_example(list(unread))}. {advice}.")
    received = f"Received: {_count_and_example(files)}. " if files else ""
    if listing.hidden:
        hidden = join_names(list(map(repr, listing.hidden)))
        received += f"Images are hidden, as a name begins with a point: {hidden}. Rename them. "
    return DataRefused(f"{tree} holds no images. {received}{LAYOUT}")


def _no_class_folders_error(images: Sequence[str], tree: Path) -> DataRefused:
    """Return the refusal of a tree whose images all lie right in it, as in the folder of one class."""
    above = tree.resolve().parent
    above = above.parent if split_of(above.name) else above
    advice = f"use the folder above: {above}" if tree.is_dir() else "pack the folder above"
    return DataRefused(
        f"{tree} has no class folders. Received: {_count_and_example(sorted(images))} right in it. If these are the images of "
        f"one class, {advice}. {LAYOUT}"
    )


def _misplaced_images_error(
    images: Collection[tuple[str, ...]], placed_parts: Collection[tuple[str, ...]], tree: Path
) -> DataRefused:
    """Return the refusal of images that do not fit the layout. It names their folders, not each image."""
    valid_folders = {parts[:depth] for parts in placed_parts for depth in range(len(parts) + 1)}
    images_by_folder: dict[tuple[str, ...], list[str]] = {}
    for parts in images:
        if parts not in valid_folders:
            images_by_folder.setdefault(_misplaced_folder(parts, valid_folders), []).append("/".join(parts))
    has_doubled = any(_is_doubled(folder) for folder in images_by_folder)
    advice = "A folder inside a folder of the same kind: take it out, or give it alone as the data. " if has_doubled else ""
    folders = [f"{'/'.join(folder) or '.'!r} with {_count_and_example(files)}" for folder, files in images_by_folder.items()]
    return DataRefused(f"{tree} has images outside of the layout. Received: {join_names(folders)}. {advice}{LAYOUT}")


def _misplaced_folder(parts: tuple[str, ...], valid_folders: Collection[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the outermost invalid folder of an image. A folder inside another of the same kind comes first."""
    folders = [parts[:depth] for depth in range(1, len(parts)) if parts[:depth] not in valid_folders]
    return next(filter(_is_doubled, folders), folders[0] if folders else parts[:-1])


def _is_doubled(folder: tuple[str, ...]) -> bool:
    kinds = [split_of(name) or name.lower() for name in folder[-2:]]
    return len(kinds) == 2 and kinds[0] == kinds[1]


def _count_and_example(files: Sequence[str]) -> str:
    """Return the number of files and an example: `40 files, e.g. 'cat/0.png'`."""
    return f"{len(files):,} files, e.g. {files[0]!r}" if len(files) > 1 else repr(files[0])
