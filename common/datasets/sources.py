"""From the name or path in a spec to a dataset."""

from __future__ import annotations

import difflib
import hashlib
import json
from pathlib import Path

from common.datasets import archives, cifar10, decode, digits, image_folder, splits
from common.datasets.dataset import DataRefused, Dataset
from common.datasets.trees import Folder, Tree
from common.preprocessing import cache
from common.preprocessing.cache import Contents, Decoded, PixelFile
from common.spec import Data

NAMES = ("digits", "cifar10")


def load(data: Data, *, seed: int, cache_dir: str | None = None) -> Dataset:
    """Load a dataset; images are decoded once and then shared through the cache folder.

    Args:
        data: which source, at what size, how much of it.
        seed: of the splits that are drawn and of the part that a limit keeps; 0..2**63 - 1.
        cache_dir: the cache folder; None: $CONVTWINS_CACHE, else the user's cache folder.

    Raises:
        DataRefused: there is no such data, or it is damaged, hostile or laid out otherwise.
    """
    try:
        name, decoded = _decoded(data, cache.folder(cache_dir))
    except OSError as error:
        raise DataRefused(
            f"data.source {data.source!r} cannot be read, or its cache not be written. Received: {error}. Check the file, or "
            "set paths.cache_dir to a folder with room."
        ) from error
    return splits.divide(decoded, name=name, seed=seed, limit=data.limit)


def _decoded(data: Data, cache_folder: Path) -> tuple[str, Decoded]:
    if data.source == "digits":
        return data.source, digits.decode(data.image_size)
    if data.source == "cifar10":
        return data.source, _through_cache(_tree(cifar10.locate(cache_folder)), data.image_size, cache_folder)
    path = Path(data.source).expanduser()
    if not path.exists():
        raise _unknown(data.source, path)
    return _name(path), _through_cache(_tree(path), data.image_size, cache_folder)


def _tree(path: Path) -> Tree:
    if path.is_dir():
        return Folder(path)
    tree = archives.recognise(path) if path.is_file() else None
    if tree is None:
        raise DataRefused(
            f"{path} is neither a folder nor an archive. Received: a file of {path.stat().st_size:,} bytes. Use a folder, "
            ".tar, .tar.gz, .tar.xz or .zip of images in class folders."
        )
    return tree


def _through_cache(tree: Tree, image_size: int | None, cache_folder: Path) -> Decoded:
    content_hash = tree.content_hash()

    def build(pixels: PixelFile) -> Contents:
        files = tree.files()
        layout = cifar10.recognise(files)
        if layout is not None:
            contents = cifar10.build(tree, layout, image_size, pixels)
        else:
            contents = image_folder.build(tree, files, image_size, pixels)
        if tree.content_hash() != content_hash:
            raise DataRefused(f"{tree.path} was changed while it was read. Received: another hash. Start again.")
        return contents

    identity = {"content": content_hash, "image_size": image_size, "decode": decode.RULE}
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return cache.fetch(cache_folder, key, build)


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
