"""From the name or path of a source to its tree of files."""

from __future__ import annotations

import difflib
import os
import re
from importlib.metadata import EntryPoint
from pathlib import Path

from common.data.dataset import DataRefused
from common.data.notes import caution
from common.data.sources import archives, cifar10, digits, fashion_mnist, public_sets, synthetic_leaves
from common.data.sources.file_source import FileSource, Folder
from common.machine import plugins

NAMES = (digits.NAME, "cifar10", fashion_mnist.NAME, synthetic_leaves.NAME)


def locate(source: str, cache_folder: Path) -> tuple[str, FileSource]:
    """Return (name, tree) of a source. Missing data is downloaded, or generated if synthetic.

    Raises:
        OSError: the cache folder cannot be written.
    """
    if source == digits.NAME:
        return source, digits.Digits()
    if source == "cifar10":
        return source, _open_tree(cifar10.locate(cache_folder))
    if source == fashion_mnist.NAME:
        return source, Folder(fashion_mnist.locate(cache_folder))
    if synthetic_leaves.is_source(source):
        leaves = synthetic_leaves.parse(source)
        # Without the word, its title would be that of a user's own folder of leaves.
        return f"{leaves} (drawn)", synthetic_leaves.LeafSource(leaves)
    if public_sets.is_source(source):
        public_set = public_sets.parse(source)
        return public_set.title, _open_tree(public_sets.locate(public_set, cache_folder))
    if source in (entry_points := _plugin_sources(source)):
        return source, _open_tree(_load_entry_point(entry_points[source], cache_folder))
    try:
        path = Path(source).expanduser()
    except RuntimeError:  # `~name` of nobody
        path = Path(source)
    if not path.exists():
        raise _unknown_error(source, path)
    return _name(path), _open_tree(path)


def other_reading(source: str) -> list[str]:
    """Return a note if a source is the name of a data set, and there is a file or folder of that name too. Else empty."""
    is_name = source in NAMES or source in _plugin_sources(source)
    if not is_name or not Path(source).exists():
        return []
    made_up = "drawn leaves" if source == synthetic_leaves.NAME else f"data set {source}"
    return [
        caution(f"data.source {source} is the suite's {made_up}, not ./{source} of this folder. Use ./{source} to read that")
    ]


def _plugin_sources(source: str) -> dict[str, EntryPoint]:
    """Return the data sets of installed packages, by name. Empty if the source can be none of them."""
    return plugins.installed(plugins.DATASETS) if re.fullmatch(r"[\w-]+", source) else {}


def _load_entry_point(entry: EntryPoint, cache_folder: Path) -> Path:
    """Return the path of a data set from an installed package."""
    try:
        path = entry.load()(cache_folder)
    except DataRefused:
        raise
    except Exception as error:  # somebody else's code may raise any
        raise DataRefused(
            f"data.source {entry.name} failed in {entry.value}. Received: {type(error).__name__}: {error}. Mend the package."
        ) from error
    if not isinstance(path, str | os.PathLike) or not Path(path).exists():
        raise DataRefused(
            f"data.source {entry.name}: {entry.value} must return the path of a folder or an archive. Received: {path!r}. "
            "Mend the package."
        )
    return Path(path)


def _open_tree(path: Path) -> FileSource:
    if path.is_dir():
        return Folder(path)
    tree = archives.open_archive(path) if path.is_file() else None
    if tree is None:
        raise DataRefused(
            f"{path} is neither a folder nor an archive. Received: a file of {path.stat().st_size:,} bytes. Use a folder, "
            ".tar, .tar.gz, .tar.xz or .zip of images in class folders."
        )
    return tree


def _unknown_error(source: str, path: Path) -> DataRefused:
    neighbours = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    names = [*NAMES, *plugins.installed(plugins.DATASETS)]
    matches = difflib.get_close_matches(source, names, n=1)
    matches += [str(path.parent / name) for name in difflib.get_close_matches(path.name, neighbours, n=1)]
    hint = f" (did you mean {matches[0]}?)" if matches else ""
    return DataRefused(
        f"data.source is no known name, and there is no such file or folder. Received: {source!r}. Use {' or '.join(names)}, "
        f"{', '.join(f'{package}:NAME' for package in public_sets.PACKAGES)}, or the path of an image folder or an archive of "
        f"one{hint}."
    )


def _name(path: Path) -> str:
    """Return the name of a source: `leaves` for leaves/, leaves.zip and leaves.tar.gz."""
    name = path.resolve().name
    if path.is_dir():
        return name
    for suffix in (".gz", ".xz", ".bz2", ".tgz", ".tar", ".zip"):
        name = name.removesuffix(suffix)
    return name
