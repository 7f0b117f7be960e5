"""Images per second of the scans for mean and standard deviation, beside the limit and the published way (`make bench`).

The limit is libjpeg-turbo's decode and integer sums in C threads, from limit.c. The published way reads each file whole
into a dask.array of images (skimage.io.imread, which is Pillow and `asarray`) and asks that for mean and std. All take
turns, round after round, on all cores, so that what else the machine does meets all of them.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.delayed import delayed
from PIL import Image
from pytest_benchmark.fixture import BenchmarkFixture

from common.datasets import Encoded, load_files
from common.preprocessing import dask_scan, job
from common.preprocessing.job import Scan
from common.preprocessing.sums import Sums
from common.spec import Data, available_cores

HERE = Path(__file__).parent
SIZE_PX = 256
IMAGES = 10_000
PUBLISHED_IMAGES = 1_000
ROUNDS = 3

LEAST_OF_LIMIT, LEAST_TIMES_PUBLISHED, LEAST_TIMES_PUBLISHED_EACH = 0.6, 15.0, 8.0


@pytest.fixture(scope="module")
def tomato(test_data: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoded, list[Path]]:
    """10,000 times one of the real training images, and as many files on the disk as there are different ones."""
    archive, folder = test_data("tomato-leaf-subset.tar"), tmp_path_factory.mktemp("tomato")
    files = load_files(Data(source=str(archive)), seed=0, cache_dir=str(folder / "cache"))
    assert files.image_size == SIZE_PX
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "files", filter="data")
    paths = sorted(path for path in (folder / "files").rglob("*") if path.is_file())
    return files.train.encoded.take(np.arange(IMAGES) % len(files.train)), paths


@pytest.fixture(scope="module")
def limit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference, compiled here."""
    compiler, program = shutil.which("cc"), tmp_path_factory.mktemp("limit") / "limit"
    if compiler is None:
        pytest.skip("the limit needs a C compiler (cc)")
    command = [compiler, "-O3", "-march=native", str(HERE / "limit.c"), "-ljpeg", "-lpthread", "-o", str(program)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("the limit needs libjpeg-turbo and its header (libjpeg62-turbo-dev)")
    return program


def test_scans_against_the_limit_and_the_published_way(
    benchmark: BenchmarkFixture,
    framework: str,
    tomato: tuple[Encoded, list[Path]],
    limit: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    encoded, paths = tomato
    cores = available_cores()
    job.save(encoded, SIZE_PX, tmp_path / "job.npz")
    rates: dict[str, list[float]] = {"limit": [], "published": [], framework: []}
    found: set[Sums] = set()

    def others() -> None:
        seconds, sums = scan_at_the_limit(limit, encoded, cores, tmp_path)
        rates["limit"].append(len(encoded) / seconds)
        found.add(sums)
        rates["published"].append(PUBLISHED_IMAGES / scan_as_published(paths[:PUBLISHED_IMAGES], cores))
        made = scan_by_twin(framework, tmp_path, cores)
        rates[framework].append(made.images / made.seconds)
        found.add(made.sums)

    with dask_scan.scanning(encoded, SIZE_PX, cores, "threads") as scan:
        found.add(benchmark.pedantic(scan, setup=others, rounds=ROUNDS))
    rates["dask"] = [len(encoded) / seconds for seconds in benchmark.stats.stats.data]
    assert len(found) == 1
    medians = {name: statistics.median(values) for name, values in rates.items()}
    fastest = max(medians["dask"], medians[framework])
    ratios = {
        "of_the_limit": fastest / medians["limit"],
        "dask_times_published": medians["dask"] / medians["published"],
        f"{framework}_times_published": medians[framework] / medians["published"],
    }
    benchmark.extra_info.update({"images_per_second": medians, **ratios})
    with capsys.disabled():
        print(f"\nimages/s on {cores} cores, median of {ROUNDS}: {rounded(medians)}; ratios: {rounded(ratios)}")
    assert ratios["of_the_limit"] >= LEAST_OF_LIMIT
    assert fastest / medians["published"] >= LEAST_TIMES_PUBLISHED
    assert min(medians["dask"], medians[framework]) / medians["published"] >= LEAST_TIMES_PUBLISHED_EACH


def scan_at_the_limit(program: Path, encoded: Encoded, threads: int, folder: Path) -> tuple[float, Sums]:
    encoded.offsets.tofile(folder / "offsets")
    encoded.sizes.tofile(folder / "sizes")
    arguments = [encoded.path, folder / "offsets", folder / "sizes", len(encoded), threads]
    printed = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=True).stdout.split()
    red, green, blue, red_2, green_2, blue_2 = map(int, printed[1:])
    return float(printed[0]), Sums(len(encoded) * SIZE_PX**2, (red, green, blue), (red_2, green_2, blue_2))


def scan_as_published(paths: list[Path], threads: int) -> float:
    start = time.perf_counter()
    read = delayed(lambda path: np.asarray(Image.open(path)))
    images = da.stack([da.from_delayed(read(path), (SIZE_PX, SIZE_PX, 3), np.uint8) for path in paths])
    dask.compute(images.mean(axis=(0, 1, 2)), images.std(axis=(0, 1, 2)), scheduler="threads", num_workers=threads)
    return time.perf_counter() - start


def scan_by_twin(framework: str, folder: Path, workers: int) -> Scan:
    arguments = ["preprocess", str(folder / "job.npz"), "--workers", str(workers), "--out", str(folder / "scan.json")]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    subprocess.run([sys.executable, "-m", f"{framework}_impl", *arguments], env=environment, capture_output=True, check=True)
    return Scan.model_validate_json((folder / "scan.json").read_bytes())


def rounded(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:,.0f}" if value >= 100 else f"{name} {value:.2f}" for name, value in values.items())
