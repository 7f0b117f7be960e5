from pathlib import Path

import numpy as np
import pytest

from common.data import mapped


@pytest.fixture
def whole(tmp_path: Path) -> np.ndarray:
    """Rows that are all different, in a file longer than a page."""
    array = np.arange(9000 * 10, dtype=np.int64).reshape(9000, 10)
    np.save(tmp_path / "array.npy", array)
    return np.load(tmp_path / "array.npy", mmap_mode="r")


@pytest.mark.parametrize("cut", [slice(None), slice(5000, None), slice(3, 4), slice(8999, 9000)])
def test_a_part_of_a_file_is_found_again_by_its_name_and_place(whole: np.ndarray, cut: slice) -> None:
    sent = mapped.to_reference(whole[cut])
    assert isinstance(sent, mapped.Reference)
    opened = mapped.from_reference(sent)
    assert np.array_equal(opened, whole[cut])
    assert not opened.flags.writeable


def test_a_part_of_a_part_too(whole: np.ndarray) -> None:
    part = whole[100:][4000:7000]
    found = mapped.reference(part)
    assert found is not None
    assert np.array_equal(found.open(), part)
    assert np.array_equal(found.rows(17, 19).open(), part[17:19])


def test_arrays_without_a_file_or_not_contiguous_are_sent_as_they_are(whole: np.ndarray) -> None:
    for array in (np.asarray(whole), np.arange(4), whole[::2], whole[:, 3:]):
        assert mapped.reference(array) is None
        assert mapped.from_reference(mapped.to_reference(array)) is array
