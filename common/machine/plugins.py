"""Twins, data sets and commands from installed packages, found by their entry points.

Each interpreter has its own entry points. A twin is looked up in the interpreter that runs it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

TWINS = "convtwins.twins"
"""Entry-point group of twins. An entry is the twin's package, which `python -m` runs."""
DATASETS = "convtwins.datasets"
"""Entry-point group of data sets. An entry is a function from the cache folder to the path of an image folder or an archive."""
COMMANDS = "convtwins.commands"
"""Entry-point group of commands. An entry is a module of a package, and its function `command` runs the command."""

_METADATA = ("dist-info", "egg-info")
"""Endings of the folders that hold a package's metadata. The second stands beside a source that setuptools has built."""


def entry_values(group: str) -> dict[str, str]:
    """Return the values of a group's entry points, by name. If two packages have the same name, the first on the path counts.

    The list of commands needs them. Importing `importlib.metadata` would take as long as half of that list.
    """
    values: dict[str, str] = {}
    distributions = set[str]()
    for folder in sys.path:
        try:
            names = sorted(os.listdir(folder or "."))  # noqa: PTH208  names alone
        except OSError:  # a file, or no longer there
            continue
        for name in names:
            stem, _, ending = name.rpartition(".")
            distribution = stem.partition("-")[0].lower()
            if ending not in _METADATA or distribution in distributions:
                continue
            distributions.add(distribution)
            try:
                text = Path(folder, name, "entry_points.txt").read_text(encoding="utf-8", errors="replace")
            except OSError:  # most packages have none
                continue
            if f"[{group}]" in text:
                values = _section(text, group) | values
    return values


def installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group, by name, as `entry_values` finds them."""
    from importlib.metadata import EntryPoint

    return {name: EntryPoint(name, value, group) for name, value in entry_values(group).items()}


def code_digest(package: ModuleType) -> str:
    """Return the SHA-256 over all Python files of a package, and of those that its `IMPORTS` names."""
    import hashlib
    import importlib.util

    folders = [*package.__path__]
    for name in getattr(package, "IMPORTS", ()):
        package_spec = importlib.util.find_spec(name)  # not imported: only the twin itself may import a framework
        folders += (package_spec and package_spec.submodule_search_locations) or ()
    digest = hashlib.sha256()
    for folder in sorted(map(Path, folders)):
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _section(text: str, group: str) -> dict[str, str]:
    """Return the entries of a section of an `entry_points.txt`."""
    entries: dict[str, str] = {}
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[]")
        elif section == group and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            entries[name.strip()] = value.strip()
    return entries
