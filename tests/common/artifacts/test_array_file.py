"""Files of arrays that are written and read one array at a time."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from common.artifacts import array_file
from common.training.tracing import group

ARRAYS = {
    "matrix": np.arange(6.0).reshape(2, 3).T,
    "nothing": np.zeros((0, 2), np.float32),
    "number": np.array(7),
    "pixels": np.arange(8, dtype=np.uint8).reshape(2, 2, 2),
    "mask": np.array([True, False]),
}


def test_an_array_file_is_a_safetensors_file(tmp_path: Path) -> None:
    path = tmp_path / "arrays.safetensors"
    array_file.write(path, iter(ARRAYS.items()), len(ARRAYS))
    whole, opened = safetensors.numpy.load_file(path), array_file.ArrayFile(path)
    assert whole.keys() == opened.keys() == ARRAYS.keys() and len(opened) == 5
    for name, array in ARRAYS.items():
        for found in (whole[name], opened[name]):
            assert found.dtype == array.dtype and found.reshape(array.shape).tolist() == array.tolist()
    assert opened.get("other") is None
    with pytest.raises(KeyError) as caught:
        opened["other"]
    assert caught.value.args == ("other",)


def test_the_arrays_of_a_folder_are_found_in_their_order(tmp_path: Path) -> None:
    path, names = tmp_path / "arrays.safetensors", ["after/1/b", "after/1/a", "after/10/a", "loss"]
    array_file.write(path, ((name, np.zeros(1)) for name in names), len(names))
    opened = array_file.ArrayFile(path)
    for folder, number in {"after/1/": 2, "after/": 3, "after/1": 0, "other/": 0}.items():
        inside = opened.names_in(folder)
        assert len(inside) == number
        assert not number or inside == [name for name in opened if name.startswith(folder)]
    assert list(group(opened, "after/1/")) == list(group(dict(opened), "after/1/"))


def test_more_arrays_than_there_is_room_for_are_refused(tmp_path: Path) -> None:
    many = ((f"{'long' * 20}/{number}", np.zeros(1)) for number in range(20))
    with pytest.raises(ValueError) as caught:
        array_file.write(tmp_path / "arrays.safetensors", many, 2)
    for words in (str(tmp_path / "arrays.safetensors"), "more arrays than expected", "names are too long", "Received: 20."):
        assert words in str(caught.value)
