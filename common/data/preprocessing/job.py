"""One timed scan in a process of its own: what it is to read, and what it says of itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from common.artifacts import atomic_files
from common.data.preprocessing.sums import Sums, Triple
from common.data.sources import Encoded
from common.frozen import Frozen
from common.machine import machine
from common.machine.interference import Meter

Scanning = Callable[[Encoded, int, int], AbstractContextManager[Callable[[], Sums]]]
"""(files, image size, workers): starts the workers, and gives the function that scans."""


class Scan(Frozen):
    """What one process measured."""

    images: int
    import_seconds: float
    """From the start of the process until its framework stood."""
    start_seconds: float
    """Until the workers stood and had done a first piece of work."""
    seconds: float
    """Of the scan."""
    peak_memory_mib: float
    """Of the process and its workers."""
    cores_of_others: float
    """What everything else on the machine used during the scan, the workers of a cluster among it."""
    pixels: int
    values: Triple
    squares: Triple

    @property
    def sums(self) -> Sums:
        return Sums(self.pixels, self.values, self.squares)


def save(encoded: Encoded, image_size: int, path: Path) -> None:
    """Write down what is to be scanned, for any number of processes."""
    np.savez(
        path,
        path=np.array(os.fspath(encoded.path)),
        offsets=encoded.offsets,
        sizes=encoded.sizes,
        plain=encoded.plain,
        image_size=np.array(image_size),
    )


def load(path: Path) -> tuple[Encoded, int]:
    """The files and the image size that `save` wrote down."""
    with np.load(path, allow_pickle=False) as job:
        encoded = Encoded(Path(str(job["path"])), job["offsets"], job["sizes"], job["plain"])
        return encoded, int(job["image_size"])


def run(scanning: Scanning, path: Path, workers: int, out: Path, started: float) -> None:
    """Scan what is written down in `path` and write the Scan to `out`.

    Args:
        scanning: the engine; all that it needs is imported by now.
        path: of the job.
        workers: at least 1.
        out: a JSON file.
        started: when the process was started, in seconds since 1970.
    """
    encoded, image_size = load(path)
    imported = time.time()
    with scanning(encoded, image_size, workers) as scan:
        start_seconds = time.time() - imported
        others = Meter()
        start = time.perf_counter()
        sums = scan()
        seconds = time.perf_counter() - start
        cores_of_others = others.cores_of_others()
        peak_memory_mib = machine.peak_memory_mib()
    if sums.pixels != len(encoded) * image_size**2:
        raise AssertionError(f"{sums.pixels:,} pixels were added up for {len(encoded):,} images of {image_size} px")
    made = Scan(
        images=len(encoded),
        import_seconds=imported - started,
        start_seconds=start_seconds,
        seconds=seconds,
        peak_memory_mib=peak_memory_mib,
        cores_of_others=cores_of_others,
        pixels=sums.pixels,
        values=sums.values,
        squares=sums.squares,
    )
    atomic_files.write_atomically(out, made.model_dump_json(indent=1))
