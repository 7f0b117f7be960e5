"""Loads the data set that the `data` of a spec names."""

from __future__ import annotations

import errno
import io
import shutil
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from common.data import cache
from common.data.cache import EntryMetadata
from common.data.dataset import DataRefused, Dataset, DatasetDescription, DatasetSplit
from common.data.decoding import decode
from common.data.decoding.encoded import Encoded
from common.data.decoding.images import DecodedFiles, select_rows
from common.data.pixel_cache import PixelCache, PixelFile
from common.data.sources import image_folder, public_sets, scanned, splits
from common.data.sources.digits import Digits
from common.data.sources.file_source import FileSource
from common.data.sources.locating import NAMES, locate, other_reading
from common.data.sources.manifest import Manifest
from common.data.sources.scanned import ScanResult
from common.data.sources.splits import SPLITS, Ids
from common.machine import machine
from common.models import architectures
from common.models.architectures import Architecture
from common.spec import Data, Spec

_LARGE_BYTES = 2**30
"""Least bytes of decoded images where decoding is announced on stderr."""


def load(data: Data, *, seed: int, cache_dir: str | None = None) -> Dataset:
    """Load a data set. Its files are opened and decoded once, and then shared through the cache folder.

    Args:
        data: the source, the image size, how much of it, and what to do with bad files and duplicates.
        seed: for splits that are drawn and for the part that a limit keeps. 0..2**63 - 1.
        cache_dir: the cache folder. None: $CONVTWINS_CACHE, else the user's cache folder.
    """
    return _load(data, seed, cache_dir, _stored_splits(data))


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
        source.check_free_space(np.concatenate([source.rows(split) for split in _stored_splits(data)]))
        return DatasetDescription(**source.dataset_fields(), sizes=source.metadata.facts["sizes"])


def architecture_of(spec: Spec) -> Architecture:
    """Return the model of a spec for its data."""
    description = describe(spec.data, seed=spec.split_seed, cache_dir=spec.paths.cache_dir)
    return architectures.build(spec, len(description.class_names), description.image_size)


def load_files(data: Data, *, seed: int, cache_dir: str | None = None) -> Dataset:
    """Load the same examples as `load`, as image files. After the first scan of the source it decodes nothing.

    Args:
        data, seed, cache_dir: as for `load`.
    """
    return _load(data.model_copy(update={"loading": "streaming"}), seed, cache_dir, ())


def _load(data: Data, seed: int, cache_dir: str | None, stored_splits: Sequence[str]) -> Dataset:
    """Load a data set. `stored_splits` are decoded into the cache, the others on access."""
    with _refuse_failures(data):
        source = _open(data, seed, cache.folder(cache_dir))
        encoded = source.encoded() if data.loading == "streaming" else None
        stored = {split: source.rows(split) for split in stored_splits}
        pixels = source.decoded(np.concatenate(list(stored.values()))) if stored else None

        def split_of(split: str) -> DatasetSplit:
            rows = stored[split] if split in stored else source.rows(split)
            files = encoded.take(rows) if encoded is not None else None
            if pixels is not None and split in stored:
                images = select_rows(pixels, rows)
            else:
                assert files is not None, "splits that are not stored are streamed"
                images = DecodedFiles(files, source.image_size)
            return DatasetSplit(images=images, labels=source.labels(split), encoded=files, rows=None if stored_splits else rows)

        return Dataset(**source.dataset_fields(split_of))


def load_manifest(data: Data, *, cache_dir: str | None = None) -> Manifest:
    """Load the manifest of a source, with all files, usable or not."""
    with _refuse_failures(data):
        cache_folder = cache.folder(cache_dir)
        _, tree = locate(data.source, cache_folder)
        return scanned.scan(tree, cache_folder).manifest()


@dataclass(frozen=True, eq=False, kw_only=True)
class _DataSource:
    """A source and its splits."""

    name: str
    metadata: EntryMetadata
    """Stored metadata of the splits, see `_divide_source`."""
    cache_folder: Path
    tree: FileSource
    scanned: ScanResult | None = None
    """Scanned files. None for the digits, whose pixels need no cache."""
    notes: Sequence[str] = ()
    """Notes on the tree as it is now."""

    @property
    def image_size(self) -> int:
        return self.metadata.facts["image_size"]

    def dataset_fields(self, split_of: Callable[[str], Any] | None = None) -> dict[str, Any]:
        """Return the fields of a Dataset whose splits `split_of` gives by name. Without it, no splits."""
        facts = self.metadata.facts
        return {
            "name": self.name,
            "class_names": tuple(facts["class_names"]),
            "content_hash": facts["content_hash"],
            "image_size": self.image_size,
            "notes": (*self.notes, *facts["notes"]),
            **({split: split_of(split) for split in SPLITS} if split_of is not None else {}),
        }

    def labels(self, split: str) -> NDArray[np.int64]:
        return self.metadata.arrays[f"{split}_labels"]

    def rows(self, split: str) -> Ids:
        """Return the rows of the manifest of a split, ascending. The cache holds their pixels in the same rows."""
        return self.metadata.arrays[f"{split}_rows"]

    def encoded(self) -> Encoded:
        """Return the files in all rows of the manifest."""
        return (self.scanned or scanned.scan(self.tree, self.cache_folder)).encoded()

    def decoded(self, rows: Ids) -> NDArray[np.uint8]:
        """Return pixels, uint8 [N, image_size, image_size, 3], read-only. They include those of `rows`, perhaps others."""
        if isinstance(self.tree, Digits):
            return _read_only(decode.resize(self.tree.arrays().images, self.image_size))
        return self._pixels().fetch(rows, self._write)

    def check_free_space(self, rows: Ids) -> None:
        """Raise DataRefused if the cache folder has no room for `decoded`."""
        if not isinstance(self.tree, Digits):
            self._check_free_space(len(self._pixels().missing(rows)))

    def _pixels(self) -> PixelCache:
        assert self.scanned is not None
        size_px = self.image_size
        key = cache.key(scanned=self.scanned.key, image_size=size_px)
        shape = (self.metadata.facts["num_files"], size_px, size_px, 3)
        facts = {"source": str(self.tree.path), "image_size": size_px}
        return PixelCache(self.cache_folder / "decoded" / key, shape, facts)

    def _write(self, missing: Ids, pixels: PixelFile) -> None:
        num_bytes = self._check_free_space(len(missing))
        if num_bytes >= _LARGE_BYTES:
            print(
                f"decoding {self._images(len(missing))}: {num_bytes / 2**30:,.1f} GiB in {self.cache_folder}", file=sys.stderr
            )
        decode.decode_all(self.encoded().take(missing), self.image_size, pixels)

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
    name, tree = locate(data.source, cache_folder)
    notes = other_reading(data.source)
    if isinstance(tree, Digits):
        metadata = _divide_source(data, seed, name, tree.path, tree.manifest())
        return _DataSource(name=name, metadata=metadata, cache_folder=cache_folder, tree=tree, notes=notes)
    scan_result = scanned.scan(tree, cache_folder)

    def divide_with(data: Data) -> EntryMetadata:
        return _divide_source(data, seed, name, tree.path, scan_result.manifest())

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
    notes += tree.notes()
    return _DataSource(name=name, metadata=metadata, cache_folder=cache_folder, tree=tree, scanned=scan_result, notes=notes)


def _stored_splits(data: Data) -> tuple[str, ...]:
    """Return the splits whose decoded images are in the cache. A streamed training split is decoded on access."""
    return SPLITS if data.loading == "cached" else SPLITS[1:]


def _allows_duplicates(data: Data) -> bool:
    # Everybody has the same published data sets. What their splits share is noted, not refused.
    return data.duplicates == "allow" or data.source in NAMES or public_sets.is_published(data.source)


def _divide_source(data: Data, seed: int, name: str, path: Path, manifest: Manifest) -> EntryMetadata:
    """Divide a source. Returns the stored metadata of its splits: rows of the manifest and labels."""
    rows, examples, notes = image_folder.examples(manifest, path, skip_bad=data.on_bad == "skip")
    size_px = data.image_size or image_folder.common_size(manifest, rows, path)
    notes += image_folder.resize_notes(manifest, rows, size_px)
    num_files = len(manifest)
    del manifest
    division = splits.divide(
        examples,
        name=name,
        image_size=size_px,
        seed=seed,
        limit=data.limit,
        drawn_part=data.drawn_part,
        allow_duplicates=_allows_duplicates(data),
    )
    arrays: dict[str, NDArray[Any]] = {}
    for split, ids in division.ids.items():
        arrays |= {f"{split}_rows": _read_only(rows[ids]), f"{split}_labels": _read_only(examples.labels[ids])}
    facts = {
        "source": str(path),
        "class_names": examples.class_names,
        "content_hash": division.content_hash,
        "notes": [*notes, *division.notes],
        "num_files": num_files,
        "image_size": size_px,
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
