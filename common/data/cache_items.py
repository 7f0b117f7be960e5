"""Lists the contents of the cache folder, and removes what nobody uses."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from common.data import cache
from common.data.sources import cifar10, fashion_mnist, public_sets

_ENTRIES = {"decoded": "decoded images", "scanned": "checked files", "divided": "splits", public_sets.KIND: "public data sets"}
_SMALL = {"hashes": "content hashes", "statistics": "means and deviations", "proofs": "proofs", "best": "best switches"}
_DOWNLOADS = (cifar10.BINARY.name, cifar10.PYTHON.name, *cifar10.FOLDERS, fashion_mnist.FOLDER)
_OLD_LEAVES = "leaves"
"""Folder of drawn leaves as files, which earlier versions kept."""
_HOUR, _DAY = 3_600.0, 86_400.0


@dataclass(frozen=True, kw_only=True)
class CacheItem:
    """One line of the list. It is kept or removed as a whole."""

    kind: str
    source: str
    """Source of the data in the item."""
    detail: str
    path: str
    num_bytes: int
    """Bytes on the disk."""
    last_used: float
    """Time of the last use, in seconds since 1970."""
    status: Literal["kept", "in use", "removed"] = "kept"


def list_items(root: Path) -> list[CacheItem]:
    """Return the items of a cache folder, the largest first. Files of other programs are left out."""
    return sorted((*_entries(root), *_small(root), *_downloads(root), *_left_over(root)), key=_by_size)


def prune_items(root: Path, days: float) -> list[CacheItem]:
    """Remove items that were not used for `days` days, and the remains of killed processes. Downloads stay.

    Items that a process reads or writes stay: their readers hold a lock on them.

    Raises:
        OSError: the folder cannot be written.
    """
    latest = time.time() - days * _DAY
    items: list[CacheItem] = [*_downloads(root)]
    for item in (*_left_over(root), *_entries(root)):
        is_due = item.kind == "left over" or item.last_used <= latest
        items.append(replace(item, status=_remove(Path(item.path))) if is_due else item)
    for item in _small(root):
        for file in _files_of(Path(item.path)):
            modified = file.stat().st_mtime
            if modified <= latest or (file.name.startswith((".", "tmp")) and modified < time.time() - _HOUR):
                file.unlink(missing_ok=True)  # it is made again when it is needed
        remaining = [other for other in _small(root) if other.path == item.path]
        items += remaining or [replace(item, status="removed")]
    return sorted(items, key=_by_size)


def clear_items(root: Path) -> list[CacheItem]:
    """Remove all items that no process reads or writes, also downloads. They are made or fetched again when needed.

    Raises:
        OSError: the folder cannot be written.
    """
    items: list[CacheItem] = []
    for item in prune_items(root, 0.0):
        path = Path(item.path)
        if item.kind == "download":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            item = replace(item, status="removed")
        items.append(item)
    return items


def _entries(root: Path) -> Iterator[CacheItem]:
    for folder, kind in _ENTRIES.items():
        for place in _folders(root / folder):
            if place.suffix == ".partial":
                continue
            facts, record = cache.read_facts(place), place / "entry.json"
            used = (record if record.exists() else place).stat().st_mtime
            yield _item(kind, facts.get("source", "unknown"), _detail(facts), place, used)


def _detail(facts: Mapping[str, Any]) -> str:
    if "sizes" in facts:
        return ", ".join(f"{count:,} {split}" for split, count in facts["sizes"].items())
    if "image_size" in facts:
        return f"{facts['stored']:,} of {facts['images']:,}, {facts['image_size']} px"
    return f"{facts['files']:,} files" if "files" in facts else ""


def _small(root: Path) -> Iterator[CacheItem]:
    for folder, kind in _SMALL.items():
        if files := _files_of(root / folder):
            newest = max(file.stat().st_mtime for file in files)
            yield _item(kind, "", f"{len(files):,} files", root / folder, newest)


def _downloads(root: Path) -> Iterator[CacheItem]:
    for path in (root / name for name in _DOWNLOADS):
        if path.exists():
            yield _item("download", path.name, "stays", path, path.stat().st_mtime)


def _left_over(root: Path) -> Iterator[CacheItem]:
    """Yield the remains of killed processes and of earlier versions, and what live processes are writing. It is locked."""
    for folder in (*_ENTRIES, _OLD_LEAVES):
        for place in _folders(root / folder):
            if place.suffix == ".partial" or folder == _OLD_LEAVES:
                yield _item("left over", "", "of a killed process or version", place, place.stat().st_mtime)


def _remove(path: Path) -> Literal["in use", "removed"]:
    if path.suffix == ".partial":
        done = cache.remove_unfinished(path, path.with_suffix(""))
    else:
        done = cache.remove(path)
    return "removed" if done else "in use"


def _item(kind: str, source: str, detail: str, path: Path, last_used: float) -> CacheItem:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    num_bytes = sum(file.stat().st_blocks * 512 for file in files)  # a sparse file takes less space than its size
    return CacheItem(kind=kind, source=source, detail=detail, path=str(path), num_bytes=num_bytes, last_used=last_used)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and path.suffix != ".lock") if folder.is_dir() else []


def _by_size(item: CacheItem) -> tuple[int, str]:
    return -item.num_bytes, item.path
