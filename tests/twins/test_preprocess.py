"""The framework's scan of a split: the same integer sums as the canonical pixels'."""

from pathlib import Path

import numpy as np
import pytest

from common.data.preprocessing import job, scan
from common.data.preprocessing.job import Scan
from common.data.preprocessing.sums import from_array
from common.data.sources import Encoded
from tests.common.data.preprocessing.made_up_scan import jpeg, oracle, packed, png, repeated
from tests.support import processes
from tests.twins.adapters import Twin


@pytest.fixture
def mixed(tmp_path: Path) -> Encoded:
    """Plain JPEGs of the size wanted and of another, a grey one, and PNGs."""
    contents = [jpeg(0), jpeg(1, size_px=40), jpeg(2, mode="L"), png(3), png(4, size_px=31)]
    return repeated(packed(tmp_path / "packed", contents, [True, True, True, False, False]), 30)


def scan_in_process(framework: str, encoded: Encoded, image_size: int, workers: int, folder: Path) -> Scan:
    job.save(encoded, image_size, folder / "job.npz")
    words = ("preprocess", folder / "job.npz", "--workers", workers, "--out", folder / "scan.json")
    processes.twin(framework, *words).succeeded()
    return Scan.model_validate_json((folder / "scan.json").read_bytes())


@pytest.mark.parametrize("value", [0, 1, 255])
@pytest.mark.parametrize("shape", [(1, 1), (256, 256), (300, 7), (4096, 2)])
def test_channel_sums_are_exact(twin: Twin, shape: tuple[int, int], value: int) -> None:
    image = np.full((*shape, 3), value, np.uint8)
    image[0, 0] = (3, 2, 1)
    flat = image.reshape(-1, 3).astype(np.int64)
    sums = twin.array(twin.preprocess.channel_sums(twin.tensor(image)))
    assert sums.dtype == np.int64
    assert np.array_equal(sums, np.stack([flat.sum(axis=0), (flat**2).sum(axis=0)]))
    assert from_array(sums, len(flat)) == scan.array_sums(image[np.newaxis])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_scan_finds_the_canonical_sums_with_any_number_of_workers(
    framework: str, mixed: Encoded, tmp_path: Path, workers: int
) -> None:
    made = scan_in_process(framework, mixed, 24, workers, tmp_path)
    assert made.sums == oracle(mixed, 24)
    assert made.images == len(mixed)
    assert min(made.import_seconds, made.start_seconds, made.seconds, made.peak_memory_mib) > 0


@pytest.mark.slow
def test_peak_memory_at_a_hundred_thousand_images_is_that_at_ten_thousand(framework: str, tmp_path: Path) -> None:
    few = packed(tmp_path / "packed", [jpeg(seed, size_px=32) for seed in range(100)])
    peaks = [scan_in_process(framework, repeated(few, times), 32, 2, tmp_path).peak_memory_mib for times in (100, 1000)]
    assert peaks[1] <= 1.1 * peaks[0]
