"""Exploration of a data set: images of each class, files, bad files, duplicates."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common import spec
from common.data import sources
from common.data.dataset import MAX_NAMED
from common.data.sources import DataRefused, Dataset, Manifest
from compare.cli import exits
from compare.tools.data import duplicates
from compare.tools.data.duplicates import NearTwins

KIND = "data exploration"
SCHEMA_VERSION = 1


_SPLITS = ("train", "validation", "test")
_FALLBACK_PX = 64


@dataclass(frozen=True, kw_only=True)
class ClassCount:
    name: str
    plant: str | None
    condition: str | None
    counts: dict[str, int]
    """Number of images in each split."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, kw_only=True)
class FileKind:
    """Files of one format, mode and size."""

    format: str
    mode: str
    width_px: int
    height_px: int
    files: int


@dataclass(frozen=True, kw_only=True)
class UnusableFile:
    path: str
    problem: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """Summary of the manifest."""

    files: int
    usable: int
    total_bytes: int
    median_bytes: int
    largest_bytes: int
    kinds: list[FileKind]
    """Kinds of files, the most frequent first."""
    bad: list[UnusableFile]
    empty_class_folders: list[str]


@dataclass(frozen=True, kw_only=True)
class ExactDuplicates:
    groups: int
    """Number of groups of images that are equal pixel for pixel."""
    images: int
    """Number of images in these groups."""
    groups_across_splits: int
    groups_across_classes: int
    named: list[list[str]]
    """Up to 20 of the groups: first those across splits, then those across classes."""


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """Findings of an exploration of a data set."""

    schema_version: int = SCHEMA_VERSION
    kind: str = KIND
    name: str
    source: str
    refusal: str | None
    """Reason why the data are refused with these options. None if they are not."""
    image_size: int | None
    content_hash: str | None
    splits: dict[str, int]
    """Number of images in each split."""
    classes: list[ClassCount]
    names_tell: bool
    """Whether class names consist of a plant and its condition."""
    files: FileFacts
    """Facts about the image files."""
    exact: ExactDuplicates
    near: NearTwins | None
    """Near twins. None if the images could not be resized to one size."""
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return 0 if self.refusal is None else exits.DATA_REFUSED


@dataclass(frozen=True, eq=False, kw_only=True)
class _Examples:
    """All examples, split after split."""

    names: list[str]
    digests: list[bytes]
    splits: NDArray[np.int64]
    """Split of each example, [N]: indices into split_names."""
    labels: NDArray[np.int64]
    split_names: tuple[str, ...]
    class_names: tuple[str, ...]


def explore(data: spec.Data, *, seed: int, cache_dir: str | None = None) -> tuple[Exploration, Dataset | None, Manifest]:
    """Explore a data set.

    Refused data are shown too: without bad files, with duplicates and, if the images are not square or not of one size, at 64
    pixels.

    Returns:
        (exploration, data set or None if it cannot be loaded, manifest).
    """
    loaded = _load_leniently(data, seed=seed, cache_dir=cache_dir)
    dataset, manifest = loaded.dataset, loaded.manifest
    examples = _examples(loaded, seed=seed, cache_dir=cache_dir)
    counts = _counts(examples)
    pairs = plants_and_conditions(examples.class_names)
    exploration = Exploration(
        name=dataset.name if dataset is not None else Path(data.source).expanduser().resolve().name,
        source=data.source,
        refusal=loaded.refusal,
        image_size=dataset.image_size if dataset is not None else None,
        content_hash=dataset.content_hash if dataset is not None and loaded.refusal is None else None,
        splits={split: int(counts[place].sum()) for place, split in enumerate(examples.split_names)},
        classes=_class_counts(examples, counts, pairs),
        names_tell=pairs is not None,
        files=_file_facts(manifest),
        exact=_exact(examples),
        near=_near(dataset, examples) if dataset is not None else None,
        notes=[
            *_leniency_notes(loaded.refusal, dataset, loaded.data),
            *(dataset.notes if dataset is not None else ()),
        ],
    )
    return exploration, dataset, manifest


class _LoadedData(NamedTuple):
    data: spec.Data
    """Options that the data were loaded with."""
    dataset: Dataset | None
    manifest: Manifest
    refusal: str | None
    """Reason why the data are refused with the requested options. None if they are not."""


def _load_leniently(data: spec.Data, *, seed: int, cache_dir: str | None) -> _LoadedData:
    """Load a data set, with lenient options if it is refused with the requested ones."""
    manifest = sources.load_manifest(data, cache_dir=cache_dir)
    try:
        return _LoadedData(data, sources.load(data, seed=seed, cache_dir=cache_dir), manifest, None)
    except DataRefused as error:
        refusal = str(error)
    data = _lenient_options(data, manifest)
    try:
        return _LoadedData(data, sources.load(data, seed=seed, cache_dir=cache_dir), manifest, refusal)
    except DataRefused:
        return _LoadedData(data, None, manifest, refusal)


def _examples(loaded: _LoadedData, *, seed: int, cache_dir: str | None) -> _Examples:
    """Return all examples, with digests of their own pixels."""
    data, dataset, manifest, _ = loaded
    if dataset is None:
        return _from_manifest(manifest)
    files = sources.load_files(data, seed=seed, cache_dir=cache_dir)
    rows = [row for split in _SPLITS for row in getattr(files, split).rows]
    digests = [manifest.pixel_sha256[row].tobytes() for row in rows]
    return _in_splits(dataset, [manifest.paths[row] for row in rows], digests)


def _class_counts(examples: _Examples, counts: NDArray[np.int64], pairs: Sequence[tuple[str, str]] | None) -> list[ClassCount]:
    return [
        ClassCount(
            name=name,
            plant=pairs[label][0] if pairs else None,
            condition=pairs[label][1] if pairs else None,
            counts=dict(zip(examples.split_names, counts[:, label].tolist(), strict=True)),
        )
        for label, name in enumerate(examples.class_names)
    ]


def plants_and_conditions(class_names: Sequence[str]) -> list[tuple[str, str]] | None:
    """Split class names such as `Tomato___Late_blight` and `Tomato_healthy` into (plant, condition). None for other names.

    Each name is cut at its longest run of underscores. All names must have one. In addition, all runs have three underscores,
    or a plant occurs twice, or a condition is `healthy`. So `ankle_boot` and `t_shirt` are other names.
    """
    pairs: list[tuple[str, str]] = []
    shortest_run = 3
    for name in class_names:
        rows = [match for match in re.finditer("_+", name) if match.start() > 0 and match.end() < len(name)]
        if not rows:
            return None
        run = max(rows, key=lambda match: match.end() - match.start())
        shortest_run = min(shortest_run, run.end() - run.start())
        pairs.append((_words(name[: run.start()]), _words(name[run.end() :])))
    plants = {plant for plant, _ in pairs}
    is_plant = shortest_run == 3 or len(plants) < len(pairs) or any(condition == "healthy" for _, condition in pairs)
    return pairs if is_plant else None


def to_plain(exploration: Exploration) -> dict[str, Any]:
    """Return everything, JSON-ready."""
    return asdict(exploration) | {"exit_code": exploration.exit_code}


def _lenient_options(data: spec.Data, manifest: Manifest) -> spec.Data:
    image_size = data.image_size
    if image_size is None:
        sizes = {(int(manifest.widths_px[row]), int(manifest.heights_px[row])) for row in manifest.usable_rows}
        if len(sizes) != 1 or any(width != height for width, height in sizes):
            image_size = _FALLBACK_PX
    return data.model_copy(update={"on_bad": "skip", "duplicates": "allow", "image_size": image_size})


def _leniency_notes(refusal: str | None, dataset: Dataset | None, lenient: spec.Data) -> list[str]:
    if refusal is None or dataset is None:
        return []
    resized = f", images resized to {lenient.image_size} x {lenient.image_size} pixels" if lenient.image_size else ""
    return [f"refused as it was asked for; shown with bad files left out, duplicates allowed{resized}"]


def _from_manifest(manifest: Manifest) -> _Examples:
    """Return all usable files in their folders' splits, because the data cannot be divided."""
    rows = manifest.usable_rows
    class_names = manifest.class_names or tuple(sorted({manifest.classes[row] for row in rows}))
    split_names = tuple(split for split in (*_SPLITS, "all") if any(manifest.splits[row] == split for row in rows))
    return _Examples(
        names=[manifest.paths[row] for row in rows],
        digests=[manifest.pixel_sha256[row].tobytes() for row in rows],
        splits=np.array([split_names.index(manifest.splits[row]) for row in rows], np.int64),
        labels=np.array([class_names.index(manifest.classes[row]) for row in rows], np.int64),
        split_names=split_names,
        class_names=class_names,
    )


def _in_splits(dataset: Dataset, names: list[str], digests: list[bytes]) -> _Examples:
    parts = [getattr(dataset, split) for split in _SPLITS]
    return _Examples(
        names=names,
        digests=digests,
        splits=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        split_names=_SPLITS,
        class_names=dataset.class_names,
    )


def _counts(examples: _Examples) -> NDArray[np.int64]:
    """Count the images of each split and class: [splits, classes]."""
    counts = np.zeros((len(examples.split_names), len(examples.class_names)), np.int64)
    np.add.at(counts, (examples.splits, examples.labels), 1)
    return counts


def _exact(examples: _Examples) -> ExactDuplicates:
    groups = duplicates.exact(examples.digests)
    across_splits = [len({int(examples.splits[index]) for index in group}) > 1 for group in groups]
    across_classes = [len({int(examples.labels[index]) for index in group}) > 1 for group in groups]
    order = sorted(range(len(groups)), key=lambda place: (not across_splits[place], not across_classes[place]))
    return ExactDuplicates(
        groups=len(groups),
        images=sum(map(len, groups)),
        groups_across_splits=sum(across_splits),
        groups_across_classes=sum(across_classes),
        named=[[examples.names[index] for index in groups[place][:MAX_NAMED]] for place in order[:MAX_NAMED]],
    )


def _near(dataset: Dataset, examples: _Examples) -> NearTwins:
    hashes = np.concatenate([duplicates.difference_hashes(getattr(dataset, split).images) for split in _SPLITS])
    return duplicates.near(hashes, examples.digests, examples.splits, examples.names, MAX_NAMED)


def _file_facts(manifest: Manifest) -> FileFacts:
    good = manifest.usable_rows
    sizes = manifest.file_bytes[good]
    kinds = Counter(
        (manifest.formats[row], manifest.modes[row], int(manifest.widths_px[row]), int(manifest.heights_px[row]))
        for row in good
    )
    used_folders = {(manifest.splits[row], manifest.classes[row]) for row in good}
    folders = set(zip(manifest.splits, manifest.classes, strict=True)) | set(manifest.empty_folders)
    return FileFacts(
        files=len(manifest),
        usable=len(good),
        total_bytes=int(sizes.sum()),
        median_bytes=int(np.median(sizes)) if len(sizes) else 0,
        largest_bytes=int(sizes.max(initial=0)),
        kinds=[
            FileKind(format=kind, mode=mode, width_px=width, height_px=height, files=count)
            for (kind, mode, width, height), count in kinds.most_common()
        ],
        bad=[
            UnusableFile(path=path, problem=problem, detail=detail)
            for path, problem, detail in zip(manifest.paths, manifest.problems, manifest.details, strict=True)
            if problem
        ],
        empty_class_folders=[
            name if split == "all" else f"{split}/{name}" for split, name in sorted(folders - used_folders) if name
        ],
    )


def _words(name: str) -> str:
    return " ".join(name.replace("_", " ").split())
