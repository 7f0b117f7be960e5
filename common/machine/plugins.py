"""What installed packages bring: twins and data sets, found by their entry points.

Entry points are those of the interpreter that asks. A twin is looked up in the interpreter that runs it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

TWINS = "convtwins.twins"
"""Name of a twin: its package, which `python -m` runs."""
DATASETS = "convtwins.datasets"
"""Name of a data set: `module:function`. It takes the cache folder and returns the path of an image folder or an archive."""


def installed(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group, by name. Of two packages that bring one name, the first on the path counts."""
    found: dict[str, EntryPoint] = {}
    for entry in importlib.metadata.entry_points(group=group):
        found.setdefault(entry.name, entry)
    return found


def code_digest(package: ModuleType) -> str:
    """SHA-256 over all Python files of a package."""
    digest = hashlib.sha256()
    for folder in sorted(map(Path, package.__path__)):
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
