"""The scan of a source: each file is opened once, and the result is kept in the cache."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from common.data import cache
from common.data.cache import Entry, EntryMetadata
from common.data.dataset import DataRefused
from common.data.decoding import decode
from common.data.decoding.encoded import Encoded
from common.data.sources import cifar10, digits, fashion_mnist, identity, image_folder, pixel_arrays
from common.data.sources.file_source import FileSource
from common.data.sources.manifest import Manifest
from common.data.sources.pixel_arrays import PixelArrays

_VERSION = 7
"""Version of the result. Raise it when the manifest gets other columns, or a file is judged by another rule."""


@dataclass(frozen=True, eq=False)
class ScanResult:
    """The result of a scan: the files of a source, the usable ones packed into one."""

    key: str
    """Key for cache entries that depend on it. It covers the result: another decoder may judge a file differently."""
    path: Path
    """Path of the tree."""
    _entry: Entry

    @property
    def splits(self) -> list[str]:
        """Names of the splits that the source has. `all` if it is not divided."""
        return self._entry.facts["splits"]

    def manifest(self) -> Manifest:
        """Read the manifest."""
        return Manifest.from_arrays(self._entry.arrays)

    def encoded(self) -> Encoded:
        """Return the image files in all rows of the manifest."""
        return Encoded(self._entry.data, *(self._entry.arrays[name] for name in ("offsets", "file_bytes", "plain")))


def scan(tree: FileSource, cache_folder: Path) -> ScanResult:
    """Scan a tree, or read the result of an earlier scan.

    Raises:
        OSError: the tree cannot be read or the cache not be written.
    """
    with cache.shared_lock(tree.path) if tree.path.is_relative_to(cache_folder) else nullcontext():
        content_hash = identity.content_hash(tree, cache_folder)

        def build(file: BinaryIO) -> EntryMetadata:
            metadata = _scan(tree, file)
            if identity.content_hash(tree, cache_folder) != content_hash:
                raise DataRefused(f"{tree.path} was changed while it was read. Received: another hash. Start again.")
            return metadata

        key = cache.key(content=content_hash, decode=decode.RULE, scan=_VERSION)
        entry = cache.fetch(cache_folder, "scanned", key, build)
    return ScanResult(cache.key(scanned=key, found=entry.arrays_sha256), tree.path, entry)


def _scan(tree: FileSource, file: BinaryIO) -> EntryMetadata:
    listing = tree.listing()
    arrays = _read_arrays(tree, listing.files)
    manifest = image_folder.scan(tree, listing, file) if arrays is None else pixel_arrays.pack(arrays, file)
    facts = {"files": len(manifest), "source": str(tree.path), "splits": manifest.split_names}
    return EntryMetadata(manifest.to_arrays(), facts)


def _read_arrays(tree: FileSource, files: list[str]) -> PixelArrays | None:
    """Read the arrays of a tree. None if it has none."""
    if isinstance(tree, digits.Digits):
        return tree.arrays()
    for module in (cifar10, fashion_mnist):
        layout = module.find_files(files)
        if layout is not None:
            return module.read(tree, layout)  # pyright: ignore[reportArgumentType]  # each module's layout is its own
    return None
