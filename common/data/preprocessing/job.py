"""One timed scan in a separate process: its job file and its result."""

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
"""Context manager with arguments (files, image size, workers). It starts the workers and gives the function that scans."""


class Scan(Frozen):
    """The measurement of one process."""

    images: int
    import_seconds: float
    """Seconds from the start of the process until its framework was imported."""
    start_seconds: float
    """Seconds from then until the workers were started and warmed up."""
    seconds: float
    """Seconds of the scan."""
    peak_memory_mib: float
    """Peak memory of the process and its workers."""
    cores_of_others: float
    """Cores that other processes used during the scan. Workers of a cluster count as other processes."""
    pixels: int
    values: Triple
    squares: Triple

    @property
    def sums(self) -> Sums:
        return Sums(self.pixels, self.values, self.squares)


def save(encoded: Encoded, image_size: int, path: Path) -> None:
    """Write a job file. Any number of processes may read it."""
    np.savez(
        path,
        path=np.array(os.fspath(encoded.path)),
        offsets=encoded.offsets,
        sizes=encoded.sizes,
        plain=encoded.decodes_identically,
        image_size=np.array(image_size),
    )


def load(path: Path) -> tuple[Encoded, int]:
    """Read the files and the image size of a job file."""
    with np.load(path, allow_pickle=False) as job:
        encoded = Encoded(Path(str(job["path"])), job["offsets"], job["sizes"], job["plain"])
        return encoded, int(job["image_size"])


def run(scanning: Scanning, path: Path, workers: int, out: Path, started: float) -> None:
    """Scan the files of a job and write the Scan to `out`.

    Args:
        scanning: the engine. All that it needs has been imported.
        path: the job file.
        workers: number of workers, at least 1.
        out: file for the result.
        started: start of the process, by `machine.clock`.
    """
    encoded, image_size = load(path)
    imported = machine.clock()
    with scanning(encoded, image_size, workers) as scan:
        start_seconds = machine.clock() - imported
        meter = Meter()
        start = time.perf_counter()
        sums = scan()
        seconds = time.perf_counter() - start
        cores_of_others = meter.cores_of_others()
        peak_memory_mib = machine.peak_memory_mib()
    if sums.pixels != len(encoded) * image_size**2:
        raise AssertionError(f"The scan added {sums.pixels:,} pixels for {len(encoded):,} images of {image_size} px")
    result = Scan(
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
    atomic_files.write_atomically(out, result.model_dump_json(indent=1))
