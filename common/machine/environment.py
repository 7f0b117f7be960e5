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
"""The lowest supported version of Python, and the first later one without support. A test compares pyproject.toml."""

REQUIRED = (
    "numpy", "pillow", "pooch", "platformdirs", "filelock", "safetensors", "dask", "distributed", "simplejpeg", "scikit-learn",
    "scipy", "psutil", "pydantic", "pyyaml",
)  # fmt: skip
"""Normalised names of the distributions that `common` and so every twin imports: the ones in locks/common.txt."""

_DISTRIBUTION = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(-py[\d.]+[^-]*)?\.(dist|egg)-info")
_VARIANT_SUFFIXES = ("", "-cpu")
"""Suffixes of a distribution's name under which it has the same package."""
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def describe() -> dict[str, Any]:
    """Return interpreter, distributions and driver of this process: the fields of `common.artifacts.schema.Environment`."""
    installed = distributions()
    requirements = [f"{name}=={version}" for name, version in installed.items()]
    digest = hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()
    driver = _driver()
    return {
        "interpreter": sys.executable,
        "python": sys.version.split()[0],
        "distributions": requirements,
        "distributions_hash": digest,
        "libraries": {"NVIDIA driver": driver} if driver else {},
    }


def distributions() -> dict[str, str]:
    """Return the versions of all distributions that this process can import, by normalised name. The first on the path counts.

    They are read from the names of folders, which takes a millisecond. The metadata would take a tenth of a second.
    """
    versions: dict[str, str] = {}
    for name, version, _ in _folders():
        versions.setdefault(name, version)
    return dict(sorted(versions.items()))


def _folders() -> Iterator[tuple[str, str, Path]]:
    """Yield (normalised name, version, metadata) of every distribution on the path, hidden ones too."""
    for path in dict.fromkeys(sys.path):
        try:
            names = sorted(os.listdir(path or "."))  # noqa: PTH208 (Path.iterdir takes three times as long)
        except OSError:  # a zip file, or nothing
            continue
        for name in names:
            if (match := _DISTRIBUTION.fullmatch(name)) is not None:
                yield normalised(match["name"]), match["version"], Path(path, name)


def normalised(name: str) -> str:
    """Return a distribution's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def version(package: str, installed: Mapping[str, str]) -> str | None:
    """Return the installed version of a distribution, or of its variant for CPUs. None: neither is installed."""
    return next((release for suffix in _VARIANT_SUFFIXES if (release := installed.get(normalised(package) + suffix))), None)


def describe_unsupported(supported: Mapping[str, Sequence[str]], versions: Mapping[str, str | None]) -> str | None:
    """Return why these versions cannot be used, or None if they can.

    Args:
        supported: name: (the lowest version, the first later version without support).
        versions: name: the installed version. None: not installed.
    """
    for name, (lowest, beyond) in supported.items():
        use = f"Use a version from {lowest} on and below {beyond}."
        if (version := versions.get(name)) is None:
            return f"{name} is not installed. {use}"
        if not release_numbers(lowest) <= release_numbers(version) < release_numbers(beyond):
            return f"{name} {version} is not supported. {use}"
    return None


def why_unusable(package: ModuleType) -> str | None:
    """Return why the twin of a package cannot use this environment, judged by versions alone. None: it can."""
    installed = distributions()
    supported: dict[str, Sequence[str]] = getattr(package, "SUPPORTED", {})
    if (reason := describe_unsupported(supported, {name: version(name, installed) for name in supported})) is not None:
        return reason
    if missing := [name for name in REQUIRED if name not in installed]:
        return f"It has no {', '.join(missing)}, and every twin needs what locks/common.txt names. Install it there."
    return None


def why_unusable_here(package: str) -> str | None:
    """Return `why_unusable` for a package of the suite. None also if it cannot be imported: its own process reports that."""
    try:
        return why_unusable(importlib.import_module(package.partition(".")[0]))
    except ImportError:
        return None


def framework_versions(package: str) -> dict[str, str | None]:
    """Return the versions here of the distributions that a twin of the suite is written for. None: not installed."""
    installed = distributions()
    supported: dict[str, Sequence[str]] = getattr(importlib.import_module(package.partition(".")[0]), "SUPPORTED", {})
    return {name: version(name, installed) for name in supported}


def release_numbers(text: str) -> tuple[int, ...]:
    """Return the release numbers of a version: (2, 14, 1) for `2.14.1+cpu`."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def clashes() -> list[str]:
    """Describe distributions that installed different files under one name. Only the last file is there.

    NVIDIA's libraries for CUDA 12 and 13 do so: `nvidia/cudnn` is of both.
    """
    owners: dict[str, dict[str, str]] = {}
    versions: dict[str, list[str]] = {}
    for name, release, folder in _folders():
        versions.setdefault(name, []).append(f"{release} in {folder.parent}")
        if len(versions[name]) > 1:
            continue
        try:
            lines = (folder / "RECORD").read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        for line in lines:
            path, _, checksum = line.rpartition(",")[0].rpartition(",")
            if checksum and not path.startswith("..") and not path.endswith(".pyc"):
                owners.setdefault(path, {})[name] = checksum
    shared: dict[tuple[str, ...], list[str]] = {}
    for path, checksums in owners.items():
        if len(set(checksums.values())) > 1:
            shared.setdefault(tuple(sorted(checksums)), []).append(path)
    files = [
        f"{' and '.join(names)} both installed {paths[0]}{f' and {len(paths) - 1} more files' if len(paths) > 1 else ''}"
        for names, paths in shared.items()
    ]
    return files + [f"{name} is there twice: {', and '.join(places)}" for name, places in versions.items() if len(places) > 1]


def main(arguments: Sequence[str]) -> None:
    """Print this environment as JSON, with the reason if the twin of a package cannot use it."""
    group, colon, twin = arguments[0].partition(":")
    entry_points = plugins.installed(group) if colon else {}
    installed = distributions()
    package = None
    refusal: str | None = f"It has no twin {twin}. Install a package with an entry point {twin} in the group {group}."
    if twin in entry_points or not colon:
        package = importlib.import_module(entry_points[twin].module if colon else arguments[0].partition(".")[0])
        refusal = why_unusable(package)
    report = {
        **describe(),
        "refusal": refusal,
        "needed": {name: installed.get(name) for name in REQUIRED},
        "installed": any(version(name, installed) for name in list(getattr(package, "SUPPORTED", {}))[:1]),
        "code": plugins.code_digest(package) if package is not None and colon else None,
        "brought": list(entry_points if colon else plugins.installed(plugins.TWINS) if "--clashes" in arguments else ()),
        "clashes": clashes() if "--clashes" in arguments else None,
    }
    print(json.dumps(report))


def _driver() -> str | None:
    """Return the version of the NVIDIA kernel driver, or None if there is none."""
    try:
        match = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", _DRIVER_FILE.read_text(encoding="utf-8"))
    except OSError:
        return None
    return match[1] if match else None


if __name__ == "__main__":
    main(sys.argv[1:])
