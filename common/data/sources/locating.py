"""From the name or path of a source to its tree of files."""

from __future__ import annotations

import difflib
import os
import re
from importlib.metadata import EntryPoint
from pathlib import Path

from common.data import cache
from common.data.dataset import DataRefused
from common.data.sources import archives, cifar10, fashion_mnist, public_sets, synthetic_leaves
from common.data.sources.file_source import FileSource, Folder
from common.machine import plugins

NAMES = ("digits", "cifar10", fashion_mnist.NAME, synthetic_leaves.NAME)


def locate(source: str, cache_folder: Path) -> tuple[str, FileSource] | None:
    """(name, tree) of a source. Missing data is downloaded, or generated if synthetic. None for the digits: no files.

    Raises:
        DataRefused: there is no such source, or it cannot be downloaded.
        OSError: the cache folder cannot be written.
    """
    if source == "digits":
        return None
    if source == "cifar10":
        return source, _at(cifar10.locate(cache_folder))
    if source == fashion_mnist.NAME:
        return source, Folder(fashion_mnist.locate(cache_folder))
    if synthetic_leaves.is_source(source):
        wanted = synthetic_leaves.parse(source)
        folder = synthetic_leaves.locate(wanted, cache_folder)
        cache.mark_used(folder)
        return str(wanted), Folder(folder)
    if public_sets.is_source(source):
        public = public_sets.parse(source)
        return public.title, _at(public_sets.locate(public, cache_folder))
    if re.fullmatch(r"[\w-]+", source) and source in (brought := plugins.installed(plugins.DATASETS)):
        return source, _at(_brought(brought[source], cache_folder))
    try:
        path = Path(source).expanduser()
    except RuntimeError:  # `~name` of nobody
        path = Path(source)
    if not path.exists():
        raise _unknown(source, path)
    return _name(path), _at(path)


def _brought(entry: EntryPoint, cache_folder: Path) -> Path:
    """The files of a data set that an installed package brings.

    Raises:
        DataRefused: the package fails, or names no path.
    """
    try:
        found = entry.load()(cache_folder)
    except DataRefused:
        raise
    except Exception as error:  # somebody else's code may raise any
        raise DataRefused(
            f"data.source {entry.name} failed in {entry.value}. Received: {type(error).__name__}: {error}. Mend the package."
        ) from error
    if not isinstance(found, str | os.PathLike) or not Path(found).exists():
        raise DataRefused(
            f"data.source {entry.name}: {entry.value} must return the path of a folder or an archive. Received: {found!r}. "
            "Mend the package."
        )
    return Path(found)


def _at(path: Path) -> FileSource:
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
    neighbours = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    names = [*NAMES, *plugins.installed(plugins.DATASETS)]
    close = difflib.get_close_matches(source, names, n=1)
    close += [str(path.parent / name) for name in difflib.get_close_matches(path.name, neighbours, n=1)]
    hint = f" (did you mean {close[0]}?)" if close else ""
    return DataRefused(
        f"data.source is no known name, and there is no such file or folder. Received: {source!r}. Use {' or '.join(names)}, "
        f"{', '.join(f'{each}:NAME' for each in public_sets.PACKAGES)}, or the path of an image folder or an archive of "
        f"one{hint}."
    )


def _name(path: Path) -> str:
    """`leaves` for leaves/, leaves.zip and leaves.tar.gz."""
    name = path.resolve().name
    if path.is_dir():
        return name
    for suffix in (".gz", ".xz", ".bz2", ".tgz", ".tar", ".zip"):
        name = name.removesuffix(suffix)
    return name
