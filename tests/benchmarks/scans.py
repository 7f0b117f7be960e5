"""The scans for mean and standard deviation, beside the limit and the published way: the engines, and pairs of their rates.

The limit is libjpeg-turbo's decode and integer sums in C threads, from limit.c. The published way reads each file whole
into a dask.array of images (skimage.io.imread, which is Pillow and `asarray`) and asks that for mean and std. All take
turns, forwards and backwards, on all cores.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import dask
import dask.array as da
import numpy as np
from dask.delayed import delayed
from PIL import Image

from common.data.preprocessing import dask_scan, job
from common.data.preprocessing.job import Scan
from common.data.preprocessing.sums import Sums
from common.data.sources import Encoded, load_files
from common.machine.machine import available_cores
from common.spec import Data
from compare.running.interleaving import turn

HERE = Path(__file__).parent
ARCHIVE = "tomato-leaf-subset.tar"
SIZE_PX = 256
IMAGES = 10_000
PUBLISHED_IMAGES = 1_000

LIMIT, PUBLISHED, DASK, TWIN = "limit", "published", "dask", "twin"


class Scans:
    """10,000 times one of the real training images, and as many files on the disk as there are different ones."""

    def __init__(self, archive: Path, folder: Path) -> None:
        """Unpack and read them.

        Args:
            archive: of real leaves of 256 px.
            folder: an empty one, for the files of all scans.
        """
        self._folder = folder
        files = load_files(Data(source=str(archive)), seed=0, cache_dir=str(folder / "cache"))
        assert files.image_size == SIZE_PX
        with tarfile.open(archive) as tar:
            tar.extractall(folder / "files", filter="data")
        self._paths = sorted(path for path in (folder / "files").rglob("*") if path.is_file())[:PUBLISHED_IMAGES]
        self.encoded: Encoded = files.train.files.take(np.arange(IMAGES) % len(files.train))
        self._job = folder / "job.npz"
        job.save(self.encoded, SIZE_PX, self._job)

    def by_twin(self, framework: str) -> Scan:
        out = self._folder / "scan.json"
        arguments = ["preprocess", str(self._job), "--workers", str(available_cores()), "--out", str(out)]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
        command = [sys.executable, "-m", f"{framework}_impl", *arguments]
        subprocess.run(command, env=environment, capture_output=True, check=True)
        return Scan.model_validate_json(out.read_bytes())

    def at_the_limit(self, program: Path) -> tuple[float, Sums]:
        """Seconds, and what they found."""
        self.encoded.offsets.tofile(self._folder / "offsets")
        self.encoded.sizes.tofile(self._folder / "sizes")
        arguments = [self.encoded.path, self._folder / "offsets", self._folder / "sizes", len(self.encoded), available_cores()]
        printed = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=True).stdout.split()
        red, green, blue, red_2, green_2, blue_2 = map(int, printed[1:])
        return float(printed[0]), Sums(len(self.encoded) * SIZE_PX**2, (red, green, blue), (red_2, green_2, blue_2))

    def as_published(self) -> float:
        """Seconds."""
        start = time.perf_counter()
        read = delayed(lambda path: np.asarray(Image.open(path)))
        images = da.stack([da.from_delayed(read(path), (SIZE_PX, SIZE_PX, 3), np.uint8) for path in self._paths])
        both = images.mean(axis=(0, 1, 2)), images.std(axis=(0, 1, 2))
        dask.compute(*both, scheduler="threads", num_workers=available_cores())
        return time.perf_counter() - start

    def in_turn(self, framework: str, program: Path, rounds: int) -> dict[str, list[float]]:
        """Images per second of each, round by round; all that sum find the same, or it is no measure.

        Args:
            framework: of the twin.
            program: of `compiled`.
            rounds: the first forwards, the second backwards, and so on.
        """
        found: set[Sums] = set()

        def rate(made: tuple[float, Sums]) -> float:
            found.add(made[1])
            return IMAGES / made[0]

        def twin() -> float:
            made = self.by_twin(framework)
            return rate((made.seconds, made.sums))

        with dask_scan.scanning(self.encoded, SIZE_PX, available_cores(), "threads") as scan:

            def of_dask() -> float:
                start = time.perf_counter()
                sums = scan()
                return rate((time.perf_counter() - start, sums))

            turns: dict[str, Callable[[], float]] = {
                LIMIT: lambda: rate(self.at_the_limit(program)),
                PUBLISHED: lambda: len(self._paths) / self.as_published(),
                TWIN: twin,
                DASK: of_dask,
            }
            rates: dict[str, list[float]] = {name: [] for name in turns}
            for number in range(rounds):
                for name in turn(turns, number):
                    rates[name].append(turns[name]())
        if len(found) != 1:
            raise RuntimeError(f"The scans found different sums: {found}.")
        return rates


def compiled(folder: Path) -> Path | str:
    """The program of the limit, compiled here; or why it cannot be."""
    compiler, program = shutil.which("cc"), folder / "limit"
    if compiler is None:
        return "the limit needs a C compiler (cc)"
    command = [compiler, "-O3", "-march=native", str(HERE / "limit.c"), "-ljpeg", "-lpthread", "-o", str(program)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return "the limit needs libjpeg-turbo and its header (libjpeg62-turbo-dev)"
    return program
