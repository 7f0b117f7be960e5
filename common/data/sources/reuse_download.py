"""Files that another program has downloaded before, in the folders where Keras and torchvision keep theirs."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common.data import cache


def adopt(names: Sequence[str], sha256: str, place: Path) -> bool:
    """Copy a file into the cache folder in place of downloading it.

    Args:
        names: paths that it may have below the folders of data sets of Keras (`$KERAS_HOME/datasets`) and of torch
            (`$TORCH_HOME/datasets`).
        sha256: of the official file; one of another content is passed over.
        place: where it goes.

    Returns:
        Whether there was one.

    Raises:
        OSError: the cache folder cannot be written.
    """
    for root in (cache.keras_home(), cache.torch_home()):
        for name in names:
            found = root / "datasets" / name
            if found.is_file() and _sha256(found) == sha256:
                place.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as folder:
                    Path(shutil.copyfile(found, Path(folder) / place.name)).replace(place)
                return True
    return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
