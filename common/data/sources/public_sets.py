"""Data sets by their names in other packages: `torchvision:CIFAR10`, `tfds:mnist`, `huggingface:owner/name`.

The package reads a set in a process of its own, which writes the images to an archive of class folders in the cache. From then
on the archive is the source, and nothing needs the package.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from common.data import cache
from common.data.cache import Entry, EntryMetadata
from common.data.dataset import DataRefused
from common.data.sources import public_set_process
from common.data.sources.file_source import Folder
from common.machine.private_folder import PrivateFolder

KIND = "public"
"""Folder of the archives in the cache."""
PACKAGES = {"torchvision": "torchvision.datasets", "tfds": "tensorflow_datasets", "huggingface": "datasets"}
"""Module of each package, by the prefix before the colon."""

_VERSION = 1
"""Version of the archives. Raise it when `public_set_process` writes other archives."""
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[\w.-]+)*(:\d+(\.\d+)*)?")
_ANSWERS = {"yes": True, "no": False}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
# Reading needs no GPU. TensorFlow would take all of its memory.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}


@dataclass(frozen=True, kw_only=True)
class PublicSet:
    """A parsed source, e.g. `torchvision:EMNIST,split=letters,root=/data,download=yes`."""

    source: str
    package: str
    name: str
    """Name in the package. Empty: the set is at `path`."""
    path: Path | None = None
    """Folder of a set that the package has written."""
    download: bool = False
    settings: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def title(self) -> str:
        return f"{self.package}:{self.name or (self.path or Path()).name}"


def is_source(source: str) -> bool:
    """Return whether a source is a set of another package."""
    return source.partition(":")[0] in PACKAGES and ":" in source


def is_published(source: str) -> bool:
    """Return whether a set is published: it has a name, and is no folder of the user."""
    return is_source(source) and parse(source).path is None


def parse(source: str) -> PublicSet:
    """Read `PACKAGE:NAME,setting=value,...`. A path in place of the name is a set that the package wrote there."""
    package, _, rest = source.partition(":")
    subject, *parts = rest.split(",")
    settings: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not (name.isidentifier() and equals and value) or name in settings:
            raise _refusal(source, "a setting has the form name=value, and stands once", part, "e.g. root=/data")
        settings[name] = value
    download = settings.pop("download", "no")
    if download not in _ANSWERS:
        raise _refusal(source, "download is yes or no", download, "download=yes to let the package download it")
    is_path = subject.startswith(("/", "./", "../", "~"))
    if not is_path and not _NAME.fullmatch(subject):
        raise _refusal(source, "a name is missing", subject, f"e.g. {package}:NAME, or {package}:/path/of/a/set")
    path = Path(os.path.expanduser(subject)).absolute() if is_path else None  # noqa: PTH111  `~name` of nobody is no error
    if path is not None and not path.is_dir():
        raise _refusal(source, "there is no such folder", str(path), "the folder that the package wrote")
    return PublicSet(
        source=source,
        package=package,
        name="" if is_path else subject,
        path=path,
        download=_ANSWERS[download],
        settings=settings,
    )


def locate(public_set: PublicSet, cache_folder: Path) -> Path:
    """Return the archive of a set in the cache. The package writes a missing one.

    Raises:
        OSError: the cache folder cannot be written.
    """

    def build(file: BinaryIO) -> EntryMetadata:
        facts = _read(public_set, Path(file.name))
        return EntryMetadata({}, {"source": public_set.title, **facts})

    key = cache.key(
        package=public_set.package,
        name=public_set.name,
        settings=public_set.settings,
        path=None if public_set.path is None else (str(public_set.path), Folder(public_set.path).fingerprint()[0]),
        version=_VERSION,
    )
    entry: Entry = cache.fetch(cache_folder, KIND, key, build)
    return entry.data


def _read(public_set: PublicSet, out: Path) -> dict[str, Any]:
    """Let the package write its set. Returns the facts of the archive."""
    print(f"reading {public_set.title} once, into {out.parent.parent}", file=sys.stderr)
    root = {"root": str(cache.torch_home() / "datasets")} if public_set.package == "torchvision" else {}
    request = {
        "source": public_set.source,
        "package": public_set.package,
        "module": PACKAGES[public_set.package],
        "name": public_set.name,
        "path": None if public_set.path is None else str(public_set.path),
        "download": public_set.download,
        "settings": root | public_set.settings,
        "out": str(out),
    }
    python = os.environ.get(public_set_process.PYTHON) or sys.executable
    with PrivateFolder() as temporary:  # packages leave folders there
        result = subprocess.run(
            [python, "-P", public_set_process.__file__],
            env={**os.environ, **_ENVIRONMENT, **({} if public_set.download else _OFFLINE), **temporary.environment},
            input=json.dumps(request),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    try:
        answer = json.loads(result.stdout)
    except ValueError:
        raise DataRefused(
            f"data.source {public_set.source} ended {PACKAGES[public_set.package]} (exit code {result.returncode}). Received: "
            "no answer; its stderr says why. Make room, or use a smaller set."
        ) from None
    if "refused" in answer:
        raise DataRefused(answer["refused"])
    return answer


def _refusal(source: str, problem: str, received: str, advice: str) -> DataRefused:
    return DataRefused(f"data.source {source} is refused: {problem}. Received: {received!r}. Use {advice}.")
