"""Synthetic leaves with spots as JPEG files: any number of classes and images, to try large data without having any.

Equal seeds give equal bytes wherever NumPy's draws and the JPEG encoder are the same.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL
from PIL import Image, features

from common.data import threads
from common.data.dataset import DataRefused
from common.data.sources.file_source import MAX_FILES, Content, FileSource, Listing
from common.data.sources.leaf_drawing import class_name, draw_leaves

NAME = "leaves"
RULE = f"1, NumPy {np.__version__}, Pillow {PIL.__version__}, libjpeg-turbo {features.version('libjpeg_turbo')}"
"""Version of the images. Raise the number when `make` draws others."""

_QUALITY = 90
_PIXELS_PER_TASK = 1 << 16  # few enough for the processor's cache, enough to make Python's overhead small
_WHOLE_NUMBER = re.compile("-?[0-9]{1,1000}")  # Python limits integers to some thousand digits


@dataclass(frozen=True, kw_only=True)
class Leaves:
    """The settings behind `leaves:` in a source, e.g. `leaves:classes=38,images=20000,size=64,seed=1`."""

    classes: int = field(default=10, metadata={"low": 2, "high": 1000})
    images: int = field(default=1000, metadata={"low": 6, "high": MAX_FILES})
    """Number of images of all classes and splits. If they do not divide evenly, the first classes have one more."""
    size: int = field(default=64, metadata={"low": 8, "high": 4096})
    """Height and width in pixels."""
    seed: int = field(default=0, metadata={"low": 0, "high": 2**63 - 1})

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, low, high = getattr(self, setting.name), setting.metadata["low"], setting.metadata["high"]
            if not low <= value <= high:
                raise _refusal(f"{setting.name} is out of range", value, f"{low:,} to {high:,}")
        if self.images < 3 * self.classes:
            raise _refusal("each class needs 3 images, one for each split", self.images, f"images={3 * self.classes} or more")

    def __str__(self) -> str:
        """Return the shortest source with these settings: `leaves`, or `leaves:classes=38`."""
        changed = [
            f"{setting.name}={getattr(self, setting.name)}"
            for setting in fields(self)
            if getattr(self, setting.name) != setting.default
        ]
        return f"{NAME}:{','.join(changed)}" if changed else NAME


def is_source(source: str) -> bool:
    """Return whether a source is synthetic leaves."""
    return source == NAME or source.startswith(f"{NAME}:")


def parse(source: str) -> Leaves:
    """Read `leaves` or `leaves:classes=38,images=20000,size=64,seed=1`, in any order. Missing settings have defaults."""
    names = [setting.name for setting in fields(Leaves)]
    values: dict[str, int] = {}
    _, _, text = source.partition(":")
    for part in text.split(",") if source != NAME else []:
        name, _, value = part.partition("=")
        if name not in names:
            matches = difflib.get_close_matches(name, names, n=1)
            raise _refusal(
                "there is no such setting", part, ", ".join(names) + (f" (did you mean {matches[0]}?)" if matches else "")
            )
        if name in values:
            raise _refusal(f"{name} stands twice", source, "it once")
        if not _WHOLE_NUMBER.fullmatch(value):
            raise _refusal(f"{name} is no whole number", part, f"e.g. {name}={getattr(Leaves(), name)}")
        values[name] = int(value)
    return Leaves(**values)


class LeafSource(FileSource):
    """Leaves as a tree of files. Each is drawn when it is read."""

    def __init__(self, leaves: Leaves) -> None:
        self.path = Path(str(leaves))
        """Name of the tree. There is no such folder."""
        self._leaves = leaves

    def fingerprint(self) -> tuple[str, int]:
        return self.content_hash(), 0

    def content_hash(self) -> str:
        return hashlib.sha256(repr((self._leaves, RULE)).encode()).hexdigest()

    def listing(self) -> Listing:
        return Listing([name for task in _tasks(self._leaves) for name in task.names], [], [])

    def read(self, names: Collection[str]) -> Iterator[tuple[str, Content]]:
        for name, content in _draw(self._leaves):
            if name in names:
                yield name, Content(len(content), lambda content=content: content)


def make(folder: Path, leaves: Leaves) -> None:
    """Write leaves as JPEG files, `train|validation|test/Plant___condition/number.jpg`, 70/20/10 of each class, on all cores.

    The folder appears whole or not at all.

    Args:
        folder: a missing or empty folder.
        leaves: settings of the images.

    Raises:
        OSError: the folder cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataRefused(f"Synthetic leaves need a new or empty folder. Received: {folder}. Choose another one.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        _write_all(partial, leaves)
        partial.chmod(0o755)
        partial.rename(folder)
    except BaseException:  # an interrupt, too
        print(f"removing the unfinished leaves: {partial}", file=sys.stderr)  # thousands of files take seconds
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_all(folder: Path, leaves: Leaves) -> None:
    for class_folder in {(folder / name).parent for task in _tasks(leaves) for name in task.names}:
        class_folder.mkdir(parents=True)
    for name, content in _draw(leaves):
        (folder / name).write_bytes(content)


class _Task(NamedTuple):
    number: int
    label: int
    names: list[str]
    """Paths of the files."""


def _tasks(leaves: Leaves) -> list[_Task]:
    """Divide the leaves into tasks of one class each. Each task has its own random numbers."""
    per_task = max(1, _PIXELS_PER_TASK // leaves.size**2)
    tasks: list[_Task] = []
    for label in range(leaves.classes):
        names = _names(class_name(label), leaves.images // leaves.classes + (label < leaves.images % leaves.classes))
        for first in range(0, len(names), per_task):
            tasks.append(_Task(len(tasks), label, names[first : first + per_task]))
    return tasks


def _draw(leaves: Leaves) -> Iterator[tuple[str, bytes]]:
    """Draw all leaves on all cores. Yields (path, JPEG file)."""

    def work(task: _Task) -> list[tuple[str, bytes]]:
        generator = np.random.Generator(np.random.Philox(key=np.array([leaves.seed, task.number], np.uint64)))
        images = draw_leaves(task.label, len(task.names), leaves.size, generator)
        files: list[tuple[str, bytes]] = []
        with tempfile.TemporaryFile(buffering=0) as file:  # into a file Pillow writes without the interpreter lock
            for name, pixels in zip(task.names, images, strict=True):
                start = file.tell()
                Image.fromarray(pixels).save(file, "JPEG", quality=_QUALITY)
                files.append((name, os.pread(file.fileno(), file.tell() - start, start)))
        return files

    tasks = _tasks(leaves)
    for files in threads.ordered(work, tasks, num_bytes=lambda task: len(task.names) * leaves.size**2 * 3):
        yield from files


def _names(class_name: str, count: int) -> list[str]:
    """Return the paths of the files of a class."""
    num_validation, num_test = max(1, count * 20 // 100), max(1, count * 10 // 100)
    splits = ["train"] * (count - num_validation - num_test) + ["validation"] * num_validation + ["test"] * num_test
    return [f"{split}/{class_name}/{number:06}.jpg" for number, split in enumerate(splits)]


def _refusal(what: str, received: object, use: str) -> DataRefused:
    return DataRefused(f"data.source {NAME} is refused: {what}. Received: {received!r}. Use {use}.")
