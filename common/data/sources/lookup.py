"""From the name or path in a spec to a dataset."""

from __future__ import annotations

import difflib
import errno
import io
import math
import shutil
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from common.data import cache
from common.data.cache import Entry, PixelFile, Side
from common.data.dataset import Arrays, DataRefused, Dataset, Examples, Files, FileSplit, Split
from common.data.decoding import decode
from common.data.decoding.encoded import Encoded
from common.data.decoding.images import Decoded, rows_of
from common.data.sources import archives, cifar10, digits, fashion_mnist, identity, image_folder, splits, synthetic_leaves
from common.data.sources.file_source import Folder, Tree
from common.data.sources.manifest import Manifest
from common.data.sources.splits import SPLITS, Division, Ids
from common.spec import Data

NAMES = ("digits", "cifar10", fashion_mnist.NAME, synthetic_leaves.NAME)

_SCAN_VERSION = 4
"""Grows when the manifest gets other columns, or a file is judged otherwise."""

_ROWS_AT_ONCE = 1000  # of arrays, bounds what stands in memory while they are written

_LARGE_BYTES = 2**30
"""From here on the decoded images are worth a word before they are written."""


def load(data: Data, *, seed: int, cache_dir: str | None = None) -> Dataset:
    """Load a dataset; its files are read and decoded once and then shared through the cache folder.

    Args:
        data: which source, at what size, how much of it, and what becomes of bad files and duplicates.
        seed: of the splits that are drawn and of the part that a limit keeps; 0..2**63 - 1.
        cache_dir: the cache folder; None: $CONVTWINS_CACHE, else the user's cache folder.

    Raises:
        DataRefused: there is no such data, or it is damaged, hostile, not clean or laid out otherwise.
    """
    with _refusing_failures(data):
        source = _open(data, seed, cache.folder(cache_dir))
        ids = {split: source.divided.ids(split) for split in SPLITS}
        # A training split that is streamed is decoded when it is asked for.
        stored = SPLITS if data.loading == "cached" else SPLITS[1:]
        files = None if data.loading == "cached" else _streamed(source)
        encoded = None if files is None else {split: files.take(source.divided.rows(split)) for split in SPLITS}
        whole = source.decoded(np.concatenate([ids[split] for split in stored]))
        labels = {split: source.divided.labels(split) for split in SPLITS}

    def split_of(split: str) -> Split:
        if encoded is None:
            return Split(images=rows_of(whole, ids[split]), labels=labels[split])
        images = rows_of(whole, ids[split]) if split in stored else Decoded(encoded[split], source.divided.image_size)
        return Split(images=images, labels=labels[split], encoded=encoded[split])

    return Dataset(
        name=source.name,
        class_names=source.divided.class_names,
        content_hash=source.divided.content_hash,
        image_size=source.divided.image_size,
        notes=source.divided.notes,
        **{split: split_of(split) for split in SPLITS},
    )


def load_files(data: Data, *, seed: int, cache_dir: str | None = None) -> Files:
    """Load the same examples as `load`, as image files: once they were scanned, no pixel is decoded for it.

    Args:
        data: as for `load`.
        seed: as for `load`.
        cache_dir: as for `load`.

    Raises:
        DataRefused: as `load`; also where the source does not consist of image files.
    """
    with _refusing_failures(data):
        source = _open(data, seed, cache.folder(cache_dir))
        if source.encoded is None:
            raise DataRefused(
                f"{source.name} holds no image files, and preprocessing reads nothing else. Received: arrays of pixels. Use an "
                "image folder, an archive of one, or leaves."
            )
        divided, encoded = source.divided, source.encoded()

        def split_of(split: str) -> FileSplit:
            rows = divided.rows(split)
            return FileSplit(encoded=encoded.take(rows), labels=divided.labels(split), rows=rows)

        splits_of_files = {split: split_of(split) for split in SPLITS}
    return Files(
        name=source.name,
        class_names=divided.class_names,
        content_hash=divided.content_hash,
        image_size=divided.image_size,
        notes=divided.notes,
        **splits_of_files,
    )


def load_manifest(data: Data, *, cache_dir: str | None = None) -> Manifest | None:
    """Load what is known of every file of a source, usable or not; None where it holds no image files.

    Raises:
        DataRefused: there is no such data, or it is hostile or laid out otherwise; bad files do not make it fail.
    """
    with _refusing_failures(data):
        cache_folder = cache.folder(cache_dir)
        located = _locate(data.source, cache_folder)
        scanned = _scan(located[1], cache_folder)[1] if located is not None else None
    return Manifest.from_arrays(scanned.arrays) if scanned is not None and scanned.facts["form"] == "files" else None


@dataclass(frozen=True, eq=False)
class _Divided:
    """A source as it is divided into splits: what stands in the cache, read when it is asked for."""

    _side: Side

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self._side.facts["class_names"])

    @property
    def content_hash(self) -> str:
        return self._side.facts["content_hash"]

    @property
    def image_size(self) -> int:
        return self._side.facts["image_size"]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._side.facts["notes"])

    @property
    def num_examples(self) -> int:
        """Of the source; limits leave some out of all splits."""
        return self._side.facts["num_examples"]

    def ids(self, split: str) -> Ids:
        """Ascending places among all examples."""
        return self._side.arrays[f"{split}_ids"]

    def labels(self, split: str) -> NDArray[np.int64]:
        return self._side.arrays[f"{split}_labels"]

    def rows(self, split: str) -> NDArray[np.int64]:
        """Of the manifest; of files alone."""
        return self._side.arrays[f"{split}_rows"]

    def rows_of(self, ids: Ids) -> NDArray[np.int64]:
        """The same of some examples that stand in a split."""
        places, first = np.unique(np.concatenate([self.ids(split) for split in SPLITS]), return_index=True)
        rows = np.concatenate([self.rows(split) for split in SPLITS])[first]
        return rows[np.searchsorted(places, ids)]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Source:
    """A source and its splits, whether it holds arrays or files."""

    name: str
    divided: _Divided
    decoded: Callable[[Ids], NDArray[np.uint8]]
    """Gives uint8 [N, image_size, image_size, 3], read-only, that holds the examples that are asked for by their places."""
    encoded: Callable[[], Encoded] | None = None
    """Gives the files of all rows of the manifest."""


def _open(data: Data, seed: int, cache_folder: Path) -> _Source:
    located = _locate(data.source, cache_folder)
    if located is None:
        return _digits(data, seed)
    name, tree = located
    scanned_key, scanned = _scan(tree, cache_folder)
    is_files = scanned.facts["form"] == "files"

    def divide(_: BinaryIO) -> Side:
        if is_files:
            manifest = Manifest.from_arrays(scanned.arrays)
            rows, examples, notes = image_folder.examples(manifest, tree.path, skip_bad=data.on_bad == "skip")
            size_px = data.image_size or image_folder.common_size(manifest, rows, tree.path)
            del manifest
        else:
            examples, notes = _examples_of_arrays(scanned), []
            # Unpacked files cannot be told from MNIST's; that they were asked for by name is what names their classes.
            if data.source == fashion_mnist.NAME:
                examples = replace(examples, class_names=fashion_mnist.CLASS_NAMES)
            rows, size_px = None, data.image_size or _images(scanned).shape[1]
        return _side_of(_divide(examples, name, size_px, data, seed), examples, rows, size_px, notes, str(tree.path))

    missing = set(SPLITS) - set(scanned.facts["splits"])
    key = cache.key(
        scanned=scanned_key,
        version=splits.VERSION,
        image_size=data.image_size,
        on_bad=data.on_bad,
        duplicates_allowed=_allows_duplicates(data),
        named=data.source == fashion_mnist.NAME,
        limit=data.limit,
        # Where nothing is drawn, all seeds share one division.
        seed=seed if missing or data.limit is not None else None,
        drawn_part=data.drawn_part if missing else None,
    )
    try:
        side: Side = cache.fetch(cache_folder, "divided", key, divide)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        side = divide(io.BytesIO())  # a cache folder of somebody else's, in which all that takes long lies already
    divided = _Divided(side)

    def decoded(ids: Ids) -> NDArray[np.uint8]:
        size_px = divided.image_size

        def write(missing: Ids, pixels: PixelFile) -> None:
            _check_room(len(missing), pixels.row_bytes, name, cache_folder)
            if is_files:
                decode.decode_all(_encoded(scanned).take(divided.rows_of(missing)), data.image_size, pixels)
            else:
                _resize_all(_images(scanned), missing, data.image_size, pixels)

        pixels_key = cache.key(scanned=scanned_key, image_size=size_px)
        facts = {"source": str(tree.path), "image_size": size_px}
        shape = (divided.num_examples, size_px, size_px, 3)
        return cache.fetch_pixels(cache_folder, pixels_key, shape, ids, write, facts)

    encoded = partial(_encoded, scanned) if is_files else None
    return _Source(name=name, divided=divided, decoded=decoded, encoded=encoded)


def _locate(source: str, cache_folder: Path) -> tuple[str, Tree] | None:
    """(name, tree) of a source; None for the digits, which are no files."""
    if source == "digits":
        return None
    if source == "cifar10":
        return source, _tree_at(cifar10.locate(cache_folder))
    if source == fashion_mnist.NAME:
        return source, Folder(fashion_mnist.locate(cache_folder))
    if synthetic_leaves.is_source(source):
        wanted = synthetic_leaves.parse(source)
        folder = synthetic_leaves.locate(wanted, cache_folder)
        cache.mark_used(folder)
        return str(wanted), Folder(folder)
    path = Path(source).expanduser()
    if not path.exists():
        raise _unknown(source, path)
    return _name(path), _tree_at(path)


def _digits(data: Data, seed: int) -> _Source:
    arrays = digits.read()
    images = _read_only(decode.resize(arrays.images, data.image_size))
    examples = Examples(
        labels=arrays.labels,
        class_names=arrays.class_names,
        split_sizes=arrays.split_sizes,
        pixel_sha256=_pixel_sha256(arrays.images),
    )
    size_px = images.shape[1]
    division = _divide(examples, "digits", size_px, data, seed)
    side = _side_of(division, examples, None, size_px, [], "digits")
    return _Source(name="digits", divided=_Divided(side), decoded=lambda _: images)


def _scan(tree: Tree, cache_folder: Path) -> tuple[str, Entry]:
    """(key, what its files gave) of a tree; they are opened once in the life of the cache."""
    with cache.holding(tree.path) if tree.path.is_relative_to(cache_folder) else nullcontext():
        return _scanned(tree, cache_folder)


def _scanned(tree: Tree, cache_folder: Path) -> tuple[str, Entry]:
    content_hash = identity.content_hash(tree, cache_folder)

    def scan(file: BinaryIO) -> Side:
        listing = tree.listing()
        arrays = _read_arrays(tree, listing.files)
        if arrays is None:
            manifest = image_folder.scan(tree, listing, file)
            facts = {"form": "files", "source": str(tree.path), "splits": manifest.split_names}
            side = Side(manifest.to_arrays(), facts)
        else:
            np.save(file, arrays.images)
            side = Side(
                {"labels": arrays.labels, "pixel_sha256": _pixel_sha256(arrays.images)},
                {
                    "form": "arrays",
                    "source": str(tree.path),
                    "class_names": arrays.class_names,
                    "split_sizes": arrays.split_sizes,
                    "splits": list(arrays.split_sizes),
                },
            )
        if identity.content_hash(tree, cache_folder) != content_hash:
            raise DataRefused(f"{tree.path} was changed while it was read. Received: another hash. Start again.")
        return side

    scanned_key = cache.key(content=content_hash, decode=decode.RULE, scan=_SCAN_VERSION)
    scanned = cache.fetch(cache_folder, "scanned", scanned_key, scan)
    # What rests on the order of its good files names what was found: another decoder may judge a file otherwise.
    return cache.key(scanned=scanned_key, found=scanned.arrays_sha256), scanned


def _images(scanned: Entry) -> NDArray[np.uint8]:
    return np.load(scanned.data, mmap_mode="r", allow_pickle=False)


def _examples_of_arrays(scanned: Entry) -> Examples:
    return Examples(
        labels=scanned.arrays["labels"],
        class_names=tuple(scanned.facts["class_names"]),
        split_sizes=scanned.facts["split_sizes"],
        pixel_sha256=scanned.arrays["pixel_sha256"],
    )


def _resize_all(images: NDArray[np.uint8], ids: Ids, image_size: int | None, pixels: PixelFile) -> None:
    for first in range(0, len(ids), _ROWS_AT_ONCE):
        pixels.write(first, decode.resize(images[ids[first : first + _ROWS_AT_ONCE]], image_size))


def _encoded(scanned: Entry) -> Encoded:
    offsets, sizes, plain = (scanned.arrays[name] for name in ("offsets", "file_bytes", "plain"))
    return Encoded(scanned.data, offsets, sizes, plain)


def _read_arrays(tree: Tree, files: Sequence[str]) -> Arrays | None:
    """What a tree holds where it consists of arrays in place of image files."""
    for module in (cifar10, fashion_mnist):
        layout = module.recognise(files)
        if layout is not None:
            return module.read(tree, layout)  # pyright: ignore[reportArgumentType]  # each module's layout is its own
    return None


def _pixel_sha256(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(decode.sha256(image) for image in images), np.uint8).reshape(len(images), 32)


def _check_room(count: int, row_bytes: int, name: str, cache_folder: Path) -> None:
    """Say how much is about to be decoded, where that is much.

    Raises:
        DataRefused: there is no room for it.
    """
    needed, free = count * row_bytes, shutil.disk_usage(cache_folder).free
    size_px = math.isqrt(row_bytes // 3)
    what = f"{count:,} images of {name} at {size_px} x {size_px} pixels"
    if needed > free:
        raise DataRefused(
            f"There is no room to decode {what}. Received: {needed:,} bytes needed, {free:,} free in {cache_folder}. Use a "
            "smaller data.image_size or data.limit, data.loading streaming, a paths.cache_dir with room, or make room with "
            "`python -m compare cache --prune`."
        )
    if needed >= _LARGE_BYTES:
        print(f"decoding {what}: {needed / 2**30:,.1f} GiB in {cache_folder}", file=sys.stderr)


def _streamed(source: _Source) -> Encoded:
    if source.encoded is None:
        raise DataRefused(
            f"{source.name} holds no image files to stream. Received: loading streaming. Use data.loading cached."
        )
    return source.encoded()


def _allows_duplicates(data: Data) -> bool:
    # What is published and asked for by name is what everybody has: what its splits share is told, and stays.
    return data.duplicates == "allow" or data.source in NAMES


def _divide(examples: Examples, name: str, image_size: int, data: Data, seed: int) -> Division:
    return splits.divide(
        examples,
        name=name,
        image_size=image_size,
        seed=seed,
        limit=data.limit,
        drawn_part=data.drawn_part,
        allow_duplicates=_allows_duplicates(data),
    )


def _side_of(
    division: Division, examples: Examples, rows: NDArray[np.int64] | None, image_size: int, notes: Sequence[str], source: str
) -> Side:
    """What is kept of a division, see `_Divided`."""
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
    return Side(arrays, facts)


def _tree_at(path: Path) -> Tree:
    if path.is_dir():
        return Folder(path)
    tree = archives.recognise(path) if path.is_file() else None
    if tree is None:
        raise DataRefused(
            f"{path} is neither a folder nor an archive. Received: a file of {path.stat().st_size:,} bytes. Use a folder, "
            ".tar, .tar.gz, .tar.xz or .zip of images in class folders."
        )
    return tree


def _unknown(source: str, path: Path) -> DataRefused:
    neighbours: list[str] = []
    if path.parent.is_dir():
        neighbours = [str(path.parent / entry.name) for entry in path.parent.iterdir()]
    close = difflib.get_close_matches(source, [*NAMES, *neighbours], n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return DataRefused(
        f"data.source is no known name, and there is no such file or folder. Received: {source!r}. Use {' or '.join(NAMES)}, "
        f"or the path of an image folder or an archive of one{hint}."
    )


def _name(path: Path) -> str:
    """`leaves` for leaves/, leaves.zip and leaves.tar.gz."""
    name = path.resolve().name
    if path.is_dir():
        return name
    for suffix in (".gz", ".xz", ".bz2", ".tgz", ".tar", ".zip"):
        name = name.removesuffix(suffix)
    return name


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


@contextmanager
def _refusing_failures(data: Data) -> Generator[None]:
    try:
        yield
    except MemoryError as error:
        raise DataRefused(
            f"There is not enough memory to read data.source {data.source!r}, and nothing was stored. Received: "
            f"{error!r}. End other programs, or start again with fewer cores or on a machine with more memory."
        ) from error
    except OSError as error:
        raise DataRefused(
            f"data.source {data.source!r} cannot be read, or its cache not be written. Received: {error}. Check the file, or "
            "set paths.cache_dir to a folder with room."
        ) from error
