"""Files from anybody."""

import errno
import pickle
from pathlib import Path

import pytest

from common.machine import plain_file
from common.machine.plain_file import PlainFileError
from tests import hostile_files


@pytest.mark.parametrize("num_bytes", [0, 1, 2**16, 2**17 - 1, 2**17])
def test_a_file_up_to_the_limit_is_read_whole(num_bytes: int, tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"abc" * (num_bytes // 3) + b"d" * (num_bytes % 3))
    link.symlink_to(file)
    assert plain_file.read(file, 2**17) == plain_file.read(link, 2**17) == file.read_bytes()


@pytest.mark.parametrize("name", hostile_files.IN_PLACE)
def test_what_is_no_plain_file_or_too_large_is_refused_by_name(name: str, tmp_path: Path) -> None:
    said = hostile_files.put(name, tmp_path / "file")
    with hostile_files.soon(), pytest.raises(PlainFileError) as refused:
        plain_file.read(tmp_path / "file", 2**20)
    assert str(refused.value).startswith(f"{tmp_path / 'file'} {said}")
    again = pickle.loads(pickle.dumps(refused.value))  # noqa: S301  as Dask's workers send it
    assert (str(again), again.fault, again.errno) == (str(refused.value), refused.value.fault, refused.value.errno)


@pytest.mark.parametrize(("most", "size"), [(1000, "1,000 bytes"), (2**21, "2 MiB")])
def test_one_byte_more_than_the_limit_is_too_large(most: int, size: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(most + 1))
    with pytest.raises(PlainFileError) as refused:
        plain_file.read(tmp_path / "file", most)
    assert refused.value.errno == errno.EFBIG and str(refused.value).endswith(f" {size}")


def test_a_file_that_says_that_it_is_empty_is_held_to_the_limit_too() -> None:
    maps = Path("/proc/self/maps")
    assert maps.stat().st_size == 0 and len(plain_file.read(maps, 2**24)) > 1000
    with pytest.raises(PlainFileError) as refused:
        plain_file.read(maps, 1000)
    assert refused.value.errno == errno.EFBIG and str(refused.value).endswith(" 1,000 bytes")


def test_a_link_is_not_followed_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(OSError, check=lambda error: error.errno == errno.ELOOP):
        plain_file.read(tmp_path / "link", 2**20, follow=False)
