"""Loads the data set that the `data` of a spec names."""

from __future__ import annotations

import errno
import io
import shutil
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from common.data import cache
from common.data.cache import EntryMetadata
from common.data.dataset import DataRefused, Dataset, DatasetDescription, DatasetSplit, FileDataset, FileSplit, LabeledExamples
from common.data.decoding import decode
from common.data.decoding.encoded import Encoded
from common.data.decoding.images import DecodedFiles, select_rows
from common.data.pixel_cache import PixelCache, PixelFile
from common.data.sources import digits, image_folder, public_sets, scanned, splits
from common.data.sources.locating import NAMES, locate, other_reading
from common.data.sources.manifest import Manifest
from common.data.sources.scanned import ScanResult
from common.data.sources.splits import SPLITS, Ids
from common.machine import machine
from common.models import architectures
from common.models.architectures import Architecture
from common.spec import Data, Spec

_ROWS_PER_WRITE = 1000  # of arrays: bounds what is in memory while they are written

_LARGE_BYTES = 2**30
"""Least bytes of decoded images where decoding is announced on stderr."""


def load(data: Data, *, seed: int, cache_dir: str | None = None) -> Dataset:
    """Load a data set. Its files are opened and decoded once, and then shared through the cache folder.

    Args:
        data: the source, the image size, how much of it, and what to do with bad files and duplicates.
        seed: for splits that are drawn and for the part that a limit keeps. 0..2**63 - 1.
        cache_dir: the cache folder. None: $CONVTWINS_CACHE, else the user's cache folder.
    """
    with _refuse_failures(data):
        source = _open(data, seed, cache.folder(cache_dir))
        encoded = _streamed_files(source, data)
        ids = {split: source.ids(split) for split in _stored_splits(data)}
        pixels = source.decoded(np.concatenate(list(ids.values())))

        def split_of(split: str) -> DatasetSplit:
            files = None if encoded is None else encoded.take(source.rows(split))
            if files is None or split in ids:
                images = select_rows(pixels, ids[split])
            else:
                images = DecodedFiles(files, source.image_size)
            return DatasetSplit(images=images, labels=source.labels(split), encoded=files)

        return Dataset(**source.dataset_fields(split_of))


def describe(data: Data, *, seed: int, cache_dir: str | None = None) -> DatasetDescription:
    """Describe the data set that `load` would give, without its pixels.

    The first use of a source opens and judges each file, as `load` does. Later ones read the cache alone. Use it where classes,
    sizes or the hash are enough.

    It refuses what `load` refuses, also a cache folder without room for the decoded images. It does not decode images into the
    cache: a disk that fails then, or is filled by another program, is found by `load`.

    Args:
        data, seed, cache_dir: as for `load`.
    """
    with _refuse_failures(data):
        source = _open(data, seed, cache.folder(cache_dir))
        _streamed_files(source, data)
        source.check_free_space(np.concatenate([source.ids(split) for split in _stored_splits(data)]))
        return DatasetDescription(**source.dataset_fields(), sizes=source.metadata.facts["sizes"])


def architecture_of(spec: Spec) -> Architecture:
    """Return the model of a spec for its data."""
    description = describe(spec.data, seed=spec.split_seed, cache_dir=spec.paths.cache_dir)
    return architectures.build(spec, len(description.class_names), description.image_size)


def load_files(data: Data, *, seed: int, cache_dir: str | None = None) -> FileDataset:
    """Load the same examples as `load`, as image files. After the first scan of the source it decodes nothing.

    Args:
        data, seed, cache_dir: as for `load`.
    """
    with _refuse_failures(data):
        source = _open(data, seed, cache.folder(cache_dir))
        encoded = source.encoded()
        if encoded is None:
            raise DataRefused(
                f"{source.name} holds no image files, and preprocessing reads nothing else. Received: arrays of pixels. Use an "
                "image folder, an archive of one, or leaves."
            )

        def split_of(split: str) -> FileSplit:
            rows = source.rows(split)
            return FileSplit(encoded=encoded.take(rows), labels=source.labels(split), rows=rows)

        return FileDataset(**source.dataset_fields(split_of))


def load_manifest(data: Data, *, cache_dir: str | None = None) -> Manifest | None:
    """Load the manifest of a source, with all files, usable or not. None if it holds no image files."""
    with _refuse_failures(data):
        cache_folder = cache.folder(cache_dir)
        located = locate(data.source, cache_folder)
        scan_result = scanned.scan(located[1], cache_folder) if located is not None else None
        return scan_result.manifest() if scan_result is not None and scan_result.is_files else None


@dataclass(frozen=True, eq=False, kw_only=True)
class _DataSource:
    """A source and its splits."""

    name: str
    metadata: EntryMetadata
    """Stored metadata of the splits, see `_divide_source`."""
    cache_folder: Path
    scanned: ScanResult | None = None
    """Scanned files. None for the digits, which are no files."""
    notes: Sequence[str] = ()
    """Notes on the tree as it is now."""

    @property
    def image_size(self) -> int:
        return self.metadata.facts["image_size"]

    def dataset_fields(self, split_of: Callable[[str], Any] | None = None) -> dict[str, Any]:
        """Return the fields of a Dataset or FileDataset whose splits `split_of` gives by name. Without it, no splits."""
        facts = self.metadata.facts
        return {
            "name": self.name,
            "class_names": tuple(facts["class_names"]),
            "content_hash": facts["content_hash"],
            "image_size": self.image_size,
            "notes": (*self.notes, *facts["notes"]),
            **({split: split_of(split) for split in SPLITS} if split_of is not None else {}),
        }

    def ids(self, split: str) -> Ids:
        """Return the ids of a split: ascending positions among all examples of the source."""
        return self.metadata.arrays[f"{split}_ids"]

    def labels(self, split: str) -> NDArray[np.int64]:
        return self.metadata.arrays[f"{split}_labels"]

    def rows(self, split: str) -> NDArray[np.int64]:
        """Return the rows of the manifest of a split of image files."""
        return self.metadata.arrays[f"{split}_rows"]

    def encoded(self) -> Encoded | None:
        """Return the files in all rows of the manifest. None if the source holds no image files."""
        return self.scanned.encoded() if self.scanned is not None and self.scanned.is_files else None

    def decoded(self, ids: Ids) -> NDArray[np.uint8]:
        """Return pixels, uint8 [N, image_size, image_size, 3], read-only. They include the examples `ids`, perhaps others."""
        if self.scanned is None:
            return _read_only(decode.resize(digits.read().images, self.image_size))
        return self._pixels(self.scanned).fetch(ids, partial(self._write, self.scanned))

    def check_free_space(self, ids: Ids) -> None:
        """Raise DataRefused if the cache folder has no room for `decoded`."""
        if self.scanned is not None:
            self._check_free_space(len(self._pixels(self.scanned).missing(ids)))

    def _pixels(self, scanned: ScanResult) -> PixelCache:
        size_px = self.image_size
        key = cache.key(scanned=scanned.key, image_size=size_px)
        shape = (self.metadata.facts["num_examples"], size_px, size_px, 3)
        facts = {"source": str(scanned.path), "image_size": size_px}
        return PixelCache(self.cache_folder / "decoded" / key, shape, facts)

    def _write(self, scanned: ScanResult, missing: Ids, pixels: PixelFile) -> None:
        num_bytes = self._check_free_space(len(missing))
        if num_bytes >= _LARGE_BYTES:
            print(
                f"decoding {self._images(len(missing))}: {num_bytes / 2**30:,.1f} GiB in {self.cache_folder}", file=sys.stderr
            )
        encoded = self.encoded()
        if encoded is not None:
            decode.decode_all(encoded.take(self._rows_of(missing)), self.image_size, pixels)
            return
        images = scanned.images()
        for first in range(0, len(missing), _ROWS_PER_WRITE):
            pixels.write(first, decode.resize(images[missing[first : first + _ROWS_PER_WRITE]], self.image_size))

    def _rows_of(self, ids: Ids) -> NDArray[np.int64]:
        """Return the rows of the manifest of examples that are in a split."""
        unique_ids, first = np.unique(np.concatenate([self.ids(split) for split in SPLITS]), return_index=True)
        rows = np.concatenate([self.rows(split) for split in SPLITS])[first]
        return rows[np.searchsorted(unique_ids, ids)]

    def _check_free_space(self, count: int) -> int:
        """Return the bytes of `count` decoded images. Raises DataRefused if there is no room."""
        num_bytes, free = count * self.image_size**2 * 3, shutil.disk_usage(self.cache_folder).free
        if num_bytes > free:
            raise DataRefused(
                f"There is no room to decode {self._images(count)}. Received: {num_bytes:,} bytes needed, {free:,} free in "
                f"{self.cache_folder}. Use a smaller data.image_size or data.limit, data.loading streaming, a paths.cache_dir "
                f"with room, or make room with `{machine.COMMAND} cache --prune`."
            )
        return num_bytes

    def _images(self, count: int) -> str:
        return f"{count:,} images of {self.name} at {self.image_size} x {self.image_size} pixels"


def _open(data: Data, seed: int, cache_folder: Path) -> _DataSource:
    located = locate(data.source, cache_folder)
    other = other_reading(data.source)
    if located is None:
        return _DataSource(name="digits", metadata=_digits_metadata(data, seed), cache_folder=cache_folder, notes=other)
    name, tree = located
    scan_result = scanned.scan(tree, cache_folder)

    def divide_with(data: Data) -> EntryMetadata:
        notes: list[str] = []
        if scan_result.is_files:
            manifest = scan_result.manifest()
            rows, examples, notes = image_folder.examples(manifest, tree.path, skip_bad=data.on_bad == "skip")
            size_px = data.image_size or image_folder.common_size(manifest, rows, tree.path)
            notes += image_folder.resize_notes(manifest, rows, size_px)
            del manifest
        else:
            examples = scan_result.examples()
            rows, size_px = None, data.image_size or scan_result.images().shape[1]
        return _divide_source(data, seed, name, examples, rows, size_px, notes, str(tree.path))

    def divide(_: BinaryIO) -> EntryMetadata:
        try:
            return divide_with(data)
        except DataRefused as refusal:
            messages = [str(refusal)]
            # Else a user who mends or skips what is named is refused again for the next: bad files, sizes, then shared images.
            without_bad = data.model_copy(update={"on_bad": "skip"})
            for lenient in (without_bad, without_bad.model_copy(update={"image_size": data.image_size or 1})):
                try:
                    divide_with(lenient)
                except DataRefused as next_refusal:
                    messages.append(str(next_refusal))
            raise DataRefused("\n".join(dict.fromkeys(messages))) from None

    missing = set(SPLITS) - set(scan_result.splits)
    key = cache.key(
        scanned=scan_result.key,
        version=splits.VERSION,
        image_size=data.image_size,
        on_bad=data.on_bad,
        duplicates_allowed=_allows_duplicates(data),
        limit=data.limit,
        # If nothing is drawn, all seeds share one division.
        seed=seed if missing or data.limit is not None else None,
        drawn_part=data.drawn_part if missing else None,
    )
    try:
        metadata: EntryMetadata = cache.fetch(cache_folder, "divided", key, divide)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        metadata = divide(io.BytesIO())  # a cache folder of another user, which already holds all that takes long
    notes = [*other, *tree.notes()]
    return _DataSource(name=name, metadata=metadata, cache_folder=cache_folder, scanned=scan_result, notes=notes)


def _digits_metadata(data: Data, seed: int) -> EntryMetadata:
    arrays = digits.read()
    examples = LabeledExamples(
        labels=arrays.labels,
        class_names=arrays.class_names,
        split_sizes=arrays.split_sizes,
        pixel_sha256=scanned.pixel_sha256(arrays.images),
    )
    size_px = data.image_size or arrays.images.shape[1]
    return _divide_source(data, seed, "digits", examples, None, size_px, [], "digits")


def _stored_splits(data: Data) -> tuple[str, ...]:
    """Return the splits whose decoded images are in the cache. A streamed training split is decoded on access."""
    return SPLITS if data.loading == "cached" else SPLITS[1:]


def _streamed_files(source: _DataSource, data: Data) -> Encoded | None:
    """Return the files of a source that is streamed, else None."""
    if data.loading == "cached":
        return None
    encoded = source.encoded()
    if encoded is None:
        raise DataRefused(
            f"{source.name} holds no image files to stream. Received: loading streaming. Use data.loading cached."
        )
    return encoded


def _allows_duplicates(data: Data) -> bool:
    # Everybody has the same published data sets. What their splits share is noted, not refused.
    return data.duplicates == "allow" or data.source in NAMES or public_sets.is_published(data.source)


def _divide_source(
    data: Data,
    seed: int,
    name: str,
    examples: LabeledExamples,
    rows: NDArray[np.int64] | None,
    image_size: int,
    notes: Sequence[str],
    source: str,
) -> EntryMetadata:
    """Divide a source. Returns the stored metadata of its splits: ids, labels and, for files, rows of the manifest."""
    division = splits.divide(
        examples,
        name=name,
        image_size=image_size,
        seed=seed,
        limit=data.limit,
        drawn_part=data.drawn_part,
        allow_duplicates=_allows_duplicates(data),
    )
    arrays: dict[str, NDArray[Any]] = {}
    for split, ids in division.ids.items():
        arrays |= {f"{split}_ids": _read_only(ids), f"{split}_labels": _read_only(examples.labels[ids])}
        if rows is not None:
            arrays[f"{split}_rows"] = _read_only(rows[ids])
    facts = {
        "source": source,
        "class_names": examples.class_names,
        "content_hash": division.content_hash,
        "notes": [*notes, *division.notes],
        "num_examples": len(examples.labels),
        "image_size": image_size,
        "sizes": {split: len(division.ids[split]) for split in SPLITS},
    }
    return EntryMetadata(arrays, facts)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


@contextmanager
def _refuse_failures(data: Data) -> Generator[None]:
    try:
        yield
    except MemoryError as error:
        raise DataRefused(
            f"There is not enough memory to read data.source {data.source!r}, and nothing was stored. Received: "
            f"{error!r}. End other programs, or start again with fewer cores or on a machine with more memory."
        ) from error
    except OSError as error:
        raise DataRefused(
            f"data.source {data.source!r} cannot be read, or its cache cannot be written. Received: {error}. Check the file, "
            "or set paths.cache_dir to a folder with room."
        ) from error
