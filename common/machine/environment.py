"""The environment of a process: interpreter, installed distributions, GPU driver.

It needs the standard library alone, so it also runs where nothing else is installed:
`python -m common.machine.environment PACKAGE [--clashes]` prints it as JSON. PACKAGE is that of a twin, or
`convtwins.twins:NAME` for one that an installed package brings. Of that one it prints a digest of the code too.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from common.machine import plugins

PYTHONS = ("3.11", "3.14")
"""The lowest version of Python that is supported, and the first later one that is not. A test compares pyproject.toml."""

NEEDED = (
    "numpy", "pillow", "pooch", "platformdirs", "filelock", "safetensors", "dask", "distributed", "simplejpeg", "scikit-learn",
    "scipy", "psutil", "pydantic", "pyyaml",
)  # fmt: skip
"""Distributions that `common` imports, so every twin. Those of locks/common.txt, by normalised name."""

_DISTRIBUTION = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(-py[\d.]+[^-]*)?\.(dist|egg)-info")
_VARIANTS = ("", "-cpu")
"""Endings of a distribution's name that bring the same package."""
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def describe() -> dict[str, Any]:
    """Interpreter, distributions and driver of this process: the fields of `common.artifacts.schema.Environment`."""
    installed = distributions()
    listed = [f"{name}=={version}" for name, version in installed.items()]
    digest = hashlib.sha256("\n".join([sys.version, *listed]).encode()).hexdigest()
    driver = _driver()
    return {
        "interpreter": sys.executable,
        "python": sys.version.split()[0],
        "distributions": listed,
        "distributions_hash": digest,
        "libraries": {"NVIDIA driver": driver} if driver else {},
    }


def distributions() -> dict[str, str]:
    """Versions of all distributions that this process can import, by normalised name. Of several the first counts.

    Read from the names of their folders, which takes a millisecond. Their metadata would take a tenth of a second.
    """
    found: dict[str, str] = {}
    for name, version, _ in _folders():
        found.setdefault(name, version)
    return dict(sorted(found.items()))


def _folders() -> Iterator[tuple[str, str, Path]]:
    """(normalised name, version, metadata) of every distribution on the path, also of those that another one hides."""
    for place in dict.fromkeys(sys.path):
        try:
            names = sorted(os.listdir(place or "."))  # noqa: PTH208 (Path.iterdir takes three times as long)
        except OSError:  # a zip file, or nothing
            continue
        for name in names:
            if (match := _DISTRIBUTION.fullmatch(name)) is not None:
                yield normalised(match["name"]), match["version"], Path(place, name)


def normalised(name: str) -> str:
    """A distribution's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def version(package: str, installed: Mapping[str, str]) -> str | None:
    """The installed version of a distribution, or of its variant for CPUs. None: neither is installed."""
    return next((found for ending in _VARIANTS if (found := installed.get(normalised(package) + ending))), None)


def unsupported(supported: Mapping[str, Sequence[str]], versions: Mapping[str, str | None]) -> str | None:
    """Why these versions cannot be used. None if they can.

    Args:
        supported: name: (the lowest version, the first later one that is not supported).
        versions: of the same names. None: it is not installed.
    """
    for name, (lowest, beyond) in supported.items():
        use = f"Use a version from {lowest} on and below {beyond}."
        if (found := versions.get(name)) is None:
            return f"{name} is not installed. {use}"
        if not numbers(lowest) <= numbers(found) < numbers(beyond):
            return f"{name} {found} is not supported. {use}"
    return None


def refused(package: ModuleType) -> str | None:
    """Why the twin of a package cannot use this environment, as far as versions say. None: it can. No framework is imported."""
    installed = distributions()
    supported: dict[str, Sequence[str]] = getattr(package, "SUPPORTED", {})
    if (words := unsupported(supported, {name: version(name, installed) for name in supported})) is not None:
        return words
    if missing := [name for name in NEEDED if name not in installed]:
        return f"It has no {', '.join(missing)}, and every twin needs what locks/common.txt names. Install it there."
    return None


def refused_here(package: str) -> str | None:
    """The same of a package of the suite, by name. None also if it cannot be imported: its own process says why."""
    try:
        return refused(importlib.import_module(package.partition(".")[0]))
    except ImportError:
        return None


def numbers(text: str) -> tuple[int, ...]:
    """The release numbers of a version: (2, 14, 1) of `2.14.1+cpu`."""
    release = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, release[0].split("."))) if release else ()


def clashes() -> list[str]:
    """Distributions that installed different files of one name, in words. Only the last file is there.

    NVIDIA's libraries for CUDA 12 and 13 do so: `nvidia/cudnn` is of both.
    """
    owners: dict[str, dict[str, str]] = {}
    versions: dict[str, list[str]] = {}
    for name, own, folder in _folders():
        versions.setdefault(name, []).append(f"{own} in {folder.parent}")
        if len(versions[name]) > 1:
            continue
        try:
            lines = (folder / "RECORD").read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        for line in lines:
            path, _, rest = line.rpartition(",")[0].rpartition(",")
            if rest and not path.startswith("..") and not path.endswith(".pyc"):
                owners.setdefault(path, {})[name] = rest
    shared: dict[tuple[str, ...], list[str]] = {}
    for path, own in owners.items():
        if len(set(own.values())) > 1:
            shared.setdefault(tuple(sorted(own)), []).append(path)
    files = [
        f"{' and '.join(names)} both installed {paths[0]}{f' and {len(paths) - 1} more files' if len(paths) > 1 else ''}"
        for names, paths in shared.items()
    ]
    return files + [f"{name} is there twice: {', and '.join(places)}" for name, places in versions.items() if len(places) > 1]


def main(words: Sequence[str]) -> None:
    """Print this environment, and why the twin of a package cannot use it."""
    group, colon, twin = words[0].partition(":")
    brought = plugins.installed(group) if colon else {}
    installed = distributions()
    package = None
    refusal: str | None = f"It has no twin {twin}. Install a package with an entry point {twin} in the group {group}."
    if twin in brought or not colon:
        package = importlib.import_module(brought[twin].module if colon else words[0].partition(".")[0])
        refusal = refused(package)
    found = {
        **describe(),
        "refusal": refusal,
        "needed": {name: installed.get(name) for name in NEEDED},
        "installed": any(version(name, installed) for name in list(getattr(package, "SUPPORTED", {}))[:1]),
        "code": plugins.code_digest(package) if package is not None and colon else None,
        "brought": list(brought if colon else plugins.installed(plugins.TWINS) if "--clashes" in words else ()),
        "clashes": clashes() if "--clashes" in words else None,
    }
    print(json.dumps(found))


def _driver() -> str | None:
    """Version of the NVIDIA kernel driver. None if there is none."""
    try:
        found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", _DRIVER_FILE.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[1] if found else None


if __name__ == "__main__":
    main(sys.argv[1:])
