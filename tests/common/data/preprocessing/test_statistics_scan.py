"""Scans of packed files in threads, and by Dask: the same sums as the canonical pixels', however the work is divided."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from common.data.decoding import decode
from common.data.preprocessing import dask_scan, job, scan
from common.data.preprocessing.job import Scan
from common.data.sources import Encoded, load_files
from common.spec import Data
from tests.common.data.preprocessing.made_up_scan import jpeg, oracle, packed, png, repeated
from tests.support import processes


@pytest.fixture
def mixed(tmp_path: Path) -> Encoded:
    """Plain JPEGs of the size wanted and of another, grey ones, PNGs, and one that libjpeg-turbo complains of."""
    contents = [jpeg(0), jpeg(1, size_px=40), jpeg(2, mode="L"), png(3), png(4, size_px=31), jpeg(5) + b"after its end"]
    contents.append(jpeg(6)[:-2] + bytes(8) + jpeg(6)[-2:])  # bytes before the last marker, which readers pass over
    return packed(tmp_path / "packed", contents, [True, True, True, False, False, True, True])


def test_one_of_these_files_is_decoded_by_the_shared_rule_after_all(mixed: Encoded) -> None:
    with pytest.raises(ValueError, match="extraneous bytes"):  # a library's own words: which of its complaints it is
        simplejpeg.decode_jpeg(mixed.content(6))


def test_every_kind_of_file_counts_with_its_canonical_pixels(mixed: Encoded) -> None:
    assert scan.file_sums(mixed, 24) == oracle(mixed, 24)


def test_threads_and_those_of_dask_find_the_same_sums_whatever_their_number(mixed: Encoded) -> None:
    many = repeated(mixed, 20)
    assert len(scan.parts(many, 1500)) > 10
    assert {scan.scan(many, 24, workers, chunk_bytes=1500) for workers in (1, 2, 8)} == {oracle(many, 24)}
    for workers in (1, 3):
        with dask_scan.scanning(many, 24, workers, "threads", chunk_bytes=1500) as run:
            assert run() == oracle(many, 24)


def test_an_array_has_the_sums_of_its_files(mixed: Encoded) -> None:
    images = np.stack([decode.decode(mixed.content(index), 24) for index in range(len(mixed))])
    assert scan.scan_array(images, 2) == scan.scan(mixed, 24, 2)


@pytest.mark.parametrize("chunk_bytes", [1, 700, 2000, 10**9])
def test_parts_hold_every_file_once_in_order(mixed: Encoded, chunk_bytes: int) -> None:
    parts = scan.parts(mixed, chunk_bytes)
    assert all(len(part) for part in parts)
    assert np.concatenate([part.offsets for part in parts]).tolist() == mixed.offsets.tolist()
    assert [content for part in parts for content in scan.read_files(part)] == [mixed.content(i) for i in range(len(mixed))]


@pytest.mark.slow
def test_libjpeg_turbo_gives_the_canonical_pixels_of_a_thousand_real_images(
    test_data: Callable[[str], Path], tmp_path: Path
) -> None:
    files = load_files(Data(source=str(test_data("tomato-leaf-subset.tar"))), seed=0, cache_dir=str(tmp_path))
    encoded = files.train.encoded.take(np.arange(0, len(files.train), 2)[:1000])
    assert len(encoded) == 1000 and encoded.decodes_identically.all()
    for content in scan.read_files(encoded):
        assert np.array_equal(simplejpeg.decode_jpeg(content), decode.decode(content, None))


def test_a_process_of_its_own_writes_what_it_measured(mixed: Encoded, tmp_path: Path) -> None:
    job.save(mixed, 24, tmp_path / "job.npz")
    made = scan_in_process(tmp_path, "threads", 2)
    assert made.sums == oracle(mixed, 24)
    assert made.images == len(mixed)
    assert min(made.import_seconds, made.start_seconds, made.seconds, made.peak_memory_mib) > 0


@pytest.mark.slow
def test_peak_memory_at_a_hundred_thousand_images_is_that_at_ten_thousand(tmp_path: Path) -> None:
    few = packed(tmp_path / "packed", [jpeg(seed, size_px=32) for seed in range(100)])
    peaks: list[float] = []
    for times in (100, 1000):
        job.save(repeated(few, times), 32, tmp_path / "job.npz")
        made = scan_in_process(tmp_path, "threads", 2)
        assert made.images == 100 * times
        peaks.append(made.peak_memory_mib)
    assert peaks[1] <= 1.1 * peaks[0]


def scan_in_process(folder: Path, scheduler: str, workers: int) -> Scan:
    options = ["--scheduler", scheduler, "--workers", workers, "--out", folder / "scan.json"]
    processes.python("-m", "common.processes.dask_scan_process", folder / "job.npz", *options).succeeded()
    return Scan.model_validate_json((folder / "scan.json").read_bytes())
