"""Twins and data sets from installed packages, found by their entry points.

Each interpreter has its own entry points. A twin is looked up in the interpreter that runs it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

TWINS = "convtwins.twins"
"""Entry-point group of twins. An entry is the twin's package, which `python -m` runs."""
DATASETS = "convtwins.datasets"
"""Entry-point group of data sets. An entry is a function from the cache folder to the path of an image folder or an archive."""


def installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group, by name. Of two packages with the same name, the first on the path counts."""
    entry_points: dict[str, EntryPoint] = {}
    for entry in importlib.metadata.entry_points(group=group):
        entry_points.setdefault(entry.name, entry)
    return entry_points


def code_digest(package: ModuleType) -> str:
    """Return the SHA-256 over all Python files of a package."""
    digest = hashlib.sha256()
    for folder in sorted(map(Path, package.__path__)):
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
