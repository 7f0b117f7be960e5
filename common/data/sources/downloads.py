"""Files of published data sets: found in the cache, copied from the folders of Keras and torch, or downloaded."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import filelock

from common.data import cache
from common.data.dataset import DataRefused

_TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Download:
    """An official file. Its hash alone identifies the content."""

    url: str
    sha256: str
    num_bytes: int

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def is_cached(self, file: Path, *, alternative: str) -> bool:
        """Return whether the file is in the cache.

        Args:
            file: its path in the cache.
            alternative: advice for a user who wants to read other data, for the refusal.
        """
        if not file.is_file():
            return False
        sha256 = cache.sha256_of_file(file)
        if sha256 != self.sha256:
            raise DataRefused(
                f"{file} is not the official file. Received: SHA-256 {sha256}, needed: {self.sha256}. Delete it and start "
                f"again. To use it as it is, {alternative}."
            )
        return True

    def reuse_download(self, names: Sequence[str], file: Path) -> bool:
        """Copy the file into the cache from the data folders of Keras and torch.

        Args:
            names: its possible paths below `$KERAS_HOME/datasets` and `$TORCH_HOME/datasets`. A file of other content does
                not count.
            file: its path in the cache.

        Returns:
            Whether it was found.

        Raises:
            OSError: the cache folder cannot be written.
        """
        for root in (cache.keras_home(), cache.torch_home()):
            for name in names:
                candidate = root / "datasets" / name
                if candidate.is_file() and cache.sha256_of_file(candidate) == self.sha256:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder:
                        Path(shutil.copyfile(candidate, Path(folder) / file.name)).replace(file)
                    return True
        return False

    def fetch(self, file: Path, *, source: str, alternative: str) -> None:
        """Download the file from its address.

        Args:
            file: its path in the cache.
            source: name of the data set, for the refusal.
            alternative: as for `is_cached`.
        """
        import pooch  # here: it takes long to import, and is needed once in the life of a cache

        file.parent.mkdir(parents=True, exist_ok=True)
        downloader = cast(Any, pooch.HTTPDownloader(timeout=_TIMEOUT_SECONDS))
        try:
            with filelock.FileLock(file.with_name(f".{file.name}.lock")):
                pooch.retrieve(self.url, f"sha256:{self.sha256}", file.name, file.parent, downloader=downloader)
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; another hash is a ValueError
            raise DataRefused(
                f"{source} cannot be downloaded. Received from {self.url}: {error} Fetch its {self.num_bytes:,} bytes (SHA-256 "
                f"{self.sha256}) by hand and put the file at {file}, or {alternative}."
            ) from None
