"""A tree of images: its files are scanned into a manifest, and its examples are chosen from the manifest."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from common.data import threads
from common.data.dataset import BadImageError, DataRefused, LabeledExamples, join_names, list_faults
from common.data.decoding import decode, other_formats
from common.data.notes import caution
from common.data.sources import folder_layout
from common.data.sources.file_source import Content, FileSource, Listing, check_size, is_unreadable
from common.data.sources.folder_layout import LAYOUT
from common.data.sources.manifest import STRAY, Manifest
from common.data.sources.splits import SPLITS
from common.errors import Setting

MAX_FILE_BYTES = 64 * 2**20
"""Limit for one file of a tree of images. Several files are in memory for each core."""


def scan(tree: FileSource, listing: Listing, packed: BinaryIO, *, limits: threads.ThreadLimits | None = None) -> Manifest:
    """Open each file of a tree once, on all cores, and pack the usable ones into one file.

    Args:
        packed: receives the bytes of the usable images, one after another.
    """
    placements, empty_folders = folder_layout.placements(listing, tree.path)
    rows = {placement.path: row for row, placement in enumerate(placements)}
    num_files = len(placements)
    texts = {name: [""] * num_files for name in ("problems", "details", "formats", "modes")}
    columns: dict[str, Any] = {
        **texts,
        **{name: np.zeros(num_files, np.int64) for name in ("file_bytes", "widths_px", "heights_px", "offsets")},
        **{name: np.zeros((num_files, 32), np.uint8) for name in ("file_sha256", "pixel_sha256")},
        "plain": np.zeros(num_files, np.bool_),
    }
    with decode.ignore_warnings():
        for path, content, columns_found in threads.ordered(
            _examine_file, _check_sizes(tree, rows), num_bytes=lambda file: file[1].num_bytes, limits=limits
        ):
            row = rows[path]
            if "problems" not in columns_found and placements[row].split == STRAY:
                columns_found["problems"] = decode.OUTSIDE
            if "problems" not in columns_found:
                columns_found["offsets"] = packed.tell()
                packed.write(content)
            for name, value in columns_found.items():
                columns[name][row] = value
    tuples: dict[str, Any] = {name: tuple(values) for name, values in texts.items()}
    return Manifest(
        paths=tuple(placement.path for placement in placements),
        splits=tuple(placement.split for placement in placements),
        classes=tuple(placement.class_name for placement in placements),
        empty_folders=tuple(empty_folders),
        hidden=tuple(listing.hidden),
        class_names=(),
        **(columns | tuples),
    )


def examples(manifest: Manifest, tree: Path, *, skip_bad: bool) -> tuple[NDArray[np.int64], LabeledExamples, list[str]]:
    """Choose the examples. They are stored with the splits: another choice needs another `splits.VERSION`.

    Args:
        manifest: the manifest of the tree.
        tree: path of the tree, for refusals.
        skip_bad: leave out bad files, and classes without a good one, instead of refusing the data.

    Returns:
        (rows of the manifest that are examples, the examples, notes on examples that were left out or are doubtful).
    """
    rows = manifest.usable_rows
    filled = {(manifest.splits[row], manifest.classes[row]) for row in rows}
    folders = {pair for pair in zip(manifest.splits, manifest.classes, strict=True) if STRAY not in pair}
    folders |= set(manifest.empty_folders)
    class_names = manifest.class_names or tuple(sorted({class_name for _, class_name in filled}))
    notes: list[str] = []
    if manifest.hidden:
        notes.append(
            f"left out images whose file or folder has a name that begins with a point: {_quote_names(manifest.hidden)}"
        )
    if len(rows) < len(manifest) or folders - filled:
        if not skip_bad:
            raise _bad_files_error(manifest, folders - filled, tree)
        notes += _left_out_notes(manifest, sorted({class_name for _, class_name in folders} - set(class_names)))
    if len(class_names) < 2:
        raise DataRefused(
            f"{tree} must hold at least 2 classes of usable images. Received: "
            f"{', '.join(map(repr, class_names)) or 'none'} alone. Give the folder or archive that holds all classes. {LAYOUT}"
        )
    splits = [split for split in (*SPLITS, "all") if any(split == split_name for split_name, _ in folders)]
    if not manifest.class_names:  # else a class may be without an example, which `splits.divide` notes
        _check_same_classes(filled, splits, class_names, tree)
    notes += _doubtful_name_notes(class_names, is_divided=len(splits) > 1)
    class_ids = {class_name: label for label, class_name in enumerate(class_names)}
    sizes = Counter(manifest.splits[row] for row in rows)
    return (
        rows,
        LabeledExamples(
            labels=np.array([class_ids[manifest.classes[row]] for row in rows], dtype=np.int64),
            class_names=class_names,
            split_sizes={split: sizes[split] for split in splits},
            pixel_sha256=manifest.pixel_sha256[rows],
            names=[manifest.paths[row] for row in rows],
        ),
        notes,
    )


def resize_notes(manifest: Manifest, rows: NDArray[np.int64], size_px: int) -> list[str]:
    """Return notes on the effects of resizing the examples to `size_px`."""
    widths, heights = manifest.widths_px[rows], manifest.heights_px[rows]
    kinds = {
        "images that are not square, resized to a square without keeping their proportions": widths != heights,
        f"images of less than a quarter of {size_px} px, enlarged": 4 * np.minimum(widths, heights) < size_px,
    }
    return [f"{description}: {np.sum(mask):,}" for description, mask in kinds.items() if np.any(mask)]


def common_size(manifest: Manifest, rows: NDArray[np.int64], tree: Path) -> int:
    """Return the common height and width of all examples in pixels."""
    widths, heights = manifest.widths_px[rows], manifest.heights_px[rows]

    def describe(row: int) -> str:
        return f"{manifest.paths[rows[row]]!r} of {widths[row]} x {heights[row]} pixels"

    resize = Setting("Resize all of them with", "data.image_size", 64)
    if widths[0] != heights[0]:
        raise DataRefused(f"images in {tree} must be square. Received: {describe(0)}.", setting=resize)
    differing = np.flatnonzero((widths != widths[0]) | (heights != heights[0]))
    if len(differing):
        raise DataRefused(
            f"images in {tree} must all be of one size. Received: {describe(0)} and {describe(int(differing[0]))}.",
            setting=resize,
        )
    return int(widths[0])


def _check_sizes(tree: FileSource, names: Collection[str]) -> Iterator[tuple[str, Content]]:
    for path, content in tree.read(names):
        check_size(content.num_bytes, f"{path!r} in {tree.path}", MAX_FILE_BYTES)
        yield path, content


def _examine_file(file: tuple[str, Content]) -> tuple[str, bytes, dict[str, Any]]:
    """Open and decode one file. Returns (path, content, values by column of the manifest)."""
    path, read = file
    content, values = b"", dict[str, Any]()
    try:
        try:
            content = read()
        except OSError as error:
            if not is_unreadable(error):
                raise
            raise BadImageError(decode.UNREADABLE, str(error.strerror)) from None
        suffix = PurePosixPath(path).suffix
        expected_format = decode.SUFFIXES.get(suffix.lower())
        if expected_format is None:
            advice = other_formats.by_suffix(suffix)
            raise BadImageError(decode.UNREAD, advice) if advice else BadImageError(decode.NO_SUFFIX)
        header, pixels = decode.examine(content)
        values |= {"formats": header.format, "modes": header.mode, "plain": header.decodes_identically}
        values |= {"widths_px": header.width_px, "heights_px": header.height_px, "pixel_sha256": _as_row(decode.sha256(pixels))}
        if header.format != expected_format:
            raise BadImageError(decode.WRONG_SUFFIX, f"{header.format} named {suffix}")
    except BadImageError as bad:
        values |= {"problems": bad.kind, "details": bad.detail}
    return path, content, values | {"file_bytes": len(content), "file_sha256": _as_row(hashlib.sha256(content).digest())}


def _as_row(digest: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(digest, np.uint8)


def _bad_files_error(manifest: Manifest, empty: set[tuple[str, str]], tree: Path) -> DataRefused:
    outside = Counter(
        str(PurePosixPath(path).parent)
        for path, problem in zip(manifest.paths, manifest.problems, strict=True)
        if problem == decode.OUTSIDE
    )
    misplaced_folders = [folder for folder, count in outside.items() if folder != "." and count > 1]
    faults = [f"{folder!r}: {outside[folder]:,} images {decode.OUTSIDE}" for folder in misplaced_folders]
    faults += [
        f"{path!r}: {problem} ({detail})" if detail else f"{path!r}: {problem}"
        for path, problem, detail in zip(manifest.paths, manifest.problems, manifest.details, strict=True)
        if problem and not (problem == decode.OUTSIDE and str(PurePosixPath(path).parent) in misplaced_folders)
    ]
    num_files = sum(map(bool, manifest.problems))
    faults += [
        f"class folder {class_name!r}{'' if split == 'all' else f' of {split}'}: no usable image"
        for split, class_name in sorted(empty)
    ]
    return DataRefused(
        f"{tree} is not clean: {_count_bad(num_files, len(manifest), len(empty))}. "
        f"{list_faults(faults, len(faults))}\nRepair or remove them.",
        setting=Setting("Or leave them out with", "data.on_bad", "skip"),
    )


def _count_bad(num_files: int, num_all: int, num_folders: int) -> str:
    files = f"{num_files:,} of {num_all:,} files {'is' if num_files == 1 else 'are'} no usable image{'s' * (num_files != 1)}"
    folders = "1 class folder holds" if num_folders == 1 else f"{num_folders:,} class folders hold"
    parts = [files] * (num_files > 0) + [f"{folders} no usable image"] * (num_folders > 0)
    return ", and ".join(parts)


def _left_out_notes(manifest: Manifest, class_names: Sequence[str]) -> list[str]:
    counts = Counter(problem for problem in manifest.problems if problem)
    notes: list[str] = []
    if counts:
        reasons = ", ".join(f"{counts[problem]:,} {problem}" for problem in decode.PROBLEMS if problem in counts)
        notes.append(f"left out {counts.total():,} of {len(manifest):,} files: {reasons}")
    if class_names:
        notes.append(f"left out classes without a usable image: {_quote_names(class_names)}")
    return notes


def _doubtful_name_notes(class_names: Sequence[str], *, is_divided: bool) -> list[str]:
    """Return cautions on class names that may be a mistake."""
    notes: list[str] = []
    if split_like := [name for name in class_names if folder_layout.split_of(name) and not is_divided]:
        text = f"read as a class, though named like a split: {_quote_names(split_like)}. If its images are of no class, "
        notes.append(caution(f"{text}move the folder out of the data"))
    if lookalikes := _lookalikes(class_names):
        text = f"classes that look alike everywhere, but are spelt differently in Unicode: {join_names(lookalikes)}. "
        notes.append(caution(f"{text}Rename or merge their folders"))
    return notes


def _lookalikes(class_names: Sequence[str]) -> list[str]:
    """Return class names that look equal: they differ in normal form, spaces or invisible characters alone."""
    groups: dict[str, list[str]] = {}
    for name in class_names:
        letters = "".join(
            character for character in unicodedata.normalize("NFC", name) if unicodedata.category(character) != "Cf"
        )
        groups.setdefault(" ".join(letters.split()), []).append(name)
    return [" and ".join(map(ascii, names)) for names in groups.values() if len(names) > 1]


def _quote_names(names: Sequence[str]) -> str:
    return join_names([repr(name) for name in names])


def _check_same_classes(filled: set[tuple[str, str]], splits: Sequence[str], class_names: tuple[str, ...], tree: Path) -> None:
    missing = [
        f"{split} lacks {class_name!r}" for split in splits for class_name in class_names if (split, class_name) not in filled
    ]
    if missing:
        advice = "Add images, or remove the class."
        if lookalikes := _lookalikes(class_names):
            advice = f"These look alike, but are spelt differently in Unicode: {join_names(lookalikes)}. Rename a folder."
        raise DataRefused(f"{tree} must hold the same classes in every split. Received: {join_names(missing)}. {advice}")
