"""Images that are rows of a file or decoded on access: indexed, sent and chunked like an array."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from common.data import chunks
from common.data.decoding.images import DecodedFiles, MappedRows, Rows, select_rows
from common.data.preprocessing import scan
from common.data.sources import DatasetSplit, load_files
from common.spec import Data
from tests.common.made_up_data import pixels, tree, write_folder

NAMES = sorted(f"train/{kind}/{number}.png" for kind in ("cat", "dog") for number in range(30))
FOLDERS = [f"{split}/{kind}" for split in ("train", "val", "test") for kind in ("cat", "dog")]
IDS = np.array([1, 4, 5, 9, 20, 21, 33, 40, 41, 57])


@pytest.fixture(params=[MappedRows, DecodedFiles])
def rows(request, tmp_path: Path) -> Rows:
    """The images IDS of NAMES."""
    if request.param is MappedRows:
        np.save(tmp_path / "pixels.npy", np.stack([pixels(name) for name in NAMES]))
        found = select_rows(np.load(tmp_path / "pixels.npy", mmap_mode="r"), IDS)
        assert isinstance(found, MappedRows)
        return found
    folder = write_folder(tmp_path / "pets", tree(*FOLDERS, images=30))
    files = load_files(Data(source=str(folder)), seed=0, cache_dir=str(tmp_path / "cache"))
    return DecodedFiles(files.train.encoded.take(IDS), 8)


EXPECTED = np.stack([pixels(NAMES[index]) for index in IDS])


def test_they_are_indexed_like_an_array(rows: Rows) -> None:
    assert rows.shape == EXPECTED.shape and rows.nbytes == EXPECTED.nbytes and len(rows) == len(EXPECTED)
    for index in (3, -1, np.int64(2), slice(2, 7), slice(None), slice(4, 4), np.array([7, 0, 7]), np.array([], np.int64)):
        assert np.array_equal(rows[index], EXPECTED[index]) and rows[index].dtype == np.uint8
    assert np.array_equal(np.asarray(rows), EXPECTED) and np.array_equal(list(rows), EXPECTED)
    with pytest.raises(IndexError):
        rows[10]
    with pytest.raises(ValueError) as caught:
        np.array(rows, copy=False)
    assert "Received: copy False" in str(caught.value)


def test_they_are_sent_without_their_pixels(rows: Rows) -> None:
    sent = pickle.dumps(rows.take(np.arange(2, 9)))
    assert len(sent) < 2000 and np.array_equal(pickle.loads(sent), EXPECTED[2:9])  # noqa: S301  made here


def test_a_file_that_is_shorter_than_its_array_is_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "pixels.npy", EXPECTED)
    found = select_rows(np.load(tmp_path / "pixels.npy", mmap_mode="r"), np.array([0, 2, len(EXPECTED) - 1]))
    with (tmp_path / "pixels.npy").open("rb+") as file:
        file.truncate((tmp_path / "pixels.npy").stat().st_size - 1)
    assert np.array_equal(found[:2], EXPECTED[[0, 2]])
    with pytest.raises(OSError) as caught:
        found[2]
    assert "ends inside the array" in str(caught.value) and caught.value.filename == str(tmp_path / "pixels.npy")


def test_a_large_part_of_a_file_is_read_and_a_small_one_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "pixels.npy", EXPECTED)
    whole, part = np.load(tmp_path / "pixels.npy", mmap_mode="r"), np.arange(2, 9)
    assert isinstance(select_rows(whole, part), np.memmap)
    assert isinstance(select_rows(whole, part, max_mapped_bytes=EXPECTED[part].nbytes), np.memmap)
    read = select_rows(whole, part, max_mapped_bytes=EXPECTED[part].nbytes - 1)
    assert isinstance(read, MappedRows) and np.array_equal(read[:], EXPECTED[part])
    assert np.shares_memory(select_rows(EXPECTED, part), EXPECTED)


def test_their_sums_equal_those_of_the_array(rows: Rows) -> None:
    assert scan.scan_array(rows, 2, chunk_bytes=3 * 8 * 8 * 3) == scan.array_sums(EXPECTED)


def test_dask_reads_them_a_chunk_at_a_time(rows: Rows) -> None:
    array = chunks._array(
        DatasetSplit(images=rows, labels=np.zeros(10, np.int64)), 8, [np.arange(4), np.arange(4, 8), np.arange(8, 10)], ""
    )
    assert array.chunks[0] == (4, 4, 2) and np.array_equal(array.compute(scheduler="threads"), EXPECTED)


def test_rows_that_follow_one_another_are_a_part_of_the_array_and_rows_in_memory_a_copy() -> None:
    whole = np.stack([pixels(name) for name in NAMES])
    assert np.shares_memory(select_rows(whole, np.arange(5, 9)), whole)
    copy = select_rows(whole, IDS)
    assert isinstance(copy, np.ndarray) and np.array_equal(copy, EXPECTED) and not copy.flags.writeable
