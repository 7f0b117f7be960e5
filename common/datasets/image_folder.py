"""A tree of images, `[train|validation|valid|val|test]/class/image` or `class/image`, read through one manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from common.datasets import decode
from common.datasets.dataset import DataRefused, listed
from common.datasets.splits import SPLITS
from common.datasets.trees import Tree
from common.preprocessing.cache import Contents, PixelFile

_SPLIT_OF = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
_LAYOUT = "Lay it out as train/<class>/<image> with validation/ and test/ beside, or as <class>/<image>."


@dataclass(frozen=True, eq=False)
class Manifest:
    """Which image is which example."""

    rows: dict[str, int]
    """The row of each file: by split, then class, then path."""
    contents: Contents


def read_manifest(files: Sequence[str], tree: Path) -> Manifest:
    """Find splits and classes in the paths of a tree.

    Folders that wrap the whole tree are passed over. Class ids follow the sorted class names; names sort by code point,
    the same on every machine.

    Args:
        files: POSIX paths of all visible files.
        tree: named in refusals.

    Raises:
        DataRefused: a file that is no image by its suffix, another layout, or splits whose classes differ.
    """
    _refuse_other_files(files, tree)
    paths: dict[str, tuple[str, ...]] = {file: PurePosixPath(file).parts for file in files}
    skip = _wrapping_folders(list(paths.values()))
    paths = {file: parts[skip:] for file, parts in paths.items()}
    divided = all(_is_split(parts[0]) for parts in paths.values())
    if divided:
        _refuse_other_splits({parts[0] for parts in paths.values()}, tree)
    outside = sorted(file for file, parts in paths.items() if len(parts) != (3 if divided else 2))
    if outside:
        raise DataRefused(
            f"{tree} has images outside of the layout. Received: {listed([repr(file) for file in outside])}. {_LAYOUT}"
        )
    examples: list[tuple[int, str, str]] = []  # (split, class, file)
    for file, parts in paths.items():
        examples.append((SPLITS.index(_SPLIT_OF[parts[0].lower()]) if divided else 0, parts[-2], file))
    examples.sort()
    class_names = tuple(sorted({class_name for _, class_name, _ in examples}))
    if len(class_names) < 2:
        raise DataRefused(
            f"{tree} must hold at least 2 classes. Received: {', '.join(map(repr, class_names))} alone. {_LAYOUT}"
        )
    sizes = Counter(split for split, _, _ in examples)
    if divided:
        _refuse_other_classes(examples, class_names, tree)
    class_ids = {class_name: label for label, class_name in enumerate(class_names)}
    return Manifest(
        rows={file: row for row, (_, _, file) in enumerate(examples)},
        contents=Contents(
            labels=np.array([class_ids[class_name] for _, class_name, _ in examples], dtype=np.int64),
            class_names=class_names,
            split_sizes={SPLITS[split]: size for split, size in sorted(sizes.items())} if divided else {"all": len(examples)},
        ),
    )


def build(tree: Tree, files: Sequence[str], image_size: int | None, pixels: PixelFile) -> Contents:
    """Decode a tree of images into the cache, see `read_manifest` and `decode.decode_all`."""
    manifest = read_manifest(files, tree.path)

    def contents() -> Iterator[tuple[int, str, bytes]]:
        for file, content in tree.read(manifest.rows):
            yield manifest.rows[file], file, content

    decode.decode_all(contents(), num_files=len(manifest.rows), image_size=image_size, pixels=pixels, source=tree.path)
    return manifest.contents


def _refuse_other_files(files: Sequence[str], tree: Path) -> None:
    if not files:
        raise DataRefused(f"{tree} holds no images. {_LAYOUT}")
    others = sorted(repr(file) for file in files if PurePosixPath(file).suffix.lower() not in decode.SUFFIXES)
    if others:
        raise DataRefused(
            f"{tree} holds files that are no images by their suffix. Received: {listed(others)}. Take them out, or hide them "
            f"with a leading dot; images end with {', '.join(sorted(decode.SUFFIXES))}."
        )


def _wrapping_folders(paths: list[tuple[str, ...]]) -> int:
    """How many folders stand above the tree: all files share them, and what is below them is still a tree."""
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
        raise DataRefused(f"{tree} has no training split. Received: {', '.join(sorted(folders))}. {_LAYOUT}")


def _refuse_other_classes(examples: list[tuple[int, str, str]], class_names: tuple[str, ...], tree: Path) -> None:
    present = {(split, class_name) for split, class_name, _ in examples}
    missing = [
        f"{SPLITS[split]} lacks {class_name!r}"
        for split in sorted({split for split, _ in present})
        for class_name in class_names
        if (split, class_name) not in present
    ]
    if missing:
        raise DataRefused(
            f"{tree} must hold the same classes in every split. Received: {listed(missing)}. Add images, or take the class out."
        )
